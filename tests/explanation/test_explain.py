"""Explanations against separate solves, the checker and the event graph."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from planner.check import check_plan, price_layout
from planner.cost.coefficients import case_coefficients
from planner.explanation.explain import explain
from planner.explanation.known_plans import Known
from planner.explanation.questions import Verdict
from planner.instance.fixes import with_fixes
from planner.instance.load import load_instance
from planner.legality import RefusedPlanError, layout_violations
from planner.pipeline.event_graph import event_graph
from planner.plan import Plan, parse_plan
from planner.problem import Problem
from planner.search.result import Progress
from planner.search.solve import solve
from tests.explanation.jobs import best, explained, job, job_document, optimum
from tests.random_instances import random_instance

FIXES = (
    *(f"placement_kind={kind}" for kind in ("single-site", "dp-out", "pp-out", "mixed")),
    *(f"schedule={name}" for name in ("gpipe", "1f1b", "zb_h2", "zbv")),
    *("sharding=zero1", "sharding=zero2", "sync=hierarchical", "sync=flat"),
    *("overlap=true", "overlap=false", "recompute=none", "recompute=selective"),
    *("protocols=rdma_ecmp", "protocols=tcp_cubic"),
)


def test_every_allowed_value_of_every_choice_is_a_row() -> None:
    assert tuple(row.fix for row in explained().alternatives) == FIXES


def test_the_optimum_is_called_optimal() -> None:
    found = explained()
    assert (found.plan_status, found.limit) == ("optimal", None)
    assert found.best.time_us == found.best.bound_us == best()[0]


@pytest.mark.parametrize("fix", FIXES)
def test_a_forced_alternative_is_that_of_a_solve_of_its_own(fix: str) -> None:
    """Also never better than the optimum, and the same as the optimum where the plan has it."""
    (row,) = [row for row in explained().alternatives if row.fix == fix]
    key, _, value = fix.partition("=")
    search = job_document()["search"] | {key: {"true": True, "false": False}.get(value, value)}
    if key == "schedule":
        search["virtual_stages"] = 2 if value == "zbv" else 1
    alone = optimum(load_instance(job_document() | {"search": search}))
    if alone is None:
        assert row.verdict.status == "infeasible"
        assert row.verdict.plan is None and row.verdict.rule
        return
    assert row.verdict.status == "proven"
    assert row.verdict.time_us == row.verdict.bound_us == alone[0] >= best()[0]
    assert row.chosen <= (alone[0] == best()[0])
    assert row.verdict.plan is not None
    report = check_plan(row.part_of(job()), row.verdict.plan)
    assert report.feasible and report.time_us == alone[0]


CHANGES: dict[tuple[str, str], Callable[[dict[str, Any]], None]] = {
    ("gpus", "a"): lambda c: c["sites"][0].update(num_gpus=4),
    ("gpus", "b"): lambda c: c["sites"][1].update(num_gpus=4),
    ("bandwidth", "long"): lambda c: c["links"][0].update(bandwidth_gbps=20 * 1.1),
    ("delay", "long"): lambda c: c["links"][0].update(delay_s=1e-3 * 0.9),
    ("memory", "micro"): lambda c: [
        site.update(memory_limit_bytes=int(0.94 * (16 << 30)) + (1 << 30)) for site in c["sites"]
    ],
}


@pytest.mark.parametrize(("kind", "name"), CHANGES)
def test_a_change_gains_what_a_solve_of_the_changed_instance_says(kind: str, name: str) -> None:
    """The flows of the link are those of the two NICs of a site, with another node too."""
    (row,) = [row for row in explained().what_ifs if (row.kind, row.name) == (kind, name)]
    document = copy.deepcopy(job_document())
    document["cluster"]["links"][0]["flows"] = 2
    for site in document["cluster"]["sites"]:
        site["gpu"] = site["gpu"] | {"memory_bytes": "32 GiB"}
        site["memory_limit_bytes"] = int(0.94 * (16 << 30))
    CHANGES[kind, name](document["cluster"])
    changed = load_instance(document)
    alone = optimum(changed)
    assert alone is not None
    assert row.verdict.status == "proven"
    assert row.verdict.time_us == alone[0] <= best()[0]
    assert row.gain_us(best()[0], best()[0]) == (best()[0] - alone[0],) * 2
    assert row.same_plan_us == check_plan(changed, best()[1]).time_us
    assert alone[0] <= (row.same_plan_us or 0) <= best()[0]


def test_every_change_is_a_row() -> None:
    assert {(row.kind, row.name) for row in explained().what_ifs} == set(CHANGES)


def test_near_ties_are_other_checked_plans_within_one_per_cent() -> None:
    time_us, plan = best()
    ties = explained().near_ties
    assert ties
    assert len({tie.plan for tie in ties} | {plan}) == len(ties) + 1
    for tie in ties:
        report = check_plan(job(), tie.plan)
        assert report.feasible and report.time_us == tie.time_us
        assert time_us <= tie.time_us <= 1.01 * time_us
        theirs = plan.to_json() | {name: here for name, (_, here) in tie.differences.items()}
        assert tie.differences
        assert parse_plan(theirs) == tie.plan


def test_the_critical_path_adds_up_and_bounds_what_a_longer_duration_costs() -> None:
    time_us, plan = best()
    binding = explained().binding
    assert binding.time_us == time_us == sum(binding.breakdown_us.values())
    assert binding.fixed_us + sum(term.total_us for term in binding.path) == time_us
    problem = Problem(job())
    _, layout = layout_violations(problem, plan)
    assert layout is not None
    co = case_coefficients(problem, layout.degrees)
    price = price_layout(problem, co, layout)
    graph = event_graph(layout.template(co.num_microbatches))
    for key, count in price.critical_path.items():
        longer = price.durations | {key: price.durations[key] + 100}
        assert graph.evaluate(longer) + co.fixed_us >= time_us + 100 * count
    assert sorted(term.sensitivity for term in binding.path) == sorted(price.critical_path.values())


def test_a_link_costs_what_the_checker_says_without_its_limit() -> None:
    """One class uses the link, so the whole instance can be priced."""
    (use,) = explained().binding.links
    time_us, plan = best()
    assert (use.link, use.traffic) == ("long", "pp")
    wide, near = copy.deepcopy(job_document()), copy.deepcopy(job_document())
    wide["cluster"]["links"][0]["bandwidth_gbps"] = 2e7
    near["cluster"]["links"][0]["delay_s"] = 0
    without = [check_plan(load_instance(document), plan).time_us for document in (wide, near)]
    assert [use.without_capacity_limit_us, use.without_delay_us] == [
        time_us - (other or 0) for other in without
    ]
    assert use.without_delay_us > 0


def test_memory_comes_fullest_first() -> None:
    report = check_plan(job(), best()[1])
    rows = explained().binding.memory
    assert sorted(rows) == sorted(report.memory)
    free = [row.limit_mib - row.peak_mib for row in rows]
    assert free == sorted(free)


def slower_plan() -> Plan:
    plan = explained().near_ties[-1].plan
    assert plan != best()[1]
    worst = max(explained().alternatives, key=lambda row: row.verdict.time_us or 0).verdict.plan
    assert worst is not None
    return worst


def test_a_plan_that_is_not_the_best_is_beaten() -> None:
    found = explain(job(), slower_plan(), backend="cp-sat", time_limit_s=8)
    assert found.plan_status == "beaten"
    assert found.best.time_us is not None and found.best.time_us < found.time_us
    document = found.to_json()
    assert any(
        row["price_s"] is not None and row["price_s"] < 0 for row in document["alternatives"]
    )


@pytest.mark.parametrize("seed", [2, 7])
def test_what_is_not_proven_holds_the_truth(seed: int) -> None:
    """With little time: bounds below and plans above what separate solves find."""
    instance = random_instance(seed)
    truth = solve(instance, backend="cp-sat")
    assert truth.plan is not None and truth.time_us is not None
    found = explain(instance, truth.plan, backend="cp-sat", time_limit_s=2)
    assert found.plan_status != "beaten"
    for row in found.alternatives:
        verdict = row.verdict
        assert verdict.time_us is None or verdict.time_us >= truth.time_us
        assert verdict.status != "not proven" or (verdict.bound_us or 0) <= (
            verdict.time_us or 1 << 62
        )
        if row.chosen:
            assert verdict.time_us == truth.time_us
    for change in found.what_ifs:
        assert change.verdict.time_us is None or change.verdict.time_us <= truth.time_us
        at_least, at_most = change.gain_us(truth.time_us, found.best.bound_us)
        assert (at_least or 0) <= (at_most if at_most is not None else 1 << 62)
    json.dumps(found.to_json(), allow_nan=False)


def test_the_time_limit_holds_where_nothing_can_be_proven() -> None:
    found = explain(job(), best()[1], time_limit_s=1e-3)
    assert found.limit == "time"
    assert found.plan_status == "not proven"
    assert all(row.verdict.status == "not proven" for row in found.alternatives)
    assert found.binding == explained().binding


class _Stop:
    """Raises KeyboardInterrupt once a question about one thing has begun."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __call__(self, progress: Progress) -> None:
        if self.what in progress.phase:
            raise KeyboardInterrupt


