"""Predictions for measured training runs, with the code that ``solve`` uses, and their errors."""
