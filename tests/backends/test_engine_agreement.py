"""CP-SAT, CBC and enumeration give the same answers on random small models."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from formulations.algebra import Model, linear_sum
from planner.backends import (
    Engine,
    EngineOptions,
    EnginePool,
    Limit,
    SolveStatus,
    available_backends,
)
from planner.backends.big_m import lower

NAMES = available_backends()


@pytest.fixture(scope="module")
def pool():
    """One warm engine per installed backend."""
    with EnginePool() as engines:
        yield engines


@st.composite
def models(draw) -> Model:
    """Models of 5 to 8 variables with enforced, logical and plain rows."""
    model = Model()
    literals = []
    for index in range(draw(st.integers(3, 5))):
        variable = model.boolean(f"b{index}")
        literals += [variable, ~variable]
    integers = []
    for index in range(draw(st.integers(2, 3))):
        low = draw(st.integers(-4, 3))
        integers.append(model.integer(f"x{index}", low, low + draw(st.integers(0, 3))))
    items = literals + integers
    coefficients = st.lists(st.integers(-5, 5), min_size=len(items), max_size=len(items))
    some_literals = st.lists(st.sampled_from(literals), max_size=3, unique_by=id)

    def expression():
        return linear_sum(c * item for c, item in zip(draw(coefficients), items, strict=True))

    for index in range(draw(st.integers(1, 5))):
        total, rhs = expression(), draw(st.integers(-12, 12))
        sense = draw(st.sampled_from(["<=", ">=", "=="]))
        constraint = {"<=": total <= rhs, ">=": total >= rhs, "==": total == rhs}[sense]
        model.add(constraint, when=draw(some_literals), family=f"row{index}")
    if draw(st.booleans()):
        model.exactly_one(draw(some_literals), "one")
    if draw(st.booleans()):
        model.at_most_one(draw(some_literals), "few")
    if draw(st.booleans()):
        model.implication(draw(st.sampled_from(literals)), draw(st.sampled_from(literals)), "imply")
    if draw(st.booleans()):
        scale = draw(st.sampled_from([1, 7, 1000]))
        model.minimize(scale * expression() + draw(st.integers(-(10**9), 10**9)))
    return model


def enumerate_optimum(model: Model) -> int | None:
    """The optimum by trying every assignment, or None."""
    ranges = [range(v.lower, v.upper + 1) for v in model.variables]
    evaluations = map(model.evaluate, product(*ranges))
    return min((e.objective for e in evaluations if e.feasible), default=None)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(model=models(), data=st.data())
def test_engines_agree_with_enumeration(pool, model, data):
    """Value and feasibility agree, without and with a cutoff next to the optimum."""
    best = enumerate_optimum(model)
    for name in NAMES:
        result = pool.engine(name).solve(model)
        if best is None:
            assert result.status is SolveStatus.INFEASIBLE, f"{result.message}\n{result.log}"
        else:
            assert result.status is SolveStatus.OPTIMAL, f"{result.message}\n{result.log}"
            assert result.objective == result.bound == best
            assert model.evaluate(result.values).feasible
        assert result.trusted == (name == "cp-sat")
    if best is None:
        return
    name = data.draw(st.sampled_from(NAMES))
    step = data.draw(st.integers(-1, 1))
    result = pool.engine(name).solve(model, EngineOptions(objective_upper=best + step))
    if step < 0:
        assert (result.status, result.limit) == (SolveStatus.NO_SOLUTION, Limit.CUTOFF)
        assert result.bound == best
    else:
        assert result.status is SolveStatus.OPTIMAL
        assert result.objective == best


@settings(max_examples=80, deadline=None, derandomize=True)
@given(model=models(), data=st.data())
def test_big_m_lowering_has_the_same_points(model, data):
    """A point is feasible in the model exactly if it is in the lowered program."""
    program = lower(model)
    point = [data.draw(st.integers(v.lower, v.upper)) for v in model.variables]
    shifted = [value - low for value, low in zip(point, program.lowers, strict=True)]
    holds = not program.impossible
    for row in program.rows:
        activity = sum(c * shifted[index] for index, c in row.terms.items())
        holds &= {
            "<=": activity <= row.rhs, ">=": activity >= row.rhs, "==": activity == row.rhs,
        }[row.sense]  # fmt: skip
    evaluation = model.evaluate(point)
    assert holds == evaluation.feasible
    value = sum(c * shifted[index] for index, c in program.objective.items())
    assert program.offset + program.scale * value == evaluation.objective
    assert program.model_values(shifted) == tuple(point)


def test_big_m_is_the_largest_violation():
    """M is exact for the row: not larger than the bounds make needed."""
    model = Model()
    a, b = model.boolean("a"), model.boolean("b")
    x = model.integer("x", 10, 30)
    model.add(2 * x <= 25, when=[a, ~b], family="f")
    model.add(x >= 10, when=[a], family="always")
    (row,) = lower(model).rows
    # Shifted, 2 x' <= 5 with x' <= 20: M = 40 - 5.
    assert row.terms == {2: 2, 0: 35, 1: -35}
    assert row.rhs == 5 + 35


@pytest.mark.parametrize("name", NAMES)
def test_models_without_variables_and_rows_without_terms(pool, name):
    """Corner cases that engines dislike get the plain answer."""
    engine = pool.engine(name)
    assert engine.solve(Model()).status is SolveStatus.OPTIMAL
    model = Model()
    a = model.boolean("a")
    model.boolean("unused")
    model.add(a - a <= 3, family="true")
    model.add(a - a >= 3, when=[a], family="false")
    model.minimize(-5 * a)
    assert engine.solve(model).objective == 0
    model.add(a - a >= 1, family="never")
    assert engine.solve(model).status is SolveStatus.INFEASIBLE


@pytest.mark.parametrize("name", NAMES)
def test_known_bounds_and_hints_do_not_change_the_value(pool, name):
    """A known lower bound ends the search; a feasible hint is accepted."""
    model = Model()
    x = [model.integer(f"x{i}", 0, 5) for i in range(4)]
    model.add(linear_sum((i + 2) * v for i, v in enumerate(x)) >= 17, family="need")
    model.minimize(linear_sum((i + 3) * v for i, v in enumerate(x)))
    engine = pool.engine(name)
    plain = engine.solve(model)
    with_bound = engine.solve(model, EngineOptions(objective_lower=plain.objective))
    assert with_bound.status is SolveStatus.OPTIMAL
    assert with_bound.objective == plain.objective
    crossed = engine.solve(model, EngineOptions(objective_upper=3, objective_lower=9))
    assert (crossed.status, crossed.limit) == (SolveStatus.NO_SOLUTION, Limit.CUTOFF)
    if name != "highs":
        hint = dict(enumerate(plain.values))
        hinted = engine.solve(model, EngineOptions(hint=hint))
        assert hinted.objective == plain.objective


def test_fixing_the_optimum_and_forbidding_it(pool):
    """Fixing the optimum's decisions keeps the value; a case split has the parent's value."""
    model = Model()
    a = [model.boolean(f"a{i}") for i in range(6)]
    model.add(linear_sum((2 * i + 3) * v for i, v in enumerate(a)) >= 20, family="need")
    model.minimize(linear_sum((3 * i + 4) * v for i, v in enumerate(a)))
    with Engine("cp-sat") as engine:
        parent = engine.solve(model)
        halves = []
        for side in (0, 1):
            half = model.without([])
            half.add(half.variables[2] == side, family="split")
            halves.append(engine.solve(half).objective)
    assert min(halves) == parent.objective
