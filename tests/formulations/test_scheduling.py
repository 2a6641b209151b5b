"""Groups of jobs and stays: exact evaluation, copies, and engines that take or refuse them."""

from __future__ import annotations

import pickle

import pytest

from formulations.algebra import Variable
from formulations.scheduling import SchedulingModel
from planner.backends import EngineOptions, SolveStatus, load_backend, solve_here


def two_jobs() -> tuple[SchedulingModel, Variable, Variable, Variable]:
    model = SchedulingModel()
    a, b = model.integer("a", 0, 20), model.integer("b", 0, 20)
    end = model.integer("end", 0, 40)
    model.no_overlap([(a, 5), (b, 3)], "machine")
    model.add(end - a >= 5, family="end")
    model.add(end - b >= 3, family="end")
    model.minimize(end)
    return model, a, b, end


def test_overlap_is_measured() -> None:
    model, *_ = two_jobs()
    assert model.evaluate([0, 5, 8]).feasible
    assert model.evaluate([3, 0, 8]).feasible
    (broken,) = model.evaluate([0, 3, 8]).violations
    assert (broken.name, broken.amount) == ("machine[0]", 2)


def test_a_job_without_duration_lies_in_no_other() -> None:
    model = SchedulingModel()
    a, b = model.integer("a", 0, 9), model.integer("b", 0, 9)
    model.no_overlap([(a, 4), (b, 0)], "machine")
    assert [b for b in range(10) if model.evaluate([2, b]).feasible] == [0, 1, 2, 6, 7, 8, 9]


def test_levels_count_what_stays_at_once() -> None:
    model = SchedulingModel()
    a, b = model.integer("a", 0, 9), model.integer("b", 0, 9)
    model.level([((a, 0), (a, 4), 2), ((b, 0), None, 2), (None, (b, 1), 1)], 4, "room")
    assert model.evaluate([0, 4]).feasible
    assert model.evaluate([3, 4]).violations[0].amount == 1
    excess = {
        (x, y): sum(v.amount for v in model.evaluate([x, y]).violations)
        for x in range(10)
        for y in range(10)
    }
    for (x, y), found in excess.items():
        worst = max(2 * (x <= t < x + 4) + 2 * (t >= y) + (t < y + 1) for t in range(-1, 20))
        assert found == max(0, worst - 4)


def test_copies_keep_groups_and_lose_dropped_families() -> None:
    model, *_ = two_jobs()
    copy = pickle.loads(pickle.dumps(model))
    assert copy.fingerprint() == model.fingerprint()
    assert not copy.evaluate([0, 0, 8]).feasible
    loose = model.without("machine")
    assert loose.evaluate([0, 0, 8]).feasible
    assert loose.fingerprint() != model.fingerprint()
    assert model.families() == {"end": 2, "machine": 1}
    with pytest.raises(ValueError, match="no such constraint family: nothing"):
        model.without("nothing")


def test_wrong_groups_are_refused() -> None:
    model, a, *_ = two_jobs()
    other = SchedulingModel().integer("x", 0, 1)
    with pytest.raises(ValueError, match="another model"):
        model.no_overlap([(a, 1), (other, 1)], "machine")
    with pytest.raises(ValueError, match="negative"):
        model.no_overlap([(a, -1)], "machine")
    with pytest.raises(TypeError, match="not an int"):
        model.no_overlap([(a, 1.5)], "machine")  # type: ignore[list-item]
    with pytest.raises(ValueError, match="negative"):
        model.level([((a, 0), None, -1)], 1, "room")


def test_cp_sat_takes_groups() -> None:
    model, *_ = two_jobs()
    result = solve_here(load_backend("cp-sat"), model, EngineOptions(time_limit_s=20))
    assert (result.status, result.objective, result.bound) == (SolveStatus.OPTIMAL, 8, 8)


def test_cp_sat_takes_levels() -> None:
    model = SchedulingModel()
    starts = [model.integer(f"s{i}", 0, 30) for i in range(4)]
    end = model.integer("end", 0, 40)
    model.level([((s, 0), (s, 5), 2) for s in starts], 5, "room")
    for s in starts:
        model.add(end - s >= 5, family="end")
    model.minimize(end)
    result = solve_here(load_backend("cp-sat"), model, EngineOptions(time_limit_s=20))
    assert (result.status, result.objective) == (SolveStatus.OPTIMAL, 10)
    assert result.values is not None and len(result.values) == 5


def test_other_engines_refuse_groups() -> None:
    model, *_ = two_jobs()
    result = solve_here(load_backend("cbc"), model, EngineOptions(time_limit_s=20))
    assert result.status is SolveStatus.ERROR
    assert "does not support groups of jobs and stays" in result.message
