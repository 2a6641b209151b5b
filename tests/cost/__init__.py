"""Tests of the cost functions."""
