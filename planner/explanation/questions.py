"""One question a plan space: its best plan and a bound, by a real solve within a share of time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from planner.explanation.known_plans import Known, KnownPlans
from planner.instance.schema import Instance
from planner.plan import Plan
from planner.search.result import Progress, SolveResult, SolveStatus
from planner.search.solve import solve

LEAST_S = 0.05
"""With less time left nothing is begun."""

Status = Literal["proven", "not proven", "infeasible"]
_BY = {
    "solve": "no plan of the space has a smaller Z",
    "inclusion": "the plan meets the bound of a plan space around this one",
    "partition": "the plan meets the bound of every value of a choice",
}

Evidence = Literal["solve", "inclusion", "partition", "none"]


@dataclass
class Verdict:
    """What is known about the best plan of one plan space.

    Attributes
    ----------
    time_us, plan
        The best plan found; None = none found.
    bound_us
        No plan of the space has a smaller Z; None = nothing is known, or there is no plan.
    status
        ``proven``: the plan meets the bound.  ``infeasible``: proven that there is no plan.
    evidence
        ``solve``: a search of this space.  ``inclusion``: a known plan of the space meets the bound
        of a space around it.  ``partition``: the bounds of all values of a choice, which together
        cover the space.  ``none``: no search was made in time; the numbers are those of known plans
        and of a space around it.
    reason
        One sentence; where infeasible the rule that no plan meets, with its numbers.
    rule
        Name of that rule.
    """

    time_us: int | None = None
    plan: Plan | None = None
    bound_us: int | None = None
    status: Status = "not proven"
    evidence: Evidence = "none"
    reason: str = "no time was left for a search"
    rule: str | None = None
    wall_time_s: float = 0.0

    @property
    def gap(self) -> float | None:
        """(Z − bound) ÷ Z."""
        if self.time_us is None or self.bound_us is None:
            return None
        return max(0, self.time_us - self.bound_us) / self.time_us

    def offer(self, known: Known | None) -> None:
        """Take a checked plan of the space that is better than the one so far."""
        if known is None:
            return
        self._agree(known.time_us)
        if self.time_us is None or known.time_us < self.time_us:
            self.time_us, self.plan = known.time_us, known.plan

    def raise_bound(self, bound_us: int | None, evidence: Evidence) -> None:
        """Take a bound of a space around this one."""
        if self.status == "infeasible" or bound_us is None:
            return
        if self.bound_us is None or bound_us > self.bound_us:
            self.bound_us = bound_us
        if self.time_us is None:
            return
        self._agree(self.time_us)
        if self.status != "proven" and self.bound_us == self.time_us:
            self.status, self.evidence = "proven", evidence
            self.reason = _BY[evidence]

    def join(self, before: Verdict) -> None:
        """Take what an earlier verdict on the same space has better."""
        if before.time_us is not None and before.plan is not None:
            self.offer(Known(before.time_us, before.plan))
        self.raise_bound(before.bound_us, "solve")
        self.wall_time_s += before.wall_time_s

    def settle(self) -> None:
        """Call the verdict proven where plan and bound meet."""
        if self.status == "not proven" and self.time_us is not None:
            self._agree(self.time_us)
            if self.bound_us == self.time_us:
                self.status, self.reason = "proven", _BY["solve"]

    def _agree(self, time_us: int) -> None:
        """Raise RuntimeError where a checked plan contradicts what was proven."""
        if self.status == "infeasible":
            raise RuntimeError(f"proven infeasible, but a checked plan has Z = {time_us} µs")
        if self.bound_us is not None and self.bound_us > time_us:
            raise RuntimeError(
                f"the bound of {self.bound_us} µs exceeds a checked plan of {time_us} µs"
            )

    def to_json(self) -> dict[str, Any]:
        """The fields of a row that every plan space has."""
        return {
            "status": self.status,
            "evidence": self.evidence,
            "reason": self.reason,
            "rule": self.rule,
            "iteration_time_s": _seconds(self.time_us),
            "lower_bound_s": _seconds(self.bound_us),
            "gap": self.gap,
            "wall_time_s": round(self.wall_time_s, 3),
            "plan": None if self.plan is None else self.plan.to_json(),
        }


def _seconds(us: int | None) -> float | None:
    return None if us is None else us / 1e6


@dataclass
class Answerer:
    """Answers questions by solves, each within its time, and keeps the plans that it meets.

    Attributes
    ----------
    known
        Plans of the instance that is explained.
    seed, workers, backend
        Passed to the solves.
    progress
        Called with the state of every solve.
    """

    known: KnownPlans
    seed: int
    workers: int
    backend: str
    progress: Callable[[Progress], None] | None
    interrupted: bool = False

    def part(self, part: Instance, label: str, limit_s: float) -> Verdict:
        """The best plan of a part of the plan space, or of all of it."""
        verdict = Verdict()
        verdict.offer(self.known.best_of(part))
        began = time.monotonic()
        if limit_s > LEAST_S:
            result = self._solve(part, label, limit_s, verdict.plan)
            self._take(verdict, result)
            self.known.add(Known(*pair) for pair in result.found)
        verdict.wall_time_s = time.monotonic() - began
        return verdict

    def more(self, larger: Instance, label: str, limit_s: float) -> Verdict:
        """The best plan of an instance with more of a resource."""
        verdict = Verdict()
        verdict.offer(self.known.best_in(larger))
        began = time.monotonic()
        if limit_s > LEAST_S:
            result = self._solve(larger, label, limit_s, verdict.plan)
            self._take(verdict, result)
            if verdict.plan is not None:
                self.known.add_foreign([verdict.plan])
        verdict.wall_time_s = time.monotonic() - began
        return verdict

    def _solve(
        self, instance: Instance, label: str, limit_s: float, start: Plan | None
    ) -> SolveResult:
        def report(progress: Progress) -> None:
            if self.progress is not None:
                self.progress(replace(progress, phase=f"{label}, {progress.phase}"))

        result = solve(
            instance,
            time_limit_s=max(limit_s, LEAST_S),
            backend=self.backend,
            seed=self.seed,
            workers=self.workers,
            start_plans=() if start is None else (start,),
            progress=report,
        )
        self.interrupted = self.interrupted or result.limit == "interrupt"
        return result

    def _take(self, verdict: Verdict, result: SolveResult) -> None:
        """Put the result of a solve into a verdict."""
        if result.plan is not None and result.time_us is not None:
            verdict.offer(Known(result.time_us, result.plan))
        verdict.evidence, verdict.reason = "solve", result.reason
        if result.status is SolveStatus.INFEASIBLE:
            if verdict.time_us is not None:
                raise RuntimeError(
                    f"proven infeasible, but a checked plan has Z = {verdict.time_us} µs"
                )
            verdict.status = "infeasible"
            verdict.rule = result.provenance.get("infeasibility", {}).get("rule")
            return
        verdict.bound_us = result.bound_us
        if not result.provenance.get("errors"):
            verdict.settle()
