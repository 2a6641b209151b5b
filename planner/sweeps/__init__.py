"""Sweeps: one job over ranges of its fields, each point a solve that may fail alone."""
