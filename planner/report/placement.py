"""The placement drawn as a grid: stages down, sites across, a bar for the replicas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from planner.instance.schema import Instance
from planner.plan import Plan
from planner.report.units import name_list, span

NARROWEST_COLUMN = 18
LONGEST_BAR = 24


class Column(NamedTuple):
    """Sites with the same replicas of every stage."""

    sites: tuple[str, ...]
    replicas: tuple[int, ...]


def site_columns(plan: Plan, most: int) -> list[Column]:
    """Return the sites that the plan uses; where they are more than ``most``, equal ones together.

    The order is that of the placement.
    """
    grid: dict[str, list[int]] = {}
    for hosting in plan.placement:
        row = grid.setdefault(hosting.site, [0] * plan.pp)
        for stage in range(hosting.first_stage, hosting.last_stage + 1):
            row[stage] += hosting.replicas
    if len(grid) <= most:
        return [Column((site,), tuple(replicas)) for site, replicas in grid.items()]
    together: dict[tuple[int, ...], list[str]] = {}
    for site, replicas in grid.items():
        together.setdefault(tuple(replicas), []).append(site)
    return [Column(tuple(sites), replicas) for replicas, sites in together.items()]


def stage_runs(columns: Sequence[Column]) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Yield first stage, last stage and replicas per column of every run of equal stages."""
    rows = zip(*(column.replicas for column in columns), strict=True)
    for replicas, run in groupby(enumerate(rows), key=lambda item: item[1]):
        stages = [stage for stage, _ in run]
        yield stages[0], stages[-1], replicas


def print_placement(instance: Instance, plan: Plan, console: Console) -> None:
    """Draw the placement; sites that do not fit side by side follow below."""
    per_block = max(1, (console.width - 8) // NARROWEST_COLUMN)
    columns = site_columns(plan, per_block)
    bar = "█" if console.encoding.lower().startswith("utf") else "#"
    for first in range(0, len(columns), per_block):
        console.print(_block(instance, plan, columns[first : first + per_block], console, bar))
    used = {site for column in columns for site in column.sites}
    unused = [site.name for site in instance.cluster.sites if site.name not in used]
    if unused:
        console.print(f"  unused: {name_list(unused)}")
    for flow in plan.flows:
        after = flow.boundary + 1 if flow.boundary < plan.pp - 1 else 0
        console.print(
            f"  stage {flow.boundary} to {after}: {flow.replicas:,} replicas move from "
            f"{flow.source} to {flow.target}"
        )


def _block(
    instance: Instance, plan: Plan, columns: Sequence[Column], console: Console, bar: str
) -> Table:
    """One block of columns that fit side by side."""
    widest = (console.width - 10) // len(columns) - 4
    digits = len(f"{plan.dp:,}")
    each = 5 if any(len(column.sites) > 1 for column in columns) else 0
    length = max(4, min(LONGEST_BAR, widest - digits - each - 1))
    gpus = {site.name: site.num_gpus for site in instance.cluster.sites}
    table = Table(box=None, padding=(0, 2, 0, 2), header_style="bold")
    table.add_column("stage", justify="right", no_wrap=True)
    for column in columns:
        table.add_column(name_list(column.sites, most=1), max_width=max(8, widest))
    for first, last, replicas in stage_runs(columns):
        cells = [
            _cell(count, plan.dp, length, bar, len(column.sites))
            for count, column in zip(replicas, columns, strict=True)
        ]
        table.add_row(span(first, last), *cells)
    used = [
        f"{sum(c.replicas) * plan.tp * plan.cp:,} of {gpus.get(c.sites[0], 0):,}" for c in columns
    ]
    table.add_row("GPUs", *used, style="dim")
    return table


def _cell(count: int, dp: int, length: int, bar: str, sites: int) -> str:
    if not count:
        return "-"
    each = " each" if sites > 1 else ""
    return f"{bar * max(1, round(length * count / dp))} {count:,}{each}"
