"""Small schedule problems, and all of their op tables."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise, product

from planner.pipeline.op_table import OpTable, ScheduleProblem, evaluate, peak_memory
from planner.pipeline.ops import Op


def pipeline(
    stages: int,
    microbatches: int,
    *,
    ops: tuple[int, int, int | None] = (20, 20, 20),
    slow: dict[int, tuple[int, int]] | None = None,
    live: int | None = None,
    v_shape: bool = False,
) -> ScheduleProblem:
    """Equal stages; ``slow`` gives (latency, occupancy) by boundary; memory counts microbatches.

    A ``v_shape`` has two chunks a device, each with these durations, and twice the memory.
    """
    devices = tuple(range(stages))
    devices += tuple(reversed(devices)) if v_shape else ()
    chunks = len(devices)
    delay, occupancy = {}, {}
    for boundary in range(stages - 1):
        latency, busy = (slow or {}).get(boundary, (0, 0))
        for pair in ((boundary, boundary + 1), (boundary + 1, boundary)):
            delay[pair], occupancy[pair] = latency + busy, busy
    forward, backward, weight = ops
    return ScheduleProblem(
        devices=devices,
        num_microbatches=microbatches,
        forward=(forward,) * chunks,
        backward=(backward,) * chunks,
        weight=None if weight is None else (weight,) * chunks,
        delay=delay,
        occupancy=occupancy,
        start=(0,) * stages,
        end=(0,) * stages,
        full=(1,) * chunks,
        held=(1,) * chunks,
        limit=((live or stages) * (2 if v_shape else 1),) * stages,
    )


def random_problem(
    rng: random.Random, devices: tuple[int, ...], microbatches: int, *, split: bool
) -> ScheduleProblem:
    """Unequal durations, slow links that may be the bottleneck, tight or loose memory."""
    chunks, count = len(devices), max(devices) + 1
    full = tuple(rng.randint(2, 5) for _ in devices)
    held = tuple(rng.randint(0, size) for size in full)
    pairs = {(i, j) for i, j in pairwise(devices) if i != j}
    pairs |= {(j, i) for i, j in pairs}
    occupancy = {pair: rng.choice((0, 0, 3, 12)) for pair in pairs}
    return ScheduleProblem(
        devices=devices,
        num_microbatches=microbatches,
        forward=tuple(rng.randint(1, 9) for _ in devices),
        backward=tuple(rng.randint(1, 9) for _ in devices),
        weight=tuple(rng.randint(0, 9) for _ in devices) if split else None,
        delay={pair: occupancy[pair] + rng.choice((0, 0, 5, 20)) for pair in pairs},
        occupancy=occupancy,
        start=tuple(rng.choice((0, 0, 7)) for _ in range(count)),
        end=tuple(rng.choice((0, 0, 9)) for _ in range(count)),
        full=full,
        held=held if split else (0,) * chunks,
        limit=tuple(
            sum(f for f, d in zip(full, devices, strict=True) if d == device) + rng.randint(0, 8)
            for device in range(count)
        ),
    )


def device_rows(
    problem: ScheduleProblem, device: int, *, in_order: bool = True
) -> Iterator[tuple[Op, ...]]:
    """Every order of a device's ops that keeps F, B, W of one microbatch in turn."""
    chunks, m = problem.chunks_of(device), problem.num_microbatches

    def grow(row: tuple[Op, ...], done: dict[tuple[int, int], int]) -> Iterator[tuple[Op, ...]]:
        finished = True
        for chunk, n in product(chunks, range(m)):
            step = done.get((chunk, n), 0)
            if step == len(problem.kinds):
                continue
            finished = False
            if in_order and n and done.get((chunk, n - 1), 0) <= step:
                continue
            op = Op(problem.kinds[step], chunk, n)
            yield from grow((*row, op), {**done, (chunk, n): step + 1})
        if finished:
            yield row

    yield from grow((), {})


def least_makespan(problem: ScheduleProblem, *, in_order: bool = True) -> int | None:
    """The least makespan over all op tables that fit in memory, by enumeration."""
    rows = []
    for device in range(problem.num_devices):
        fitting = []
        for row in device_rows(problem, device, in_order=in_order):
            level = peak = 0
            for op in row:
                level += problem.peak_units(op.kind, op.chunk)
                peak = max(peak, level)
            if peak <= problem.limit[device]:
                fitting.append(row)
        rows.append(fitting)
    best: int | None = None
    for choice in product(*rows):
        table = OpTable(choice)
        try:
            found = evaluate(problem, table).makespan
        except ValueError:
            continue
        assert all(
            peak <= limit
            for peak, limit in zip(peak_memory(problem, table), problem.limit, strict=True)
        )
        best = found if best is None else min(best, found)
    return best
