"""How little memory a layer split can need, for one schedule and option of a case.

The need of a stage is what :func:`planner.check.memory_of_layout` computes: state, live activations
by the op orders, working set.  Everything here is integer arithmetic in MiB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import comb
from typing import NamedTuple

from planner.choices import ScheduleChoice
from planner.cost.coefficients import CaseCoefficients, MemoryCosts, Option
from planner.pipeline.memory import live_counts
from planner.pipeline.schedules import SCHEDULES, Template, chunk_devices

MAX_SPLITS = 20_000
"""Splits of chunks with several kinds of layers are enumerated up to this number."""
MAX_NODES = 20_000
"""Nodes of the search for the most layers of one stage with several chunks."""

Split = tuple[int, ...]


class Fill(NamedTuple):
    """A split with the stages' rooms that it was made for; ``split`` None = none is known."""

    split: Split | None
    possible: bool
    """False where no split at all fits."""


class Least(NamedTuple):
    """The least (largest need ÷ limit) of all splits: a lower bound, and a split."""

    bound: Fraction
    split: Split | None


class Level(NamedTuple):
    """A memory limit in MiB and how many stages find a place at sites with at least this limit."""

    limit: int
    stages: int


class _Row(NamedTuple):
    """One live vector of a stage, or its optimizer step.

    MiB per layer of a chunk and kind, and what comes on top.
    """

    per_layer: tuple[tuple[int, ...], ...]
    on_top: int


