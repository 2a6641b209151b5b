"""One degrees case by the strong formulation: a model per schedule and option, the best first."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from formulations.cuts import CutPool
from formulations.plain import PlainModel
from formulations.strong import build_strong
from planner.backends import Engine, Limit, SolveStatus
from planner.choices import CaseChoices
from planner.layout import Layout
from planner.plan import PlacementKind
from planner.problem import Problem
from planner.search.bounds import INFEASIBLE, Bounds, CaseBounds, ChoiceBound
from planner.search.case_solver import CaseOutcome, CaseSolver, OnPlan
from planner.search.heuristic import case_plans
from planner.search.layers_solver import LayersOutcome, seeded_pool, solve_layers

EXACT = "cp-sat"
"""The engine that reasons in exact integers."""
STAYING: tuple[PlacementKind, ...] = ("single-site", "dp-out")
"""Placements in which every replica runs at one site."""
MOVING: tuple[PlacementKind, ...] = ("pp-out", "mixed")


@dataclass
class _Tally:
    """What the models of all parts said."""

    engine: str
    models: int = 0
    rounds: int = 0
    trusted: bool = True
    contradicted: bool = False
    failed: bool = False
    limit: Limit = Limit.NONE
    message: str = ""
    size: dict[str, int] = field(default_factory=dict)

    def add_layers(self, outcome: LayersOutcome) -> None:
        """Count a model of the layer split."""
        self.rounds += outcome.rounds
        if outcome.result is not None:
            result = outcome.result
            failed = result.status is SolveStatus.ERROR
            self._add(
                result.engine_version,
                result.limit,
                result.message,
                (result.trusted, result.contradicted, failed),
            )

    def add_case(self, outcome: CaseOutcome) -> None:
        """Count a model with placement."""
        self.rounds += outcome.rounds
        failed = outcome.status is SolveStatus.ERROR
        self._add(
            outcome.engine,
            outcome.limit,
            outcome.message,
            (outcome.trusted, outcome.contradicted, failed),
        )
        for name, count in outcome.size.items():
            self.size[name] = self.size.get(name, 0) + count

    def _add(
        self, engine: str, limit: Limit, message: str, verdict: tuple[bool, bool, bool]
    ) -> None:
        trusted, contradicted, failed = verdict
        self.models += 1
        self.engine = engine
        self.trusted = self.trusted and trusted
        self.contradicted = self.contradicted or contradicted
        if failed and not self.failed:
            self.failed, self.message = True, message
        elif limit not in (Limit.NONE, Limit.CUTOFF) and not self.failed:
            self.limit, self.message = limit, message


class PairwiseSolver(CaseSolver):
    """Solves degrees cases part by part: a schedule, an option, and whether replicas change site.

    A part whose bound exceeds the best plan gets no model.  What is left is bounded by its best
    layer split; only where a plan may be as good as that is the placement modelled.
    """

    def __init__(
        self, problem: Problem, engine: Engine, *, workers: int = 1, seed: int = 0
    ) -> None:
        super().__init__(problem, engine, workers=workers, seed=seed)
        self.bounds = Bounds(problem)

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
        """As :meth:`CaseSolver.solve`."""
        began = time.monotonic()
        tally = _Tally(self.engine.backend)
        best: tuple[int, Layout] | None = None
        bound = INFEASIBLE

        def limit_us() -> int:
            return cutoff_us if best is None else best[0] - 1

        def offer(layout: Layout, time_us: int) -> None:
            nonlocal best
            if time_us <= limit_us():
                best = time_us, layout
            if on_plan is not None:
                on_plan(layout, time_us)

        for value, part in self._parts(choices, cutoff_us):
            if value > limit_us():
                bound = min(bound, value)
                break
            case = CaseBounds(self.bounds, part)
            layers = solve_layers(
                self.engine,
                case,
                self._upper_us(limit_us()),
                max(floor_us, value),
                deadline=deadline,
                workers=self.workers,
                seed=self.seed,
            )
            tally.add_layers(layers)
            least = layers.bound_us
            if least <= limit_us() and layers.layers is not None:
                pair = {part.pairs[0]: ChoiceBound(least, "layers")}
                for found in case_plans(part, pair, limit_us() + 1, splits=[layers.layers]):
                    if found is not None:
                        offer(found[1], found[0])
            if least <= limit_us() and not tally.failed:
                outcome = super().solve(
                    part,
                    self._upper_us(limit_us()),
                    floor_us=least,
                    deadline=deadline,
                    start=start,
                    on_plan=offer,
                )
                tally.add_case(outcome)
                least = outcome.bound_us
            bound = min(bound, least)
            if tally.failed:
                break
        return self._outcome(tally, best, max(bound, floor_us), cutoff_us, known_us, began)

    def _upper_us(self, limit_us: int) -> int:
        """Largest Z in the models of a part whose plans are wanted up to a limit.

        CBC crashes where the relaxation is infeasible, so for engines with tolerances the best plan
        of a part has room above the limit.
        """
        return limit_us if self.engine.backend == EXACT else 2 * limit_us

    def _parts(self, choices: CaseChoices, cutoff_us: int) -> list[tuple[int, CaseChoices]]:
        """Every pair with the placements that move no replica and with the others, best first."""
        found = []
        for kinds in (STAYING, MOVING):
            placed = choices.placed(kinds)
            if placed.possible_kinds and (kinds is STAYING or self.problem.routes):
                case = CaseBounds(self.bounds, placed)
                found += [
                    (case.template(*pair, cutoff_us).value_us, i, placed.only([pair]))
                    for i, pair in enumerate(choices.pairs)
                ]
        return [(value, part) for value, _, part in sorted(found, key=lambda item: item[:2])]

    def _outcome(
        self,
        tally: _Tally,
        best: tuple[int, Layout] | None,
        bound_us: int,
        cutoff_us: int,
        known_us: int | None,
        began: float,
    ) -> CaseOutcome:
        """What the parts say about the case."""
        found = [value for value in (known_us, best[0] if best else None) if value is not None]
        least = min(found, default=None)
        status, message = SolveStatus.INFEASIBLE, tally.message
        if tally.failed:
            status = SolveStatus.ERROR
        elif known_us is not None and known_us < min(bound_us, cutoff_us + 1, *found):
            status, tally.contradicted = SolveStatus.ERROR, True
            message = f"claims that nothing is below {bound_us} µs; a checked plan has {least} µs"
        elif best is not None:
            status = SolveStatus.OPTIMAL if best[0] <= bound_us else SolveStatus.FEASIBLE
            bound_us = min(bound_us, best[0])
        elif bound_us <= cutoff_us:
            status = SolveStatus.NO_SOLUTION
        return CaseOutcome(
            status=status,
            limit=Limit.CUTOFF if status is SolveStatus.INFEASIBLE else tally.limit,
            layout=None if best is None else best[1],
            time_us=None if best is None else best[0],
            bound_us=bound_us,
            rounds=tally.rounds,
            engine=tally.engine,
            trusted=tally.trusted,
            contradicted=tally.contradicted,
            wall_time_s=time.monotonic() - began,
            message=message,
            size={"models": tally.models, **tally.size},
        )

    def _build(
        self, choices: CaseChoices, cutoff_us: int, start: Layout | None
    ) -> tuple[PlainModel, CutPool]:
        if len(choices.pairs) != 1:
            return super()._build(choices, cutoff_us, start)
        case = CaseBounds(self.bounds, choices)
        pool = seeded_pool(case, self._pool(choices, start), cutoff_us)
        return build_strong(choices, pool, cutoff_us, case.pair_costs(*choices.pairs[0])), pool


__all__ = ["PairwiseSolver"]
