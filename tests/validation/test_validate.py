"""The errors on published runs, and the contract of the validation document."""

from __future__ import annotations

import copy
from collections import Counter
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from planner.validation.validate import Validation, summarise, validate_runs

ROOT = Path(__file__).resolve().parents[2]

FAMILY = 10
"""Rows from which on a source is a family of its own."""


def test_time_of_published_runs(validation: Validation) -> None:
    overall = validation.summary["overall"]["time"]
    assert overall.n > 600
    assert overall.median_ape is not None
    assert overall.mape is not None
    assert overall.median_ape <= 0.045
    assert overall.mape <= 0.07


def test_time_of_every_family(validation: Validation) -> None:
    families = {
        source: parts["time"]
        for source, parts in validation.summary.items()
        if parts["time"].n >= FAMILY
    }
    assert len(families) >= 10
    for source, errors in families.items():
        assert errors.mape is not None
        assert errors.mape <= (0.12 if "torchtitan" in source else 0.10), source


def test_memory_of_simumax_korthikanti_zero_bubble_and_torchtitan(validation: Validation) -> None:
    exact = [
        abs(row.memory_error)
        for row in validation.rows
        if row.memory_error is not None and row.source.startswith(("SimuMax", "Korthikanti"))
    ]
    assert len(exact) == 31
    assert np.mean(exact) <= 0.03
    assert max(exact) <= 0.08
    for source, limit in (("Zero Bubble", 0.06), ("torchtitan", 0.15)):
        name = next(name for name in validation.summary if name.startswith(source))
        mean = validation.summary[name]["memory"].mape
        assert mean is not None
        assert mean <= limit, source


def test_rows_with_model_degrees_and_time_are_predicted(
    validation: Validation, raw_runs: list[dict[str, Any]]
) -> None:
    complete = [
        row
        for row, run in zip(validation.rows, raw_runs, strict=True)
        if run["model"]["hidden"]
        and run["parallel"]["tp"]
        and run["parallel"]["pp"]
        and any(v for k, v in run["measured"].items() if not k.startswith("mem"))
    ]
    predicted = [row for row in complete if row.predicted_time_s is not None]
    assert len(predicted) / len(complete) >= 0.85
    assert all(row.time_skipped for row in complete if row.predicted_time_s is None)


def test_the_predicted_best_configuration_is_nearly_the_measured_best(
    validation: Validation,
) -> None:
    losses = validation.ranking.losses
    assert len(losses) >= 30
    assert np.median(losses) <= 0.02
    assert np.mean(losses) <= 0.04
    correlations = [g.spearman for g in validation.ranking.groups if g.spearman is not None]
    assert np.median(correlations) >= 0.8


def test_measured_fields_change_no_prediction(raw_runs: list[dict[str, Any]]) -> None:
    some = raw_runs[::23]
    scaled = copy.deepcopy(some)
    for run in scaled:
        run["measured"] = {k: v and 3 * v for k, v in run["measured"].items()}
    for before, after in zip(validate_runs(some).rows, validate_runs(scaled).rows, strict=True):
        assert before.predicted_time_s == after.predicted_time_s
        assert before.predicted_memory_bytes == after.predicted_memory_bytes


def test_document(validation: Validation, raw_runs: list[dict[str, Any]]) -> None:
    document = validation.to_json()
    assert [row["id"] for row in document["rows"]] == [run["id"] for run in raw_runs]
    assert [row["source"] for row in document["rows"]] == [run["source"] for run in raw_runs]
    assert set(document["summary"]) == {run["source"] for run in raw_runs} | {"overall"}
    for parts in document["summary"].values():
        assert set(parts) == {"time", "memory"}
        for errors in parts.values():
            assert set(errors) == {"n", "mape", "median_ape", "p90_ape", "bias"}
    for row in document["rows"]:
        assert (row["time_skipped"] is None) == (
            row["predicted_time_s"] is not None and row["measured_time_s"] is not None
        )
        assert (row["memory_skipped"] is None) == (
            row["predicted_memory_bytes"] is not None and row["measured_memory_bytes"] is not None
        )


def test_null_fields_are_listed_as_assumed(
    validation: Validation, raw_runs: list[dict[str, Any]]
) -> None:
    for row, run in zip(validation.rows, raw_runs, strict=True):
        if row.predicted_time_s is None or run.get("stage_profile"):
            continue
        named = Counter(text.split(" = ")[0].split(" (")[0] for text in row.assumed)
        assert ("recompute" in named) == (run["parallel"]["recompute"] is None)
        assert ("cp" in named) == (run["parallel"]["cp"] is None)
        assert ("vocabulary" in named) == (run["model"]["vocab"] is None)


def test_the_table_of_the_documentation_is_current(validation: Validation) -> None:
    spec = spec_from_file_location("draw_validation", ROOT / "docs/draw_validation.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (ROOT / "docs/validation.md").read_text("utf-8")
    for line in module.table(validation):
        assert line in page
    picture = module.picture(validation)
    assert picture.count("<circle") + picture.count("<polygon") > 400
    ElementTree.fromstring(picture)


def test_summary_arithmetic() -> None:
    errors = summarise([0.1, -0.3, 0.2, 0.0])
    assert errors.n == 4
    assert errors.mape == pytest.approx(0.15)
    assert errors.median_ape == pytest.approx(0.15)
    assert errors.p90_ape == pytest.approx(0.27)
    assert errors.bias == pytest.approx(0.0)
    assert summarise([]) == (0, None, None, None, None)
