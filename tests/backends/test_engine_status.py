"""Every status of every backend, and the rules by which a claim is believed."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from formulations.algebra import Model, linear_sum
from planner.backends import (
    BackendUnavailableError,
    Claim,
    Engine,
    EngineOptions,
    EnginePool,
    EngineResult,
    Limit,
    SolveStatus,
    available_backends,
    list_backends,
    select_backend,
    settle,
    solve_here,
)
from planner.backends import registry as registry_module
from planner.backends.cbc_log import CbcResult, parse_log
from planner.backends.result import safe_ceil

NAMES = available_backends()


@pytest.fixture(scope="module")
def pool():
    """One warm engine per installed backend."""
    with EnginePool() as engines:
        yield engines


def cover(count: int, seed: int = 1) -> Model:
    """A covering model: any point at the upper bounds is a plan; hard when large."""
    rng = random.Random(seed)
    model = Model()
    x = [model.integer(f"x{i}", 0, 9) for i in range(count)]
    for _ in range(count):
        model.add(
            linear_sum(rng.randint(1, 40) * v for v in x if rng.random() < 0.5) >= 40 * count,
            family="cover",
        )
    model.minimize(linear_sum(rng.randint(50, 99) * v for v in x))
    return model


def parity(count: int) -> Model:
    """No plan, but the relaxation has one: a sum of even numbers is odd."""
    model = Model()
    a = [model.boolean(f"a{i}") for i in range(count)]
    b = [model.boolean(f"b{i}") for i in range(count)]
    for left, right in zip(a, b, strict=True):
        model.implication(left, ~right, "apart")
    model.add(2 * linear_sum(a) + 2 * linear_sum(b) == count + 1 - count % 2, family="odd")
    model.minimize(linear_sum(a))
    return model


def clash() -> Model:
    """No plan, and bounds alone show it."""
    model = Model()
    x = model.integer("x", 0, 3)
    model.add(x >= 4, family="high")
    return model


@pytest.mark.parametrize("name", NAMES)
def test_optimal_and_infeasible(pool, name):
    """A proof is an integer equation; infeasibility carries no plan and no bound."""
    engine = pool.engine(name)
    result = engine.solve(cover(4))
    assert result.status is SolveStatus.OPTIMAL
    assert result.objective == result.bound and result.gap == 0
    assert result.limit is Limit.NONE
    assert result.engine == name and result.log and result.engine_version
    assert result.model_fingerprint == cover(4).fingerprint()
    for model in (parity(3), clash()):
        result = engine.solve(model)
        assert result.status is SolveStatus.INFEASIBLE, result.message
        assert result.values is None and result.objective is None and result.bound is None


@pytest.mark.parametrize("name", NAMES)
def test_time_limit_with_and_without_plan(pool, name):
    """At a limit the status is FEASIBLE or NO_SOLUTION, never OPTIMAL, limit TIME."""
    model = cover(60)
    result = pool.engine(name).solve(model, EngineOptions(time_limit_s=1.0))
    assert (result.status, result.limit) == (SolveStatus.FEASIBLE, Limit.TIME), result.message
    assert result.bound is not None and result.bound < result.objective
    assert model.evaluate(result.values).feasible
    larger = cover(150)
    result = pool.engine(name).solve(larger, EngineOptions(time_limit_s=0.0001))
    assert result.limit is Limit.TIME, result.message
    if result.values is None:
        assert result.status is SolveStatus.NO_SOLUTION
    else:
        assert result.status is SolveStatus.FEASIBLE
        assert larger.evaluate(result.values).feasible


@pytest.mark.parametrize("name", ["cp-sat", "cbc"])
def test_a_hinted_plan_is_not_lost(pool, name):
    """With a limit too small for the solver, the hinted plan comes back, checked."""
    model = cover(150)
    hint = dict.fromkeys(range(150), 9)
    options = EngineOptions(time_limit_s=0.0001, hint=hint)
    result = pool.engine(name).solve(model, options)
    assert result.status is SolveStatus.FEASIBLE
    assert result.objective <= model.evaluate([9] * 150).objective


@pytest.mark.parametrize("name", NAMES)
def test_invalid_models_are_errors(pool, name):
    """A model whose sums can overflow is refused with the row's name."""
    model = Model()
    x = model.integer("x", 0, 2**30)
    model.add(2**30 * x <= 5, family="wide")
    result = pool.engine(name).solve(model)
    assert result.status is SolveStatus.ERROR
    assert "wide[0]" in result.message


