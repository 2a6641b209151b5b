"""The schedule file of PyTorch: its grammar, and steps in which every input has come."""

from __future__ import annotations

import csv
import io
import random
import re

import pytest

from planner.export.torch_schedule import schedule_csv, table_cells
from planner.pipeline.op_table import evaluate, template_table
from planner.pipeline.schedules import Template
from planner.search.synthesis.list_scheduling import keys_by_kind, list_schedule
from tests.pipeline.schedule_problems import pipeline, random_problem

ACTION = re.compile(r"(\d+)(F|I|B|W)(\d+)")


def parsed(text: str) -> list[list[tuple[int, str, int] | None]]:
    """Rows as PyTorch reads them: an empty cell is a step without action."""
    rows: list[list[tuple[int, str, int] | None]] = []
    for row in csv.reader(io.StringIO(text, newline="")):
        cells: list[tuple[int, str, int] | None] = []
        for cell in row:
            match = ACTION.fullmatch(cell)
            assert match or cell == ""
            cells.append((int(match[1]), match[2], int(match[3])) if match else None)
        rows.append(cells)
    return rows


def test_a_small_file() -> None:
    problem = pipeline(2, 2, ops=(20, 40, None))
    timeline = evaluate(problem, template_table(Template("1f1b", 2, 1, 2, None, (0, 0))))
    assert schedule_csv(problem, timeline) == "0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1\n"
    split = pipeline(1, 1)
    timeline = evaluate(split, template_table(Template("zb_h1", 1, 1, 1, None, (0,))))
    assert schedule_csv(split, timeline) == "0F0,0I0,0W0\n"
    assert table_cells(timeline.table, split_backward=True) == [["0F0", "0I0", "0W0"]]


@pytest.mark.parametrize("devices", [(0, 1, 2), (0, 1, 1, 0), (0, 1, 0, 1)])
@pytest.mark.parametrize("split", [True, False])
def test_every_action_stands_after_its_inputs(devices: tuple[int, ...], split: bool) -> None:
    rng = random.Random(4)
    last = len(devices) - 1
    for _ in range(10):
        problem = random_problem(rng, devices, 5, split=split)
        timeline = evaluate(problem, list_schedule(problem, keys_by_kind(problem, "BFW")))
        rows = parsed(schedule_csv(problem, timeline))
        assert len(rows) == problem.num_devices
        step = {}
        for rank, row in enumerate(rows):
            for column, cell in enumerate(row):
                if cell is not None:
                    assert devices[cell[0]] == rank and cell not in step
                    step[cell] = column
        assert len(step) == problem.num_ops
        backward = "I" if split else "B"
        for (stage, kind, n), column in step.items():
            if kind == "F" and stage:
                assert step[stage - 1, "F", n] < column
            if kind == backward:
                assert step[stage, "F", n] < column
                if stage < last:
                    assert step[stage + 1, backward, n] < column
            if kind == "W":
                assert step[stage, "I", n] < column
