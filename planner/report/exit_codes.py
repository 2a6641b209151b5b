"""The exit codes of the commands."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.search.result import SolveResult


class ExitCode(IntEnum):
    """What the exit code of ``planner solve`` says."""

    PROVEN = 0
    ERROR = 1
    BAD_INPUT = 2
    INFEASIBLE = 3
    NOT_PROVEN = 4
    NO_PLAN = 5
    INTERRUPTED = 130


def exit_code(result: SolveResult, asked_gap: float) -> ExitCode:
    """Return the exit code of a solve; ``asked_gap`` is the gap that the user accepts."""
    status = result.status.name
    if status == "FEASIBLE" and result.gap is not None and 0 < asked_gap >= result.gap:
        return ExitCode.PROVEN
    return {
        "OPTIMAL": ExitCode.PROVEN,
        "FEASIBLE": ExitCode.NOT_PROVEN,
        "INFEASIBLE": ExitCode.INFEASIBLE,
        "NO_SOLUTION": ExitCode.NO_PLAN,
        "INTERRUPTED": ExitCode.INTERRUPTED,
    }.get(status, ExitCode.ERROR)
