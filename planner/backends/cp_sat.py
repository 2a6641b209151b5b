"""CP-SAT of OR-Tools: exact integer reasoning, native enforced rows.

Rows go over as they are: enforced rows by ``OnlyEnforceIf``, logical rows by their own
constraint types, so no big-M occurs.  Both gap limits are 0.  An infeasibility (also one
under a cutoff) is confirmed by a second run without presolve before it is trusted.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from formulations.algebra import Model, Row
from formulations.scheduling import Level, SchedulingModel
from planner.backends.base import (
    BackendUnavailableError,
    EngineOptions,
    Feature,
    ProgressCallback,
    package_version,
)
from planner.backends.result import Claim, Limit, ParameterValue, safe_ceil

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

CONFIRMATION_FLOOR_S = 10.0
CONFIRMATION_FACTOR = 10
"""Time for the run that confirms an infeasibility: so many times the first, at least the floor."""


class CpSatBackend:
    """Backend for CP-SAT."""

    name = "cp-sat"
    features = frozenset(
        {
            Feature.HINT,
            Feature.PARTIAL_HINT,
            Feature.WORKERS,
            Feature.PROGRESS,
            Feature.SCHEDULING,
        }
    )

    exact = True

    def version(self) -> str:
        """Return the version of OR-Tools."""
        return f"ortools {package_version('ortools')}"

    def missing(self) -> str | None:
        """Return why CP-SAT cannot be used, or None."""
        if package_version("ortools") is None:
            return "CP-SAT is not installed; run `pip install ortools`"
        return None

    def prepare(self) -> None:
        """Import OR-Tools.

        Raises:
            BackendUnavailableError: OR-Tools is not installed or does not load.
        """
        reason = self.missing()
        if reason:
            raise BackendUnavailableError(reason)
        try:
            from ortools.sat.python import cp_model  # noqa: F401
        except ImportError as error:
            raise BackendUnavailableError(f"OR-Tools does not load: {error}") from error

    def run(self, model: Model, options: EngineOptions, report: ProgressCallback) -> Claim:
        """Solve the model; streams each better plan and bound to ``report``."""
        start = time.perf_counter()
        lowered = lower(model, options)
        fault = lowered.validate()
        if fault:
            return Claim(
                failure=f"CP-SAT refuses the model: {fault.strip()}",
                engine_version=self.version(),
            )
        claim = _solve(lowered, model, options, report, presolve=True)
        if not claim.infeasible:
            return claim
        elapsed = time.perf_counter() - start
        allowed = max(CONFIRMATION_FLOOR_S, CONFIRMATION_FACTOR * elapsed)
        if options.time_limit_s is not None:
            allowed = min(allowed, options.time_limit_s - elapsed)
        return _confirmed(claim, lowered, model, options, allowed)


def lower(model: Model, options: EngineOptions) -> cp_model.CpModel:
    """Return the CP-SAT model; its variables keep their indices."""
    from ortools.sat.python import cp_model

    lowered = cp_model.CpModel()
    variables: list[Any] = [
        lowered.new_bool_var(f"v{v.index:06d}")
        if v.is_boolean
        else lowered.new_int_var(v.lower, v.upper, f"v{v.index:06d}")
        for v in model.variables
    ]

    def literal(code: int) -> Any:
        return variables[code] if code >= 0 else variables[-code - 1].negated()

    def linear(terms: dict[int, int]) -> Any:
        return cp_model.LinearExpr.weighted_sum(
            [variables[index] for index in terms], list(terms.values())
        )

    for row in model.rows:
        _lower_row(lowered, row, literal, linear)
    if isinstance(model, SchedulingModel):
        for group in model.no_overlaps:
            lowered.add_no_overlap(
                [
                    lowered.new_fixed_size_interval_var(variables[start], size, f"job{start:06d}")
                    for start, size in group.jobs
                ]
            )
        for level in model.levels:
            _lower_level(lowered, level, model, variables)
    objective = dict(model.objective)
    total = linear(objective)
    if objective:
        lowered.minimize(total + model.objective_constant)
    if options.objective_upper is not None:
        upper = options.objective_upper - model.objective_constant
        lowered.add_linear_constraint(total, cp_model.INT_MIN, upper)
    if options.objective_lower is not None:
        floor = options.objective_lower - model.objective_constant
        lowered.add_linear_constraint(total, floor, cp_model.INT_MAX)
    for index, value in (options.hint or {}).items():
        lowered.add_hint(variables[index], value)
    return lowered


def _lower_level(
    lowered: cp_model.CpModel, level: Level, model: SchedulingModel, variables: list[Any]
) -> None:
    """Lower a level to a cumulative constraint over intervals of variable size.

    The sizes are new variables behind those of the model; a stay without begin or end reaches to
    the least or greatest moment of the others.
    """
    moments = [moment for stay in level.stays for moment in (stay.begin, stay.end) if moment]
    if not moments:
        return
    first = min(model.variables[index].lower + offset for index, offset in moments)
    last = max(model.variables[index].upper + offset for index, offset in moments)
    intervals = []
    for number, stay in enumerate(level.stays):
        begin = first if stay.begin is None else variables[stay.begin[0]] + stay.begin[1]
        end = last if stay.end is None else variables[stay.end[0]] + stay.end[1]
        name = f"{level.name}-{number}"
        size = lowered.new_int_var(0, last - first, f"size-{name}")
        intervals.append(lowered.new_interval_var(begin, size, end, f"stay-{name}"))
    lowered.add_cumulative(intervals, [stay.demand for stay in level.stays], level.limit)


def _lower_row(lowered: cp_model.CpModel, row: Row, literal: Any, linear: Any) -> None:
    from ortools.sat.python import cp_model

    if row.kind == "exactly_one":
        lowered.add_exactly_one([literal(code) for code in row.literals])
    elif row.kind == "at_most_one":
        lowered.add_at_most_one([literal(code) for code in row.literals])
    elif row.kind == "implication":
        lowered.add_implication(literal(row.literals[0]), literal(row.literals[1]))
    else:
        lower_bound = cp_model.INT_MIN if row.sense == "<=" else row.rhs
        upper_bound = cp_model.INT_MAX if row.sense == ">=" else row.rhs
        constraint = lowered.add_linear_constraint(linear(row.terms), lower_bound, upper_bound)
        if row.when:
            constraint.only_enforce_if([literal(code) for code in row.when])


def _solve(
    lowered: cp_model.CpModel,
    model: Model,
    options: EngineOptions,
    report: ProgressCallback,
    *,
    presolve: bool,
) -> Claim:
    from ortools.sat.python import cp_model

    parameters: dict[str, ParameterValue] = {
        "num_workers": options.workers,
        "random_seed": options.seed,
        "relative_gap_limit": 0.0,
        "absolute_gap_limit": 0.0,
        "cp_model_presolve": presolve,
        "catch_sigint_signal": False,
        "log_search_progress": True,
        "log_to_stdout": False,
    }
    if options.time_limit_s is not None:
        parameters["max_time_in_seconds"] = float(options.time_limit_s)
    solver = cp_model.CpSolver()
    for name, value in parameters.items():
        setattr(solver.parameters, name, value)
    log: list[str] = []
    solver.log_callback = log.append
    stream = _Stream(model, report)
    if model.objective:
        solver.best_bound_callback = stream.on_bound

    class Incumbent(cp_model.CpSolverSolutionCallback):
        def on_solution_callback(self) -> None:
            stream.on_solution(tuple(self.response_proto.solution)[: len(model.variables)])

    status = solver.solve(lowered, Incumbent())
    response = solver.response_proto
    claim = Claim(
        bound=stream.bound,
        exact=True,
        engine_version=CpSatBackend().version(),
        parameters=parameters,
        log="\n".join(log),
    )
    if status == cp_model.INFEASIBLE:
        return replace(claim, infeasible=True)
    if status == cp_model.MODEL_INVALID:
        return replace(claim, failure="CP-SAT calls the model invalid")
    limit = Limit.TIME if options.time_limit_s is not None else Limit.NONE
    if model.objective and response.best_objective_bound > -(2.0**53):
        claim = replace(claim, bound=safe_ceil(response.best_objective_bound))
    if status == cp_model.UNKNOWN:
        return replace(claim, limit=limit, message=f"CP-SAT: {response.solution_info}".strip(" :"))
    finished = status == cp_model.OPTIMAL
    if not model.objective:
        claim = replace(claim, bound=model.objective_constant)
    return replace(
        claim,
        values=tuple(response.solution)[: len(model.variables)],
        objective=round(response.objective_value) if model.objective else None,
        finished=finished,
        limit=Limit.NONE if finished else limit,
    )


def _confirmed(
    claim: Claim,
    lowered: cp_model.CpModel,
    model: Model,
    options: EngineOptions,
    allowed_s: float,
) -> Claim:
    """Run again without presolve, and return the claim with what that run says."""
    unconfirmed = replace(
        claim, exact=False, message="the infeasibility was not confirmed by a second run"
    )
    if allowed_s <= 0:
        return unconfirmed
    again = _solve(
        lowered,
        model,
        replace(options, time_limit_s=allowed_s),
        lambda objective, bound, values: None,
        presolve=False,
    )
    log = f"{claim.log}\n--- second run, without presolve ---\n{again.log}"
    if again.infeasible:
        message = "the infeasibility was confirmed by a second run without presolve"
        return replace(claim, message=message, log=log)
    if again.values is not None:
        return replace(again, infeasible=True, log=log)
    return replace(unconfirmed, log=log)


class _Stream:
    """Keeps the best plan and bound, and passes each change on (from any thread)."""

    def __init__(self, model: Model, report: ProgressCallback) -> None:
        self.bound: int | None = None
        self._objective: int | None = None
        self._values: tuple[int, ...] | None = None
        self._model = model
        self._report = report
        self._lock = threading.Lock()

    def on_solution(self, values: tuple[int, ...]) -> None:
        objective = self._model.objective_constant + sum(
            coefficient * values[index] for index, coefficient in self._model.objective.items()
        )
        with self._lock:
            if self._objective is None or objective < self._objective:
                self._objective, self._values = objective, values
                self._report(objective, self.bound, values)

    def on_bound(self, bound: float) -> None:
        if bound <= -(2.0**53):
            return
        integer = safe_ceil(bound)
        with self._lock:
            if self.bound is None or integer > self.bound:
                self.bound = integer
                self._report(self._objective, integer, self._values)
