"""``--fix KEY=VALUE``: narrow the choices of a plan from the command line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from planner.instance.errors import InputError, nearest
from planner.instance.load import narrowed
from planner.instance.schema import Instance
from planner.instance.search_space import Search

LAYERS = "layers_per_stage"
"""The one key whose value is a list of its own."""

FIX_KEYS = (
    *(key for key in Search.model_fields if key not in ("shard_across_sites", f"fixed_{LAYERS}")),
    LAYERS,
)
"""The plan fields that can be fixed."""


def with_fixes(instance: Instance, fixes: Iterable[str]) -> Instance:
    """Return the instance narrowed to plans that agree with every ``KEY=VALUE``.

    A repeated key allows each of its values. ``layers_per_stage`` takes one list such as
    ``12,12,12,12``, a number for every chunk.

    Raises
    ------
    InputError
        If a key is unknown or a value is none that the instance allows.
    """
    allowed: dict[str, list[Any]] = {}
    for fix in fixes:
        key, values = _parsed(fix)
        if key == LAYERS and key in allowed:
            raise InputError(f"--fix {key}", "give it once, as one list such as 12,12,12,12")
        allowed.setdefault(key, []).extend(values)
    if not allowed:
        return instance
    try:
        return narrowed(instance, {search_key(key): value for key, value in allowed.items()})
    except InputError as error:
        for key in allowed:
            place = f"search.{search_key(key)}"
            if error.path == place or error.path.startswith((f"{place}[", f"{place}.")):
                raise InputError(f"--fix {key}", error.reason, error.suggestion) from None
        raise


def search_key(key: str) -> str:
    """The key of ``search`` that fixes a plan field."""
    return f"fixed_{key}" if key == LAYERS else key


def _parsed(fix: str) -> tuple[str, list[Any]]:
    """The key and the values of one ``KEY=VALUE``."""
    key, separator, text = (part.strip() for part in fix.partition("="))
    if not separator or not key or not text:
        raise InputError(f"--fix {fix}", "expected KEY=VALUE, such as pp=8")
    if key not in FIX_KEYS:
        close = nearest(key, FIX_KEYS)
        listed = "" if close else f"; known choices: {', '.join(FIX_KEYS)}"
        raise InputError(f"--fix {key}", f"no choice of a plan has this name{listed}", close)
    parts = text.split(",")
    if len(parts) > 1 and key != LAYERS:
        raise InputError(f"--fix {key}", "one value at a time; repeat --fix to allow several")
    return key, [_value(part.strip()) for part in parts]


def _value(text: str) -> Any:
    """A whole number, true or false where the text is one, else the text."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) <= 30:
        return int(text)
    return text
