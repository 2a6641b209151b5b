"""Synthesised schedules for the placement of a plan, beside the plan's own template."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from planner.backends import Engine
from planner.check import (
    StageMemory,
    chunk_units,
    dot,
    layout_durations,
    memory_of_layout,
    memory_to_json,
    share_durations,
)
from planner.cost.coefficients import CaseCoefficients, case_coefficients
from planner.export.torch_schedule import schedule_csv, table_cells
from planner.layout import Layout
from planner.pipeline.event_graph import Duration
from planner.pipeline.op_table import (
    OpTable,
    ScheduleProblem,
    Timeline,
    evaluate,
    fits_template,
    peak_memory,
    template_table,
    violations,
)
from planner.pipeline.ops import OpKind
from planner.pipeline.schedule_bound import schedule_bound
from planner.pipeline.schedules import SCHEDULES, Template, chunk_devices
from planner.problem import Problem
from planner.search.synthesis.synthesize import OnProgress, Synthesis, synthesize

MAX_OPS = 100_000
"""Pipelines with more ops are left out: one list schedule of so many takes seconds."""
LEAST_LIMIT_S = 1e-3
"""Time limit of a variant whose turn comes after the deadline: one list schedule."""
MAX_PLACEMENTS = 4
"""Plans whose placement is tried: the answer, then the last incumbents with other degrees."""


class Variant(NamedTuple):
    """One way to run the placement of a plan: chunks a device, split backward or not.

    ``layout`` is a legal layout whose schedule has this chunk map and backward; ``problem`` has the
    longest, ``relaxed`` the shortest time after the last op that any order can lead to.
    """

    layout: Layout
    problem: ScheduleProblem
    relaxed: ScheduleProblem
    fixed_us: int


@dataclass(frozen=True)
class SynthesizedSchedule:
    """A synthesised op table for one placement, with the event time of the table itself.

    Attributes
    ----------
    layout
        Degrees, placement and layers; its ``schedule`` names the chunk map alone.
    plan_time_us
        Z of the template plan with that placement.
    time_us, bound_us
        Z of the table, and what no table of the same placement, chunks and backward can beat.
    memory
        By stage and site, as for a plan.
    tried
        Every variant that was looked at, as plain data.
    """

    layout: Layout
    plan_time_us: int
    time_us: int
    bound_us: int
    problem: ScheduleProblem
    timeline: Timeline
    synthesis: Synthesis
    memory: tuple[StageMemory, ...]
    tried: tuple[dict[str, Any], ...]
    limit: str | None

    @property
    def proven(self) -> bool:
        """Whether no op table of this placement, chunks and backward is faster."""
        return self.time_us == self.bound_us

    @property
    def gap(self) -> float:
        """(Z − bound) ÷ Z."""
        return (self.time_us - self.bound_us) / self.time_us

    def csv(self) -> str:
        """The table as a schedule file of PyTorch."""
        return schedule_csv(self.problem, self.timeline)

    def to_json(self, tight_share: float) -> dict[str, Any]:
        """The block ``synthesized`` of the solve document (``docs/solve_document.md``)."""
        split = self.problem.weight is not None
        return {
            "iteration_time_s": self.time_us / 1e6,
            "lower_bound_s": self.bound_us / 1e6,
            "gap": self.gap,
            "proven": self.proven,
            "proof": self.synthesis.proof if self.proven else "open",
            "bound_rule": self.synthesis.rule,
            "template_time_s": self.plan_time_us / 1e6,
            "case": self.layout.degrees._asdict(),
            "chunk_map": SCHEDULES[self.layout.schedule].chunk_map,
            "split_backward": split,
            "layers_per_stage": list(self.layout.layers),
            "memory": memory_to_json(self.memory, tight_share),
            "method": self.synthesis.method,
            "limit": self.limit,
            "tried": list(self.tried),
            "rows": table_cells(self.timeline.table, split_backward=split),
        }


def synthesize_for_plans(
    problem: Problem,
    layouts: Sequence[tuple[int, Layout]],
    engine: Engine | None,
    *,
    time_limit_s: float,
    workers: int,
    seed: int,
    on_progress: OnProgress | None = None,
) -> SynthesizedSchedule | None:
    """Synthesise schedules for the placements of plans and return the fastest.

    Every variant gets its bound and list schedules first; then the engine works on the variants in
    the order of what is still possible, as long as their bound is below the best table.

    Parameters
    ----------
    problem
        The job.
    layouts
        Plans with their Z in µs, the answer first; at most ``MAX_PLACEMENTS`` are looked at.
    engine
        See :func:`~planner.search.synthesis.synthesize.synthesize`.
    time_limit_s
        For all variants together.

    Returns
    -------
    SynthesizedSchedule or None
        None where no variant fits in memory or in ``MAX_OPS``.
    """
    deadline = time.monotonic() + time_limit_s
    found: list[tuple[Variant, int, Synthesis]] = []
    limit: str | None = None
    for plan_time, layout in layouts[:MAX_PLACEMENTS]:
        for variant in variants(problem, layout):
            result = synthesize(
                variant.problem,
                starts=[*_own_start(variant.problem, layout), *template_starts(variant.problem)],
                time_limit_s=max(LEAST_LIMIT_S, deadline - time.monotonic()),
            )
            found.append((variant, plan_time, result))
            limit = limit or result.limit
            if result.limit is not None:
                break
        if limit is not None:
            break
    if not found:
        return None
    if engine is not None and limit is None:
        limit = _improve(found, engine, deadline, workers, seed, on_progress)
    finished = [_finished(problem, variant, result) for variant, _, result in found]
    best = min(range(len(found)), key=lambda i: (finished[i].time_us, i))
    variant, plan_time, result = found[best]
    time_us, bound_us, exact, timeline = finished[best]
    return SynthesizedSchedule(
        layout=variant.layout,
        plan_time_us=plan_time,
        time_us=time_us,
        bound_us=bound_us,
        problem=exact,
        timeline=timeline,
        synthesis=result,
        memory=_memory(problem, variant, timeline.table),
        tried=tuple(_tried(entry, numbers) for entry, numbers in zip(found, finished, strict=True)),
        limit=limit,
    )


def _improve(
    found: list[tuple[Variant, int, Synthesis]],
    engine: Engine,
    deadline: float,
    workers: int,
    seed: int,
    on_progress: OnProgress | None,
) -> str | None:
    """Let the engine work on the variants that can still win; returns what stopped it."""
    order = sorted(range(len(found)), key=lambda i: found[i][0].fixed_us + found[i][2].makespan_us)
    for place, i in enumerate(order):
        variant, plan_time, result = found[i]
        best = min(v.fixed_us + s.makespan_us for v, _, s in found)
        if variant.fixed_us + result.bound_us >= best and not (place == 0 and not result.proven):
            continue
        left = deadline - time.monotonic()
        if left <= 0:
            return "time"
        again = synthesize(
            variant.problem,
            engine=engine,
            time_limit_s=left / (len(order) - place) if place else left / 2,
            workers=workers,
            seed=seed,
            starts=[(result.method, result.timeline.table)],
            on_progress=on_progress,
        )
        if again.makespan_us <= result.makespan_us:
            found[i] = (variant, plan_time, again)
        if again.limit == "interrupt":
            return "interrupt"
    return "time" if time.monotonic() >= deadline else None


def variants(problem: Problem, layout: Layout) -> Iterator[Variant]:
    """The ways to run a placement.

    The plan's own chunks and backward; one chunk a device with a split and an unsplit backward;
    two in a V with a split one.
    """
    seen = set()
    others = (_with_chunks(layout, *way) for way in (("zb_h1", 1), ("1f1b", 1), ("zbv", 2)))
    for changed in (layout, *others):
        if changed is None:
            continue
        rules = SCHEDULES[changed.schedule]
        key = (changed.layers, rules.chunk_map, rules.split_backward)
        if key in seen:
            continue
        seen.add(key)
        co = case_coefficients(problem, changed.degrees)
        found = _variant(problem, co, changed)
        if found is not None and found.problem.num_ops <= MAX_OPS:
            yield found


def _with_chunks(layout: Layout, schedule: str, chunks: int) -> Layout | None:
    """The same placement with the layers of every stage in one or two chunks."""
    pp = layout.degrees.pp
    devices = chunk_devices(layout.schedule, pp, layout.degrees.virtual_stages)
    stages = [0] * pp
    for device, layers in zip(devices, layout.layers, strict=True):
        stages[device] += layers
    if min(stages) < chunks:
        return None
    down = [-(-layers // chunks) for layers in stages]
    up = [layers - first for layers, first in zip(stages, down, strict=True)]
    return layout._replace(
        degrees=layout.degrees._replace(virtual_stages=chunks),
        schedule=schedule,
        run_length=None,
        extra_warmup=(0,) * pp,
        layers=tuple(down) if chunks == 1 else (*down, *reversed(up)),
        flows=layout.flows[: pp - 1],
    )


def _variant(problem: Problem, co: CaseCoefficients, layout: Layout) -> Variant | None:
    """The problem of a layout, None where one microbatch does not fit in memory."""
    pp = layout.degrees.pp
    split = SCHEDULES[layout.schedule].split_backward
    devices = chunk_devices(layout.schedule, pp, layout.degrees.virtual_stages)
    counts = chunk_units(co, layout.layers)
    costs = co.memory(layout.option)
    first = tuple(devices.index(device) for device in range(pp))
    last_kind: OpKind = "W" if split else "B"
    ends = []
    values: dict[Duration, int] = {}
    hosted = [[k for k, host in enumerate(devices) if host == device] for device in range(pp)]
    for which in range(layout.degrees.virtual_stages):
        last = [(last_kind, chunks[which]) for chunks in hosted]
        values = layout_durations(problem, co, layout, first, last)
        ends.append([values[Duration("end", device)] for device in range(pp)])
    rows = memory_of_layout(problem, co, layout)
    limit = [
        min(row.limit_mib - row.state_mib - row.working_mib for row in rows if row.stage == device)
        for device in range(pp)
    ]
    values |= share_durations(problem, co, layout)
    pairs = [key.index for key in values if key.kind == "delay"]
    full = costs.split_activation if split else costs.activation
    if min(limit) < 0:
        return None
    try:
        base = ScheduleProblem(
            devices=devices,
            num_microbatches=co.num_microbatches,
            forward=tuple(values[Duration("F", k)] for k in range(len(devices))),
            backward=tuple(values[Duration("B", k)] for k in range(len(devices))),
            weight=tuple(values[Duration("W", k)] for k in range(len(devices))) if split else None,
            delay={pair: values[Duration("delay", pair)] for pair in pairs},  # type: ignore[misc]
            occupancy={pair: values[Duration("occupancy", pair)] for pair in pairs},  # type: ignore[misc]
            start=tuple(values[Duration("start", device)] for device in range(pp)),
            end=tuple(max(column) for column in zip(*ends, strict=True)),
            full=tuple(dot(units, full) for units in counts),
            held=tuple(dot(units, costs.held) if split else 0 for units in counts),
            limit=tuple(limit),
        )
    except ValueError:
        return None
    shortest = tuple(min(column) for column in zip(*ends, strict=True))
    return Variant(layout, base, base.with_end(shortest), co.fixed_us)


def _own_start(problem: ScheduleProblem, layout: Layout) -> Iterator[tuple[str, OpTable]]:
    """The plan's own template, where it has the chunks and kinds of ops of the problem."""
    template = layout.template(problem.num_microbatches)
    if fits_template(problem, template):
        yield layout.schedule, template_table(template)


