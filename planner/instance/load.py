"""Instances from files, shipped names and objects. Everything wrong raises ``InputError``."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from planner.instance import catalog
from planner.instance.errors import InputError, describe, first_input_error, nearest
from planner.instance.huggingface import from_config, is_config, read_config
from planner.instance.model import ModelSpec
from planner.instance.schema import Instance
from planner.instance.text import read_json

_SCHEMA_SUFFIX = ".schema.json"


def load_instance(source: str | Path | Mapping[str, Any]) -> Instance:
    """Read and check an instance.

    Parameters
    ----------
    source
        A path, the bare name of a shipped instance (``dense-17b-2-buildings``), or the parsed
        JSON object. A model path inside is relative to the file (to the working directory for an
        object).

    Raises
    ------
    InputError
        With the path of the first problem, the reason and the nearest right name.
    """
    return _validated(*_document(source))


def instance_document(source: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    """Read an instance as the JSON object that it is, with a model file replaced by its fields.

    The object is not validated; the parameters are those of :func:`load_instance`.

    Raises
    ------
    InputError
        If the instance or its model cannot be read.
    """
    document, directory = _document(source)
    model = _model(document.get("model"), directory)
    if isinstance(model, ModelSpec):
        model = model.model_dump(mode="json", by_alias=True)
    return document | ({"model": model} if "model" in document else {})


def _document(source: str | Path | Mapping[str, Any]) -> tuple[dict[str, Any], Path]:
    """The JSON object of an instance, and the folder that its paths are relative to."""
    if isinstance(source, Mapping):
        return dict(source), Path()
    if not isinstance(source, str | Path):
        raise InputError(
            "instance", f"expected a path, a name or an object, got {describe(source)}"
        )
    path = _find(source)
    document = read_json(path)
    if not isinstance(document, dict):
        raise InputError(str(path), f"expected a JSON object, got {describe(document)}")
    return document, path.parent


def narrowed(instance: Instance, allowed: Mapping[str, Any]) -> Instance:
    """The instance with these ``search`` keys replaced, each by one value or a list of them."""
    search = instance.search.model_dump(exclude_unset=True) | dict(allowed)
    document = instance.model_dump(by_alias=True) | {"search": search}
    return _validated(document, Path())


def shipped_names() -> tuple[str, ...]:
    """The names of the instances that come with the package, sorted."""
    return tuple(
        sorted(
            path.name.removesuffix(".json")
            for path in shipped_directory().glob("*.json")
            if not path.name.endswith(_SCHEMA_SUFFIX)
        )
    )


def shipped_directory() -> Path:
    """``instances/`` beside the package in a checkout, inside the package once installed."""
    checkout = Path(__file__).resolve().parents[2] / "instances"
    if (checkout / f"instance{_SCHEMA_SUFFIX}").is_file():
        return checkout
    return Path(str(files("planner") / "_shipped_instances"))


def _find(source: str | Path) -> Path:
    path = Path(source)
    if not str(source).strip():
        raise InputError("instance", "the path is empty")
    try:
        if path.is_file():
            return path
        name = str(source).removesuffix(".json")
        if name == Path(name).name and name in shipped_names():
            return shipped_directory() / f"{name}.json"
        exists = path.exists()
    except (OSError, ValueError) as error:
        raise InputError(str(source), f"cannot be read: {error}") from None
    if exists:
        return path
    raise InputError(
        str(source),
        "no such file and no shipped instance of that name",
        nearest(name, shipped_names()),
    )


def _validated(document: dict[str, Any], directory: Path) -> Instance:
    if "model" in document:
        document = {**document, "model": _model(document["model"], directory)}
    try:
        return Instance.model_validate(document)
    except ValidationError as error:
        raise first_input_error(error, Instance) from None
    except RecursionError:
        raise InputError("instance", "nested too deeply") from None


def _model(value: Any, directory: Path) -> Any:
    """The value of ``model`` with a path or an inline config.json replaced by the model."""
    if isinstance(value, dict) and is_config(value):
        return from_config(value)
    if not isinstance(value, str) or catalog.canonical("models", value) is not None:
        return value
    if not value.endswith(".json") and "/" not in value and "\\" not in value:
        return value
    path = directory / value
    try:
        path = path / "config.json" if path.is_dir() else path
        return read_config(path)
    except InputError as error:
        raise InputError(f"model ({error.path})", error.reason, error.suggestion) from None
    except (OSError, ValueError) as error:
        raise InputError("model", f"{describe(value)} cannot be read: {error}") from None
