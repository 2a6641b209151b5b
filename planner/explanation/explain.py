"""Explain a plan: what binds it, forced alternatives, more of each resource, near-ties."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple

from planner.backends import select_backend
from planner.check import check_plan
from planner.explanation.alternatives import (
    PROTOCOLS,
    Alternative,
    bound_by_partition,
    forced_alternatives,
)
from planner.explanation.binding import Binding, binding_of
from planner.explanation.document import Explanation
from planner.explanation.known_plans import Known, KnownPlans
from planner.explanation.near_ties import near_ties
from planner.explanation.questions import Answerer, Verdict
from planner.explanation.what_if import WhatIf, what_ifs
from planner.instance.schema import Instance
from planner.legality import RefusedPlanError, layout_violations
from planner.plan import Plan
from planner.problem import Problem
from planner.search.result import Progress
from planner.search.solve import DEFAULT_WORKERS
from planner.versions import versions

TIME_LIMIT_S = 600.0
"""Time for everything where the caller gives none."""
BASE_SHARE = 0.4
"""Part of the time for the whole plan space, which bounds every forced alternative."""
AGAIN = 2.0
"""A question that was not proven is solved again with so many times its time, if that is left."""


def explain(
    instance: Instance,
    plan: Plan,
    *,
    time_limit_s: float = TIME_LIMIT_S,
    backend: str = "auto",
    seed: int = 0,
    workers: int = DEFAULT_WORKERS,
    progress: Callable[[Progress], None] | None = None,
) -> Explanation:
    """Say why a plan is what it is, and what would be better or worse.

    Every alternative and every change of the instance is solved by itself.  The time is dealt out
    to the open questions in order of their use; what a question does not need goes to the others.

    Parameters
    ----------
    instance
        The training job.
    plan
        A plan that the checker accepts; it need not be the best.
    time_limit_s
        Wall time for everything.
    backend
        ``auto``, ``cp-sat``, ``cbc`` or ``highs``.
    seed, workers
        Passed to the engine.
    progress
        Called now and then with the state of the solve that runs.

    Returns
    -------
    Explanation
        Also where the time ends or the work is interrupted (KeyboardInterrupt); rows that are not
        proven say so and hold what is known.

    Raises
    ------
    RefusedPlanError
        If the plan breaks a rule.
    ValueError
        If the time limit is not positive.
    """
    if not time_limit_s > 0:
        raise ValueError("time_limit_s must be positive")
    began = time.monotonic()
    report = check_plan(instance, plan)
    if not report.feasible:
        raise RefusedPlanError(report.violations)
    assert report.time_us is not None
    _, layout = layout_violations(Problem(instance), plan)
    assert layout is not None
    known = KnownPlans(instance, plan, report.time_us)
    work = _Work(
        instance,
        plan,
        Answerer(known, seed, workers, select_backend(backend), progress),
        binding_of(instance, layout),
        deadline=began + time_limit_s,
    )
    try:
        work.run()
    except KeyboardInterrupt:
        work.answerer.interrupted = True
    work.finish()
    return Explanation(
        instance=instance,
        plan=plan,
        time_us=report.time_us,
        limit=work.limit,
        binding=work.binding,
        best=work.whole.verdict,
        alternatives=tuple(work.alternatives),
        what_ifs=tuple(work.what_ifs),
        near_ties=tuple(near_ties(known, plan, report.time_us)),
        provenance={
            "versions": versions(),
            "backend": work.answerer.backend,
            "seed": seed,
            "workers": workers,
            "time_limit_s": time_limit_s,
            "wall_time_s": round(time.monotonic() - began, 3),
            "plans_known": len(list(known)),
        },
    )


@dataclass
class _Whole:
    """The whole plan space."""

    verdict: Verdict = field(default_factory=Verdict)


class _Question(NamedTuple):
    """A row with how to answer it within a number of seconds, and what it is about."""

    row: _Whole | Alternative | WhatIf
    about: str
    answer: Callable[[str, float], Verdict | None]


@dataclass
class _Work:
    """The questions and what is known of their answers."""

    instance: Instance
    plan: Plan
    answerer: Answerer
    binding: Binding
    deadline: float
    whole: _Whole = field(default_factory=_Whole)
    alternatives: list[Alternative] = field(default_factory=list)
    what_ifs: list[WhatIf] = field(default_factory=list)

    @property
    def limit(self) -> Literal["time", "interrupt"] | None:
        """What ended the work before every row was settled."""
        if self.answerer.interrupted:
            return "interrupt"
        verdicts = [self.whole.verdict, *(row.verdict for row in self.alternatives)]
        verdicts += [row.verdict for row in self.what_ifs]
        return "time" if any(v.status == "not proven" for v in verdicts) else None

    def run(self) -> None:
        """Price the plan after every change, then answer the questions until the time is up."""
        self.whole.verdict.offer(self.answerer.known.best)
        self.alternatives = forced_alternatives(self.instance, self.plan)
        self.what_ifs = what_ifs(self.instance)
        for row in self.what_ifs:
            if self._left_s() <= 0:
                return
            row.same_plan_us = check_plan(row.build(), self.plan).time_us
            if row.same_plan_us is not None:
                row.verdict.offer(Known(row.same_plan_us, self.plan))
        for alternative in self.alternatives:
            part = alternative.part_of(self.instance)
            alternative.verdict.offer(self.answerer.known.best_of(part))
        questions = list(self._questions())
        asked = {questions[0].about: BASE_SHARE * self._left_s()}
        self._ask(questions[0], questions[0].about, asked[questions[0].about])
        while self._round(questions, asked):
            pass

    def _round(self, questions: list[_Question], asked: dict[str, float]) -> bool:
        """Deal the time out to the open questions; False where none gets enough of it.

        ``asked`` has the seconds that each question got before; another try needs twice as many.
        Alternatives that have a plan as good as the best wait for the others: a proof of the whole
        plan space settles them all.
        """
        best_us = self.answerer.known.best.time_us
        waiting = [q for q in questions if q.row.verdict.status == "not proven"]
        tied = [
            q
            for q in waiting
            if isinstance(q.row, Alternative) and q.row.verdict.time_us == best_us
        ]
        others = [q for q in waiting if q not in tied]
        return self._deal(others, asked) or self._deal(tied, asked)

    def _deal(self, questions: list[_Question], asked: dict[str, float]) -> bool:
        """Ask questions that get enough of the time that is left; whether there was one."""
        some = False
        for number, question in enumerate(questions):
            limit_s = self._left_s() / (len(questions) - number)
            if self.answerer.interrupted or limit_s <= 0:
                return False
            if limit_s >= AGAIN * asked.get(question.about, 0.0):
                asked[question.about] = limit_s
                label = f"{number + 1} of {len(questions)}: {question.about}"
                self._ask(question, label, limit_s)
                some = True
        return some

    def _ask(self, question: _Question, label: str, limit_s: float) -> None:
        """Answer a question unless what is known answers it already."""
        verdict = question.answer(label, limit_s)
        if verdict is not None:
            verdict.join(question.row.verdict)
            question.row.verdict = verdict

    def _left_s(self) -> float:
        return self.deadline - time.monotonic()

    def _questions(self) -> Iterator[_Question]:
        """All questions by their use; last unused links and what the plan has anyway."""
        yield _Question(
            self.whole,
            "whole plan space",
            lambda label, limit_s: self.answerer.part(self.instance, label, limit_s),
        )
        for row in self._ordered():
            if isinstance(row, Alternative):
                yield _Question(row, row.fix, partial(self._force, row))
            else:
                yield _Question(row, f"{row.change}, {row.name}", partial(self._enlarge, row))

    def _ordered(self) -> Iterator[Alternative | WhatIf]:
        forced = [row for row in self.alternatives if not row.chosen]
        used = {use.link for use in self.binding.links}
        costly = {
            use.link
            for use in self.binding.links
            if max(use.without_capacity_limit_us, use.without_delay_us) > 0
        }

        def choice(name: str) -> Iterator[Alternative]:
            return (row for row in forced if row.choice == name)

        def changes(kind: str, names: set[str] | None = None) -> Iterator[WhatIf]:
            found = (row for row in self.what_ifs if row.kind == kind)
            return (row for row in found if names is None or row.name in names)

        yield from choice("placement_kind")
        yield from choice("schedule")
        yield from changes("bandwidth", costly)
        yield from changes("gpus")
        yield from changes("memory")
        yield from choice("sharding")
        yield from choice(PROTOCOLS)
        yield from changes("delay", costly)
        for name in ("recompute", "sync", "overlap"):
            yield from choice(name)
        others = {link.name for link in self.instance.cluster.links} - costly
        for names in (others & used, others - used):
            yield from changes("bandwidth", names)
            yield from changes("delay", names)
        yield from (row for row in self.alternatives if row.chosen)

    def _force(self, row: Alternative, label: str, limit_s: float) -> Verdict | None:
        part = row.part_of(self.instance)
        row.verdict.offer(self.answerer.known.best_of(part))
        row.verdict.raise_bound(self._bound(), "inclusion")
        if row.verdict.status != "not proven":
            return None
        return self.answerer.part(part, label, limit_s)

    def _enlarge(self, row: WhatIf, label: str, limit_s: float) -> Verdict:
        return self.answerer.more(row.build(), label, limit_s)

    def _bound(self) -> int | None:
        """The best bound on the whole plan space so far."""
        best = self.whole.verdict
        best.offer(self.answerer.known.best)
        best.raise_bound(bound_by_partition(self.alternatives), "partition")
        return best.bound_us

    def finish(self) -> None:
        """Let every row know the plans that were found and the bounds that were proven later."""
        for row in self.alternatives:
            if row.verdict.status == "not proven":
                row.verdict.offer(self.answerer.known.best_of(row.part_of(self.instance)))
        bound_us = self._bound()
        for row in self.alternatives:
            row.verdict.raise_bound(bound_us, "inclusion")
