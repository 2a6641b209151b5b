"""What is asked of the process of one point, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from planner.instance.load import load_instance
from planner.plan import parse_plan
from planner.sweeps.points import Point, code_versions
from planner.sweeps.schema import Sweep


class Failure(StrEnum):
    """How a point ended that has no answer of the search."""

    INVALID = "INVALID"
    """The instance is refused."""
    CRASHED = "CRASHED"
    """Its process ended by a signal or with an exit code."""
    TIMEOUT = "TIMEOUT"
    """It overran its limit and was killed."""
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    """It reached the memory limit."""
    ERROR = "ERROR"
    """It raised an error."""


SOLVE_POINT = "planner.sweeps.task:solve_point"
"""What the process of a point runs: a function from a task to an answer, by import path."""


@dataclass(frozen=True)
class Task:
    """One point for the process that solves it."""

    key: str
    document: dict[str, Any]
    """The instance."""
    options: dict[str, Any]
    """``gap``, ``backend``, ``seed`` and ``workers`` of the solve."""
    time_limit_s: float
    grace_s: float
    """Seconds that it may overrun its time limit before it is killed."""
    memory_limit_bytes: int | None = None
    start_plans: tuple[dict[str, Any], ...] = ()
    versions: dict[str, str] = field(default_factory=code_versions)
    function: str = SOLVE_POINT


def task_of(point: Point, sweep: Sweep) -> Task:
    """A point of a sweep with the options and limits of the sweep."""
    return Task(
        key=point.key,
        document=point.document,
        options=sweep.solve.model_dump(),
        time_limit_s=sweep.limits.wall_time_s,
        grace_s=sweep.limits.grace_s,
        memory_limit_bytes=sweep.limits.memory_bytes,
    )


Result = dict[str, Any]
"""One file of ``points/``: ``key``, ``status``, ``reason``, ``limit``, ``solve``, ``run``."""


def failure(key: str, kind: Failure, reason: str) -> Result:
    """The result of a point without an answer."""
    return {
        "key": key,
        "status": kind.value,
        "reason": reason,
        "limit": None,
        "solve": None,
        "run": {},
    }


def has_failed(result: Result) -> bool:
    """Whether a point has no answer, or one whose search lost a solver on the way."""
    if result["solve"] is None:
        return True
    return bool(result["solve"]["provenance"].get("errors"))


def solve_point(task: Task) -> Result:
    """Solve a point; the boxes of its certificate are left out, their tally stays."""
    from planner.search.solve import solve

    if task.versions != code_versions():
        ours, theirs = code_versions(), task.versions
        differing = ", ".join(
            f"{name} {ours.get(name)} in place of {theirs.get(name)}"
            for name in sorted(ours.keys() | theirs.keys())
            if ours.get(name) != theirs.get(name)
        )
        return failure(task.key, Failure.ERROR, f"the worker has {differing}")
    result = solve(
        load_instance(task.document),
        time_limit_s=task.time_limit_s,
        start_plans=[parse_plan(plan) for plan in task.start_plans],
        **task.options,
    )
    document = result.to_json()
    del document["certificate"]["cases"]
    return {
        "key": task.key,
        "status": document["status"],
        "reason": document["reason"],
        "limit": document["limit"],
        "solve": document,
        "run": {},
    }
