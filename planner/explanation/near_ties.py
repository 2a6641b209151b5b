"""Plans that are nearly as fast as the explained one, and how they differ from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from planner.explanation.known_plans import KnownPlans
from planner.plan import Plan

WITHIN = 0.01
"""A near-tie is at most so much slower, as a share of Z."""


@dataclass(frozen=True)
class NearTie:
    """A checked plan with its Z in µs, and what it decides otherwise: (there, here) by field."""

    time_us: int
    plan: Plan
    differences: dict[str, tuple[Any, Any]]

    def to_json(self, plan_us: int) -> dict[str, Any]:
        """One row of the document."""
        return {
            "iteration_time_s": self.time_us / 1e6,
            "slower_by": (self.time_us - plan_us) / plan_us,
            "differences": {
                name: {"plan": mine, "here": other}
                for name, (mine, other) in self.differences.items()
            },
            "plan": self.plan.to_json(),
        }


def near_ties(known: KnownPlans, plan: Plan, plan_us: int) -> list[NearTie]:
    """Other known plans whose Z is at most 1 % above that of the explained plan, best first."""
    return [
        NearTie(found.time_us, found.plan, differences(plan, found.plan))
        for found in known
        if found.plan != plan and found.time_us <= plan_us * (1 + WITHIN)
    ]


def differences(plan: Plan, other: Plan) -> dict[str, tuple[Any, Any]]:
    """The fields in which two plans differ, with both values in public form."""
    mine, others = plan.to_json(), other.to_json()
    return {name: (mine[name], others[name]) for name in mine if mine[name] != others[name]}
