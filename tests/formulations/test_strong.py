"""The strong formulation: the same optima as the plain one, and rows that only tighten it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest

from formulations.cuts import CutPool
from formulations.plain import build_plain
from formulations.strong import build_strong
from planner.backends import EngineOptions, EnginePool, SolveStatus
from planner.choices import CaseChoices
from planner.pipeline.event_graph import Duration, event_graph
from planner.search.bounds import Bounds, CaseBounds
from planner.search.case_solver import CaseSolver
from planner.search.heuristic import case_plans
from planner.search.layers_solver import solve_layers
from planner.search.pairwise_solver import MOVING, STAYING, PairwiseSolver
from planner.search.solve import solve
from tests.formulations.case_models import choices_of, two_sites
from tests.formulations.test_relaxation import CASES, Golden, fixed
from tests.random_instances import random_instance

SEEDS = range(0, 200, 25)
"""Seeds whose winning case is solved by both formulations and both engines."""
FAMILIES = ("least_ops", "least_transfers", "least_synchronisation")

STRONG_ROOTS = {
    0: 81479.0,
    1: 1276915.103,
    2: 22165.0,
    3: 34782.0,
    5: 133833.6229,
    6: 51168.79166,
    8: 114037.9814,
    37: 24738.0,
}
"""Relaxation of the strong model without paths, by seed of the case, µs."""


@pytest.fixture(scope="module")
def pool() -> Iterator[EnginePool]:
    """Warm engines."""
    with EnginePool() as engines:
        yield engines


@pytest.mark.parametrize("seed", SEEDS)
def test_both_formulations_and_engines_agree(seed: int, pool: EnginePool) -> None:
    """The case of the optimum, with a loose cutoff and no plan to start from."""
    instance = random_instance(seed)
    plain = solve(instance, formulation="plain")
    strong = solve(instance, formulation="strong")
    assert (plain.status, plain.time_us) == (strong.status, strong.time_us)
    if plain.plan is None or plain.time_us is None:
        return
    choices = choices_of(instance, plain.plan.degrees)
    for backend in ("cp-sat", "cbc"):
        solver = PairwiseSolver(choices.problem, pool.engine(backend))
        outcome = solver.solve(choices, plain.time_us + plain.time_us // 50)
        assert outcome.status is SolveStatus.OPTIMAL, outcome.message
        assert outcome.time_us == outcome.bound_us == plain.time_us


def pair_of(case: Golden) -> CaseChoices:
    choices = choices_of(fixed(random_instance(case.seed)), case.degrees)
    return choices.only([choices.pairs[case.pair]])


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"seed{case.seed}")
def test_golden_relaxations(case: Golden, pool: EnginePool) -> None:
    """The relaxation without paths is as recorded, at least the plain one, at most the optimum."""
    choices = pair_of(case)
    bounds = CaseBounds(Bounds(choices.problem), choices)
    built = build_strong(
        choices, CutPool(), case.optimum * 11 // 10, bounds.pair_costs(*choices.pairs[0])
    )
    result = pool.engine("cbc").solve(built.model, EngineOptions(relaxation=True))
    assert result.relaxation_value == pytest.approx(STRONG_ROOTS[case.seed], rel=1e-6)
    assert result.relaxation_value >= case.root * (1 - 1e-9)
    assert result.relaxation_value <= case.optimum * (1 + 1e-9)


def test_every_family_tightens_some_relaxation(pool: EnginePool) -> None:
    """Without any of the rows of its own the strong model is weaker somewhere."""
    tightened = set()
    for case in CASES:
        choices = pair_of(case)
        bounds = CaseBounds(Bounds(choices.problem), choices)
        costs = bounds.pair_costs(*choices.pairs[0])
        model = build_strong(choices, CutPool(), case.optimum * 11 // 10, costs).model
        whole = pool.engine("cbc").solve(model, EngineOptions(relaxation=True)).relaxation_value
        assert whole is not None
        for family in set(FAMILIES) & set(model.families()):
            less = (
                pool.engine("cbc")
                .solve(model.without(family), EngineOptions(relaxation=True))
                .relaxation_value
            )
            assert less is not None and less <= whole * (1 + 1e-9)
            if less < whole * (1 - 1e-6):
                tightened.add(family)
    assert {"least_ops", "least_synchronisation"} <= tightened


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"seed{case.seed}")
def test_no_plan_breaks_a_row(case: Golden) -> None:
    """The rows hold for every plan that construction finds: a model of it has no better bound."""
    choices = pair_of(case)
    bounds = CaseBounds(Bounds(choices.problem), choices)
    costs = bounds.pair_costs(*choices.pairs[0])
    plain = build_plain(choices, CutPool(), case.optimum * 2).model
    strong = build_strong(choices, CutPool(), case.optimum * 2, costs).model
    extra = len(strong.rows) - len(plain.rows)
    assert extra > 0
    assert set(strong.families()) - set(plain.families()) <= {
        *FAMILIES,
        "least_hosts",
        "least_crossings",
    }


@pytest.mark.parametrize("kinds", [STAYING, MOVING])
@pytest.mark.parametrize("virtual_stages", [1, 2])
def test_layers_bound_every_plan(
    kinds: tuple[str, ...], virtual_stages: int, pool: EnginePool
) -> None:
    """The layer split by itself is never above a plan of its part, and exact where nothing waits.

    Every schedule and option of a case on two sites; the plans are those of construction and the
    optimum of the part.
    """
    instance = two_sites((4, 4), layers=6, batch=8)
    choices = choices_of(instance, (1, 1, 1, 1, 2, virtual_stages, 1, 2, 1)).placed(kinds)
    solver = CaseSolver(choices.problem, pool.engine("cp-sat"))
    bounds = Bounds(choices.problem)
    met = 0
    for pair in choices.pairs:
        part = choices.only([pair])
        case = CaseBounds(bounds, part)
        limit = 10**7
        layers = solve_layers(
            pool.engine("cp-sat"), case, limit, 0, deadline=None, workers=1, seed=0
        )
        exact = solver.solve(part, limit)
        assert exact.time_us is not None
        assert layers.bound_us <= exact.time_us
        met += layers.bound_us == exact.time_us
        values = {pair: case.choice(*pair)}
        for found in case_plans(part, values, None):
            assert found is None or found[0] >= layers.bound_us
    assert met or kinds == MOVING


def test_the_layers_model_prices_its_split_exactly(pool: EnginePool) -> None:
    """The split's longest path, synchronisation aside, is within the bound: no path is missing."""
    instance = two_sites((4, 4), layers=9, batch=8)
    choices = choices_of(instance, (1, 1, 1, 1, 2, 3, 1, 2, 1)).placed(STAYING)
    for pair in choices.pairs[:6]:
        case = CaseBounds(Bounds(choices.problem), choices.only([pair]))
        outcome = solve_layers(
            pool.engine("cp-sat"), case, 10**7, 0, deadline=None, workers=1, seed=0
        )
        assert outcome.layers is not None
        assert sum(outcome.layers) == 9
        template = case.base_template(pair[0])
        assert template is not None
        graph = event_graph(template)
        costs = case.split_costs(*pair)
        units = choices.co.layer_units
        ends = [sum(outcome.layers[:k]) for k in range(len(outcome.layers) + 1)]
        durations = dict.fromkeys(graph.variables, 0)
        for k, (first, last) in enumerate(pairwise(ends)):
            held = [*units[first:last]]
            held += [choices.co.units.index("embedding")] * (k == 0)
            held += [choices.co.units.index("head")] * (k == len(ends) - 2)
            for kind, row in (("F", costs.forward), ("B", costs.backward), ("W", costs.weight)):
                key = Duration(kind, k)  # type: ignore[arg-type]
                if key in durations:
                    durations[key] = sum(row[u] for u in held)
        for key in durations:
            if key.kind == "delay":
                durations[key] = costs.delay
            elif key.kind == "occupancy":
                durations[key] = costs.occupancy
        assert choices.co.fixed_us + graph.evaluate(durations) <= outcome.bound_us
