"""The algebra: exact, loud on misuse, and stable."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from itertools import product

import numpy as np
import pytest

from formulations.algebra import MagnitudeError, Model, Violation, linear_sum


def small() -> Model:
    """A model with every kind of row; each test that needs all of them starts here."""
    model = Model()
    a, b, c = (model.boolean(name) for name in "abc")
    x = model.integer("x", -3, 9)
    model.add(2 * x + a <= 11, family="cap")
    model.add(x >= 4, when=[a, ~b], family="demand")
    model.add(x == -3, when=[~a], family="idle")
    model.exactly_one([a, b, ~c], "pick")
    model.at_most_one([a, c], "few")
    model.implication(b, c, "imply")
    model.minimize(5 * a - 2 * x + 7)
    return model


def test_expressions_collect_terms_and_constants():
    """Sums, differences and multiples give the obvious coefficients; zeros vanish."""
    model = Model()
    x, y = model.integer("x", 0, 9), model.integer("y", 0, 9)
    expression = 3 * x - (y - 2) * 2 + 1 - x
    assert (expression.terms, expression.constant) == ({0: 2, 1: -2}, 5)
    assert (x - x).terms == {}
    assert (-x).terms == {0: -1}
    assert (4 - x).terms == {0: -1} and (4 - x).constant == 4
    assert (x * 0).terms == {}
    total = linear_sum([x, 2 * y, 5, -x])
    assert (total.terms, total.constant) == ({1: 2}, 5)


def test_negation_counts_as_one_minus_variable():
    """In sums a negated Boolean is 1 - variable, and double negation is the variable."""
    model = Model()
    a = model.boolean("a")
    assert ~~a is a
    assert ((~a) * 3).terms == {0: -3} and ((~a) * 3).constant == 3
    assert linear_sum([~a, a]).terms == {}
    with pytest.raises(TypeError, match="'x' is not Boolean"):
        ~model.integer("x", 0, 1)


def test_comparisons_have_no_truth_value():
    """Chained comparisons, `and`, `in` and `if` fail instead of losing a constraint."""
    model = Model()
    a, b = model.integer("a", 0, 9), model.integer("b", 0, 9)
    with pytest.raises(TypeError, match="two constraints"):
        1 <= a <= 5  # noqa: B015
    with pytest.raises(TypeError, match="truth value"):
        (a <= 1) and (b <= 1)  # noqa: B018
    with pytest.raises(TypeError, match="truth value"):
        a in [b]  # noqa: B015
    with pytest.raises(TypeError, match="truth value"):
        a != b  # noqa: B015
    with pytest.raises(TypeError, match="'a' has no truth value"):
        bool(a)
    with pytest.raises(TypeError):
        a < 3  # noqa: B015
    with pytest.raises(TypeError, match="plain truth value"):
        model.add(3 <= 4, family="f")


@pytest.mark.parametrize("number", [2.0, True, np.int64(2), np.float64(2.0), "2", None], ids=repr)
def test_numbers_that_are_not_int_are_refused_by_name(number):
    """Floats, bools and numpy numbers are refused on either side, naming the variable."""
    model = Model()
    x = model.integer("speed", 0, 9)
    operations = [
        lambda: x * number,
        lambda: number * x,
        lambda: x + number,
        lambda: number + x,
        lambda: x - number,
        lambda: x <= number,
        lambda: x == number,
        lambda: (x + 1) * number,
        lambda: linear_sum([x, number]),
    ]
    for operation in operations:
        with pytest.raises(TypeError, match="speed"):
            operation()


@pytest.mark.parametrize("bounds", [(0.0, 1), (0, True), (np.int64(0), 1)])
def test_bounds_must_be_int(bounds):
    """Bounds that are no Python int are refused, naming the variable."""
    with pytest.raises(TypeError, match=r"bound .* of variable 'x'"):
        Model().integer("x", *bounds)


def test_bad_declarations_are_refused():
    """Crossed bounds, taken and empty names, empty and unknown families."""
    model = Model()
    x = model.integer("x", 0, 1)
    with pytest.raises(ValueError, match="cross: 2 > 1"):
        model.integer("y", 2, 1)
    with pytest.raises(ValueError, match="taken"):
        model.boolean("x")
    with pytest.raises(ValueError, match="needs a name"):
        model.boolean("")
    with pytest.raises(ValueError, match="needs a family"):
        model.add(x <= 1, family="")
    with pytest.raises(TypeError, match="'x' is not Boolean"):
        model.add(x <= 1, when=[x], family="f")
    with pytest.raises(TypeError, match="not a Boolean literal"):
        model.exactly_one([x + 1], "f")
    with pytest.raises(ValueError, match="no such constraint family: q"):
        model.without(["q"])


def test_models_must_not_be_mixed():
    """Variables of two models are refused in expressions, rows and objectives."""
    one, two = Model(), Model()
    x, y = one.boolean("x"), two.boolean("y")
    with pytest.raises(ValueError, match="different models"):
        x + y
    with pytest.raises(ValueError, match="different models"):
        linear_sum([x, y])
    with pytest.raises(ValueError, match="another model"):
        one.add(y <= 0, family="f")
    with pytest.raises(ValueError, match="another model"):
        one.add(x <= 0, when=[~y], family="f")
    with pytest.raises(ValueError, match="another model"):
        one.minimize(y)


def test_evaluate_is_exact_and_names_what_is_broken():
    """The objective is exact, and each broken row comes with its amount."""
    model = small()
    assert model.evaluate([1, 0, 1, 4]).violations == (Violation("few[0]", "few", 1),)
    result = model.evaluate([1, 1, 0, 10])
    assert result.objective == 5 - 20 + 7
    assert result.violations == (
        Violation("bounds of x", "bounds", 1),
        Violation("cap[0]", "cap", 10),
        Violation("pick[0]", "pick", 2),
        Violation("imply[0]", "imply", 1),
    )
    assert model.evaluate({0: 0, 1: 1, 2: 1, 3: -3}).feasible
    assert model.evaluate([0, 1, 1, 5]).violations == (Violation("idle[0]", "idle", 8),)


def test_evaluate_agrees_with_plain_python():
    """On every assignment, rows hold exactly where the plain conditions do."""
    model = small()
    for a, b, c, x in product((0, 1), (0, 1), (0, 1), range(-3, 10)):
        expected = (
            2 * x + a <= 11
            and (not (a and not b) or x >= 4)
            and (a or x == -3)
            and a + b + (1 - c) == 1
            and a + c <= 1
            and (not b or c)
        )
        assert model.evaluate((a, b, c, x)).feasible == bool(expected)


def test_evaluate_refuses_incomplete_or_rounded_points():
    """Missing values and values that are no int are errors, not guesses."""
    model = small()
    with pytest.raises(ValueError, match="expected 4 values, got 3"):
        model.evaluate([0, 0, 0])
    with pytest.raises(ValueError, match="'x' has no value"):
        model.evaluate({0: 0, 1: 0, 2: 0, 4: 0})
    with pytest.raises(TypeError, match="'x' must be an int, not float"):
        model.evaluate([0, 0, 0, 1.0])


def test_without_drops_families_and_keeps_the_original():
    """Every family can be dropped; names of the remaining rows do not change."""
    model = small()
    before = model.fingerprint()
    assert model.families() == {
        "cap": 1, "demand": 1, "idle": 1, "pick": 1, "few": 1, "imply": 1,
    }  # fmt: skip
    for family in model.families():
        fewer = model.without(family)
        assert family not in fewer.families()
        assert len(fewer.rows) == len(model.rows) - 1
        assert fewer.objective == model.objective
        assert fewer.fingerprint() != before
    assert model.fingerprint() == before
    copy = model.without([])
    assert copy.fingerprint() == before
    copy.add(copy.variables[0] <= 0, family="cap")
    assert copy.rows[-1].name == "cap[1]"
    assert len(model.rows) == 6


def test_magnitudes_are_checked_by_row_name():
    """A row that can reach 2**53 is named; one below passes."""
    model = Model()
    x = model.integer("x", 0, 2**20)
    model.add(2**32 * x <= 5, family="fine")
    model.check_magnitudes()
    model.add(2**33 * x <= 5, family="wide")
    with pytest.raises(MagnitudeError, match=r"wide\[0\]"):
        model.check_magnitudes()
    huge = Model()
    huge.minimize(huge.integer("x", 0, 1) + 2**53)
    with pytest.raises(MagnitudeError, match="objective"):
        huge.check_magnitudes()


def test_pickle_keeps_everything():
    """A model survives a pickle with the same fingerprint, and stays usable."""
    model = small()
    copy = pickle.loads(pickle.dumps(model))
    assert copy.fingerprint() == model.fingerprint()
    assert copy.size() == model.size()
    copy.add(copy.variables[3] >= 0, when=[~copy.variables[0]], family="cap")
    assert copy.rows[-1].name == "cap[1]"


def test_fingerprint_is_the_same_in_another_process_and_sees_changes():
    """The hash does not depend on the process, but on bounds, rows and objective."""
    code = "import test_algebra; print(test_algebra.small().fingerprint())"
    path = [str(entry) for entry in (*sys.path, __file__.rpartition("/")[0])]
    answer = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {path!r}; {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    model = small()
    assert answer.stdout.strip() == model.fingerprint()
    model.minimize(model.variables[0])
    assert model.fingerprint() != answer.stdout.strip()


def test_size_counts():
    """Variables by type, rows by family, enforced rows and terms."""
    size = small().size()
    assert (size.booleans, size.integers, size.rows, size.enforced_rows) == (3, 1, 6, 2)
    assert size.terms == 2 + 1 + 1 + 3 + 2 + 2
    assert size.rows_by_family["cap"] == 1


def test_building_is_fast():
    """100 000 terms are built in well under a second (with room for a busy machine)."""
    model = Model()
    variables = [model.boolean(f"v{index}") for index in range(1000)]
    start = time.process_time()
    for row in range(1000):
        model.add(
            linear_sum((row + k) % 9 * variables[(row * 7 + k) % 1000] for k in range(100)) <= 50,
            family="load",
        )
    assert time.process_time() - start < 1.0
