"""Where the stages of a case can legally run, and with which memory limits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import NamedTuple

from planner import space
from planner.choices import CaseChoices, ScheduleChoice
from planner.cost.coefficients import Option
from planner.layout import Layout
from planner.problem import Problem
from planner.search.heuristic import best_protocols, direct_flows
from planner.search.memory_need import Level

MAX_GRIDS = 20_000
"""All placements of a case are looked at up to this number."""

Row = tuple[int, ...]
Grid = tuple[Row, ...]


class Place(NamedTuple):
    """A legal placement with the smallest limit of the sites of every stage, MiB."""

    limits: tuple[int, ...]
    layout: Layout
    """Without layers, and with the option that was asked for."""


def reachable_groups(problem: Problem) -> tuple[tuple[int, ...], ...]:
    """The sites in groups: no plan uses sites of two of them."""
    groups: list[set[int]] = []
    for d in range(len(problem.sites)):
        near = {d, *(e for pair in problem.routes if d in pair for e in pair)}
        for group in [g for g in groups if g & near]:
            near |= group
            groups.remove(group)
        groups.append(near)
    return tuple(sorted(tuple(sorted(group)) for group in groups))


@dataclass(frozen=True, eq=False)
class LegalPlaces:
    """Placements of one case and schedule."""

    choices: CaseChoices
    choice: ScheduleChoice
    groups: tuple[tuple[int, ...], ...]

    @cached_property
    def unit(self) -> int:
        """Replicas of a stage at a site are a multiple of this."""
        spanning = self.choices.problem.search.shard_across_sites
        return space.granularity(self.choices.co.degrees, spanning=spanning)

    def levels(self, group: Iterable[int]) -> tuple[Level, ...]:
        """Limits of a group, descending, with the stages that fit at sites of at least each.

        Empty where the group cannot hold all stages; which kinds of placement are allowed is not
        looked at.
        """
        co, degrees = self.choices.co, self.choices.co.degrees
        if degrees.dp % self.unit:
            return ()
        each = degrees.dp // self.unit
        room: dict[int, int] = {}
        for d in group:
            if co.cells[d] >= self.unit:
                limit = co.limit_mib[d]
                room[limit] = room.get(limit, 0) + co.cells[d] // self.unit
        result, total = [], 0
        for limit in sorted(room, reverse=True):
            total += room[limit]
            result.append(Level(limit, min(degrees.pp, total // each)))
        used = [level for level in result if level.stages]
        if not used or used[-1].stages < degrees.pp:
            return ()
        first_full = next(i for i, level in enumerate(used) if level.stages == degrees.pp)
        return tuple(used[: first_full + 1])

    def with_limits(
        self, option: Option, group: Sequence[int], limits: Sequence[int]
    ) -> Place | None:
        """A legal placement in a group whose stages have at least these limits, if one is found."""
        for grid in self._grids(group, limits):
            if grid is not None:
                for place in self._places(option, grid):
                    if all(a >= b for a, b in zip(place.limits, limits, strict=True)):
                        return place
        return None

    def every(self, option: Option) -> list[Place] | None:
        """The placements whose limits no other one exceeds; None where there are too many."""
        co, degrees = self.choices.co, self.choices.co.degrees
        rows = _rows(degrees.dp, co.cells, self.unit)
        if rows is None or len(rows) ** degrees.pp > MAX_GRIDS:
            return None
        kept: list[Place] = []
        for grid in product(rows, repeat=degrees.pp):
            used = [sum(column) for column in zip(*grid, strict=True)]
            if any(n > room for n, room in zip(used, co.cells, strict=True)):
                continue
            limits = self._limits(grid)
            if any(_covers(place.limits, limits) for place in kept):
                continue
            for place in self._places(option, grid):
                kept = [p for p in kept if not _covers(limits, p.limits)] + [place]
                break
        return kept

    def _limits(self, grid: Grid) -> tuple[int, ...]:
        limit = self.choices.co.limit_mib
        return tuple(min(limit[d] for d, count in enumerate(row) if count) for row in grid)

    def _grids(self, group: Sequence[int], limits: Sequence[int]) -> Iterator[Grid | None]:
        """One site, the same rows everywhere, stage after stage, and sites filled up."""
        co, degrees = self.choices.co, self.choices.co.degrees
        sites = sorted(group, key=lambda d: (-co.limit_mib[d], -co.cells[d], d))
        for d in sites:
            if co.cells[d] >= degrees.pp * degrees.dp and degrees.dp % self.unit == 0:
                yield (self._row({d: degrees.dp}),) * degrees.pp
        yield self._by_stage(sites, limits, degrees.dp)
        yield self._by_stage(sites, limits, self.unit)
        for most in (degrees.dp - self.unit, -(-degrees.dp // len(sites)), degrees.dp // 2):
            row, left = {}, degrees.dp
            for d in sites:
                row[d] = min(left, most, co.cells[d] // degrees.pp) // self.unit * self.unit
                left -= row[d]
            yield None if left else (self._row(row),) * degrees.pp

    def _row(self, counts: dict[int, int]) -> Row:
        return tuple(counts.get(d, 0) for d in range(len(self.choices.co.cells)))

    def _by_stage(self, sites: Sequence[int], limits: Sequence[int], step: int) -> Grid | None:
        """Stages with the largest limits first, each put down in steps of so many replicas."""
        co, degrees = self.choices.co, self.choices.co.degrees
        free = [cells // self.unit * self.unit for cells in co.cells]
        rows: dict[int, Row] = {}
        if degrees.dp % step or step % self.unit:
            return None
        for s in sorted(range(degrees.pp), key=lambda s: (-limits[s], s)):
            counts, left = {}, degrees.dp
            for d in sites:
                if co.limit_mib[d] >= limits[s]:
                    counts[d] = min(left, free[d]) // step * step
                    free[d] -= counts[d]
                    left -= counts[d]
            if left:
                return None
            rows[s] = self._row(counts)
        return tuple(rows[s] for s in range(degrees.pp))

    def _places(self, option: Option, grid: Grid) -> Iterator[Place]:
        """The grid with flows, synchronisation and protocols, where they are legal."""
        choices, co = self.choices, self.choices.co
        flows = direct_flows(choices.problem, self.choice, co, grid)
        if flows is None:
            return
        whole = space.granularity(co.degrees, spanning=False)
        spanning = any(count % whole for row in grid for count in row)
        layout = Layout(
            degrees=co.degrees,
            schedule=self.choice.schedule,
            run_length=self.choice.run_length,
            extra_warmup=(0,) * co.degrees.pp,
            option=option._replace(spanning=spanning),
            sync=choices.syncs[0],
            layers=(),
            replicas=grid,
            flows=flows,
            protocols={},
        )
        for variant in (layout, *self._swapped(layout)):
            if variant.placement_kind not in choices.placement_kinds:
                continue
            for sync in choices.syncs:
                synced = variant._replace(sync=sync)
                protocols = best_protocols(choices.problem, co, synced)
                if protocols is not None:
                    yield Place(self._limits(grid), synced._replace(protocols=protocols))
                    return

    def _swapped(self, layout: Layout) -> Iterator[Layout]:
        """Equal rows with two replicas that change places at the first boundary."""
        routes = self.choices.problem.routes
        if layout.placement_kind != "dp-out" or not layout.flows:
            return
        hosts = layout.hosts(0)
        for d, e in ((d, e) for d in hosts for e in hosts if d < e):
            if {(d, e), (e, d)} <= routes.keys():
                stays = {move[:2]: move[2] for move in layout.flows[0]}
                stays[d, d] -= 1
                stays[e, e] -= 1
                stays[d, e] = stays[e, d] = 1
                first = tuple((*pair, count) for pair, count in sorted(stays.items()) if count)
                yield layout._replace(flows=(first, *layout.flows[1:]))
                return


def _covers(left: Sequence[int], right: Sequence[int]) -> bool:
    return all(a >= b for a, b in zip(left, right, strict=True))


def _rows(total: int, room: Sequence[int], unit: int) -> list[Row] | None:
    """All ways to deal ``total`` replicas to sites in multiples of ``unit``; None = too many."""
    partial: list[tuple[Row, int]] = [] if total % unit else [((), total)]
    for i, cells in enumerate(room):
        later = sum(c // unit * unit for c in room[i + 1 :])
        partial = [
            ((*row, here), left - here)
            for row, left in partial
            for here in range(0, min(left, cells) + 1, unit)
            if left - here <= later
        ]
        if len(partial) > MAX_GRIDS:
            return None
    return [row for row, _ in partial]
