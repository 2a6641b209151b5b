"""The explanation of a plan, and the JSON document that is written from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from planner.explanation.alternatives import Alternative
from planner.explanation.binding import Binding
from planner.explanation.near_ties import NearTie
from planner.explanation.questions import Verdict
from planner.explanation.what_if import WhatIf
from planner.instance.schema import Instance
from planner.plan import Plan


@dataclass(frozen=True)
class Explanation:
    """Why a plan is the best, or what is better.

    Attributes
    ----------
    instance, plan, time_us
        What is explained, and ``Z`` of the plan.
    limit
        What ended the work before every row was proven: ``time``, ``interrupt`` or None.
    binding
        What binds the plan.
    best
        The best plan of the whole plan space.
    alternatives, what_ifs, near_ties
        The tables.
    provenance
        Versions, seed, engine and wall time.
    """

    instance: Instance
    plan: Plan
    time_us: int
    limit: Literal["time", "interrupt"] | None
    binding: Binding
    best: Verdict
    alternatives: tuple[Alternative, ...]
    what_ifs: tuple[WhatIf, ...]
    near_ties: tuple[NearTie, ...]
    provenance: dict[str, Any]

    @property
    def plan_status(self) -> Literal["optimal", "beaten", "not proven"]:
        """``optimal``: no plan has a smaller Z.  ``beaten``: ``best`` has a plan that does."""
        if self.best.time_us is not None and self.best.time_us < self.time_us:
            return "beaten"
        return "optimal" if self.best.bound_us == self.time_us else "not proven"

    def to_json(self) -> dict[str, Any]:
        """The document (see ``docs/explain.md``)."""
        best_us = self.time_us if self.best.time_us is None else self.best.time_us
        return {
            "instance": self.instance.name,
            "plan_status": self.plan_status,
            "limit": self.limit,
            "iteration_time_s": self.time_us / 1e6,
            "plan": self.plan.to_json(),
            "best": self.best.to_json(),
            "binding": self.binding.to_json(),
            "alternatives": [row.to_json(self.time_us) for row in self.alternatives],
            "what_if": [row.to_json(best_us, self.best.bound_us) for row in self.what_ifs],
            "near_ties": [row.to_json(self.time_us) for row in self.near_ties],
            "provenance": self.provenance,
        }
