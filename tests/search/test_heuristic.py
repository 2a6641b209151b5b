"""Plans without a model: never wrong, never unproven, and close to the best."""

from __future__ import annotations

from itertools import pairwise, permutations
from typing import Any

import pytest

from planner import verify
from planner.check import check_plan, memory_violations, price_layout
from planner.choices import CaseChoices
from planner.cost.coefficients import case_coefficients
from planner.instance import load_instance
from planner.instance.fixes import with_fixes
from planner.layout import Layout, to_plan
from planner.plan import Degrees
from planner.problem import Problem
from planner.search import solve as searching
from planner.search.bounds import ChoiceBound
from planner.search.case_solver import CaseSolver
from planner.search.heuristic import (
    case_plans,
    direct_flows,
    layer_splits,
    placements,
    shortest_chain,
    stage_classes,
)
from planner.search.neighbourhood import improve
from planner.search.result import SolveStatus
from planner.search.solve import solve
from tests.brute_force import best_plan
from tests.random_instances import random_instance

SEEDS = (1, 5, 6, 13, 106, 120, 400, 402)


@pytest.fixture
def no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where a model of a case is built."""

    def build(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a model is built")

    monkeypatch.setattr(CaseSolver, "_build", build)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.usefixtures("no_models")
def test_bound_optimum_and_plan_are_in_order(seed: int) -> None:
    """The bound is below the best plan of the space, the plan found above it, and both checked."""
    instance = random_instance(seed)
    best = best_plan(instance, samples=0, broken=0).best_time_us
    result = solve(instance, heuristic=True)
    assert not result.provenance["models"]
    assert result.certificate["grade"] in ("re-derived", "open")
    if best is None:
        assert result.plan is None
        return
    assert result.plan is not None
    assert result.time_us is not None
    assert result.bound_us is not None
    assert check_plan(instance, result.plan).time_us == result.time_us
    assert result.bound_us <= best <= result.time_us
    assert result.status in (SolveStatus.OPTIMAL, SolveStatus.FEASIBLE)
    assert verify(instance, result.to_json()).accepted


@pytest.mark.usefixtures("no_models")
def test_large_cases_are_left_to_bounds_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    job = with_fixes(load_instance("tiny"), ["tp=1", "cp=1", "ep=1", "micro_batch_size=1"])
    monkeypatch.setattr(searching, "MAX_MODEL_MOVES", 0)
    result = solve(job)
    assert result.plan is not None
    assert not result.provenance["models"]
    assert any("too large for a model" in note for note in result.provenance["notes"])


def first_plan(choices: CaseChoices) -> tuple[int, Layout]:
    """The first plan that construction finds."""
    values = {pair: ChoiceBound(0, "work") for pair in choices.pairs}
    return next(found for found in case_plans(choices, values, None) if found is not None)


def test_neighbours_only_get_better_and_are_the_same_every_time() -> None:
    problem = Problem(load_instance("mixtral-8x7b-mixed-gpus"))
    degrees = Degrees(2, 1, 8, 1, 4, 1, 1, 16, 1)
    choices = CaseChoices(problem, case_coefficients(problem, degrees))
    time_us, start = first_plan(choices)

    def run(seed: int) -> list[tuple[int, Layout]]:
        found = improve(choices, start, time_us, seed=seed, max_fruitless=60)
        return [each for each in found if each is not None]

    better = run(0)
    assert better
    assert all(a > b for (a, _), (b, _) in pairwise([(time_us, start), *better]))
    assert better == run(0)
    for found_us, layout in better:
        price = price_layout(problem, choices.co, layout)
        assert price.time_us == found_us
        assert not memory_violations(price.memory)
        report = check_plan(problem.instance, to_plan(problem, layout))
        assert report.feasible
        assert report.time_us == found_us


def test_the_chain_of_sites_has_the_least_delay() -> None:
    problem = Problem(load_instance("llama-405b-4-regions"))

    def delay(order: tuple[int, ...]) -> float:
        return sum(
            problem.links[link].delay_s for pair in pairwise(order) for link in problem.routes[pair]
        )

    chain = shortest_chain(problem, (0, 1, 2, 3))
    assert delay(chain) == min(map(delay, permutations(range(4))))
    sites = tuple(range(len(Problem(load_instance("huge-64-sites")).sites)))
    assert sorted(shortest_chain(Problem(load_instance("huge-64-sites")), sites)) == list(sites)


def test_chunks_follow_the_speed_of_their_sites() -> None:
    """Several chunks a stage: stages on B200 get more layers than those on H100."""
    problem = Problem(load_instance("moe-1t-8-sites"))
    degrees = Degrees(4, 2, 256, 1, 8, 2, 1, 2048, 32)
    choices = CaseChoices(problem, case_coefficients(problem, degrees))
    choice, option = next(p for p in choices.pairs if p[0].schedule == "zbv")
    replicas = next(
        rows
        for rows in placements(choices, option)
        if len({frozenset(d for d, n in enumerate(row) if n) for row in rows}) > 2
    )
    flows = direct_flows(problem, choice, choices.co, replicas)
    assert flows is not None
    layout = Layout(degrees, "zbv", None, (0,) * 8, option, "hierarchical", (), replicas, flows, {})
    split = next(layer_splits(choices, layout))
    assert sum(split) == 61
    classes = [
        {problem.classes[g].gpu.name for g in each} for each in stage_classes(problem, layout)
    ]
    layers = [split[s] + split[15 - s] for s in range(8)]
    fast = [n for n, names in zip(layers, classes, strict=True) if names == {"B200"}]
    slow = [n for n, names in zip(layers, classes, strict=True) if names != {"B200"}]
    assert len(fast) == 3
    assert min(fast) > max(slow)
