"""Pareto fronts: what is faster with as many GPUs, or as fast with fewer."""

from __future__ import annotations

from collections.abc import Iterable

from planner.report.sweeps.table import SweepRow


def front(rows: Iterable[SweepRow]) -> list[SweepRow]:
    """Return the rows that no other row beats in time and GPUs, the fewest GPUs first."""
    known = [
        (gpus, row.time_s, i, row)
        for i, row in enumerate(rows)
        if row.time_s is not None and (gpus := row.gpus) is not None
    ]
    kept: list[SweepRow] = []
    best = float("inf")
    for _, time_s, _, row in sorted(known, key=lambda item: item[:3]):
        if time_s < best:
            best = time_s
            kept.append(row)
    return kept
