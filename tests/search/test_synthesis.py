"""Synthesised op tables: heuristics, cycles, the engine, and plans with a table beside them."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest

from planner.backends import Engine, SolveStatus
from planner.instance import load_instance
from planner.instance.fixes import with_fixes
from planner.pipeline.op_table import evaluate, template_table, violations
from planner.pipeline.schedule_bound import schedule_bound
from planner.pipeline.schedules import Template
from planner.problem import Problem
from planner.search.solve import solve
from planner.search.synthesis.list_scheduling import keys_by_kind, latest_starts, list_schedule
from planner.search.synthesis.periodic import cycles, unroll, unrolled
from planner.search.synthesis.plan_schedule import template_starts, variants
from planner.search.synthesis.synthesize import synthesize
from tests.pipeline.schedule_problems import pipeline, random_problem


@pytest.fixture(scope="module")
def engine() -> object:
    with Engine("cp-sat") as running:
        yield running


@pytest.mark.parametrize("devices", [(0, 1, 2, 3), (0, 1, 2, 2, 1, 0), (0, 1, 2, 0, 1, 2)])
@pytest.mark.parametrize("patience", [0.0, 0.5, 1.0])
def test_list_schedules_keep_every_rule(devices: tuple[int, ...], patience: float) -> None:
    rng = random.Random(9)
    for _ in range(20):
        problem = random_problem(rng, devices, 7, split=rng.random() < 0.5)
        for order in ("BFW", "FBW", "WFB"):
            table = list_schedule(problem, keys_by_kind(problem, order), patience=patience)
            timeline = evaluate(problem, table)
            assert not violations(problem, timeline)
            assert timeline.makespan >= schedule_bound(problem).value


def test_latest_starts_keep_the_makespan() -> None:
    problem = pipeline(3, 5, slow={1: (30, 25)})
    timeline = evaluate(problem, list_schedule(problem, keys_by_kind(problem, "BFW")))
    latest = latest_starts(problem, timeline)
    moved = replace(
        timeline,
        starts=tuple(
            tuple(latest[op.kind, op.chunk][op.microbatch] for op in row)
            for row in timeline.table.rows
        ),
        begins=tuple(
            tuple(
                None if sent is None else latest[op.kind, op.chunk][op.microbatch] + 20
                for op, sent in zip(row, begins, strict=True)
            )
            for row, begins in zip(timeline.table.rows, timeline.begins, strict=True)
        ),
    )
    faults = [f for f in violations(problem, moved) if "keeps the link" not in f]
    assert not faults
    assert any(
        a > b
        for late, early in zip(moved.starts, timeline.starts, strict=True)
        for a, b in zip(late, early, strict=True)
    )


def test_a_cycle_of_1f1b_makes_1f1b_of_any_length() -> None:
    problem = pipeline(3, 9, ops=(20, 40, None))
    timeline = evaluate(problem, template_table(Template("1f1b", 3, 1, 9, None, (0, 0, 0))))
    cycle = next(cycles(problem, timeline))
    assert cycle.shift == 1 and cycle.period_us == 60
    longer = template_table(Template("1f1b", 3, 1, 100, None, (0, 0, 0)))
    assert unroll(timeline.table, cycle, 91) == longer


def test_unrolled_tables_keep_every_rule() -> None:
    problem = pipeline(4, 90, slow={1: (20, 5)})
    short = replace(problem, num_microbatches=30)
    keys = keys_by_kind(short, "BFW")
    tables = list(
        islice(unrolled(problem, evaluate(short, list_schedule(short, keys, patience=0.5))), 4)
    )
    assert tables
    for table in tables:
        assert not violations(problem, evaluate(problem, table))


def test_four_stages_and_eight_microbatches_are_proven_without_an_engine() -> None:
    """F = B = W = 20, a slow boundary of 20 + 5 in the middle, memory for 4 microbatches."""
    found = synthesize(pipeline(4, 8, slow={1: (20, 5)}))
    assert (found.makespan_us, found.bound_us, found.proof) == (640, 640, "re-derived")


def test_the_engine_closes_what_the_bound_leaves(engine: Engine) -> None:
    found = synthesize(
        pipeline(4, 16, slow={1: (20, 5)}), engine=engine, time_limit_s=60, workers=2
    )
    assert (found.makespan_us, found.proof, found.rule) == (1140, "engine", "model")
    assert found.bound_engine is not None and "ortools" in found.bound_engine
    assert not violations(found.problem, found.timeline) and not found.errors


def test_no_fixed_schedule_that_fits_is_faster() -> None:
    rng = random.Random(21)
    for _ in range(10):
        problem = random_problem(rng, (0, 1, 2), 6, split=True)
        found = synthesize(problem, starts=template_starts(problem))
        for _, table in template_starts(problem):
            timeline = evaluate(problem, table)
            if not violations(problem, timeline):
                assert found.makespan_us <= timeline.makespan


def test_tables_that_do_not_fit_are_left_out() -> None:
    problem = pipeline(3, 6, live=3)
    roomy = template_table(Template("zb_h2", 3, 1, 6, None, (0, 0, 0)))
    alien = template_table(Template("zb_h1", 2, 1, 6, None, (0, 0)))
    found = synthesize(problem, starts=[("zb_h2", roomy), ("alien", alien)])
    assert found.method.startswith("list")
    assert not violations(problem, found.timeline)


def test_an_interrupt_leaves_the_best_table(engine: Engine) -> None:
    def interrupt(makespan_us: int, bound_us: int) -> None:
        raise KeyboardInterrupt

    problem = pipeline(4, 16, slow={1: (20, 5)})
    found = synthesize(problem, engine=engine, on_progress=interrupt)
    assert found.limit == "interrupt"
    assert not violations(problem, found.timeline)


def test_a_time_limit_leaves_a_checked_table() -> None:
    problem = pipeline(6, 60, slow={1: (20, 5), 3: (70, 5)})
    found = synthesize(problem, time_limit_s=1e-9)
    assert found.limit == "time" and found.gap > 0
    assert not violations(problem, found.timeline)


def test_a_plan_gets_a_table_beside_it() -> None:
    job = with_fixes(load_instance("tiny"), ("pp=2", "micro_batch_size=1", "dp=4", "tp=1"))
    result = solve(job, schedule="synthesize", workers=2, time_limit_s=120)
    assert result.status.name == "OPTIMAL" and result.time_us is not None
    found = result.synthesized
    assert found is not None and found.layout.degrees.pp == 2
    document = result.to_json()["synthesized"]
    assert document["iteration_time_s"] <= result.time_us / 1e6
    assert document["lower_bound_s"] <= document["iteration_time_s"]
    assert document["proven"] == (document["gap"] == 0)
    assert [len(row) for row in document["rows"]] == [len(r) for r in found.timeline.table.rows]
    assert not violations(found.problem, found.timeline)
    for row in found.memory:
        assert row.peak_mib <= row.limit_mib
    assert solve(job, workers=2, time_limit_s=120).to_json()["synthesized"] is None


def test_variants_keep_the_placement() -> None:
    job = with_fixes(load_instance("tiny"), ("pp=2", "micro_batch_size=1", "dp=4", "tp=1"))
    result = solve(job, workers=2, time_limit_s=120)
    assert result.plan is not None
    from planner.legality import layout_violations

    problem = Problem(job)
    _, layout = layout_violations(problem, result.plan)
    assert layout is not None
    found = list(variants(problem, layout))
    assert {(v.problem.num_chunks, v.problem.weight is not None) for v in found} >= {
        (2, True),
        (2, False),
    }
    for variant in found:
        assert variant.layout.replicas == layout.replicas
        assert sum(variant.layout.layers) == sum(layout.layers)
        assert all(a <= b for a, b in zip(variant.relaxed.end, variant.problem.end, strict=True))


def test_unknown_schedule_modes_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown schedule 'dream'"):
        solve(load_instance("tiny"), schedule="dream")


def test_an_interrupted_synthesis_keeps_the_proven_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("planner.search.solve.synthesize_for_plans", interrupted)
    job = with_fixes(load_instance("tiny"), ("pp=2", "micro_batch_size=1", "dp=4", "tp=1"))
    result = solve(job, schedule="synthesize", workers=2)
    assert (result.status.name, result.limit) == ("INTERRUPTED", "interrupt")
    assert result.plan is not None and result.time_us == result.bound_us
    assert result.synthesized is None


def test_the_table_of_a_slow_boundary_beats_the_template(engine: Engine) -> None:
    """Memory for a microbatch a stage and one slow boundary: 1F1B and ZB-H1 wait, a table need not.

    CrossPipe's setting of 2 T_F latency and bandwidth (Table 5), its F, B, W in units of 100 µs.
    """
    problem = pipeline(8, 16, ops=(380, 392, 392), slow={3: (760, 760)})
    found = synthesize(problem, engine=engine, time_limit_s=60, gap=0.01, workers=2)
    stock = evaluate(problem, template_table(Template("zb_h1", 8, 1, 16, None, (0,) * 8)))
    assert found.gap <= 0.01
    assert found.makespan_us <= 0.67 * stock.makespan


class _Liar:
    """An engine with a bound above every table."""

    def __init__(self, engine: Engine, excess: int) -> None:
        self._engine = engine
        self._excess = excess

    def solve(self, model: Any, options: Any) -> Any:
        result = self._engine.solve(model, options)
        return SimpleNamespace(
            status=SolveStatus.FEASIBLE,
            values=result.values,
            bound=result.objective + self._excess,
            trusted=True,
            engine_version="liar 1",
            message="",
        )


def test_an_engine_that_is_contradicted_loses_its_bound(engine: Engine) -> None:
    problem = pipeline(4, 16, slow={1: (20, 5)})
    found = synthesize(problem, engine=_Liar(engine, 1), time_limit_s=6, workers=2)  # type: ignore[arg-type]
    assert found.errors and "liar 1 claims that nothing is below 1141 µs" in found.errors[0]
    assert found.bound_us == schedule_bound(problem).value and found.proof == "open"


def test_the_plan_s_own_chunks_are_tried_from_its_own_order() -> None:
    fixes = ("pp=2", "micro_batch_size=1", "dp=2", "tp=1", "schedule=interleaved")
    job = with_fixes(load_instance("tiny"), fixes)
    result = solve(job, schedule="synthesize", workers=2, time_limit_s=120)
    assert result.plan is not None and result.plan.virtual_stages > 1
    assert result.synthesized is not None and result.time_us is not None
    own = result.synthesized.tried[0]
    assert own["chunk_map"] == "loop" and not own["split_backward"]
    assert own["case"]["virtual_stages"] == result.plan.virtual_stages
    assert own["bound_us"] <= own["value_us"] <= result.time_us
