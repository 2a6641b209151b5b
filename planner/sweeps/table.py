"""The table of a sweep: a row per point, as CSV and Parquet."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from planner.sweeps.points import Point
from planner.sweeps.schema import Axis
from planner.sweeps.task import Failure, Result, failure, has_failed

BREAKDOWN = ("compute", "bubble", "tp", "cp", "ep", "pp", "dp", "optimizer", "fixed")
RUN_PREFIX = "run_"
"""Columns that differ from run to run."""

Value = int | float | str | bool | None
Row = dict[str, Value]


class Column(NamedTuple):
    """A column: its name and the type of its values, ``int``, ``float``, ``str`` or ``bool``."""

    name: str
    kind: type


_FIGURES = (
    "iteration_time_s",
    "lower_bound_s",
    "gap",
    "simulated_time_s",
    "model_error",
    "tokens_per_s",
    "mfu",
)
_PLAN_COUNTS = (
    "tp",
    "cp",
    "ep",
    "etp",
    "pp",
    "dp",
    "dp_shard",
    "dp_replicate",
    "virtual_stages",
    "micro_batch_size",
    "num_microbatches",
    "gpus_used",
)
_PLAN_NAMES = ("schedule", "sharding", "sync", "recompute", "placement_kind")
_PLAN_LISTS = ("layers_per_stage", "extra_warmup")
_PLAN_OBJECTS = ("placement", "flows", "protocols")
_RUN = (
    Column("wall_time_s", float),
    Column("cpu_time_s", float),
    Column("peak_memory_bytes", int),
    Column("host", str),
)
_VERSIONS = {
    "version_planner": "scaleacross-planner",
    "version_ortools": "ortools",
    "version_python": "python",
}


def columns(axes: Iterable[Axis]) -> list[Column]:
    """The columns in order; those of the axes have the type that all their values have."""
    return [
        Column("point", int),
        Column("variant", str),
        *(Column(f"axis_{axis.name}", _kind(axis.shown)) for axis in axes),
        Column("status", str),
        Column("reason", str),
        Column("limit", str),
        Column("failed", bool),
        *(Column(name, float) for name in _FIGURES),
        *(Column(f"plan_{name}", int) for name in _PLAN_COUNTS),
        *(Column(f"plan_{name}", str) for name in _PLAN_NAMES),
        Column("plan_run_length", int),
        Column("plan_overlap", bool),
        *(Column(f"plan_{name}", str) for name in _PLAN_LISTS),
        Column("plan_protocols_used", str),
        *(Column(f"plan_{name}", str) for name in _PLAN_OBJECTS),
        *(Column(f"breakdown_{name}_s", float) for name in BREAKDOWN),
        Column("memory_peak_bytes", int),
        Column("memory_limit_bytes", int),
        Column("key", str),
        *(Column(f"{RUN_PREFIX}{column.name}", column.kind) for column in _RUN),
        *(Column(name, str) for name in _VERSIONS),
    ]


def _kind(values: Sequence[Any]) -> type:
    """The narrowest type of all values."""
    kinds = {type(value) for value in values}
    if kinds <= {int, float}:
        return float if float in kinds else int
    return bool if kinds == {bool} else str


def rows(points: Iterable[Point], results: Mapping[str, Result], axes: Iterable[Axis]) -> list[Row]:
    """The rows of the points that have a result, in the order of the points."""
    kinds = columns(axes)
    found = []
    for point in points:
        result = results.get(point.key)
        if point.refusal is not None:
            result = failure(point.key, Failure.INVALID, point.refusal)
        if result is not None:
            values = _row(point, result)
            found.append({c.name: _cast(values.get(c.name), c.kind) for c in kinds})
    return found


def _row(point: Point, result: Result) -> dict[str, Any]:
    row: dict[str, Any] = {
        "point": point.number,
        "variant": point.variant,
        **{f"axis_{name}": value for name, value in point.axes.items()},
        **{name: result[name] for name in ("status", "reason", "limit", "key")},
        "failed": has_failed(result),
        **{f"{RUN_PREFIX}{name}": value for name, value in result["run"].items()},
    }
    solve = result["solve"]
    if solve is None:
        return row
    row |= {name: solve[name] for name in _FIGURES}
    row |= {name: solve["provenance"]["versions"][key] for name, key in _VERSIONS.items()}
    plan = solve["plan"]
    if plan is None:
        return row
    for name in (*_PLAN_COUNTS, *_PLAN_NAMES, "run_length", "overlap"):
        row[f"plan_{name}"] = plan[name]
    for name in _PLAN_LISTS:
        row[f"plan_{name}"] = ",".join(map(str, plan[name]))
    for name in _PLAN_OBJECTS:
        row[f"plan_{name}"] = json.dumps(plan[name], separators=(",", ":"))
    used = {choice["protocol"] for choice in plan["protocols"]}
    row["plan_protocols_used"] = ",".join(sorted(used))
    row |= {f"breakdown_{name}_s": solve["breakdown"][name] for name in BREAKDOWN}
    fullest = max(solve["memory"], key=lambda stage: stage["peak_bytes"] / stage["limit_bytes"])
    row["memory_peak_bytes"] = fullest["peak_bytes"]
    row["memory_limit_bytes"] = fullest["limit_bytes"]
    return row


def _cast(value: Any, kind: type) -> Value:
    if value is None:
        return None
    if kind is str and isinstance(value, bool):
        return "true" if value else "false"
    cast: Value = kind(value)
    return cast


def csv_text(rows: Iterable[Row], columns: Sequence[Column]) -> str:
    """The table as CSV (RFC 4180 with line feeds): flags ``true`` and ``false``, null empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([column.name for column in columns])
    for row in rows:
        writer.writerow([_text(row[column.name]) for column in columns])
    return out.getvalue()


def _text(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)


def parquet_bytes(rows: Sequence[Row], columns: Sequence[Column]) -> bytes | None:
    """The table as a Parquet file; None where pyarrow (the extra ``sweep``) is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        return None
    kinds = {
        int: pyarrow.int64(),
        float: pyarrow.float64(),
        str: pyarrow.string(),
        bool: pyarrow.bool_(),
    }
    schema = pyarrow.schema([(column.name, kinds[column.kind]) for column in columns])
    table = pyarrow.Table.from_pylist(list(rows), schema=schema)
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink)
    return bytes(sink.getvalue().to_pybytes())
