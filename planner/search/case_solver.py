"""One degrees case as a real model: solve, price by the checker, add binding paths, repeat."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice, product

from formulations.cuts import CutPool
from formulations.plain import PlainModel, build_plain
from planner.backends import Engine, EngineOptions, EngineResult, Limit, SolveStatus
from planner.check import Price, memory_violations, price_layout
from planner.choices import CaseChoices, ScheduleChoice
from planner.cost.coefficients import Units
from planner.layout import Layout, num_boundaries, sharing_of
from planner.pipeline.event_graph import Duration, event_graph
from planner.pipeline.link_orders import ORDERS
from planner.pipeline.schedules import SCHEDULES, Template
from planner.problem import Problem

MAX_WARMUP_TEMPLATES = 81
"""Templates with extra warm-up that get a cut from one priced plan, per schedule."""

MAX_ORDERED_OPS = 100_000
"""Ops times orders that are looked at for cuts over shared links, beside the plan's template."""

MAX_SEED_OPS = 20_000
"""Templates with more forwards get no paths before the first plan."""

OnPlan = Callable[[Layout, int], None]
"""Called with every plan that the checker has priced, and its Z."""


@dataclass(frozen=True)
class CaseOutcome:
    """What a model said about one case.

    ``bound_us`` holds for every plan of the case that is not worse than the cut-off; where it
    exceeds the cut-off the case has no such plan.  After an error it is the bound known before.
    ``contradicted``: what the engine said contradicts a checked plan, the model or itself.
    """

    status: SolveStatus
    limit: Limit
    layout: Layout | None
    time_us: int | None
    bound_us: int
    rounds: int
    engine: str
    trusted: bool
    contradicted: bool
    wall_time_s: float
    message: str = ""
    size: dict[str, int] = field(default_factory=dict)


@dataclass
class _Run:
    """State of one run of rounds."""

    engine: str
    began: float
    rounds: int = 0
    trusted: bool = True
    contradicted: bool = False
    status: SolveStatus = SolveStatus.NO_SOLUTION
    limit: Limit = Limit.NONE
    message: str = ""

    def outcome(
        self, built: PlainModel, layout: Layout | None, time_us: int | None, bound_us: int
    ) -> CaseOutcome:
        """The final record."""
        size = built.model.size()
        return CaseOutcome(
            status=self.status,
            limit=self.limit,
            layout=layout,
            time_us=time_us,
            bound_us=bound_us,
            rounds=self.rounds,
            engine=self.engine,
            trusted=self.trusted,
            contradicted=self.contradicted,
            wall_time_s=time.monotonic() - self.began,
            message=self.message,
            size={
                "booleans": size.booleans,
                "integers": size.integers,
                "rows": size.rows,
                "terms": size.terms,
            },
        )


