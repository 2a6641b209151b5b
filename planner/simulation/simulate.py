"""Simulate a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.check import check_plan, price_layout
from planner.cost.coefficients import case_coefficients
from planner.instance.schema import Instance
from planner.layout import Layout
from planner.legality import RefusedPlanError, layout_violations
from planner.pipeline.simulator import simulate_scenario
from planner.plan import Plan
from planner.problem import Problem
from planner.simulation.measures import Simulation, measure
from planner.simulation.scenario import TICKS_PER_US, PlanScenario

MOST_EVENTS = 500_000
"""Events up to which an answer is simulated without being asked for (a few seconds)."""


def simulate(instance: Instance, plan: Plan, *, record: bool = False) -> Simulation:
    """Let one iteration of a plan happen, event by event.

    Parameters
    ----------
    instance
        The training job.
    plan
        A plan that the checker accepts.
    record
        Whether to keep every service of a link, for a trace or a picture.

    Returns
    -------
    Simulation
        Iteration time, its causes, memory over time and use of the links.

    Raises
    ------
    RefusedPlanError
        If the plan breaks a rule.
    """
    report = check_plan(instance, plan)
    if not report.feasible:
        raise RefusedPlanError(report.violations)
    problem = Problem(instance)
    _, layout = layout_violations(problem, plan)
    assert layout is not None
    return simulate_layout(problem, layout, record=record)


def simulate_layout(problem: Problem, layout: Layout, *, record: bool = False) -> Simulation:
    """Simulate a well-formed layout, whether or not it fits into memory."""
    co = case_coefficients(problem, layout.degrees)
    plan = PlanScenario(problem, co, layout)
    scenario = plan.scenario()
    run = simulate_scenario(scenario, record=record)
    first_come = simulate_scenario(replace(scenario, turns={})) if scenario.turns else run
    return measure(plan, run, first_come.end, price_layout(problem, co, layout).time_us)


def simulate_if_short(
    problem: Problem, layout: Layout, *, record: bool = False
) -> Simulation | None:
    """Simulate a layout unless more than :data:`MOST_EVENTS` events would happen."""
    plan = _scenario(problem, layout)
    if plan.estimated_events > MOST_EVENTS:
        return None
    return simulate_layout(problem, layout, record=record)


def simulated_answer(
    problem: Problem, layout: Layout, time_us: int, others: Sequence[tuple[Layout, int]]
) -> tuple[float | None, list[str]]:
    """Simulate the best plan, and others that the model error may have put behind it.

    Together at most about :data:`MOST_EVENTS` events.

    Parameters
    ----------
    layout, time_us
        The plan with the smallest Z, and its Z.
    others
        Further plans with their Z, such as those that were the best before.  Those whose Z lies
        within the model error of the best are simulated, the smallest Z first.

    Returns
    -------
    tuple
        Simulated time in µs (None if it would take too long), and remarks: what was not simulated,
        and which plan simulates faster.
    """
    best = _scenario(problem, layout)
    left = MOST_EVENTS - best.estimated_events
    if left < 0:
        return None, [
            f"not simulated: about {best.estimated_events:,} events, the limit is {MOST_EVENTS:,}"
        ]
    own = _simulated_us(best)
    reach = time_us + abs(time_us - own)
    near = [pair for pair in others if pair[0] != layout and pair[1] <= reach]
    notes, skipped = [], 0
    for rival, rival_z in sorted(near, key=lambda pair: pair[1]):
        plan = _scenario(problem, rival)
        left -= plan.estimated_events
        if left < 0:
            skipped += 1
            continue
        found = _simulated_us(plan)
        if found < own:
            notes.append(
                f"a plan with Z = {rival_z} µs simulates faster, in {found:.0f} µs against "
                f"{own:.0f} µs: {rival.schedule}, pp = {rival.degrees.pp}, tp = "
                f"{rival.degrees.tp}, dp = {rival.degrees.dp}, {rival.placement_kind}"
            )
    if skipped:
        notes.append(f"{skipped} plans with Z within the model error were not simulated")
    return own, notes


def _scenario(problem: Problem, layout: Layout) -> PlanScenario:
    return PlanScenario(problem, case_coefficients(problem, layout.degrees), layout)


def _simulated_us(plan: PlanScenario) -> float:
    return plan.co.fixed_us + simulate_scenario(plan.scenario()).end / TICKS_PER_US
