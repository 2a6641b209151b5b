"""Links on which transfers take turns: enumeration and both engines give the same optimum."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import islice

import pytest

from planner.backends import Engine, EnginePool
from planner.backends import SolveStatus as EngineStatus
from planner.check import orders_of_layout, price_layout, time_of_layout
from planner.cost.coefficients import case_coefficients
from planner.explanation.resources import with_bandwidth, with_delay
from planner.instance.schema import Instance
from planner.layout import Layout
from planner.pipeline.event_graph import event_graph
from planner.problem import Problem
from planner.search.solve import solve
from tests.agreement import assert_settled, tie_key, winning_case
from tests.brute_force import BruteForceResult, best_plan, enumerate_layouts
from tests.formulations.case_models import Converged, choices_of
from tests.random_instances import random_sharing

SEEDS = range(24)
CBC_SEEDS = (0, 4, 6, 9, 10, 12, 18, 20)
"""Seeds whose models CBC solves in seconds."""
SEARCHED = range(0, 24, 3)
"""Seeds on which the whole search runs."""


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[str, Engine]]:
    """A warm CP-SAT and a warm CBC."""
    with EnginePool() as pool:
        yield {name: pool.engine(name) for name in ("cp-sat", "cbc")}


@lru_cache
def enumerated(seed: int) -> tuple[Instance, BruteForceResult]:
    """The instance of a seed and the best of all its plans."""
    instance = random_sharing(seed)
    return instance, best_plan(instance, samples=0)


def waits(problem: Problem, layout: Layout) -> bool:
    """Whether transfers of the layout wait for each other on a link."""
    co = case_coefficients(problem, layout.degrees)
    if orders_of_layout(problem, co, layout) is None:
        return False
    price = price_layout(problem, co, layout)
    graph = event_graph(layout.template(co.num_microbatches))
    return price.time_us > co.fixed_us + graph.evaluate(price.durations)


def test_the_best_plans_take_turns() -> None:
    """In many of the instances, loops and hubs, the best plan waits on a shared link."""
    found = []
    for seed in SEEDS:
        instance, brute = enumerated(seed)
        assert brute.layout is not None
        found.append(waits(Problem(instance), brute.layout))
    assert sum(found[::2]) >= 6 and sum(found[1::2]) >= 4, found


@pytest.mark.parametrize(
    ("seed", "name"),
    [(seed, "cp-sat") for seed in SEEDS] + [(seed, "cbc") for seed in CBC_SEEDS],
)
def test_enumeration_and_both_engines_agree(
    seed: int, name: str, engines: dict[str, Engine]
) -> None:
    """Best plan of all = optimum of its degrees case by either engine."""
    instance, brute = enumerated(seed)
    assert brute.plan is not None and brute.best_time_us is not None
    outcome = winning_case(instance, brute.plan, brute.best_time_us, engines[name])
    assert outcome.status is EngineStatus.OPTIMAL, (outcome.status, outcome.message)
    assert outcome.time_us == outcome.bound_us == brute.best_time_us


@pytest.mark.parametrize("seed", SEARCHED)
def test_the_search_finds_it_too(seed: int) -> None:
    instance, brute = enumerated(seed)
    result = solve(instance, backend="cp-sat")
    assert_settled(instance, result)
    assert result.time_us == brute.best_time_us
    assert tie_key(result.plan) == tie_key(brute.plan)


@pytest.mark.parametrize("seed", [5, 6, 15])
def test_a_better_link_never_makes_a_plan_slower(seed: int) -> None:
    """Every seventh plan, each link faster or nearer: Z does not grow, and shrinks for some."""
    instance = random_sharing(seed)
    problem = Problem(instance)
    better = []
    for link in range(len(instance.cluster.links)):
        better += [Problem(with_bandwidth(instance, link, factor)) for factor in (1.1, 2.0, 1e6)]
        better.append(Problem(with_delay(instance, link, 0.5)))
    gains = set()
    for layout in islice(enumerate_layouts(instance), 0, 300, 7):
        before = time_of_layout(problem, case_coefficients(problem, layout.degrees), layout)
        for other in better:
            after = time_of_layout(other, case_coefficients(other, layout.degrees), layout)
            assert after <= before
            gains.add(before - after)
    assert len(gains) > 1


@pytest.mark.parametrize("seed", [6, 15])
def test_the_optimum_needs_the_order_of_the_links(seed: int, engines: dict[str, Engine]) -> None:
    """A loop and a hub: without the rows that tie paths to an order the same case has another."""
    instance, brute = enumerated(seed)
    assert brute.plan is not None and brute.best_time_us is not None
    choices = choices_of(instance, brute.plan.degrees)
    converged = Converged(engines["cp-sat"], choices, brute.best_time_us * 11 // 10)
    assert converged.time_us == brute.best_time_us
    assert "orders" in converged.built.model.families()
    assert converged.fault_without("orders") == "value"
