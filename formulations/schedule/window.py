"""Which ops of an op table a model may move, and what the others leave to them.

Per device a window is a stretch of its row.  The ops before it keep their starts, so they give
every op of the window a release; the ops after it keep their order, so they give it a remainder.
The ops of one class (kind and chunk) keep the order of the microbatches, so a window holds one
range of microbatches of every class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

from planner.pipeline.op_table import Edge, ScheduleProblem, Timeline
from planner.pipeline.ops import Op, OpKind
from planner.pipeline.schedule_bound import ScheduleBound

_Class = tuple[OpKind, int]


@dataclass(frozen=True)
class Window:
    """The ops that may move.

    Attributes
    ----------
    ops
        By device, in an order that is possible.
    done
        By class, how many of its ops lie before the window.
    release
        µs; no op may start earlier.
    remainder
        µs from the end of an op to the end of the iteration, at least.
    link_release
        µs by directed pair of devices: no transfer may begin earlier.
    link_remainder
        µs by directed pair of devices from the begin of a transfer to the end of the iteration.
    """

    ops: tuple[tuple[Op, ...], ...]
    done: Mapping[_Class, int]
    release: Mapping[Op, int]
    remainder: Mapping[Op, int]
    link_release: Mapping[Edge, int]
    link_remainder: Mapping[Edge, int]


def whole(problem: ScheduleProblem, bound: ScheduleBound, timeline: Timeline) -> Window:
    """All ops, with the heads and tails of the bound."""
    everything = [
        Op(kind, chunk, n)
        for kind, chunk, n in product(
            problem.kinds, range(problem.num_chunks), range(problem.num_microbatches)
        )
    ]
    return Window(
        timeline.table.rows,
        {(kind, chunk): 0 for kind, chunk, _ in everything},
        {op: int(bound.heads[op.kind, op.chunk][op.microbatch]) for op in everything},
        {op: int(bound.tails[op.kind, op.chunk][op.microbatch]) for op in everything},
        {},
        {},
    )


def time_window(
    problem: ScheduleProblem, bound: ScheduleBound, timeline: Timeline, begin: int, end: int
) -> Window:
    """The ops that start from ``begin`` to before ``end`` (µs) in a timeline."""
    before: list[Op] = []
    after: list[tuple[int, int, Op]] = []
    inside: list[tuple[Op, ...]] = []
    start: dict[Op, int] = {}
    sent: dict[Op, int | None] = {}
    for row, starts, begins in zip(
        timeline.table.rows, timeline.starts, timeline.begins, strict=True
    ):
        start.update(zip(row, starts, strict=True))
        sent.update(zip(row, begins, strict=True))
        before += [op for op in row if start[op] < begin]
        inside.append(tuple(op for op in row if begin <= start[op] < end))
        after += [(start[op], place, op) for place, op in enumerate(row) if start[op] >= end]
    free = {op for row in inside for op in row}
    done = Counter((op.kind, op.chunk) for op in before)
    clock, link_release = _after_prefix(problem, before, start, sent)
    latest, link_latest, device_latest = _before_suffix(problem, timeline.makespan, after)
    release, remainder = {}, {}
    for op in free:
        device = problem.devices[op.chunk]
        head = max(clock[device], int(bound.heads[op.kind, op.chunk][op.microbatch]))
        source = problem.source(op.kind, op.chunk)
        if source is not None:
            producer = Op(*source, op.microbatch)
            if producer not in free:
                head = max(head, _arrival(problem, producer, start, sent))
        release[op] = head
        allowed = device_latest[device]
        pair = problem.edge(op.kind, op.chunk)
        for follower in _followers(problem, op):
            if follower in latest:
                delay = 0
                if pair is not None and follower.chunk != op.chunk:
                    delay = problem.delay.get(pair, 0)
                allowed = min(allowed, latest[follower] - delay)
        tail = int(bound.tails[op.kind, op.chunk][op.microbatch])
        remainder[op] = max(tail, timeline.makespan - allowed)
    return Window(
        tuple(inside),
        {cls: done.get(cls, 0) for cls in product(problem.kinds, range(problem.num_chunks))},
        release,
        remainder,
        link_release,
        {
            pair: problem.occupancy.get(pair, 0) + timeline.makespan - moment
            for pair, moment in link_latest.items()
        },
    )


def _arrival(
    problem: ScheduleProblem, op: Op, start: Mapping[Op, int], sent: Mapping[Op, int | None]
) -> int:
    moment = sent[op]
    pair = problem.edge(op.kind, op.chunk)
    if moment is None or pair is None:
        return start[op] + problem.duration(op.kind, op.chunk)
    return moment + problem.delay.get(pair, 0)


def _after_prefix(
    problem: ScheduleProblem,
    before: list[Op],
    start: Mapping[Op, int],
    sent: Mapping[Op, int | None],
) -> tuple[list[int], dict[Edge, int]]:
    """When every device, and every link that is in use, has done the ops before the window."""
    clock = list(problem.start)
    links: dict[Edge, int] = {}
    for op in before:
        device = problem.devices[op.chunk]
        clock[device] = max(clock[device], start[op] + problem.duration(op.kind, op.chunk))
        pair, moment = problem.edge(op.kind, op.chunk), sent[op]
        if pair is not None and moment is not None:
            links[pair] = max(links.get(pair, 0), moment + problem.occupancy.get(pair, 0))
    return clock, links


def _before_suffix(
    problem: ScheduleProblem, makespan: int, after: list[tuple[int, int, Op]]
) -> tuple[dict[Op, int], dict[Edge, int], list[int]]:
    """Latest starts of the ops behind the window, of their transfers by link, and by device."""
    latest: dict[Op, int] = {}
    links: dict[Edge, int] = {}
    clock = [makespan - end for end in problem.end]
    for _, _, op in sorted(after, reverse=True):
        device = problem.devices[op.chunk]
        end = clock[device]
        pair = problem.edge(op.kind, op.chunk)
        for follower in _followers(problem, op):
            moment = latest[follower]
            if pair is not None and follower.chunk != op.chunk:
                moment -= problem.delay.get(pair, 0)
                if pair in links:
                    moment = min(moment, links[pair] - problem.occupancy.get(pair, 0))
                links[pair] = moment
            end = min(end, moment)
        latest[op] = clock[device] = end - problem.duration(op.kind, op.chunk)
    return latest, links, clock


def _followers(problem: ScheduleProblem, op: Op) -> list[Op]:
    """The ops that need the result of an op: the next chunk's first, then the own chunk's."""
    kind, chunk, n = op
    found = []
    if kind == "F":
        if chunk + 1 < problem.num_chunks:
            found.append(Op("F", chunk + 1, n))
        found.append(Op("B", chunk, n))
    elif kind == "B":
        if chunk:
            found.append(Op("B", chunk - 1, n))
        if problem.weight is not None:
            found.append(Op("W", chunk, n))
    return found
