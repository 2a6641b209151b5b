"""Lowering of a model to plain rows, for engines without enforced rows.

Every variable is shifted to start at 0 and the objective is divided by the greatest
common divisor of its coefficients, its constant part set aside: the engine sees numbers
as small as the model allows.

An enforced row ``a x <= b when l1, l2, ...`` becomes ``a x - M * (number of false l) <= b``.
M is the largest violation that the bounds of the variables permit, ``max(a x) - b``, in
exact integers and for each row by itself; where it is not positive the row always holds
and is left out.  An enforced equation is two such rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd

from formulations.algebra import Model, Sense
from planner.backends.result import Claim

DIGITS_LIMIT = 10**12
"""Larger coefficients are not written exactly to an exchange file."""


@dataclass(frozen=True, slots=True)
class PlainRow:
    """``sum(terms) sense rhs`` over the shifted variables."""

    terms: Mapping[int, int]
    sense: Sense
    rhs: int


@dataclass(frozen=True, slots=True)
class PlainProgram:
    """An integer program with variables ``0 <= x[i] <= ranges[i]``.

    A model's value is ``offset + scale * value``, its variable i is ``lowers[i] + x[i]``.

    Attributes:
        impossible: A row without variables does not hold.
    """

    lowers: tuple[int, ...]
    ranges: tuple[int, ...]
    rows: tuple[PlainRow, ...]
    objective: Mapping[int, int]
    offset: int
    scale: int
    impossible: bool

    @property
    def largest(self) -> int:
        """The largest absolute coefficient, right-hand side or range."""
        numbers = [abs(c) for row in self.rows for c in (*row.terms.values(), row.rhs)]
        numbers += [abs(c) for c in self.objective.values()]
        return max([0, *numbers, *self.ranges])

    def model_values(self, shifted: Sequence[int]) -> tuple[int, ...]:
        """Return the model's values for a point of the program."""
        return tuple(low + value for low, value in zip(self.lowers, shifted, strict=True))


def lower(
    model: Model,
    objective_upper: int | None = None,
    objective_lower: int | None = None,
    bounds: Sequence[tuple[int, int]] | None = None,
) -> PlainProgram:
    """Lower a model, with limits on its objective as rows.

    Args:
        model: The model.
        objective_upper: Largest objective wanted.
        objective_lower: Known lower bound on the objective.
        bounds: Bounds to use in place of the variables' own (inside them).
    """
    if bounds is None:
        bounds = [(variable.lower, variable.upper) for variable in model.variables]
    lowers = tuple(low for low, _ in bounds)
    ranges = tuple(high - low for low, high in bounds)
    rows: list[PlainRow] = []
    for row in model.rows:
        rhs = row.rhs - _at(row.terms, lowers)
        if not row.when:
            rows.append(PlainRow(row.terms, row.sense, rhs))
            continue
        if row.sense != ">=":
            rows += _enforced(row.terms, rhs, row.when, lowers, ranges)
        if row.sense != "<=":
            negated = {index: -coefficient for index, coefficient in row.terms.items()}
            rows += _enforced(negated, -rhs, row.when, lowers, ranges)
    objective = model.objective
    scale = gcd(*objective.values()) or 1
    offset = model.objective_constant + _at(objective, lowers)
    scaled = {index: coefficient // scale for index, coefficient in objective.items()}
    if objective_upper is not None:
        rows.append(PlainRow(scaled, "<=", (objective_upper - offset) // scale))
    if objective_lower is not None:
        rows.append(PlainRow(scaled, ">=", -((offset - objective_lower) // scale)))
    return PlainProgram(
        lowers=lowers,
        ranges=ranges,
        rows=tuple(row for row in rows if row.terms),
        objective=scaled,
        offset=offset,
        scale=scale,
        impossible=any(not row.terms and not _empty_row_holds(row) for row in rows),
    )


def trivial_claim(program: PlainProgram, relaxation: bool) -> Claim | None:
    """Return the exact answer where no row is left, or None if an engine is needed."""
    if program.impossible:
        return Claim(infeasible=True)
    if program.rows:
        return None
    point = [
        width if program.objective.get(index, 0) < 0 else 0
        for index, width in enumerate(program.ranges)
    ]
    value = program.offset + program.scale * _at(program.objective, point)
    if relaxation:
        return Claim(bound=value, relaxation_value=Fraction(value))
    return Claim(values=program.model_values(point), bound=value, finished=True)


def _enforced(
    terms: Mapping[int, int],
    rhs: int,
    when: Sequence[int],
    lowers: Sequence[int],
    ranges: Sequence[int],
) -> list[PlainRow]:
    """Return ``sum(terms) <= rhs when ...`` as no row or one plain row."""
    big_m = sum(c * ranges[index] for index, c in terms.items() if c > 0) - rhs
    if big_m <= 0:
        return []
    relaxed = dict(terms)
    for code in when:
        index, sign = (code, 1) if code >= 0 else (-code - 1, -1)
        # A literal is false by 1 - variable, its negation by variable.
        relaxed[index] = relaxed.get(index, 0) + sign * big_m
        rhs += big_m * (1 - lowers[index]) if sign > 0 else big_m * lowers[index]
    return [PlainRow({i: c for i, c in relaxed.items() if c}, "<=", rhs)]


def _at(terms: Mapping[int, int], values: Sequence[int]) -> int:
    return sum(coefficient * values[index] for index, coefficient in terms.items())


def _empty_row_holds(row: PlainRow) -> bool:
    return {"<=": row.rhs >= 0, ">=": row.rhs <= 0, "==": row.rhs == 0}[row.sense]
