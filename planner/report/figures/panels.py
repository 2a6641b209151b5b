"""How the dimensions of a sweep are laid out on pages of equal panels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from planner.report.sweeps.table import SweepTable

MOST_PANELS = 9
"""Panels of one picture; more go to further ones."""
COLUMNS = 3


def open_dimensions(table: SweepTable) -> list[int]:
    """Return the dimensions with more than one value, those with the most values first."""
    sizes = table.sizes()
    return sorted((i for i, size in enumerate(sizes) if size > 1), key=lambda i: -sizes[i])


def slices(table: SweepTable, across: Sequence[int]) -> list[dict[int, int]]:
    """Return every combination of values of the dimensions that are not drawn in a panel."""
    others = [i for i in open_dimensions(table) if i not in across]
    sizes = table.sizes()
    return [
        dict(zip(others, values, strict=True))
        for values in product(*(range(sizes[i]) for i in others))
    ]


def pages(found: Sequence[dict[int, int]]) -> Iterator[Sequence[dict[int, int]]]:
    """Yield the slices of one picture after the other."""
    for first in range(0, len(found), MOST_PANELS):
        yield found[first : first + MOST_PANELS]


def in_slice(place: Sequence[int], chosen: dict[int, int]) -> bool:
    """Whether a place lies in a slice."""
    return all(place[i] == value for i, value in chosen.items())


def slice_title(table: SweepTable, chosen: dict[int, int]) -> str:
    """Return the values that a slice fixes, as the title of its panel."""
    return "\n".join(
        f"{table.dimensions[i].title}: {table.dimensions[i].labels[value]}"
        for i, value in chosen.items()
    )
