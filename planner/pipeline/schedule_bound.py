r"""Lower bounds on the makespan of every op table of a pipeline, in exact integers.

No solver is involved.  Three facts are combined (``docs/formulation_schedule.md`` has the proofs).

*Order.*  Microbatches are alike, so every kind and chunk may take them in order without loss.

*Memory.*  Forward ``n`` needs room, so some backwards and weight gradients must come before it
(:func:`_counts_before`).  With ``full`` MiB a microbatch and a limit of ``M`` microbatches, forward
``n`` waits for backward ``n - M`` of its chunk: a round trip through all later stages.

*One op at a time.*  The ops that must come before an op on its device, each with its earliest
start, cannot all be done before their earliest completion time

.. math:: \mathrm{ect}(S) = \max_r \; r + \sum_{i \in S,\; head_i \ge r} p_i .

Earliest starts (heads) are swept forwards with it, latest remainders (tails) backwards, and the
preemptive one-machine bound of every device and link over heads and tails ends it.

Sources: J. R. Jackson, "An extension of Johnson's results on job lot scheduling" (1956), and
J. Carlier, "The one-machine sequencing problem", EJOR 11 (1982), for the preemptive bound.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from planner.pipeline.op_table import ScheduleProblem
from planner.pipeline.ops import OpKind

_Times = npt.NDArray[np.int64]
_Class = tuple[OpKind, int]
"""Kind and chunk: the ops of one class differ by their microbatch alone."""


class ScheduleBound(NamedTuple):
    """A lower bound on the makespan, its rule, and what each op needs before and after it.

    Attributes
    ----------
    value
        µs; no op table ends earlier.
    rule
        ``device d``, ``link i→j`` or ``memory d``: what the bound rests on.
    heads, tails
        By kind and chunk, by microbatch, µs: the earliest start of the op, and the least time from
        its end to the end of the iteration.
    """

    value: int
    rule: str
    heads: dict[_Class, _Times]
    tails: dict[_Class, _Times]


def schedule_bound(problem: ScheduleProblem) -> ScheduleBound:
    """Return the best of the device, link and memory bounds.

    Parameters
    ----------
    problem
        The pipeline; all its numbers are whole µs.
    """
    before = _counts_before(problem)
    heads = _heads(problem, before)
    tails = _tails(problem, before)
    value, rule = max(
        [
            *_device_bounds(problem, heads, tails),
            *_link_bounds(problem, heads, tails),
            *_memory_bounds(problem, heads),
        ],
        key=lambda found: found[0],
    )
    return ScheduleBound(value, rule, heads, tails)


def _classes(problem: ScheduleProblem, device: int) -> list[_Class]:
    return [(kind, k) for kind in problem.kinds for k in problem.chunks_of(device)]


def _counts_before(problem: ScheduleProblem) -> dict[_Class, dict[_Class, _Times]]:
    r"""For every op how many ops of each class of its device must come before it.

    ``F(k, n)`` comes after ``F(k, <n)`` and ``F(j, <=n)`` of the device's earlier chunks ``j``.  At
    that moment every chunk ``j <= k`` has at least ``n + 1 - b_j`` live microbatches, where ``b_j
    <= b_k`` backwards of ``j`` are done, so with ``a_j`` = ``full`` and ``L`` = ``limit``

    * :math:`(n + 1 - b_k) \sum_{j \le k} a_j \le L`,
    * :math:`(n + 1 - b_j) \sum_{i \le j} a_i + \sum_{j < i \le k} a_i \le L`,
    * :math:`(n - w_j) h_j + \sum_{i \le k} a_i \le L`, since ``h_j <= a_j``;

    each gives a least number of backwards or weight gradients.  ``B(k, n)`` comes after all
    forwards of its microbatch and the backwards of later chunks, ``W(k, n)`` after ``B(k, n)``, and
    both after what comes before those.
    """
    m = problem.num_microbatches
    n = np.arange(m, dtype=np.int64)
    result: dict[_Class, dict[_Class, _Times]] = {}
    for device in range(problem.num_devices):
        chunks = problem.chunks_of(device)
        limit = problem.limit[device]
        for place, k in enumerate(chunks):
            upto = chunks[: place + 1]
            own = sum(problem.full[j] for j in upto)
            need: dict[_Class, _Times] = {}
            for j in upto:
                need["F", j] = n + (j != k)
                rest = sum(problem.full[i] for i in upto if i > j)
                live = sum(problem.full[i] for i in upto if i <= j)
                if live:
                    need["B", j] = np.maximum(0, n + 1 - (limit - rest) // live)
                if problem.weight is not None and problem.held[j]:
                    need["W", j] = np.maximum(0, n - (limit - own) // problem.held[j])
            result["F", k] = need
        for place, k in enumerate(chunks):
            need = {cls: counts.copy() for cls, counts in result["F", chunks[-1]].items()}
            need |= {("F", j): n + 1 for j in chunks}
            for j in chunks[place:]:
                floor = n + (j > k)
                need["B", j] = np.maximum(need.get(("B", j), floor), floor)
            result["B", k] = need
            if problem.weight is not None:
                need = {cls: counts.copy() for cls, counts in need.items()}
                need["B", k] = n + 1
                need["W", k] = np.maximum(need.get(("W", k), n), n)
                result["W", k] = need
    return result


def _order(problem: ScheduleProblem) -> list[_Class]:
    """Classes in an order in which one microbatch can visit them."""
    chunks = range(problem.num_chunks)
    order: list[_Class] = [("F", k) for k in chunks]
    order += [("B", k) for k in reversed(chunks)]
    if problem.weight is not None:
        order += [("W", k) for k in chunks]
    return order


def _heads(
    problem: ScheduleProblem, before: dict[_Class, dict[_Class, _Times]]
) -> dict[_Class, _Times]:
    """Earliest starts: a sweep over the microbatches, inputs and the device's earlier ops."""
    m = problem.num_microbatches
    heads = {
        cls: np.full(m, problem.start[problem.devices[cls[1]]], dtype=np.int64)
        for cls in _order(problem)
    }
    sent: dict[_Class, int] = {}
    counts = {
        cls: [(other, heads[other], problem.duration(*other), need) for other, need in rows.items()]
        for cls, rows in before.items()
    }
    for n in range(m):
        for cls in _order(problem):
            kind, k = cls
            begin = int(heads[cls][n])
            source = problem.source(kind, k)
            if source is not None:
                begin = max(begin, _arrival(problem, source, int(heads[source][n]), sent))
            if kind == "B" and source is None:
                begin = max(begin, int(heads["F", k][n]) + problem.forward[k])
            rows = [
                (values[: need[n]], duration)
                for _, values, duration, need in counts[cls]
                if need[n]
            ]
            heads[cls][n] = max(begin, _completion(rows))
    return heads


