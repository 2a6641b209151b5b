"""The oracle itself: spaces small enough to count by hand, and best plans by formula."""

from __future__ import annotations

import random
from math import comb
from typing import Any

import pytest

from planner.check import time_of_layout
from planner.cost.coefficients import Option, case_coefficients
from planner.instance.load import load_instance
from planner.instance.schema import Instance
from planner.layout import to_plan
from planner.plan import Degrees
from planner.problem import Problem
from tests import brute_force
from tests.brute_force import (
    Pricer,
    assert_refusals,
    best_plan,
    compositions,
    count_layouts,
    enumerate_layouts,
)
from tests.random_instances import FEWEST_PLANS, MOST_PLANS, random_instance

GPU = {
    "name": "micro",
    "peak_flops": {"bf16": 50e12},
    "memory_bytes": "64 GiB",
    "memory_bandwidth_bytes_per_s": 1e12,
    "scale_up_bytes_per_s": 300e9,
    "scale_up_domain": 2,
    "gpus_per_node": 1,
    "nic_gbps": 100,
}
QUICK_SEEDS = (1, 5, 6, 13, 106, 120)


def instance_of(
    sites: list[dict[str, Any]],
    *,
    layers: int,
    batch: int,
    links: list[dict[str, Any]] | None = None,
    model: dict[str, Any] | None = None,
    **search: Any,
) -> Instance:
    """An instance with sites ``s0``, ``s1``, ... of the micro GPU."""
    named = [{"name": f"s{d}", "gpu": GPU} | site for d, site in enumerate(sites)]
    shape = {
        "num_layers": layers,
        "hidden_size": 256,
        "num_heads": 4,
        "ffn_hidden_size": 1024,
        "vocab_size": 1000,
    }
    return load_instance(
        {
            "model": shape | (model or {}),
            "training": {"global_batch_size": batch, "sequence_length": 128},
            "cluster": {"sites": named, "links": links or []},
            "search": search,
        }
    )


def link(*protocols: str, gbps: float = 100, **fields: Any) -> dict[str, Any]:
    """A link between the first two sites."""
    return {
        "from": "s0",
        "to": "s1",
        "bandwidth_gbps": gbps,
        "distance_km": 1,
        "protocols": protocols,
    } | fields


def test_one_gpu_and_one_layer() -> None:
    """4 schedules of one chunk, overlap or not, 3 kinds of recompute, 2 of synchronisation."""
    instance = instance_of([{"num_gpus": 1}], layers=1, batch=1)
    assert count_layouts(instance) == 4 * 2 * 3 * 2


def test_one_node_of_two_gpus() -> None:
    """Two layers, two sequences: 216 plans on one GPU, 384 replicated, 96 pipelined."""
    instance = instance_of([{"num_gpus": 2, "gpus_per_node": 2}], layers=2, batch=2, tp=1)
    options = 2 * 3 * 2
    two_microbatches = 4 + 1 + 1 + 2 + 2
    one_microbatch = 4 + 4
    alone = (two_microbatches + one_microbatch) * options
    replicated = one_microbatch * (1 + 3) * options
    pipelined = 2 * 4 * options
    assert count_layouts(instance) == alone + replicated + pipelined == 216 + 384 + 96


def test_tensor_parallelism_needs_whole_nodes() -> None:
    """A cell of two GPUs fits into a node of two, into two nodes of one, not into one of three."""
    for node, expected in ((2, 48), (1, 48), (3, 0)):
        site = {"num_gpus": 6, "gpus_per_node": node}
        instance = instance_of([site], layers=1, batch=1, tp=2, pp=1)
        assert count_layouts(instance) == expected


def test_replicas_at_two_sites() -> None:
    """Each of the two directions of the link has a choice of two protocols."""
    search: dict[str, Any] = {"dp": 2, "schedule": "1f1b"}
    sites, options = [{"num_gpus": 1}, {"num_gpus": 1}], 2 * 3 * 2
    links = [link("tcp_bbr", "rdma_spray")]
    apart = instance_of(sites, layers=1, batch=2, links=links, **search)
    assert count_layouts(apart) == 2 * 2 * options
    search["shard_across_sites"] = True
    spanning = instance_of(sites, layers=1, batch=2, links=links, **search)
    assert count_layouts(spanning) == 2 * 2 * options * (1 + 3)
    assert sum(layout.option.spanning for layout in enumerate_layouts(spanning)) == 144
    unjoined = instance_of(sites, layers=1, batch=2, **search)
    assert count_layouts(unjoined) == 0


def test_pipeline_over_two_sites() -> None:
    """Two directions, and for 1F1B nine extra warm-ups."""
    search: dict[str, Any] = {"pp": 2, "overlap": True, "recompute": "none"}
    sites, links = [{"num_gpus": 1}, {"num_gpus": 1}], [link("tcp_bbr")]
    for schedule, extra in (("1f1b", 9), ("zb_h1", 9), ("zb_h2", 1), ("gpipe", 1)):
        instance = instance_of(sites, layers=2, batch=1, links=links, schedule=schedule, **search)
        assert count_layouts(instance) == 2 * extra * 2
    narrow = instance_of(
        sites, layers=2, batch=1, links=links, schedule="1f1b", extra_warmup=[3, 5], **search
    )
    assert {layout.extra_warmup for layout in enumerate_layouts(narrow)} == {(0, 0), (3, 0), (5, 0)}


