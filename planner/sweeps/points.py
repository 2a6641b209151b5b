"""The points of a sweep: every combination of axis values with every variant."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import formulations
import planner
from planner.instance.errors import InputError, describe
from planner.instance.fixes import search_key
from planner.instance.load import load_instance
from planner.sweeps.load import LoadedSweep
from planner.sweeps.paths import set_field
from planner.sweeps.schema import Axis, Sweep
from planner.versions import versions

Place = tuple[int, ...]
"""Index of the value on every axis, a zip counting once."""


@dataclass(frozen=True)
class Point:
    """One solve.

    Attributes
    ----------
    number
        Number of the combination of axis values, from 0, the last axis fastest.
    variant
        Name of the variant.
    place
        The combination by the indexes of its values.
    axes
        What the table shows of each plain axis.
    key
        Hash of the resolved instance, the options, the limits and the versions.
    document
        The instance.
    refusal
        Why the instance is none, or None.
    """

    number: int
    variant: str
    place: Place
    axes: dict[str, Any]
    key: str
    document: dict[str, Any]
    refusal: str | None


def expand(loaded: LoadedSweep) -> list[Point]:
    """All points in the order of the table.

    Raises
    ------
    InputError
        If a path leads nowhere, or every point of an axis value or of a variant is refused.
    """
    sweep = loaded.sweep
    points: list[Point] = []
    refusals: dict[tuple[int, str], InputError] = {}
    places = product(*(range(len(axis.parts[0].points)) for axis in sweep.axes))
    for number, place in enumerate(places):
        shown = {
            str(part.name): part.shown[index]
            for axis, index in zip(sweep.axes, place, strict=True)
            for part in axis.parts
        }
        for variant in sweep.variants:
            document = _document(loaded, place, variant)
            refusal = None
            try:
                instance = load_instance(document)
                content = instance.model_dump(
                    mode="json", by_alias=True, exclude={"schema_", "name", "description"}
                )
            except InputError as error:
                refusals[number, variant] = error
                refusal, content = str(error), document
            key = point_key(content, sweep)
            points.append(Point(number, variant, place, shown, key, document, refusal))
    _check_refusals(sweep, points, refusals)
    return points


def point_key(content: Mapping[str, Any], sweep: Sweep) -> str:
    """Hash of what the result of a point depends on, 32 hexadecimal digits."""
    parts = {
        "instance": content,
        "limits": sweep.limits.model_dump(mode="json"),
        "solve": sweep.solve.model_dump(mode="json"),
        "code": code_versions(),
    }
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@lru_cache(maxsize=1)
def code_versions() -> dict[str, str]:
    """Versions of the planner and its solvers, and a hash of the planner's code."""
    digest = hashlib.sha256()
    for package in (planner, formulations):
        root = Path(str(package.__file__)).parent
        for path in sorted(root.rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode())
            digest.update(path.read_bytes())
    found = {name: version for name, version in versions().items() if name != "python"}
    return found | {"code": digest.hexdigest()[:16]}


def in_shard(key: str, shard: int, shards: int) -> bool:
    """Whether a point belongs to shard number ``shard`` of 1…``shards``."""
    return int(key[:16], 16) % shards == shard - 1


def _document(loaded: LoadedSweep, place: Place, variant: str) -> dict[str, Any]:
    """The instance of a point: sweep, axes in order, variant."""
    sweep = loaded.sweep
    document = copy.deepcopy(loaded.base)
    fixes: dict[str, Any] = {}
    _apply(document, fixes, sweep.set, sweep.fix)
    for axis, index in zip(sweep.axes, place, strict=True):
        for part in axis.parts:
            value = part.points[index]
            _apply(
                document,
                fixes,
                dict.fromkeys(part.set or (), value),
                dict.fromkeys(part.fix or (), value),
            )
    chosen = sweep.variants[variant]
    _apply(document, fixes, chosen.set, chosen.fix)
    narrowed = {search_key(key): value for key, value in fixes.items() if value is not None}
    if narrowed:
        search = document.get("search")
        document["search"] = (search if isinstance(search, dict) else {}) | narrowed
    return document


def _apply(
    document: dict[str, Any],
    fixes: dict[str, Any],
    settings: Mapping[str, Any],
    more_fixes: Mapping[str, Any],
) -> None:
    for path, value in settings.items():
        set_field(document, path, copy.deepcopy(value))
    fixes.update(more_fixes)


def _check_refusals(
    sweep: Sweep, points: list[Point], refusals: Mapping[tuple[int, str], InputError]
) -> None:
    """Raise InputError where no point of some axis value or variant is an instance."""
    if not refusals:
        return
    for where, keep in _groups(sweep):
        group = [point for point in points if keep(point)]
        errors = [refusals.get((point.number, point.variant)) for point in group]
        first = errors[0] if errors else None
        if first is not None and all(errors):
            path = f"{where}: {first.path}" if where else first.path
            raise InputError(path, first.reason, first.suggestion)


def _groups(sweep: Sweep) -> Iterator[tuple[str, Any]]:
    """All points, those of each variant, and those of each value, with a name for errors."""
    yield "", lambda point: True
    for variant in sweep.variants:
        yield f"variants.{variant}", lambda point, v=variant: point.variant == v
    for i, axis in enumerate(sweep.axes):
        for index in range(len(axis.parts[0].points)):
            yield (
                f"axes[{i}] {_value_text(axis, index)}",
                lambda point, i=i, n=index: point.place[i] == n,
            )


def _value_text(axis: Axis, index: int) -> str:
    return ", ".join(f"{part.name} = {_short(part.shown[index])}" for part in axis.parts)


def _short(value: Any) -> str:
    return value if isinstance(value, str) else describe(value)