def test_unsupported_options_are_errors(pool):
    """An option that a backend lacks is an error, not ignored."""
    model = cover(3)
    cases = [
        ("cp-sat", EngineOptions(relaxation=True), "relaxation"),
        ("cbc", EngineOptions(workers=2), "workers"),
        ("cbc", EngineOptions(hint={0: 1}), "all 3 variables"),
        ("cp-sat", EngineOptions(hint={7: 1}), "7"),
    ]
    for name, options, text in cases:
        result = pool.engine(name).solve(model, options)
        assert result.status is SolveStatus.ERROR
        assert text in result.message
    here = solve_here(
        registry_module.load_backend("cp-sat"), model, EngineOptions(memory_limit_bytes=1 << 40)
    )
    assert here.status is SolveStatus.ERROR and "Engine" in here.message


@pytest.mark.parametrize(
    "options",
    [{"time_limit_s": 0}, {"workers": 0}, {"seed": -1}, {"memory_limit_bytes": 0}],
    ids=str,
)
def test_options_out_of_range(options):
    """Options outside their range are refused when they are made."""
    with pytest.raises(ValueError, match=next(iter(options))):
        EngineOptions(**options)


def test_relaxation_of_cbc(pool):
    """The relaxation gives a value, the bound that follows, and no plan."""
    model = Model()
    x, y = model.integer("x", 2, 9), model.integer("y", 0, 9)
    model.add(2 * x + 3 * y >= 12, family="need")
    model.minimize(30 * x + 20 * y + 100)
    result = pool.engine("cbc").solve(model, EngineOptions(relaxation=True))
    assert result.relaxation_value == pytest.approx(100 + 60 + 20 * 8 / 3, abs=1e-5)
    assert result.bound == 220 and result.values is None and not result.trusted
    assert result.status is SolveStatus.NO_SOLUTION
    assert pool.engine("cbc").solve(clash(), EngineOptions(relaxation=True)).status is (
        SolveStatus.INFEASIBLE
    )


@pytest.mark.parametrize("width", [10**8, 10**9, 10**10, 10**11])
def test_big_m_trickle_is_never_a_wrong_optimum(width):
    """A huge M can make CBC err on a closed gate: only the right answer is a proof."""
    model = Model()
    gate = model.boolean("gate")
    flow = model.integer("flow", 0, width)
    model.add(flow >= 100, family="need")
    model.add(flow <= 0, when=[~gate], family="gate")
    model.minimize(gate)
    with EnginePool() as engines:
        cbc = engines.engine("cbc").solve(model)
        if cbc.status is SolveStatus.OPTIMAL:
            assert (cbc.objective, cbc.bound) == (1, 1)
        else:
            assert cbc.status in (SolveStatus.ERROR, SolveStatus.INFEASIBLE)
            assert cbc.values is None
        assert not cbc.trusted
        cp_sat = engines.engine("cp-sat").solve(model)
        assert (cp_sat.status, cp_sat.objective) == (SolveStatus.OPTIMAL, 1)


def test_digits_that_cbc_prints_away_are_recovered(pool):
    """Values above eight digits come back exactly."""
    model = Model()
    x = model.integer("x", 0, 10**10)
    y = model.integer("y", 5, 9)
    model.add(x - y >= 1234567891, family="need")
    model.minimize(x)
    result = pool.engine("cbc").solve(model)
    assert result.status is SolveStatus.OPTIMAL, result.message
    assert (result.values, result.bound) == ((1234567896, 5), 1234567896)


