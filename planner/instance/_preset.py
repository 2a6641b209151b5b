"""Catalog names in place of fields: ``"H100"``, or ``{"preset": "H100", "nic_gbps": 200}``."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from planner.instance import catalog
from planner.instance._base import problem
from planner.instance.errors import describe, nearest


@with_config(ConfigDict(extra="allow"))
class Preset(TypedDict):
    """A catalog name with overrides: any fields of the entry beside ``preset``."""

    preset: str


def expand(table: catalog.Table, what: str, value: Any) -> Any:
    """The fields that a catalog name stands for, with overrides; other values as they are."""
    if isinstance(value, str):
        return catalog.fields(table, _known(table, what, value, ()))
    if isinstance(value, dict) and "preset" in value:
        preset = value["preset"]
        if not isinstance(preset, str):
            raise problem(f"expected the name of a {what}, got {describe(preset)}", at=("preset",))
        base = catalog.fields(table, _known(table, what, preset, ("preset",)))
        return base | {key: override for key, override in value.items() if key != "preset"}
    return value


def _known(table: catalog.Table, what: str, name: str, at: tuple[str, ...]) -> str:
    found = catalog.canonical(table, name)
    if found is None:
        close = nearest(name, catalog.names(table))
        listed = "" if close else f"; the catalog has {', '.join(catalog.names(table))}"
        raise problem(f"unknown {what} {describe(name)}{listed}", at=at, suggestion=close)
    return found
