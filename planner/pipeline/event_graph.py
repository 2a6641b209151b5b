"""The event graph of one training iteration and its longest paths.

``docs/time_model.md``, section 2, defines the graph.  A path is a sum of durations with
non-negative integer coefficients, so the coefficients of a longest path for some durations bound
the iteration time from below for all durations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from operator import index as exact_integer
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from planner.pipeline.ops import Op, OpKind
from planner.pipeline.schedules import Template, chunk_devices, device_orders

DurationKind = Literal[
    "F", "B", "W", "delay", "occupancy", "port", "service", "latency", "start", "end"
]


class Duration(NamedTuple):
    """One duration of the graph, in µs.

    ``index`` is the chunk of ``F``, ``B`` and ``W``, the device of ``start`` and ``end``, and the
    directed pair of devices of ``delay`` and ``occupancy``.  The durations of
    :mod:`planner.pipeline.link_orders` have more behind this pair: a directed link (``service``,
    ``latency``), or a pair of sites (``port``).
    """

    kind: DurationKind
    index: int | tuple[int, ...]  # type: ignore[assignment]  # hides tuple.index


class ScheduledOp(NamedTuple):
    """An op on a device with its start and end, in µs from the start of the iteration."""

    op: Op
    device: int
    start: int
    end: int


Path = tuple[int, dict[Duration, int]]
"""Length of a path in µs, and how often each duration occurs on it."""

_Index = npt.NDArray[np.int64]

_BATCH_THRESHOLD = 16
"""From this many value vectors on, NumPy over the batch beats a pass for each of them."""

_BATCH_CELLS = 2**23
"""Ops times value vectors that one NumPy pass keeps (64 MiB of arrival times)."""


class _OpRule(NamedTuple):
    """What an op of one kind and chunk depends on, for the same microbatch."""

    local: tuple[tuple[OpKind, int], ...]
    """Kinds and chunks of ops of the same device."""
    remote: tuple[OpKind, int] | None
    """Kind and chunk of the op whose transfer it waits for."""
    edge: int
    """Number of the directed edge that takes its result away, -1 if none."""


class _OrderedOps(NamedTuple):
    """Ops in an order that respects all dependencies, as one list a property."""

    level: list[int]
    """Most ops on a chain of dependencies that ends with the op."""
    device: list[int]
    op: list[Op]
    source: list[int]
    """Number of the op whose transfer the op waits for, -1 if none."""
    edge: list[int]
    """Number of the directed edge that takes the op's result away, -1 if none."""


class GraphLists(NamedTuple):
    """An event graph as one list a property; ops and variables are numbers."""

    device: list[int]
    length: list[int]
    """By op the variable of its duration."""
    source: list[int]
    """By op the op whose transfer it waits for, -1 if none."""
    edge: list[int]
    """By op the directed edge that takes its result away, -1 if none."""
    previous: list[int]
    """By op the one before it on the same device, -1 if none."""
    previous_transfer: list[int]
    """By op the one whose transfer goes before its own on the same edge, -1 if none."""
    last: list[int]
    """By device its last op."""
    delay: list[int]
    """By edge the variable of its delay."""
    occupancy: list[int]
    """By edge the variable of its occupancy, -1 where only one transfer takes it."""
    start: list[int]
    end: list[int]


