"""Constraint family: every stage fits into the memory of every site that runs it."""

from __future__ import annotations

from formulations.algebra import Linear, Variable, linear_sum
from formulations.plain.timing import stage_units, weighted
from formulations.plain.variables import PlainVariables
from planner.choices import ScheduleChoice
from planner.pipeline.memory import LiveVector, live_counts
from planner.pipeline.schedules import SCHEDULES, Template


def memory_rows(v: PlainVariables) -> None:
    """State, live activations and working set stay within the limit.

    .. math:: \\sum_u n_{s,u}\\,\\text{state}_{o,u} + \\sum_{k \\in s} \\sum_u n_{k,u}
        (\\text{full}_k\\,\\text{act}_{o,u} + \\text{held}_k\\,\\text{held}_{o,u}) +
        \\text{working}_o \\le \\text{limit}_d

    for every maximal vector (full, held) of live microbatches of the template, where schedule,
    warm-up and option are chosen and site ``d`` runs stage ``s``; and so do state and optimizer
    step, when nothing else is alive:

    .. math:: \\sum_u n_{s,u}\\,(\\text{state}_{o,u} + \\text{step}_{o,u}) + \\text{constant}
        \\le \\text{limit}_d
    """
    limits: dict[int, list[int]] = {}
    for d, limit in enumerate(v.co.limit_mib):
        limits.setdefault(limit, []).append(d)
    for choice, literal in v.schedule.items():
        chosen = [literal] if len(v.schedule) > 1 else []
        takes_warmup = SCHEDULES[choice.schedule].has_extra_warmup
        for s in range(v.pp):
            for extra, depth in v.in_flight[s].items():
                if extra and not takes_warmup:
                    continue
                when = chosen + ([depth] if takes_warmup and len(v.in_flight[s]) > 1 else [])
                vectors = live_counts(_template(v, choice, s, extra))[s]
                _stage_rows(v, choice, s, vectors, limits, when)
            _step_rows(v, choice, s, limits, chosen)


def _template(v: PlainVariables, choice: ScheduleChoice, stage: int, extra: int) -> Template:
    """A template whose stage has the given extra warm-up; its own order depends on nothing else."""
    degrees = v.co.degrees
    warmup = tuple(extra if s <= stage else 0 for s in range(degrees.pp))
    return Template(
        schedule=choice.schedule,
        pp=degrees.pp,
        v=degrees.virtual_stages,
        m=v.co.num_microbatches,
        run_length=choice.run_length,
        extra_warmup=warmup,
    )


def _stage_rows(
    v: PlainVariables,
    choice: ScheduleChoice,
    s: int,
    vectors: tuple[LiveVector, ...],
    limits: dict[int, list[int]],
    when: list[Variable],
) -> None:
    devices = v.devices(choice)
    chunks = [k for k, device in enumerate(devices) if device == s]
    has_head = devices[-1] == s
    split = SCHEDULES[choice.schedule].split_backward
    counts = stage_units(v, devices, s)
    for costs, options in v.option_groups(v.co.memory):
        state = weighted(counts, costs.state)
        working = costs.head_working if has_head else costs.working
        activation = costs.split_activation if split else costs.activation
        for full, held in vectors:
            live = linear_sum(
                weighted(
                    v.units[k],
                    tuple(
                        full[i] * a + held[i] * h
                        for a, h in zip(activation, costs.held, strict=True)
                    ),
                )
                for i, k in enumerate(chunks)
            )
            _within_limits(v, s, state + live + working, limits, when + options)


def _step_rows(
    v: PlainVariables,
    choice: ScheduleChoice,
    s: int,
    limits: dict[int, list[int]],
    when: list[Variable],
) -> None:
    counts = stage_units(v, v.devices(choice), s)
    for costs, options in v.option_groups(v.co.memory):
        if any(costs.step):
            unit = tuple(kept + step for kept, step in zip(costs.state, costs.step, strict=True))
            need = weighted(counts, unit) + costs.step_working
            _within_limits(v, s, need, limits, when + options)


def _within_limits(
    v: PlainVariables,
    s: int,
    need: Linear,
    limits: dict[int, list[int]],
    when: list[Variable],
) -> None:
    """``need`` is within the limit of every site that runs stage ``s``."""
    for limit, sites in limits.items():
        if len(sites) == v.num_sites:
            v.model.add(need <= limit, when, family="memory")
            continue
        for d in sites:
            v.model.add(need <= limit, [*when, v.host[s][d]], family="memory")
