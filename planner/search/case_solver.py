"""One degrees case as a real model: solve, price by the checker, add the paths that bind, repeat."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice, product

from formulations.cuts import CutPool
from formulations.plain import build_plain
from planner import space
from planner.backends import Engine, EngineOptions, Limit, SolveStatus
from planner.check import memory_violations, memory_of_layout, price_layout
from planner.choices import CaseChoices
from planner.layout import Layout
from planner.pipeline.event_graph import Duration
from planner.pipeline.schedules import SCHEDULES, Template
from planner.problem import Problem

MAX_WARMUP_TEMPLATES = 27
"""Templates with extra warm-up that get a cut from one priced plan."""


@dataclass(frozen=True)
class CaseOutcome:
    """What a model said about one case.

    ``bound_us`` holds for every plan of the case that is not worse than the cut-off; with
    ``layout`` None and status ``INFEASIBLE`` the case has no plan up to the cut-off.
    """

    status: SolveStatus
    limit: Limit
    layout: Layout | None
    time_us: int | None
    bound_us: int
    rounds: int
    engine: str
    trusted: bool
    wall_time_s: float
    message: str = ""
    size: dict[str, int] = field(default_factory=dict)


class CaseSolver:
    """Solves degrees cases of one problem with one engine."""

    def __init__(self, problem: Problem, engine: Engine, *, workers: int = 1, seed: int = 0) -> None:
        self.problem = problem
        self.engine = engine
        self.workers = workers
        self.seed = seed

    def solve(
        self,
        choices: CaseChoices,
        cutoff_us: int,
        *,
        deadline: float | None = None,
        start: Layout | None = None,
        on_plan: Callable[[Layout, int], None] | None = None,
    ) -> CaseOutcome:
        """Find the best plan of a case with ``Z <= cutoff_us``, or show that there is none.

        Parameters
        ----------
        choices
            The alternatives of the case.
        cutoff_us
            Only plans up to this Z are wanted.
        deadline
            :func:`time.monotonic` time to stop at.
        start
            A plan of the case; its paths seed the model.
        on_plan
            Called with every plan that the checker has priced.
        """
        began = time.monotonic()
        co, problem = choices.co, self.problem
        pool = CutPool()
        if start is not None:
            durations = price_layout(problem, co, start).durations
            for template in _templates(choices, start):
                pool.add_critical(template, durations)
        built = build_plain(choices, pool, cutoff_us)
        best: tuple[int, Layout] | None = None
        bound, rounds, trusted, engine = 0, 0, True, self.engine.backend
        while True:
            rounds += 1
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                status, limit, message = SolveStatus.NO_SOLUTION, Limit.TIME, "time limit"
                break
            upper = cutoff_us if best is None else min(cutoff_us, best[0])
            result = self.engine.solve(
                built.model,
                EngineOptions(
                    time_limit_s=left,
                    workers=self.workers,
                    seed=self.seed,
                    objective_upper=upper,
                    objective_lower=bound or None,
                ),
            )
            engine = f"{result.engine} {result.engine_version}"
            trusted = trusted and result.trusted
            status, limit, message = result.status, result.limit, result.message
            bound = max(bound, result.bound or 0)
            if result.values is None:
                break
            layout = built.layout(result.values)
            price = price_layout(problem, co, layout)
            broken = memory_violations(price.memory)
            if broken:
                status, message = SolveStatus.ERROR, f"model and checker disagree: {broken[0]}"
                break
            if on_plan is not None:
                on_plan(layout, price.time_us)
            if best is None or price.time_us < best[0]:
                best = (price.time_us, layout)
            if status is not SolveStatus.OPTIMAL:
                break
            if best[0] <= bound:
                break
            new = len(pool)
            for template in _templates(choices, layout):
                pool.add_critical(template, _zero_fill(price.durations, template))
            fresh = list(islice(pool, new, None))
            if not fresh:
                status = SolveStatus.ERROR
                message = (
                    f"the model claims Z = {result.objective} µs for a plan whose Z is "
                    f"{price.time_us} µs and no path is missing"
                )
                break
            built.add_cuts(fresh)
        if best is not None and best[0] <= cutoff_us:
            done = best[0] <= bound
            final = SolveStatus.OPTIMAL if done else SolveStatus.FEASIBLE
            if status is SolveStatus.ERROR:
                final = status
            layout_out: Layout | None = best[1]
            time_out: int | None = best[0]
        else:
            final, layout_out, time_out = status, None, None
            if status in (SolveStatus.OPTIMAL, SolveStatus.FEASIBLE):
                final = SolveStatus.NO_SOLUTION
        size = built.model.size()
        return CaseOutcome(
            final,
            limit,
            layout_out,
            time_out,
            bound,
            rounds,
            engine,
            trusted,
            time.monotonic() - began,
            message,
            {
                "booleans": size.booleans,
                "integers": size.integers,
                "rows": size.rows,
                "terms": size.terms,
            },
        )


def _zero_fill(
    durations: dict[Duration, int], template: Template
) -> dict[Duration, int]:
    """Durations for another template: ops of a whole backward stand in for split ones."""
    from planner.pipeline.event_graph import event_graph

    return {key: durations.get(key, 0) for key in event_graph(template).variables}


def _templates(choices: CaseChoices, layout: Layout) -> Iterator[Template]:
    """The plan's template, the same for the other schedules, and with other extra warm-up."""
    degrees, m = choices.co.degrees, choices.co.num_microbatches
    yield layout.template(m)
    pp = degrees.pp
    slow = [
        b for b in range(pp - 1) if any(d != e for d, e, _ in layout.flows[b])
    ]
    for choice in choices.schedules:
        warmups: list[tuple[int, ...]] = [(0,) * pp]
        if SCHEDULES[choice.schedule].has_extra_warmup and slow:
            vectors = product(choices.warmup_steps, repeat=len(slow))
            warmups = [
                tuple(
                    sum(step for b, step in zip(slow, steps, strict=True) if b >= s)
                    for s in range(pp)
                )
                for steps in islice(vectors, MAX_WARMUP_TEMPLATES)
            ]
        for extra in warmups:
            yield Template(
                choice.schedule, pp, degrees.virtual_stages, m, choice.run_length, extra
            )


__all__ = ["CaseOutcome", "CaseSolver", "space"]
