"""Op tables: which ops every device runs and in which order, priced and checked exactly.

A :class:`ScheduleProblem` is the event graph of ``docs/time_model.md`` section 2 without its
template: the durations are given, the order of the ops is free.  An :class:`OpTable` is such an
order.  :func:`evaluate` runs it as early as possible; :func:`violations` checks a timeline against
every rule, and shares no arithmetic with the evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from planner.pipeline.ops import Op, OpKind
from planner.pipeline.schedules import Template, chunk_devices, device_orders

Edge = tuple[int, int]


@dataclass(frozen=True)
class ScheduleProblem:
    """Durations and memory of one pipeline whose op order is to be found.

    Attributes
    ----------
    devices
        Device of every chunk, in the order in which a microbatch visits the chunks.
    num_microbatches
        Microbatches of one iteration.
    forward, backward
        µs of an op, by chunk.  ``backward`` is the input gradient only where ``weight`` is given.
    weight
        µs of a weight gradient, by chunk; None where the backward is not split.
    delay, occupancy
        µs by directed pair of devices: from the begin of a transfer to its arrival, and from the
        begin of a transfer to that of the next one.  A missing pair is 0.
    start, end
        µs by device, before its first op may begin and after its last op.
    full, held
        Memory by chunk of a microbatch from its F on, and from a split B to its W; any unit.
    limit
        Memory by device, in the same unit.

    Raises
    ------
    ValueError
        If sizes do not fit together, a number is negative, ``held`` exceeds ``full``, or one
        microbatch does not fit on its device.
    """

    devices: tuple[int, ...]
    num_microbatches: int
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    weight: tuple[int, ...] | None
    delay: Mapping[Edge, int]
    occupancy: Mapping[Edge, int]
    start: tuple[int, ...]
    end: tuple[int, ...]
    full: tuple[int, ...]
    held: tuple[int, ...]
    limit: tuple[int, ...]

    def __post_init__(self) -> None:
        """Check sizes and ranges."""
        chunks = len(self.devices)
        if chunks == 0 or self.num_microbatches < 1:
            raise ValueError("a schedule needs at least one chunk and one microbatch")
        if set(self.devices) != set(range(self.num_devices)):
            raise ValueError(f"devices {self.devices} are not numbered from 0 without a hole")
        by_chunk = {"forward": self.forward, "backward": self.backward, "weight": self.weight}
        by_chunk |= {"full": self.full, "held": self.held}
        by_device = {"start": self.start, "end": self.end, "limit": self.limit}
        for sizes, count in ((by_chunk, chunks), (by_device, self.num_devices)):
            for name, values in sizes.items():
                if values is not None and (len(values) != count or min(values) < 0):
                    raise ValueError(f"{name} needs {count} numbers of at least 0, not {values}")
        for name, edges in (("delay", self.delay), ("occupancy", self.occupancy)):
            if edges and min(edges.values()) < 0:
                raise ValueError(f"{name} is negative somewhere: {dict(edges)}")
        if any(held > full for held, full in zip(self.held, self.full, strict=True)):
            raise ValueError(f"held {self.held} exceeds full {self.full}")
        for device in range(self.num_devices):
            need = sum(self.full[k] for k in self.chunks_of(device))
            if need > self.limit[device]:
                raise ValueError(
                    f"one microbatch needs {need} on device {device}, the limit is "
                    f"{self.limit[device]}"
                )

    @property
    def num_devices(self) -> int:
        """Number of devices."""
        return max(self.devices) + 1

    @property
    def num_chunks(self) -> int:
        """Number of chunks of the whole pipeline."""
        return len(self.devices)

    @cached_property
    def kinds(self) -> tuple[OpKind, ...]:
        """The kinds of ops, in the order in which a chunk runs them for one microbatch."""
        return ("F", "B") if self.weight is None else ("F", "B", "W")

    @property
    def num_ops(self) -> int:
        """Ops of one iteration on all devices."""
        return len(self.kinds) * self.num_chunks * self.num_microbatches

    @cached_property
    def _chunks_by_device(self) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(k for k, host in enumerate(self.devices) if host == device)
            for device in range(self.num_devices)
        )

    def chunks_of(self, device: int) -> tuple[int, ...]:
        """The chunks of a device, in visiting order."""
        return self._chunks_by_device[device]

    @cached_property
    def _durations(self) -> dict[OpKind, tuple[int, ...]]:
        return {"F": self.forward, "B": self.backward, "W": self.weight or ()}

    def duration(self, kind: OpKind, chunk: int) -> int:
        """µs of an op."""
        return self._durations[kind][chunk]

    def source(self, kind: OpKind, chunk: int) -> tuple[OpKind, int] | None:
        """Kind and chunk of the op whose result an op takes over from another chunk."""
        if kind == "F" and chunk > 0:
            return ("F", chunk - 1)
        if kind == "B" and chunk + 1 < self.num_chunks:
            return ("B", chunk + 1)
        return None

    def edge(self, kind: OpKind, chunk: int) -> Edge | None:
        """The directed pair of devices that carries the result of an op, None if none does."""
        after = chunk + 1 if kind == "F" else chunk - 1
        if kind == "W" or not 0 <= after < self.num_chunks:
            return None
        pair = (self.devices[chunk], self.devices[after])
        return None if pair[0] == pair[1] else pair

    @cached_property
    def edges(self) -> dict[Edge, tuple[tuple[OpKind, int], ...]]:
        """The kinds and chunks whose results every directed pair of devices carries."""
        found: dict[Edge, list[tuple[OpKind, int]]] = {}
        for kind in ("F", "B"):
            for chunk in range(self.num_chunks):
                pair = self.edge(kind, chunk)
                if pair is not None:
                    found.setdefault(pair, []).append((kind, chunk))
        return {pair: tuple(users) for pair, users in found.items()}

    def peak_units(self, kind: OpKind, chunk: int) -> int:
        """Memory that an op adds on its device (negative: frees)."""
        if kind == "F":
            return self.full[chunk]
        if kind == "W":
            return -self.held[chunk]
        kept = 0 if self.weight is None else self.held[chunk]
        return kept - self.full[chunk]

    def with_end(self, end: tuple[int, ...]) -> ScheduleProblem:
        """The same problem with other times after the last op."""
        return replace(self, end=end)


@dataclass(frozen=True)
class OpTable:
    """The ops of every device (a rank of the pipeline) in the order in which it runs them."""

    rows: tuple[tuple[Op, ...], ...]


@dataclass(frozen=True)
class Timeline:
    """An op table with the start of every op and the end of the iteration, in µs.

    ``starts[d][i]`` belongs to ``table.rows[d][i]``; ``begins[d][i]`` is when the transfer of that
    op's result begins (None where nothing is sent).
    """

    table: OpTable
    starts: tuple[tuple[int, ...], ...]
    begins: tuple[tuple[int | None, ...], ...]
    makespan: int


def template_table(template: Template) -> OpTable:
    """The op table of a fixed schedule."""
    return OpTable(device_orders(template))


def fits_template(problem: ScheduleProblem, template: Template) -> bool:
    """Whether a template has the chunks, microbatches and kinds of ops of a problem."""
    return (
        chunk_devices(template.schedule, template.pp, template.v) == problem.devices
        and template.m == problem.num_microbatches
        and template.rules.split_backward == (problem.weight is not None)
    )


def evaluate(problem: ScheduleProblem, table: OpTable) -> Timeline:
    """Run every op of a table as early as possible.

    The rules are those of ``docs/time_model.md`` section 2: asynchronous sends, transfers of one
    directed pair of devices in the order of their producers.

    Raises
    ------
    ValueError
        If the orders deadlock, an op is missing, occurs twice or sits on a wrong device.
    """
    rows = table.rows
    _require_complete(problem, table)
    finish: dict[Op, int] = {}
    arrival: dict[Op, int] = {}
    waiting: dict[Op, list[int]] = {}
    clock = list(problem.start)
    free: dict[Edge, int] = {}
    starts: list[list[int]] = [[] for _ in rows]
    begins: list[list[int | None]] = [[] for _ in rows]
    runnable = list(range(problem.num_devices))
    while runnable:
        device = runnable.pop()
        row, done = rows[device], starts[device]
        while len(done) < len(row):
            op = row[len(done)]
            begin = clock[device]
            blocked = None
            for need in _inputs(problem, op):
                there = finish if need.chunk == op.chunk else arrival
                if need not in there:
                    blocked = need
                    break
                begin = max(begin, there[need])
            if blocked is not None:
                waiting.setdefault(blocked, []).append(device)
                break
            clock[device] = finish[op] = begin + problem.duration(op.kind, op.chunk)
            done.append(begin)
            pair = problem.edge(op.kind, op.chunk)
            if pair is None:
                arrival[op] = clock[device]
                begins[device].append(None)
            else:
                sent = max(clock[device], free.get(pair, 0))
                free[pair] = sent + problem.occupancy.get(pair, 0)
                arrival[op] = sent + problem.delay.get(pair, 0)
                begins[device].append(sent)
            runnable += waiting.pop(op, ())
    if waiting:
        raise ValueError(f"the op table deadlocks; waited for: {sorted(waiting)}")
    makespan = max(ready + end for ready, end in zip(clock, problem.end, strict=True))
    return Timeline(table, tuple(map(tuple, starts)), tuple(map(tuple, begins)), makespan)


def _inputs(problem: ScheduleProblem, op: Op) -> list[Op]:
    """The ops of the same microbatch that an op needs."""
    kind, chunk, n = op
    needs: list[Op] = []
    source = problem.source(kind, chunk)
    if source is not None:
        needs.append(Op(source[0], source[1], n))
    if kind == "B":
        needs.append(Op("F", chunk, n))
    elif kind == "W":
        needs.append(Op("B", chunk, n))
    return needs


def _require_complete(problem: ScheduleProblem, table: OpTable) -> None:
    faults = _completeness(problem, table)
    if faults:
        raise ValueError(faults[0])


def _completeness(problem: ScheduleProblem, table: OpTable) -> list[str]:
    """Faults of a table as a list of ops: each op once, on the device of its chunk."""
    if len(table.rows) != problem.num_devices:
        return [f"the table has {len(table.rows)} rows for {problem.num_devices} devices"]
    faults = []
    for device, row in enumerate(table.rows):
        expected = {
            Op(kind, chunk, n)
            for kind in problem.kinds
            for chunk in problem.chunks_of(device)
            for n in range(problem.num_microbatches)
        }
        present = set(row)
        if len(present) != len(row):
            faults.append(f"device {device} runs an op twice")
        faults += [f"device {device} lacks {op}" for op in sorted(expected - present)[:1]]
        faults += [
            f"device {device} runs the strange {op}" for op in sorted(present - expected)[:1]
        ]
    return faults


def peak_memory(problem: ScheduleProblem, table: OpTable) -> tuple[int, ...]:
    """The most memory that every device holds at one time, in the unit of the problem."""
    peaks = []
    for row in table.rows:
        level = peak = 0
        for kind, chunk, _ in row:
            level += problem.peak_units(kind, chunk)
            peak = max(peak, level)
        peaks.append(peak)
    return tuple(peaks)


def violations(problem: ScheduleProblem, timeline: Timeline) -> list[str]:
    """Check a timeline against every rule; an empty list means that it is accepted.

    Each op once on the device of its chunk; one op at a time, in the order of the row; inputs
    there, transfers included; microbatches of one kind and chunk in order; one transfer at a time
    on a directed pair of devices, in the order of the producers; memory; the makespan.
    """
    faults = _completeness(problem, timeline.table)
    if faults:
        return faults
    begun: dict[Op, int] = {}
    sent: dict[Op, int | None] = {}
    for row, starts, begins in zip(
        timeline.table.rows, timeline.starts, timeline.begins, strict=True
    ):
        begun.update(zip(row, starts, strict=True))
        sent.update(zip(row, begins, strict=True))
    faults += _order_faults(problem, timeline)
    for op, begin in begun.items():
        for need in _inputs(problem, op):
            ready = begun[need] + problem.duration(need.kind, need.chunk)
            pair = problem.edge(need.kind, need.chunk)
            if need.chunk != op.chunk and pair is not None:
                transfer = sent[need]
                if transfer is None or transfer < ready:
                    faults.append(f"the transfer of {need} begins at {transfer}, before {ready}")
                    continue
                ready = transfer + problem.delay.get(pair, 0)
            if begin < ready:
                faults.append(f"{op} begins at {begin}, its input {need} is there at {ready}")
    faults += _transfer_faults(problem, timeline, sent)
    for device, peak in enumerate(peak_memory(problem, timeline.table)):
        if peak > problem.limit[device]:
            faults.append(f"device {device} holds {peak}, the limit is {problem.limit[device]}")
    last = max(
        begun[row[-1]] + problem.duration(row[-1].kind, row[-1].chunk) + problem.end[device]
        for device, row in enumerate(timeline.table.rows)
    )
    if last != timeline.makespan:
        faults.append(f"the last device is done at {last}, not at {timeline.makespan}")
    return faults


def _order_faults(problem: ScheduleProblem, timeline: Timeline) -> list[str]:
    """One op at a time, not before the device starts, microbatches in order."""
    faults = []
    for device, (row, starts) in enumerate(zip(timeline.table.rows, timeline.starts, strict=True)):
        if starts[0] < problem.start[device]:
            faults.append(
                f"device {device} begins at {starts[0]}, not from {problem.start[device]}"
            )
        for (op, begin), (after, follows) in pairwise(zip(row, starts, strict=True)):
            if follows < begin + problem.duration(op.kind, op.chunk):
                faults.append(f"{after} begins at {follows}, while {op} runs")
        expected: dict[tuple[OpKind, int], int] = {}
        for kind, chunk, n in row:
            if expected.get((kind, chunk), 0) != n:
                faults.append(f"device {device} runs {Op(kind, chunk, n)} out of order")
            expected[kind, chunk] = n + 1
    return faults


def _transfer_faults(
    problem: ScheduleProblem, timeline: Timeline, sent: Mapping[Op, int | None]
) -> list[str]:
    """Transfers of one directed pair of devices in the order of their producers, one at a time."""
    faults = []
    for pair, users in problem.edges.items():
        order: Sequence[Op] = [op for op in timeline.table.rows[pair[0]] if op[:2] in users]
        occupancy = problem.occupancy.get(pair, 0)
        for op, after in pairwise(order):
            first, second = sent[op], sent[after]
            if first is None or second is None or second < first + occupancy:
                faults.append(
                    f"the transfer of {after} begins at {second}, that of {op} at {first} keeps "
                    f"the link {pair} for {occupancy}"
                )
    return faults
