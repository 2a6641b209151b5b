"""Synthesised schedules: proofs, CrossPipe's Table 5, long pipelines.

    python bench/synthesized_schedules.py [-o bench/synthesized_schedules.md]

Nothing here is asserted; the page says what came out, on which machine and with which versions.
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from planner.backends import Engine
from planner.pipeline.op_table import ScheduleProblem, evaluate, template_table, violations
from planner.pipeline.ops import Op
from planner.pipeline.schedules import Template
from planner.report.output import write_atomically
from planner.search.synthesis.plan_schedule import template_starts
from planner.search.synthesis.synthesize import Synthesis, synthesize
from planner.versions import versions

WORKERS = 2

T_F_US = 38_000
"""T_F = 0.038 s of CrossPipe (USENIX ATC 2025, arXiv 2507.00217), Table 5: M70, 8 stages, GH200."""
FUSED_US = 67_000
SPLIT_US = (39_200, 39_200)
"""B + W of 1F1B and (B, W) of ZB-H1, derived from the rows of Table 5 without delay."""
RECOMPUTE_FUSED_US = 104_500
RECOMPUTE_SPLIT_US = (74_700, 39_200)
"""The same with layerwise recompute (1F1B, ZBV)."""


@dataclass(frozen=True)
class Row:
    """One setting of CrossPipe's Table 5, two sites: latency and bandwidth terms in T_F.

    ``stock_s`` is the measured time per microbatch of the best stock schedule of the row among
    1F1B, ZB-H1 (none) or 1F1B, ZBV (layerwise recompute); ``crosspipe_s`` that of its own schedule
    where it is among the rows at hand.
    """

    latency: float
    bandwidth: float
    recompute: str
    microbatches: int
    stock: str
    stock_s: float
    crosspipe_s: float | None


TABLE_5 = (
    Row(0, 0, "none", 16, "ZB-H1", 0.133, None),
    Row(0.25, 0.25, "none", 16, "ZB-H1", 0.150, None),
    Row(0.25, 2, "none", 16, "ZB-H1", 0.230, None),
    Row(2, 0.25, "none", 16, "ZB-H1", 0.229, None),
    Row(2, 2, "none", 16, "ZB-H1", 0.309, None),
    Row(0, 0, "layerwise", 32, "ZBV", 0.161, 0.165),
    Row(0.25, 0.25, "layerwise", 32, "ZBV", 0.177, 0.170),
    Row(0.25, 2, "layerwise", 32, "1F1B", 0.262, 0.185),
    Row(2, 0.25, "layerwise", 32, "1F1B", 0.262, 0.173),
    Row(2, 2, "layerwise", 32, "1F1B", 0.333, 0.196),
)
"""Rows r0677 … r0742 of the published runs; memory for 8 microbatches (limit 1.0)."""


def pipeline(
    stages: int,
    microbatches: int,
    forward: int,
    backward: int,
    weight: int | None,
    slow: dict[int, tuple[int, int]],
    live: int,
    *,
    v_shape: bool = False,
) -> ScheduleProblem:
    """Equal stages; ``slow`` gives (latency, occupancy) in µs by boundary."""
    devices = tuple(range(stages))
    parts = 2 if v_shape else 1
    devices += tuple(reversed(devices)) if v_shape else ()
    chunks = len(devices)
    delay, occupancy = {}, {}
    for boundary in range(stages - 1):
        latency, busy = slow.get(boundary, (0, 0))
        for pair in ((boundary, boundary + 1), (boundary + 1, boundary)):
            delay[pair], occupancy[pair] = latency + busy, busy
    return ScheduleProblem(
        devices=devices,
        num_microbatches=microbatches,
        forward=(forward // parts,) * chunks,
        backward=(backward // parts,) * chunks,
        weight=None if weight is None else (weight // parts,) * chunks,
        delay=delay,
        occupancy=occupancy,
        start=(0,) * stages,
        end=(0,) * stages,
        full=(1,) * chunks,
        held=(0 if weight is None else 1,) * chunks,
        limit=(live * parts,) * stages,
    )


def best_fixed(problem: ScheduleProblem) -> tuple[str, int] | None:
    """The fastest fixed schedule that fits in memory, on the same event graph."""
    found = []
    for name, table in template_starts(problem):
        timeline = evaluate(problem, table)
        if not violations(problem, timeline):
            found.append((timeline.makespan, name))
    return (min(found)[1], min(found)[0]) if found else None


def blocking_makespan(problem: ScheduleProblem, template: Template) -> int:
    """A fixed schedule whose device waits until what it sends has arrived, µs.

    The stock schedules of CrossPipe's Table 5 run so: with it 1F1B and ZB-H1 without recompute come
    out within 2.4 % of the measured rows.
    """
    rows = template_table(template).rows
    clock, place = list(problem.start), [0] * len(rows)
    arrival: dict[Op, int] = {}
    free: dict[tuple[int, int], int] = {}
    left = sum(map(len, rows))
    while left:
        for device, row in enumerate(rows):
            while place[device] < len(row):
                op = row[place[device]]
                source = problem.source(op.kind, op.chunk)
                needed = None if source is None else Op(*source, op.microbatch)
                if needed is not None and needed not in arrival:
                    break
                begin = max(clock[device], 0 if needed is None else arrival[needed])
                end = begin + problem.duration(op.kind, op.chunk)
                pair = problem.edge(op.kind, op.chunk)
                if pair is not None:
                    sent = max(end, free.get(pair, 0))
                    free[pair] = sent + problem.occupancy[pair]
                    end = sent + problem.delay[pair]
                arrival[op] = clock[device] = end
                place[device] += 1
                left -= 1
    return max(clock)


def describe(found: Synthesis) -> str:
    """Makespan, bound, gap, proof and time of a synthesis as cells of a table."""
    return (
        f"{found.makespan_us:,} | {found.bound_us:,} | {100 * found.gap:.2f} % | {found.proof} | "
        f"{found.method} | {found.wall_time_s:.1f}"
    )


def proofs(engine: Engine, limit_s: float) -> Iterator[str]:
    """One slow boundary in the middle, F = B = W = 20."""
    yield "## Proofs\n"
    yield (
        "F = B = W = 20 µs, one slow boundary in the middle, memory in microbatches (held until "
        "W). "
        f"At most {limit_s:g} s each.\n"
    )
    yield (
        "| stages × microbatches | latency, occupancy | memory | best | bound | gap | proof | "
        "found by | s |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for stages, m, latency, busy, live in (
        (4, 8, 20, 5, 4),
        (4, 8, 100, 20, 4),
        (4, 8, 100, 20, 8),
        (4, 16, 20, 5, 4),
        (8, 16, 20, 5, 8),
        (8, 16, 100, 20, 8),
        (8, 16, 100, 20, 16),
    ):
        problem = pipeline(stages, m, 20, 20, 20, {stages // 2 - 1: (latency, busy)}, live)
        found = synthesize(
            problem,
            engine=engine,
            time_limit_s=limit_s,
            workers=WORKERS,
            starts=template_starts(problem),
        )
        yield f"| {stages} × {m} | {latency}, {busy} | {live} | {describe(found)} |"


def crosspipe(engine: Engine, limit_s: float) -> Iterator[str]:
    """Table 5 of CrossPipe: split, unsplit and V against fixed and measured stock schedules."""
    yield "\n## CrossPipe, Table 5\n"
    yield (
        "8 stages, two sites (slow boundary 3|4), memory 1.0 = 8 microbatches; latency and "
        "bandwidth terms in T_F. Seconds per microbatch. *Fixed*: the fastest fixed schedule that "
        "fits, on the same event graph (asynchronous sends). *Stock*: the best measured stock "
        "schedule of the row; *blocking*: 1F1B or ZB-H1 (the faster) on the event graph with "
        "senders that wait for the arrival, as that stack does. *Bound of all*: of the variants. "
        "The rows with recompute do not say their memory limit; 8 microbatches are assumed, so "
        "CrossPipe's own column is not at the same memory. "
        f"At most {limit_s:g} s for each of three variants.\n"
    )
    yield (
        "| recompute | latency, bandwidth | synthesised | variant | its bound, gap | "
        "bound of all | fixed | gain | stock (measured) | gain | stock (blocking) | gain | "
        "CrossPipe (measured) | s |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
    for row in TABLE_5:
        plain = row.recompute == "none"
        fused = FUSED_US if plain else RECOMPUTE_FUSED_US
        backward, weight = SPLIT_US if plain else RECOMPUTE_SPLIT_US
        slow = {3: (int(row.latency * T_F_US), int(row.bandwidth * T_F_US))}
        m = row.microbatches
        shapes = {
            "split": pipeline(8, m, T_F_US, backward, weight, slow, 8),
            "unsplit": pipeline(8, m, T_F_US, fused, None, slow, 8),
            "V": pipeline(8, m, T_F_US, backward, weight, slow, 8, v_shape=True),
        }
        fixed: list[tuple[int, str]] = []
        results: list[tuple[int, str, Synthesis]] = []
        for name, problem in shapes.items():
            stock = best_fixed(problem)
            if stock is not None:
                fixed.append((stock[1], stock[0]))
            found = synthesize(
                problem,
                engine=engine,
                time_limit_s=limit_s,
                workers=WORKERS,
                starts=template_starts(problem),
            )
            results.append((found.makespan_us, name, found))
        best, name, own_result = min(results, key=lambda entry: entry[0])
        bound = min(found.bound_us for _, _, found in results)
        seconds = sum(found.wall_time_s for _, _, found in results)
        stock_us, stock_name = min(fixed)
        waits = min(
            blocking_makespan(shapes["unsplit"], Template("1f1b", 8, 1, m, None, (0,) * 8)),
            blocking_makespan(shapes["split"], Template("zb_h1", 8, 1, m, None, (0,) * 8)),
        )
        scale = m * 1e6
        own = "" if row.crosspipe_s is None else f"{row.crosspipe_s:.3f}"
        yield (
            f"| {row.recompute} | {row.latency:g}, {row.bandwidth:g} | {best / scale:.4f} | "
            f"{name} | {own_result.bound_us / scale:.4f}, {100 * own_result.gap:.2f} % | "
            f"{bound / scale:.4f} | {stock_us / scale:.4f} ({stock_name}) | "
            f"{100 * (1 - best / stock_us):.1f} % | {row.stock_s:.3f} ({row.stock}) | "
            f"{100 * (1 - best / scale / row.stock_s):.1f} % | {waits / scale:.4f} | "
            f"{100 * (1 - best / waits):.1f} % | "
            f"{own} | {seconds:.0f} |"
        )


def long_pipelines(engine: Engine, limit_s: float) -> Iterator[str]:
    """32 and 64 stages, several slow boundaries, memory of 1F1B's first stage."""
    yield "\n## Long pipelines\n"
    yield (
        "CrossPipe's F, B, W; four sites (three slow boundaries); memory = one microbatch per "
        f"stage. At most {limit_s:g} s.\n"
    )
    header = (
        "| stages × microbatches | latency, bandwidth | makespan | bound | gap | proof | "
        "found by | s |"
    )
    for wanted in (0.05, 0.0):
        yield f"\nStop at a gap of {100 * wanted:g} %:\n"
        yield header
        yield "|---|---|---|---|---|---|---|---|"
        settings = [
            (stages, factor * stages, lat, bw)
            for stages in (32, 64)
            for factor in (2, 4)
            for lat, bw in ((0.25, 0.25), (0.25, 2), (2, 0.25), (2, 2))
        ]
        if wanted:
            settings.append((64, 512, 2, 2))
        else:
            settings = [(32, 64, 0.25, 2), (32, 128, 2, 2), (64, 128, 2, 2)]
        for stages, m, lat, bw in settings:
            slow = {
                stages * part // 4 - 1: (int(lat * T_F_US), int(bw * T_F_US)) for part in (1, 2, 3)
            }
            problem = pipeline(stages, m, T_F_US, *SPLIT_US, slow, stages)
            found = synthesize(
                problem, engine=engine, time_limit_s=limit_s, gap=wanted, workers=WORKERS
            )
            yield f"| {stages} × {m} | {lat:g}, {bw:g} | {describe(found)} |"


def main() -> None:
    """Run everything and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for a proof")
    parser.add_argument("--crosspipe-limit", type=float, default=30.0)
    parser.add_argument("--long-limit", type=float, default=120.0)
    options = parser.parse_args()
    lines = ["# Synthesised schedules\n"]
    lines.append(
        f"`python bench/synthesized_schedules.py` on {os.cpu_count()} cores "
        f"({platform.machine()}), {WORKERS} solver workers; "
        + ", ".join(f"{name} {version}" for name, version in versions().items())
        + ". The method and the bound are in `docs/formulation_schedule.md`; times are in µs "
        "unless the unit is given.\n"
    )
    with Engine("cp-sat") as engine:
        engine.start()
        for part in (
            proofs(engine, options.limit),
            crosspipe(engine, options.crosspipe_limit),
            long_pipelines(engine, options.long_limit),
        ):
            for line in part:
                print(line, flush=True)
                lines.append(line)
    if options.output is not None:
        write_atomically(options.output, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
