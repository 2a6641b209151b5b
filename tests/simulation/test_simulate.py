"""Simulated plans: against Z, against hand computation, and against what must hold for all."""

from __future__ import annotations

from io import StringIO
from itertools import islice

import pytest
from rich.console import Console

import planner
from planner.check import (
    check_plan,
    durations_of_layout,
    memory_of_layout,
    time_of_layout,
)
from planner.cost.coefficients import case_coefficients
from planner.legality import RefusedPlanError, layout_violations
from planner.pipeline.event_graph import Duration
from planner.pipeline.schedules import SCHEDULES
from planner.problem import Problem
from planner.report.text import render_simulation
from planner.simulation import simulate as module
from planner.simulation.measures import CAUSES, INTERVALS, Simulation
from planner.simulation.simulate import simulate, simulate_layout, simulated_answer
from tests.brute_force import enumerate_layouts
from tests.random_instances import random_instance
from tests.simulation.plans import job, plan


def declared_us(instance: planner.Instance, chosen: planner.Plan) -> int:
    report = check_plan(instance, chosen)
    assert report.feasible, report.violations
    assert report.time_us is not None
    return report.time_us


@pytest.mark.parametrize(
    ("schedule", "v"),
    [("gpipe", 1), ("1f1b", 1), ("zb_h1", 1), ("zb_h2", 1), ("zbv", 2), ("dualpipe_v", 2)],
)
@pytest.mark.parametrize("delay_s", [0.0, 2e-3, 3e-2])
@pytest.mark.parametrize("gbps", [20.0, 400.0])
def test_one_slow_boundary_and_one_replica_is_z(
    schedule: str, v: int, delay_s: float, gbps: float
) -> None:
    """Nothing shares the link: Z and the simulation differ by the rounding to whole µs."""
    instance = job(delay_s=delay_s, gbps=gbps)
    chosen = plan([{"a": 1}, {"a": 1}, {"b": 1}, {"b": 1}], schedule=schedule, v=v)
    z = declared_us(instance, chosen)
    found = simulate(instance, chosen)
    assert found.declared_us == z
    assert 0 <= z - found.time_us < 1 + 2 * 4 * 16
    assert found.model_error < 1e-4


def test_equal_parts_of_the_plan_space_are_simulated() -> None:
    """Random jobs, every tenth of their first plans: what must hold for all of them."""
    for seed in range(0, 10):
        instance = random_instance(seed)
        problem = Problem(instance)
        for layout in islice(enumerate_layouts(instance), 0, 2000, 199):
            found = simulate_layout(problem, layout)
            co = case_coefficients(problem, layout.degrees)
            assert found.declared_us == time_of_layout(problem, co, layout)
            _holds_for_all(found)
            memory = memory_of_layout(problem, co, layout)
            assert [(m.stage, m.site, m.peak_mib) for m in found.memory] == [
                (m.stage, m.site, m.peak_mib) for m in memory
            ]


def _holds_for_all(found: Simulation) -> None:
    for parts in (found.breakdown_s, *(stage.seconds for stage in found.stages)):
        assert set(parts) == set(CAUSES)
        assert sum(parts.values()) == pytest.approx(found.time_s, rel=1e-9)
        assert min(parts.values()) >= 0
    assert all(0 <= link.utilisation <= 1 for link in found.links)
    for row in found.memory:
        assert len(row.over_time_mib) == INTERVALS
        assert max(row.over_time_mib) == row.peak_mib
        interval = found.time_s / INTERVALS
        at = min(INTERVALS - 1, int(row.peak_at_s / interval))
        assert row.peak_mib in row.over_time_mib[max(0, at - 1) : at + 2]
    assert sum(stage.replicas for stage in found.stages if stage.stage == 0) == sum(
        strand.replicas for strand in found.plan.strands
    )


@pytest.mark.parametrize("gbps", [5.0, 40.0])
@pytest.mark.parametrize("delay_s", [0.0, 3e-3, 3e-2])
@pytest.mark.parametrize(
    ("schedule", "v", "sites"),
    [
        ("1f1b", 1, "abab"),
        ("gpipe", 1, "abca"),
        ("zb_h1", 1, "aaba"),
        ("zbv", 2, "abab"),
        ("interleaved", 2, "aabb"),
        ("interleaved", 2, "abcc"),
        ("dora", 2, "abbb"),
        ("dora", 2, "aabc"),
    ],
)
def test_transfers_that_share_links_take_turns_as_in_z(
    schedule: str, v: int, sites: str, delay_s: float, gbps: float
) -> None:
    """Loops, ways back and routes over a third site: Z is exact but for whole µs."""
    rows = [{site: 1} for site in sites]
    instance = job("abc", delay_s=delay_s, gbps=gbps)
    chosen = plan(
        rows, schedule=schedule, v=v, run=4 if v == 2 and schedule != "zbv" else None, links="abc"
    )
    if "c" not in sites:
        instance = job("ab", delay_s=delay_s, gbps=gbps)
        chosen = plan(rows, schedule=schedule, v=v, run=4 if v == 2 and schedule != "zbv" else None)
    found = simulate(instance, chosen)
    assert found.declared_us == declared_us(instance, chosen)
    assert 0 <= found.declared_us - found.time_us < 8 * 16 * 4
    assert found.model_error < 2e-4
    assert found.plan.turns


