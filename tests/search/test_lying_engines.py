"""Engines that lie in every role of the search: no answer claims more than is true.

What an engine alone can know (that a case holds nothing) is the one lie that no plan at hand need
show; the answer then names the engine, and a second engine that is asked finds it out.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy.optimize
from scipy.optimize import OptimizeResult

from planner.backends import EnginePool
from planner.check import check_plan
from planner.instance.schema import Instance
from planner.layout import to_plan
from planner.plan import Degrees, Plan
from planner.problem import Problem
from planner.search import pairwise_solver
from planner.search import solve as search
from planner.search.result import SolveResult, SolveStatus
from planner.search.template_bound import whole_layers_engine
from planner.verification.verify import verify
from tests.brute_force import Pricer, enumerate_layouts
from tests.random_instances import random_instance

SEED = 10
"""Where some cases are left for the engine, and whole layers are asked for."""
GRACE_S = 0.2
HANG_LIMIT_S = 2.0
LIES = (
    "ValueTooLow",
    "BoundTooHigh",
    "FalseBound",
    "FalseInfeasible",
    "SecondBest",
    "Rounded",
    "Nothing",
    "Garbage",
    "Crash",
    "Hang",
    "OutOfMemory",
)
milp = scipy.optimize.milp


class Known(NamedTuple):
    """An instance, its optimum, the worst plan, and the worst outside the case of the optimum."""

    instance: Instance
    optimum_us: int
    degrees: Degrees
    poor: Plan
    elsewhere: Plan


@lru_cache
def known() -> Known:
    instance = random_instance(SEED)
    problem, pricer = Problem(instance), Pricer(instance)
    priced = [(pricer.time_us(x), x) for x in enumerate_layouts(instance) if pricer.fits(x)]
    best = min(priced, key=lambda item: item[0])[1]
    worst = max(priced, key=lambda item: item[0])[1]
    elsewhere = max(
        (item for item in priced if item[1].degrees != best.degrees), key=lambda item: item[0]
    )[1]
    optimum_us = min(time_us for time_us, _ in priced)
    poor, other = to_plan(problem, worst), to_plan(problem, elsewhere)
    return Known(instance, optimum_us, best.degrees, poor, other)


def holds_the_optimum(box: dict[str, Any]) -> bool:
    """Whether the case of the best plan is one of a box of the certificate."""
    case = known().degrees._asdict()
    return all(values is None or case[name] in values for name, values in box.items())


def lying(name: str) -> str:
    return f"tests.lying_backends:{name}"


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "EnginePool", partial(EnginePool, grace_s=GRACE_S))


@pytest.fixture
def no_heuristics(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search has no plans but those of engines and those it is given."""
    for module in (search, pairwise_solver):
        monkeypatch.setattr(module, "case_plans", lambda *_, **__: iter(()))


def answer(lie: str = "", **options: Any) -> SolveResult:
    options.setdefault("backend", "cp-sat")
    options.setdefault("formulation", "strong")
    limit_s = HANG_LIMIT_S if lie == "Hang" else None
    return search.solve(known().instance, workers=1, time_limit_s=limit_s, **options)


def assert_honest(result: SolveResult, *, named: str = "") -> None:
    """Nothing is claimed that is not so, but for what the reason says that an engine says."""
    case = known()
    assert result.status is not SolveStatus.INFEASIBLE
    if result.plan is not None:
        report = check_plan(case.instance, result.plan)
        assert report.feasible
        assert report.time_us == result.time_us
        assert result.time_us >= case.optimum_us
    if named and named in result.reason:
        return
    if result.status is SolveStatus.OPTIMAL:
        assert result.time_us == case.optimum_us
        assert not result.provenance["errors"]
    assert result.bound_us is None or result.bound_us <= case.optimum_us
    assert all(
        entry["bound_us"] <= case.optimum_us
        for entry in result.certificate["cases"]
        if entry["verdict"] == "open" and holds_the_optimum(entry["box"])
    )


def assert_verified(result: SolveResult) -> None:
    """``planner verify`` finds the document true."""
    verified = verify(known().instance, result.to_json())
    assert verified.accepted, verified.violations


