"""Memory rows with equal ones together, as the reports show them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from planner.check import StageMemory


class MemoryLine(NamedTuple):
    """Stages ``first`` to ``last`` at ``sites``, whose GPUs all need the same.

    ``figures`` is one of their rows, without stage and site.
    """

    first: int
    last: int
    sites: tuple[str, ...]
    figures: StageMemory


def memory_lines(rows: Sequence[StageMemory]) -> list[MemoryLine]:
    """Return rows of equal neighbouring stages and of equal sites as one line each."""
    by_stage = [
        (stage, tuple((row.site, row._replace(stage=0, site="")) for row in group))
        for stage, group in groupby(rows, key=lambda row: row.stage)
    ]
    lines = []
    for entries, run in groupby(by_stage, key=lambda item: item[1]):
        stages = [stage for stage, _ in run]
        sites: dict[StageMemory, list[str]] = {}
        for site, figures in entries:
            sites.setdefault(figures, []).append(site)
        lines += [
            MemoryLine(stages[0], stages[-1], tuple(names), figures)
            for figures, names in sites.items()
        ]
    return lines


def fullest(lines: Sequence[MemoryLine], most: int) -> list[MemoryLine]:
    """Return the ``most`` lines that leave least of their limit, in their order."""
    kept = sorted(lines, key=lambda line: line.figures.limit_mib - line.figures.peak_mib)[:most]
    return [line for line in lines if line in kept]
