"""What a search returns, and the solve document that is written from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from planner.check import StageMemory, memory_to_json
from planner.cost.efficiency import peak_flops
from planner.cost.flops import model_flops_per_token
from planner.instance.schema import Instance
from planner.plan import Plan

if TYPE_CHECKING:
    from planner.search.synthesis.plan_schedule import SynthesizedSchedule


class SolveStatus(StrEnum):
    """How a search ended.

    ``OPTIMAL``: the plan is accepted by the checker and its Z equals the lower bound.
    ``FEASIBLE``: a checked plan with a gap.  ``INFEASIBLE``: proven that there is no plan.
    ``NO_SOLUTION``: no plan found and none excluded.
    """

    OPTIMAL = "OPTIMAL"
    FEASIBLE = "FEASIBLE"
    INFEASIBLE = "INFEASIBLE"
    NO_SOLUTION = "NO_SOLUTION"
    ERROR = "ERROR"
    INTERRUPTED = "INTERRUPTED"


@dataclass(frozen=True)
class Progress:
    """State of a running search."""

    cases_total: int
    cases_done: int
    best_us: int | None
    bound_us: int
    elapsed_s: float
    phase: str
    found_new: bool = False

    @property
    def gap(self) -> float | None:
        """(Z − bound) ÷ Z of the best plan so far."""
        return None if not self.best_us else max(0, self.best_us - self.bound_us) / self.best_us


@dataclass(frozen=True)
class SolveResult:
    """The answer to one instance.

    Attributes
    ----------
    status, reason, limit
        How the search ended, in words, and which limit stopped it (None: none).
    time_us, bound_us, gap
        Z of the plan, the lower bound on every plan of the space, and (Z − bound) ÷ Z.
    breakdown_us
        Z by cause; the parts sum to it.
    certificate
        ``cases`` (boxes with verdicts), ``cases_total`` and ``grade``.
    provenance
        Versions, seed, engine, wall time and what closed what.
    simulated_us
        Iteration time of the plan in the event simulation; None where it was not simulated, for
        the reason in the notes of ``provenance``.
    synthesized
        An op table of its own for the placement, where asked for and found.
    found
        Checked plans that were the best at their time, with their Z in µs, in that order.
    """

    instance: Instance
    status: SolveStatus
    reason: str
    limit: str | None
    plan: Plan | None
    time_us: int | None
    bound_us: int | None
    breakdown_us: dict[str, int] = field(default_factory=dict)
    memory: tuple[StageMemory, ...] = ()
    certificate: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    simulated_us: float | None = None
    synthesized: SynthesizedSchedule | None = None
    found: tuple[tuple[int, Plan], ...] = ()

    @property
    def gap(self) -> float | None:
        """(Z − bound) ÷ Z; 0 for a proven optimum."""
        if self.time_us is None or self.bound_us is None:
            return None
        return max(0, self.time_us - self.bound_us) / self.time_us

    @property
    def model_error(self) -> float | None:
        """(Z − simulated) ÷ simulated; below 0 where Z is too optimistic."""
        if self.time_us is None or self.simulated_us is None:
            return None
        return (self.time_us - self.simulated_us) / self.simulated_us

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens of the global batch per second."""
        if self.time_us is None:
            return None
        training = self.instance.training
        return training.global_batch_size * training.sequence_length / (self.time_us / 1e6)

    @property
    def mfu(self) -> float | None:
        """Model FLOPs per second over the peak of the GPUs in use.

        Causal attention counts half, recomputation nothing.
        """
        tokens = self.tokens_per_s
        if tokens is None or self.plan is None:
            return None
        instance = self.instance
        flops = model_flops_per_token(instance.model, instance.training.sequence_length, "causal")
        sites = {site.name: site for site in instance.cluster.sites}
        peak = sum(
            part.replicas
            * (part.last_stage - part.first_stage + 1)
            * self.plan.degrees.cell_gpus
            * peak_flops(sites[part.site].gpu, instance.training.precision)
            for part in self.plan.placement
        )
        return tokens * flops / peak

    def to_json(self) -> dict[str, Any]:
        """The solve document (see ``docs/solve_document.md``)."""
        has_plan = self.plan is not None
        share = self.instance.tight_share
        return {
            "instance": self.instance.name,
            "status": self.status.value,
            "reason": self.reason,
            "limit": self.limit,
            "iteration_time_s": _seconds(self.time_us),
            "lower_bound_s": _seconds(self.bound_us),
            "gap": self.gap,
            "simulated_time_s": _seconds(self.simulated_us),
            "model_error": self.model_error,
            "tokens_per_s": self.tokens_per_s,
            "mfu": self.mfu,
            "mfu_convention": "causal attention counted half, recomputation not counted",
            "plan": self.plan.to_json() if self.plan is not None else None,
            "breakdown": {name: us / 1e6 for name, us in self.breakdown_us.items()}
            if has_plan
            else None,
            "memory": memory_to_json(self.memory, share) if has_plan else None,
            "memory_tight": any(row.is_tight(share) for row in self.memory) if has_plan else None,
            "certificate": self.certificate,
            "provenance": {
                **self.provenance,
                "instance": self.instance.model_dump(
                    mode="json", by_alias=True, exclude_unset=True, exclude_none=True
                ),
            },
            "synthesized": None if self.synthesized is None else self.synthesized.to_json(share),
        }


def _seconds(us: float | None) -> float | None:
    return None if us is None else us / 1e6
