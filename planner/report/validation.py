"""The report of ``planner validate`` for people."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from planner.instance.errors import one_line
from planner.validation.rows import OVERALL
from planner.validation.validate import Errors, Validation

WIDTHS = {"n": 3, "bias": 5}
"""Least characters of columns that do not have the usual four."""


def render_validation(validation: Validation, console: Console) -> None:
    """Print errors per source, the ranking inside groups, and why rows were skipped."""
    table = Table(
        title="Errors in % of the measured time (left) and peak memory (right)",
        title_justify="left",
        box=None,
        pad_edge=False,
    )
    table.add_column("source", overflow="ellipsis", no_wrap=True, min_width=12, max_width=24)
    for name in ("n", "mean", "med.", "p90", "bias", "n", "mean", "max", "bias"):
        table.add_column(name, justify="right", no_wrap=True, min_width=WIDTHS.get(name, 4))
    for source, parts in validation.summary.items():
        if not parts["time"].n and not parts["memory"].n and source != OVERALL:
            continue
        table.add_row(
            _name(source), *_time(parts["time"]), *_memory(validation, source, parts["memory"])
        )
    console.print(table)
    _ranking(validation, console)
    skipped = Counter(row.time_skipped for row in validation.rows if row.time_skipped)
    if skipped:
        console.print(f"\nNo time predicted or compared for {sum(skipped.values())} rows:")
        for reason, count in skipped.most_common():
            console.print(f"  {count:4d}  {escape(reason)}", highlight=False)
    excluded = [row for row in validation.rows if row.excluded]
    if excluded:
        console.print("\nThought faulty by the file, predicted all the same:")
        for row in excluded:
            console.print(
                f"  {escape(one_line(str(row.id)))}  {escape(one_line(row.excluded or ''))}",
                highlight=False,
            )
    assumed = Counter(text.split(" = ")[0] for row in validation.rows for text in row.assumed)
    if assumed:
        listed = ", ".join(f"{name} ({count})" for name, count in assumed.most_common())
        console.print(f"\nTaken from the defaults of the stacks: {listed}.", highlight=False)


def _name(source: str) -> str:
    """A source without the remarks in brackets, safe to print."""
    return escape(one_line(re.sub(r" \([^)]*\)", "", source)))


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _number(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def _time(errors: Errors) -> list[str]:
    if not errors.n:
        return [""] * 5
    shares = (errors.mape, errors.median_ape, errors.p90_ape, errors.bias)
    return [str(errors.n), *(_number(share) for share in shares)]


def _memory(validation: Validation, source: str, errors: Errors) -> list[str]:
    if not errors.n:
        return [""] * 4
    worst = max(
        abs(error)
        for row in validation.rows
        if source in (row.family, OVERALL) and (error := row.memory_error) is not None
    )
    return [str(errors.n), _number(errors.mape), _number(worst), _number(errors.bias)]


def _ranking(validation: Validation, console: Console) -> None:
    groups = validation.ranking.groups
    if not groups:
        return
    losses = validation.ranking.losses
    correlations = [group.spearman for group in groups if group.spearman is not None]
    line = (
        f"\nIn {len(groups)} groups of configurations of one job the predicted best is measured "
        f"{_percent(float(np.median(losses)))} (median), {_percent(float(np.mean(losses)))} (mean) "
        "slower than the measured best"
    )
    if correlations:
        line += f"; rank correlation {np.median(correlations):.2f} (median)"
    console.print(f"{line}.", highlight=False)
