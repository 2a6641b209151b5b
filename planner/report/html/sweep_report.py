"""The report of a sweep: phase diagrams, curves, fronts and the table, on one page.

Winners, margins and everything else that is computed comes from :mod:`planner.report.sweeps`; the
script of the page only chooses and draws.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from planner.report import palette
from planner.report.html.page import render_page
from planner.report.sweeps.table import Dimension, SweepRow, SweepTable
from planner.report.sweeps.winners import categories_of, label_of, winners

COLUMNS = (
    ("status", "status", ""),
    ("iteration_time_s", "iteration", "s"),
    ("lower_bound_s", "lower bound", "s"),
    ("gap", "gap", "%"),
    ("tokens_per_s", "tokens/s", "1/s"),
    ("mfu", "MFU", "%"),
    ("plan_gpus_used", "GPUs", ""),
    ("plan_placement_kind", "placement", ""),
    ("plan_schedule", "schedule", ""),
    ("plan_protocols_used", "protocols", ""),
    ("plan_sharding", "sharding", ""),
    ("plan_sync", "sync", ""),
    ("plan_recompute", "recompute", ""),
    ("plan_tp", "tp", ""),
    ("plan_cp", "cp", ""),
    ("plan_ep", "ep", ""),
    ("plan_pp", "pp", ""),
    ("plan_dp", "dp", ""),
    ("plan_num_microbatches", "microbatches", ""),
    ("memory_peak_bytes", "peak memory", "GiB"),
    ("run_wall_time_s", "solve time", "s"),
    ("reason", "reason", ""),
)
"""Columns of the table: name, title, and how a number is shown."""

TEXTS = frozenset(("status", "plan_placement_kind", "plan_schedule", "plan_protocols_used"))
TEXTS |= {"plan_sharding", "plan_sync", "plan_recompute", "reason"}

MOST_VALUES = 20
"""More values of a dimension are not listed one by one."""

CATEGORY_TITLES = {
    "variant": "variant",
    "placement": "placement",
    "schedule": "schedule",
    "protocol": "protocols",
    "sharding": "sharding",
}


def sweep_report(table: SweepTable) -> str:
    """Return the page of a sweep."""
    statuses = Counter(row.text("status") for row in table.rows)
    missing = None if table.num_points is None else max(0, table.num_points - len(table.rows))
    return render_page(
        "sweep.html.j2",
        title=table.name,
        description=table.description,
        dimensions=[(d.title, _range(d)) for d in table.dimensions],
        variants=table.variants,
        statuses=statuses.most_common(),
        rows=len(table.rows),
        missing=missing,
        data=_data(table),
    )


def _range(dimension: Dimension) -> str:
    """The values of a dimension; of many the first and last with their number."""
    labels = dimension.labels
    if len(labels) <= MOST_VALUES:
        return ", ".join(labels)
    return f"{labels[0]}, {labels[1]}, …, {labels[-1]} ({len(labels)} values)"


def _data(table: SweepTable) -> dict[str, Any]:
    number = {id(row): i for i, row in enumerate(table.rows)}
    workload = table.workload_dimensions()
    return {
        "dimensions": [
            {
                "title": d.title,
                "labels": d.labels,
                "numbers": d.numbers,
                "workload": i in workload,
            }
            for i, d in enumerate(table.dimensions)
        ],
        "variants": table.variants,
        "columns": [
            {"title": title, "unit": unit, "text": name in TEXTS} for name, title, unit in COLUMNS
        ],
        "rows": [_row(table, row) for row in table.rows],
        "categories": [_category(table, name, number) for name in categories_of(table)],
        "colours": palette.COLOURS,
        "dashes": palette.DASHES,
    }


def _row(table: SweepTable, row: SweepRow) -> list[Any]:
    return [
        list(row.place),
        table.variants.index(row.variant),
        *(row.values.get(name) for name, _, _ in COLUMNS),
    ]


def _category(table: SweepTable, name: str, number: dict[int, int]) -> dict[str, Any]:
    found = winners(table, name)
    wins = Counter(winner.label for winner in found)
    labels = [label for label, _ in wins.most_common()]
    rivals = (label_of(w.rival, name) for w in found if w.rival is not None)
    labels += [label for label in dict.fromkeys(rivals) if label not in wins]
    return {
        "title": CATEGORY_TITLES[name],
        "labels": labels,
        "wins": [wins[label] for label in labels],
        "cells": [
            {
                "place": list(winner.place),
                "label": labels.index(winner.label),
                "row": number[id(winner.row)],
                "rival": None
                if winner.rival is None
                else labels.index(label_of(winner.rival, name)),
                "margin": winner.margin,
                "proven": winner.proven,
            }
            for winner in found
        ],
    }
