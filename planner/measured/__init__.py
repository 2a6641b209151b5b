"""Measurements of networks: reads logs of tools and fits what an instance takes from them."""

from planner.measured.imports import KINDS, Imported, import_measurements

__all__ = ["KINDS", "Imported", "import_measurements"]
