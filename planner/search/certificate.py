"""The certificate of a search: boxes with verdicts, and the multipliers that ``paths`` rests on.

Boxes that were closed in the same way are merged.  The multipliers stand in one table per template,
as whole numbers, with a witness for every path: ``planner.verification`` finds the path again and
checks the bound in whole numbers.  Rows of numbers are text: numbers apart by blanks, rows by
commas, ``7x3`` for 7 7 7.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from planner.pipeline.schedules import Template
from planner.search.template_bound import FloatArray, Multipliers, Shortage, TemplateBound

WEIGHT_UNIT = 1 << 34
"""Multipliers are rounded to this part of a whole."""
MERGED_AXES = ("dp", "virtual_stages", "pp", "tp", "cp", "ep", "etp", "micro_batch_size")
ENGINE_RULES = ("layers", "model")
"""Rules that rest on a solver."""


def certificate(
    closed: Sequence[dict[str, Any]],
    cases_total: int,
    templates: Iterable[TemplateBound],
    time_us: int | None,
) -> dict[str, Any]:
    """Return the certificate as JSON.

    Parameters
    ----------
    closed
        Entries of the boxes.
    cases_total
        Degrees cases of the space.
    templates
        Relaxations of the search.
    time_us
        Z of the answer; boxes that tie with it are merged with none that do not.
    """
    return {
        "cases": merged(closed, time_us),
        "cases_total": cases_total,
        "grade": grade(closed),
        "templates": [_table(t) for t in templates if t.used or t.used_unfit],
    }


def grade(closed: Iterable[dict[str, Any]]) -> str:
    """What the verdicts rest on: ``open`` where some box has none."""
    entries = list(closed)
    if any(entry["verdict"] == "open" for entry in entries):
        return "open"
    return "engine" if any(entry["rule"] in ENGINE_RULES for entry in entries) else "re-derived"


def merged(closed: Sequence[dict[str, Any]], time_us: int | None) -> list[dict[str, Any]]:
    """Merge boxes of one verdict and rule that differ along one axis; the least bound counts."""
    plain = ("box", "cases", "verdict", "rule", "bound_us")
    kept = [entry for entry in closed if not set(entry) <= set(plain)]
    entries = [entry for entry in closed if set(entry) <= set(plain)]
    for axis in MERGED_AXES:
        groups: dict[tuple[object, ...], list[dict[str, Any]]] = {}
        for entry in entries:
            rest = tuple(
                None if values is None else tuple(values)
                for name, values in entry["box"].items()
                if name != axis
            )
            bound = entry.get("bound_us")
            key = (entry["verdict"], entry["rule"], bound is None, bound == time_us, rest)
            groups.setdefault(key, []).append(entry)
        entries = [_union(group, axis) for group in groups.values()]
    return entries + kept


def _union(group: list[dict[str, Any]], axis: str) -> dict[str, Any]:
    first = group[0]
    if len(group) == 1:
        return first
    values = sorted(value for entry in group for value in entry["box"][axis])
    result = {**first, "box": {**first["box"], axis: values}}
    result["cases"] = sum(entry["cases"] for entry in group)
    if "bound_us" in first:
        result["bound_us"] = min(entry["bound_us"] for entry in group)
    return result


def _table(bound: TemplateBound) -> dict[str, Any]:
    """Paths and multipliers of one template that gave a value."""
    numbers: dict[str, int] = {}
    paths: list[dict[str, Any]] = []

    def number(witness: dict[str, Any]) -> int:
        key = repr(witness)
        if key not in numbers:
            numbers[key] = len(paths)
            paths.append(
                {"durations": numbers_text(witness["durations"])}
                if "durations" in witness
                else witness
            )
        return numbers[key]

    def weighed(y: Multipliers) -> dict[str, Any]:
        rows = [
            [number(row.witness), int(row.whole_start), int(row.whole_end), whole]
            for row, weight in y.rows
            if (whole := round(weight * WEIGHT_UNIT))
        ]
        return {"rows": rows_text(rows), "memory": _sparse(y.memory), "least": _sparse(y.least)}

    multipliers = [weighed(y) for y in bound.used.values()]
    shortages = [_shortage(found) for found in bound.used_unfit.values()]
    return {
        **_template(bound.template),
        "any_warmup": bound.any_warmup,
        "paths": paths,
        "multipliers": multipliers,
        "shortages": shortages,
    }


def _template(template: Template) -> dict[str, Any]:
    return {
        "schedule": template.schedule,
        "pp": template.pp,
        "virtual_stages": template.v,
        "num_microbatches": template.m,
        "run_length": template.run_length,
    }


def _shortage(found: Shortage) -> dict[str, Any]:
    return {"memory": _sparse(found.memory), "least": _sparse(found.least)}


def _sparse(weights: FloatArray) -> str:
    """Places and weights above 0."""
    whole = [round(float(weight) * WEIGHT_UNIT) for weight in weights]
    return rows_text([place, weight] for place, weight in enumerate(whole) if weight)


def rows_text(rows: Iterable[Iterable[int]]) -> str:
    """Rows of whole numbers as text."""
    return ", ".join(" ".join(map(str, row)) for row in rows)


def numbers_text(numbers: Iterable[int]) -> str:
    """Whole numbers as text, repeated ones once with their count."""
    parts = []
    for number, same in groupby(numbers):
        count = sum(1 for _ in same)
        parts.append(f"{number}x{count}" if count > 1 else str(number))
    return " ".join(parts)
