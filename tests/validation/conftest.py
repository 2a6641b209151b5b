"""The shipped runs, validated once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.validation.validate import Validation, validate_runs

RUNS = Path(__file__).resolve().parents[2] / "bench/data/published_runs.json"


@pytest.fixture(scope="session")
def raw_runs() -> list[dict[str, Any]]:
    return json.loads(RUNS.read_text("utf-8"))


@pytest.fixture(scope="session")
def validation(raw_runs: list[dict[str, Any]]) -> Validation:
    return validate_runs(raw_runs)
