"""HiGHS through PuLP: an optional second witness, never trusted alone.

The bound and the model status come from the solver object itself, since PuLP maps
several of HiGHS's statuses onto one.
"""

from __future__ import annotations

import importlib
import tempfile
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

from formulations.algebra import Model
from planner.backends.base import (
    BackendUnavailableError,
    EngineOptions,
    Feature,
    ProgressCallback,
    package_version,
)
from planner.backends.big_m import PlainProgram, lower, trivial_claim
from planner.backends.pulp_program import build, missing_pulp, prepare_pulp
from planner.backends.result import Claim, Limit, ParameterValue, safe_ceil

WRONG_VERSIONS = frozenset({"1.14.0"})
"""Releases that call wrong plans optimal."""

INFEASIBLE_STATUSES = frozenset({"kInfeasible", "kUnboundedOrInfeasible"})
"""All variables have bounds, so that a model cannot be unbounded."""


class HighsBackend:
    """Backend for the ``highspy`` package."""

    name = "highs"
    features = frozenset({Feature.WORKERS, Feature.RELAXATION})
    exact = False

    def version(self) -> str:
        """Return the version of HiGHS."""
        return f"highspy {package_version('highspy')}"

    def missing(self) -> str | None:
        """Return why HiGHS cannot be used, or None."""
        version = package_version("highspy")
        if version is None:
            return "HiGHS is not installed; run `pip install 'highspy!=1.14.0'`"
        if version in WRONG_VERSIONS:
            return (
                f"highspy {version} is known to call wrong plans optimal; "
                "run `pip install -U 'highspy!=1.14.0'`"
            )
        return missing_pulp()

    def prepare(self) -> None:
        """Import PuLP and HiGHS.

        Raises:
            BackendUnavailableError: A package is missing, does not load, or is a release
                with a known fault.
        """
        reason = self.missing()
        if reason:
            raise BackendUnavailableError(reason)
        prepare_pulp()
        try:
            importlib.import_module("highspy")
        except ImportError as error:
            raise BackendUnavailableError(f"highspy does not load: {error}") from error

    def run(self, model: Model, options: EngineOptions, report: ProgressCallback) -> Claim:
        """Solve the model (no progress is reported)."""
        import highspy  # type: ignore[import-not-found, import-untyped, unused-ignore]
        import pulp  # type: ignore[import-untyped, unused-ignore]

        program = lower(model, options.objective_upper, options.objective_lower)
        parameters: dict[str, ParameterValue] = {
            "mip": not options.relaxation,
            "gapRel": 0.0,
            "gapAbs": 0.0,
            "threads": options.workers,
            "timeLimit": options.time_limit_s,
            "random_seed": options.seed,
        }
        claim = Claim(engine_version=self.version(), parameters=parameters)
        trivial = trivial_claim(program, options.relaxation)
        if trivial is not None:
            return replace(trivial, engine_version=self.version())
        built = build(program)
        # The scheduler is global, and keeps the number of threads of the first solve.
        highspy.Highs.resetGlobalScheduler(True)
        with tempfile.TemporaryDirectory(prefix="highs-") as folder:
            log_file = Path(folder) / "highs.log"
            built.problem.solve(pulp.HiGHS(msg=True, log_file=str(log_file), **parameters))
            log = log_file.read_text(errors="replace") if log_file.exists() else ""
        engine = built.problem.solverModel
        claim = replace(claim, log=log)
        return _read(claim, engine, program, built.rounded_values(), options)


def _read(
    claim: Claim,
    engine: Any,
    program: PlainProgram,
    point: tuple[int, ...],
    options: EngineOptions,
) -> Claim:
    status = engine.getModelStatus().name
    info = engine.getInfo()
    if status in INFEASIBLE_STATUSES:
        return replace(claim, infeasible=True)
    if status not in ("kOptimal", "kTimeLimit"):
        return replace(claim, failure=f"HiGHS ended with {status}")
    finished = status == "kOptimal"
    if options.relaxation:
        if not finished:
            return replace(claim, limit=Limit.TIME)
        value = float(info.objective_function_value)
        return replace(
            claim,
            relaxation_value=program.offset + program.scale * value,
            bound=program.offset + program.scale * safe_ceil(value, relative=1e-9),
        )
    dual = float(info.mip_dual_bound)
    if isfinite(dual):
        bound = safe_ceil(dual, relative=1e-9)
        claim = replace(claim, bound=program.offset + program.scale * bound)
    if not finished:
        claim = replace(claim, limit=Limit.TIME)
    objective = float(info.objective_function_value)
    if not isfinite(objective) or (not finished and info.primal_solution_status != 2):
        return claim
    return replace(
        claim,
        values=program.model_values(point),
        objective=program.offset + program.scale * round(objective),
        finished=finished,
    )
