"""A plain program as a PuLP problem, with short names of its own."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from planner.backends.base import BackendUnavailableError, package_version
from planner.backends.big_m import PlainProgram, PlainRow

LARGE = 10_000
"""Rows whose least coefficient reaches this are divided by a power of ten."""
SENSES = {"<=": -1, "==": 0, ">=": 1}


@dataclass(frozen=True, slots=True)
class PulpProgram:
    """A PuLP problem and its variables in index order."""

    problem: Any
    variables: tuple[Any, ...]

    def rounded_values(self) -> tuple[int, ...]:
        """Return the values of the variables, rounded; those in no row get 0."""
        return tuple(
            0 if variable.varValue is None else round(variable.varValue)
            for variable in self.variables
        )


def build(program: PlainProgram, start: Sequence[int] | None = None) -> PulpProgram:
    """Return the program as a PuLP problem, with a start point if there is one."""
    import pulp  # type: ignore[import-untyped, unused-ignore]

    problem = pulp.LpProblem("plan", pulp.LpMinimize)
    variables = tuple(
        problem.add_variable(f"v{index:06d}", 0, width, pulp.LpInteger)
        for index, width in enumerate(program.ranges)
    )
    if start is not None:
        for variable, value in zip(variables, start, strict=True):
            variable.setInitialValue(value)
    problem.setObjective(
        pulp.LpAffineExpression([(variables[i], c) for i, c in program.objective.items()])
    )
    for position, row in enumerate(program.rows):
        unit = _unit(row)
        total = pulp.LpAffineExpression([(variables[i], c / unit) for i, c in row.terms.items()])
        constraint = pulp.LpConstraint(total, SENSES[row.sense], rhs=row.rhs / unit)
        problem.addConstraint(constraint, f"c{position:06d}")
    return PulpProgram(problem, variables)


def _unit(row: PlainRow) -> int:
    """Return the power of ten by which a row is divided, so that its least coefficient has a digit.

    Engines keep rows to an absolute tolerance, which the rounding of large numbers alone exceeds:
    CBC then calls such rows broken, or returns fractions.  Powers of ten keep every digit in an
    exchange file.
    """
    least = min(map(abs, row.terms.values()))
    return int(10 ** (len(str(least)) - 1)) if least >= LARGE else 1


def missing_pulp() -> str | None:
    """Return why PuLP cannot be used, or None."""
    if package_version("pulp") is None:
        return "PuLP is not installed; run `pip install 'pulp>=3.3,<4'`"
    return None


def prepare_pulp() -> None:
    """Import PuLP.

    Raises:
        BackendUnavailableError: PuLP is not installed or does not load.
    """
    reason = missing_pulp()
    if reason:
        raise BackendUnavailableError(reason)
    try:
        importlib.import_module("pulp")
    except ImportError as error:
        raise BackendUnavailableError(f"PuLP does not load: {error}") from error