class CaseSolver:
    """Solves degrees cases of one problem with one engine."""

    def __init__(
        self, problem: Problem, engine: Engine, *, workers: int = 1, seed: int = 0
    ) -> None:
        self.problem = problem
        self.engine = engine
        self.workers = workers
        self.seed = seed

    def solve(
        self,
        choices: CaseChoices,
        cutoff_us: int,
        *,
        floor_us: int = 0,
        deadline: float | None = None,
        start: Layout | None = None,
        known_us: int | None = None,
        on_plan: OnPlan | None = None,
    ) -> CaseOutcome:
        """Find the best plan of a case with ``Z <= cutoff_us``, or show that there is none.

        Parameters
        ----------
        choices
            The alternatives of the case.
        cutoff_us
            Only plans up to this Z are wanted.
        floor_us
            A bound on the case that is known already.
        deadline
            :func:`time.monotonic` time to stop at.
        start
            A plan of the case; its paths seed the model.
        known_us
            Z of a checked plan among the choices; a claim that there is none as good is an error.
        on_plan
            Called with every plan that the checker has priced.
        """
        run = _Run(self.engine.backend, time.monotonic())
        built, pool = self._build(choices, cutoff_us, start)
        best: tuple[int, Layout] | None = None
        least = known_us
        bound = floor_us

        def options(left: float | None) -> EngineOptions:
            upper = cutoff_us if best is None else min(cutoff_us, best[0])
            return EngineOptions(
                time_limit_s=left,
                workers=self.workers,
                seed=self.seed,
                objective_upper=upper,
                objective_lower=bound or None,
            )

        for result, layout, price in self._rounds(run, choices, built, pool, deadline, options):
            if result.status is not SolveStatus.ERROR:
                bound = max(bound, result.bound or 0)
            if layout is not None and price is not None:
                if best is None or price.time_us < best[0]:
                    best = (price.time_us, layout)
                least = best[0] if least is None else min(least, best[0])
                if on_plan is not None:
                    on_plan(layout, price.time_us)
            if least is not None and least < bound:
                run.status, run.contradicted = SolveStatus.ERROR, True
                run.message = (
                    f"claims that nothing is below {bound} µs; a checked plan has {least} µs"
                )
                break
            if best is not None and best[0] <= bound:
                break
        if run.status is SolveStatus.ERROR:
            bound = floor_us
        if best is None or best[0] > cutoff_us:
            if run.status in (SolveStatus.OPTIMAL, SolveStatus.FEASIBLE):
                run.status = SolveStatus.NO_SOLUTION
            return run.outcome(built, None, None, bound)
        if run.status is not SolveStatus.ERROR:
            run.status = SolveStatus.OPTIMAL if best[0] <= bound else SolveStatus.FEASIBLE
        return run.outcome(built, best[1], best[0], bound)

    def fewest_crossings(
        self, choices: CaseChoices, time_us: int, *, deadline: float | None = None
    ) -> CaseOutcome:
        """Among the plans of a case with ``Z <= time_us`` find one with the fewest crossings.

        With one worker and time enough the same plan comes out every time.  The parameters are
        those of :meth:`solve`.
        """
        run = _Run(self.engine.backend, time.monotonic())
        built, pool = self._build(choices, time_us, None)
        crossings = built.variables.crossings
        assert crossings is not None
        built.model.minimize(crossings)

        def options(left: float | None) -> EngineOptions:
            return EngineOptions(time_limit_s=left, workers=self.workers, seed=self.seed)

        for _, layout, price in self._rounds(run, choices, built, pool, deadline, options):
            if layout is not None and price is not None and price.time_us <= time_us:
                return run.outcome(built, layout, price.time_us, time_us)
        return run.outcome(built, None, None, time_us)

    def _build(
        self, choices: CaseChoices, cutoff_us: int, start: Layout | None
    ) -> tuple[PlainModel, CutPool]:
        pool = self._pool(choices, start)
        return build_plain(choices, pool, cutoff_us), pool

    def _pool(self, choices: CaseChoices, start: Layout | None) -> CutPool:
        """Paths to begin with: those of even splits and of a known plan."""
        pool = CutPool()
        for template, durations in _even_splits(choices):
            pool.seed(template, durations)
        if start is not None:
            _add_paths(pool, choices, start, price_layout(self.problem, choices.co, start))
        return pool

    def _rounds(
        self,
        run: _Run,
        choices: CaseChoices,
        built: PlainModel,
        pool: CutPool,
        deadline: float | None,
        options: Callable[[float | None], EngineOptions],
    ) -> Iterator[tuple[EngineResult, Layout | None, Price | None]]:
        """Solve, price, add paths, until the consumer stops or the engine has no further plan."""
        while True:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                run.status, run.limit = SolveStatus.NO_SOLUTION, Limit.TIME
                return
            run.rounds += 1
            result = self.engine.solve(built.model, options(left))
            run.engine = result.engine_version
            run.trusted = run.trusted and result.trusted
            run.contradicted = run.contradicted or result.contradicted
            run.status, run.limit, run.message = result.status, result.limit, result.message
            if result.values is None:
                yield result, None, None
                return
            layout = built.layout(result.values)
            price = price_layout(self.problem, choices.co, layout)
            broken = memory_violations(price.memory)
            if broken:
                run.status = SolveStatus.ERROR
                run.message = f"model and checker disagree: {broken[0].message}"
                return
            yield result, layout, price
            if result.status is not SolveStatus.OPTIMAL:
                return
            known = len(pool)
            _add_paths(pool, choices, layout, price)
            fresh = list(islice(pool, known, None))
            if not fresh:
                run.status = SolveStatus.ERROR
                run.message = (
                    f"a plan with Z = {price.time_us} µs satisfies the model at "
                    f"{result.objective} and no path is missing"
                )
                return
            built.add_cuts(fresh)


