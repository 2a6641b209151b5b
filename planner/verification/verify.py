"""Re-derives the proof in a solve document: the plan, the space, every verdict, the status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from planner.check import CheckReport, check_plan
from planner.instance.errors import InputError
from planner.instance.load import load_instance
from planner.instance.schema import Instance
from planner.legality import Violation, layout_violations
from planner.plan import Plan, parse_plan
from planner.problem import Problem
from planner.search.bounds import INFEASIBLE
from planner.search.result import SolveResult, SolveStatus
from planner.verification.derive import Derivation, TieKey
from planner.verification.document import Document, Entry, parse_document
from planner.verification.duality import WitnessError
from planner.verification.partition import partition_violations

MAX_REFUSED = 20
"""Verdicts that are refused before the others are left out."""
ENGINE_RULES = ("layers", "model")
EXACT_ENGINE = "ortools"
"""The engine whose word on a model counts alone: it reasons in whole numbers."""
BOUND_RULES = ("work", "time", "paths", "memory", "placement", *ENGINE_RULES)


@dataclass(frozen=True)
class Verification:
    """What became of a solve document.

    Attributes
    ----------
    violations
        What is wrong, by rule; none if the document is accepted.
    status
        The claimed status.
    grade
        ``re-derived``: every verdict follows from the instance. ``engine``: some rest on a solver.
        ``open``: some cases have no verdict.
    time_us, bound_us
        Z of the plan by the checker, and the lower bound that the verdicts give; None if there is
        none.
    cases_total
        Degrees cases of the space.
    cases_by_evidence
        Cases by ``re-derived``, ``open``, or engine and version, with a second one that agrees.
    """

    violations: tuple[Violation, ...]
    status: str
    grade: str
    time_us: int | None
    bound_us: int | None
    cases_total: int
    cases_by_evidence: Mapping[str, int]

    @property
    def accepted(self) -> bool:
        """Whether nothing is wrong."""
        return not self.violations

    def to_json(self) -> dict[str, Any]:
        """The verification as one JSON object, times in seconds."""
        return {
            "accepted": self.accepted,
            "violations": [v._asdict() for v in self.violations],
            "status": self.status,
            "grade": self.grade,
            "iteration_time_s": None if self.time_us is None else self.time_us / 1e6,
            "lower_bound_s": None if self.bound_us is None else self.bound_us / 1e6,
            "cases_total": self.cases_total,
            "cases_by_evidence": dict(self.cases_by_evidence),
        }


def verify(instance: Instance, document: Mapping[str, Any]) -> Verification:
    """Check a solve document against the instance, without solver or formulation.

    Parameters
    ----------
    instance
        The training job, with the restrictions that it was solved with.
    document
        The solve document.

    Returns
    -------
    Verification
        Everything that is wrong, by rule; the grade and bound that the verdicts give.

    Raises
    ------
    InputError
        If it is no solve document, or a field that is verified is missing or of the wrong type.
    """
    return _Verifier(instance, parse_document(document)).run()


class _Verifier:
    def __init__(self, instance: Instance, document: Document) -> None:
        self.instance = instance
        self.document = document
        self.certificate = document.certificate
        self.problem = Problem(instance)
        self.derivation = Derivation(self.problem, self.certificate.templates)

    @cached_property
    def plan(self) -> Plan | None:
        """The plan of the document."""
        found = self.document.plan
        return None if found is None else parse_plan({"plan": found})

    @cached_property
    def report(self) -> CheckReport | None:
        """What the checker says of the plan."""
        return None if self.plan is None else check_plan(self.instance, self.plan)

    @property
    def time_us(self) -> int | None:
        """Z of the plan, where it is accepted."""
        report = self.report
        return report.time_us if report is not None and report.feasible else None

    @cached_property
    def key(self) -> TieKey | None:
        """The place of the plan in the order of ties."""
        assert self.plan is not None
        _, layout = layout_violations(self.problem, self.plan)
        return None if layout is None else (layout.crossings, layout.degrees.gpus, layout.degrees)

    def run(self) -> Verification:
        violations = [*self._instance(), *self._plan()]
        if not violations:
            entries = self.certificate.cases
            total = self.certificate.cases_total
            violations = list(partition_violations(self.derivation.space, entries, total))
            if not violations:
                violations = [*self._verdicts(), *self._claims()]
        return Verification(
            violations=tuple(violations),
            status=self.document.status,
            grade=self.grade,
            time_us=self.time_us,
            bound_us=self.bound_us,
            cases_total=self.derivation.space.size,
            cases_by_evidence=self._evidence(),
        )

    # -- instance and plan -----------------------------------------------------------------

    def _instance(self) -> Iterator[Violation]:
        given = _dump(self.instance)
        try:
            solved = _dump(load_instance(self.document.provenance.instance))
        except InputError as error:
            yield Violation("instance", f"provenance.instance.{error}")
            return
        if given != solved:
            where = _difference(given, solved)
            yield Violation("instance", f"another one was solved: {where} differs")

    def _plan(self) -> Iterator[Violation]:
        report, document = self.report, self.document
        if report is None or self.plan is None:
            for name in ("iteration_time_s", "gap", "breakdown", "memory", "tokens_per_s", "mfu"):
                if getattr(document, name) is not None:
                    yield Violation(name, "there is no plan")
            return
        yield from report.violations
        if report.time_us is None or not report.feasible:
            return
        checked = SolveResult(
            self.instance,
            SolveStatus.FEASIBLE,
            "",
            None,
            self.plan,
            report.time_us,
            None,
            report.breakdown_us,
            report.memory,
        ).to_json()
        for name in ("iteration_time_s", "breakdown", "tokens_per_s", "mfu"):
            claimed = getattr(document, name)
            if claimed != checked[name]:
                yield Violation(name, f"{claimed} claimed, the checker finds {checked[name]}")
        if list(document.memory or ()) != checked["memory"]:
            yield Violation("memory_rows", "not those that the checker finds")

    # -- verdicts --------------------------------------------------------------------------

    def _verdicts(self) -> Iterator[Violation]:
        refused = 0
        for number, entry in enumerate(self.certificate.cases):
            try:
                found = self._entry(entry)
            except WitnessError as error:
                found = Violation("multipliers", str(error))
            if found is not None:
                refused += 1
                yield found._replace(message=f"certificate.cases[{number}]: {found.message}")
                if refused == MAX_REFUSED:
                    yield Violation("verdicts", "more verdicts may be wrong; stopped here")
                    return

    def _entry(self, entry: Entry) -> Violation | None:
        if entry.verdict == "infeasible":
            return self._infeasible(entry)
        if entry.bound_us is None:
            return Violation("bound", "a bound is needed")
        if entry.rule not in BOUND_RULES:
            return Violation("rule", f"'{entry.rule}' is no bound")
        if entry.verdict == "solved":
            return self._solved(entry)
        if entry.rule in ENGINE_RULES:
            unnamed = self._engine(entry)
            if unnamed is not None:
                return unnamed
        elif not self.derivation.at_least(entry.box, entry.bound_us):
            return Violation("bound", f"{entry.bound_us} µs by {entry.rule} does not follow")
        return self._closes(entry) if entry.verdict == "bounded" else None

    def _infeasible(self, entry: Entry) -> Violation | None:
        follows = self.derivation.breaks(entry.rule, entry.box)
        if follows is None:
            if entry.rule not in ("memory", "placement", "virtual_stages.schedule"):
                return Violation("rule", f"'{entry.rule}' is no rule that excludes plans")
            follows = self.derivation.at_least(entry.box, INFEASIBLE)
        if not follows:
            return Violation("infeasible", f"by {entry.rule} does not follow")
        if entry.bound_us is not None or entry.value_us is not None or entry.engine is not None:
            return Violation("infeasible", "has neither a bound nor a value nor an engine")
        return None

    def _closes(self, entry: Entry) -> Violation | None:
        """Whether a bound is no better than the answer."""
        best, bound = self.time_us, entry.bound_us
        assert bound is not None
        if best is None:
            return Violation("bound", "without a plan a bound closes nothing")
        if bound > best:
            return None
        if bound < best:
            return Violation("bound", f"{bound} µs is better than the plan's {best} µs")
        if entry.rule in ENGINE_RULES:
            return None
        if self.key is None or not self.derivation.comes_later(entry.box, best, self.key):
            return Violation("tie", "may hold a plan of equal Z that comes first")
        return None

    def _engine(self, entry: Entry) -> Violation | None:
        if not entry.engine:
            return Violation("engine", f"'{entry.rule}' needs the engine that stands behind it")
        if (
            entry.second is not None
            and not entry.second.agrees
            and entry.second.status == "OPTIMAL"
        ):
            return Violation("engine", f"{entry.second.engine} does not agree")
        return None

    def _solved(self, entry: Entry) -> Violation | None:
        if entry.rule != "model":
            return Violation("rule", "'solved' is by 'model'")
        unnamed = self._engine(entry)
        if unnamed is not None:
            return unnamed
        alone = entry.trusted and str(entry.engine).startswith(EXACT_ENGINE)
        if not alone and not (entry.second is not None and entry.second.agrees):
            return Violation("engine", f"the word of {entry.engine} alone is not enough")
        bound, value, best = entry.bound_us, entry.value_us, self.time_us
        assert bound is not None
        if value is not None and (best is None or bound > value or value < best):
            return Violation("solved", f"value {value} µs, bound {bound} µs, answer {best} µs")
        if best is not None and bound < best:
            return Violation("bound", f"{bound} µs is better than the plan's {best} µs")
        return None

    # -- claims ----------------------------------------------------------------------------

    @property
    def bound_us(self) -> int | None:
        """The lower bound that the verdicts give."""
        opened = [e.bound_us or 0 for e in self.certificate.cases if e.verdict == "open"]
        values = opened + ([] if self.time_us is None else [self.time_us])
        return min(values, default=None)

    @property
    def grade(self) -> str:
        """The weakest evidence among the verdicts."""
        entries = self.certificate.cases
        if any(entry.verdict == "open" for entry in entries):
            return "open"
        return "engine" if any(entry.rule in ENGINE_RULES for entry in entries) else "re-derived"

    def _claims(self) -> Iterator[Violation]:
        document, bound, best = self.document, self.bound_us, self.time_us
        claimed = document.lower_bound_s
        if claimed is not None and (bound is None or claimed > bound / 1e6):
            yield Violation("lower_bound_s", f"{claimed} claimed, the verdicts give {bound} µs")
        if claimed is None and best is not None:
            yield Violation("lower_bound_s", "a plan comes with a bound")
        if best is not None and claimed is not None:
            gap = max(0, best - round(claimed * 1e6)) / best
            if document.gap != gap:
                yield Violation("gap", f"{document.gap} claimed, Z and bound give {gap}")
        if self.certificate.grade != self.grade:
            yield Violation(
                "grade", f"{self.certificate.grade} claimed, the verdicts give {self.grade}"
            )
        yield from self._status()

    def _status(self) -> Iterator[Violation]:
        document = self.document
        has_plan = self.time_us is not None
        proven = self.grade != "open" and not document.provenance.errors
        needs = {
            "OPTIMAL": has_plan and proven and document.gap == 0,
            "FEASIBLE": has_plan,
            "INFEASIBLE": not has_plan and proven,
            "NO_SOLUTION": not has_plan,
            "INTERRUPTED": True,
        }
        if not needs.get(document.status, False):
            yield Violation("status", f"{document.status} does not follow from the verdicts")

    def _evidence(self) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for entry in self.certificate.cases:
            name = "re-derived"
            if entry.verdict == "open":
                name = "open"
            elif entry.rule in ENGINE_RULES:
                name = entry.engine or "unnamed engine"
                if entry.second is not None and entry.second.agrees:
                    name += f", {entry.second.engine} agrees"
            counts[name] += entry.cases
        return dict(counts.most_common())


def _dump(instance: Instance) -> dict[str, Any]:
    return instance.model_dump(mode="json", by_alias=True, exclude_none=True)


def _difference(left: Any, right: Any, path: str = "") -> str:
    """The path of the first value in which two documents differ."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in sorted(left.keys() | right.keys()):
            if left.get(key) != right.get(key):
                return _difference(left.get(key), right.get(key), f"{path}.{key}" if path else key)
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for place, (a, b) in enumerate(zip(left, right, strict=True)):
            if a != b:
                return _difference(a, b, f"{path}[{place}]")
    return path or "everything"
