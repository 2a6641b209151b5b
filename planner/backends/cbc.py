"""CBC through PuLP: a second witness, never trusted alone.

The solve runs in a temporary folder of its own, on relative paths, so that no character
of the folder's name reaches CBC.  CBC runs without threads (the bundled build with
``threads 1`` starts a second thread).  PuLP's status, its solution status and CBC's log
must tell the same story; the bound comes from the log.

CBC writes values with eight significant digits, and a binary off by its tolerance lets a
conditional row with a large constant slip.  Where a value may have lost digits or the point
breaks a row, a second run recovers it: all narrow variables are fixed, and the wide ones are
bounded to the neighbourhood of the printed number and shifted to it, or left free where the
point breaks a row.  The objective of the first run stays the claim.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
from planner.backends.big_m import DIGITS_LIMIT, PlainProgram, lower, trivial_claim
from planner.backends.cbc_log import CbcLog, CbcResult, parse_log
from planner.backends.pulp_program import build, missing_pulp, prepare_pulp
from planner.backends.result import Claim, Limit, ParameterValue, feasible_hint, safe_ceil

EXACT_VALUE_LIMIT = 10**8
"""Values below this are printed in full."""

NARROW = 100
"""Ranges up to this are those of choices and small counts, which a broken point gets right."""

RECOVERY_TIME_S = 10.0

STORIES = {
    CbcResult.OPTIMAL: {(1, 1)},
    CbcResult.WITHIN_GAP: {(1, 1)},
    CbcResult.INFEASIBLE: {(-1, -1), (-1, 0)},
    CbcResult.TIME: {(1, 2), (0, 0)},
    CbcResult.DOUBTFUL: {(1, 1), (-1, -1), (-1, 0)},
}
"""PuLP's (status, solution status) that fit each result of the log."""


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of CBC: what it says, and the rounded point of the shifted program."""

    log: CbcLog
    text: str
    pulp_status: tuple[int, int]
    point: tuple[int, ...]
    parameters: dict[str, ParameterValue]

    @property
    def failure(self) -> str:
        """Why the run cannot be used, else empty."""
        if self.log.result in (CbcResult.UNKNOWN, CbcResult.FAILED):
            return f"CBC ended with {self.log.text!r}"
        if self.pulp_status not in STORIES[self.log.result]:
            return f"PuLP reads {self.pulp_status}, but CBC's log says {self.log.text!r}"
        return ""

    @property
    def doubt(self) -> str:
        """Why less is made of the run than CBC says, else empty."""
        if self.log.result is not CbcResult.DOUBTFUL:
            return ""
        return f"CBC says {self.log.text!r}, but near its time limit that proves nothing"

    @property
    def has_plan(self) -> bool:
        """Whether the point is a plan."""
        return self.pulp_status in {(1, 1), (1, 2)} and self.log.has_plan


SAFE_OPTIONS = "preprocess off cuts off integerT 1e-9"
"""CBC 2.10.3 calls feasible models infeasible, and worse plans optimal, with its preprocessing and
cuts on models with many conditional rows; the branch and bound alone was right on all of them.
With its usual integer tolerance of 1e-6 a binary next to 1 leaves conditional rows broken."""


class CbcBackend:
    """Backend for the CBC binary that PuLP bundles, or the one at ``path``."""

    name = "cbc"
    features = frozenset({Feature.HINT, Feature.RELAXATION})
    exact = False

    def __init__(self, path: str | None = None) -> None:
        self.path = path

    def version(self) -> str:
        """Return the version of PuLP; a result adds that of CBC from its log."""
        return f"pulp {package_version('pulp')}"

    def missing(self) -> str | None:
        """Return why CBC cannot be used, or None."""
        return missing_pulp()

    def prepare(self) -> None:
        """Import PuLP and look for the binary.

        Raises:
            BackendUnavailableError: PuLP or the CBC binary is missing.
        """
        prepare_pulp()
        solver = self._solver()
        if not solver.available():
            raise BackendUnavailableError(
                f"no CBC binary can be run at {solver.path}; reinstall PuLP "
                "or choose another backend"
            )

    def run(self, model: Model, options: EngineOptions, report: ProgressCallback) -> Claim:
        """Solve the model (no progress is reported)."""
        deadline = _Deadline(options.time_limit_s)
        program = lower(model, options.objective_upper, options.objective_lower)
        version = self.version()
        trivial = trivial_claim(program, options.relaxation)
        if trivial is not None:
            return replace(trivial, engine_version=version)
        if program.largest >= DIGITS_LIMIT:
            return Claim(
                failure=f"the lowered model has the number {program.largest}, "
                "which an exchange file does not hold exactly",
                engine_version=version,
            )
        start, note = _start(model, options, program)
        run = self._run(program, options, deadline, start)
        claim = Claim(
            failure=run.failure,
            engine_version=f"{version}, CBC {run.log.version}",
            parameters=run.parameters,
            message="; ".join(filter(None, (note, run.doubt))),
            log=run.text,
        )
        if run.failure:
            return claim
        if run.log.result is CbcResult.INFEASIBLE:
            return replace(claim, infeasible=True)
        if options.relaxation:
            return _relaxation_claim(claim, run.log, program)
        claim = replace(claim, **_bound_and_limit(run.log, program))
        if not run.has_plan:
            return claim
        return self._with_values(claim, run, model, options, program, deadline)

    def _with_values(
        self,
        claim: Claim,
        run: _Run,
        model: Model,
        options: EngineOptions,
        program: PlainProgram,
        deadline: _Deadline,
    ) -> Claim:
        """Add the plan of a run to a claim, its wide values recovered."""
        if run.log.objective is not None:
            claim = replace(
                claim, objective=program.offset + program.scale * round(run.log.objective)
            )
        values = program.model_values(run.point)
        broken = bool(model.evaluate(values).violations)
        if not broken and all(value < EXACT_VALUE_LIMIT for value in run.point):
            return replace(claim, values=values)
        near_values = _free_unless_narrow if broken else _neighbourhood
        bounds = [
            near_values(low, width, value)
            for low, width, value in zip(program.lowers, program.ranges, run.point, strict=True)
        ]
        near = lower(model, options.objective_upper, options.objective_lower, bounds)
        trivial = trivial_claim(near, options.relaxation)
        if trivial is not None and trivial.values is not None:
            return replace(claim, values=trivial.values)
        second = self._run(near, options, deadline.at_most(RECOVERY_TIME_S), None)
        log = f"{claim.log}\n--- second run, to recover digits ---\n{second.text}"
        claim = replace(claim, log=log)
        if near.impossible or second.failure or not second.has_plan:
            reason = "breaks rows" if broken else "lost digits of large values"
            return replace(claim, failure=f"CBC's point {reason}, and could not be mended")
        return replace(claim, values=near.model_values(second.point))

    def _run(
        self,
        program: PlainProgram,
        options: EngineOptions,
        deadline: _Deadline,
        start: Sequence[int] | None,
    ) -> _Run:
        time_limit_s = deadline.remaining_s()
        parameters: dict[str, ParameterValue] = {
            "mip": not options.relaxation,
            "gapRel": 0,
            "gapAbs": 0,
            "threads": 0,
            "timeLimit": time_limit_s,
            "timeMode": "elapsed",
            "warmStart": start is not None,
            "options": f"randomCbcSeed {options.seed + 1} {SAFE_OPTIONS}",
        }
        built = build(program, start)
        with tempfile.TemporaryDirectory(prefix="cbc-") as folder, contextlib.chdir(folder):
            solver = self._solver(
                **{**parameters, "options": [parameters["options"]]},
                msg=False,
                keepFiles=False,
                logPath="cbc.log",
            )
            solver.tmpDir = "."
            failure = ""
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                try:
                    built.problem.solve(solver)
                except Exception as error:  # noqa: BLE001
                    failure = f"{type(error).__name__}: {error}"
            log_file = Path("cbc.log")
            text = log_file.read_text(errors="replace") if log_file.exists() else ""
        log = parse_log(text, options.relaxation).at_limit(time_limit_s)
        if failure:
            log = replace(log, result=CbcResult.FAILED, text=failure)
        status = (built.problem.status, built.problem.sol_status)
        parameters["command"] = _command(text)
        return _Run(log, text, status, built.rounded_values(), parameters)

    def _solver(self, **arguments: Any) -> Any:
        import pulp  # type: ignore[import-untyped, unused-ignore]

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            if self.path is not None:
                return pulp.COIN_CMD(path=self.path, **arguments)
            return pulp.PULP_CBC_CMD(**arguments)


class _Deadline:
    """A point in time, or none."""

    def __init__(self, limit_s: float | None) -> None:
        self._end = None if limit_s is None else time.monotonic() + limit_s

    def remaining_s(self) -> float | None:
        """Return the seconds left (at least 0.01), or None without a limit."""
        return None if self._end is None else max(0.01, self._end - time.monotonic())

    def at_most(self, limit_s: float) -> _Deadline:
        """Return the earlier of this point and the one ``limit_s`` from now."""
        left = self.remaining_s()
        return _Deadline(limit_s if left is None else min(left, limit_s))


def _start(
    model: Model, options: EngineOptions, program: PlainProgram
) -> tuple[tuple[int, ...] | None, str]:
    """Return the hint as a start if it is a plan within the cutoff, else a note why not."""
    if options.hint is None:
        return None, ""
    point = feasible_hint(model, options)
    if point is None:
        return None, "the hint breaks a row, so CBC was not given it"
    upper = options.objective_upper
    if upper is not None and model.evaluate(point).objective > upper:
        return None, "the hint is above the cutoff, so CBC was not given it"
    shifted = tuple(value - low for value, low in zip(point, program.lowers, strict=True))
    return shifted, ""


def _bound_and_limit(log: CbcLog, program: PlainProgram) -> dict[str, Any]:
    """Return the fields of a claim that follow from the log of a run with integers."""
    if log.result is CbcResult.OPTIMAL:
        value = round(log.objective or 0.0)
        return {"bound": program.offset + program.scale * value, "finished": True}
    limit = Limit.NONE if log.result is CbcResult.WITHIN_GAP else Limit.TIME
    if log.lower_bound is None:
        return {"limit": limit}
    value = safe_ceil(log.lower_bound, absolute=1e-3, relative=1e-6)
    return {"bound": program.offset + program.scale * value, "limit": limit}


def _relaxation_claim(claim: Claim, log: CbcLog, program: PlainProgram) -> Claim:
    if log.result is not CbcResult.OPTIMAL:
        return replace(claim, limit=Limit.TIME)
    if log.relaxation is None:
        return replace(claim, failure="CBC's log has no value of the relaxation")
    value = safe_ceil(log.relaxation, relative=1e-9)
    return replace(
        claim,
        relaxation_value=program.offset + program.scale * log.relaxation,
        bound=program.offset + program.scale * value,
    )


def _free_unless_narrow(low: int, width: int, value: int) -> tuple[int, int]:
    """Return the bounds of a wide variable, or the value of a narrow one."""
    return (low + value, low + value) if 0 <= value <= width <= NARROW else (low, low + width)


def _neighbourhood(low: int, width: int, value: int) -> tuple[int, int]:
    """Return the bounds around a printed value that hold the value that was meant."""
    if value < EXACT_VALUE_LIMIT:
        return low + value, low + value
    radius = 10 ** (len(str(value)) - 8)
    return low + max(0, value - radius), low + min(width, value + radius)


def _command(log: str) -> str:
    """Return the options that CBC reports to have been started with."""
    for line in log.splitlines():
        if line.startswith("command line - "):
            _, _, options = line.removesuffix(" (default strategy 1)").partition("-pulp.mps ")
            return " ".join(word for word in options.split() if "-pulp." not in word)
    return ""
