"""What an engine says about a model, and the rules by which its claim is believed.

An engine makes a `Claim`.  `settle` checks it against the model in exact integers and
turns it into an `EngineResult`; nothing else makes a result OPTIMAL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING

from formulations.algebra import Model

if TYPE_CHECKING:
    from planner.backends.base import EngineOptions

ParameterValue = str | int | float | bool | None


class SolveStatus(Enum):
    """The outcome of a solve.

    OPTIMAL: The plan breaks no row, and its objective equals the integer bound.
    FEASIBLE: The plan breaks no row; the bound does not reach its objective.
    INFEASIBLE: The engine found that no plan exists.
    NO_SOLUTION: No plan is known; see the limit for the reason.
    ERROR: The engine failed or contradicted itself; see the message.
    INTERRUPTED: The user stopped the solve; a checked plan may be present.
    """

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    NO_SOLUTION = "no_solution"
    ERROR = "error"
    INTERRUPTED = "interrupted"


class Limit(Enum):
    """What ended a solve before its proof.

    TIME: The time limit, or the watchdog that guards it.
    MEMORY: The memory limit.
    INTERRUPT: The user.
    CUTOFF: No plan is as good as `EngineOptions.objective_upper` asks.
    NONE: Nothing.
    """

    TIME = "time"
    MEMORY = "memory"
    INTERRUPT = "interrupt"
    CUTOFF = "cutoff"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class EngineResult:
    """The checked outcome of one solve.

    Attributes:
        status: The outcome; see `SolveStatus`.
        limit: What ended the solve early.
        values: One integer per variable, present only if they break no row.
        objective: Exact objective of ``values``.
        bound: Integer lower bound on the objective of every plan.
        engine: Name of the backend.
        engine_version: Version of the solver.
        parameters: Parameters as given to the solver.
        wall_time_s: Wall time of the solve in seconds.
        message: One or more sentences on anything unusual, else empty.
        log: Output of the solver.
        trusted: Whether the bound (or the infeasibility) comes from an engine with exact
            integer reasoning that did not fail and whose infeasibility was confirmed.
        contradicted: Whether what the engine said contradicts the model, a checked plan or itself.
        relaxation_value: Optimum of the linear relaxation, if that was asked for.
        model_fingerprint: SHA-256 of the solved model.

    Raises:
        ValueError: The fields contradict the status.
    """

    status: SolveStatus
    limit: Limit
    values: tuple[int, ...] | None
    objective: int | None
    bound: int | None
    engine: str
    engine_version: str
    parameters: Mapping[str, ParameterValue]
    wall_time_s: float
    message: str = ""
    log: str = ""
    trusted: bool = False
    contradicted: bool = False
    relaxation_value: Fraction | float | None = None
    model_fingerprint: str = ""

    def __post_init__(self) -> None:
        has_plan = self.values is not None
        if has_plan != (self.objective is not None):
            raise ValueError("values and objective must be given together")
        if self.status is SolveStatus.OPTIMAL and (not has_plan or self.objective != self.bound):
            raise ValueError("OPTIMAL needs a plan whose objective equals the bound")
        if self.status is SolveStatus.FEASIBLE and not has_plan:
            raise ValueError("FEASIBLE needs a plan")
        if self.status in (SolveStatus.INFEASIBLE, SolveStatus.NO_SOLUTION) and has_plan:
            raise ValueError(f"{self.status.name} cannot carry a plan")

    @property
    def has_plan(self) -> bool:
        """Whether a checked plan is present."""
        return self.values is not None

    @property
    def gap(self) -> int | None:
        """Objective minus bound, where both are known."""
        if self.objective is None or self.bound is None:
            return None
        return self.objective - self.bound


@dataclass(frozen=True, slots=True)
class Claim:
    """What an engine says, not yet checked.

    Attributes:
        values: The best point, rounded to integers.
        objective: The engine's own value of that point, if it states one.
        bound: Integer lower bound (of the model with the cutoff row, if there is one).
        infeasible: The engine says that no point exists (within the cutoff).
        finished: The engine says that its search is complete.
        limit: What ended the search.
        failure: Why the claim cannot be used, else empty.
        refused: The solve was not started, because model or options are not fit for it.
        exact: The engine reasons in exact integers.
    """

    values: tuple[int, ...] | None = None
    objective: int | None = None
    bound: int | None = None
    infeasible: bool = False
    finished: bool = False
    limit: Limit = Limit.NONE
    failure: str = ""
    refused: bool = False
    exact: bool = False
    relaxation_value: Fraction | float | None = None
    engine_version: str = ""
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)
    message: str = ""
    log: str = ""


def safe_ceil(bound: float, absolute: float = 1e-6, relative: float = 0.0) -> int:
    """Return the integer lower bound that follows from a rounded lower bound.

    The slack allows for the rounding of the engine or of its printout, so that an integer
    that came out slightly too high is not pushed up by one.
    """
    exact = Fraction(bound)
    return ceil(exact - max(Fraction(absolute), Fraction(relative) * abs(exact)))


def settle(
    model: Model, options: EngineOptions, claim: Claim, *, engine: str, wall_time_s: float
) -> EngineResult:
    """Check a claim against the model and the options, and grade it.

    The rules: a point counts only if `Model.evaluate` finds no violation; the objective
    is the recomputed one; a claimed objective that differs, a bound above a checked
    plan, or infeasibility next to a checked plan makes the result an ERROR; a feasible
    complete hint within the cutoff is used where the engine has nothing as good.
    """
    notes = [claim.message] if claim.message else []
    hinted = None if claim.refused else feasible_hint(model, options)
    best, objective, faults = _best_point(model, options, claim, hinted, notes)
    bound = _valid_bound(options, claim)

    if claim.infeasible and objective is not None:
        faults.append(f"the engine says infeasible, but a plan with objective {objective} exists")
    if objective is not None and bound is not None and bound > objective:
        faults.append(f"the bound {bound} is above the objective {objective} of a checked plan")
        bound = None
    if (
        claim.finished
        and claim.values is not None
        and bound != objective
        and not (faults or claim.failure)
    ):
        faults.append(f"the engine calls {objective} optimal, but its bound is {bound}")
    contradicted = bool(faults)
    if claim.failure:
        faults.insert(0, claim.failure)

    limit = claim.limit
    if faults:
        status = SolveStatus.ERROR
        if claim.failure and len(faults) == 1 and best is not None:
            status = SolveStatus.FEASIBLE
    elif limit is Limit.INTERRUPT:
        status = SolveStatus.INTERRUPTED
    elif best is not None:
        status = SolveStatus.OPTIMAL if objective == bound else SolveStatus.FEASIBLE
    elif claim.infeasible and options.objective_upper is None:
        status = SolveStatus.INFEASIBLE
        bound = None
    else:
        status = SolveStatus.NO_SOLUTION
        if claim.infeasible:
            limit = Limit.CUTOFF
    return EngineResult(
        status=status,
        limit=limit,
        values=best,
        objective=objective,
        bound=bound,
        engine=engine,
        engine_version=claim.engine_version,
        parameters=claim.parameters,
        wall_time_s=wall_time_s,
        message="; ".join(faults + notes),
        log=claim.log,
        trusted=claim.exact and not faults,
        contradicted=contradicted,
        relaxation_value=claim.relaxation_value,
        model_fingerprint=model.fingerprint(),
    )


def feasible_hint(model: Model, options: EngineOptions) -> tuple[int, ...] | None:
    """Return the hint as a point if it is complete and breaks no row of the model."""
    if options.hint is None:
        return None
    try:
        point = tuple(options.hint[index] for index in range(len(model.variables)))
        return point if model.evaluate(point).feasible else None
    except (KeyError, TypeError):
        return None


def _best_point(
    model: Model,
    options: EngineOptions,
    claim: Claim,
    hinted: tuple[int, ...] | None,
    notes: list[str],
) -> tuple[tuple[int, ...] | None, int | None, list[str]]:
    """Return the best checked point within the cutoff, its objective, and faults found."""
    faults: list[str] = []
    best: tuple[int, ...] | None = None
    objective: int | None = None
    upper = options.objective_upper
    if claim.values is not None:
        evaluation = model.evaluate(claim.values)
        if evaluation.violations:
            worst = max(evaluation.violations, key=lambda violation: violation.amount)
            faults.append(
                f"the engine's point breaks {len(evaluation.violations)} rows, "
                f"most of all {worst.name} by {worst.amount}"
            )
        elif claim.objective is not None and claim.objective != evaluation.objective:
            faults.append(
                f"the engine states objective {claim.objective}, "
                f"its point has {evaluation.objective}"
            )
        elif upper is not None and evaluation.objective > upper:
            faults.append(f"the engine's point has {evaluation.objective}, above the cutoff")
        else:
            best, objective = claim.values, evaluation.objective
    if hinted is not None:
        value = model.evaluate(hinted).objective
        if (upper is None or value <= upper) and (objective is None or value < objective):
            best, objective = hinted, value
            notes.append("the hinted plan is returned, since the engine has none as good")
    return best, objective, faults


def _valid_bound(options: EngineOptions, claim: Claim) -> int | None:
    """Return the bound of the model without cutoff that follows from the claim."""
    bound = claim.bound
    if options.objective_upper is not None:
        beyond = options.objective_upper + 1
        if claim.infeasible:
            bound = beyond
        elif bound is not None:
            bound = min(bound, beyond)
    if options.objective_lower is not None:
        bound = options.objective_lower if bound is None else max(bound, options.objective_lower)
    return bound
