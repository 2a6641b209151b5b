"""What ``planner explain --json`` says, as the rows of the tables of a report."""

from __future__ import annotations

from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from planner.instance.errors import InputError, first_input_error
from planner.plan import Plan, parse_plan
from planner.report.units import duration


class _Read(BaseModel):
    """The fields that a report reads; others are left alone."""

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)


class _Alternative(_Read):
    choice: str
    value: str | bool
    chosen: bool
    status: str
    reason: str | None = None
    price_s: float | None = None
    price_at_least_s: float | None = None


class _WhatIf(_Read):
    name: str
    change: str
    status: str
    gain_at_least_s: float | None = None
    gain_at_most_s: float | None = None


class _Document(_Read):
    plan_status: str
    plan: dict[str, Any]
    alternatives: tuple[_Alternative, ...] = ()
    what_if: tuple[_WhatIf, ...] = ()


class AlternativeRow(NamedTuple):
    """What forcing one value of one choice costs."""

    choice: str
    value: str
    chosen: bool
    price: str
    status: str


class WhatIfRow(NamedTuple):
    """What more of one resource gains."""

    name: str
    change: str
    gain: str
    status: str


class ExplanationTables(NamedTuple):
    """``plan_status`` and the two tables."""

    plan_status: str
    alternatives: tuple[AlternativeRow, ...]
    what_ifs: tuple[WhatIfRow, ...]


def explanation_tables(document: Any, plan: Plan | None) -> ExplanationTables:
    """Read an explanation of a plan.

    Raises
    ------
    InputError
        If it is no explanation, or one of another plan.
    """
    try:
        found = _Document.model_validate(document)
    except ValidationError as error:
        raise first_input_error(error, _Document, "explanation") from None
    if plan is None or parse_plan(found.plan) != plan:
        raise InputError("explanation.plan", "is another plan than that of the report")
    return ExplanationTables(
        found.plan_status,
        tuple(
            AlternativeRow(
                row.choice.replace("_", " "),
                str(row.value).lower() if isinstance(row.value, bool) else row.value,
                row.chosen,
                _between(row.price_at_least_s, row.price_s),
                row.status + (f": {row.reason}" if row.price_s is None and row.reason else ""),
            )
            for row in found.alternatives
        ),
        tuple(
            WhatIfRow(
                row.name, row.change, _between(row.gain_at_least_s, row.gain_at_most_s), row.status
            )
            for row in found.what_if
        ),
    )


def _between(low_s: float | None, high_s: float | None) -> str:
    """A time that is known, or the limits of one that is not."""
    low, high = (None if s is None else _signed(s) for s in (low_s, high_s))
    if low is None:
        return "" if high is None else f"at most {high}"
    if high is None:
        return f"at least {low}"
    return low if low == high else f"{low} to {high}"


def _signed(seconds: float) -> str:
    text = duration(round(seconds * 1e6))
    return f"+{text}" if seconds > 0 else text
