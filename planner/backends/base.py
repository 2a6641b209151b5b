"""The contract of a backend: features, options and the way a solve is run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from importlib import metadata
from typing import Protocol

from formulations.algebra import MagnitudeError, Model
from formulations.scheduling import SchedulingModel
from planner.backends.result import Claim, EngineResult, settle

ProgressCallback = Callable[[int | None, int | None, tuple[int, ...] | None], None]
"""Called with (objective, bound, values) of the best plan so far; each may be None."""


class BackendUnavailableError(RuntimeError):
    """The solver of a backend is not installed, or its version is known to be wrong.

    Remedy: install the package that the message names, or choose another backend.
    """


class Feature(Enum):
    """What a backend can do with an option."""

    HINT = "hint"
    PARTIAL_HINT = "partial_hint"
    WORKERS = "workers"
    PROGRESS = "progress"
    RELAXATION = "relaxation"
    SCHEDULING = "scheduling"


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options of one solve, the same for every backend.

    Attributes:
        time_limit_s: Wall time for the solve in seconds.
        memory_limit_bytes: Limit on the address space of the child process.  It counts
            the solver's libraries too (some 300 MiB for CP-SAT), and needs an `Engine`.
        workers: Number of search workers.
        seed: Random seed, at least 0.
        hint: Value by variable index of a plan to start from.
        objective_upper: Only plans with at most this objective are wanted.
        objective_lower: A bound that the caller has proved; the result rests on it.
        relaxation: Solve the linear relaxation in place of the model.  The result then
            has `EngineResult.relaxation_value`, the bound that follows, and no plan.

    Raises:
        ValueError: An option is outside its range.
    """

    time_limit_s: float | None = None
    memory_limit_bytes: int | None = None
    workers: int = 1
    seed: int = 0
    hint: Mapping[int, int] | None = None
    objective_upper: int | None = None
    objective_lower: int | None = None
    relaxation: bool = False

    def __post_init__(self) -> None:
        if self.time_limit_s is not None and not self.time_limit_s > 0:
            raise ValueError(f"time_limit_s must be positive, not {self.time_limit_s}")
        if self.memory_limit_bytes is not None and self.memory_limit_bytes <= 0:
            raise ValueError("memory_limit_bytes must be positive")
        if self.workers < 1:
            raise ValueError(f"workers must be at least 1, not {self.workers}")
        if not 0 <= self.seed < 2**31 - 1:
            raise ValueError(f"seed must be in 0..2**31-2, not {self.seed}")


class Backend(Protocol):
    """One solver.  The module of a backend imports the solver only inside methods.

    Attributes:
        name: Short name.
        features: What it can do with options.
        exact: Whether the solver reasons in exact integers.
    """

    name: str
    features: frozenset[Feature]
    exact: bool

    def version(self) -> str:
        """Return name and version of the solver's package."""

    def missing(self) -> str | None:
        """Return why the solver cannot be used, with the remedy, or None."""

    def prepare(self) -> None:
        """Import the solver.

        Raises:
            BackendUnavailableError: The solver cannot be used.
        """

    def run(self, model: Model, options: EngineOptions, report: ProgressCallback) -> Claim:
        """Solve the model (it has variables, and options that the features allow)."""


def solve_here(
    backend: Backend,
    model: Model,
    options: EngineOptions,
    on_progress: ProgressCallback | None = None,
) -> EngineResult:
    """Run a backend in this process and check what it says; every failure is a result.

    Use `planner.backends.process.Engine` to be safe from crashes and hangs.
    """
    start = time.perf_counter()
    claim = _refusal(backend, model, options) or _trivial(model, options)
    if claim is None:
        try:
            backend.prepare()
            claim = backend.run(model, options, on_progress or _ignore)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001
            claim = Claim(
                failure=f"{type(error).__name__}: {error}", engine_version=backend.version()
            )
    return settle(
        model, options, claim, engine=backend.name, wall_time_s=time.perf_counter() - start
    )


def package_version(distribution: str) -> str | None:
    """Return the version of an installed distribution, or None."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _refusal(backend: Backend, model: Model, options: EngineOptions) -> Claim | None:
    """Return a failed claim if the model or an option is not fit for the backend."""
    count = len(model.variables)
    reasons: list[str] = []
    if options.memory_limit_bytes is not None:
        reasons.append("a memory limit needs an Engine, which runs the solve in a child process")
    if options.workers > 1 and Feature.WORKERS not in backend.features:
        reasons.append(f"{backend.name} does not support workers={options.workers}")
    if options.relaxation and Feature.RELAXATION not in backend.features:
        reasons.append(f"{backend.name} does not support relaxation")
    if isinstance(model, SchedulingModel) and Feature.SCHEDULING not in backend.features:
        reasons.append(f"{backend.name} does not support groups of jobs and stays")
    if options.hint is not None:
        if options.relaxation:
            reasons.append("a relaxation takes no hint")
        if Feature.HINT not in backend.features:
            reasons.append(f"{backend.name} does not support hint")
        elif len(options.hint) < count and Feature.PARTIAL_HINT not in backend.features:
            reasons.append(f"{backend.name} needs a hint for all {count} variables")
        strange = [
            index
            for index, value in options.hint.items()
            if type(index) is not int or type(value) is not int or not 0 <= index < count
        ]
        if strange:
            reasons.append(f"the hint at {strange[0]!r} has no such variable or no integer value")
    try:
        model.check_magnitudes()
    except MagnitudeError as error:
        reasons.append(str(error))
    return Claim(failure="; ".join(reasons), refused=True) if reasons else None


def _trivial(model: Model, options: EngineOptions) -> Claim | None:
    """Settle models without variables and crossed cutoffs, which some engines refuse."""
    lower, upper = options.objective_lower, options.objective_upper
    if lower is not None and upper is not None and lower > upper:
        return Claim(infeasible=True, exact=True, message="the known bound is above the cutoff")
    if model.variables:
        return None
    evaluation = model.evaluate(())
    if evaluation.violations or (upper is not None and evaluation.objective > upper):
        return Claim(infeasible=True, exact=True)
    return Claim(values=(), bound=evaluation.objective, finished=True, exact=True)


def _ignore(objective: int | None, bound: int | None, values: tuple[int, ...] | None) -> None:
    """Drop a progress report."""
