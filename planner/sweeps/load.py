"""Sweep files: found by path or shipped name, read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from planner.instance.errors import InputError, describe, first_input_error, nearest
from planner.instance.load import instance_document, shipped_directory
from planner.instance.text import read_json
from planner.sweeps.schema import Sweep


@dataclass(frozen=True)
class LoadedSweep:
    """A sweep with its base instance, not yet validated."""

    sweep: Sweep
    base: dict[str, Any]


def load_sweep(source: str | Path | Mapping[str, Any]) -> LoadedSweep:
    """Read and check a sweep.

    Parameters
    ----------
    source
        A path, the bare name of a shipped sweep, or the parsed JSON object.  A path of an
        instance inside is relative to the file (to the working directory for an object).

    Raises
    ------
    InputError
        With the path of the first problem, the reason and the nearest right name.
    """
    if isinstance(source, Mapping):
        return _loaded(dict(source), Path())
    path = _find(source)
    document = read_json(path)
    if not isinstance(document, dict):
        raise InputError(str(path), f"expected a JSON object, got {describe(document)}")
    return _loaded(document, path.parent)


def shipped_sweeps() -> tuple[str, ...]:
    """The names of the sweeps that come with the package, sorted."""
    return tuple(sorted(path.stem for path in (shipped_directory() / "sweeps").glob("*.json")))


def _find(source: str | Path) -> Path:
    path = Path(source)
    if not str(source).strip():
        raise InputError("sweep", "the path is empty")
    try:
        if path.is_file():
            return path
        name = str(source).removesuffix(".json")
        if name == Path(name).name and name in shipped_sweeps():
            return shipped_directory() / "sweeps" / f"{name}.json"
        exists = path.exists()
    except (OSError, ValueError) as error:
        raise InputError(str(source), f"cannot be read: {error}") from None
    if exists:
        return path
    raise InputError(
        str(source),
        "no such file and no shipped sweep of that name",
        nearest(name, shipped_sweeps()),
    )


def _loaded(document: dict[str, Any], directory: Path) -> LoadedSweep:
    try:
        sweep = Sweep.model_validate(document)
    except ValidationError as error:
        raise first_input_error(error, Sweep) from None
    except RecursionError:
        raise InputError("sweep", "nested too deeply") from None
    if isinstance(sweep.instance, Mapping):
        return LoadedSweep(sweep, instance_document(sweep.instance))
    beside = directory / sweep.instance
    source = beside if beside.is_file() else sweep.instance
    try:
        return LoadedSweep(sweep, instance_document(source))
    except InputError as error:
        raise InputError(f"instance ({error.path})", error.reason, error.suggestion) from None