@dataclass(frozen=True, eq=False)
class SplitNeeds:
    """Memory of the stages of one (schedule, option) of a case, as a function of the split."""

    co: CaseCoefficients
    choice: ScheduleChoice
    option: Option

    @cached_property
    def pp(self) -> int:
        """Stages."""
        return self.co.degrees.pp

    @cached_property
    def total(self) -> int:
        """Layers of the model."""
        return len(self.co.layer_units)

    @cached_property
    def chunks(self) -> tuple[tuple[int, ...], ...]:
        """Chunks of every stage, in visiting order."""
        degrees = self.co.degrees
        devices = chunk_devices(self.choice.schedule, degrees.pp, degrees.virtual_stages)
        return tuple(
            tuple(k for k, device in enumerate(devices) if device == s) for s in range(self.pp)
        )

    @property
    def fixed(self) -> Split | None:
        """The one split that the search allows, where it fixes one."""
        fixed = self.co.problem.search.fixed_layers_per_stage
        return None if fixed is None else tuple(fixed)

    @cached_property
    def uniform(self) -> bool:
        """Whether all layers are of one kind."""
        return len(set(self.co.layer_units)) == 1

    @cached_property
    def stages(self) -> tuple[tuple[_Row, ...], ...]:
        """The rows of every stage; the need is the largest of them for the layers of its chunks."""
        co, degrees = self.co, self.co.degrees
        template = Template(
            self.choice.schedule,
            degrees.pp,
            degrees.virtual_stages,
            co.num_microbatches,
            self.choice.run_length,
            (0,) * degrees.pp,
        )
        costs = co.memory(self.option)
        split = SCHEDULES[self.choice.schedule].split_backward
        active = costs.split_activation if split else costs.activation
        last = degrees.pp * degrees.virtual_stages - 1
        result = []
        for chunks, vectors in zip(self.chunks, live_counts(template), strict=True):
            rows = []
            for vector in vectors:
                unit = [
                    [
                        costs.state[u] + full * active[u] + held * costs.held[u]
                        for u in range(len(co.units))
                    ]
                    for full, held in zip(vector.full, vector.held, strict=True)
                ]
                on_top = costs.head_working if last in chunks else costs.working
                if 0 in chunks:
                    on_top += unit[chunks.index(0)][co.units.index("embedding")]
                if last in chunks:
                    on_top += unit[chunks.index(last)][co.units.index("head")]
                kinds = range(len(co.kinds))
                rows.append(_Row(tuple(tuple(u[k] for k in kinds) for u in unit), on_top))
            if any(costs.step):
                rows.append(self._step_row(costs, chunks, last))
            result.append(tuple(rows))
        return tuple(result)

    def _step_row(self, costs: MemoryCosts, chunks: tuple[int, ...], last: int) -> _Row:
        """The optimizer step of a stage."""
        unit = tuple(kept + step for kept, step in zip(costs.state, costs.step, strict=True))
        on_top = costs.step_working
        if 0 in chunks:
            on_top += unit[self.co.units.index("embedding")]
        if last in chunks:
            on_top += unit[self.co.units.index("head")]
        return _Row((unit[: len(self.co.kinds)],) * len(chunks), on_top)

    def least(self, limits: Sequence[int]) -> Least:
        """The least largest (need ÷ limit) of any split, the stages' limits being ``limits``.

        Bisection over the ratio; the bound is attained by ``split`` unless that is None or its own
        ratio (:meth:`ratio`) is larger.
        """
        if self.fixed is not None:
            return Least(self.ratio(self.fixed, limits), self.fixed)
        scale = _Scale(limits)
        low, high, found = 0, scale.whole, self.fill(scale.rooms(scale.whole))
        while not found.possible:
            low, high = high, 2 * high
            found = self.fill(scale.rooms(high))
        while low + 1 < high:
            middle = (low + high) // 2
            tried = self.fill(scale.rooms(middle))
            if tried.possible:
                high, found = middle, tried
            else:
                low = middle
        if found.split is None:
            found = found._replace(split=self.near_equal(limits))
        assert found.split is not None
        ratio = self.ratio(found.split, limits)
        return Least(ratio if ratio <= scale.ratio(high) else scale.above(low), found.split)

    def least_over_levels(self, levels: Sequence[Level]) -> tuple[Fraction, tuple[int, ...]]:
        """A lower bound on :meth:`least` over all ways to give the stages limits, and such a way.

        Layers of several kinds all count as the cheapest one, so the bound may be too small; with
        one kind it is :meth:`least` of the limits returned.
        """
        scale = _Scale([level.limit for level in levels])

        def assigned(step: int) -> tuple[int, ...] | None:
            rooms = scale.rooms(step)
            table = []
            for s in range(self.pp):
                row = []
                for room in rooms:
                    counts, exact = self.most(s, room)
                    row.append(sum(counts) if exact else self.total)
                table.append(row)
            chosen = assign_levels(table, levels)
            enough = chosen and sum(row[j] for row, j in zip(table, chosen, strict=True))
            return chosen if enough and enough >= self.total else None

        low, high, found = 0, scale.whole, assigned(scale.whole)
        while found is None:
            low, high = high, 2 * high
            found = assigned(high)
        while low + 1 < high:
            middle = (low + high) // 2
            tried = assigned(middle)
            if tried is None:
                low = middle
            else:
                high, found = middle, tried
        limits = tuple(levels[j].limit for j in found)
        exact = self.least(limits).bound
        return exact if exact <= scale.ratio(high) else scale.above(low), limits

    def needs(self, split: Split) -> tuple[int, ...]:
        """MiB of every stage."""
        ends = [0]
        for count in split:
            ends.append(ends[-1] + count)
        kinds = range(len(self.co.kinds))
        counts = [
            [self.prefix[u][ends[k + 1]] - self.prefix[u][ends[k]] for u in kinds]
            for k in range(len(split))
        ]
        return tuple(
            max(
                row.on_top
                + sum(
                    c * w
                    for k, per_kind in zip(chunks, row.per_layer, strict=True)
                    for c, w in zip(counts[k], per_kind, strict=True)
                )
                for row in rows
            )
            for chunks, rows in zip(self.chunks, self.stages, strict=True)
        )

    def ratio(self, split: Split, limits: Sequence[int]) -> Fraction:
        """The largest need ÷ limit of a stage."""
        return max(Fraction(n, limit) for n, limit in zip(self.needs(split), limits, strict=True))

    @cached_property
    def prefix(self) -> tuple[tuple[int, ...], ...]:
        """Per kind the number of its layers among the first ones."""
        rows = []
        for kind in range(len(self.co.kinds)):
            row = [0]
            for unit in self.co.layer_units:
                row.append(row[-1] + (unit == kind))
            rows.append(tuple(row))
        return tuple(rows)

    def fill(self, rooms: Sequence[int]) -> Fill:
        """A split whose stages need at most ``rooms``."""
        if self.fixed is not None:
            needs = zip(self.needs(self.fixed), rooms, strict=True)
            fits = all(need <= room for need, room in needs)
            return Fill(self.fixed if fits else None, fits)
        if self.uniform:
            return self._fill_uniform(rooms)
        if self.co.degrees.virtual_stages == 1:
            return self._fill_in_order(rooms)
        number = comb(self.total - 1, len(self.chunks) * self.co.degrees.virtual_stages - 1)
        if number <= MAX_SPLITS:
            return self._fill_by_trial(rooms)
        most = [sum(self.most(s, room)[0]) for s, room in enumerate(rooms)]
        return Fill(None, all(most) and sum(most) >= self.total)

    def _fill_uniform(self, rooms: Sequence[int]) -> Fill:
        """One kind of layer: every stage takes as many as it can, and then gives back."""
        row = [1] * (self.pp * self.co.degrees.virtual_stages)
        left, bound = self.total - len(row), 0
        proven = True
        for s, room in enumerate(rooms):
            counts, exact = self.most(s, room)
            if not counts:
                return Fill(None, False)
            proven = proven and exact
            for k, count in zip(self.chunks[s], counts, strict=True):
                taken = min(left, count - 1)
                row[k] += taken
                left -= taken
            bound += sum(counts) if exact else self.total
        if left:
            return Fill(None, not proven and bound >= self.total)
        return Fill(tuple(row), True)

    def most(self, stage: int, room: int) -> tuple[tuple[int, ...], bool]:
        """Layers per chunk of the fullest stage that needs at most ``room``, by the cheapest kind.

        Returns
        -------
        tuple
            The counts (empty where not even one layer per chunk fits) and whether no other ones
            have a larger sum.
        """
        rows = self.stages[stage]
        weights = [[min(w) for w in row.per_layer] for row in rows]
        slack = [room - row.on_top - sum(w) for row, w in zip(rows, weights, strict=True)]
        if min(slack) < 0:
            return (), True
        spare = self.total - self.pp * self.co.degrees.virtual_stages
        extra, exact = most_layers(weights, slack, spare)
        return tuple(1 + count for count in extra), exact

    def _fill_in_order(self, rooms: Sequence[int]) -> Fill:
        """One chunk a stage, several kinds: which prefixes of the layers the first stages can take.

        A stage that can begin at several layers and end at a given one begins as late as it can.
        """
        kinds, came_from = range(len(self.co.kinds)), []
        reachable = [position == 0 for position in range(self.total + 1)]
        for rows, room in zip(self.stages, rooms, strict=True):
            before: list[int] = [-1] * (self.total + 1)
            latest = -1
            for end in range(1, self.total + 1):
                latest = end - 1 if reachable[end - 1] else latest
                if latest < 0:
                    continue
                counts = [self.prefix[u][end] - self.prefix[u][latest] for u in kinds]
                if all(
                    row.on_top + sum(c * w for c, w in zip(counts, row.per_layer[0], strict=True))
                    <= room
                    for row in rows
                ):
                    before[end] = latest
            came_from.append(before)
            reachable = [start >= 0 for start in before]
        if not reachable[self.total]:
            return Fill(None, False)
        split, end = [], self.total
        for before in reversed(came_from):
            split.append(end - before[end])
            end = before[end]
        return Fill(tuple(reversed(split)), True)

    @cached_property
    def _trials(self) -> tuple[tuple[tuple[int, ...], Split], ...]:
        """All splits with the needs of their stages."""
        splits = compositions(self.total, self.pp * self.co.degrees.virtual_stages)
        return tuple((self.needs(split), split) for split in splits)

    def _fill_by_trial(self, rooms: Sequence[int]) -> Fill:
        for needs, split in self._trials:
            if all(need <= room for need, room in zip(needs, rooms, strict=True)):
                return Fill(split, True)
        return Fill(None, False)

    def near_equal(self, limits: Sequence[int]) -> Split:
        """A good split: near-equal, then single layers moved off the fullest stage."""
        chunks = self.pp * self.co.degrees.virtual_stages
        base, extra = divmod(self.total, chunks)
        best = tuple(base + (k < extra) for k in range(chunks))
        ratio = self.ratio(best, limits)
        while True:
            needs = self.needs(best)
            worst = max(range(self.pp), key=lambda s: Fraction(needs[s], limits[s]))
            moved = [
                tuple(n - (k == source) + (k == target) for k, n in enumerate(best))
                for source in self.chunks[worst]
                if best[source] > 1
                for target in range(chunks)
                if target != source
            ]
            tried = min(((self.ratio(row, limits), row) for row in moved), default=(ratio, best))
            if tried[0] >= ratio:
                return best
            ratio, best = tried


