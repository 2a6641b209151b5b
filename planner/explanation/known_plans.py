"""The plans that were found on the way, with their Z."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from planner.check import check_plan
from planner.instance.schema import Instance
from planner.plan import Plan

REPRICED = 8
"""Best plans that are priced again in an instance with more of a resource."""


class Known(NamedTuple):
    """A plan that the checker accepts, and its Z in µs."""

    time_us: int
    plan: Plan


class KnownPlans:
    """Plans of one instance that the checker accepts, each once, the smallest Z first."""

    def __init__(self, instance: Instance, plan: Plan, time_us: int) -> None:
        self.instance = instance
        self._times: dict[Plan, int] = {plan: time_us}

    def __iter__(self) -> Iterator[Known]:
        ranked = sorted(self._times.items(), key=lambda item: item[1])
        return (Known(time_us, plan) for plan, time_us in ranked)

    @property
    def best(self) -> Known:
        """The plan with the smallest Z; of equals the one found first."""
        return next(iter(self))

    def add(self, found: Iterable[Known]) -> None:
        """Take plans of the instance or of a part of its plan space, checked and priced."""
        for time_us, plan in found:
            self._times.setdefault(plan, time_us)

    def add_foreign(self, plans: Iterable[Plan]) -> None:
        """Take plans of an instance with more of a resource, where the checker accepts them."""
        for plan in plans:
            if plan not in self._times:
                report = check_plan(self.instance, plan)
                if report.feasible and report.time_us is not None:
                    self._times[plan] = report.time_us

    def best_of(self, part: Instance) -> Known | None:
        """The best of the plans that lie in a part of the plan space."""
        restrictions = part.search.restrictions()
        restrictions.pop("extra_warmup", None)
        for known in self:
            if all(getattr(known.plan, key) in values for key, values in restrictions.items()):
                report = check_plan(part, known.plan)
                if report.feasible and report.time_us == known.time_us:
                    return known
        return None

    def best_in(self, larger: Instance, also: Iterable[Plan] = ()) -> Known:
        """The best in an instance with more of a resource: of the best here, and of others."""
        plans = dict.fromkeys([*(known.plan for known in islice(self, REPRICED)), *also])
        reports = [(check_plan(larger, plan), plan) for plan in plans]
        return min(
            (
                Known(report.time_us, plan)
                for report, plan in reports
                if report.feasible and report.time_us is not None
            ),
            key=lambda known: known.time_us,
        )