def _arrival(problem: ScheduleProblem, source: _Class, begin: int, sent: dict[_Class, int]) -> int:
    """When the result of an op is there at the earliest; ``sent`` keeps the last transfer."""
    ready = begin + problem.duration(*source)
    pair = problem.edge(*source)
    if pair is None:
        return ready
    last = sent.get(source)
    if last is not None:
        ready = max(ready, last + problem.occupancy.get(pair, 0))
    sent[source] = ready
    return ready + problem.delay.get(pair, 0)


def _completion(rows: Sequence[tuple[_Times, int]]) -> int:
    """Earliest completion time of ops given by class: ascending heads, and one duration."""
    if not rows:
        return 0
    if len(rows) == 1:
        values, duration = rows[0]
        count = len(values)
        return int((values + duration * np.arange(count, 0, -1)).max())
    merged = np.concatenate([values for values, _ in rows])
    work = np.concatenate([np.full(len(values), d, dtype=np.int64) for values, d in rows])
    order = np.argsort(merged, kind="stable")
    merged = merged[order]
    rest = np.cumsum(work[order][::-1])[::-1]
    return int((merged + rest).max())


def _tails(
    problem: ScheduleProblem, before: dict[_Class, dict[_Class, _Times]]
) -> dict[_Class, _Times]:
    """Least remainders after the end of every op: the sweep of :func:`_heads` backwards in time."""
    m = problem.num_microbatches
    order = _order(problem)
    tails = {cls: np.full(m, problem.end[problem.devices[cls[1]]], dtype=np.int64) for cls in order}
    after: dict[_Class, list[tuple[_Class, int, _Times]]] = {cls: [] for cls in order}
    for cls, rows in before.items():
        for other, need in rows.items():
            first = np.searchsorted(need, np.arange(1, m + 1), side="left")
            after[other].append((cls, problem.duration(*cls), first))
    target: dict[_Class, _Class] = {}
    for cls in order:
        source = problem.source(*cls)
        if source is not None:
            target[source] = cls
    target["F", problem.num_chunks - 1] = ("B", problem.num_chunks - 1)
    sent: dict[_Class, int] = {}
    for n in reversed(range(m)):
        for cls in reversed(order):
            tail = int(tails[cls][n])
            follower = target.get(cls)
            if follower is not None:
                rest = problem.duration(*follower) + int(tails[follower][n])
                pair = problem.edge(*cls)
                if pair is not None:
                    rest += problem.delay.get(pair, 0)
                    if cls in sent:
                        rest = max(rest, sent[cls] + problem.occupancy.get(pair, 0))
                    sent[cls] = rest
                tail = max(tail, rest)
            later = [
                (tails[other][first[n] :][::-1], duration)
                for other, duration, first in after[cls]
                if first[n] < m
            ]
            tails[cls][n] = max(tail, _completion(later))
    return tails


