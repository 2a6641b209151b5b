"""The scheduling model of a window of an op table; ``docs/formulation_schedule.md``.

Every feasible assignment orders the ops of the window so that the whole table keeps all rules of
``docs/time_model.md`` section 2 and the memory limits, and ``time`` is at least the end of every
path through the window.  Over the whole table the optimum is the least makespan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from formulations.algebra import Variable
from formulations.schedule.window import Window
from formulations.scheduling import SchedulingModel
from planner.pipeline.op_table import Edge, OpTable, ScheduleProblem, Timeline
from planner.pipeline.ops import Op, OpKind

_Class = tuple[OpKind, int]


@dataclass(frozen=True)
class ScheduleModel:
    """A model with the meaning of its variables.

    Attributes
    ----------
    model
        The model; it minimises ``time``.
    start
        Start of every op of the window, µs.
    sent
        Begin of the transfer of an op's result, µs, where the link can be the bottleneck.
    before
        For two ops whose results share such a link: whether the first one is run first.
    time
        End of the iteration, µs.
    """

    model: SchedulingModel
    problem: ScheduleProblem
    window: Window
    start: Mapping[Op, Variable]
    sent: Mapping[Op, Variable]
    before: Mapping[tuple[Op, Op], Variable]
    time: Variable

    def table(self, values: tuple[int, ...], rows: tuple[tuple[Op, ...], ...]) -> OpTable:
        """The table ``rows`` with the ops of the window in the order of an assignment."""
        rank = {kind: place for place, kind in enumerate(self.problem.kinds)}
        result = []
        for row, inside in zip(rows, self.window.ops, strict=True):
            moved = sorted(
                inside,
                key=lambda op: (
                    values[self.start[op].index],
                    values[self.start[op].index] + self.problem.duration(op.kind, op.chunk),
                    rank[op.kind],
                    op.microbatch,
                ),
            )
            first = row.index(inside[0]) if inside else 0
            result.append((*row[:first], *moved, *row[first + len(moved) :]))
        return OpTable(tuple(result))

    def hint(self, timeline: Timeline) -> dict[int, int]:
        """The assignment of a timeline."""
        start: dict[Op, int] = {}
        sent: dict[Op, int | None] = {}
        for row, starts, begins in zip(
            timeline.table.rows, timeline.starts, timeline.begins, strict=True
        ):
            start.update(zip(row, starts, strict=True))
            sent.update(zip(row, begins, strict=True))
        hint = {variable.index: start[op] for op, variable in self.start.items()}
        for op, variable in self.sent.items():
            hint[variable.index] = sent[op] or 0
        for (op, other), variable in self.before.items():
            hint[variable.index] = int(start[op] < start[other])
        hint[self.time.index] = timeline.makespan
        return hint


def build_schedule(
    problem: ScheduleProblem, window: Window, *, lower: int, upper: int
) -> ScheduleModel:
    """Build the model of a window.

    Parameters
    ----------
    problem
        The pipeline.
    window
        What may move.
    lower, upper
        µs; only tables with a makespan in this range are of interest.

    Raises
    ------
    ValueError
        If an op has no start that keeps ``upper``.
    """
    model = SchedulingModel()
    start = {}
    for row in window.ops:
        for op in row:
            last = upper - window.remainder[op] - problem.duration(op.kind, op.chunk)
            start[op] = model.integer(
                f"{op.kind}[{op.chunk},{op.microbatch}]", window.release[op], last
            )
    sent = _transfers(model, problem, window, start, upper)
    before = _shared_links(model, problem, start, sent)
    _inputs(model, problem, start, sent)
    for row in window.ops:
        if row:
            model.no_overlap(
                [(start[op], problem.duration(op.kind, op.chunk)) for op in row], "device"
            )
    _memory(model, problem, window, start)
    _round_trips(model, problem, start)
    time = model.integer("time", lower, upper)
    for op, variable in start.items():
        rest = problem.duration(op.kind, op.chunk) + window.remainder[op]
        model.add(time - variable >= rest, family="remainder")
    for op, variable in sent.items():
        pair = problem.edge(op.kind, op.chunk)
        if pair is not None and pair in window.link_remainder:
            model.add(time - variable >= window.link_remainder[pair], family="remainder")
    model.minimize(time)
    return ScheduleModel(model, problem, window, start, sent, before, time)


def _by_class(start: Mapping[Op, Variable]) -> dict[_Class, list[Op]]:
    """The ops of every class by microbatch."""
    found: dict[_Class, list[Op]] = {}
    for op in sorted(start):
        found.setdefault((op.kind, op.chunk), []).append(op)
    return found


def _is_bottleneck(problem: ScheduleProblem, pair: Edge) -> bool:
    """Whether transfers of a directed pair of devices can queue.

    They cannot where a transfer keeps the link no longer than any of its producers runs.
    """
    occupancy = problem.occupancy.get(pair, 0)
    return any(occupancy > problem.duration(*user) for user in problem.edges[pair])


def _transfers(
    model: SchedulingModel,
    problem: ScheduleProblem,
    window: Window,
    start: Mapping[Op, Variable],
    upper: int,
) -> dict[Op, Variable]:
    """Family ``transfer``: a transfer begins after its op, and ``occupancy`` after the last one.

    ``sent[op] >= start[op] + duration`` and, on one directed pair of devices for one class,
    ``sent[n+1] >= sent[n] + occupancy``.
    """
    sent = {}
    for op, variable in start.items():
        pair = problem.edge(op.kind, op.chunk)
        if pair is None or not _is_bottleneck(problem, pair):
            continue
        duration = problem.duration(op.kind, op.chunk)
        first = max(variable.lower + duration, window.link_release.get(pair, 0))
        sent[op] = model.integer(f"sent {op.kind}[{op.chunk},{op.microbatch}]", first, upper)
        model.add(sent[op] - variable >= duration, family="transfer")
    for (kind, chunk), ops in _by_class(sent).items():
        pair = problem.edge(kind, chunk)
        assert pair is not None
        for op, after in pairwise(ops):
            gap = problem.occupancy.get(pair, 0)
            model.add(sent[after] - sent[op] >= gap, family="transfer")
    return sent


def _shared_links(
    model: SchedulingModel,
    problem: ScheduleProblem,
    start: Mapping[Op, Variable],
    sent: Mapping[Op, Variable],
) -> dict[tuple[Op, Op], Variable]:
    """Family ``link``: two classes on one link are sent in the order in which they are run.

    ``[before] start[b] >= start[a] + duration[a]`` and ``sent[b] >= sent[a] + occupancy``, or the
    other way round; the transfers of the link never overlap.
    """
    before: dict[tuple[Op, Op], Variable] = {}
    by_class = _by_class(sent)
    for pair, users in problem.edges.items():
        classes = [user for user in users if user in by_class]
        if len(classes) < 2:
            continue
        occupancy = problem.occupancy.get(pair, 0)
        jobs = [(sent[op], occupancy) for cls in classes for op in by_class[cls]]
        model.no_overlap(jobs, "link")
        for place, cls in enumerate(classes):
            for other in classes[place + 1 :]:
                for a in by_class[cls]:
                    for b in by_class[other]:
                        first = model.boolean(f"{a.kind}{a[1:]} before {b.kind}{b[1:]}")
                        before[a, b] = first
                        for x, y, when in ((a, b, first), (b, a, ~first)):
                            gap = problem.duration(x.kind, x.chunk)
                            model.add(start[y] - start[x] >= gap, when=[when], family="link")
                            model.add(sent[y] - sent[x] >= occupancy, when=[when], family="link")
    return before


def _inputs(
    model: SchedulingModel,
    problem: ScheduleProblem,
    start: Mapping[Op, Variable],
    sent: Mapping[Op, Variable],
) -> None:
    """Families ``input`` and ``order``: inputs are there, microbatches of a class take turns."""
    for op, variable in start.items():
        source = problem.source(op.kind, op.chunk)
        producer = op if source is None else Op(*source, op.microbatch)
        if source is not None and producer in start:
            pair = problem.edge(producer.kind, producer.chunk)
            delay = 0 if pair is None else problem.delay.get(pair, 0)
            if producer in sent:
                model.add(variable - sent[producer] >= delay, family="input")
            else:
                gap = problem.duration(producer.kind, producer.chunk) + delay
                model.add(variable - start[producer] >= gap, family="input")
        if op.kind == "W":
            backward = Op("B", op.chunk, op.microbatch)
            if backward in start:
                gap = problem.backward[op.chunk]
                model.add(variable - start[backward] >= gap, family="input")
    for (kind, chunk), ops in _by_class(start).items():
        for op, after in pairwise(ops):
            gap = problem.duration(kind, chunk)
            model.add(start[after] - start[op] >= gap, family="order")


def _round_trips(
    model: SchedulingModel, problem: ScheduleProblem, start: Mapping[Op, Variable]
) -> None:
    """Family ``round_trip``: from F to B of a chunk lies the way through all later chunks."""
    trips = least_waits(problem)
    for op, variable in start.items():
        forward = Op("F", op.chunk, op.microbatch)
        if op.kind == "B" and forward in start:
            gap = problem.forward[op.chunk] + trips[op.chunk]
            model.add(variable - start[forward] >= gap, family="round_trip")


def least_waits(problem: ScheduleProblem) -> list[int]:
    """µs from the end of F to the start of B of one microbatch, by chunk, without any queue."""
    waits = [0] * problem.num_chunks
    for k in reversed(range(problem.num_chunks - 1)):
        inner = problem.forward[k + 1] + waits[k + 1] + problem.backward[k + 1]
        for pair in (problem.edge("F", k), problem.edge("B", k + 1)):
            inner += 0 if pair is None else problem.delay.get(pair, 0)
        waits[k] = inner
    return waits


def _memory(
    model: SchedulingModel,
    problem: ScheduleProblem,
    window: Window,
    start: Mapping[Op, Variable],
) -> None:
    """Family ``memory``: what is live on a device never exceeds its limit.

    With one chunk, and W (or an unsplit B) freeing everything, ``M = limit // full`` microbatches
    fit: ``F(n + M)`` starts after the end of ``W(n)``.  Otherwise a level: ``full`` from the start
    of F to the end of B, ``held`` from there to the end of W.
    """
    for device, row in enumerate(window.ops):
        chunks = problem.chunks_of(device)
        total = problem.num_microbatches * sum(problem.full[k] for k in chunks)
        if total <= problem.limit[device] or not row:
            continue
        k = chunks[0]
        last: OpKind = "B" if problem.weight is None else "W"
        if len(chunks) == 1 and (last == "B" or problem.held[k] == problem.full[k]):
            room = problem.limit[device] // problem.full[k]
            for op in row:
                freed = Op(last, k, op.microbatch - room)
                if op.kind == "F" and freed in start:
                    gap = problem.duration(last, k)
                    model.add(start[op] - start[freed] >= gap, family="memory")
            continue
        stays = list(_stays(problem, device, window, start))
        model.level(stays, problem.limit[device], "memory")


_Moment = tuple[Variable, int] | None


def _stays(
    problem: ScheduleProblem, device: int, window: Window, start: Mapping[Op, Variable]
) -> Iterator[tuple[_Moment, _Moment, int]]:
    """What every microbatch keeps on a device, and how long, as far as it meets the window.

    A moment before the window counts as always, one after it as never; both are None.
    """
    phases: list[tuple[OpKind, OpKind, tuple[int, ...]]] = [("F", "B", problem.full)]
    if problem.weight is not None:
        phases.append(("B", "W", problem.held))
    for k in problem.chunks_of(device):
        for first, second, demand in phases:
            for n in range(window.done[second, k], problem.num_microbatches):
                begin = start.get(Op(first, k, n))
                end = start.get(Op(second, k, n))
                if demand[k] and (begin is not None or n < window.done[first, k]):
                    shift = 0 if first == "F" else problem.duration(first, k)
                    yield (
                        None if begin is None else (begin, shift),
                        None if end is None else (end, problem.duration(second, k)),
                        demand[k],
                    )
