"""Op tables: evaluation against the event graph, and a checker that refuses every mutation."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.pipeline.event_graph import Duration, event_graph
from planner.pipeline.memory import live_counts
from planner.pipeline.op_table import (
    OpTable,
    ScheduleProblem,
    evaluate,
    fits_template,
    peak_memory,
    template_table,
    violations,
)
from planner.pipeline.ops import Op
from planner.pipeline.schedules import Template, chunk_devices
from tests.pipeline.pipelines import templates
from tests.pipeline.schedule_problems import pipeline, random_problem


def as_problem(template: Template, values: dict[Duration, int]) -> ScheduleProblem:
    """The problem with the durations of an event graph, and memory without limit."""
    devices = chunk_devices(template.schedule, template.pp, template.v)
    chunks = range(len(devices))
    pairs = [key.index for key in values if key.kind == "delay"]
    split = template.rules.split_backward
    return ScheduleProblem(
        devices=devices,
        num_microbatches=template.m,
        forward=tuple(values[Duration("F", k)] for k in chunks),
        backward=tuple(values[Duration("B", k)] for k in chunks),
        weight=tuple(values[Duration("W", k)] for k in chunks) if split else None,
        delay={pair: values[Duration("delay", pair)] for pair in pairs},
        occupancy={pair: values.get(Duration("occupancy", pair), 0) for pair in pairs},
        start=tuple(values[Duration("start", d)] for d in range(template.pp)),
        end=tuple(values[Duration("end", d)] for d in range(template.pp)),
        full=(1,) * len(devices),
        held=(int(split),) * len(devices),
        limit=(10**6,) * template.pp,
    )


@settings(max_examples=150, deadline=None)
@given(template=templates(), seed=st.integers(0, 2**32))
def test_a_template_table_takes_as_long_as_its_event_graph(template: Template, seed: int) -> None:
    graph = event_graph(template)
    rng = random.Random(seed)
    values = {variable: rng.randint(0, 9) for variable in graph.variables}
    problem = as_problem(template, values)
    assert fits_template(problem, template)
    timeline = evaluate(problem, template_table(template))
    assert timeline.makespan == graph.evaluate(values)
    assert not violations(problem, timeline)


@settings(max_examples=50, deadline=None)
@given(template=templates())
def test_peak_memory_is_that_of_the_live_counts(template: Template) -> None:
    graph = event_graph(template)
    problem = as_problem(template, dict.fromkeys(graph.variables, 1))
    expected = tuple(
        max(sum(full) + sum(held) for full, held in vectors) for vectors in live_counts(template)
    )
    assert peak_memory(problem, template_table(template)) == expected


def test_one_stage_with_a_slow_boundary_by_hand() -> None:
    """F0 0-20, sent 20-25-45; device 1 works 45-165; gradients back after 25 more."""
    problem = pipeline(2, 2, slow={0: (20, 5)})
    table = template_table(Template("zb_h1", 2, 1, 2, None, (0, 0)))
    timeline = evaluate(problem, table)
    assert [op.kind + str(op.microbatch) for op in table.rows[1]] == [
        "F0", "B0", "F1", "B1", "W0", "W1",
    ]  # fmt: skip
    assert timeline.starts[1] == (45, 65, 85, 105, 125, 145)
    assert timeline.begins[1][1] == 85
    assert timeline.starts[0] == (0, 20, 110, 130, 150, 170)
    assert timeline.makespan == 190


MUTATIONS = [
    (lambda t: replace(t, makespan=t.makespan - 1), "the last device is done"),
    (lambda t: replace(t, starts=((0,) * len(t.starts[0]), *t.starts[1:])), "while"),
    (
        lambda t: replace(t, starts=(t.starts[0], (0, *t.starts[1][1:]))),
        "its input",
    ),
    (
        lambda t: replace(t, begins=((0, *t.begins[0][1:]), *t.begins[1:])),
        "the transfer of",
    ),
    (
        lambda t: replace(t, table=OpTable((t.table.rows[0][:-1], t.table.rows[1]))),
        "lacks",
    ),
    (
        lambda t: replace(t, table=OpTable((t.table.rows[0][:1] * 2, t.table.rows[1]))),
        "twice",
    ),
    (
        lambda t: replace(t, table=OpTable((t.table.rows[1], t.table.rows[0]))),
        "lacks",
    ),
]


@pytest.mark.parametrize(("mutate", "text"), MUTATIONS)
def test_the_checker_refuses_each_mutation(mutate, text: str) -> None:  # type: ignore[no-untyped-def]
    problem = pipeline(2, 3, slow={0: (20, 30)}, live=3)
    timeline = evaluate(problem, template_table(Template("zb_h1", 2, 1, 3, None, (0, 0))))
    assert not violations(problem, timeline)
    found = violations(problem, mutate(timeline))
    assert found and any(text in fault for fault in found)


def test_the_checker_refuses_full_links_memory_early_starts_and_disorder() -> None:
    problem = pipeline(2, 3, slow={0: (0, 50)}, live=3)
    timeline = evaluate(problem, template_table(Template("zb_h1", 2, 1, 3, None, (0, 0))))
    busier = replace(problem, occupancy=dict.fromkeys(problem.occupancy, 60))
    assert any("keeps the link" in fault for fault in violations(busier, timeline))
    tight = replace(problem, limit=(1, 3))
    assert any("device 0 holds 2" in fault for fault in violations(tight, timeline))
    late = replace(problem, start=(1, 0))
    assert any("not from 1" in fault for fault in violations(late, timeline))
    swapped = {Op("F", 0, 0): Op("F", 0, 1), Op("F", 0, 1): Op("F", 0, 0)}
    rows = tuple(tuple(swapped.get(op, op) for op in row) for row in timeline.table.rows)
    again = evaluate(problem, OpTable(rows))
    assert any("out of order" in fault for fault in violations(problem, again))


def test_a_deadlock_is_an_error() -> None:
    problem = pipeline(2, 1)
    rows = (
        (Op("F", 0, 0), Op("B", 0, 0), Op("W", 0, 0)),
        (Op("B", 1, 0), Op("F", 1, 0), Op("W", 1, 0)),
    )
    with pytest.raises(ValueError, match="deadlocks"):
        evaluate(problem, OpTable(rows))


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("forward", (1,), "forward needs 2"),
        ("held", (2, 2), "exceeds full"),
        ("limit", (0, 5), "one microbatch needs 1"),
        ("devices", (0, 2), "without a hole"),
        ("num_microbatches", 0, "at least one"),
        ("delay", {(0, 1): -1}, "negative"),
    ],
)
def test_problems_that_make_no_sense_are_refused(field: str, value: object, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        replace(pipeline(2, 2), **{field: value})  # type: ignore[arg-type]


def test_more_time_or_less_memory_never_helps() -> None:
    rng = random.Random(5)
    for _ in range(20):
        problem = random_problem(rng, (0, 1, 2), 3, split=True)
        table = template_table(Template("zb_h1", 3, 1, 3, None, (0, 0, 0)))
        before = evaluate(problem, table).makespan
        slower = replace(problem, forward=tuple(f + 1 for f in problem.forward))
        assert evaluate(slower, table).makespan > before