def rendered(found: Simulation) -> str:
    """The report for people."""
    text = StringIO()
    render_simulation(found, Console(file=text, width=100))
    return text.getvalue()


def test_first_come_first_served_is_told_too() -> None:
    """Where no link is shared there is one time; a shared link carries the same in any order."""
    apart = simulate(job(gbps=10.0), plan([{"a": 1}, {"b": 1}]))
    assert apart.first_come_us == apart.time_us
    instance = job(gbps=10.0)
    found = simulate(instance, plan([{"a": 1}, {"b": 1}, {"a": 1}, {"b": 1}]))
    assert found.to_json()["first_come_time_s"] == pytest.approx(float(found.first_come_us) / 1e6)
    assert found.first_come_us > found.time_us
    assert "first come" in rendered(found)
    assert "first come" not in rendered(apart)
    way = next(link for link in found.links if link.source == "a")
    crossings = 2 * 16 + 16
    size = 2 * 4096 * 2048
    assert way.pipeline_s == pytest.approx(crossings * size / (10 * 1.25e8 * 0.97), rel=1e-4)


def test_replicas_share_a_link() -> None:
    """Four replicas in turn carry four times the bytes, in a quarter of the transfers."""
    instance = job(gbps=10.0)
    one = simulate(instance, plan([{"a": 1}, {"b": 1}]))
    four = simulate(instance, plan([{"a": 4}, {"b": 4}]))
    assert [link.pipeline_s for link in four.links] == [link.pipeline_s for link in one.links]


def test_gradients_cross_the_link_once() -> None:
    """Hierarchical all-reduce of two sites: half the gradients twice, in each direction."""
    instance = job(gbps=100.0)
    chosen = plan([{"a": 2, "b": 2}], batch=16)
    found = simulate(instance, chosen)
    units = found.plan.stage_counts[0]
    costs = found.plan.co.exchange(found.plan.layout.option, "hierarchical", 2)
    mib = sum(u * c for u, c in zip(units, costs.gradient, strict=True))
    for link in found.links:
        assert link.synchronisation_s == pytest.approx(
            mib * 2**20 / (100 * 1.25e8 * 0.97), rel=1e-4
        )
        assert link.pipeline_s == 0
    assert 0 <= found.declared_us - found.time_us < 1


def test_overlap_never_costs_time_and_hides_gradients() -> None:
    instance = job(gbps=100.0)
    plain = simulate(instance, plan([{"a": 2, "b": 2}]))
    hidden = simulate(instance, plan([{"a": 2, "b": 2}], overlap=True))
    assert hidden.time_us < plain.time_us
    assert hidden.breakdown_s["dp"] < plain.breakdown_s["dp"]
    assert hidden.breakdown_s["compute"] == plain.breakdown_s["compute"]


def test_the_exchange_of_a_stage_is_followed_by_those_of_the_stages_before_it() -> None:
    """Stage 3 ends first and then all four exchanges follow; stage 0 only waits for its own."""
    instance = job(gbps=5.0)
    chosen = plan([{"a": 2, "b": 2}] * 4)
    problem = Problem(instance)
    _, layout = layout_violations(problem, chosen)
    assert layout is not None
    co = case_coefficients(problem, layout.degrees)
    costs = co.exchange(layout.option, "hierarchical", 2)
    rate = co.mib(0, "dedicated")
    durations = durations_of_layout(problem, co, layout)
    layer, embedding, head = costs.gradient
    mib = [embedding + 2 * layer, 2 * layer, 2 * layer, 2 * layer + head]
    sync = co.sync(0, layout.option, "hierarchical", 2)
    optimizer = co.optimizer(0, layout.option)
    for s, own in enumerate([(2, 1, 0), (2, 0, 0), (2, 0, 0), (2, 0, 1)]):
        inside = sum(n * c for n, c in zip(own, sync.reduce, strict=True)) + sync.reduce_latency
        queue = rate.us(sum(mib[: s + 1])) + costs.gradient_latencies * co.latency(0, "dedicated")
        step = 2 * optimizer[0] + optimizer[1]
        assert durations[Duration("end", s)] == inside + queue + max(
            step, (2 * optimizer[0] + optimizer[2]) * (s == 3)
        )
    found = simulate(instance, chosen)
    assert found.model_error == pytest.approx(0, abs=2e-3)


