"""List scheduling: every device takes the most urgent op that is there, while memory lasts.

Urgency is a number per op (:data:`Keys`); the smaller goes first.  A device may wait for an op
that is more urgent than what is there: ``patience`` interpolates between schedules without
deliberate waiting (0) and active schedules (1), in which an op may be waited for as long as
nothing else could have ended meanwhile.

Sources: B. Giffler and G. L. Thompson, "Algorithms for solving production-scheduling problems",
Operations Research 8 (1960); the interpolation: C. Bierwirth and D. C. Mattfeld, "Production
scheduling and rescheduling with genetic algorithms", Evolutionary Computation 7 (1999).
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from planner.pipeline.op_table import OpTable, ScheduleProblem, Timeline
from planner.pipeline.ops import Op, OpKind

Class = tuple[OpKind, int]
"""Kind and chunk of ops that differ by their microbatch alone."""

Keys = Mapping[Class, Sequence[int]]
"""Urgency of every op, by class and microbatch."""

_NEVER = 1 << 62


class _Stream(NamedTuple):
    """What a device has to know of one class of ops."""

    cls: Class
    duration: int
    keys: Sequence[int]
    room: int
    """Memory that must be free before the op starts: its own and that of later chunks."""
    gain: int
    """Memory that the op adds on its device."""
    target: int
    """Number of the class that takes the result, -1 if none."""
    weight: int
    """Number of the class of the weight gradient that the op enables, -1 if none."""
    edge: int
    """Number of the directed pair of devices that carries the result, -1 if none."""


def list_schedule(
    problem: ScheduleProblem,
    keys: Keys,
    *,
    patience: float = 0.0,
) -> OpTable:
    """Return the op table that a list scheduler builds.

    A forward starts only if one microbatch more of every later chunk of the device still fits, so
    the schedule never deadlocks: the microbatches in the later chunks can always be finished.

    Parameters
    ----------
    problem
        The pipeline.
    keys
        Urgency of every op.
    patience
        From 0 (never wait on purpose) to 1 (active schedules).
    """
    order = [(kind, k) for kind in problem.kinds for k in range(problem.num_chunks)]
    number = {cls: i for i, cls in enumerate(order)}
    pairs = list(problem.edges)
    streams = [_stream(problem, cls, keys, number, pairs) for cls in order]
    m = problem.num_microbatches
    device_of = [problem.devices[k] for _, k in order]
    local = [
        [i for i, device in enumerate(device_of) if device == d] for d in range(problem.num_devices)
    ]
    delay = [problem.delay.get(pair, 0) for pair in pairs]
    occupancy = [problem.occupancy.get(pair, 0) for pair in pairs]
    free = [0] * len(pairs)
    ready: list[list[int]] = [[] for _ in order]
    ready[0] = [0] * m
    done = [0] * len(order)
    level = [0] * problem.num_devices
    clock = list(problem.start)
    wake = list(problem.start)
    rows: list[list[Op]] = [[] for _ in range(problem.num_devices)]
    heap = [(time, device) for device, time in enumerate(wake)]
    heapq.heapify(heap)
    while heap:
        now, device = heapq.heappop(heap)
        if now != wake[device]:
            continue
        candidates = []
        soonest = _NEVER
        first_end = _NEVER
        for i in local[device]:
            n = done[i]
            if n >= len(ready[i]):
                continue
            stream = streams[i]
            if stream.cls[0] == "F" and level[device] + stream.room > problem.limit[device]:
                continue
            begin = max(now, ready[i][n])
            candidates.append((stream.keys[n], begin, i))
            soonest = min(soonest, begin)
            first_end = min(first_end, begin + stream.duration)
        if not candidates:
            wake[device] = _NEVER
            continue
        if soonest > now:
            wake[device] = soonest
            heapq.heappush(heap, (soonest, device))
            continue
        latest = now + patience * (first_end - now)
        _, begin, i = min(c for c in candidates if c[1] <= latest)
        n = done[i]
        stream = streams[i]
        end = begin + stream.duration
        done[i] = n + 1
        level[device] += stream.gain
        clock[device] = wake[device] = end
        heapq.heappush(heap, (end, device))
        rows[device].append(Op(*stream.cls, n))
        if stream.weight >= 0:
            ready[stream.weight].append(end)
        if stream.target < 0:
            continue
        if stream.edge >= 0:
            sent = max(end, free[stream.edge])
            free[stream.edge] = sent + occupancy[stream.edge]
            end = sent + delay[stream.edge]
        ready[stream.target].append(end)
        other = device_of[stream.target]
        if other != device:
            end = max(end, clock[other])
            if end < wake[other]:
                wake[other] = end
                heapq.heappush(heap, (end, other))
    return OpTable(tuple(map(tuple, rows)))


def _stream(
    problem: ScheduleProblem,
    cls: Class,
    keys: Keys,
    number: Mapping[Class, int],
    pairs: Sequence[tuple[int, int]],
) -> _Stream:
    kind, k = cls
    chunks = problem.chunks_of(problem.devices[k])
    target: Class | None = None
    if kind == "F":
        last = k + 1 == problem.num_chunks
        target = ("B", k) if last else ("F", k + 1)
    elif kind == "B" and k:
        target = ("B", k - 1)
    edge = problem.edge(kind, k)
    return _Stream(
        cls,
        problem.duration(kind, k),
        keys[cls],
        sum(problem.full[j] for j in chunks if j >= k),
        problem.peak_units(kind, k),
        -1 if target is None else number[target],
        number["W", k] if kind == "B" and problem.weight is not None else -1,
        -1 if edge is None else pairs.index(edge),
    )


def latest_starts(problem: ScheduleProblem, timeline: Timeline) -> dict[Class, list[int]]:
    """Latest start of every op that keeps the makespan and the order of a timeline.

    Ordered by them, list scheduling often finds a shorter schedule (justification).

    Source: V. Valls, F. Ballestín and S. Quintanilla, "Justification and RCPSP: a technique that
    pays", EJOR 165 (2005).
    """
    m = problem.num_microbatches
    result: dict[Class, list[int]] = {
        (kind, k): [_NEVER] * m for kind in problem.kinds for k in range(problem.num_chunks)
    }
    entries = sorted(
        (
            (begin, place, op)
            for row, starts in zip(timeline.table.rows, timeline.starts, strict=True)
            for place, (op, begin) in enumerate(zip(row, starts, strict=True))
        ),
        reverse=True,
    )
    clock = [timeline.makespan - end for end in problem.end]
    sent: dict[tuple[int, int], int] = {}
    followers = _followers(problem)
    for _, _, (kind, k, n) in entries:
        device = problem.devices[k]
        end = clock[device]
        pair = problem.edge(kind, k)
        for follower in followers[kind, k]:
            latest = result[follower][n]
            if pair is not None and follower[1] != k:
                latest -= problem.delay.get(pair, 0)
                occupied = sent.get(pair, _NEVER) - problem.occupancy.get(pair, 0)
                latest = min(latest, occupied)
                sent[pair] = latest
            end = min(end, latest)
        begin = end - problem.duration(kind, k)
        result[kind, k][n] = begin
        clock[device] = begin
    return result


def _followers(problem: ScheduleProblem) -> dict[Class, list[Class]]:
    """The classes whose op of the same microbatch needs an op's result."""
    found: dict[Class, list[Class]] = {}
    for kind in problem.kinds:
        for k in range(problem.num_chunks):
            after: list[Class] = []
            if kind == "F" and k + 1 < problem.num_chunks:
                after.append(("F", k + 1))
            elif kind == "B" and k:
                after.append(("B", k - 1))
            if kind == "F":
                after.append(("B", k))
            elif kind == "B" and problem.weight is not None:
                after.append(("W", k))
            found[kind, k] = after
    return found


def keys_by_kind(problem: ScheduleProblem, order: str) -> dict[Class, list[int]]:
    """Urgency by the kind of an op, as in ``"BFW"``, and among equal kinds by microbatch."""
    count = problem.num_microbatches
    return {
        (kind, k): [order.index(kind) * count + n for n in range(count)]
        for kind in problem.kinds
        for k in range(problem.num_chunks)
    }
