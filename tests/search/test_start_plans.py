"""Plans of other instances as the start of a search."""

from __future__ import annotations

import pytest

from planner.instance import load_instance
from planner.instance.fixes import with_fixes
from planner.plan import Plan
from planner.search.result import Progress, SolveResult
from planner.search.solve import Search, solve

FIXES = [
    "tp=1",
    "cp=1",
    "ep=1",
    "micro_batch_size=1",
    "schedule=1f1b",
    "sharding=ddp",
    "recompute=none",
    "overlap=false",
]


def solved(*fixes: str, starts: tuple[Plan, ...] = ()) -> SolveResult:
    return solve(with_fixes(load_instance("tiny"), [*FIXES, *fixes]), workers=1, start_plans=starts)


def best_plan(*fixes: str) -> Plan:
    plan = solved(*fixes).plan
    assert plan is not None
    return plan


def test_a_start_is_the_first_incumbent_and_the_answer_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free = solved("pp=2")
    start = best_plan("pp=2", "dp=2")
    assert start != free.plan
    offered: list[int] = []
    offer = Search._offer

    def recorded(self: Search, layout: object, time_us: int) -> None:
        offered.append(time_us)
        offer(self, layout, time_us)  # type: ignore[arg-type]

    monkeypatch.setattr(Search, "_offer", recorded)
    again = solved("pp=2", starts=(start,))
    assert offered[0] == solved("pp=2", "dp=2").time_us
    assert (again.status, again.time_us, again.plan) == (free.status, free.time_us, free.plan)


def test_plans_of_other_spaces_are_left_out() -> None:
    free = solved("pp=2", "dp=2")
    starts = (best_plan("pp=1"), best_plan("pp=2", "dp=4"))
    again = solved("pp=2", "dp=2", starts=starts)
    assert (again.time_us, again.bound_us, again.plan) == (free.time_us, free.bound_us, free.plan)


def test_a_start_is_what_is_left_where_there_is_no_time() -> None:
    start = best_plan("pp=2", "dp=2")
    states: list[Progress] = []
    result = solve(
        with_fixes(load_instance("tiny"), [*FIXES, "pp=2"]),
        workers=1,
        time_limit_s=1e-6,
        start_plans=(start,),
        progress=states.append,
    )
    assert (result.status.value, result.limit) == ("FEASIBLE", "time")
    assert result.plan == start