def test_the_network_matters_where_traffic_crosses_it() -> None:
    """Other bandwidth and other delay change the time of plans that cross, and of no other."""
    chosen = {
        "pp-out": plan([{"a": 1}, {"b": 1}]),
        "dp-out": plan([{"a": 1, "b": 1}]),
        "single-site": plan([{"a": 1}, {"a": 1}]),
    }
    for kind, each in chosen.items():
        times = {
            simulate(job(gbps=gbps, delay_s=delay_s), each).time_us
            for gbps, delay_s in ((100.0, 1e-4), (10.0, 1e-4), (100.0, 1e-2))
        }
        assert len(times) == (1 if kind == "single-site" else 3), kind


@pytest.mark.parametrize("schedule", ["1f1b", "zb_h1"])
def test_equal_sites_may_change_names(schedule: str) -> None:
    """(2, 6) and (6, 2) replicas, or the mirrored placement, take the same time."""
    instance = job()
    left = plan([{"a": 6, "b": 2}, {"a": 2, "b": 6}], schedule=schedule)
    right = plan([{"b": 6, "a": 2}, {"b": 2, "a": 6}], schedule=schedule)
    assert simulate(instance, left).time_us == simulate(instance, right).time_us


def test_microbatches_and_unused_gpus() -> None:
    """One microbatch takes the sum of the stages, not the slowest; unused GPUs are not counted."""
    instance = job(batch=1)
    chosen = plan([{"a": 1}] * 4, batch=1, layers_per_stage=[1, 1, 1, 5])
    found = simulate(instance, chosen)
    work = [
        stage.seconds["compute"] for stage in sorted(found.stages, key=lambda stage: stage.stage)
    ]
    assert found.time_s > sum(work)
    assert found.time_s > 1.3 * max(work)
    assert chosen.gpus_used == 4 < 128
    assert sum(stage.replicas for stage in found.stages) == 4


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
def test_a_pipeline_lies_between_its_computation_and_no_overlap_at_all(schedule: str) -> None:
    v = SCHEDULES[schedule].min_chunks
    run = 4 if SCHEDULES[schedule].has_run_length else None
    chosen = plan(
        [{"a": 1}, {"a": 1}, {"b": 1}, {"b": 1}], schedule=schedule, v=v, run=run, batch=16
    )
    found = simulate(job(), chosen)
    work = [sum(s.seconds[c] for c in ("compute", "optimizer", "fixed")) for s in found.stages]
    transfers = sum(link.pipeline_s + 1e-4 * 16 * v for link in found.links)
    assert max(work) <= found.time_s <= sum(work) + transfers + 16 * v * 6 * 1e-3


def test_a_plan_that_breaks_a_rule_is_refused() -> None:
    wrong = plan([{"a": 1}, {"b": 1}], placement_kind="dp-out")
    with pytest.raises(RefusedPlanError, match="placement_kind: the placement is 'pp-out'"):
        simulate(job(), wrong)


def test_the_answer_says_which_plan_simulates_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = job(gbps=10.0)
    problem = Problem(instance)
    shared = simulate(instance, plan([{"a": 1}, {"b": 1}, {"a": 1}, {"b": 1}]))
    single = simulate(instance, plan([{"a": 1}, {"a": 1}, {"b": 1}, {"b": 1}]))
    best, other = shared.plan.layout, single.plan.layout
    other_us = float(single.time_us)
    z = shared.declared_us
    own, notes = simulated_answer(problem, best, z, [(best, z), (other, z + 1)])
    assert own == pytest.approx(float(shared.time_us))
    assert other_us < own
    assert notes == [
        f"a plan with Z = {z + 1} µs simulates faster, in {other_us:.0f} µs against {own:.0f} µs: "
        "1f1b, pp = 4, tp = 1, dp = 1, pp-out"
    ]
    own, notes = simulated_answer(problem, best, z, [(other, 2 * z)])
    assert notes == []
    events = shared.plan.estimated_events
    monkeypatch.setattr(module, "MOST_EVENTS", events)
    assert simulated_answer(problem, best, z, [(other, z)]) == (
        own,
        ["1 plans with Z within the model error were not simulated"],
    )
    monkeypatch.setattr(module, "MOST_EVENTS", events - 1)
    assert simulated_answer(problem, best, z, []) == (
        None,
        [f"not simulated: about {events:,} events, the limit is {events - 1:,}"],
    )
