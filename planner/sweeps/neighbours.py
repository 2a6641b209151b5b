"""Plans of finished points that may start a search: the nearest on every axis, other variants."""

from __future__ import annotations

from typing import Any

from planner.sweeps.points import Place, Point
from planner.sweeps.task import Result

REACH = 2
"""Steps along an axis that a plan is looked for."""


class PlanBook:
    """The plans found so far, by place and variant."""

    def __init__(self) -> None:
        self._plans: dict[tuple[Place, str], dict[str, Any]] = {}
        self._variants: dict[str, None] = {}

    def add(self, point: Point, result: Result) -> None:
        """Keep the plan of a result, if it has one."""
        solve = result["solve"]
        if solve is not None and solve["plan"] is not None:
            self._plans[point.place, point.variant] = solve["plan"]
            self._variants[point.variant] = None

    def near(self, point: Point) -> tuple[dict[str, Any], ...]:
        """Plans that may be plans of a point too, each once."""
        found: list[dict[str, Any]] = []
        for variant in self._variants:
            self._take(found, point.place, variant)
        for axis in range(len(point.place)):
            for direction in (-1, 1):
                for step in range(1, REACH + 1):
                    index = point.place[axis] + direction * step
                    place = (*point.place[:axis], index, *point.place[axis + 1 :])
                    if self._take(found, place, point.variant):
                        break
        return tuple(found)

    def _take(self, found: list[dict[str, Any]], place: Place, variant: str) -> bool:
        plan = self._plans.get((place, variant))
        if plan is not None and plan not in found:
            found.append(plan)
        return plan is not None
