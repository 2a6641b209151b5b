"""Best-first search over boxes of degrees cases: bounds first, models where they do not decide."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from planner.backends import Engine, EnginePool, Limit, select_backend
from planner.backends import SolveStatus as EngineStatus
from planner.check import (
    check_plan,
    memory_violations,
    price_layout,
    profiles_of_layout,
    time_of_layout,
)
from planner.choices import CaseChoices, ScheduleChoice
from planner.cost.coefficients import Option, case_coefficients
from planner.cost.profile_use import profile_uses_to_json
from planner.instance.schema import Instance
from planner.layout import Layout, to_plan
from planner.legality import layout_violations
from planner.plan import Degrees, Plan
from planner.problem import Problem
from planner.search.bounds import INFEASIBLE, Bounds, CaseBounds, ChoiceBound
from planner.search.case_solver import CaseOutcome, CaseSolver
from planner.search.heuristic import best_protocols, case_plans
from planner.search.infeasibility import explain_infeasibility
from planner.search.longest import longest_us
from planner.search.result import Progress, SolveResult, SolveStatus
from planner.search.synthesis.plan_schedule import SynthesizedSchedule, synthesize_for_plans
from planner.search.tree import Box, Closed, Tree
from planner.simulation.simulate import simulated_answer
from planner.versions import versions

FORMULATIONS = ("plain",)
SCHEDULE_MODES = ("templates", "synthesize")
SYNTHESIS_LIMIT_S = 60.0
"""Time for synthesised schedules where the user sets no limit."""
SYNTHESIS_SHARE = 0.25
"""Most of a time limit that synthesised schedules get."""
PROGRESS_INTERVAL_S = 0.25
DEFAULT_WORKERS = 4
"""Search workers of the prover: a small portfolio, also on fewer cores."""
PROVER = "cp-sat"
"""The engine that closes cases: it reasons in exact integers."""
INEXACT_SLACK = 50
"""Engines with tolerances may look for the winner up to one part in so many above its Z."""
WINNER_LIMIT_S = 120.0
"""Time for the chosen engine to confirm the winning case."""
DIVE_PAIRS = 4
"""Pairs of schedule and option that are tried per sample."""
DIVE_OPS = 20_000
"""Samples whose templates have more ops are left out."""
DIVE_SAMPLES = 1000
"""Cases that are bounded to choose what to try."""
DIVE_TRIES = 400
"""Samples that are tried."""
CLIMB_TRIES = 1000
"""Neighbours of the incumbent that are tried."""

_LAST_STEP = 3
"""Steps of a single case: quick bounds, full bounds, plans, then paths and the model."""

TieKey = tuple[int, int, Degrees]


@dataclass(order=True)
class _Node:
    """An open box; ``step`` counts what has been done to a single case."""

    bound_us: int
    serial: int
    box: Box = field(compare=False)
    step: int = field(compare=False, default=0)
    rule: str = field(compare=False, default="work")


@dataclass
class _Incumbent:
    """The best checked plan so far."""

    time_us: int
    layout: Layout

    @property
    def key(self) -> TieKey:
        """Tie order: fewest crossings, fewest GPUs, smallest degrees."""
        degrees = self.layout.degrees
        return self.layout.crossings, degrees.gpus, degrees


def _varied(samples: list[tuple[int, int, CaseChoices]]) -> Iterator[tuple[int, CaseChoices]]:
    """Samples, the best of every microbatch size first, then the second best, and so on."""
    rank: dict[int, int] = {}
    keyed = []
    for least, serial, choices in sorted(samples, key=lambda sample: sample[:2]):
        size = choices.co.degrees.micro_batch_size
        rank[size] = rank.get(size, 0) + 1
        keyed.append((rank[size], least, serial, choices))
    for _, least, _, choices in sorted(keyed, key=lambda entry: entry[:3]):
        yield least, choices


def _num_ops(choices: CaseChoices) -> int:
    degrees = choices.co.degrees
    return 2 * choices.co.num_microbatches * degrees.pp * degrees.virtual_stages


class _OutOfTimeError(Exception):
    """The time limit has passed."""


class Search:
    """One search; use :func:`solve`."""

    def __init__(
        self,
        instance: Instance,
        *,
        time_limit_s: float | None,
        gap: float,
        backend: str,
        seed: int,
        workers: int,
        progress: Callable[[Progress], None] | None,
        start_plans: Sequence[Plan] = (),
    ) -> None:
        self.instance = instance
        self.start_plans = start_plans
        self.problem = Problem(instance)
        self.bounds = Bounds(self.problem)
        self.tree = Tree(self.problem, self.bounds)
        self.began = time.monotonic()
        self.deadline = None if time_limit_s is None else self.began + time_limit_s
        self.gap = gap
        self.backend = backend
        self.seed = seed
        self.workers = workers
        self.progress = progress
        self.serial = count()
        self.heap: list[_Node] = []
        self.closed: list[dict[str, Any]] = []
        self.cases_total = 0
        self.cases_done = 0
        self.incumbent: _Incumbent | None = None
        self.incumbents: list[_Incumbent] = []
        """All that were the best at their time, in that order."""
        self.floor_us = INFEASIBLE
        """Least bound of the cases that were given up without a verdict."""
        self.models: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self.notes: list[str] = []
        self._last_report = 0.0

    # -- bookkeeping -----------------------------------------------------------------------

    def synthesize(self, time_limit_s: float) -> SynthesizedSchedule | None:
        """Synthesise schedules for the placements of the answer and of the last incumbents.

        Of plans with the same degrees the best counts.
        """
        if self.incumbent is None:
            return None
        chosen = {self.incumbent.layout.degrees: self.incumbent}
        for candidate in reversed(self.incumbents):
            if candidate.layout.degrees.pp > 1:
                chosen.setdefault(candidate.layout.degrees, candidate)
        with EnginePool() as engines:
            return synthesize_for_plans(
                self.problem,
                [(plan.time_us, plan.layout) for plan in chosen.values()],
                engines.engine(PROVER),
                time_limit_s=time_limit_s,
                workers=self.workers,
                seed=self.seed,
                on_progress=lambda makespan_us, bound_us: self._report(
                    f"synthesising a schedule, {makespan_us} µs, bound {bound_us} µs"
                ),
            )

    def _report(self, phase: str, *, found_new: bool = False) -> None:
        now = time.monotonic()
        if self.progress is None or (
            not found_new and now - self._last_report < PROGRESS_INTERVAL_S
        ):
            return
        self._last_report = now
        self.progress(
            Progress(
                self.cases_total,
                self.cases_done,
                self.incumbent.time_us if self.incumbent else None,
                self.lower_bound(),
                now - self.began,
                phase,
                found_new,
            )
        )

    def lower_bound(self) -> int:
        """No plan of the space has a smaller Z, in µs."""
        values = [self.floor_us]
        if self.heap:
            values.append(self.heap[0].bound_us)
        if self.incumbent is not None:
            values.append(self.incumbent.time_us)
        return min(values)

    def _check_time(self) -> None:
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise _OutOfTimeError

    def _close(self, box: Box, verdict: str, rule: str, **numbers: Any) -> None:
        cases = self.tree.cases(box)
        self.cases_done += cases
        self.closed.append(
            {"box": box.to_json(), "cases": cases, "verdict": verdict, "rule": rule, **numbers}
        )

    def _push(self, box: Box, verdict: Closed | int, *, step: int = 0, rule: str = "work") -> None:
        if isinstance(verdict, Closed):
            self._close(verdict.box, verdict.verdict, verdict.rule)
        else:
            heapq.heappush(self.heap, _Node(verdict, next(self.serial), box, step, rule))

    def _offer(self, layout: Layout, time_us: int) -> None:
        """Take a plan if it beats the incumbent and the full checker accepts it."""
        best = self.incumbent
        candidate = _Incumbent(time_us, layout)
        if best is not None and (best.time_us, best.key) <= (time_us, candidate.key):
            return
        self._check(candidate)
        self.incumbent = candidate
        self.incumbents.append(candidate)
        self._report("searching", found_new=True)

    def _check(self, candidate: _Incumbent) -> None:
        """Raise RuntimeError unless the full checker accepts a plan at its price."""
        report = check_plan(self.instance, to_plan(self.problem, candidate.layout))
        if not report.feasible or report.time_us != candidate.time_us:
            reasons = "; ".join(f"{v.rule}: {v.message}" for v in report.violations)
            raise RuntimeError(
                f"internal disagreement: a plan priced at {candidate.time_us} µs is checked as "
                f"{report.time_us} µs ({reasons or 'accepted'})"
            )

    def _decided(self, node: _Node) -> bool:
        """Whether no plan of a box can take the incumbent's place."""
        best = self.incumbent
        if best is None:
            return False
        if node.bound_us != best.time_us:
            return node.bound_us > best.time_us
        return (0, *node.box.first) >= best.key

    # -- the search ------------------------------------------------------------------------

    def run(self) -> None:
        """Open boxes in the order of their bounds until the incumbent is proven."""
        for box in self.tree.shapes():
            self.cases_total += self.tree.cases(box)
            self._push(box, self.tree.examine(box))
        with EnginePool() as engines:
            self.prover = self._solver(engines.engine(PROVER))
            self._offer_starts()
            self._dive()
            while self.heap:
                self._check_time()
                self._report("searching")
                node = self.heap[0]
                if self._decided(node):
                    if node.bound_us > (self.incumbent.time_us if self.incumbent else 0):
                        break
                    heapq.heappop(self.heap)
                    self._close(node.box, "bounded", node.rule, bound_us=node.bound_us)
                    continue
                if self._within_gap():
                    break
                heapq.heappop(self.heap)
                try:
                    self._open(node)
                except BaseException:
                    heapq.heappush(self.heap, node)
                    raise
            self._settle_winner(self._solver(engines.engine(self.backend)))
        self._close_rest()

    def _offer_starts(self) -> None:
        """Take the best of the given plans that are plans of this instance."""
        for plan in self.start_plans:
            violations, layout = layout_violations(self.problem, plan)
            if violations or layout is None:
                continue
            price = price_layout(
                self.problem, case_coefficients(self.problem, layout.degrees), layout
            )
            if not memory_violations(price.memory):
                self._offer(layout, price.time_us)

    def _solver(self, engine: Engine) -> CaseSolver:
        workers = self.workers if engine.backend == PROVER else 1
        return CaseSolver(self.problem, engine, workers=workers, seed=self.seed)

    def _within_gap(self) -> bool:
        best = self.incumbent
        return (
            best is not None
            and self.gap > 0
            and best.time_us - self.lower_bound() <= self.gap * best.time_us
        )

    def _close_rest(self) -> None:
        """Boxes that were never opened are closed by their bounds."""
        best = self.incumbent
        while self.heap:
            node = heapq.heappop(self.heap)
            proven = best is not None and self._decided(node)
            if not proven:
                self.floor_us = min(self.floor_us, node.bound_us)
            self._close(
                node.box,
                "bounded" if proven else "open",
                node.rule,
                bound_us=node.bound_us,
            )

    def _open(self, node: _Node) -> None:
        if not node.box.single:
            if self._bounded_as_one(node):
                return
            for box, verdict in self.tree.children(node.box):
                bound = verdict if isinstance(verdict, Closed) else max(verdict, node.bound_us)
                self._push(box, bound)
            return
        choices = CaseChoices(self.problem, case_coefficients(self.problem, node.box.case))
        if choices.empty or not choices.possible_kinds:
            rule = "schedule" if choices.empty else "placement_kind"
            self._close(node.box, "infeasible", rule)
            return
        bounds = CaseBounds(self.bounds, choices)
        values = self._judge(node.step, choices, bounds)
        least = min(values.values())
        if least.value_us >= INFEASIBLE:
            self._close(node.box, "infeasible", least.rule)
            return
        bound = max(node.bound_us, least.value_us)
        if node.step < _LAST_STEP - 1:
            self._push(node.box, bound, step=node.step + 1, rule=least.rule)
        elif node.step == _LAST_STEP - 1:
            self._try_heuristics(choices, bounds)
            self._push(node.box, bound, step=_LAST_STEP, rule=least.rule)
        elif bound > node.bound_us:
            self._push(node.box, bound, step=_LAST_STEP, rule=least.rule)
        else:
            self._solve_case(node, choices, values, bound)

    def _judge(
        self, step: int, choices: CaseChoices, bounds: CaseBounds
    ) -> dict[tuple[ScheduleChoice, Option], ChoiceBound]:
        """Bounds of all pairs of schedule and option of a case, stronger from step to step."""
        if step == 0:
            return {pair: bounds.quick(*pair) for pair in choices.pairs}
        if step < _LAST_STEP:
            return {pair: bounds.choice(*pair) for pair in choices.pairs}
        beyond = INFEASIBLE if self.incumbent is None else self.incumbent.time_us
        return {pair: bounds.template(*pair, beyond) for pair in choices.pairs}

    def _bounded_as_one(self, node: _Node) -> bool:
        """Try to close all shard degrees of one (pp, v, dp) at once; True where that is enough."""
        box = node.box
        whole = len(box.dp) == len(box.virtual_stages) == len(box.pp) == 1
        if not whole or node.step or self.incumbent is None:
            return False
        shards = self.tree.legal_shards(box)
        if not shards:
            self._close(box, "infeasible", "ep.groups")
            return True
        bound = self.bounds.chunks(
            box.shape,
            box.pp[0],
            box.virtual_stages[0],
            box.dp[0],
            shards,
            self.incumbent.time_us,
        )
        if bound >= INFEASIBLE:
            self._close(box, "infeasible", "memory")
        else:
            self._push(box, max(bound, node.bound_us), step=1, rule="paths")
        return True

    def _try_heuristics(
        self, choices: CaseChoices, bounds: CaseBounds, max_pairs: int | None = None
    ) -> None:
        cutoff = None if self.incumbent is None else self.incumbent.time_us
        for found in case_plans(choices, bounds, cutoff, max_pairs):
            self._check_time()
            self._report("searching")
            if found is not None:
                self._offer(found[1], found[0])

    def _dive(self) -> None:
        """A first incumbent: the constructive search on sampled cases with the smallest bounds."""
        samples: list[tuple[int, int, CaseChoices]] = []
        looked_at = 0
        for node in self._varied_shapes():
            self._check_time()
            if looked_at > DIVE_SAMPLES:
                break
            for box, verdict in self.tree.children(node.box):
                if isinstance(verdict, Closed):
                    continue
                for case in self.tree.samples(box):
                    looked_at += 1
                    found = self._promise(case)
                    if found is not None:
                        samples.append((found[0], len(samples), found[1]))
        tries = 0
        for least, choices in _varied(samples):
            best = self.incumbent
            if tries >= DIVE_TRIES:
                break
            if best is not None and least >= best.time_us:
                continue
            tries += 1
            self._try_heuristics(choices, CaseBounds(self.bounds, choices), DIVE_PAIRS)
        self._climb()

    def _varied_shapes(self) -> list[_Node]:
        """Open shapes, the best of every (tp, ep) first, then the second best, and so on."""
        rank: dict[tuple[int, int], int] = {}
        keyed = []
        for node in sorted(self.heap):
            group = (node.box.shape.tp, node.box.shape.ep)
            rank[group] = rank.get(group, 0) + 1
            keyed.append((rank[group], node.bound_us, node.serial, node))
        return [entry[-1] for entry in sorted(keyed, key=lambda entry: entry[:3])]

    def _promise(self, case: Degrees) -> tuple[int, CaseChoices] | None:
        """Bound and alternatives of a case that is worth a try."""
        choices = CaseChoices(self.problem, case_coefficients(self.problem, case))
        if choices.empty or _num_ops(choices) > DIVE_OPS:
            return None
        bounds = CaseBounds(self.bounds, choices)
        least = min(bounds.choice(*pair).value_us for pair in choices.pairs)
        return None if least >= INFEASIBLE else (least, choices)

    def _climb(self) -> None:
        """Improve the incumbent by changing one degree at a time."""
        seen: set[Degrees] = set()
        before: int | None = None
        while self.incumbent is not None and self.incumbent.time_us != before:
            before = self.incumbent.time_us
            for case in self.tree.neighbours(self.incumbent.layout.degrees):
                self._check_time()
                if len(seen) > CLIMB_TRIES:
                    return
                if case in seen:
                    continue
                seen.add(case)
                found = self._promise(case)
                if found is not None and found[0] < self.incumbent.time_us:
                    bounds = CaseBounds(self.bounds, found[1])
                    self._try_heuristics(found[1], bounds, DIVE_PAIRS)

    def _solve_case(
        self,
        node: _Node,
        choices: CaseChoices,
        values: dict[tuple[ScheduleChoice, Option], ChoiceBound],
        bound: int,
    ) -> None:
        """Solve a case as a model by the prover, up to the incumbent's Z."""
        best = self.incumbent
        cutoff = longest_us(choices) if best is None else best.time_us
        kept = [pair for pair, value in values.items() if value.value_us <= cutoff]
        start = best.layout if best and best.layout.degrees == node.box.case else None
        outcome = self.prover.solve(
            choices.only(kept),
            cutoff,
            floor_us=bound,
            deadline=self.deadline,
            start=start,
            on_plan=self._offer,
        )
        self._record(node.box.case, outcome, cutoff)
        if outcome.status is EngineStatus.ERROR or outcome.limit is Limit.MEMORY:
            self.errors.append(outcome.message)
        proven = outcome.bound_us > cutoff or outcome.status is EngineStatus.OPTIMAL
        if proven:
            self._close(
                node.box,
                "solved",
                "model",
                value_us=outcome.time_us,
                bound_us=min(outcome.bound_us, outcome.time_us or outcome.bound_us),
                engine=outcome.engine,
                trusted=outcome.trusted,
                rounds=outcome.rounds,
            )
            return
        self.floor_us = min(self.floor_us, max(bound, outcome.bound_us))
        self._close(
            node.box, "open", "model", bound_us=max(bound, outcome.bound_us), engine=outcome.engine
        )

    def _record(
        self, case: Degrees, outcome: CaseOutcome, cutoff: int, *, winner: bool = False
    ) -> None:
        self.models.append(
            {
                "case": case._asdict(),
                "winner": winner,
                "status": outcome.status.name,
                "cutoff_us": cutoff,
                "value_us": outcome.time_us,
                "bound_us": outcome.bound_us,
                "rounds": outcome.rounds,
                "engine": outcome.engine,
                "trusted": outcome.trusted,
                "wall_time_s": round(outcome.wall_time_s, 3),
                **outcome.size,
            }
        )

    def _settle_winner(self, solver: CaseSolver) -> None:
        """Solve the winning case as a model by the chosen engine: Z, then the fewest crossings."""
        best = self.incumbent
        if best is None or self.lower_bound() < best.time_us:
            return
        case = best.layout.degrees
        choices = CaseChoices(self.problem, case_coefficients(self.problem, case))
        bounds = CaseBounds(self.bounds, choices)
        kept = [p for p in choices.pairs if bounds.choice(*p).value_us <= best.time_us]
        self._report("solving the winning case")
        exact = solver.engine.backend == PROVER
        outcome = solver.solve(
            choices.only(kept),
            best.time_us if exact else best.time_us + best.time_us // INEXACT_SLACK,
            deadline=self._winner_deadline(),
            start=best.layout,
            on_plan=self._offer,
        )
        self._record(case, outcome, best.time_us, winner=True)
        if outcome.time_us is not None and outcome.time_us < best.time_us:
            self.errors.append(
                f"the model found Z = {outcome.time_us} µs in a case that was closed at "
                f"{best.time_us} µs"
            )
        elif outcome.status is not EngineStatus.OPTIMAL:
            self.notes.append(
                f"{outcome.engine} did not confirm the winning case: {outcome.status.name} "
                f"{outcome.message}".strip()
            )
        tied = CaseSolver(self.problem, self.prover.engine, workers=1, seed=self.seed)
        outcome = tied.fewest_crossings(
            choices.only(kept), best.time_us, deadline=self._winner_deadline()
        )
        if outcome.layout is not None and outcome.layout.crossings <= best.layout.crossings:
            tied_plan = _Incumbent(best.time_us, self._plain_protocols(outcome.layout))
            self._check(tied_plan)
            self.incumbent = tied_plan

    def _plain_protocols(self, layout: Layout) -> Layout:
        """The same plan with the fastest protocol on every link, where Z stays as it is."""
        co = case_coefficients(self.problem, layout.degrees)
        protocols = best_protocols(self.problem, co, layout)
        if protocols is None:
            return layout
        plain = layout._replace(protocols=protocols)
        same = time_of_layout(self.problem, co, plain) <= time_of_layout(self.problem, co, layout)
        return plain if same else layout

    def _winner_deadline(self) -> float:
        """The search's deadline, or the time that the confirmation of a proven plan may take."""
        own = time.monotonic() + WINNER_LIMIT_S
        return own if self.deadline is None else min(own, self.deadline)


