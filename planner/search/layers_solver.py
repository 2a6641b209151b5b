"""The layer split of one schedule and option, solved exactly: solve, find a longer path, repeat."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import islice

from formulations.cuts import CutPool
from formulations.strong import build_layers
from planner.backends import Engine, EngineOptions, EngineResult, SolveStatus
from planner.pipeline.event_graph import event_graph
from planner.search.bounds import CaseBounds

SPLITS_PRICED = 16
"""Splits that are priced to find the paths that a model begins with."""
MAX_ROUNDS = 30


@dataclass(frozen=True)
class LayersOutcome:
    """What is known of the plans of a pair up to a limit.

    No such plan is below ``bound_us``; where that exceeds the limit there is none. ``layers`` are
    those of the best split found.  ``result`` is the engine's last word.
    """

    bound_us: int
    layers: tuple[int, ...] | None
    rounds: int
    result: EngineResult | None


def seeded_pool(case: CaseBounds, pool: CutPool, beyond_us: int) -> CutPool:
    """Add the paths that bind for good splits of the only pair of a case."""
    known = case.known_paths(*case.choices.pairs[0], SPLITS_PRICED, beyond_us)
    if known is not None:
        template, paths = known
        for path in paths:
            pool.add(template, path)
    return pool


def solve_layers(
    engine: Engine,
    case: CaseBounds,
    limit_us: int,
    floor_us: int,
    *,
    deadline: float | None,
    workers: int,
    seed: int,
) -> LayersOutcome:
    """Bound the plans of a pair by its best split with least times.

    Parameters
    ----------
    case
        A case with one pair of schedule and option.
    limit_us
        Only plans up to this Z are of interest.
    floor_us
        A bound that is known already.
    deadline
        :func:`time.monotonic` time to stop at.
    workers, seed
        Passed to the engine.
    """
    (pair,) = case.choices.pairs
    choice = pair[0]
    template = case.base_template(choice)
    if case.co.degrees.pp == 1 or template is None:
        return LayersOutcome(floor_us, None, 0, None)
    exact = not case.any_warmup(choice)
    pool = seeded_pool(case, CutPool(), limit_us)
    built = build_layers(case.choices, template, pool, limit_us, case.pair_costs(*pair))
    bound, layers, result, rounds = floor_us, None, None, 0
    while rounds < MAX_ROUNDS:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            break
        rounds += 1
        result = engine.solve(
            built.model,
            EngineOptions(
                time_limit_s=left,
                workers=workers,
                seed=seed,
                objective_upper=limit_us,
                objective_lower=bound or None,
            ),
        )
        if result.status is SolveStatus.ERROR:
            return LayersOutcome(floor_us, None, rounds, result)
        bound = max(bound, result.bound or 0)
        if result.values is None:
            break
        layers = built.layers(result.values)
        if result.status is not SolveStatus.OPTIMAL or not exact:
            break
        length, path = event_graph(template).critical_path(built.durations(result.values))
        known = len(pool)
        if case.co.fixed_us + length <= bound or not pool.add(template, path):
            break
        built.add_cuts(list(islice(pool, known, None)))
    return LayersOutcome(bound, layers, rounds, result)
