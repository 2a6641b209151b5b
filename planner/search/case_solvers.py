"""How each formulation solves a degrees case."""

from __future__ import annotations

from planner.search.case_solver import CaseSolver
from planner.search.pairwise_solver import PairwiseSolver

CASE_SOLVERS: dict[str, type[CaseSolver]] = {"plain": CaseSolver, "strong": PairwiseSolver}
"""By name of the formulation."""
FORMULATIONS = tuple(CASE_SOLVERS)
DEFAULT_FORMULATION = "strong"

__all__ = ["CASE_SOLVERS", "DEFAULT_FORMULATION", "FORMULATIONS"]
