"""What a simulated iteration says: where the time of the GPUs goes, memory, use of the links."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from planner.check import StageMemory, dot, memory_of_layout
from planner.cost.coefficients import PARTS
from planner.pipeline.ops import OpKind
from planner.pipeline.simulator import Run
from planner.simulation.scenario import TICKS_PER_US, PlanScenario

INTERVALS = 64
"""Parts of the iteration for which memory is reported."""

CAUSES = ("compute", "bubble", "tp", "cp", "ep", "pp", "dp", "optimizer", "fixed")


class LinkUse(NamedTuple):
    """Seconds in which a directed link served the pipeline and the synchronisation."""

    link: str
    source: str
    target: str
    pipeline_s: float
    synchronisation_s: float
    utilisation: float


class MemoryUse(NamedTuple):
    """Memory of a GPU that runs ``stage`` at ``site``: its peak, when, and how it goes on.

    ``over_time_mib`` has the highest value in each of :data:`INTERVALS` equal parts of the
    iteration.
    """

    stage: int
    site: str
    peak_mib: int
    limit_mib: int
    peak_at_s: float
    over_time_mib: tuple[int, ...]


class StageUse(NamedTuple):
    """Where the time of the GPUs of a stage at a site goes, s; the parts sum to the iteration."""

    stage: int
    site: str
    replicas: int
    seconds: dict[str, float]


@dataclass(frozen=True)
class Simulation:
    """One simulated iteration of a plan.

    Attributes
    ----------
    time_us
        Iteration time, exact.
    first_come_us
        Iteration time if shared links served transfers in the order in which they come, not in
        that of the plan.
    declared_us
        Z of the plan.
    breakdown_s
        Iteration time by cause, the mean over the GPUs in use: ``compute``, ``optimizer`` and
        ``fixed`` are work; ``tp``, ``cp``, ``ep``, ``pp`` and ``dp`` are exposed communication;
        ``bubble`` is waiting for other stages.
    stages, memory, links
        The same by stage and site; memory; directed links that carry traffic.
    plan, run
        What the times in ``run`` are of.
    """

    time_us: Fraction
    first_come_us: Fraction
    declared_us: int
    breakdown_s: dict[str, float]
    stages: tuple[StageUse, ...]
    memory: tuple[MemoryUse, ...]
    links: tuple[LinkUse, ...]
    plan: PlanScenario
    run: Run

    @property
    def time_s(self) -> float:
        """Iteration time in seconds."""
        return float(self.time_us / 10**6)

    @property
    def model_error(self) -> float:
        """(Z - simulated) / simulated: above 0 where the time model is on the safe side."""
        return float((self.declared_us - self.time_us) / self.time_us)

    @property
    def bubble(self) -> float:
        """Share of the iteration in which the mean GPU waits for other stages."""
        return self.breakdown_s["bubble"] / self.time_s

    def to_json(self) -> dict[str, Any]:
        """The simulation as one JSON object (see ``docs/simulation.md``)."""
        return {
            "simulated_time_s": self.time_s,
            "first_come_time_s": float(self.first_come_us / 10**6),
            "iteration_time_s": self.declared_us / 1e6,
            "model_error": self.model_error,
            "bubble": self.bubble,
            "breakdown": self.breakdown_s,
            "exposed": {name: self.breakdown_s[name] for name in ("tp", "cp", "ep", "pp", "dp")},
            "stages": [
                {"stage": s.stage, "site": s.site, "replicas": s.replicas, "breakdown": s.seconds}
                for s in self.stages
            ],
            "memory": [
                {
                    "stage": row.stage,
                    "site": row.site,
                    "peak_bytes": row.peak_mib << 20,
                    "limit_bytes": row.limit_mib << 20,
                    "peak_at_s": row.peak_at_s,
                    "over_time_bytes": [mib << 20 for mib in row.over_time_mib],
                }
                for row in self.memory
            ],
            "links": [
                {
                    "link": row.link,
                    "from": row.source,
                    "to": row.target,
                    "pp_s": row.pipeline_s,
                    "dp_s": row.synchronisation_s,
                    "utilisation": row.utilisation,
                }
                for row in self.links
            ],
        }


def measure(plan: PlanScenario, run: Run, first_come_end: int, declared_us: int) -> Simulation:
    """Evaluate a run of a plan's scenario.

    Parameters
    ----------
    plan, run
        The plan and what happened.
    first_come_end
        Tick at which a run ends whose links serve what comes first.
    declared_us
        Z of the plan.
    """
    end = run.end + plan.co.fixed_us * TICKS_PER_US
    cells = [_cell_ticks(plan, run, cell, end) for cell in range(plan.num_ports)]
    replicas = [plan.strands[c // plan.pp].replicas for c in range(plan.num_ports)]
    everywhere = range(plan.num_ports)
    return Simulation(
        time_us=Fraction(end, TICKS_PER_US),
        first_come_us=plan.co.fixed_us + Fraction(first_come_end, TICKS_PER_US),
        declared_us=declared_us,
        breakdown_s=_mean_seconds(cells, replicas, everywhere),
        stages=tuple(
            StageUse(
                s,
                plan.problem.sites[d].name,
                sum(replicas[c] for c in members),
                _mean_seconds(cells, replicas, members),
            )
            for (s, d), members in _members(plan).items()
        ),
        memory=_memory(plan, run, end),
        links=_links(plan, run, end),
        plan=plan,
        run=run,
    )


def seconds(ticks: int) -> float:
    """Ticks as seconds."""
    return ticks / (TICKS_PER_US * 10**6)


def activation_steps(plan: PlanScenario, run: Run, cell: int) -> list[tuple[int, int]]:
    """Tick and MiB after every change of the activations that a GPU of a cell keeps.

    A forward takes its activations when it begins; a whole backward frees them when it ends, a
    split one keeps what the weight gradient needs until that has ended.
    """
    costs = plan.co.memory(plan.layout.option)
    per_unit = costs.split_activation if plan.split else costs.activation
    full = {k: dot(plan.counts[k], per_unit) for k in range(len(plan.devices))}
    held = {k: dot(plan.counts[k], costs.held) * plan.split for k in range(len(plan.devices))}
    level = 0
    steps = [(0, 0)]
    order = plan.orders[cell % plan.pp]
    for op, begin, end in zip(order, run.starts[cell], run.ends[cell], strict=True):
        if op.kind == "F":
            level += full[op.chunk]
            steps.append((begin, level))
        else:
            level -= held[op.chunk] if op.kind == "W" else full[op.chunk] - held[op.chunk]
            steps.append((end, level))
    return steps


def _members(plan: PlanScenario) -> dict[tuple[int, int], list[int]]:
    """Cells by stage and site."""
    found: dict[tuple[int, int], list[int]] = {team: [] for team in plan.teams}
    for cell in range(plan.num_ports):
        found[cell % plan.pp, plan.site_of(cell)].append(cell)
    return found


def _mean_seconds(
    cells: Sequence[dict[str, int]], replicas: Sequence[int], members: Sequence[int]
) -> dict[str, float]:
    """Mean over the GPUs of some cells; each replica of a cell has as many."""
    total = sum(replicas[c] for c in members)
    return {
        name: seconds(sum(cells[c][name] * replicas[c] for c in members)) / total for name in CAUSES
    }


def _cell_ticks(plan: PlanScenario, run: Run, cell: int, end: int) -> dict[str, int]:
    """Ticks by cause; they sum to ``end``.

    Waiting for an input is ``pp`` from when the input was sent, and ``bubble`` before that; the
    wait of a step for its bucket and, after the last op, for the buckets of the stage is ``dp``.
    """
    result = dict.fromkeys(CAUSES, 0)
    order = plan.orders[cell % plan.pp]
    ticks: dict[tuple[OpKind, int], int] = {}
    times: dict[tuple[OpKind, int], int] = {}
    free = 0
    for i, op in enumerate(order):
        key = (op.kind, op.chunk)
        if key not in ticks:
            ticks[key] = dot(plan.counts[op.chunk], plan.op_units(cell, op.kind)) * TICKS_PER_US
        times[key] = times.get(key, 0) + 1
        stop = run.ends[cell][i]
        came = max(free, run.arrived[cell][i])
        result["pp"] += min(came - free, came - run.sent[cell][i])
        result["dp"] += stop - came - ticks[key]
        free = stop
    for key, count in times.items():
        result["compute"] += count * ticks[key]
    for name, part in _op_parts(plan, cell, times).items():
        result[name] += part
        result["compute"] -= part
    tail = plan.optimizer_us(cell) * TICKS_PER_US
    result["optimizer"] = tail
    result["dp"] += run.done[cell] - tail - free
    result["fixed"] = plan.co.fixed_us * TICKS_PER_US
    result["bubble"] = end - sum(result.values())
    return result


def _op_parts(
    plan: PlanScenario, cell: int, times: dict[tuple[OpKind, int], int]
) -> dict[str, int]:
    """Exposed communication inside the ops of a cell, ticks by cause."""
    costs = plan.op_costs(cell)
    parts = {
        "F": costs.forward_parts,
        "B": costs.input_gradient_parts if plan.split else costs.backward_parts,
        "W": costs.weight_gradient_parts,
    }
    result = dict.fromkeys(PARTS[1:], 0)
    for (kind, chunk), count in times.items():
        for name, part in zip(PARTS[1:], parts[kind][1:], strict=True):
            result[name] += count * dot(plan.counts[chunk], part) * TICKS_PER_US
    return result


def _memory(plan: PlanScenario, run: Run, end: int) -> tuple[MemoryUse, ...]:
    declared = {
        (row.stage, row.site): row for row in memory_of_layout(plan.problem, plan.co, plan.layout)
    }
    return tuple(
        _memory_of(plan, run, cells[0], declared[s, plan.problem.sites[d].name], end)
        for (s, d), cells in _members(plan).items()
    )


def _memory_of(
    plan: PlanScenario, run: Run, cell: int, declared: StageMemory, end: int
) -> MemoryUse:
    """Memory of the first strand of a stage at a site; the others differ only in when."""
    base = declared.state_mib + declared.working_mib
    steps = activation_steps(plan, run, cell)
    peak = max(level for _, level in steps)
    at = next(tick for tick, level in steps if level == peak)
    ticks = [tick for tick, _ in steps]
    highest = []
    for part in range(INTERVALS):
        first = bisect_right(ticks, end * part // INTERVALS) - 1
        last = bisect_right(ticks, end * (part + 1) // INTERVALS)
        highest.append(base + max(level for _, level in steps[first:last]))
    return MemoryUse(
        declared.stage,
        declared.site,
        base + peak,
        declared.limit_mib,
        seconds(at),
        tuple(highest),
    )


def _links(plan: PlanScenario, run: Run, end: int) -> tuple[LinkUse, ...]:
    return tuple(
        LinkUse(
            link.name,
            link.source,
            link.target,
            seconds(run.transfer_busy[i]),
            seconds(run.exchange_busy[i]),
            (run.transfer_busy[i] + run.exchange_busy[i]) / end,
        )
        for i, link in enumerate(plan.problem.links)
        if run.transfer_busy[i] or run.exchange_busy[i]
    )