def solve(
    instance: Instance,
    *,
    time_limit_s: float | None = None,
    gap: float = 0.0,
    backend: str = "auto",
    formulation: str = "plain",
    heuristic: bool = False,
    certify: bool = False,
    schedule: str = "templates",
    seed: int = 0,
    workers: int = DEFAULT_WORKERS,
    progress: Callable[[Progress], None] | None = None,
    start_plans: Sequence[Plan] = (),
) -> SolveResult:
    """Find the plan with the shortest iteration and prove that nothing in the space beats it.

    Parameters
    ----------
    instance
        The training job.
    time_limit_s
        Wall time after which the best plan and the bound so far are returned; None = none.
    gap
        Stop as soon as (Z − bound) ÷ Z is at most this.
    backend
        ``auto``, ``cp-sat``, ``cbc`` or ``highs``.
    formulation
        ``plain``.
    heuristic
        Reserved; the search is the same with and without it.
    certify
        Reserved; the certificate is the same with and without it.
    schedule
        ``templates``: the schedules of the plan space; ``synthesize``: also op tables of their own
        for the placement found, reported beside the plan.  They take a quarter of the time limit.
    seed, workers
        Passed to the engine.
    progress
        Called now and then with the state of the search.
    start_plans
        Plans from anywhere, such as those of similar instances.  Those that are plans of this
        instance start the search; the others are left out.

    Returns
    -------
    SolveResult
        Also where the search is interrupted (KeyboardInterrupt) or out of time.

    Raises
    ------
    ValueError
        If an argument is out of range or names an unknown formulation.
    """
    if formulation not in FORMULATIONS:
        raise ValueError(f"unknown formulation {formulation!r}; known: {', '.join(FORMULATIONS)}")
    if schedule not in SCHEDULE_MODES:
        raise ValueError(f"unknown schedule {schedule!r}; known: {', '.join(SCHEDULE_MODES)}")
    if gap < 0 or (time_limit_s is not None and not time_limit_s > 0):
        raise ValueError("time_limit_s must be positive and gap not negative")
    reserved = SYNTHESIS_LIMIT_S
    if schedule == "synthesize" and time_limit_s is not None:
        reserved = min(reserved, SYNTHESIS_SHARE * time_limit_s)
        time_limit_s -= reserved
    search = Search(
        instance,
        time_limit_s=time_limit_s,
        gap=gap,
        backend=select_backend(backend),
        seed=seed,
        workers=workers,
        progress=progress,
        start_plans=start_plans,
    )
    limit: str | None = None
    try:
        search.run()
    except _OutOfTimeError:
        limit = "time"
        search._close_rest()
    except KeyboardInterrupt:
        limit = "interrupt"
        search._close_rest()
    result = _result(search, limit)
    if schedule == "synthesize" and limit != "interrupt":
        return _with_synthesis(result, search, reserved)
    return result


