"""What a plan report is made of: a solve document or a bare plan, and its instance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from planner.check import CheckReport, check_plan
from planner.instance.errors import InputError, first_input_error
from planner.instance.load import load_instance
from planner.instance.schema import Instance
from planner.legality import RefusedPlanError
from planner.plan import Plan, parse_plan


class _Read(BaseModel):
    """The fields of a solve document that a report reads; others are left alone."""

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)


class CertificateBox(_Read):
    """A box of degrees cases with its verdict."""

    verdict: str
    cases: int = Field(ge=0)
    rule: str = ""


class Certificate(_Read):
    """Boxes with verdicts, and how the proof is graded."""

    cases: tuple[CertificateBox, ...] = ()
    cases_total: int | None = None
    grade: str | None = None


class SolvedModel(_Read):
    """A model that a solver was given."""

    engine: str = ""


class Provenance(_Read):
    """How the answer came about."""

    versions: Mapping[str, str] = Field(default_factory=dict)
    backend: str | None = None
    seed: int | None = None
    workers: int | None = None
    wall_time_s: float | None = None
    models: tuple[SolvedModel, ...] = ()
    notes: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    instance: dict[str, Any] | None = None


class Synthesized(_Read):
    """An op order of its own, beside the plan."""

    iteration_time_s: float
    lower_bound_s: float
    template_time_s: float
    gap: float
    proven: bool
    method: str = ""


class SolveDocument(_Read):
    """A solve document (see ``docs/solve_document.md``)."""

    instance: str = "unnamed"
    status: str
    reason: str = ""
    limit: str | None = None
    iteration_time_s: float | None = None
    lower_bound_s: float | None = None
    gap: float | None = None
    simulated_time_s: float | None = None
    tokens_per_s: float | None = None
    mfu: float | None = None
    mfu_convention: str = ""
    plan: dict[str, Any] | None = None
    certificate: Certificate = Certificate()
    provenance: Provenance = Provenance()
    synthesized: Synthesized | None = None


@dataclass(frozen=True)
class PlanSource:
    """A plan with its instance.

    ``document`` is None for a bare plan; ``plan`` and ``check`` are None where the document has no
    plan.
    """

    instance: Instance
    document: SolveDocument | None
    plan: Plan | None
    check: CheckReport | None


def plan_source(document: Any, instance: Instance | None = None) -> PlanSource:
    """Read a solve document or a bare plan, and check the plan against its instance.

    Parameters
    ----------
    document
        The parsed JSON; also a point of a sweep, which holds its document as ``solve``.
    instance
        The instance; None = the one in the ``provenance`` of the document.

    Raises
    ------
    InputError
        If a field is wrong, there is no instance, or the plan takes another time in it than the
        document says.
    RefusedPlanError
        If the plan breaks a rule.
    """
    if not isinstance(document, Mapping):
        raise InputError("plan", "a JSON object is needed")
    if isinstance(document.get("solve"), Mapping):
        document = document["solve"]
    solved = _document(document) if "status" in document else None
    job = instance if instance is not None else _instance(solved)
    has_plan = solved is None or solved.plan is not None
    plan = parse_plan(document) if has_plan else None
    if plan is None:
        return PlanSource(job, solved, None, None)
    check = check_plan(job, plan)
    if not check.feasible or check.time_us is None:
        raise RefusedPlanError(check.violations)
    if solved is not None and solved.iteration_time_s is not None:
        stated_us = round(solved.iteration_time_s * 1e6)
        if stated_us != check.time_us:
            raise InputError(
                "iteration_time_s",
                f"the document says {stated_us:,} µs, the plan takes {check.time_us:,} µs in the "
                "instance: it is of another instance, or of another version of the planner",
            )
    return PlanSource(job, solved, plan, check)


def _document(document: Mapping[str, Any]) -> SolveDocument:
    try:
        return SolveDocument.model_validate(dict(document))
    except ValidationError as error:
        raise first_input_error(error, SolveDocument) from None


def _instance(solved: SolveDocument | None) -> Instance:
    if solved is None or solved.provenance.instance is None:
        what = "a bare plan" if solved is None else "a document without its instance"
        raise InputError("--instance", f"needed, since the file holds {what}")
    try:
        return load_instance(solved.provenance.instance)
    except InputError as error:
        path = f"provenance.instance.{error.path}"
        raise InputError(path, error.reason, error.suggestion) from None
