"""The explanation of an infeasible instance: exact numbers, and changes that do help."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import Any

import pytest

from planner.check import check_plan, memory_of_layout
from planner.cost.coefficients import case_coefficients
from planner.instance import load_instance
from planner.instance.fixes import with_fixes
from planner.instance.schema import Instance
from planner.layout import to_plan
from planner.pipeline.memory import live_counts
from planner.pipeline.schedules import Template, legal_run_lengths
from planner.plan import parse_plan
from planner.problem import MIB, Problem
from planner.search.bounds import Bounds
from planner.search.infeasibility import explain_infeasibility
from planner.search.least_memory import LeastMemory, least_memory
from planner.search.memory_need import Level, assign_levels, most_layers
from planner.search.relief import with_limits
from planner.search.tree import Tree
from tests.brute_force import enumerate_layouts
from tests.random_instances import random_instance

INFEASIBLE_SEEDS = (29, 59, 89, 99, 169, 179, 199)
UNEQUAL_SEEDS = (3, 5, 17, 23, 26, 27)
"""Sites with different memory limits."""
OTHER_SEEDS = (4, 6, 7, 8, 16)


def explain(instance: Instance) -> tuple[str, dict[str, Any]]:
    problem = Problem(instance)
    bounds = Bounds(problem)
    return explain_infeasibility(problem, Tree(problem, bounds), bounds)


def least(instance: Instance, enough: Fraction | None = None) -> LeastMemory | None:
    problem = Problem(instance)
    return least_memory(problem, Tree(problem, Bounds(problem)), enough)


@lru_cache
def shipped() -> tuple[str, dict[str, Any]]:
    return explain(load_instance("infeasible-memory"))


def change(evidence: dict[str, Any], kind: str) -> dict[str, Any]:
    return next(c for c in evidence["changes"] if c["change"] == kind)


def least_by_brute_force(instance: Instance) -> Fraction:
    """The least (largest need ÷ limit) of all legal plans, each distinct one priced once."""
    problem, seen, best = Problem(instance), set(), None
    for layout in enumerate_layouts(instance):
        option = layout.option
        hosts = tuple(layout.hosts(s) for s in range(layout.degrees.pp))
        key = (*layout[:4], option.sharding, option.recompute, layout.layers, hosts)
        if key in seen:
            continue
        seen.add(key)
        co = case_coefficients(problem, layout.degrees)
        rows = memory_of_layout(problem, co, layout)
        ratio = max(Fraction(row.peak_mib, row.limit_mib) for row in rows)
        best = ratio if best is None else min(best, ratio)
    assert best is not None
    return best


def test_the_shipped_instance_names_rule_numbers_and_changes() -> None:
    message, evidence = shipped()
    assert evidence["rule"] == "memory"
    assert evidence["proven_smallest"]
    assert message.startswith(f"memory of stage {evidence['stage']}: the smallest need is ")
    hundredths = -(-evidence["need_bytes"] * 100 // 2**30)
    assert f"the smallest need is {hundredths / 100:.2f} GiB" in message
    assert "the limit 37.59 GiB" in message
    assert "Feasible with" in message
    assert "more than the GPU has" in message
    assert f"{change(evidence, 'gpus')['gpus']} GPUs instead of 32" in message


def test_the_named_limit_is_enough_and_less_is_not() -> None:
    instance = load_instance("infeasible-memory")
    raised = change(shipped()[1], "memory_limit")
    limits = {site: value // MIB for site, value in raised["memory_limit_bytes"].items()}
    plan = parse_plan(raised["plan"])
    assert check_plan(with_limits(instance, limits), plan).feasible
    tighter = with_limits(instance, {site: value - 1 for site, value in limits.items()})
    assert {v.rule for v in check_plan(tighter, plan).violations} == {"memory"}
    found = least(tighter, Fraction(1))
    assert found is None or found.ratio > 1


def test_the_named_gpus_are_enough() -> None:
    instance = load_instance("infeasible-memory")
    more = change(shipped()[1], "gpus")
    sites = tuple(
        site.model_copy(update={"num_gpus": more["gpus_per_site"][site.name]})
        for site in instance.cluster.sites
    )
    cluster = instance.cluster.model_copy(update={"sites": sites})
    larger = instance.model_copy(update={"cluster": cluster})
    assert sum(site.num_gpus for site in sites) == more["gpus"]
    assert check_plan(larger, parse_plan(more["plan"])).feasible


@pytest.mark.parametrize("seed", [*INFEASIBLE_SEEDS, *UNEQUAL_SEEDS, *OTHER_SEEDS])
def test_the_smallest_need_is_that_of_brute_force(seed: int) -> None:
    instance = random_instance(seed)
    found = least(instance)
    assert found is not None
    assert found.ratio == least_by_brute_force(instance)
    assert found.proven
    report = check_plan(instance, to_plan(Problem(instance), found.layout))
    assert {v.rule for v in report.violations} <= {"memory"}
    assert report.memory == found.memory


@pytest.mark.parametrize("seed", INFEASIBLE_SEEDS)
def test_random_infeasible_instances_are_explained(seed: int) -> None:
    instance = random_instance(seed)
    message, evidence = explain(instance)
    assert evidence["rule"] == "memory"
    need = Fraction(evidence["need_bytes"], evidence["limit_bytes"])
    assert need == least_by_brute_force(instance)
    raised = change(evidence, "memory_limit")
    limits = {site: value // MIB for site, value in raised["memory_limit_bytes"].items()}
    assert check_plan(with_limits(instance, limits), parse_plan(raised["plan"])).feasible
    lower = {site: value - 1 for site, value in limits.items()}
    assert least_by_brute_force(with_limits(instance, lower)) > 1
    assert "GiB" in message


@pytest.mark.parametrize(
    ("fixes", "rule", "keys"),
    [
        (("tp=8", "pp=6", "dp=2"), "gpus", {"tp", "pp"}),
        (("gpus_used=16", "dp=1", "pp=1"), "gpus_used", {"gpus_used", "dp", "pp"}),
        (("dp=1", "placement_kind=dp-out"), "placement_kind", {"dp", "placement_kind"}),
        (
            ("schedule=interleaved", "pp=2", "num_microbatches=1"),
            "run_length",
            {"schedule", "pp", "num_microbatches"},
        ),
        (("pp=2", "virtual_stages=4"), "virtual_stages.layers", {"pp", "virtual_stages"}),
        (("ep=8", "dp_shard=1", "tp=1", "cp=1", "dp=2"), "ep.groups", {"ep", "tp", "dp"}),
    ],
)
def test_restrictions_that_exclude_each_other_are_named(
    fixes: tuple[str, ...], rule: str, keys: set[str]
) -> None:
    instance = with_fixes(load_instance("tiny"), fixes)
    message, evidence = explain(instance)
    assert evidence["rule"] == rule
    assert set(evidence["keys"]) == keys
    assert message.startswith(f"{rule}: ")
    assert all(f"search.{key}" in message for key in keys)
    changes = [c for c in evidence["changes"] if c["change"] == "search"]
    assert changes
    for one in changes:
        dropped = instance.search.model_copy(update={one["key"]: None})
        wider = instance.model_copy(update={"search": dropped})
        assert check_plan(wider, parse_plan(one["plan"])).feasible


def test_protocols_that_no_link_has_cut_the_sites_apart() -> None:
    tiny = load_instance("tiny")
    cluster = tiny.cluster.links[0].model_copy(update={"protocols": ("tcp_bbr",)})
    tiny = tiny.model_copy(
        update={"cluster": tiny.cluster.model_copy(update={"links": (cluster,)})}
    )
    instance = with_fixes(tiny, ("protocols=rdma_spray", "placement_kind=pp-out", "dp=1"))
    _, evidence = explain(instance)
    assert set(evidence["keys"]) == {"protocols", "placement_kind"}
    assert {c["key"] for c in evidence["changes"] if c["change"] == "search"} == {
        "protocols",
        "placement_kind",
    }


def test_a_feasible_instance_is_a_contradiction_of_its_own() -> None:
    message, evidence = explain(load_instance("tiny"))
    assert evidence["rule"] == "none"
    assert "after all" in message
    assert check_plan(load_instance("tiny"), parse_plan(evidence["plan"])).feasible


@pytest.mark.parametrize("schedule", ["interleaved", "dora"])
def test_all_chunks_but_the_last_hold_a_whole_run(schedule: str) -> None:
    for pp, v, m in ((1, 2, 4), (2, 2, 4), (3, 4, 6), (4, 3, 8)):
        for run in legal_run_lengths(pp, m):
            for vectors in live_counts(Template(schedule, pp, v, m, run, (0,) * pp)):
                assert any(min(x.full[:-1]) >= run and x.full[-1] >= 1 for x in vectors)


def test_most_layers_is_the_largest_sum() -> None:
    for weights, slack in (
        ([[3, 5], [5, 3]], [16, 16]),
        ([[2, 3, 7]], [20]),
        ([[4, 1, 2], [1, 4, 2]], [9, 8]),
    ):
        found, exact = most_layers(weights, slack, 100)
        rows = list(zip(weights, slack, strict=True))
        assert exact
        assert all(sum(a * b for a, b in zip(w, found, strict=True)) <= s for w, s in rows)
        grid = [()]
        for _ in weights[0]:
            grid = [(*g, n) for g in grid for n in range(21)]
        best = max(
            sum(g)
            for g in grid
            if all(sum(a * b for a, b in zip(w, g, strict=True)) <= s for w, s in rows)
        )
        assert sum(found) == best


def test_levels_go_where_they_help_most() -> None:
    levels = (Level(80, 1), Level(40, 3))
    assert assign_levels([[5, 4], [9, 2], [3, 3]], levels) == (1, 0, 1)
    assert assign_levels([[5, 0], [9, 0], [3, 3]], levels) is None
