"""What proofs by different engines have to agree on."""

from __future__ import annotations

import time

from planner.backends import Engine, Limit
from planner.check import check_plan
from planner.choices import CaseChoices
from planner.cost.coefficients import case_coefficients
from planner.instance.schema import Instance
from planner.plan import Degrees, Plan
from planner.problem import Problem
from planner.search.bounds import Bounds, CaseBounds
from planner.search.case_solver import CaseOutcome, CaseSolver
from planner.search.result import SolveResult, SolveStatus

ATTEMPT_LIMIT_S = 60.0
"""Time of one attempt."""
SLACK = 10
"""The last attempt looks for plans up to one part in so many above the optimum."""


def winning_case(
    instance: Instance, plan: Plan, optimum: int, engine: Engine, *, workers: int = 1
) -> CaseOutcome:
    """The degrees case of the best plan, solved as a model by an engine.

    How long an engine takes is a matter of chance, so it gets up to three equivalent models: with
    the optimum as cutoff and the choices whose bound allows it, with all choices, and with all
    choices and a cutoff above the optimum.  The first proof counts.
    """
    problem = Problem(instance)
    choices = CaseChoices(problem, case_coefficients(problem, plan.degrees))
    bounds = CaseBounds(Bounds(problem), choices)
    kept = [pair for pair in choices.pairs if bounds.choice(*pair).value_us <= optimum]
    attempts = [
        (choices.only(kept), optimum),
        (choices, optimum),
        (choices, optimum + optimum // SLACK),
    ]
    for alternatives, cutoff_us in attempts:
        solver = CaseSolver(problem, engine, workers=workers)
        outcome = solver.solve(alternatives, cutoff_us, deadline=time.monotonic() + ATTEMPT_LIMIT_S)
        if outcome.limit is not Limit.TIME:
            break
    return outcome


def tie_key(plan: Plan | None) -> tuple[int, int, Degrees] | None:
    """What decides between plans of equal Z: crossings, GPUs and degrees."""
    if plan is None:
        return None
    hosts = sum(part.last_stage - part.first_stage + 1 for part in plan.placement)
    moves = sum(flow.replicas for flow in plan.flows)
    return moves + hosts - plan.pp, plan.gpus_used, plan.degrees


def assert_settled(instance: Instance, result: SolveResult) -> None:
    """The result is a proof: OPTIMAL with Z = bound and an accepted plan, or INFEASIBLE."""
    certificate = result.certificate
    assert sum(entry["cases"] for entry in certificate["cases"]) == certificate["cases_total"]
    assert not result.provenance["errors"]
    if result.plan is None:
        assert result.status is SolveStatus.INFEASIBLE, result.reason
        assert all(entry["verdict"] != "open" for entry in certificate["cases"])
        return
    assert result.status is SolveStatus.OPTIMAL, result.reason
    assert result.bound_us == result.time_us
    assert all(entry["verdict"] != "open" for entry in certificate["cases"])
    report = check_plan(instance, result.plan)
    assert report.feasible, report.violations
    assert report.time_us == result.time_us
    assert sum(result.breakdown_us.values()) == result.time_us
