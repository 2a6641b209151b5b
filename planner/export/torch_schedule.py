"""Op tables as a pipeline schedule file of PyTorch, which torchtitan loads too.

The file is what ``PipelineScheduleMulti._load_csv(filename, format="compute_only")`` reads: one row
a rank without header, one action a cell, an empty cell for a step without action.  An action is
"``[stage][action type][(microbatch)]``, e.g. ``2F0``"; the types for compute are ``F`` (forward),
``I`` (backward for inputs), ``W`` (backward for weights) and ``B`` (full backward).  A stage is a
chunk here, numbered in the order in which a microbatch visits the chunks.

``PipelineScheduleMulti`` runs the columns as time steps and posts the receives of a step with the
sends of its neighbours in the same step, so an op must stand in a later column than every op whose
result it takes.  ``_PipelineScheduleRuntime`` ignores the columns and keeps the order alone.

Sources: ``_Action.from_str``, ``PipelineScheduleMulti._load_csv`` and ``_step_microbatches`` in
PyTorch ``torch/distributed/pipelining/schedules.py`` (commit 00722e648b74);
torchtitan reads the file that ``parallelism.pipeline_parallel_schedule_csv`` names, with the
schedule ``PipelineScheduleMulti`` or ``_PipelineScheduleRuntime``.
"""

from __future__ import annotations

from planner.pipeline.op_table import OpTable, ScheduleProblem, Timeline
from planner.pipeline.ops import Op


def action(op: Op, *, split_backward: bool) -> str:
    """One cell of the file, such as ``2F0``."""
    letter = "I" if op.kind == "B" and split_backward else op.kind
    return f"{op.chunk}{letter}{op.microbatch}"


def table_cells(table: OpTable, *, split_backward: bool) -> list[list[str]]:
    """The actions of every rank in order, without empty cells."""
    return [[action(op, split_backward=split_backward) for op in row] for row in table.rows]


def schedule_csv(problem: ScheduleProblem, timeline: Timeline) -> str:
    """Return the file: the ops of every rank, each in the first column that its inputs allow."""
    split = problem.weight is not None
    ops = sorted(
        (start, place, device)
        for device, starts in enumerate(timeline.starts)
        for place, start in enumerate(starts)
    )
    column: dict[Op, int] = {}
    cells: list[list[str]] = [[] for _ in timeline.table.rows]
    for _, place, device in _in_dependency_order(problem, timeline, ops):
        op = timeline.table.rows[device][place]
        step = len(cells[device])
        source = problem.source(op.kind, op.chunk)
        if source is not None:
            step = max(step, column[Op(*source, op.microbatch)] + 1)
        cells[device] += [""] * (step - len(cells[device]))
        cells[device].append(action(op, split_backward=split))
        column[op] = step
    return "".join(f"{','.join(row)}\n" for row in cells)


def _in_dependency_order(
    problem: ScheduleProblem, timeline: Timeline, ops: list[tuple[int, int, int]]
) -> list[tuple[int, int, int]]:
    """Sort by start; among equal starts (ops that take no time) a source comes first."""
    depth = {
        cls: place
        for place, cls in enumerate(
            [("F", k) for k in range(problem.num_chunks)]
            + [("B", k) for k in reversed(range(problem.num_chunks))]
            + [("W", k) for k in range(problem.num_chunks)]
        )
    }

    def key(entry: tuple[int, int, int]) -> tuple[int, int, int]:
        start, place, device = entry
        op = timeline.table.rows[device][place]
        return start, op.microbatch * len(depth) + depth[op.kind, op.chunk], device

    return sorted(ops, key=key)
