"""The catalog: GPUs, models, protocols and stacks with the source of every figure.

The JSON files beside this module are read when first asked for. Entries come back as plain
fields; ``planner.instance.presets`` turns them into models.
"""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.resources import files
from typing import Any, Literal

Table = Literal["gpus", "models", "protocols", "stacks"]


@lru_cache(maxsize=4)
def _table(table: Table) -> dict[str, dict[str, Any]]:
    text = (files(__name__) / f"{table}.json").read_text(encoding="utf-8")
    entries: dict[str, dict[str, Any]] = json.loads(text)
    return entries


def names(table: Table) -> tuple[str, ...]:
    """The names in a table, in file order."""
    return tuple(_table(table))


def canonical(table: Table, name: str) -> str | None:
    """The table's spelling of ``name`` (letter case ignored), or None if it has no such entry."""
    wanted = name.casefold()
    return next((known for known in _table(table) if known.casefold() == wanted), None)


def fields(table: Table, name: str) -> dict[str, Any]:
    """A copy of the schema fields of one entry, its name included."""
    entry = _table(table)[name]
    return {"name": name, **(entry["spec"] if table == "models" else entry)}


def model_parameters_billion(name: str) -> float:
    """The published total number of parameters of a model, in 10^9."""
    return float(_table("models")[name]["parameters_billion"])


def model_source(name: str) -> str:
    """Where the figures of a model come from."""
    return str(_table("models")[name]["source"])
