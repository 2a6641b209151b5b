"""The scheduling model of op tables: its optimum is the enumerated one, each family counts."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from formulations.schedule import build_schedule, time_window, whole
from formulations.schedule.build import ScheduleModel
from planner.backends import Engine, EngineOptions, EngineResult, SolveStatus
from planner.pipeline.op_table import (
    OpTable,
    ScheduleProblem,
    Timeline,
    evaluate,
    template_table,
    violations,
)
from planner.pipeline.schedule_bound import schedule_bound
from planner.pipeline.schedules import Template
from planner.search.synthesis.list_scheduling import keys_by_kind, list_schedule
from tests.pipeline.schedule_problems import least_makespan, pipeline, random_problem
from tests.pipeline.test_schedule_bound import SHAPES


@pytest.fixture(scope="module")
def engine() -> object:
    with Engine("cp-sat") as running:
        yield running


def built(problem: ScheduleProblem) -> tuple[ScheduleModel, Timeline]:
    bound = schedule_bound(problem)
    start = evaluate(problem, list_schedule(problem, keys_by_kind(problem, "BFW")))
    window = whole(problem, bound, start)
    return build_schedule(problem, window, lower=bound.value, upper=start.makespan), start


def solved(engine: Engine, model: ScheduleModel, start: Timeline) -> EngineResult:
    options = EngineOptions(time_limit_s=30, workers=2, hint=model.hint(start))
    return engine.solve(model.model, options)


@pytest.mark.parametrize(("devices", "m", "split"), SHAPES)
def test_the_optimum_is_the_enumerated_one(
    engine: Engine, devices: tuple[int, ...], m: int, split: bool
) -> None:
    rng = random.Random(100 * len(devices) + m)
    for _ in range(5):
        problem = random_problem(rng, devices, m, split=split)
        model, start = built(problem)
        hint = model.hint(start)
        point = [hint[index] for index in range(len(model.model.variables))]
        assert model.model.evaluate(point).feasible
        result = solved(engine, model, start)
        assert result.status is SolveStatus.OPTIMAL
        assert result.values is not None
        assert result.objective == least_makespan(problem)
        found = evaluate(problem, model.table(result.values, start.table.rows))
        assert found.makespan == result.objective and not violations(problem, found)


def test_each_family_is_needed(engine: Engine) -> None:
    """Without the heads and tails the model is as exact; without a family it finds too little."""
    rng = random.Random(11)
    problems = [
        replace(pipeline(2, 2, slow={0: (0, 45)}, v_shape=True), forward=(9, 30, 7, 2)),
        replace(pipeline(1, 3, v_shape=True), full=(3, 2), held=(2, 1), limit=(6,)),
        pipeline(2, 3, slow={0: (0, 60)}),
        *(random_problem(rng, *shape[:2], split=shape[2]) for shape in SHAPES * 3),
    ]
    missed = {"device", "input", "memory", "transfer", "remainder", "link"}
    for problem in problems:
        model, start = built(problem)
        ops = [op for row in model.window.ops for op in row]
        bare = replace(
            model.window,
            release={op: problem.start[problem.devices[op.chunk]] for op in ops},
            remainder={op: problem.end[problem.devices[op.chunk]] for op in ops},
        )
        plain = build_schedule(problem, bare, lower=0, upper=start.makespan)
        least = solved(engine, plain, start).objective
        assert least is not None and least == solved(engine, model, start).objective
        for family in sorted(missed & set(plain.model.families())):
            loose = replace(plain, model=plain.model.without(family))
            found = solved(engine, loose, start).objective
            assert found is not None
            if found < least:
                missed.discard(family)
        if not missed:
            return
    assert not missed


def test_a_window_moves_only_its_ops_and_finds_a_better_order(engine: Engine) -> None:
    problem = pipeline(4, 8, slow={1: (20, 5)})
    bound = schedule_bound(problem)
    start = evaluate(problem, template_table(Template("zb_h1", 4, 1, 8, None, (0,) * 4)))
    assert not violations(problem, start)
    window = time_window(problem, bound, start, 200, 600)
    model = build_schedule(problem, window, lower=bound.value, upper=start.makespan)
    result = solved(engine, model, start)
    assert result.values is not None
    table = model.table(result.values, start.table.rows)
    found = evaluate(problem, table)
    assert not violations(problem, found)
    assert found.makespan < start.makespan
    for row, old, starts in zip(table.rows, start.table.rows, start.starts, strict=True):
        fixed = [i for i, begin in enumerate(starts) if not 200 <= begin < 600]
        assert [row[i] for i in fixed] == [old[i] for i in fixed]


@pytest.mark.parametrize("v_shape", [False, True])
def test_every_window_of_a_table_holds_that_table(v_shape: bool) -> None:
    rng = random.Random(2)
    problem = pipeline(3, 6, slow={0: (30, 25)}, v_shape=v_shape, live=4)
    start = evaluate(problem, list_schedule(problem, keys_by_kind(problem, "BFW")))
    bound = schedule_bound(problem)
    for _ in range(25):
        begin = rng.randint(0, start.makespan)
        end = rng.randint(begin, start.makespan + 1)
        window = time_window(problem, bound, start, begin, end)
        model = build_schedule(problem, window, lower=bound.value, upper=start.makespan)
        hint = model.hint(start)
        point = [hint[index] for index in range(len(model.model.variables))]
        assert model.model.evaluate(point).feasible
        assert model.table(tuple(point), start.table.rows) == OpTable(start.table.rows)
