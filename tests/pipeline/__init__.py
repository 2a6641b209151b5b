"""Tests of the pipeline schedules, event graphs and live counts."""
