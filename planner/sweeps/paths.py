"""Fields of an instance document by path: ``cluster.links[*].oversubscription``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from planner.instance.errors import InputError, dotted, nearest
from planner.instance.schema import Instance

_PART = re.compile(r"([^.\[\]]+)|\[([^\[\]]+)\]")

ALTERNATIVES = (
    ("bandwidth_gbps", "oversubscription"),
    ("distance_km", "rtt_s", "delay_s"),
    ("routing_imbalance", "tokens_per_expert"),
)
"""Keys of one object of which only one is given."""
NEEDS = {"reverse_bandwidth_gbps": "bandwidth_gbps"}
"""Keys that fall with another one."""
DEFAULT_PRESETS = {"stack": "megatron-core"}
"""Presets that an instance has without naming them."""

Key = str | int


def set_field(document: dict[str, Any], path: str, value: Any) -> None:
    """Set a field of an instance document, or all that a path with ``[*]`` names.

    Of alternatives the one that is set replaces the others.  Parts of a catalog entry become its
    overrides.  Whether the last key exists is left to the validation of the instance.

    Raises
    ------
    InputError
        If the path is malformed or leads nowhere.
    """
    first, *rest = _parse(path)
    known = [field.alias or name for name, field in Instance.model_fields.items()]
    if first not in known:
        raise InputError(path, "an instance has no such field", nearest(str(first), known))
    _set(document, [first, *rest], value, path, [])


def _parse(path: str) -> list[Key]:
    """Keys, and in brackets names, indexes or ``*``; the latter two kinds with their brackets."""
    parts: list[Key] = []
    position = 0
    while position < len(path):
        if parts and path[position] == ".":
            position += 1
        found = _PART.match(path, position)
        if found is None or (found[1] is None and not parts):
            break
        parts.append(found[1] if found[1] is not None else f"[{found[2].strip()}]")
        position = found.end()
    if not path.strip() or position < len(path):
        raise InputError(path or "path", "expected a path such as cluster.links[*].bandwidth_gbps")
    return parts


def _set(here: Any, parts: list[Key], value: Any, path: str, walked: list[Key]) -> None:
    part, *rest = parts
    places = list(_places(here, str(part), path, walked))
    for key in places:
        if not rest:
            _replace(here, key, value)
            continue
        if isinstance(here, dict):
            inner = here.get(key)
            preset = inner if isinstance(inner, str) else None
            if inner is None:
                preset = DEFAULT_PRESETS.get(str(key))
            if preset is not None:
                here[key] = {"preset": preset}
            elif inner is None:
                here[key] = {} if not str(rest[0]).startswith("[") else []
        _set(here[key], rest, value, path, [*walked, key])


def _places(here: Any, part: str, path: str, walked: list[Key]) -> Iterator[Key]:
    """The keys of ``here`` that a part of a path names."""
    where = dotted(walked)
    if not part.startswith("["):
        if not isinstance(here, dict):
            raise InputError(path, f"{where} is no object, so it has no field '{part}'")
        yield part
        return
    if not isinstance(here, list):
        raise InputError(path, f"{where} is no list")
    token = part[1:-1]
    if token == "*":
        if not here:
            raise InputError(path, f"{where} is empty")
        yield from range(len(here))
        return
    names = [_name(entry) for entry in here]
    if token in names:
        yield names.index(token)
        return
    if not (token.isascii() and token.isdigit()):
        known = [name for name in names if name]
        raise InputError(path, f"{where} has no entry '{token}'", nearest(token, known))
    if int(token) >= len(here):
        raise InputError(path, f"{where} has {len(here)} entries, counted from 0")
    yield int(token)


def _name(entry: Any) -> str:
    """The name of a site, hub, link, …; of a link without one the name that it gets."""
    if not isinstance(entry, dict):
        return ""
    if entry.get("name"):
        return str(entry["name"])
    return f"{entry['from']}--{entry['to']}" if {"from", "to"} <= entry.keys() else ""


def _replace(here: Any, key: Key, value: Any) -> None:
    here[key] = value
    if not isinstance(here, dict):
        return
    for group in ALTERNATIVES:
        if key in group:
            for other in group:
                if other != key:
                    here.pop(other, None)
    for dependent, needed in NEEDS.items():
        if needed not in here and key != dependent:
            here.pop(dependent, None)