# -- the engine that closes cases ----------------------------------------------------------


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.usefixtures("no_heuristics")
def test_the_prover_lies_where_a_poor_plan_is_known(
    lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The poor plan's own case is among those asked about, so that all of these are caught."""
    monkeypatch.setattr(search, "PROVER", lying(lie))
    result = answer(lie, start_plans=[known().poor])
    assert_honest(result)
    assert result.status is SolveStatus.FEASIBLE
    assert_verified(result)


@pytest.mark.parametrize("lie", ["FalseInfeasible", "FalseBound"])
@pytest.mark.usefixtures("no_heuristics")
def test_the_prover_lies_where_no_plan_is_known(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "PROVER", lying(lie))
    result = answer(lie)
    assert_honest(result, named="alone")
    assert result.status is SolveStatus.NO_SOLUTION


@pytest.mark.parametrize("lie", ["FalseInfeasible", "BoundTooHigh", "SecondBest"])
def test_the_prover_lies_where_heuristics_find_the_optimum(
    lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "PROVER", lying(lie))
    assert_honest(answer(lie))


@pytest.mark.usefixtures("no_heuristics")
def test_one_false_word_is_named_and_a_second_engine_finds_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No plan at hand shows that the case of the optimum holds one."""
    monkeypatch.setattr(search, "PROVER", lying("FirstInfeasible"))
    case = known()
    believed = answer(start_plans=[case.elsewhere], formulation="plain")
    assert believed.time_us is not None
    assert believed.time_us > case.optimum_us
    assert "on the word of ortools" in believed.reason
    assert "alone" in believed.reason
    assert believed.certificate["grade"] == "engine"
    asked = answer(start_plans=[case.elsewhere], certify=True, formulation="plain")
    assert_honest(asked)
    assert asked.status is SolveStatus.FEASIBLE
    assert asked.time_us == case.optimum_us
    assert "a checked plan has" in asked.provenance["errors"][0]
    assert_verified(asked)


@pytest.mark.usefixtures("no_heuristics")
def test_two_engines_that_lie_alike_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "PROVER", lying("FirstInfeasible"))
    monkeypatch.setattr(search, "SECOND_ENGINE", lying("FirstInfeasibleToo"))
    result = answer(start_plans=[known().elsewhere], certify=True, formulation="plain")
    assert ", ortools 9" in result.reason
    assert "agrees" in result.reason


# -- the engine that confirms the winner ---------------------------------------------------


@pytest.mark.parametrize("lie", LIES)
def test_the_engine_of_the_winner_lies(lie: str) -> None:
    result = answer(lie, backend=lying(lie))
    assert_honest(result)
    assert result.time_us == known().optimum_us
    if lie != "Hang":
        assert result.status is SolveStatus.OPTIMAL or result.provenance["errors"]
    assert_verified(result)


# -- the second engine ---------------------------------------------------------------------


@pytest.mark.parametrize("lie", LIES)
def test_the_second_engine_lies(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "SECOND_ENGINE", lying(lie))
    result = answer(lie, certify=True)
    assert_honest(result)
    assert result.time_us == known().optimum_us
    assert_verified(result)


# -- HiGHS behind whole layers -------------------------------------------------------------


class MilpLie(NamedTuple):
    """What is said in place of what HiGHS found, and whether no plan need show it to be false."""

    change: Callable[[OptimizeResult], dict[str, Any]]
    hidden: bool = False


def _raise(found: OptimizeResult) -> dict[str, Any]:
    raise ValueError("no such option")


def _above(found: OptimizeResult) -> dict[str, Any]:
    return {"mip_dual_bound": 10 * (found.mip_dual_bound or 1.0)}


MILP_LIES = {
    "false infeasible": MilpLie(lambda _: {"status": 2, "x": None}, hidden=True),
    "bound without a point": MilpLie(lambda found: {**_above(found), "x": None}, hidden=True),
    "bound above its point": MilpLie(_above),
    "fractional": MilpLie(lambda found: {"x": None if found.x is None else found.x * 0.75}),
    "not all layers": MilpLie(
        lambda found: {"x": None if found.x is None else np.ones_like(found.x) + (found.x > 1)}
    ),
    "not a number": MilpLie(
        lambda found: {"x": np.full(3, np.nan), "mip_dual_bound": float("nan")}
    ),
    "nothing": MilpLie(lambda _: {"status": 4, "x": None, "mip_dual_bound": None}),
    "raises": MilpLie(_raise),
}


def lie_with(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def liar(*args: Any, **options: Any) -> OptimizeResult:
        found = milp(*args, **options)
        return OptimizeResult({**found, **MILP_LIES[name].change(found)})

    monkeypatch.setattr(scipy.optimize, "milp", liar)


@pytest.mark.parametrize("name", MILP_LIES)
@pytest.mark.usefixtures("no_heuristics")
def test_highs_lies(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lie_with(monkeypatch, name)
    result = answer(start_plans=[known().poor])
    assert_honest(result, named=whole_layers_engine() if MILP_LIES[name].hidden else "")
    assert_verified(result)


@pytest.mark.parametrize("name", [name for name, lie in MILP_LIES.items() if lie.hidden])
@pytest.mark.usefixtures("no_heuristics")
def test_the_prover_finds_out_that_highs_lies(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lie_with(monkeypatch, name)
    result = answer(start_plans=[known().poor], certify=True)
    assert_honest(result)
    assert_verified(result)


def test_what_compiled_code_prints_stays_off_stdout() -> None:
    """HiGHS prints with C's printf; here every call does, and one fails."""
    program = """
import ctypes, sys, scipy.optimize
from planner.search.quiet import stdout_to_stderr
from planner.search.solve import solve
from tests.random_instances import random_instance

honest, c = scipy.optimize.milp, ctypes.CDLL(None)
def noisy(*args, **options):
    c.printf(b"noise\\n")
    return honest(*args, **options)
scipy.optimize.milp = noisy
c.printf(b"before\\n")
print("start")
result = solve(random_instance(SEED), backend="cp-sat", workers=1)
try:
    with stdout_to_stderr(), stdout_to_stderr():
        c.printf(b"noise\\n")
        raise KeyError
except KeyError:
    print(result.status)
""".replace("SEED", str(SEED))
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout.split() == ["before", "start", "OPTIMAL"]
    assert done.stderr.count("noise") >= 2


def test_closed_streams_stay_closed() -> None:
    program = (
        "import os\nos.close(1)\nfrom planner.search.quiet import stdout_to_stderr\n"
        "with stdout_to_stderr():\n    pass\n"
        "try:\n    os.fstat(1)\nexcept OSError:\n    os._exit(7)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
    assert done.returncode == 7
