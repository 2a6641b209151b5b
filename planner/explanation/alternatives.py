"""The best plan under each forced alternative: the space cut down to one value of one choice."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from planner.explanation.questions import Verdict
from planner.instance.schema import Instance
from planner.pipeline.schedules import SCHEDULES
from planner.plan import PLACEMENT_KINDS, RECOMPUTES, SHARDINGS, SYNCS, Plan
from planner.problem import Problem

PROTOCOLS = "protocols"
"""The choice that is made link by link; forced, all links in use have the same protocol."""

CHOICES: dict[str, tuple[Any, ...]] = {
    "placement_kind": PLACEMENT_KINDS,
    "schedule": tuple(SCHEDULES),
    "sharding": SHARDINGS,
    "sync": SYNCS,
    "overlap": (True, False),
    "recompute": RECOMPUTES,
}
"""Choices whose values part the plan space: every plan has exactly one value of each."""


@dataclass
class Alternative:
    """One value of one choice, forced as ``--fix`` does it.

    ``chosen`` says whether the explained plan has this value anyway.
    """

    choice: str
    value: str | bool
    chosen: bool
    verdict: Verdict = field(default_factory=Verdict)

    @property
    def fix(self) -> str:
        """The ``--fix`` that gives the same plan space."""
        value = str(self.value).lower() if isinstance(self.value, bool) else self.value
        return f"{self.choice}={value}"

    def part_of(self, instance: Instance) -> Instance:
        """The part of the plan space with this value."""
        search = instance.search.model_copy(update={self.choice: (self.value,)})
        return instance.model_copy(update={"search": search})

    def to_json(self, plan_us: int) -> dict[str, Any]:
        """One row of the document; prices are against the explained plan."""
        time_us, bound_us = self.verdict.time_us, self.verdict.bound_us
        return {
            "choice": self.choice,
            "value": self.value,
            "fix": self.fix,
            "chosen": self.chosen,
            "price_s": None if time_us is None else (time_us - plan_us) / 1e6,
            "price_at_least_s": None if bound_us is None else (bound_us - plan_us) / 1e6,
            **self.verdict.to_json(),
        }


def forced_alternatives(instance: Instance, plan: Plan) -> list[Alternative]:
    """Every value of every choice that the instance's search allows.

    Protocols are those that can drive at least one link.
    """
    found = []
    for choice, values in CHOICES.items():
        allowed = getattr(instance.search, choice)
        found += [
            Alternative(choice, value, getattr(plan, choice) == value)
            for value in values
            if allowed is None or value in allowed
        ]
    used = {choice.protocol for choice in plan.protocols}
    names = dict.fromkeys(name for table in Problem(instance).protocols for name in table)
    return found + [Alternative(PROTOCOLS, name, used <= {name}) for name in names]


def bound_by_partition(alternatives: list[Alternative]) -> int | None:
    """A bound on all plans, in µs: for a choice the smallest over its values, the best choice."""
    bounds = []
    for choice in CHOICES:
        verdicts = [a.verdict for a in alternatives if a.choice == choice]
        open_ones = [v for v in verdicts if v.status != "infeasible"]
        values = [v.bound_us for v in open_ones if v.bound_us is not None]
        if values and len(values) == len(open_ones):
            bounds.append(min(values))
    return max(bounds, default=None)