def template_starts(problem: ScheduleProblem) -> Iterator[tuple[str, OpTable]]:
    """The fixed schedules that have the chunks and kinds of ops of a problem."""
    pp, chunks, m = problem.num_devices, problem.num_chunks, problem.num_microbatches
    for name, rules in SCHEDULES.items():
        v = chunks // pp
        if chunks % pp or not rules.allows_chunks(v) or rules.has_run_length:
            continue
        extras = range(m) if rules.has_extra_warmup else range(1)
        for extra in extras:
            template = Template(name, pp, v, m, None, (extra,) * pp)
            if fits_template(problem, template):
                yield name if not extra else f"{name} + {extra}", template_table(template)


class _Finished(NamedTuple):
    """A variant's table with the synchronisation that its own last ops hide."""

    time_us: int
    bound_us: int
    problem: ScheduleProblem
    timeline: Timeline


def _finished(problem: Problem, variant: Variant, result: Synthesis) -> _Finished:
    """Z of a table, its bound, and the problem with the times after the table's own last ops."""
    exact, timeline, bound = variant.problem, result.timeline, result.bound_us
    if variant.problem.end != variant.relaxed.end:
        layout = variant.layout
        rows = result.timeline.table.rows
        values = layout_durations(
            problem,
            case_coefficients(problem, layout.degrees),
            layout,
            [row[0].chunk for row in rows],
            [(row[-1].kind, row[-1].chunk) for row in rows],
        )
        exact = variant.problem.with_end(
            tuple(values[Duration("end", device)] for device in range(layout.degrees.pp))
        )
        timeline = evaluate(exact, result.timeline.table)
        bound = schedule_bound(variant.relaxed).value
    faults = violations(exact, timeline)
    if faults:
        raise RuntimeError(f"internal disagreement: an op table is refused: {faults[0]}")
    return _Finished(
        variant.fixed_us + timeline.makespan, variant.fixed_us + bound, exact, timeline
    )


def _memory(problem: Problem, variant: Variant, table: OpTable) -> tuple[StageMemory, ...]:
    """The memory rows of the layout with the activations of the table."""
    peaks = peak_memory(variant.problem, table)
    co = case_coefficients(problem, variant.layout.degrees)
    return tuple(
        row._replace(activations_mib=peaks[row.stage])
        for row in memory_of_layout(problem, co, variant.layout)
    )


def _tried(entry: tuple[Variant, int, Synthesis], numbers: _Finished) -> dict[str, Any]:
    variant, plan_time, result = entry
    return {
        "case": variant.layout.degrees._asdict(),
        "chunk_map": SCHEDULES[variant.layout.schedule].chunk_map,
        "split_backward": variant.problem.weight is not None,
        "template_time_us": plan_time,
        "value_us": numbers.time_us,
        "bound_us": numbers.bound_us,
        "method": result.method,
        "wall_time_s": round(result.wall_time_s, 3),
        "errors": result.errors,
    }