def _with_synthesis(result: SolveResult, search: Search, time_limit_s: float) -> SolveResult:
    """Add a synthesised schedule to an answer that has a plan."""
    try:
        found = search.synthesize(time_limit_s)
    except KeyboardInterrupt:
        return replace(
            result,
            status=SolveStatus.INTERRUPTED,
            reason="interrupted before a schedule was synthesised; " + result.reason,
            limit="interrupt",
        )
    if found is not None and found.limit == "interrupt":
        result = replace(
            result,
            status=SolveStatus.INTERRUPTED,
            reason="interrupted while a schedule was synthesised; " + result.reason,
            limit="interrupt",
        )
    return replace(result, synthesized=found)


def _result(search: Search, limit: str | None) -> SolveResult:
    best = search.incumbent
    bound = min(search.floor_us, best.time_us if best else INFEASIBLE)
    certificate = {
        "cases": search.closed,
        "cases_total": search.cases_total,
        "grade": _grade(search.closed),
    }
    provenance = {
        "versions": versions(),
        "backend": search.backend,
        "seed": search.seed,
        "workers": search.workers,
        "wall_time_s": round(time.monotonic() - search.began, 3),
        "cases_by_verdict": _tally(search.closed),
        "models": search.models,
        "errors": search.errors,
        "notes": search.notes,
    }
    if best is None:
        return _without_plan(search, limit, certificate, provenance)
    co = case_coefficients(search.problem, best.layout.degrees)
    price = price_layout(search.problem, co, best.layout)
    if profiles := profiles_of_layout(search.problem, co, best.layout):
        provenance["profile"] = profile_uses_to_json(profiles)
    simulated_us, notes = simulated_answer(
        search.problem,
        best.layout,
        best.time_us,
        [(c.layout, c.time_us) for c in search.incumbents],
    )
    search.notes += notes
    proven = bound == best.time_us and not search.errors
    if limit == "interrupt":
        status, reason = SolveStatus.INTERRUPTED, "interrupted; the plan is checked"
    elif proven:
        status, reason = SolveStatus.OPTIMAL, "no plan of the space has a smaller Z"
    else:
        status = SolveStatus.FEASIBLE
        reason = {
            "time": "time limit; the plan is checked, the bound is not met",
            None: _why_open(search),
        }[limit]
    return SolveResult(
        instance=search.instance,
        status=status,
        reason=reason,
        limit=limit,
        plan=to_plan(search.problem, best.layout),
        time_us=best.time_us,
        bound_us=bound,
        breakdown_us=price.breakdown_us,
        memory=price.memory,
        certificate=certificate,
        provenance=provenance,
        simulated_us=simulated_us,
    )


