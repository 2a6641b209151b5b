"""Sweeps as text."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from planner.report.units import rough_time

if TYPE_CHECKING:
    from planner.sweeps.dry_run import DryRun
    from planner.sweeps.run import SweepResult


def render_sweep(result: SweepResult, console: Console) -> None:
    """Print how many points ended how, and where the table is."""
    counts = ", ".join(f"{status} {count:,}" for status, count in sorted(result.statuses.items()))
    console.print(f"{len(result.rows):,} points: {counts or 'none'}", soft_wrap=True)
    if result.missing:
        console.print(f"{result.missing:,} points have no result yet", soft_wrap=True)
    for path in result.files:
        console.print(f"written: {path}", soft_wrap=True)
    for note in result.notes:
        console.print(note, soft_wrap=True)


def render_dry_run(dry: DryRun, console: Console) -> None:
    """Print every point with its fate, then the counts and the estimated time."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("point", "variant", *dry.axes, ""):
        table.add_column(name, no_wrap=True)
    for planned in dry.points:
        point = planned.point
        reason = f": {point.refusal}" if point.refusal else ""
        values = [str(point.axes[name]) for name in dry.axes]
        table.add_row(str(point.number), point.variant, *values, f"{planned.fate}{reason}")
    console.print(table)
    fates = Counter(planned.fate for planned in dry.points)
    counts = ", ".join(f"{fate} {count:,}" for fate, count in sorted(fates.items()))
    console.print()
    console.print(f"{len(dry.points):,} points: {counts}", soft_wrap=True)
    if dry.estimated_s is not None and dry.seconds_per_point is not None:
        console.print(
            f"about {rough_time(dry.estimated_s)} ({dry.seconds_per_point:.1f} s a point, from "
            f"{dry.measured})",
            soft_wrap=True,
        )