def test_cbc_gets_zero_gaps_and_no_threads(pool):
    """The command line that CBC reports has the options that a proof needs."""
    result = pool.engine("cbc").solve(cover(4), EngineOptions(time_limit_s=5, seed=3))
    command = result.parameters["command"]
    for option in ("-ratio 0 ", "-allow 0 ", "-threads 0 ", "-timeMode elapsed", "CbcSeed 4"):
        assert option in command
    assert "CBC 2.10.3" in result.engine_version


def test_cp_sat_infeasibility_is_confirmed(pool):
    """The second run, without presolve, is reported."""
    result = pool.engine("cp-sat").solve(clash())
    assert result.trusted and "confirmed by a second run" in result.message


def test_cp_sat_streams_plans_and_bounds(pool):
    """Progress reports carry checked plans, and objectives never get worse."""
    model = cover(12)
    reports = []
    result = pool.engine("cp-sat").solve(
        model, EngineOptions(), lambda *report: reports.append(report)
    )
    objectives = [objective for objective, _, _ in reports if objective is not None]
    assert objectives == sorted(objectives, reverse=True)
    assert objectives[-1] == result.objective
    for objective, bound, values in reports:
        if values is not None:
            assert model.evaluate(values).objective == objective
        if bound is not None:
            assert bound <= result.objective


def test_cp_sat_is_deterministic_with_one_worker(pool):
    """Two runs with the same seed agree on value and bound."""
    first, second = (pool.engine("cp-sat").solve(cover(8)) for _ in range(2))
    assert (first.objective, first.bound) == (second.objective, second.bound)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Result - Optimal solution found\n", CbcResult.OPTIMAL),
        ("Result - Optimal solution found (within gap tolerance)\n", CbcResult.WITHIN_GAP),
        ("Result - Stopped on time limit\n", CbcResult.TIME),
        ("Result - Problem proven infeasible\n", CbcResult.INFEASIBLE),
        ("Problem is infeasible - 0.00 seconds\n", CbcResult.INFEASIBLE),
        ("Result - User ctrl-c\n", CbcResult.FAILED),
        ("Result - Something new\n", CbcResult.UNKNOWN),
        ("Optimal objective 3 - 1 iterations\n", CbcResult.UNKNOWN),
        ("", CbcResult.UNKNOWN),
    ],
)
def test_cbc_result_texts(text, expected):
    """Known texts have one meaning; every other text is UNKNOWN."""
    assert parse_log(text).result is expected


@pytest.mark.parametrize("text", ["Pre-processing says infeasible or unbounded", "Optimal"])
def test_cbc_proves_nothing_near_its_time_limit(text):
    """CBC says infeasible (or optimal) also where its preprocessing runs out of time."""
    line = "Result - Optimal solution found" if text == "Optimal" else text
    log = f"{line}\nTotal time (CPU seconds): 0.90 (Wallclock seconds): 0.90\n"
    before = parse_log(log)
    assert before.result in (CbcResult.INFEASIBLE, CbcResult.OPTIMAL)
    assert before.at_limit(None) == before.at_limit(2.0) == before
    assert before.at_limit(1.0).result is CbcResult.DOUBTFUL


def test_safe_ceil():
    """A bound is rounded up, but not past an integer that came out slightly high."""
    assert [safe_ceil(b) for b in (4.0, 4.1, 4.0000000001, 3.9999999999, -0.5)] == [4, 5, 4, 4, 0]
    assert safe_ceil(2.0**52 + 1) == 2**52 + 1


def simple() -> Model:
    """Minimise x in 0..9 with x >= 2."""
    model = Model()
    x = model.integer("x", 0, 9)
    model.add(x >= 2, family="need")
    model.minimize(x)
    return model


def judged(claim: Claim, **options) -> EngineResult:
    return settle(simple(), EngineOptions(**options), claim, engine="e", wall_time_s=0.0)