def _even_splits(choices: CaseChoices) -> Iterator[tuple[Template, dict[Duration, int]]]:
    """Every template without extra warm-up, all chunks of equal work on the first GPU class."""
    co = choices.co
    degrees = co.degrees
    chunks = degrees.pp * degrees.virtual_stages
    if chunks == 1 or chunks * co.num_microbatches > MAX_SEED_OPS:
        return
    ops = co.ops(0, choices.options[0])
    layers = [co.layer_units.count(u) for u in range(len(co.kinds))]

    def share(units: Units) -> int:
        return sum(n * units[u] for u, n in enumerate(layers)) // chunks + 1

    for choice in choices.schedules:
        split = SCHEDULES[choice.schedule].split_backward
        values = {
            "F": share(ops.forward),
            "B": share(ops.input_gradient if split else ops.backward),
            "W": share(ops.weight_gradient),
        }
        template = base_template(choices, choice)
        yield (
            template,
            {key: values.get(key.kind, 0) for key in event_graph(template).variables},
        )


def base_template(choices: CaseChoices, choice: ScheduleChoice) -> Template:
    """The template of a schedule without extra warm-up."""
    degrees = choices.co.degrees
    return Template(
        choice.schedule,
        degrees.pp,
        degrees.virtual_stages,
        choices.co.num_microbatches,
        choice.run_length,
        (0,) * degrees.pp,
    )


def _add_paths(pool: CutPool, choices: CaseChoices, layout: Layout, price: Price) -> None:
    """The longest paths of a plan and, with its durations, of other templates.

    What another template needs and the plan has not is taken as 0.  Where transfers share links,
    also the longest path of every order, for other templates as far as they are not too many.
    """
    pp, problem = choices.co.degrees.pp, choices.problem
    left = MAX_ORDERED_OPS
    for number, template in enumerate(_templates(choices, layout)):
        graph = event_graph(template)
        durations = {key: price.durations.get(key, 0) for key in graph.variables}
        pool.add_critical(template, durations)
        if price.orders is None or (number and left <= 0):
            continue
        flows = layout.flows[: num_boundaries(template.schedule, pp, template.v)]
        sharing = sharing_of(problem, flows, pp)
        if sharing is not None:
            left -= len(graph.ops) * len(ORDERS)
            pool.add_ordered(template, sharing, price.durations | durations)


def _templates(choices: CaseChoices, layout: Layout) -> Iterator[Template]:
    """The plan's template, the same for the other schedules, and with other extra warm-up."""
    degrees, m = choices.co.degrees, choices.co.num_microbatches
    pp = degrees.pp
    yield layout.template(m)
    slow = [b for b in range(pp - 1) if any(d != e for d, e, _ in layout.flows[b])]
    for choice in choices.schedules:
        warmups: list[tuple[int, ...]] = [(0,) * pp]
        if SCHEDULES[choice.schedule].has_extra_warmup and slow:
            vectors = product(*(choices.warmup_steps(b) for b in slow))
            warmups = [
                tuple(
                    sum(step for b, step in zip(slow, steps, strict=True) if b >= s)
                    for s in range(pp)
                )
                for steps in islice(vectors, MAX_WARMUP_TEMPLATES)
            ]
        for extra in warmups:
            yield Template(choice.schedule, pp, degrees.virtual_stages, m, choice.run_length, extra)
