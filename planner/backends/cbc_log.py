"""The log of CBC: the only place where it states its bound and why it stopped."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum


class CbcResult(Enum):
    """What the log says about the end of a run."""

    OPTIMAL = "optimal"
    WITHIN_GAP = "within gap"
    INFEASIBLE = "infeasible"
    TIME = "time"
    DOUBTFUL = "doubtful"
    FAILED = "failed"
    UNKNOWN = "unknown"


RESULT_TEXTS = {
    "Optimal solution found": CbcResult.OPTIMAL,
    "Optimal solution found (within gap tolerance)": CbcResult.WITHIN_GAP,
    "Problem proven infeasible": CbcResult.INFEASIBLE,
    "Linear relaxation infeasible": CbcResult.INFEASIBLE,
    "Stopped on time limit": CbcResult.TIME,
    "Linear relaxation unbounded": CbcResult.FAILED,
    "Stopped on node limit": CbcResult.FAILED,
    "Stopped on solution limit": CbcResult.FAILED,
    "Stopped on iterations": CbcResult.FAILED,
    "Stopped on difficulties": CbcResult.FAILED,
    "Difficulties during solution": CbcResult.FAILED,
    "User ctrl-c": CbcResult.FAILED,
}
"""Texts after ``Result - ``."""

EARLY_TEXTS = (
    ("Problem is infeasible - ", CbcResult.INFEASIBLE),
    ("Problem is infeasible!", CbcResult.INFEASIBLE),
    ("Pre-processing says infeasible or unbounded", CbcResult.INFEASIBLE),
)
"""Starts of the lines that stand in for a result line; all variables have bounds, so that
``or unbounded`` cannot apply."""


@dataclass(frozen=True, slots=True)
class CbcLog:
    """The facts in a log.

    Attributes:
        result: Why the run ended.
        text: The line that says so.
        version: Version of CBC.
        objective: Value of the best plan.
        has_plan: Whether a plan was found.
        lower_bound: Lower bound of a stopped run, printed with few digits.
        relaxation: Optimum of a run on the linear relaxation.
        wall_time_s: Wall time that CBC states, with two decimals.
    """

    result: CbcResult
    text: str
    version: str
    objective: float | None
    has_plan: bool
    lower_bound: float | None
    relaxation: float | None
    wall_time_s: float | None

    def at_limit(self, time_limit_s: float | None) -> CbcLog:
        """Return the facts as far as a run that came near its time limit is to be believed.

        CBC calls a model infeasible where its preprocessing runs out of time, and a plan
        optimal where its search does; such results become DOUBTFUL.
        """
        if time_limit_s is None or self.result not in (CbcResult.OPTIMAL, CbcResult.INFEASIBLE):
            return self
        if self.wall_time_s is not None and self.wall_time_s + 0.01 < 0.8 * time_limit_s:
            return self
        return replace(self, result=CbcResult.DOUBTFUL)


def parse_log(log: str, relaxation: bool = False) -> CbcLog:
    """Read the facts from a log; a result text that is not in the table is UNKNOWN.

    Args:
        log: The log.
        relaxation: The run was on the linear relaxation, whose optimum has no result line.
    """
    result, text = CbcResult.UNKNOWN, ""
    for line in log.splitlines():
        if line.startswith("Result - "):
            text = line.removeprefix("Result - ").strip()
            result = RESULT_TEXTS.get(text, CbcResult.UNKNOWN)
            break
        for start, meaning in EARLY_TEXTS:
            if line.startswith(start):
                result, text = meaning, line.strip()
        if relaxation and line.startswith("Optimal objective "):
            result, text = CbcResult.OPTIMAL, line.strip()
    version = re.search(r"^Version: (\S+)", log, re.MULTILINE)
    return CbcLog(
        result=result,
        text=text or "no result line",
        version=version[1] if version else "unknown",
        objective=_number(r"^Objective value: +(\S+)", log),
        has_plan="No feasible solution found" not in log,
        lower_bound=_number(r"^Lower bound: +(\S+)", log),
        relaxation=_number(r"^Optimal objective (\S+)", log),
        wall_time_s=_number(r"^Total time .*Wallclock seconds\): +([0-9.]+)", log),
    )


def _number(pattern: str, log: str) -> float | None:
    found = re.search(pattern, log, re.MULTILINE)
    if found is None:
        return None
    try:
        number = float(found[1])
    except ValueError:
        return None
    return number if abs(number) < 1e30 else None