@pytest.mark.parametrize(
    ("claim", "options", "status", "text"),
    [
        (Claim(values=(2,), bound=2, finished=True), {}, SolveStatus.OPTIMAL, ""),
        (Claim(values=(2,), bound=1), {}, SolveStatus.FEASIBLE, ""),
        (Claim(values=(2,), bound=1, finished=True), {}, SolveStatus.ERROR, "its bound is 1"),
        (Claim(values=(1,), bound=1, finished=True), {}, SolveStatus.ERROR, "need[0] by 1"),
        (Claim(values=(3,), bound=4), {}, SolveStatus.ERROR, "above the objective"),
        (Claim(values=(3,), objective=2, bound=2), {}, SolveStatus.ERROR, "states objective 2"),
        (Claim(infeasible=True), {"hint": {0: 5}}, SolveStatus.ERROR, "objective 5 exists"),
        (Claim(bound=6), {"hint": {0: 5}}, SolveStatus.ERROR, "bound 6 is above"),
        (Claim(bound=1), {"hint": {0: 5}}, SolveStatus.FEASIBLE, "hinted plan"),
        (Claim(bound=1), {"hint": {0: 1}}, SolveStatus.NO_SOLUTION, ""),
        (Claim(values=(5,)), {"objective_upper": 4}, SolveStatus.ERROR, "above the cutoff"),
        (Claim(infeasible=True), {}, SolveStatus.INFEASIBLE, ""),
        (Claim(), {}, SolveStatus.NO_SOLUTION, ""),
        (Claim(failure="x"), {}, SolveStatus.ERROR, "x"),
        (Claim(values=(3,), limit=Limit.INTERRUPT), {}, SolveStatus.INTERRUPTED, ""),
    ],
)
def test_claims_are_checked(claim, options, status, text):
    """A claim is graded by the plan's exact value and the integer bound, nothing else."""
    result = judged(claim, **options)
    assert result.status is status
    assert text in result.message


def test_results_cannot_contradict_their_status():
    """The type refuses OPTIMAL without equality, and plans where there can be none."""
    good = judged(Claim(values=(2,), bound=2, finished=True))
    fields = {name: getattr(good, name) for name in EngineResult.__dataclass_fields__}
    for change in (
        {"bound": 1},
        {"values": None},
        {"values": None, "objective": None},
        {"status": SolveStatus.INFEASIBLE},
    ):
        with pytest.raises(ValueError, match=r"values|OPTIMAL|INFEASIBLE"):
            EngineResult(**{**fields, **change})


def test_registry(monkeypatch):
    """Names resolve, missing solvers say what to install, and auto takes the first."""
    assert select_backend() == select_backend("auto") == "cp-sat"
    assert {info.name for info in list_backends()} == {"cp-sat", "cbc", "highs"}
    with pytest.raises(BackendUnavailableError, match="unknown backend 'nope'"):
        select_backend("nope")
    monkeypatch.setattr("planner.backends.cp_sat.package_version", lambda name: None)
    assert select_backend("auto") != "cp-sat"
    with pytest.raises(BackendUnavailableError, match="pip install ortools"):
        select_backend("cp-sat")


@pytest.mark.parametrize(("version", "text"), [(None, "pip install"), ("1.14.0", "wrong plans")])
def test_highs_missing_or_wrong(monkeypatch, version, text):
    """A missing highspy and the release with wrong optima are refused in words."""
    monkeypatch.setattr("planner.backends.highs.package_version", lambda name: version)
    with pytest.raises(BackendUnavailableError, match=text):
        select_backend("highs")
    with Engine("highs") as engine:
        result = engine.solve(simple())
    assert result.status is SolveStatus.ERROR and text in result.message


def test_parent_stays_light():
    """Importing the backends imports no solver."""
    code = (
        "import sys, planner.backends as b; b.list_backends(); "
        "print({'ortools', 'pulp', 'highspy', 'numpy', 'pandas'} & set(sys.modules))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.strip() == "set()"
