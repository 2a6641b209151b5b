"""Simulate a plan."""

from __future__ import annotations

from collections.abc import Sequence

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

MOST_EVENTS = 2_000_000
"""Events up to which an answer is simulated without being asked for (about 10 s)."""

MOST_RIVALS = 8
"""Plans simulated beside the best one."""


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
    run = simulate_scenario(plan.scenario(), record=record)
    return measure(plan, run, price_layout(problem, co, layout).time_us)


def simulated_us(problem: Problem, layout: Layout) -> float | None:
    """Iteration time alone, in µs; None where more than :data:`MOST_EVENTS` would happen."""
    plan = PlanScenario(problem, case_coefficients(problem, layout.degrees), layout)
    if plan.estimated_events > MOST_EVENTS:
        return None
    return plan.co.fixed_us + simulate_scenario(plan.scenario()).end / TICKS_PER_US


def simulated_answer(
    problem: Problem, layout: Layout, time_us: int, others: Sequence[tuple[Layout, int]]
) -> tuple[float | None, list[str]]:
    """Simulate the best plan, and others that the model error may have put behind it.

    Parameters
    ----------
    layout, time_us
        The plan with the smallest Z, and its Z.
    others
        Further plans with their Z, such as those that were the best before; at most the
        :data:`MOST_RIVALS` with the smallest Z within the model error are simulated.

    Returns
    -------
    tuple
        Simulated time in µs (None if it would take too long), and remarks: why there is no time,
        or that another plan simulates faster.
    """
    own = simulated_us(problem, layout)
    if own is None:
        return None, [f"not simulated: about {MOST_EVENTS:,} events are simulated at most"]
    error = abs(time_us - own) / own
    near = [pair for pair in others if pair[0] != layout and pair[1] <= time_us * (1 + error)]
    notes = []
    for rival, rival_z in sorted(near, key=lambda pair: pair[1])[:MOST_RIVALS]:
        found = simulated_us(problem, rival)
        if found is not None and found < own:
            notes.append(
                f"a plan with Z = {rival_z} µs simulates faster, in {found:.0f} µs against "
                f"{own:.0f} µs: {rival.schedule}, pp = {rival.degrees.pp}, tp = "
                f"{rival.degrees.tp}, dp = {rival.degrees.dp}, {rival.placement_kind}"
            )
    return own, notes
