"""Answers of the search carry the time of the simulation."""

from __future__ import annotations

import pytest

from planner.instance.load import load_instance, narrowed
from planner.search.solve import solve
from planner.simulation import simulate as module
from planner.simulation.simulate import simulate

SEARCH = {"pp": 2, "tp": 1, "micro_batch_size": 1, "schedule": "1f1b", "dp": 4}


def test_an_answer_says_how_far_z_is_from_the_simulation() -> None:
    instance = narrowed(load_instance("tiny"), SEARCH)
    result = solve(instance)
    assert result.plan is not None
    found = simulate(instance, result.plan)
    document = result.to_json()
    assert document["simulated_time_s"] == pytest.approx(found.time_s, rel=1e-12)
    assert document["model_error"] == pytest.approx(found.model_error, abs=1e-12)
    z, simulated = document["iteration_time_s"], document["simulated_time_s"]
    assert document["model_error"] == pytest.approx((z - simulated) / simulated)
    assert document["model_error"] != 0


def test_an_answer_that_is_too_long_to_simulate_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_EVENTS", 0)
    document = solve(narrowed(load_instance("tiny"), SEARCH)).to_json()
    assert document["plan"] is not None
    assert document["simulated_time_s"] is None
    assert document["model_error"] is None
    assert any(note.startswith("not simulated") for note in document["provenance"]["notes"])
