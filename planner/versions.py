"""Versions of what an answer rests on."""

from __future__ import annotations

import platform
from importlib import metadata

from planner import __version__

PACKAGES = ("ortools", "pulp", "numpy", "pydantic")


def versions() -> dict[str, str]:
    """Versions of Python, the planner and its solvers ("not installed" where one is missing)."""
    found = {"python": platform.python_version(), "scaleacross-planner": __version__}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found
