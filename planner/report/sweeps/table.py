"""The table of a sweep folder (see ``docs/sweeps.md``), with the place of every point."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from planner.instance.errors import InputError, first_input_error
from planner.instance.text import LARGEST_DOCUMENT, read_json, read_text

LARGEST_TABLE = 512 * 2**20
"""Bytes of a table that is read."""

INTEGERS = frozenset(
    f"plan_{name}"
    for name in (
        *("tp", "cp", "ep", "etp", "pp", "dp", "dp_shard", "dp_replicate", "virtual_stages"),
        *("micro_batch_size", "num_microbatches", "gpus_used"),
    )
)
FLOATS = frozenset(
    (
        *("iteration_time_s", "lower_bound_s", "gap", "simulated_time_s", "tokens_per_s", "mfu"),
        *("memory_peak_bytes", "memory_limit_bytes", "run_wall_time_s"),
    )
)
TEXTS = frozenset(
    (
        *("status", "reason", "plan_schedule", "plan_sharding", "plan_sync", "plan_recompute"),
        *("plan_placement_kind", "plan_protocols_used"),
    )
)
NEEDED = ("point", "variant", "status", "iteration_time_s", "lower_bound_s")


class _Axis(BaseModel):
    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)

    name: str
    label: str | None = None
    unit: str | None = None
    values: tuple[Any, ...]
    labels: tuple[str, ...] | None = None


class _Sweep(BaseModel):
    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)

    name: str = "unnamed"
    description: str = ""
    variants: Mapping[str, Any] = Field(default_factory=dict)


class _Folder(BaseModel):
    """What is read of ``sweep.json``."""

    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)

    sweep: _Sweep = _Sweep()
    axes: tuple[_Axis, ...] = ()
    num_points: int | None = None


@dataclass(frozen=True)
class Axis:
    """One axis: its name in the table, what a picture calls it, and its values as text."""

    name: str
    title: str
    unit: str
    values: tuple[str, ...]
    numbers: tuple[float, ...] | None
    """The values, where all are numbers."""


@dataclass(frozen=True)
class Dimension:
    """One axis, or several that move together."""

    axes: tuple[Axis, ...]

    @property
    def title(self) -> str:
        """What a picture writes beside it, with the unit."""
        return " / ".join(f"{a.title} ({a.unit})" if a.unit else a.title for a in self.axes)

    @property
    def labels(self) -> tuple[str, ...]:
        """Its values as text, in the order of the sweep."""
        return tuple(
            " / ".join(parts) for parts in zip(*(a.values for a in self.axes), strict=True)
        )

    @property
    def numbers(self) -> tuple[float, ...] | None:
        """Its values, where they are numbers of one axis."""
        return self.axes[0].numbers if len(self.axes) == 1 else None

    @property
    def ticks(self) -> tuple[str, ...]:
        """The labels with at most four digits, for axes."""
        numbers = self.numbers
        return self.labels if numbers is None else tuple(f"{value:.4g}" for value in numbers)


@dataclass(frozen=True)
class SweepRow:
    """One point and variant.

    Attributes
    ----------
    point
        Number of the combination of axis values.
    place
        Index of the value on every dimension.
    values
        Further columns of the table by name: numbers, texts, or None.
    """

    point: int
    place: tuple[int, ...]
    variant: str
    values: Mapping[str, float | int | str | None]

    @property
    def time_s(self) -> float | None:
        """Z of the plan."""
        value = self.values["iteration_time_s"]
        return value if isinstance(value, float) else None

    @property
    def bound_s(self) -> float | None:
        """No plan of the variant is faster."""
        value = self.values["lower_bound_s"]
        return value if isinstance(value, float) else None

    @property
    def gpus(self) -> int | None:
        """GPUs that the plan uses."""
        value = self.values.get("plan_gpus_used")
        return value if isinstance(value, int) else None

    def text(self, column: str) -> str:
        """A column as text, empty where it has no value."""
        value = self.values.get(column)
        return "" if value is None else str(value)


@dataclass(frozen=True)
class SweepTable:
    """All rows of a sweep that are there.

    ``unrestricted`` are the variants that change nothing; ``num_points`` counts the rows of the
    whole sweep, None where the folder does not say.
    """

    name: str
    description: str
    dimensions: tuple[Dimension, ...]
    variants: tuple[str, ...]
    unrestricted: frozenset[str]
    rows: tuple[SweepRow, ...]
    num_points: int | None

    def sizes(self) -> tuple[int, ...]:
        """Number of values of every dimension."""
        return tuple(len(d.labels) for d in self.dimensions)

    def workload_dimensions(self) -> list[int]:
        """The dimensions along which an iteration has another number of tokens."""
        found = []
        for i in range(len(self.dimensions)):
            tokens: dict[int, set[int]] = {}
            for row in self.rows:
                rate = row.values.get("tokens_per_s")
                if row.time_s is not None and isinstance(rate, float):
                    tokens.setdefault(row.place[i], set()).add(round(rate * row.time_s))
            if any(seen != next(iter(tokens.values())) for seen in tokens.values()):
                found.append(i)
        return found

    def by_place(self) -> dict[tuple[int, ...], list[SweepRow]]:
        """The rows of every combination, in the order of the variants."""
        found: dict[tuple[int, ...], list[SweepRow]] = {}
        for row in self.rows:
            found.setdefault(row.place, []).append(row)
        return found


def read_sweep(folder: Path) -> SweepTable:
    """Read ``sweep.json`` and ``results.csv`` of a sweep folder.

    Raises
    ------
    InputError
        If a file is missing, or a field of it is missing or of the wrong kind.
    """
    for name in ("sweep.json", "results.csv"):
        if not (folder / name).is_file():
            raise InputError(str(folder), f"is no sweep folder: it has no {name}")
    try:
        described = _Folder.model_validate(
            read_json(folder / "sweep.json", largest=LARGEST_DOCUMENT)
        )
    except ValidationError as error:
        raise first_input_error(error, _Folder, str(folder / "sweep.json")) from None
    axes = [_axis(axis) for axis in described.axes]
    path = str(folder / "results.csv")
    text = read_text(folder / "results.csv", largest=LARGEST_TABLE)
    records = list(_records(text, path, [axis.name for axis in axes]))
    places = [
        tuple(
            _position(record, axis, given, path)
            for axis, given in zip(axes, described.axes, strict=True)
        )
        for record in records
    ]
    groups = _zipped(axes, places)
    rows = tuple(
        SweepRow(
            _integer(record, "point", path),
            tuple(place[group[0]] for group in groups),
            record["variant"],
            _values(record, path),
        )
        for record, place in zip(records, places, strict=True)
    )
    given = described.sweep.variants
    return SweepTable(
        name=described.sweep.name,
        description=described.sweep.description,
        dimensions=tuple(Dimension(tuple(axes[i] for i in group)) for group in groups),
        variants=tuple(dict.fromkeys([*given, *(row.variant for row in rows)])),
        unrestricted=frozenset(name for name, changes in given.items() if not _changes(changes)),
        rows=rows,
        num_points=described.num_points,
    )


def _changes(variant: Any) -> bool:
    return not isinstance(variant, Mapping) or any(bool(part) for part in variant.values())


def _axis(given: _Axis) -> Axis:
    numbers = None
    if given.labels is None and all(
        isinstance(v, int | float) and not isinstance(v, bool) for v in given.values
    ):
        numbers = tuple(float(v) for v in given.values)
    texts = given.labels or tuple(_shown(value) for value in given.values)
    title = given.label or given.name.replace("_", " ")
    return Axis(given.name, title, given.unit or "", tuple(texts), numbers)


def _shown(value: Any) -> str:
    if isinstance(value, float) and not isinstance(value, bool):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value)


def _records(text: str, path: str, axes: Sequence[str]) -> Iterator[dict[str, str]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        names = reader.fieldnames or []
        for column in (*NEEDED, *(f"axis_{name}" for name in axes)):
            if column not in names:
                raise InputError(path, f"the column {column} is missing")
        for record in reader:
            if None in record or None in record.values():
                raise InputError(path, f"line {reader.line_num} has another number of columns")
            record["line"] = str(reader.line_num)
            yield record
    except csv.Error as error:
        raise InputError(path, f"not CSV: {error} at line {reader.line_num}") from None


def _position(record: Mapping[str, str], axis: Axis, given: _Axis, path: str) -> int:
    cell = record[f"axis_{axis.name}"]
    if cell in axis.values:
        return axis.values.index(cell)
    if axis.numbers is not None:
        number = _number(cell)
        if number is not None and number in axis.numbers:
            return axis.numbers.index(number)
    raise InputError(
        path,
        f"line {record['line']}: '{cell}' is no value of axis {axis.name} in sweep.json",
    )


def _zipped(axes: Sequence[Axis], places: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """Axes that are at the same place in every row, together."""
    groups: list[list[int]] = []
    for i, axis in enumerate(axes):
        for group in groups:
            first = group[0]
            together = len(axes[first].values) == len(axis.values) > 1
            if together and places and all(place[first] == place[i] for place in places):
                group.append(i)
                break
        else:
            groups.append([i])
    return groups


def _values(record: Mapping[str, str], path: str) -> dict[str, float | int | str | None]:
    values: dict[str, float | int | str | None] = {}
    for column, cell in record.items():
        if column in TEXTS:
            values[column] = cell or None
        elif column in INTEGERS:
            values[column] = _integer(record, column, path) if cell else None
        elif column in FLOATS or column.startswith("breakdown_"):
            number = _number(cell)
            if cell and number is None:
                raise InputError(path, f"line {record['line']}: {column} '{cell}' is no number")
            values[column] = number
    return values


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _integer(record: Mapping[str, str], column: str, path: str) -> int:
    number = _number(record[column])
    if number is None or number != int(number):
        where = f"line {record['line']}: {column}"
        raise InputError(path, f"{where} '{record[column]}' is no whole number")
    return int(number)
