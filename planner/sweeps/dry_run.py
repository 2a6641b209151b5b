"""What a sweep would do: its points, and how long they will take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner.sweeps.executors import LocalExecutor
from planner.sweeps.load import load_sweep
from planner.sweeps.points import Point, expand, in_shard
from planner.sweeps.run import Shard
from planner.sweeps.store import find_result
from planner.sweeps.task import Task, has_failed, task_of

SAMPLES = 3
"""Points that are solved to estimate the time where the folder has no results to go by."""
SAMPLE_LIMIT_S = 30.0
"""Most time for one of them."""


@dataclass(frozen=True)
class PlannedPoint:
    """A point and what becomes of it: ``solve``, ``kept``, ``same``, ``other shard``, ``INVALID``.

    ``same`` are points that equal an earlier one, whose result they share.
    """

    point: Point
    fate: str


@dataclass(frozen=True)
class DryRun:
    """The points of a sweep and an estimate of the time.

    Attributes
    ----------
    axes
        Names of the axes.
    points
        All points in the order of the table.
    seconds_per_point
        Mean wall time of a point; None where there was nothing to go by.
    estimated_s
        Time for the points to solve on ``workers`` workers of this machine.
    measured
        What the mean comes from, in words.
    """

    axes: tuple[str, ...]
    points: tuple[PlannedPoint, ...]
    seconds_per_point: float | None
    estimated_s: float | None
    measured: str

    @property
    def to_solve(self) -> int:
        """Points that this run would solve."""
        return sum(planned.fate == "solve" for planned in self.points)

    def to_json(self) -> dict[str, Any]:
        """All fields, a point by its number, variant, axis values, key, fate and reason."""
        return {
            "points": [
                {
                    "point": planned.point.number,
                    "variant": planned.point.variant,
                    "axes": planned.point.axes,
                    "key": planned.point.key,
                    "fate": planned.fate,
                    "reason": planned.point.refusal,
                }
                for planned in self.points
            ],
            "to_solve": self.to_solve,
            "seconds_per_point": self.seconds_per_point,
            "estimated_s": self.estimated_s,
            "measured": self.measured,
        }


def dry_run(
    source: str | Path | Mapping[str, Any],
    folder: str | Path,
    *,
    workers: int = 1,
    shard: Shard = (1, 1),
    retry_failed: bool = False,
) -> DryRun:
    """List the points of a sweep and estimate the time, writing nothing.

    The time comes from the results in the folder where there are at least three, else from three
    points spread over the sweep that are solved for it, at most 30 s each.  The parameters are
    those of :func:`planner.sweeps.run.sweep`.

    Raises
    ------
    InputError
        If the sweep is not valid.
    """
    loaded = load_sweep(source)
    points = expand(loaded)
    planned: list[PlannedPoint] = []
    seen: set[str] = set()
    times: list[float] = []
    for point in points:
        if point.refusal is not None:
            planned.append(PlannedPoint(point, "INVALID"))
            continue
        if point.key in seen:
            planned.append(PlannedPoint(point, "same"))
            continue
        seen.add(point.key)
        result = find_result(Path(folder), point.key)
        if result is not None:
            times.append(float(result["run"].get("wall_time_s", 0.0)))
        if result is not None and not (retry_failed and has_failed(result)):
            planned.append(PlannedPoint(point, "kept"))
        else:
            fate = "solve" if in_shard(point.key, *shard) else "other shard"
            planned.append(PlannedPoint(point, fate))
    waiting = [entry.point for entry in planned if entry.fate == "solve"]
    measured = f"{len(times)} results in the folder"
    if len(times) < SAMPLES and waiting:
        tasks = [task_of(point, loaded.sweep) for point in _spread(waiting)]
        limit = min(loaded.sweep.limits.wall_time_s, SAMPLE_LIMIT_S)
        times = _timed([replace(task, time_limit_s=limit) for task in tasks], workers)
        measured = f"{len(times)} points solved for this, at most {SAMPLE_LIMIT_S:g} s each"
    mean = sum(times) / len(times) if times else None
    estimate = None if mean is None else mean * -(-len(waiting) // workers)
    names = tuple(str(axis.name) for axis in loaded.sweep.plain_axes)
    return DryRun(names, tuple(planned), mean, estimate, measured)


def _spread(points: Sequence[Point]) -> list[Point]:
    """Some points, spread evenly."""
    count = min(SAMPLES, len(points))
    return [points[(2 * i + 1) * len(points) // (2 * count)] for i in range(count)]


def _timed(tasks: Sequence[Task], workers: int) -> list[float]:
    """Wall times of tasks that are solved side by side, as many as there are workers."""
    times: list[float] = []
    with closing(LocalExecutor(min(workers, len(tasks)))) as executor:
        for task in tasks:
            executor.submit(task)
        while len(times) < len(tasks):
            times += [float(r["run"].get("wall_time_s", 0.0)) for r in executor.finished()]
    return times
