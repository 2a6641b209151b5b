"""Periodic steady states: take one from a short table and repeat it for any number of microbatches.

At a moment of a timeline let ``c`` be, for every class of ops (kind and chunk), the number of its
ops that have started.  Where two moments differ by the same number ``s`` in every class, the ops
between them are a *cycle* of ``s`` microbatches: repeated any number of times, each time ``s``
microbatches later, they keep every rule.  An op of a repetition needs ops of its own repetition or
such that had started at its begin, and memory at both ends of a cycle is the same.  So a long
pipeline is as hard as a short one with fill, one cycle and drain.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from planner.pipeline.op_table import OpTable, ScheduleProblem, Timeline
from planner.pipeline.ops import Op, OpKind


class Cycle(NamedTuple):
    """Places in the rows of a table between which ``shift`` microbatches of every class start."""

    begin: tuple[int, ...]
    end: tuple[int, ...]
    shift: int
    length_us: int

    @property
    def period_us(self) -> float:
        """µs a microbatch."""
        return self.length_us / self.shift


def cycles(problem: ScheduleProblem, timeline: Timeline) -> Iterator[Cycle]:
    """Yield the cycles between the starts of two forwards of chunk 0, the shortest period first.

    Of the cycles with one begin only the shortest is looked at.
    """
    events = sorted(
        (start, device, place, op)
        for device, (row, starts) in enumerate(
            zip(timeline.table.rows, timeline.starts, strict=True)
        )
        for place, (op, start) in enumerate(zip(row, starts, strict=True))
    )
    done: dict[tuple[OpKind, int], int] = {
        (kind, k): 0 for kind in problem.kinds for k in range(problem.num_chunks)
    }
    places = [0] * problem.num_devices
    seen: dict[tuple[int, ...], tuple[tuple[int, ...], int, int]] = {}
    found = []
    for start, device, place, op in events:
        if op.kind == "F" and op.chunk == 0:
            n = op.microbatch
            state = tuple(n - count for count in done.values())
            if state in seen:
                begin, first, since = seen[state]
                found.append(Cycle(begin, tuple(places), n - first, start - since))
            seen[state] = (tuple(places), n, start)
        done[op.kind, op.chunk] += 1
        places[device] = place + 1
    yield from sorted(found, key=lambda cycle: (cycle.period_us, cycle.shift))


def unroll(table: OpTable, cycle: Cycle, times: int) -> OpTable:
    """Return the table with ``times * shift`` more microbatches, by repeating the cycle."""
    rows = []
    for row, begin, end in zip(table.rows, cycle.begin, cycle.end, strict=True):
        longer = list(row[:begin])
        for turn in range(times + 1):
            longer += _later(row[begin:end], turn * cycle.shift)
        longer += _later(row[end:], times * cycle.shift)
        rows.append(tuple(longer))
    return OpTable(tuple(rows))


def _later(ops: tuple[Op, ...], shift: int) -> list[Op]:
    return [Op(op.kind, op.chunk, op.microbatch + shift) for op in ops]


def unrolled(problem: ScheduleProblem, timeline: Timeline, most: int = 4) -> Iterator[OpTable]:
    """Yield tables for a problem from a timeline of the same pipeline with fewer microbatches.

    Only cycles whose shift divides the missing microbatches count; at most ``most`` tables.
    """
    short = sum(op.kind == "F" and op.chunk == 0 for row in timeline.table.rows for op in row)
    missing = problem.num_microbatches - short
    for cycle in cycles(problem, timeline):
        if most <= 0:
            return
        if missing % cycle.shift == 0:
            most -= 1
            yield unroll(timeline.table, cycle, missing // cycle.shift)