def test_protocol_per_class() -> None:
    """A link of a stage boundary and of gradients has two choices in place of one."""
    search: dict[str, Any] = {
        "pp": 2,
        "dp": 2,
        "schedule": "gpipe",
        "overlap": True,
        "recompute": "none",
        "sync": "flat",
        "placement_kind": "mixed",
    }
    sites = [{"num_gpus": 2}, {"num_gpus": 2}]
    for per_class, choices in ((False, 2), (True, 4)):
        links = [link("tcp_bbr", "rdma_spray", protocol_per_class=per_class)]
        instance = instance_of(sites, layers=2, batch=2, links=links, **search)
        (mixed,) = {(p.replicas, p.flows) for p in enumerate_layouts(instance)}
        assert mixed == (((1, 1), (1, 1)), (((0, 1, 1), (1, 0, 1)),))
        assert count_layouts(instance) == choices**2


def test_expert_groups_stay_at_a_site() -> None:
    """Expert groups of two replicas: both at one site or both at the other."""
    experts = {"num_experts": 4, "experts_per_token": 1, "expert_ffn_hidden_size": 256}
    instance = instance_of(
        [{"num_gpus": 2}, {"num_gpus": 2}],
        layers=1,
        batch=2,
        links=[link("tcp_bbr")],
        model=experts,
        ep=2,
        dp=2,
        tp=1,
        schedule="gpipe",
    )
    rows = {layout.replicas for layout in enumerate_layouts(instance)}
    assert rows == {((2, 0),), ((0, 2),)}
    assert count_layouts(instance) == 2 * (1 + 3) * 12
    wide = instance_of(
        [{"num_gpus": 2}, {"num_gpus": 2}],
        layers=1,
        batch=2,
        links=[link("tcp_bbr")],
        model=experts,
        ep=2,
        dp=2,
        tp=2,
        dp_shard=1,
        schedule="gpipe",
    )
    assert {layout.replicas for layout in enumerate_layouts(wide)} == {((1, 1),)}


def test_context_parallelism_needs_long_sequences() -> None:
    """4,096 tokens a rank are the least."""
    instance = instance_of([{"num_gpus": 4}], layers=1, batch=1)
    assert {layout.degrees.cp for layout in enumerate_layouts(instance)} == {1}
    training = instance.training.model_copy(update={"sequence_length": 8192})
    longer = instance.model_copy(update={"training": training})
    assert {layout.degrees.cp for layout in enumerate_layouts(longer)} == {1, 2}


@pytest.mark.parametrize(
    ("before", "after", "count"),
    [((1, 1), (1, 1), 2), ((2, 2), (2, 2), 3), ((1, 1, 1), (1, 1, 1), 6), ((3, 0), (1, 2), 1)],
)
def test_matchings(before: tuple[int, ...], after: tuple[int, ...], count: int) -> None:
    """The number of tables with given margins."""
    tables = brute_force._matchings(before, after)
    assert len(set(tables)) == len(tables) == count
    for table in tables:
        for d in range(len(before)):
            assert sum(r for source, _, r in table if source == d) == before[d]
            assert sum(r for _, target, r in table if target == d) == after[d]


def test_compositions() -> None:
    """``k`` positive parts of ``n`` are ``k - 1`` cuts at ``n - 1`` places."""
    for n in range(1, 8):
        for k in range(1, n + 1):
            assert len(set(compositions(n, k))) == comb(n - 1, k - 1)


