"""A periodic order: one microbatch a period, every op at the same phase of every period.

Op ``x`` of microbatch ``n`` starts at ``t_x + n * period``.  The model is linear, has one start an
op of *one* microbatch and one integer a pair of ops of a device, and does not grow with the number
of microbatches.  ``docs/formulation_schedule.md`` has the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

from formulations.algebra import Linear, Model, Variable, linear_sum
from planner.pipeline.op_table import ScheduleProblem
from planner.pipeline.ops import OpKind

_Class = tuple[OpKind, int]


@dataclass(frozen=True)
class PeriodicModel:
    """The model, the starts of microbatch 0 by kind and chunk, and the period in µs."""

    model: Model
    start: Mapping[_Class, Variable]
    period: int

    def starts(self, values: tuple[int, ...]) -> dict[_Class, int]:
        """Start of every op of microbatch 0, µs."""
        return {cls: values[variable.index] for cls, variable in self.start.items()}


def build_periodic(problem: ScheduleProblem, period: int, horizon: int) -> PeriodicModel:
    r"""Build the model of one period length.

    It minimises the end of microbatch 0, tails of the devices included, so that ``(m - 1) * period``
    more is the end of the iteration.  Families:

    ``input``
        an op starts after its input is there, transfers included.
    ``device``, ``link``
        for two ops ``x``, ``y`` of a device (two classes of a link) with an integer ``q``:
        ``p_x <= t_y - t_x - q * period <= period - p_y``, so that no two periods of them overlap.
    ``memory``
        ``live_x * period >= end_x - t_F`` counts the microbatches between F and the end of B (of W);
        ``sum (full - held) * live_B + held * live_W <= limit``.

    Raises
    ------
    ValueError
        If the period is shorter than the work of a device or the occupancy of a link.
    """
    model = Model()
    classes: list[_Class] = [
        (kind, k) for kind in problem.kinds for k in range(problem.num_chunks)
    ]
    start = {
        cls: model.integer(
            f"{cls[0]}[{cls[1]}]", problem.start[problem.devices[cls[1]]], horizon
        )
        for cls in classes
    }
    sent: dict[_Class, Linear] = {}
    for cls in classes:
        if problem.edge(*cls) is not None:
            moment = model.integer(f"sent {cls[0]}[{cls[1]}]", 0, horizon)
            model.add(moment - start[cls] >= problem.duration(*cls), family="input")
            sent[cls] = moment
    for cls in classes:
        source = problem.source(*cls)
        if source is not None:
            pair = problem.edge(*source)
            if pair is None:
                gap = problem.duration(*source)
                model.add(start[cls] - start[source] >= gap, family="input")
            else:
                gap = problem.delay.get(pair, 0)
                model.add(start[cls] - sent[source] >= gap, family="input")
        before: OpKind | None = {"B": "F", "W": "B"}.get(cls[0])  # type: ignore[assignment]
        if before is not None:
            gap = problem.duration(before, cls[1])
            model.add(start[cls] - start[before, cls[1]] >= gap, family="input")
    for device in range(problem.num_devices):
        jobs = [
            (start[cls], problem.duration(*cls))
            for cls in classes
            if problem.devices[cls[1]] == device
        ]
        _share(model, jobs, period, horizon, f"device {device}", "device")
    for pair, users in problem.edges.items():
        occupancy = problem.occupancy.get(pair, 0)
        transfers = [(sent[user], occupancy) for user in users]
        _share(model, transfers, period, horizon, f"link {pair[0]}-{pair[1]}", "link")
    _memory(model, problem, start, period, horizon)
    end = model.integer("end", 0, 2 * horizon)
    for cls in classes:
        tail = problem.duration(*cls) + problem.end[problem.devices[cls[1]]]
        model.add(end - start[cls] >= tail, family="end")
    model.minimize(end)
    return PeriodicModel(model, start, period)


def _share(
    model: Model,
    jobs: list[tuple[Linear, int]],
    period: int,
    horizon: int,
    name: str,
    family: str,
) -> None:
    """Jobs that repeat every period never overlap."""
    if sum(size for _, size in jobs) > period:
        raise ValueError(f"{name} has more work than the period of {period} µs")
    turns = horizon // period + 1
    for (i, (x, size_x)), (j, (y, size_y)) in combinations(enumerate(jobs), 2):
        if size_x and size_y:
            q = model.integer(f"turns {name} {i}-{j}", -turns, turns)
            model.add(y - x - period * q >= size_x, family=family)
            model.add(y - x - period * q <= period - size_y, family=family)


def _memory(
    model: Model,
    problem: ScheduleProblem,
    start: Mapping[_Class, Variable],
    period: int,
    horizon: int,
) -> None:
    turns = horizon // period + 1
    for device in range(problem.num_devices):
        terms: list[Linear] = []
        for k in problem.chunks_of(device):
            kept = 0 if problem.weight is None else problem.held[k]
            phases: list[tuple[OpKind, int]] = [("B", problem.full[k] - kept)]
            if problem.weight is not None:
                phases.append(("W", kept))
            for kind, demand in phases:
                if demand:
                    live = model.integer(f"live {kind}[{k}]", 0, turns)
                    gap = problem.duration(kind, k)
                    model.add(
                        period * live - start[kind, k] + start["F", k] >= gap, family="memory"
                    )
                    terms.append(demand * live)
        if terms:
            model.add(linear_sum(terms) <= problem.limit[device], family="memory")