def one_machine_bound(jobs: Sequence[tuple[int, int, int]]) -> int:
    """Return the makespan of Jackson's preemptive schedule of (head, duration, tail) jobs.

    It equals the largest (least head + work + least tail) over all subsets of the jobs, so no
    sequence of the jobs on one machine ends earlier.
    """
    waiting = sorted(jobs)
    ready: list[tuple[int, int]] = []
    now = best = position = 0
    while ready or position < len(waiting):
        if not ready:
            now = max(now, waiting[position][0])
        while position < len(waiting) and waiting[position][0] <= now:
            _, duration, tail = waiting[position]
            heapq.heappush(ready, (-tail, duration))
            position += 1
        tail, left = heapq.heappop(ready)
        until = waiting[position][0] if position < len(waiting) else now + left
        run = min(left, until - now)
        now += run
        if run < left:
            heapq.heappush(ready, (tail, left - run))
        else:
            best = max(best, now - tail)
    return best


def _device_bounds(
    problem: ScheduleProblem, heads: dict[_Class, _Times], tails: dict[_Class, _Times]
) -> list[tuple[int, str]]:
    found = []
    for device in range(problem.num_devices):
        jobs = [
            (head, problem.duration(*cls), tail)
            for cls in _classes(problem, device)
            for head, tail in zip(heads[cls].tolist(), tails[cls].tolist(), strict=True)
        ]
        found.append((one_machine_bound(jobs), f"device {device}"))
    return found


def _link_bounds(
    problem: ScheduleProblem, heads: dict[_Class, _Times], tails: dict[_Class, _Times]
) -> list[tuple[int, str]]:
    """Transfers of a directed pair of devices as jobs of one machine.

    A job lasts ``occupancy``; its tail is what is left of the way after that.
    """
    found = []
    for pair, users in problem.edges.items():
        occupancy = problem.occupancy.get(pair, 0)
        left = problem.delay.get(pair, 0) - occupancy
        jobs = []
        for kind, k in users:
            follower: _Class = (kind, k + 1 if kind == "F" else k - 1)
            for head, tail in zip(heads[kind, k].tolist(), tails[follower].tolist(), strict=True):
                rest = left + problem.duration(*follower) + tail
                jobs.append((head + problem.duration(kind, k), occupancy, rest))
        found.append((one_machine_bound(jobs), f"link {pair[0]}→{pair[1]}"))
    return found


def _memory_bounds(problem: ScheduleProblem, heads: dict[_Class, _Times]) -> list[tuple[int, str]]:
    r"""Memory times time: every microbatch holds memory at least for its round trip.

    .. math::
        Z \ge head + \Bigl\lceil \frac{m \sum_k (a_k R_k + h_k W_k)}{L} \Bigr\rceil + end,

    ``R_k`` from the start of F to the end of B of chunk ``k`` without any waiting.
    """
    found = []
    trips = _round_trips(problem)
    for device in range(problem.num_devices):
        chunks = problem.chunks_of(device)
        area = sum(problem.full[k] * trips[k] for k in chunks)
        if problem.weight is not None:
            area += sum(problem.held[k] * problem.weight[k] for k in chunks)
        if area:
            span = -(-problem.num_microbatches * area // problem.limit[device])
            head = int(heads["F", chunks[0]][0])
            found.append((head + span + problem.end[device], f"memory {device}"))
    return found


def _round_trips(problem: ScheduleProblem) -> list[int]:
    """µs from the start of F to the end of B of one microbatch, by chunk, without waiting."""
    trips = [0] * problem.num_chunks
    inner = 0
    for k in reversed(range(problem.num_chunks)):
        trips[k] = problem.forward[k] + inner + problem.backward[k]
        inner = trips[k]
        if k:
            for pair in (problem.edge("F", k - 1), problem.edge("B", k)):
                inner += 0 if pair is None else problem.delay.get(pair, 0)
    return trips
