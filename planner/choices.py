"""What is left to decide inside one degrees case, after the user's restrictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from planner import space
from planner.cost.coefficients import CaseCoefficients, Option
from planner.pipeline.schedules import SCHEDULES, legal_run_lengths
from planner.plan import PLACEMENT_KINDS, SYNCS, PlacementKind, Sync
from planner.problem import Problem


class ScheduleChoice(NamedTuple):
    """A schedule with its run length."""

    schedule: str
    run_length: int | None

    @property
    def wraps(self) -> bool:
        """Whether several chunks go round the stages in a loop."""
        rules = SCHEDULES[self.schedule]
        return rules.chunk_map == "loop" and (rules.max_chunks is None or rules.max_chunks > 1)


@dataclass(frozen=True, eq=False)
class CaseChoices:
    """The alternatives of one degrees case, each list in canonical order."""

    problem: Problem
    co: CaseCoefficients

    @cached_property
    def _restrictions(self) -> dict[str, Sequence[Any]]:
        return self.problem.search.restrictions()

    def _allowed(self, name: str, value: object) -> bool:
        allowed = self._restrictions.get(name)
        return allowed is None or value in allowed

    @cached_property
    def schedules(self) -> tuple[ScheduleChoice, ...]:
        """Schedules that run with the case's chunks and microbatches."""
        degrees, m = self.co.degrees, self.co.num_microbatches
        result = []
        for name in space.schedules_for(degrees.virtual_stages):
            if not self._allowed("schedule", name):
                continue
            if SCHEDULES[name].has_run_length:
                result += [
                    ScheduleChoice(name, run)
                    for run in legal_run_lengths(degrees.pp, m)
                    if self._allowed("run_length", run)
                ]
            else:
                result.append(ScheduleChoice(name, None))
        return tuple(result)

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """State sharding, overlap, recompute."""
        return tuple(
            option
            for option in self.co.options()
            if all(
                self._allowed(name, getattr(option, name))
                for name in ("sharding", "overlap", "recompute")
            )
        )

    @cached_property
    def syncs(self) -> tuple[Sync, ...]:
        """Ways to synchronise between sites."""
        return tuple(sync for sync in SYNCS if self._allowed("sync", sync))

    @cached_property
    def placement_kinds(self) -> tuple[PlacementKind, ...]:
        """Kinds of placement that are allowed."""
        return tuple(kind for kind in PLACEMENT_KINDS if self._allowed("placement_kind", kind))

    @cached_property
    def warmup_steps(self) -> tuple[int, ...]:
        """Extra warm-up microbatches that may stand in front of a boundary that crosses sites."""
        allowed = self._restrictions.get("extra_warmup", range(space.MAX_EXTRA_WARMUP + 1))
        return tuple(sorted({0, *allowed}))

    @cached_property
    def fixed_layers(self) -> tuple[int, ...] | None:
        """Layers of every chunk, where the user gives them."""
        fixed = self.problem.search.fixed_layers_per_stage
        return None if fixed is None else tuple(fixed)

    @property
    def empty(self) -> bool:
        """Whether the restrictions leave nothing."""
        degrees = self.co.degrees
        chunks = degrees.pp * degrees.virtual_stages
        wrong = self.fixed_layers is not None and len(self.fixed_layers) != chunks
        return wrong or not (
            self.schedules and self.options and self.syncs and self.placement_kinds
        )
