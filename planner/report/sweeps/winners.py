"""Who wins where in a sweep, and by how much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from planner.report.sweeps.table import SweepRow, SweepTable

CATEGORIES: Mapping[str, str] = {
    "variant": "variant",
    "placement": "plan_placement_kind",
    "schedule": "plan_schedule",
    "protocol": "plan_protocols_used",
    "sharding": "plan_sharding",
}
"""What may win, and the column of the table that names it."""

NO_PROTOCOL = "no link used"


class Winner(NamedTuple):
    """The fastest at one combination of axis values.

    Attributes
    ----------
    place
        Index of the value on every dimension.
    label, row
        Who wins, and its row.
    rival
        The fastest row with another label; None where there is none.
    proven
        Whether the bounds exclude that another label is faster: each other row of the combination
        has a bound that is no better than the winner, or no plan at all.
    """

    place: tuple[int, ...]
    label: str
    row: SweepRow
    rival: SweepRow | None
    proven: bool

    @property
    def margin(self) -> float | None:
        """By how much more time the rival needs, as a fraction of the winner's time."""
        if self.rival is None:
            return None
        return _time(self.rival) / _time(self.row) - 1


def label_of(row: SweepRow, category: str) -> str:
    """What a row counts for in a category."""
    if category == "variant":
        return row.variant
    return row.text(CATEGORIES[category]) or NO_PROTOCOL


def contenders(table: SweepTable, rows: Sequence[SweepRow], category: str) -> list[SweepRow]:
    """Return the rows that take part.

    Among variants, those that restrict nothing are left out where at least two others are there:
    they contain the others, so they would win everywhere.
    """
    if category != "variant":
        return list(rows)
    restricted = [variant for variant in table.variants if variant not in table.unrestricted]
    return [row for row in rows if row.variant in restricted] if len(restricted) > 1 else list(rows)


def winners(table: SweepTable, category: str) -> list[Winner]:
    """Return the winner at every combination of axis values where some plan was found.

    Of equally fast rows the one that comes first in the table wins, with a margin of 0 to the next.
    """
    found = []
    for place, everything in sorted(table.by_place().items()):
        rows = contenders(table, everything, category)
        timed = [row for row in rows if row.time_s is not None]
        if not timed:
            continue
        ranked = sorted(timed, key=_time)
        best = ranked[0]
        label = label_of(best, category)
        rival = next((row for row in ranked if label_of(row, category) != label), None)
        proven = all(
            _excluded(row, _time(best))
            for row in rows
            if not (row is best and category == "variant")
        )
        found.append(Winner(place, label, best, rival, proven))
    return found


def categories_of(table: SweepTable) -> list[str]:
    """Return the categories in which the sweep has more than one contender."""
    timed = [row for row in table.rows if row.time_s is not None]
    return [
        category
        for category in CATEGORIES
        if len({label_of(row, category) for row in contenders(table, timed, category)}) > 1
    ]


def _time(row: SweepRow) -> float:
    assert row.time_s is not None
    return row.time_s


def _excluded(row: SweepRow, time_s: float) -> bool:
    if row.values["status"] in ("INFEASIBLE", "INVALID"):
        return True
    return row.bound_s is not None and row.bound_s >= time_s