class EventGraph:
    """The event graph of one template; build it with :func:`event_graph`.

    Attributes
    ----------
    template
        The template whose op orders the graph has.
    variables
        The durations that occur in the graph.

    Raises
    ------
    ValueError
        If the op orders deadlock.
    """

    def __init__(self, template: Template) -> None:
        self.template = template
        devices = chunk_devices(template.schedule, template.pp, template.v)
        self._edges = _directed_edges(devices)
        ops = _ordered_ops(template, devices, {edge: e for e, edge in enumerate(self._edges)})
        self._op, self._device, self._source, self._edge = ops.op, ops.device, ops.source, ops.edge
        self._level_starts = [
            i for i, level in enumerate(ops.level) if i == 0 or level != ops.level[i - 1]
        ]
        transfers = Counter(self._edge)
        kinds: tuple[OpKind, ...] = ("F", "B", "W") if template.rules.split_backward else ("F", "B")
        shared = [edge for e, edge in enumerate(self._edges) if transfers[e] > 1]
        stages = range(template.pp)
        self.variables: tuple[Duration, ...] = (
            *(Duration(kind, k) for kind in kinds for k in range(template.chunks)),
            *(Duration("delay", edge) for edge in self._edges),
            *(Duration("occupancy", edge) for edge in shared),
            *(Duration("start", stage) for stage in stages),
            *(Duration("end", stage) for stage in stages),
        )
        number = {variable: i for i, variable in enumerate(self.variables)}
        self._delay = [number[Duration("delay", edge)] for edge in self._edges]
        self._occupancy = [number.get(Duration("occupancy", edge), -1) for edge in self._edges]
        self._start = [number[Duration("start", stage)] for stage in stages]
        self._end = [number[Duration("end", stage)] for stage in stages]
        lengths = {
            (kind, k): number[Duration(kind, k)] for kind in kinds for k in range(template.chunks)
        }
        self._length = [lengths[kind, chunk] for kind, chunk, _ in self._op]
        self._previous, self._last = _predecessors(self._device, template.pp)
        self._previous_transfer, _ = _predecessors(self._edge, len(self._edges))

    @property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """The directed pairs of devices with transfers."""
        return self._edges

    @property
    def ops(self) -> list[Op]:
        """The ops in an order that respects all dependencies."""
        return self._op

    @property
    def lists(self) -> GraphLists:
        """Ops, edges and devices as numbers."""
        return GraphLists(
            self._device,
            self._length,
            self._source,
            self._edge,
            self._previous,
            self._previous_transfer,
            self._last,
            self._delay,
            self._occupancy,
            self._start,
            self._end,
        )

    def times(self, values: Mapping[Duration, int]) -> tuple[list[int], list[int]]:
        """Return when each of :attr:`ops` ends and when its transfer, if any, comes, in µs.

        Raises
        ------
        ValueError
            If a duration is missing or negative.
        """
        _, finish, arrival, _, _ = self._simulate(self.vector(values))
        return finish, arrival

    def evaluate(self, values: Mapping[Duration, int]) -> int:
        """Return the length of the longest path, in µs.

        Parameters
        ----------
        values
            A non-negative integer number of µs for each of :attr:`variables`.

        Raises
        ------
        ValueError
            If a duration is missing or negative.
        """
        length = self.vector(values)
        clock, _, _, _, _ = self._simulate(length)
        return max(ready + length[end] for ready, end in zip(clock, self._end, strict=True))

    def critical_path(self, values: Mapping[Duration, int]) -> Path:
        """Return the length of a longest path, and its coefficients (only those above 0).

        Of several longest paths it is the one that, followed from its end, takes the op before on
        the same device rather than a transfer, and a transfer's producer rather than the transfer
        before it; and that ends on the first such device.

        Raises
        ------
        ValueError
            If a duration is missing or negative.
        """
        length = self.vector(values)
        clock, _, _, waited, queued = self._simulate(length)
        totals = [ready + length[end] for ready, end in zip(clock, self._end, strict=True)]
        longest = max(totals)
        return longest, self._coefficients(totals.index(longest), waited, queued)

    def critical_paths(self, batch: Sequence[Mapping[Duration, int]]) -> list[Path]:
        """Return :meth:`critical_path` of every value vector, faster than one by one.

        Raises
        ------
        ValueError
            If a duration is missing or negative.
        """
        if len(batch) < _BATCH_THRESHOLD:
            return [self.critical_path(values) for values in batch]
        vectors = [self.vector(values) for values in batch]
        greatest = max(max(vector) for vector in vectors)
        if greatest * 3 * (len(self._op) + 1) >= 2**62:
            return [self.critical_path(values) for values in batch]
        slice_size = max(1, _BATCH_CELLS // len(self._op))
        paths: list[Path] = []
        for first in range(0, len(vectors), slice_size):
            paths += self._slice_paths(np.array(vectors[first : first + slice_size]).T)
        return paths

    def timeline(self, values: Mapping[Duration, int]) -> list[ScheduledOp]:
        """Return every op as early as it can run, by device and then in running order.

        Raises
        ------
        ValueError
            If a duration is missing or negative.
        """
        length = self.vector(values)
        _, finish, _, _, _ = self._simulate(length)
        scheduled = [
            ScheduledOp(op, device, end - length[duration], end)
            for op, device, duration, end in zip(
                self._op, self._device, self._length, finish, strict=True
            )
        ]
        return sorted(scheduled, key=lambda entry: entry.device)

    def vector(self, values: Mapping[Duration, int]) -> list[int]:
        """Return the values of :attr:`variables`, checked.

        Raises
        ------
        ValueError
            If a duration is missing or negative.
        """
        try:
            vector = [exact_integer(values[variable]) for variable in self.variables]
        except KeyError as error:
            raise ValueError(f"no value for {error.args[0]}") from error
        if min(vector) < 0:
            raise ValueError(f"negative value for {self.variables[vector.index(min(vector))]}")
        return vector

    def _simulate(
        self, length: list[int]
    ) -> tuple[list[int], list[int], list[int], bytearray, bytearray]:
        """Run all ops as early as possible.

        Returns
        -------
        tuple
            When each device has ended its last op, each op has ended, and its transfer has come;
            for each op whether its input came after its device was free, and whether its transfer
            had to queue.
        """
        clock = [length[start] for start in self._start]
        delay = [length[variable] for variable in self._delay]
        occupancy = [length[variable] if variable >= 0 else 0 for variable in self._occupancy]
        free = [0] * len(self._edges)
        finish: list[int] = []
        arrival: list[int] = []
        waited = bytearray(len(self._op))
        queued = bytearray(len(self._op))
        for position, (device, duration, source, edge) in enumerate(
            zip(self._device, self._length, self._source, self._edge, strict=True)
        ):
            now = clock[device]
            if source >= 0 and arrival[source] > now:
                now = arrival[source]
                waited[position] = 1
            now += length[duration]
            clock[device] = now
            finish.append(now)
            if edge >= 0:
                if free[edge] > now:
                    now = free[edge]
                    queued[position] = 1
                free[edge] = now + occupancy[edge]
                now += delay[edge]
            arrival.append(now)
        return clock, finish, arrival, waited, queued

    def _coefficients(
        self,
        device: int,
        waited: Sequence[int] | npt.NDArray[np.bool_],
        queued: Sequence[int] | npt.NDArray[np.bool_],
    ) -> dict[Duration, int]:
        """Follow a longest path back from the end of ``device`` and count its durations."""
        count = [0] * len(self.variables)
        count[self._end[device]] = 1
        position = self._last[device]
        while position >= 0:
            first = position
            count[self._length[position]] += 1
            if waited[position]:
                position = self._source[position]
                edge = self._edge[position]
                count[self._delay[edge]] += 1
                while queued[position]:
                    count[self._occupancy[edge]] += 1
                    position = self._previous_transfer[position]
            else:
                position = self._previous[position]
        count[self._start[self._device[first]]] = 1
        return {variable: c for variable, c in zip(self.variables, count, strict=True) if c}

    @cached_property
    def _levels(self) -> list[tuple[int, int, _Index, _Index, _Index, _Index]]:
        """Ops that do not depend on each other, as index arrays for :meth:`_slice_paths`.

        A missing source is the row after the last op, a missing edge the one after the last edge.
        """
        device = np.array(self._device)
        duration = np.array(self._length)
        source = np.array(self._source)
        source[source < 0] = len(self._op)
        edge = np.array(self._edge)
        edge[edge < 0] = len(self._edges)
        bounds = [*self._level_starts, len(self._op)]
        return [
            (low, high, device[low:high], duration[low:high], source[low:high], edge[low:high])
            for low, high in pairwise(bounds)
        ]

    def _slice_paths(self, length: npt.NDArray[np.int64]) -> list[Path]:
        """:meth:`critical_path` of the columns of ``length`` (one row a variable)."""
        size = length.shape[1]
        ops = len(self._op)
        none = np.zeros((1, size), dtype=np.int64)
        padded = np.vstack((length, none))
        clock = length[self._start]
        delay = padded[[*self._delay, -1]]
        occupancy = padded[[*self._occupancy, -1]]
        free = np.zeros_like(occupancy)
        arrival = np.full((ops + 1, size), -1, dtype=np.int64)
        waited = np.zeros((ops, size), dtype=np.bool_)
        queued = np.zeros((ops, size), dtype=np.bool_)
        for low, high, device, duration, source, edge in self._levels:
            ready = clock[device]
            came = arrival[source]
            np.greater(came, ready, out=waited[low:high])
            finish = np.maximum(ready, came)
            finish += length[duration]
            clock[device] = finish
            earliest = free[edge]
            np.greater(earliest, finish, out=queued[low:high])
            sent = np.maximum(finish, earliest)
            np.add(sent, delay[edge], out=arrival[low:high])
            sent += occupancy[edge]
            sent[edge == len(self._edges)] = 0
            free[edge] = sent
        totals = clock + length[self._end]
        last = totals.argmax(axis=0)
        return [
            (
                int(totals[last[column], column]),
                self._coefficients(int(last[column]), waited[:, column], queued[:, column]),
            )
            for column in range(size)
        ]


@lru_cache(maxsize=128)
def event_graph(template: Template) -> EventGraph:
    """Return the event graph of ``template``.

    Raises
    ------
    ValueError
        If the op orders deadlock.
    """
    return EventGraph(template)


def _directed_edges(devices: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return the directed device edges with transfers, both ways of every chunk boundary."""
    pairs = {(i, j) for i, j in pairwise(devices) if i != j}
    return tuple(sorted(pairs | {(j, i) for i, j in pairs}))


def _predecessors(lanes: Sequence[int], count: int) -> tuple[list[int], list[int]]:
    """For each entry the number of the one before in the same lane, and the last of each lane."""
    last = [-1] * count
    previous = []
    for position, lane in enumerate(lanes):
        if lane < 0:
            previous.append(-1)
        else:
            previous.append(last[lane])
            last[lane] = position
    return previous, last


def _ordered_ops(
    template: Template, devices: Sequence[int], edge_number: Mapping[tuple[int, int], int]
) -> _OrderedOps:
    """Return the ops by level and device: each after all ops that it depends on.

    An op depends on the op before it on its device and on the transfer that it waits for; the other
    dependencies are between ops of one device, where the order of the device has to keep them.
    """
    orders = device_orders(template)
    rules = _op_rules(template, devices, edge_number)
    position: dict[tuple[OpKind, int], list[int]] = {key: [-1] * template.m for key in rules}
    waiting: dict[tuple[OpKind, int, int], int] = {}
    next_op = [0] * template.pp
    level = [0] * template.pp
    found = _OrderedOps([], [], [], [], [])
    runnable = list(range(template.pp))
    while runnable:
        device = runnable.pop()
        order = orders[device]
        while next_op[device] < len(order):
            op = order[next_op[device]]
            kind, chunk, n = op
            local, remote, edge = rules[kind, chunk]
            for key in local:
                if position[key][n] < 0:
                    raise ValueError(f"{op} of {template} comes before its {key[0]}")
            source = -1
            if remote is not None:
                source = position[remote][n]
                if source < 0:
                    waiting[(*remote, n)] = device
                    break
                level[device] = max(level[device], found.level[source])
            level[device] += 1
            position[kind, chunk][n] = len(found.op)
            found.level.append(level[device])
            found.device.append(device)
            found.op.append(op)
            found.source.append(source)
            found.edge.append(edge)
            next_op[device] += 1
            if edge >= 0 and waiting:
                woken = waiting.pop(op, None)
                if woken is not None:
                    runnable.append(woken)
    if waiting:
        raise ValueError(f"the op orders of {template} deadlock; missing: {sorted(waiting)}")
    return _by_level(found)


def _op_rules(
    template: Template, devices: Sequence[int], edge_number: Mapping[tuple[int, int], int]
) -> dict[tuple[OpKind, int], _OpRule]:
    """Return the dependencies and the transfer of the ops of every kind and chunk."""
    rules: dict[tuple[OpKind, int], _OpRule] = {}
    steps: tuple[tuple[OpKind, int], ...] = (("F", 1), ("B", -1))
    for kind, step in steps:
        for chunk, device in enumerate(devices):
            local: list[tuple[OpKind, int]] = [("F", chunk)] if kind == "B" else []
            remote = None
            before, after = chunk - step, chunk + step
            if 0 <= before < len(devices):
                if devices[before] == device:
                    local.append((kind, before))
                else:
                    remote = (kind, before)
            edge = -1
            if 0 <= after < len(devices):
                edge = edge_number.get((device, devices[after]), -1)
            rules[kind, chunk] = _OpRule(tuple(local), remote, edge)
    if template.rules.split_backward:
        for chunk in range(len(devices)):
            rules["W", chunk] = _OpRule((("B", chunk),), None, -1)
    return rules


def _by_level(found: _OrderedOps) -> _OrderedOps:
    """Sort by level, then device, and renumber the sources."""
    order = np.lexsort((found.device, found.level)).tolist()
    rank = [0] * (len(order) + 1)
    rank[-1] = -1
    for new, old in enumerate(order):
        rank[old] = new
    return _OrderedOps(
        [found.level[i] for i in order],
        [found.device[i] for i in order],
        [found.op[i] for i in order],
        [rank[found.source[i]] for i in order],
        [found.edge[i] for i in order],
    )
