"""Strict JSON: no duplicate keys, no NaN or infinity, bounded size, one error for every fault."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, NoReturn

from planner.instance.errors import InputError, describe

if TYPE_CHECKING:
    from pathlib import Path

LARGEST_FILE = 10 * 2**20
"""Bytes; larger files are refused before they are read."""
LARGEST_DOCUMENT = 64 * 2**20
"""The same for solve documents, which carry a certificate."""


def read_json(path: Path, *, largest: int = LARGEST_FILE) -> Any:
    """The JSON document in a file of at most ``largest`` bytes."""
    return parse_json(_read(path, "a JSON file", largest), str(path))


def read_text(path: Path, *, largest: int = LARGEST_FILE) -> str:
    """The text in a file of at most ``largest`` bytes; bytes that are not UTF-8 are replaced."""
    text = _read(path, "a text file", largest).decode("utf-8-sig", errors="replace")
    if not text.strip():
        raise InputError(str(path), "the file is empty")
    return text


def _read(path: Path, what: str, largest: int) -> bytes:
    where = str(path)
    try:
        if path.is_dir():
            raise InputError(where, f"is a directory, not {what}")
        if not path.is_file():
            raise InputError(where, "no such file" if not path.exists() else "not a regular file")
        if path.stat().st_size > largest:
            raise InputError(where, f"larger than {largest // 2**20} MiB")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(where, f"cannot be read: {_cause(error)}") from None


def _cause(error: OSError | ValueError) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def parse_json(data: bytes, where: str) -> Any:
    """The JSON document in ``data``; ``where`` names it in errors."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(where, f"not UTF-8 text (byte {error.start})") from None
    if not text.strip():
        raise InputError(where, "the file is empty")
    strict = _Strict(where)
    try:
        return json.loads(
            text,
            object_pairs_hook=strict.unique_keys,
            parse_constant=strict.no_constant,
            parse_float=strict.finite,
            parse_int=strict.whole,
        )
    except json.JSONDecodeError as error:
        at = f"line {error.lineno} column {error.colno}"
        raise InputError(where, f"not JSON: {error.msg} at {at}") from None
    except RecursionError:
        raise InputError(where, "nested too deeply") from None


class _Strict:
    """Hooks that refuse what JSON does not have."""

    def __init__(self, where: str) -> None:
        self.where = where

    def unique_keys(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise InputError(self.where, f"the key {describe(key)} is given twice")
            found[key] = value
        return found

    def no_constant(self, literal: str) -> NoReturn:
        raise InputError(self.where, f"{literal} is not a JSON number")

    def finite(self, literal: str) -> float:
        value = float(literal)
        if not math.isfinite(value):
            raise InputError(self.where, f"the number {literal[:40]} is too large")
        return value

    def whole(self, literal: str) -> int:
        if len(literal) > 300:
            raise InputError(self.where, f"a number of {len(literal)} digits is too large")
        return int(literal)
