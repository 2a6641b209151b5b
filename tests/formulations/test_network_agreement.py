"""Enumeration, CP-SAT and CBC give the same optimum on networks with hubs and shared uplinks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from planner.backends import Engine, EnginePool
from planner.backends import SolveStatus as EngineStatus
from planner.cost.collectives import expert_parallel_bytes
from planner.instance.schema import Instance
from planner.plan import Degrees
from planner.problem import Problem
from planner.search.solve import solve
from tests.agreement import assert_settled, tie_key, winning_case
from tests.brute_force import best_plan
from tests.random_instances import random_fabric, random_network

SEEDS = range(114)
SEARCHED = range(0, 114, 6)
"""Seeds on which the whole search runs."""
FABRIC_SEEDS = range(40, 52)
"""Zones, switches that reduce and collectives in chunks besides."""

FOREMOST = {"hub", "shared uplink", "unequal protocols", "node-limited routing"}
"""What at least 100 instances have all at once."""
OTHERS = {
    "protocol to choose",
    "protocol for each class",
    "loss",
    "jitter",
    "measured rate",
    "measured curve",
    "zone",
    "histogram",
    "unequal directions",
}
"""What at least 20 instances have."""


def features(instance: Instance) -> set[str]:
    """What the network of an instance has."""
    problem, cluster = Problem(instance), instance.cluster
    hubs = {hub.name for hub in cluster.hubs}
    found = {
        "hub": any(len(route) > 1 for route in problem.routes.values()),
        "shared uplink": any(
            len({source for (source, _), route in problem.routes.items() if link.index in route})
            > 1
            for link in problem.links
            if {link.source, link.target} <= hubs
        ),
        "unequal protocols": len({link.protocols for link in cluster.links}) > 1,
        "node-limited routing": limited(problem),
        "protocol to choose": any(len(names) > 1 for names in problem.protocols),
        "protocol for each class": any(link.per_class for link in problem.links),
        "loss": any(link.loss for link in cluster.links),
        "jitter": any(link.jitter_s for link in cluster.links),
        "measured rate": any(link.measured for link in cluster.links),
        "measured curve": any(site.measured for site in cluster.sites),
        "zone": any(site.zone_gpus and site.fabric_oversubscription > 1 for site in cluster.sites),
        "histogram": instance.training.tokens_per_expert is not None,
        "unequal directions": any(link.reverse_bandwidth_gbps for link in cluster.links),
    }
    return {name for name, present in found.items() if present}


def limited(problem: Problem) -> bool:
    """Whether the routing limit lowers what every legal degree of expert parallelism sends."""
    free = problem.model.model_copy(
        update={"num_routing_groups": None, "routing_groups_per_token": None}
    )
    gpu = problem.instance.cluster.sites[0].gpu
    return all(
        expert_parallel_bytes(problem.model, gpu, degrees, problem.training_at(ep))[1]
        < expert_parallel_bytes(free, gpu, degrees, problem.training_at(ep))[1]
        for ep in problem.search.ep or ()
        for degrees in [Degrees(1, 1, ep, 1, 1, 1, 1, ep, 1)]
    )


def test_the_instances_have_what_they_are_for() -> None:
    counts: Counter[str] = Counter()
    for seed in SEEDS:
        found = features(random_network(seed))
        counts.update(found)
        counts["all of the foremost"] += found >= FOREMOST
    assert counts["all of the foremost"] >= 100, counts
    assert all(counts[name] >= 20 for name in FOREMOST | OTHERS), counts


@pytest.fixture(scope="session")
def engines() -> Iterator[dict[Engine, int]]:
    """A warm CP-SAT and a warm CBC with their workers."""
    with EnginePool() as pool:
        yield {pool.engine("cp-sat"): 4, pool.engine("cbc"): 1}


@pytest.mark.parametrize(
    ("draw", "seed"),
    [
        *((random_network, seed) for seed in SEEDS),
        *((random_fabric, seed) for seed in FABRIC_SEEDS),
    ],
)
def test_enumeration_and_both_engines_agree_on_networks(
    draw: Callable[[int], Instance], seed: int, engines: dict[Engine, int]
) -> None:
    """Best plan of all = optimum of its degrees case by either engine."""
    instance = draw(seed)
    brute = best_plan(instance, samples=0)
    if brute.plan is None or brute.best_time_us is None:
        assert brute.feasible == 0
        return
    for engine, workers in engines.items():
        outcome = winning_case(instance, brute.plan, brute.best_time_us, engine, workers=workers)
        assert outcome.status is EngineStatus.OPTIMAL, (outcome.status, outcome.message)
        assert outcome.time_us == outcome.bound_us == brute.best_time_us


@pytest.mark.parametrize("seed", SEARCHED)
def test_search_finds_the_best_plan_of_networks(seed: int) -> None:
    """The search by CP-SAT, over all degrees cases, proves the best plan of all."""
    instance = random_network(seed)
    brute = best_plan(instance)
    result = solve(instance, backend="cp-sat")
    assert_settled(instance, result)
    assert result.time_us == brute.best_time_us
    assert tie_key(result.plan) == tie_key(brute.plan)