def most_layers(
    weights: Sequence[Sequence[int]], slack: Sequence[int], most: int
) -> tuple[tuple[int, ...], bool]:
    """Whole numbers ``e >= 0`` of the largest sum with ``weights @ e <= slack``, at most ``most``.

    Returns
    -------
    tuple
        The numbers, and whether no others have a larger sum.
    """
    columns = len(weights[0])
    order = sorted(range(columns), key=lambda k: sum(row[k] for row in weights))
    rest = [
        [min(row[k] for k in order[i:]) for row in (*weights, _column_sums(weights))]
        for i in range(columns)
    ]
    best: list[int] = []
    best_sum, nodes = -1, 0

    def bound(i: int, left: Sequence[int]) -> int:
        values = [
            room // weight
            for room, weight in zip((*left, sum(left)), rest[i], strict=True)
            if weight
        ]
        return min(values, default=most)

    def visit(i: int, left: Sequence[int], taken: list[int]) -> None:
        nonlocal best, best_sum, nodes
        nodes += 1
        done = sum(taken)
        if done > best_sum:
            best, best_sum = taken + [0] * (columns - len(taken)), done
        if i == columns or best_sum >= most or nodes > MAX_NODES:
            return
        if done + min(bound(i, left), most - done) <= best_sum:
            return
        k = order[i]
        here = [room // row[k] for room, row in zip(left, weights, strict=True) if row[k]]
        for count in range(min(min(here, default=most), most - done), -1, -1):
            after = [room - count * row[k] for room, row in zip(left, weights, strict=True)]
            visit(i + 1, after, [*taken, count])

    visit(0, slack, [])
    result = [0] * columns
    for place, count in zip(order, best, strict=True):
        result[place] = count
    return tuple(result), nodes <= MAX_NODES or best_sum >= most


def assign_levels(
    table: Sequence[Sequence[int]], levels: Sequence[Level]
) -> tuple[int, ...] | None:
    """A level for every row such that the entries have the largest sum.

    Zero entries are not allowed, and the levels up to ``j`` take at most ``levels[j].stages`` rows.
    None where there is no such choice.
    """
    best: dict[tuple[int, ...], tuple[int, tuple[int, ...]]] = {(0,) * len(levels): (0, ())}
    for row in table:
        after: dict[tuple[int, ...], tuple[int, tuple[int, ...]]] = {}
        for used, (total, chosen) in best.items():
            for j, entry in enumerate(row):
                now = tuple(n + (i >= j) for i, n in enumerate(used))
                if not entry or any(n > level.stages for n, level in zip(now, levels, strict=True)):
                    continue
                if now not in after or after[now][0] < total + entry:
                    after[now] = total + entry, (*chosen, j)
        best = after
    return max(best.values(), default=(0, None))[1]


def _column_sums(rows: Sequence[Sequence[int]]) -> list[int]:
    return [sum(column) for column in zip(*rows, strict=True)]


def compositions(total: int, parts: int) -> list[Split]:
    """All ways to write ``total`` as an ordered sum of positive parts."""
    if parts == 1:
        return [(total,)] if total > 0 else []
    return [
        (first, *rest)
        for first in range(1, total - parts + 2)
        for rest in compositions(total - first, parts - 1)
    ]


class _Scale:
    """Whole numbers that stand for ratios: one MiB of a common limit, else fine enough to be exact.

    Two different quotients of a need by one of two limits differ by more than a step.
    """

    def __init__(self, limits: Sequence[int]) -> None:
        self.limits = tuple(limits)
        largest = max(limits)
        self.whole = largest if min(limits) == largest else 2 * largest * largest

    def rooms(self, step: int) -> tuple[int, ...]:
        """MiB of every stage."""
        return tuple(step * limit // self.whole for limit in self.limits)

    def ratio(self, step: int) -> Fraction:
        """What the step stands for."""
        return Fraction(step, self.whole)

    def above(self, step: int) -> Fraction:
        """The least quotient of a need above a step, or something smaller."""
        if self.whole == self.limits[0]:
            return Fraction(step + 1, self.whole)
        return Fraction(step, self.whole)


def quick_need(
    co: CaseCoefficients, costs: MemoryCosts, chunks: int = 1, run_length: int | None = None
) -> int:
    """No split and no schedule of a case needs less MiB than this at its worst stage.

    When its first backward begins a stage holds a microbatch of all its layers, and of all its
    chunks but the last one a whole run.
    """
    counts = [co.layer_units.count(u) for u in range(len(co.kinds))]
    kinds = range(len(co.kinds))
    embedding, head = len(counts), len(counts) + 1
    each = [a + b for a, b in zip(costs.state, costs.activation, strict=True)]
    layer = min(each[u] for u in kinds)
    pp = co.degrees.pp
    working = min(costs.working, costs.head_working)
    whole = sum(counts[u] * each[u] for u in kinds) + each[embedding] + each[head]
    runs = (chunks - 1) * ((run_length or 1) - 1) * min(costs.activation[u] for u in kinds)
    return runs + max(
        -(-whole // pp) + working,
        -(-len(co.layer_units) // pp) * layer + working,
        costs.head_working + each[head] + layer,
        working + each[embedding] + layer,
    )
