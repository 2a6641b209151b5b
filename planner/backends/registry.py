"""The backends by name.  Nothing here imports a solver."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from planner.backends.base import Backend, BackendUnavailableError, Feature

BACKENDS = {
    "cp-sat": "planner.backends.cp_sat:CpSatBackend",
    "highs": "planner.backends.highs:HighsBackend",
    "cbc": "planner.backends.cbc:CbcBackend",
}
"""Import path (``module:class``) by name, in order of preference."""


_PRELOADED: set[str] = set()


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """A known backend; ``missing`` says why it cannot be used and what to do, or is None."""

    name: str
    features: frozenset[Feature]
    missing: str | None


def load_backend(name: str) -> Backend:
    """Return a new backend by its name, or by an import path ``module:class``.

    Raises:
        BackendUnavailableError: The name is unknown, or the class cannot be imported.
    """
    module_name, separator, class_name = BACKENDS.get(name, name).partition(":")
    if not separator:
        raise BackendUnavailableError(
            f"unknown backend {name!r}; known are {', '.join(BACKENDS)}, "
            "or give an import path `module:class`"
        )
    try:
        backend: Backend = getattr(importlib.import_module(module_name), class_name)()
    except (ImportError, AttributeError) as error:
        raise BackendUnavailableError(f"backend {name!r} cannot be imported: {error}") from error
    return backend


def preload(name: str) -> None:
    """Import a solver into this process, so that its engines start as copies of the process.

    Only for processes that stay with one thread, as a copy has no other.

    Raises:
        BackendUnavailableError: The solver cannot be used.
    """
    load_backend(name).prepare()
    _PRELOADED.add(name)


def is_preloaded(name: str) -> bool:
    """Return whether `preload` has imported a solver into this process."""
    return name in _PRELOADED


def list_backends() -> tuple[BackendInfo, ...]:
    """Return all known backends in order of preference, usable or not."""
    backends = [load_backend(name) for name in BACKENDS]
    return tuple(BackendInfo(b.name, b.features, b.missing()) for b in backends)


def available_backends() -> tuple[str, ...]:
    """Return the names of the backends that are installed, in order of preference."""
    return tuple(info.name for info in list_backends() if info.missing is None)


def select_backend(name: str = "auto") -> str:
    """Return the name of a usable backend; "auto" takes the most preferred one.

    Raises:
        BackendUnavailableError: The backend is unknown or not installed, or "auto"
            finds none.
    """
    if name == "auto":
        names = available_backends()
        if not names:
            reasons = "; ".join(str(info.missing) for info in list_backends())
            raise BackendUnavailableError(f"no backend is installed: {reasons}")
        return names[0]
    reason = load_backend(name).missing()
    if reason:
        raise BackendUnavailableError(reason)
    return name
