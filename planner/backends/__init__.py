"""Engines that solve a `formulations.algebra.Model`, each in a child process.

`Engine` runs one backend; `EnginePool` keeps one engine per backend.  Every outcome,
also a crash, is an `EngineResult`.
"""

from planner.backends.base import (
    Backend,
    BackendUnavailableError,
    EngineOptions,
    Feature,
    ProgressCallback,
    solve_here,
)
from planner.backends.process import Engine, EnginePool
from planner.backends.registry import (
    BackendInfo,
    available_backends,
    list_backends,
    load_backend,
    preload,
    select_backend,
)
from planner.backends.result import Claim, EngineResult, Limit, SolveStatus, settle

__all__ = [
    "Backend",
    "BackendInfo",
    "BackendUnavailableError",
    "Claim",
    "Engine",
    "EngineOptions",
    "EnginePool",
    "EngineResult",
    "Feature",
    "Limit",
    "ProgressCallback",
    "SolveStatus",
    "available_backends",
    "list_backends",
    "load_backend",
    "preload",
    "select_backend",
    "settle",
    "solve_here",
]
