"""A small algebra for integer linear models, free of any solver.

A `Model` holds bounded integer variables, linear rows over them and one linear
objective to minimise.  All numbers are Python integers, so a model has one exact
meaning: `Model.evaluate` prices a plan and lists the rows that it breaks without
rounding.  A backend lowers `Model.rows` to the form that its engine takes.

A row may be *enforced*: it then binds only where all literals of its ``when`` list
are true.  Every row belongs to a named family (one family per rule of the problem),
so that a rule can be counted, reported or dropped as a whole.

Example:
    >>> model = Model()
    >>> use = model.boolean("use")
    >>> load = model.integer("load", 0, 10)
    >>> model.add(load >= 4, when=[use], family="demand")
    >>> model.add(load <= 0, when=[~use], family="idle")
    >>> model.minimize(load + 3 * ~use)
    >>> model.evaluate([1, 4]).objective
    4
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

MAGNITUDE_LIMIT = 2**53
"""Every row must stay below this magnitude, so that doubles hold each sum exactly."""

Sense = Literal["<=", ">=", "=="]
Kind = Literal["linear", "exactly_one", "at_most_one", "implication"]


class MagnitudeError(ValueError):
    """A row (or the objective) can reach a magnitude that doubles do not hold exactly.

    Cause: coefficients or bounds are too large for the unit in use.  Remedy: choose a
    coarser unit, or tighten the bounds of the variables in the named row.
    """


class _Scope:
    """The variables of one model; expressions of two scopes must not be mixed."""

    __slots__ = ("variables",)

    def __init__(self) -> None:
        self.variables: list[Variable] = []


class Linear:
    """Base of everything that is linear: variables, negated variables, expressions.

    Comparisons build a `Constraint`.  Because ``==`` does too, ``variable in list`` and
    the use of comparisons as truth values raise TypeError.
    """

    __slots__ = ()
    __array_ufunc__ = None

    def _parts(self) -> tuple[dict[int, int], int, _Scope | None]:
        """Return (a fresh dict of index to coefficient, the constant, the scope)."""
        raise NotImplementedError

    def _label(self) -> str:
        raise NotImplementedError

    def __add__(self, other: Linear | int) -> Expression:
        return _combine(self, other, 1)

    def __radd__(self, other: int) -> Expression:
        return _combine(self, other, 1)

    def __sub__(self, other: Linear | int) -> Expression:
        return _combine(self, other, -1)

    def __rsub__(self, other: int) -> Expression:
        return _combine(-self, other, 1)

    def __neg__(self) -> Expression:
        return self * -1

    def __mul__(self, factor: int) -> Expression:
        if type(factor) is not int:
            _refuse_coefficient(factor, self)
        terms, constant, scope = self._parts()
        if factor == 0:
            return Expression({}, 0, scope)
        if factor != 1:
            terms = {index: coefficient * factor for index, coefficient in terms.items()}
        return Expression(terms, constant * factor, scope)

    def __rmul__(self, factor: int) -> Expression:
        return self * factor

    def __le__(self, other: Linear | int) -> Constraint:
        return _compare(self, "<=", other)

    def __ge__(self, other: Linear | int) -> Constraint:
        return _compare(self, ">=", other)

    def __eq__(self, other: object) -> Any:
        """Return the `Constraint` that both sides are equal (not a truth value)."""
        if not isinstance(other, (Linear, int)):
            _refuse_coefficient(other, self)
        return _compare(self, "==", other)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise TypeError(f"{self._label()} has no truth value before a model is solved")


class Variable(Linear):
    """An integer variable with bounds; made by `Model.boolean` and `Model.integer`."""

    __slots__ = ("index", "is_boolean", "lower", "name", "scope", "upper")

    def __init__(
        self, index: int, name: str, lower: int, upper: int, is_boolean: bool, scope: _Scope
    ) -> None:
        self.index = index
        self.name = name
        self.lower = lower
        self.upper = upper
        self.is_boolean = is_boolean
        self.scope = scope

    def _parts(self) -> tuple[dict[int, int], int, _Scope | None]:
        return {self.index: 1}, 0, self.scope

    def _label(self) -> str:
        return f"variable {self.name!r}"

    def __mul__(self, factor: int) -> Expression:
        if type(factor) is not int:
            _refuse_coefficient(factor, self)
        return Expression({self.index: factor} if factor else {}, 0, self.scope)

    def __invert__(self) -> NegatedVariable:
        """Return the literal that is true where this Boolean variable is 0.

        Raises:
            TypeError: The variable is not Boolean.
        """
        if not self.is_boolean:
            raise TypeError(f"variable {self.name!r} is not Boolean, so it has no negation")
        return NegatedVariable(self)

    def __repr__(self) -> str:
        return f"Variable({self.name!r}, {self.lower}..{self.upper})"


class NegatedVariable(Linear):
    """The negation of a Boolean variable; in sums it counts as ``1 - variable``."""

    __slots__ = ("variable",)

    def __init__(self, variable: Variable) -> None:
        self.variable = variable

    def _parts(self) -> tuple[dict[int, int], int, _Scope | None]:
        return {self.variable.index: -1}, 1, self.variable.scope

    def _label(self) -> str:
        return f"negation of variable {self.variable.name!r}"

    def __invert__(self) -> Variable:
        return self.variable

    def __repr__(self) -> str:
        return f"~{self.variable!r}"


BooleanLiteral = Variable | NegatedVariable


class Expression(Linear):
    """A linear expression: integer coefficients by variable index, and a constant."""

    __slots__ = ("constant", "scope", "terms")

    def __init__(self, terms: dict[int, int], constant: int, scope: _Scope | None) -> None:
        self.terms = terms
        self.constant = constant
        self.scope = scope

    def _parts(self) -> tuple[dict[int, int], int, _Scope | None]:
        return self.terms.copy(), self.constant, self.scope

    def _label(self) -> str:
        if self.scope is None or not self.terms:
            return f"expression {self.constant}"
        first = self.scope.variables[next(iter(self.terms))].name
        return f"expression with variable {first!r}"

    def __repr__(self) -> str:
        return f"Expression({_format(self.terms, self.scope)} + {self.constant})"


class Constraint:
    """A linear comparison: ``sum(terms) sense rhs``; give it to `Model.add`."""

    __slots__ = ("rhs", "scope", "sense", "terms")

    def __init__(self, terms: dict[int, int], sense: Sense, rhs: int, scope: _Scope | None) -> None:
        self.terms = terms
        self.sense = sense
        self.rhs = rhs
        self.scope = scope

    def __bool__(self) -> bool:
        raise TypeError(
            f"the constraint {self!r} has no truth value; write `1 <= a <= 5` and "
            "`c1 and c2` as two constraints"
        )

    def __repr__(self) -> str:
        return f"{_format(self.terms, self.scope)} {self.sense} {self.rhs}"


class Row:
    """One row of a model: ``sum(terms) sense rhs`` where all ``when`` literals hold.

    Attributes:
        terms: Coefficient (not 0) by variable index.
        sense: "<=", ">=" or "==".
        rhs: Right-hand side.
        when: Encoded literals: ``i`` is variable i, ``-i - 1`` its negation.
        family: The constraint family.
        ordinal: Position of the row in its family, from 0.
        kind: "linear", or the logical form that ``literals`` states once more.
        literals: Encoded literals of a logical row, else empty.
    """

    __slots__ = ("family", "kind", "literals", "ordinal", "rhs", "sense", "terms", "when")

    def __init__(
        self,
        terms: dict[int, int],
        sense: Sense,
        rhs: int,
        when: tuple[int, ...],
        family: str,
        ordinal: int,
        kind: Kind,
        literals: tuple[int, ...],
    ) -> None:
        self.terms = terms
        self.sense = sense
        self.rhs = rhs
        self.when = when
        self.family = family
        self.ordinal = ordinal
        self.kind = kind
        self.literals = literals

    @property
    def name(self) -> str:
        """Family and position, such as ``memory[3]``."""
        return f"{self.family}[{self.ordinal}]"

    def key(self) -> tuple[Any, ...]:
        """Return the row as plain data, in the order of the constructor's arguments."""
        return (
            self.terms,
            self.sense,
            self.rhs,
            self.when,
            self.family,
            self.ordinal,
            self.kind,
            self.literals,
        )


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken row or bound; ``amount`` is by how much (in the row's unit)."""

    name: str
    family: str
    amount: int


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Exact objective of an assignment, and everything that it breaks."""

    objective: int
    violations: tuple[Violation, ...]

    @property
    def feasible(self) -> bool:
        """Whether nothing is broken."""
        return not self.violations


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Counts of a model: variables by type, rows by family, and coefficients."""

    booleans: int
    integers: int
    rows: int
    enforced_rows: int
    terms: int
    rows_by_family: Mapping[str, int]


def linear_sum(items: Iterable[Linear | int]) -> Expression:
    """Return the sum of variables, expressions and integers in time linear in its terms.

    Raises:
        TypeError: An item is neither linear nor an integer.
        ValueError: Items belong to different models.
    """
    terms: dict[int, int] = {}
    constant = 0
    scope: _Scope | None = None
    for item in items:
        if type(item) is Variable:
            if item.scope is not scope:
                scope = _same_scope(scope, item.scope)
            index = item.index
            terms[index] = terms.get(index, 0) + 1
        elif type(item) is Expression:
            if item.scope is not scope:
                scope = _same_scope(scope, item.scope)
            constant += item.constant
            for index, coefficient in item.terms.items():
                terms[index] = terms.get(index, 0) + coefficient
        elif type(item) is int:
            constant += item
        elif isinstance(item, Linear):
            more, shift, other_scope = item._parts()
            scope = _same_scope(scope, other_scope)
            constant += shift
            for index, coefficient in more.items():
                terms[index] = terms.get(index, 0) + coefficient
        else:
            _refuse_coefficient(item, Expression(terms, constant, scope))
    if 0 in terms.values():
        terms = {index: coefficient for index, coefficient in terms.items() if coefficient}
    return Expression(terms, constant, scope)


class Model:
    """Variables, rows by family and an objective to minimise (0 if none is given)."""

    def __init__(self) -> None:
        self._scope = _Scope()
        self._names: set[str] = set()
        self._rows: list[Row] = []
        self._counts: Counter[str] = Counter()
        self._objective: dict[int, int] = {}
        self._objective_constant = 0

    @property
    def variables(self) -> Sequence[Variable]:
        """All variables, in index order."""
        return self._scope.variables

    @property
    def rows(self) -> Sequence[Row]:
        """All rows, in the order in which they were added."""
        return self._rows

    @property
    def objective(self) -> Mapping[int, int]:
        """Objective coefficient (not 0) by variable index."""
        return self._objective

    @property
    def objective_constant(self) -> int:
        """Constant part of the objective."""
        return self._objective_constant

    def boolean(self, name: str) -> Variable:
        """Add a variable that is 0 or 1.

        Raises:
            ValueError: The name is empty or taken.
        """
        return self._variable(name, 0, 1, True)

    def integer(self, name: str, lower: int, upper: int) -> Variable:
        """Add an integer variable with ``lower <= variable <= upper``.

        Raises:
            TypeError: A bound is not a Python integer.
            ValueError: The bounds cross, or the name is empty or taken.
        """
        for bound in (lower, upper):
            if type(bound) is not int:
                raise TypeError(
                    f"bound {bound!r} of variable {name!r} must be an int, "
                    f"not {type(bound).__name__}"
                )
        if lower > upper:
            raise ValueError(f"bounds of variable {name!r} cross: {lower} > {upper}")
        return self._variable(name, lower, upper, False)

    def add(
        self,
        constraint: Constraint,
        when: Iterable[BooleanLiteral] = (),
        *,
        family: str,
    ) -> None:
        """Add a constraint, to hold where all literals of ``when`` are true.

        Raises:
            TypeError: Not a constraint (for instance a comparison of two plain
                integers), or ``when`` holds something else than Boolean literals.
            ValueError: A variable belongs to another model, or the family is empty.
        """
        if not isinstance(constraint, Constraint):
            raise TypeError(
                f"family {family!r}: expected a constraint, got {constraint!r}; "
                "a comparison without variables gives a plain truth value"
            )
        self._check_scope(constraint.scope, family)
        encoded = tuple([self._encode(literal, family) for literal in when])
        self._append(constraint.terms, constraint.sense, constraint.rhs, encoded, family)

    def exactly_one(self, literals: Iterable[BooleanLiteral], family: str) -> None:
        """Require that exactly one of the literals is true.

        Raises:
            TypeError: An item is not a Boolean literal.
            ValueError: A variable belongs to another model.
        """
        self._add_count(literals, "==", "exactly_one", family)

    def at_most_one(self, literals: Iterable[BooleanLiteral], family: str) -> None:
        """Require that at most one of the literals is true.

        Raises:
            TypeError: An item is not a Boolean literal.
            ValueError: A variable belongs to another model.
        """
        self._add_count(literals, "<=", "at_most_one", family)

    def implication(self, a: BooleanLiteral, b: BooleanLiteral, family: str) -> None:
        """Require that ``b`` is true where ``a`` is.

        Raises:
            TypeError: An argument is not a Boolean literal.
            ValueError: A variable belongs to another model.
        """
        literals = (self._encode(a, family), self._encode(b, family))
        constraint = a <= b
        self._append(constraint.terms, "<=", constraint.rhs, (), family, "implication", literals)

    def minimize(self, expression: Linear | int) -> None:
        """Set the objective, in place of an earlier one.

        Raises:
            TypeError: Not a linear expression or an integer.
            ValueError: A variable belongs to another model.
        """
        total = linear_sum([expression])
        self._check_scope(total.scope, "objective")
        self._objective = total.terms
        self._objective_constant = total.constant

    def families(self) -> dict[str, int]:
        """Return the number of rows by family, in order of first use."""
        return dict(Counter(row.family for row in self._rows))

    def without(self, families: Iterable[str] | str) -> Model:
        """Return a copy that lacks the rows of the given families.

        The copy has variables of its own, with the same indices and names.

        Raises:
            ValueError: A family does not occur in this model.
        """
        dropped = {families} if isinstance(families, str) else set(families)
        unknown = dropped - set(self.families())
        if unknown:
            raise ValueError(f"no such constraint family: {', '.join(sorted(unknown))}")
        copy = Model()
        for variable in self.variables:
            copy._variable(variable.name, variable.lower, variable.upper, variable.is_boolean)
        copy._rows = [row for row in self._rows if row.family not in dropped]
        copy._counts = self._counts.copy()
        copy._objective = self._objective.copy()
        copy._objective_constant = self._objective_constant
        return copy

    def check_magnitudes(self) -> None:
        """Check that every row and the objective stay far from overflow.

        Raises:
            MagnitudeError: In the named row, the right-hand side plus the sum of
                |coefficient| times the widest of |lower|, |upper| and the range of
                each variable reaches 2**53.
        """
        widths = [
            max(abs(variable.lower), abs(variable.upper), variable.upper - variable.lower)
            for variable in self.variables
        ]
        for row in self._rows:
            _check_magnitude(row.name, row.terms, row.rhs, widths)
        _check_magnitude("objective", self._objective, self._objective_constant, widths)

    def evaluate(self, assignment: Sequence[int] | Mapping[int, int]) -> Evaluation:
        """Price an assignment exactly and list every row and bound that it breaks.

        Args:
            assignment: One integer per variable, in index order or by index.

        Raises:
            TypeError: A value is not a Python integer.
            ValueError: A variable has no value, or there are too many values.
        """
        values = self._values(assignment)
        violations: list[Violation] = []
        for variable, value in zip(self.variables, values, strict=True):
            excess = max(variable.lower - value, value - variable.upper)
            if excess > 0:
                violations.append(Violation(f"bounds of {variable.name}", "bounds", excess))
        for row in self._rows:
            if row.when and not all(_holds(literal, values) for literal in row.when):
                continue
            activity = 0
            for index, coefficient in row.terms.items():
                activity += coefficient * values[index]
            excess = activity - row.rhs
            if row.sense == ">=":
                excess = -excess
            elif row.sense == "==":
                excess = abs(excess)
            if excess > 0:
                violations.append(Violation(row.name, row.family, excess))
        objective = self._objective_constant + sum(
            coefficient * values[index] for index, coefficient in self._objective.items()
        )
        return Evaluation(objective, tuple(violations))

    def fingerprint(self) -> str:
        """Return the SHA-256 of variables, rows and objective, the same on every run."""
        digest = hashlib.sha256(b"milp-model-1\n")
        for v in self.variables:
            digest.update(f"v {v.name!r} {v.lower} {v.upper} {v.is_boolean:d}\n".encode())
        for row in self._rows:
            terms, *rest = row.key()
            digest.update(f"r {sorted(terms.items())} {rest!r}\n".encode())
        objective = sorted(self._objective.items())
        digest.update(f"o {objective} {self._objective_constant}\n".encode())
        return digest.hexdigest()

    def size(self) -> ModelSize:
        """Return the counts of variables, rows and coefficients."""
        booleans = sum(variable.is_boolean for variable in self.variables)
        return ModelSize(
            booleans=booleans,
            integers=len(self.variables) - booleans,
            rows=len(self._rows),
            enforced_rows=sum(bool(row.when) for row in self._rows),
            terms=sum(len(row.terms) for row in self._rows),
            rows_by_family=self.families(),
        )

    def __getstate__(self) -> dict[str, Any]:
        return {
            "variables": [(v.name, v.lower, v.upper, v.is_boolean) for v in self.variables],
            "rows": [row.key() for row in self._rows],
            "counts": dict(self._counts),
            "objective": (self._objective, self._objective_constant),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        Model.__init__(self)
        for name, lower, upper, is_boolean in state["variables"]:
            self._variable(name, lower, upper, is_boolean)
        self._rows = [Row(*key) for key in state["rows"]]
        self._counts = Counter(state["counts"])
        self._objective, self._objective_constant = state["objective"]

    def _variable(self, name: str, lower: int, upper: int, is_boolean: bool) -> Variable:
        if not name:
            raise ValueError("a variable needs a name")
        if name in self._names:
            raise ValueError(f"the variable name {name!r} is taken")
        self._names.add(name)
        variables = self._scope.variables
        variable = Variable(len(variables), name, lower, upper, is_boolean, self._scope)
        variables.append(variable)
        return variable

    def _append(
        self,
        terms: dict[int, int],
        sense: Sense,
        rhs: int,
        when: tuple[int, ...],
        family: str,
        kind: Kind = "linear",
        literals: tuple[int, ...] = (),
    ) -> None:
        if not family:
            raise ValueError("a constraint needs a family")
        ordinal = self._counts[family]
        self._counts[family] = ordinal + 1
        self._rows.append(Row(terms, sense, rhs, when, family, ordinal, kind, literals))

    def _add_count(
        self, literals: Iterable[BooleanLiteral], sense: Sense, kind: Kind, family: str
    ) -> None:
        chosen = list(literals)
        encoded = tuple([self._encode(literal, family) for literal in chosen])
        total = linear_sum(chosen)
        self._append(total.terms, sense, 1 - total.constant, (), family, kind, encoded)

    def _encode(self, literal: BooleanLiteral, family: str) -> int:
        variable = literal.variable if isinstance(literal, NegatedVariable) else literal
        if not isinstance(variable, Variable):
            raise TypeError(f"family {family!r}: {literal!r} is not a Boolean literal")
        if not variable.is_boolean:
            raise TypeError(f"family {family!r}: variable {variable.name!r} is not Boolean")
        self._check_scope(variable.scope, family)
        return variable.index if literal is variable else -variable.index - 1

    def _check_scope(self, scope: _Scope | None, family: str) -> None:
        if scope is not None and scope is not self._scope:
            raise ValueError(f"family {family!r}: a variable belongs to another model")

    def _values(self, assignment: Sequence[int] | Mapping[int, int]) -> Sequence[int]:
        count = len(self.variables)
        if len(assignment) != count:
            raise ValueError(f"expected {count} values, got {len(assignment)}")
        values: Sequence[int]
        if isinstance(assignment, Mapping):
            missing = [v.name for v in self.variables if v.index not in assignment]
            if missing:
                raise ValueError(f"variable {missing[0]!r} has no value")
            values = [assignment[index] for index in range(count)]
        else:
            values = assignment
        for variable, value in zip(self.variables, values, strict=True):
            if type(value) is not int:
                raise TypeError(
                    f"value {value!r} of variable {variable.name!r} must be an int, "
                    f"not {type(value).__name__}"
                )
        return values


def _combine(left: Linear, right: Linear | int, sign: int) -> Expression:
    terms, constant, scope = left._parts()
    if type(right) is int:
        return Expression(terms, constant + sign * right, scope)
    if not isinstance(right, Linear):
        _refuse_coefficient(right, left)
    more, shift, other_scope = right._parts()
    if other_scope is not scope:
        scope = _same_scope(scope, other_scope)
    for index, coefficient in more.items():
        total = terms.get(index, 0) + sign * coefficient
        if total:
            terms[index] = total
        else:
            terms.pop(index, None)
    return Expression(terms, constant + sign * shift, scope)


def _compare(left: Linear, sense: Sense, right: Linear | int) -> Constraint:
    difference = _combine(left, right, -1)
    return Constraint(difference.terms, sense, -difference.constant, difference.scope)


def _same_scope(left: _Scope | None, right: _Scope | None) -> _Scope | None:
    if left is not None and right is not None and left is not right:
        raise ValueError("variables of different models are mixed in one expression")
    return right if left is None else left


def _refuse_coefficient(value: object, item: Linear) -> NoReturn:
    raise TypeError(
        f"{value!r} of type {type(value).__name__} next to {item._label()}: "
        "only Python integers are allowed in a model"
    )


def _holds(literal: int, values: Sequence[int]) -> bool:
    return values[literal] == 1 if literal >= 0 else values[-literal - 1] == 0


def _check_magnitude(
    name: str, terms: Mapping[int, int], constant: int, widths: Sequence[int]
) -> None:
    magnitude = abs(constant)
    for index, coefficient in terms.items():
        magnitude += abs(coefficient) * widths[index]
    if magnitude >= MAGNITUDE_LIMIT:
        raise MagnitudeError(f"{name} can reach {magnitude}, the limit is 2**53")


def _format(terms: Mapping[int, int], scope: _Scope | None, limit: int = 6) -> str:
    if scope is None or not terms:
        return "0"
    shown = [f"{c}*{scope.variables[i].name}" for i, c in list(terms.items())[:limit]]
    more = f" + {len(terms) - limit} more" if len(terms) > limit else ""
    return " + ".join(shown) + more
