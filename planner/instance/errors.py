"""The one error that bad input raises, and how validation errors become it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, get_args

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError
    from pydantic_core import ErrorDetails

PROBLEM = "planner_problem"
"""Type of the validation errors whose reason is already a finished sentence."""

_LONGEST_LINE = 600
_KEY = "[key]"
"""What pydantic appends to the path of a key that is wrong itself."""
_QUOTED = re.compile(r"'([^']*)'")


def one_line(text: str) -> str:
    """``text`` as one printable line: control characters and surrogates escaped, cut if long."""
    safe = "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii")
        for c in text[:_LONGEST_LINE]
    )
    return safe if len(text) <= _LONGEST_LINE else safe + "..."


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name closest to ``word`` (letter case ignored), or None if none is close."""
    by_folded = {name.casefold(): name for name in known}
    found = get_close_matches(word[:100].casefold(), list(by_folded), n=1, cutoff=0.6)
    return by_folded[found[0]] if found else None


def describe(value: object) -> str:
    """A value as a short phrase for a message."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"text {value[:60]!r}"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, int):
        return str(value) if -(10**30) < value < 10**30 else "a number of more than 30 digits"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    return f"a {type(value).__name__}"


class InputError(ValueError):
    """Input that is not valid.

    ``path`` says where (``cluster.sites[1].gpu``, or a file), ``reason`` what is wrong,
    ``suggestion`` the nearest right name or None. ``str()`` is one line.
    """

    def __init__(self, path: str, reason: str, suggestion: str | None = None) -> None:
        self.path = one_line(path)
        self.reason = one_line(reason)
        self.suggestion = None if suggestion is None else one_line(suggestion)
        super().__init__(self.path, self.reason, self.suggestion)

    def __str__(self) -> str:
        hint = "" if self.suggestion is None else f" (did you mean '{self.suggestion}'?)"
        return f"{self.path}: {self.reason}{hint}"


def dotted(parts: Sequence[str | int], prefix: str = "") -> str:
    """A path such as ``cluster.sites[1].gpu``."""
    path = prefix
    for part in parts:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part}" if path else part
    return path


def first_input_error(
    error: ValidationError, model: type[BaseModel], prefix: str = ""
) -> InputError:
    """The first problem of a pydantic error, as one line with the nearest right name.

    ``model`` is what was validated; ``prefix`` stands before every path, and alone for a problem
    of the document as a whole (``instance`` if empty).
    """
    found = error.errors(include_url=False)
    # A default that depends on a wrong field is no problem of its own.
    detail = next((e for e in found if e["type"] != "default_factory_not_called"), found[0])
    context: dict[str, Any] = detail.get("ctx", {})
    where = [part for part in (*detail["loc"], *context.get("at", ())) if part != _KEY]
    path = dotted(where, prefix) or model.__name__.lower()
    if detail["type"] == PROBLEM:
        return InputError(path, context["reason"], context["suggestion"])
    if detail["type"] == "extra_forbidden":
        known = _keys_at(model, detail["loc"][:-1])
        close = nearest(str(detail["loc"][-1]), known)
        listed = "" if close or not known else f"; known keys: {', '.join(known)}"
        return InputError(path, f"unknown key{listed}", close)
    if detail["type"] == "literal_error":
        value, expected = detail["input"], context["expected"]
        close = nearest(value, _QUOTED.findall(expected)) if isinstance(value, str) else None
        return InputError(path, f"expected {expected}; got {describe(value)}", close)
    return InputError(path, _reason(detail, context))


def _reason(detail: ErrorDetails, context: dict[str, Any]) -> str:
    kind, got = detail["type"], describe(detail["input"])
    if kind == "missing":
        return "missing"
    if kind == "too_short":
        return f"expected at least {context['min_length']} entry, got {context['actual_length']}"
    if kind == "too_long":
        return f"expected at most {context['max_length']} entries"
    expected = {
        "string_type": "text",
        "tuple_type": "a list",
        "list_type": "a list",
        "mapping_type": "an object",
        "dict_type": "an object",
        "model_type": "an object",
        "int_type": "a whole number",
        "int_from_float": "a whole number",
        "float_type": "a number",
        "bool_type": "true or false",
    }.get(kind)
    if expected:
        return f"expected {expected}, got {got}"
    text = detail["msg"]
    return f"{text[:1].lower()}{text[1:]}, got {got}"


def _keys_at(model: type[BaseModel], loc: Sequence[str | int]) -> list[str]:
    """The keys of the object at ``loc`` below ``model``; none if that is not a model."""
    here: type[BaseModel] | None = model
    for part in loc:
        if here is None:
            return []
        if isinstance(part, int):
            continue
        fields = {field.alias or name: field for name, field in here.model_fields.items()}
        here = _model_in(fields[part].annotation) if part in fields else None
    if here is None:
        return []
    return [field.alias or name for name, field in here.model_fields.items()]


def _model_in(annotation: object) -> type[BaseModel] | None:
    if hasattr(annotation, "model_fields"):
        found: type[BaseModel] = annotation  # type: ignore[assignment]
        return found
    return next((m for arg in get_args(annotation) if (m := _model_in(arg))), None)