def test_an_interrupt_keeps_what_is_done() -> None:
    found = explain(job(), best()[1], backend="cp-sat", progress=_Stop("placement_kind=mixed"))
    assert found.limit == "interrupt"
    rows = {row.fix: row.verdict for row in found.alternatives}
    assert rows["placement_kind=single-site"].status == "infeasible"
    assert rows["placement_kind=dp-out"].status == "infeasible"
    assert rows["recompute=selective"].evidence == "none"
    assert found.plan_status == "optimal"


def test_a_refused_plan_is_not_explained() -> None:
    plan = best()[1].model_copy(update={"sharding": "ddp", "gpus_used": 3})
    with pytest.raises(RefusedPlanError, match=r"gpus_used: .*"):
        explain(job(), plan)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_a_time_limit_is_positive(seconds: float) -> None:
    with pytest.raises(ValueError, match="time_limit_s"):
        explain(job(), best()[1], time_limit_s=seconds)


def test_contradictions_are_never_passed_on() -> None:
    plan = best()[1]
    verdict = Verdict(time_us=100, plan=plan, bound_us=90)
    with pytest.raises(RuntimeError, match="exceeds a checked plan"):
        verdict.raise_bound(101, "inclusion")
    with pytest.raises(RuntimeError, match="proven infeasible"):
        Verdict(status="infeasible").offer(Known(100, plan))
    with pytest.raises(RuntimeError, match="exceeds a checked plan"):
        Verdict(bound_us=101).offer(Known(100, plan))


def test_a_fix_of_the_table_is_one_of_the_command() -> None:
    """``--fix`` takes each, and gives the space of the row."""
    for row in explained().alternatives:
        if row.choice != "schedule":
            assert with_fixes(job(), [row.fix]).search == row.part_of(job()).search
