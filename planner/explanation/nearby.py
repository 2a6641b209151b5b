"""Plans near known ones: the constructive search on their degrees cases and on neighbours."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from planner.choices import CaseChoices
from planner.cost.coefficients import case_coefficients
from planner.explanation.known_plans import Known
from planner.instance.schema import Instance
from planner.layout import to_plan
from planner.plan import Degrees
from planner.problem import Problem
from planner.search.bounds import INFEASIBLE, Bounds, CaseBounds
from planner.search.heuristic import case_plans
from planner.search.tree import Tree

MOST_OPS = 20_000
"""Cases whose templates have more ops are left out."""
PAIRS = 4
"""Pairs of schedule and option that are tried per case."""


def nearby_plans(
    instance: Instance, seeds: Iterable[Degrees], cutoff_us: int | None, deadline: float
) -> Iterator[Known]:
    """Feasible plans, each better than the one before, by a climb from known degrees.

    Parameters
    ----------
    instance
        The part of the plan space that is looked at.
    seeds
        Degrees to begin at, legal here or not.
    cutoff_us
        Only plans with a smaller Z are of interest; None = any.
    deadline
        :func:`time.monotonic` time to stop at.
    """
    problem = Problem(instance)
    bounds = Bounds(problem)
    tree = Tree(problem, bounds)
    best = cutoff_us
    waiting = list(dict.fromkeys(seeds))
    seen: set[Degrees] = set()
    while waiting:
        here = waiting.pop(0)
        for case in tree.neighbours(here):
            if time.monotonic() > deadline:
                return
            if case in seen:
                continue
            seen.add(case)
            for known in _plans(problem, bounds, case, best, deadline):
                best = known.time_us
                waiting.insert(0, case)
                yield known


def _plans(
    problem: Problem, bounds: Bounds, case: Degrees, cutoff_us: int | None, deadline: float
) -> Iterator[Known]:
    """Plans of one case that beat the cut-off."""
    choices = CaseChoices(problem, case_coefficients(problem, case))
    ops = 2 * choices.co.num_microbatches * case.pp * case.virtual_stages
    if choices.empty or ops > MOST_OPS:
        return
    case_bounds = CaseBounds(bounds, choices)
    least = min(case_bounds.choice(*pair).value_us for pair in choices.pairs)
    if least >= (INFEASIBLE if cutoff_us is None else cutoff_us):
        return
    for found in case_plans(choices, case_bounds, cutoff_us, PAIRS):
        if time.monotonic() > deadline:
            return
        if found is not None:
            yield Known(found[0], to_plan(problem, found[1]))
