"""Models with a resource in time: one job at a time, and a level that must stay below a limit.

`SchedulingModel` is the algebra of `formulations.algebra` with two kinds of groups.  A group states
in one piece what would take a Boolean per pair of jobs, and an engine with `Feature.SCHEDULING`
takes it as it is.  `SchedulingModel.evaluate` checks groups as exactly as rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from formulations.algebra import Evaluation, Model, Variable, Violation


@dataclass(frozen=True, slots=True)
class NoOverlap:
    """Jobs ``(variable index of the start, duration)``, one at a time.

    A job of duration 0 takes no time, but lies in no other job.
    """

    family: str
    ordinal: int
    jobs: tuple[tuple[int, int], ...]

    @property
    def name(self) -> str:
        """Family and position."""
        return f"{self.family}[{self.ordinal}]"

    def excess(self, values: Sequence[int]) -> int:
        """By how much jobs overlap, 0 if they do not."""
        spans = sorted((values[start], values[start] + size) for start, size in self.jobs)
        worst, last = 0, None
        for begin, end in spans:
            if last is not None:
                worst = max(worst, last - begin)
            last = end if last is None else max(last, end)
        return worst


@dataclass(frozen=True, slots=True)
class Stay:
    """Something that takes ``demand`` of a level from one moment to another.

    A moment is (variable index, offset); None stands for always before and ever after.
    """

    begin: tuple[int, int] | None
    end: tuple[int, int] | None
    demand: int


@dataclass(frozen=True, slots=True)
class Level:
    """Stays whose demands never sum to more than ``limit``; an end frees before a begin takes."""

    family: str
    ordinal: int
    stays: tuple[Stay, ...]
    limit: int

    @property
    def name(self) -> str:
        """Family and position."""
        return f"{self.family}[{self.ordinal}]"

    def excess(self, values: Sequence[int]) -> int:
        """By how much the level exceeds the limit, 0 if it does not."""
        level = sum(stay.demand for stay in self.stays if stay.begin is None)
        events = []
        for stay in self.stays:
            begin = None if stay.begin is None else values[stay.begin[0]] + stay.begin[1]
            end = None if stay.end is None else values[stay.end[0]] + stay.end[1]
            if begin is not None and end is not None and end <= begin:
                continue
            if begin is not None:
                events.append((begin, stay.demand))
            if end is not None:
                events.append((end, -stay.demand))
        peak = level
        for _, change in sorted(events):
            level += change
            peak = max(peak, level)
        return max(0, peak - self.limit)


class SchedulingModel(Model):
    """A `Model` with groups of jobs and stays."""

    def __init__(self) -> None:
        super().__init__()
        self.no_overlaps: list[NoOverlap] = []
        self.levels: list[Level] = []

    def no_overlap(self, jobs: Iterable[tuple[Variable, int]], family: str) -> None:
        """Require that jobs, given by start and duration, run one at a time.

        Raises:
            TypeError: A duration is not an integer.
            ValueError: A duration is negative, or a variable belongs to another model.
        """
        encoded = []
        for start, size in jobs:
            if type(size) is not int:
                raise TypeError(f"family {family!r}: the duration {size!r} is not an int")
            if size < 0:
                raise ValueError(f"family {family!r}: the duration {size} is negative")
            self._check_scope(start.scope, family)
            encoded.append((start.index, size))
        ordinal = self._counts[family]
        self._counts[family] = ordinal + 1
        self.no_overlaps.append(NoOverlap(family, ordinal, tuple(encoded)))

    def level(
        self,
        stays: Iterable[tuple[tuple[Variable, int] | None, tuple[Variable, int] | None, int]],
        limit: int,
        family: str,
    ) -> None:
        """Require that stays ``(begin, end, demand)`` never take more than ``limit`` together.

        Raises:
            ValueError: A demand is negative, or a variable belongs to another model.
        """
        encoded = []
        for begin, end, demand in stays:
            if demand < 0:
                raise ValueError(f"family {family!r}: the demand {demand} is negative")
            for moment in (begin, end):
                if moment is not None:
                    self._check_scope(moment[0].scope, family)
            encoded.append(
                Stay(
                    None if begin is None else (begin[0].index, begin[1]),
                    None if end is None else (end[0].index, end[1]),
                    demand,
                )
            )
        ordinal = self._counts[family]
        self._counts[family] = ordinal + 1
        self.levels.append(Level(family, ordinal, tuple(encoded), limit))

    def families(self) -> dict[str, int]:
        """Return the number of rows and groups by family."""
        found = super().families()
        groups: list[NoOverlap | Level] = [*self.no_overlaps, *self.levels]
        for group in groups:
            found[group.family] = found.get(group.family, 0) + 1
        return found

    def without(self, families: Iterable[str] | str) -> SchedulingModel:
        """Return a copy that lacks the rows and groups of the given families.

        Raises:
            ValueError: A family does not occur in this model.
        """
        dropped = {families} if isinstance(families, str) else set(families)
        unknown = dropped - set(self.families())
        if unknown:
            raise ValueError(f"no such constraint family: {', '.join(sorted(unknown))}")
        copy = SchedulingModel()
        copy.__setstate__(self.__getstate__())
        copy._rows = [row for row in self._rows if row.family not in dropped]
        copy.no_overlaps = [g for g in self.no_overlaps if g.family not in dropped]
        copy.levels = [g for g in self.levels if g.family not in dropped]
        return copy

    def evaluate(self, assignment: Any) -> Evaluation:
        """Price an assignment exactly and list every row, bound and group that it breaks."""
        found = super().evaluate(assignment)
        values = self._values(assignment)
        groups: list[NoOverlap | Level] = [*self.no_overlaps, *self.levels]
        broken = [
            Violation(group.name, group.family, excess)
            for group in groups
            if (excess := group.excess(values)) > 0
        ]
        return Evaluation(found.objective, (*found.violations, *broken))

    def fingerprint(self) -> str:
        """Return the SHA-256 of variables, rows, groups and objective."""
        digest = hashlib.sha256(super().fingerprint().encode())
        for group in (*self.no_overlaps, *self.levels):
            digest.update(f"{group!r}\n".encode())
        return digest.hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        return {
            **super().__getstate__(),
            "no_overlaps": list(self.no_overlaps),
            "levels": list(self.levels),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.no_overlaps = state["no_overlaps"]
        self.levels = state["levels"]
