"""Draw every schedule as the event simulation runs it: ``python docs/draw_schedules.py [FOLDER]``.

Writes one SVG a schedule (to ``docs/images`` if no folder is given) and prints the rows of the
table in ``docs/schedules.md``.  Four stages, eight microbatches, F = B = W (a whole backward is two
of them), chunks of half a stage take half the time; transfers take no time.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from planner.pipeline.memory import live_counts
from planner.pipeline.ops import OpKind
from planner.pipeline.schedules import Template, chunk_devices, device_orders
from planner.pipeline.simulator import Cell, Run, Scenario, Send, simulate_scenario
from planner.simulation.svg import Box, Row, draw

STAGES, MICROBATCHES, UNIT = 4, 8, 1200
"""Ticks of one op of a whole stage; chunks divide it."""

TEMPLATES = (
    Template("gpipe", STAGES, 1, MICROBATCHES, None, (0,) * STAGES),
    Template("1f1b", STAGES, 1, MICROBATCHES, None, (0,) * STAGES),
    Template("interleaved", STAGES, 2, MICROBATCHES, STAGES, (0,) * STAGES),
    Template("zb_h1", STAGES, 1, MICROBATCHES, None, (0,) * STAGES),
    Template("zb_h2", STAGES, 1, MICROBATCHES, None, (0,) * STAGES),
    Template("zbv", STAGES, 2, MICROBATCHES, None, (0,) * STAGES),
    Template("dualpipe_v", STAGES, 2, MICROBATCHES, None, (0,) * STAGES),
    Template("dora", STAGES, 2, MICROBATCHES, STAGES, (0,) * STAGES),
)


class Figures(NamedTuple):
    """What the table says of a schedule."""

    schedule: str
    bubble: float
    """Idle time of a stage over the iteration."""
    memory: float
    """Most activations alive at once, in those of one microbatch on one whole stage."""
    transfers: float
    """Transfers of a microbatch over one boundary between neighbouring sites, both ways."""


def run_template(template: Template) -> Run:
    """Simulate a template without delays."""
    devices = chunk_devices(template.schedule, template.pp, template.v)
    length = UNIT // template.v
    times: dict[OpKind, int] = {"F": length, "B": 2 * length}
    if template.rules.split_backward:
        times = {"F": length, "B": length, "W": length}
    cells = []
    for s in range(template.pp):
        own = [k for k, device in enumerate(devices) if device == s]
        sends: dict[tuple[OpKind, int], Send] = {}
        for k in own:
            ways: tuple[tuple[OpKind, int], ...] = (("F", k + 1), ("B", k - 1))
            for kind, target in ways:
                if 0 <= target < len(devices) and devices[target] != s:
                    sends[kind, k] = Send(devices[target], ())
        cells.append(Cell(s, {(kind, k): t for kind, t in times.items() for k in own}, sends))
    return simulate_scenario(Scenario(device_orders(template), cells, 0))


def figures(template: Template) -> Figures:
    """Bubble, memory and transfers of a template."""
    run = run_template(template)
    busy = sum(sum(ends) - sum(starts) for starts, ends in zip(run.starts, run.ends, strict=True))
    live = max(
        sum(vector.full) + sum(vector.held) for rows in live_counts(template) for vector in rows
    )
    devices = chunk_devices(template.schedule, template.pp, template.v)
    passed = sum(min(a, b) < template.pp / 2 <= max(a, b) for a, b in pairwise(devices))
    return Figures(
        template.schedule,
        1 - busy / (template.pp * run.end),
        live / template.v,
        2 * passed,
    )


def picture(template: Template) -> str:
    """Return the timeline of a template as SVG."""
    run = run_template(template)
    found = figures(template)
    rows = [
        Row(
            f"stage {s}",
            [
                Box(begin, end, op.kind, str(op.microbatch))
                for op, begin, end in zip(order, run.starts[s], run.ends[s], strict=True)
            ],
        )
        for s, order in enumerate(device_orders(template))
    ]
    chunks = "" if template.v == 1 else f", {template.v} chunks a stage"
    subtitle = (
        f"{template.pp} stages, {template.m} microbatches{chunks}; bubble "
        f"{100 * found.bubble:.1f} %, at most {found.memory:g} microbatches of activations"
    )
    axis = [f"{run.end * i / 4 / UNIT:g} F" for i in range(5)]
    return draw(rows, run.end, template.schedule, subtitle, axis)


def main() -> None:
    """Draw all schedules and print the table."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "images"
    for template in TEMPLATES:
        path = folder / f"schedule_{template.schedule}.svg"
        path.write_text(picture(template), encoding="utf-8")
        name, bubble, memory, transfers = figures(template)
        print(f"| `{name}` | {100 * bubble:.1f} % | {memory:g} | {transfers:g} |")


if __name__ == "__main__":
    main()
