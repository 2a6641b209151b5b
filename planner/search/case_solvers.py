"""How each formulation solves a degrees case."""

from __future__ import annotations

from planner.backends import Engine
from planner.choices import CaseChoices
from planner.layout import Layout
from planner.problem import Problem
from planner.search.case_solver import CaseOutcome, CaseSolver, OnPlan
from planner.search.pairwise_solver import PairwiseSolver

FEW_CHUNKS = 6
"""Cases with at most so many chunks are solved faster as one model (``bench/formulations.py``)."""


class AutoSolver(CaseSolver):
    """The plain formulation for cases with few chunks, the strong one for the others."""

    def __init__(
        self, problem: Problem, engine: Engine, *, workers: int = 1, seed: int = 0
    ) -> None:
        super().__init__(problem, engine, workers=workers, seed=seed)
        self.pairwise = PairwiseSolver(problem, engine, workers=workers, seed=seed)

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
        degrees = choices.co.degrees
        few = degrees.pp * degrees.virtual_stages <= FEW_CHUNKS
        solve = super().solve if few else self.pairwise.solve
        return solve(
            choices,
            cutoff_us,
            floor_us=floor_us,
            deadline=deadline,
            start=start,
            known_us=known_us,
            on_plan=on_plan,
        )


CASE_SOLVERS: dict[str, type[CaseSolver]] = {
    "auto": AutoSolver,
    "plain": CaseSolver,
    "strong": PairwiseSolver,
}
"""By name of the formulation."""
FORMULATIONS = tuple(CASE_SOLVERS)
DEFAULT_FORMULATION = "auto"

__all__ = ["CASE_SOLVERS", "DEFAULT_FORMULATION", "FORMULATIONS", "AutoSolver"]