def _without_plan(
    search: Search, limit: str | None, certificate: dict[str, Any], provenance: dict[str, Any]
) -> SolveResult:
    open_cases = any(c["verdict"] == "open" for c in search.closed)
    reason = f"no plan found; {_why_open(search)}"
    status = SolveStatus.NO_SOLUTION
    if limit == "interrupt":
        status, reason = SolveStatus.INTERRUPTED, "interrupted before a plan was found"
    elif not open_cases and not search.errors:
        status = SolveStatus.INFEASIBLE
        reason, evidence = explain_infeasibility(search.problem, search.tree, search.bounds)
        provenance["infeasibility"] = evidence
        if evidence.get("rule") == "none":
            search.errors.append(reason)
            status = SolveStatus.NO_SOLUTION
    bound = search.floor_us if search.floor_us < INFEASIBLE else None
    return SolveResult(
        search.instance, status, reason, limit, None, None, bound, {}, (), certificate, provenance
    )


def _why_open(search: Search) -> str:
    if search.errors:
        return f"some cases have no verdict, the solver failed: {search.errors[0]}"
    return "the asked gap is reached" if search.gap else "some cases have no verdict"


def _grade(closed: list[dict[str, Any]]) -> str:
    """What the verdicts rest on: ``open`` where some box has none."""
    verdicts = {entry["verdict"] for entry in closed}
    if "open" in verdicts:
        return "open"
    return "engine" if "solved" in verdicts else "re-derived"


def _tally(closed: list[dict[str, Any]]) -> dict[str, int]:
    result: dict[str, int] = {}
    for entry in closed:
        result[entry["verdict"]] = result.get(entry["verdict"], 0) + entry["cases"]
    return result


__all__ = ["solve"]
