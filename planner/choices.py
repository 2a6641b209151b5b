"""What is left to decide inside one degrees case, after the user's restrictions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
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
    kept: frozenset[tuple[ScheduleChoice, Option]] | None = None
    """Pairs of schedule and option that are still of interest; None = all."""
    kinds: frozenset[PlacementKind] | None = None
    """Kinds of placement that are still of interest; None = all."""

    def only(self, pairs: Iterable[tuple[ScheduleChoice, Option]]) -> CaseChoices:
        """The same case with these pairs of schedule and option alone."""
        return replace(self, kept=frozenset(pairs))

    def placed(self, kinds: Iterable[PlacementKind]) -> CaseChoices:
        """The same case with these kinds of placement alone."""
        return replace(self, kinds=frozenset(kinds))

    @cached_property
    def pairs(self) -> tuple[tuple[ScheduleChoice, Option], ...]:
        """Pairs of schedule and option, in canonical order."""
        return tuple(
            pair
            for pair in product(self._all_schedules, self._all_options)
            if self.kept is None or pair in self.kept
        )

    @cached_property
    def schedules(self) -> tuple[ScheduleChoice, ...]:
        """Schedules that run with the case's chunks and microbatches."""
        return tuple(dict.fromkeys(choice for choice, _ in self.pairs))

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """State sharding, overlap, recompute."""
        return tuple(dict.fromkeys(option for _, option in self.pairs))

    @cached_property
    def _restrictions(self) -> dict[str, Sequence[Any]]:
        return self.problem.search.restrictions()

    def _allowed(self, name: str, value: object) -> bool:
        allowed = self._restrictions.get(name)
        return allowed is None or value in allowed

    @cached_property
    def _all_schedules(self) -> tuple[ScheduleChoice, ...]:
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
    def _all_options(self) -> tuple[Option, ...]:
        """State sharding, overlap, recompute.

        Overlapped synchronisation is never slower and needs no more memory, so where it is allowed
        nothing else is looked at.
        """
        allowed = [
            option
            for option in self.co.options()
            if all(
                self._allowed(name, getattr(option, name))
                for name in ("sharding", "overlap", "recompute")
            )
        ]
        overlapped = [option for option in allowed if option.overlap]
        return tuple(overlapped or allowed)

    @cached_property
    def syncs(self) -> tuple[Sync, ...]:
        """Ways to synchronise between sites."""
        return tuple(sync for sync in SYNCS if self._allowed("sync", sync))

    @cached_property
    def placement_kinds(self) -> tuple[PlacementKind, ...]:
        """Kinds of placement that are allowed."""
        return tuple(
            kind
            for kind in PLACEMENT_KINDS
            if self._allowed("placement_kind", kind) and (self.kinds is None or kind in self.kinds)
        )

    @cached_property
    def possible_kinds(self) -> tuple[PlacementKind, ...]:
        """Allowed kinds that the case can have.

        One stage cannot change site, and one replica cannot spread over several.
        """
        degrees = self.co.degrees
        possible = {"single-site"}
        if len(self.problem.sites) > 1:
            possible |= {"dp-out"} if degrees.dp > 1 else set()
            possible |= {"pp-out"} if degrees.pp > 1 else set()
            possible |= {"mixed"} if degrees.dp > 1 and degrees.pp > 1 else set()
        return tuple(kind for kind in self.placement_kinds if kind in possible)

    @cached_property
    def _warmup_values(self) -> tuple[int, ...]:
        allowed = self._restrictions.get("extra_warmup", space.EXTRA_WARMUP)
        return tuple(sorted({0, *allowed}))

    def warmup_steps(self, boundary: int) -> tuple[int, ...]:
        """Extra warm-up microbatches that may stand in front of a boundary that crosses sites.

        Steps with which the stage before the boundary has all microbatches in flight give the same
        op orders as the largest smaller step, so the first of them stands for all.
        """
        most = max(0, self.co.num_microbatches - self.co.degrees.pp + boundary)
        values = self._warmup_values
        enough = [step for step in values if step >= most]
        return tuple(step for step in values if step < most) + tuple(enough[:1])

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
        return wrong or not (self.pairs and self.syncs and self.placement_kinds)