def test_best_plan_without_parallelism() -> None:
    """One GPU: the fixed time, all microbatches one after the other, the optimizer step."""
    instance = instance_of([{"num_gpus": 1}], layers=2, batch=4, overlap=False)
    problem, times = Problem(instance), []
    for size in (1, 2, 4):
        co = case_coefficients(problem, Degrees(1, 1, 1, 1, 1, 1, size, 1, 1))
        option = Option("ddp", False, "none", False)
        units = (2, 1, 1)
        ops = co.ops(0, option)
        per_layer = zip(ops.forward, ops.backward, co.optimizer(0, option), units, strict=True)
        times.append(
            co.fixed_us
            + sum((4 // size * (f + b) + step) * count for f, b, step, count in per_layer)
        )
    found = best_plan(instance)
    assert found.best_time_us == min(times)
    assert found.plan is not None
    assert found.plan.micro_batch_size == (1, 2, 4)[times.index(min(times))]
    assert found.plan.virtual_stages == 1


def test_best_pipeline_of_one_microbatch() -> None:
    """Two stages and one microbatch: there and back, for every split of the layers."""
    instance = instance_of(
        [{"num_gpus": 2}],
        layers=4,
        batch=1,
        pp=2,
        tp=1,
        dp=1,
        schedule="gpipe",
        overlap=False,
        recompute="full",
    )
    problem = Problem(instance)
    co = case_coefficients(problem, Degrees(1, 1, 1, 1, 2, 1, 1, 1, 1))
    option = Option("ddp", False, "full", False)
    (layer_f, embed_f, head_f), (layer_b, embed_b, head_b) = (
        co.ops(0, option).forward,
        co.ops(0, option).backward,
    )
    step, embed_step, head_step = co.optimizer(0, option)
    delay, _ = co.inside(0)
    times: dict[tuple[int, ...], int] = {}
    for first in (1, 2, 3):
        last = 4 - first
        there = first * layer_f + embed_f + delay + last * layer_f + head_f
        turn = there + last * layer_b + head_b
        home = turn + delay + first * layer_b + embed_b
        ends = (home + first * step + embed_step, turn + last * step + head_step)
        times[first, last] = co.fixed_us + max(ends)
    found = best_plan(instance)
    assert (found.plans, found.feasible) == (6, 6)
    assert found.best_time_us == min(times.values())
    assert found.plan is not None
    assert times[found.plan.layers_per_stage] == found.best_time_us


def test_nothing_fits() -> None:
    """No plan where a GPU has next to no memory."""
    site = {"num_gpus": 1, "memory_limit_bytes": 1 << 20}
    found = best_plan(instance_of([site], layers=1, batch=1))
    assert (found.best_time_us, found.plan, found.plans, found.feasible) == (None, None, 48, 0)


@pytest.mark.parametrize("seed", QUICK_SEEDS)
def test_random_instances_have_few_plans(seed: int) -> None:
    """The number of plans is within bounds, each plan is met once, and a seed is an instance."""
    instance = random_instance(seed)
    assert instance == random_instance(seed)
    number = count_layouts(instance)
    assert FEWEST_PLANS <= number <= MOST_PLANS
    seen = {
        (*layout[:-1], tuple(sorted(layout.protocols.items())))
        for layout in enumerate_layouts(instance)
    }
    assert len(seen) == number


@pytest.mark.parametrize("seed", QUICK_SEEDS)
def test_best_plan_of_random_instances(seed: int) -> None:
    """The best plan is the first of those with the least Z that fit, priced without any cache."""
    instance = random_instance(seed)
    problem, pricer = Problem(instance), Pricer(instance)
    found = best_plan(instance, seed=seed)
    layouts = list(enumerate_layouts(instance))
    assert len(layouts) == found.plans
    for layout in random.Random(seed).sample(layouts, 300):
        co = case_coefficients(problem, layout.degrees)
        time_us = time_of_layout(problem, co, layout)
        assert time_us == pricer.time_us(layout)
        if pricer.fits(layout):
            assert found.best_time_us is not None
            assert found.best_time_us <= time_us
    if found.layout is None:
        assert not any(pricer.fits(layout) for layout in layouts)
        return
    best = found.layout
    ties = [
        (layout.crossings, layout.degrees.gpus, layout.degrees)
        for layout in layouts
        if layout.degrees == best.degrees
        and pricer.fits(layout)
        and pricer.time_us(layout) == found.best_time_us
    ]
    assert min(ties) == (best.crossings, best.degrees.gpus, best.degrees)


def test_broken_plans_cover_the_rules() -> None:
    """Over a few instances every named rule of a plan is broken at least once."""
    tried: set[str] = set()
    for seed in QUICK_SEEDS:
        instance, rng = random_instance(seed), random.Random(seed)
        problem = Problem(instance)
        layouts = rng.sample(list(enumerate_layouts(instance)), 6)
        for layout in layouts:
            tried |= set(assert_refusals(instance, to_plan(problem, layout), rng))
    assert tried >= {
        "tp.range",
        "cp.range",
        "ep.range",
        "etp.range",
        "ep.groups",
        "pp.range",
        "virtual_stages.range",
        "virtual_stages.layers",
        "virtual_stages.schedule",
        "micro_batch_size.range",
        "batch",
        "dp.product",
        "gpus",
        "gpus_used",
        "placement.replicas",
        "placement.capacity",
        "placement.site",
        "placement.stages",
        "placement.groups",
        "placement_kind",
        "flows.balance",
        "flows.boundary",
        "flows.move",
        "flows.site",
        "schedule",
        "run_length",
        "extra_warmup",
        "extra_warmup.length",
        "sharding.group",
        "layers.sum",
        "layers.length",
        "layers.positive",
        "protocols.allowed",
        "protocols.class",
        "protocols.link",
        "protocols.missing",
        "protocols.once",
    }


def test_a_wrong_time_is_noticed() -> None:
    """The full check compares Z, not only the verdict."""
    instance = instance_of([{"num_gpus": 1}], layers=1, batch=1)
    problem, pricer = Problem(instance), Pricer(instance)
    layout = next(enumerate_layouts(instance))
    time_us = pricer.time_us(layout)
    brute_force.assert_accepted(instance, problem, layout, time_us)
    with pytest.raises(AssertionError):
        brute_force.assert_accepted(instance, problem, layout, time_us + 1)
