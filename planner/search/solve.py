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
from planner.cost.coefficients import case_coefficients
from planner.cost.collective_use import collective_uses, collective_uses_to_json
from planner.cost.profile_use import profile_uses_to_json
from planner.instance.schema import Instance
from planner.layout import Layout, to_plan
from planner.legality import layout_violations
from planner.plan import Degrees, Plan
from planner.problem import Problem
from planner.search.bounds import INFEASIBLE, Bounds, CaseBounds, ChoiceBound, Shape
from planner.search.case_solver import CaseOutcome, CaseSolver
from planner.search.case_solvers import CASE_SOLVERS, DEFAULT_FORMULATION, FORMULATIONS
from planner.search.cells import Cell, OpenCase, Pair
from planner.search.certificate import certificate
from planner.search.heuristic import best_protocols, case_plans
from planner.search.infeasibility import explain_infeasibility
from planner.search.longest import longest_us
from planner.search.neighbourhood import improve
from planner.search.result import Progress, SolveResult, SolveStatus
from planner.search.synthesis.plan_schedule import SynthesizedSchedule, synthesize_for_plans
from planner.search.template_bound import WholeLayersError, whole_layers_engine
from planner.search.testimony import Testimony, Word
from planner.search.tree import Box, Closed, Tree
from planner.simulation.simulate import simulated_answer
from planner.versions import versions

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
SECOND_ENGINE = "cbc"
"""The engine that is asked about a case that the prover has closed."""
INEXACT_SLACK = 50
"""Engines with tolerances may look for the winner up to one part in so many above its Z."""
WINNER_LIMIT_S = 120.0
"""Time for the chosen engine to confirm the winning case."""
DIVE_STEPS = 300
"""Steps over cells of a pipeline degree to choose where a first plan is looked for."""
DIVE_CELLS = 8
"""Cells of a pipeline degree in which a first plan is looked for, one of each shape and dp."""
WHOLE_LAYERS_LIMIT_S = 5.0
"""Time for one schedule and option with whole layers."""
MAX_FRUITLESS = 20
"""Cells in a row without a better plan after which only single cases are tried."""
DIVE_PLANS = 2
"""Cells of a pipeline degree that give a better plan."""
DIVE_CASES = 4
"""Cases of a cell that are tried."""
DIVE_PAIRS = 4
"""Pairs of schedule and option that are tried per case."""
SPLIT_CELLS = 48
"""Cells of which a pair is priced with an even split."""
SPLIT_PAIRS = 8
"""Pairs of schedule and option that are priced per cell."""
SPLIT_TRIES = 24
"""Pairs for which better splits are looked for, at most."""
SPLIT_PLANS = 3
"""Pairs whose split gives a better plan, at most."""
SPLITS_PRICED = 16
"""Splits that are priced per pair."""
DIVE_SITES = 16
"""With more sites the closed forms are dear: cells are chosen by their ramp, and tried again."""
DIVE_PRICED = 60
"""Plans of a case that are priced."""
DIVE_OPS = 20_000
"""Cases whose templates have more ops are left out."""

MAX_MODEL_MOVES = 4_000
"""Cases with more pairs of sites, times stages, get no model: building and solving it would take
more time and memory than a search of moderate size has."""
IMPROVE_FRUITLESS = 150
"""Neighbours of a plan in a row without a better one after which no more are looked at."""

TieKey = tuple[int, int, Degrees]


@dataclass(order=True)
class _Node:
    """An open box; ``case`` holds what is known of a box that is one case."""

    bound_us: int
    serial: int
    box: Box = field(compare=False)
    rule: str = field(compare=False, default="work")
    case: OpenCase | None = field(compare=False, default=None)
    step: int = field(compare=False, default=0)
    """What was done with a case: 1 plans were looked for, 2 bounded with whole layers."""
    derived: ChoiceBound | None = field(compare=False, default=None)
    """Where the bound rests on an engine: what follows from the instance alone."""

    @property
    def without(self) -> ChoiceBound:
        """The bound that follows from the instance alone."""
        return self.derived or ChoiceBound(self.bound_us, self.rule)

    def free(self) -> _Node:
        """The same without the word of an engine."""
        if self.derived is None or self.case is None:
            return self
        bound_us, rule = self.derived
        case = OpenCase(self.case.bounds, self.case.values)
        return replace(self, bound_us=bound_us, rule=rule, case=case, derived=None)


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
        formulation: str,
        seed: int,
        workers: int,
        progress: Callable[[Progress], None] | None,
        start_plans: Sequence[Plan] = (),
        certify: bool = False,
        heuristic: bool = False,
    ) -> None:
        self.instance = instance
        self.start_plans = start_plans
        self.certify = certify
        self.heuristic = heuristic
        self.problem = Problem(instance)
        self.bounds = Bounds(self.problem)
        self.tree = Tree(self.problem, self.bounds)
        self.began = time.monotonic()
        self.deadline = None if time_limit_s is None else self.began + time_limit_s
        self.gap = gap
        self.backend = backend
        self.formulation = formulation
        self.seed = seed
        self.workers = workers
        self.progress = progress
        self.serial = count()
        self.heap: list[_Node] = []
        self.cells: dict[Box, Cell] = {}
        self.fruitless = 0
        """Cells in a row that gave no better plan."""
        self.closed: list[dict[str, Any]] = []
        self.cases_total = 0
        self.cases_done = 0
        self.incumbent: _Incumbent | None = None
        self.incumbents: list[_Incumbent] = []
        """All that were the best at their time, in that order."""
        self.floor_us = INFEASIBLE
        """Least bound of the cases that were given up without a verdict."""
        self.models: list[dict[str, Any]] = []
        self.testimony = Testimony()
        self.errors: list[str] = []
        self.notes: list[str] = []
        self.left_open = 0
        """Cases that no model was built for."""
        self._improved: _Incumbent | None = None
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

    def _close(self, box: Box, verdict: str, rule: str, **numbers: Any) -> dict[str, Any]:
        cases = self.tree.cases(box)
        self.cases_done += cases
        entry = {"box": box.to_json(), "cases": cases, "verdict": verdict, "rule": rule, **numbers}
        self.closed.append(entry)
        return entry

    def _close_bounded(self, node: _Node, verdict: str) -> None:
        """Close a box by its bound; where only whole layers do, the engine is named."""
        free = node.free()
        if node.case is None or free.bound_us == node.bound_us:
            self._close(node.box, verdict, free.rule, bound_us=node.bound_us)
        elif verdict == "bounded" and self._decided(free):
            self._close(node.box, verdict, free.rule, bound_us=free.bound_us)
        else:
            engines = (whole_layers_engine(),)
            self._close_by_word(node, node.case, engines, verdict, "layers", node.bound_us)

    def _close_by_word(
        self,
        node: _Node,
        case: OpenCase,
        engines: tuple[str, ...],
        verdict: str,
        rule: str,
        bound_us: int,
        **numbers: Any,
    ) -> None:
        """Close a case by what engines say, and keep what holds without them."""
        engine = " and ".join(engines)
        entry = self._close(node.box, verdict, rule, bound_us=bound_us, engine=engine, **numbers)
        self.testimony.words.append(Word(entry, case, self._cutoff(case), engines, node.without))

    def _cutoff(self, case: OpenCase) -> int:
        """Largest Z of a plan of a case that is still wanted."""
        best = self.incumbent
        return longest_us(case.bounds.choices) if best is None else best.time_us

    def _caught(self, engines: Sequence[str], message: str) -> None:
        """Note a false word, and open again what rests on the engines it came from."""
        self.errors.append(f"{' and '.join(engines)}: {message}")
        opened_us = self.testimony.withdraw(engines)
        if opened_us is not None:
            self.floor_us = min(self.floor_us, opened_us)
        if whole_layers_engine() in engines:
            self.heap = [node.free() for node in self.heap]
            heapq.heapify(self.heap)

    def _push(self, box: Box, verdict: Closed | int, rule: str = "work", **known: Any) -> None:
        if isinstance(verdict, Closed):
            self._close(verdict.box, verdict.verdict, verdict.rule)
        else:
            heapq.heappush(self.heap, _Node(verdict, next(self.serial), box, rule, **known))

    def _offer(self, layout: Layout, time_us: int) -> None:
        """Take a plan if it beats the incumbent and the full checker accepts it.

        Engines that said there is none as good are not believed any more.
        """
        for word in self.testimony.price(layout, time_us):
            said = word.entry["bound_us"]
            if self.testimony.distrusted.isdisjoint(word.engines):
                self._caught(
                    word.engines,
                    f"said that nothing in a case is below {said} µs; a checked plan has "
                    f"{time_us} µs",
                )
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
        return (self._least_crossings(node), *node.box.first) >= best.key

    def _least_crossings(self, node: _Node) -> int:
        """Fewest crossings of any plan of a box that is a cell; 0 for larger ones."""
        if node.case is not None:
            return node.case.bounds.least_crossings
        cell = self.cells.get(node.box)
        if cell is None or not cell.cases:
            return 0
        return min(case.bounds.least_crossings for case in cell.cases)

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
            self._dive_splits()
            self._improve()
            while self.heap:
                self._check_time()
                self._report("searching")
                node = self.heap[0]
                if self._decided(node):
                    if node.bound_us > (self.incumbent.time_us if self.incumbent else 0):
                        break
                    heapq.heappop(self.heap)
                    self._close_bounded(node, "bounded")
                    continue
                if self._within_gap():
                    break
                heapq.heappop(self.heap)
                try:
                    self._open(node)
                except BaseException:
                    heapq.heappush(self.heap, node)
                    raise
            self._improve()
            self._settle_winner(engines)
            self._close_rest()
            if self.certify:
                self._second_witnesses(engines)

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
        solver = CASE_SOLVERS[self.formulation]
        return solver(self.problem, engine, workers=workers, seed=self.seed)

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
            self._close_bounded(node, "bounded" if proven else "open")

    def _open(self, node: _Node) -> None:
        if node.case is not None:
            self._open_case(node, node.case)
        elif node.box.cell:
            self._open_cell(node)
        else:
            for box, verdict in self.tree.children(node.box):
                bound = verdict if isinstance(verdict, Closed) else max(verdict, node.bound_us)
                self._push(box, bound)

    @property
    def _beyond_us(self) -> int:
        """Bounds above this close a case."""
        return INFEASIBLE - 1 if self.incumbent is None else self.incumbent.time_us

    def _open_cell(self, node: _Node) -> None:
        """Bound a cell more tightly; when there is nothing tighter, take it apart into cases."""
        cell = self._cell(node)
        if not cell.finished:
            if cell.step == Cell.CLOSED_FORMS and self.fruitless < MAX_FRUITLESS:
                self.fruitless = 0 if self._try_cell(cell) else self.fruitless + 1
            cell.refine(self._beyond_us)
            if cell.bound.value_us >= INFEASIBLE:
                self._close(node.box, "infeasible", cell.bound.rule)
            else:
                self._push(node.box, *cell.bound)
            return
        legal = set(self.tree.legal_shards(node.box))
        open_cases = {case.bounds.co.degrees: case for case in cell.cases}
        illegal, done = [], []
        for shard in self.tree.dp_shard(node.box.dp[0]):
            part = node.box._replace(dp_shard=(shard,))
            case = open_cases.get(part.case)
            if case is not None:
                least = case.least
                self._push(part, max(least.value_us, node.bound_us), least.rule, case=case)
            elif shard in legal:
                done.append(shard)
            else:
                illegal.append(shard)
        if illegal:
            part = node.box._replace(dp_shard=tuple(illegal))
            self._close(part, "infeasible", "ep.groups")
        if done:
            part = node.box._replace(dp_shard=tuple(done))
            if cell.dropped.value_us < INFEASIBLE:
                self._close(part, "bounded", cell.dropped.rule, bound_us=cell.dropped.value_us)
            else:
                self._close(part, "infeasible", cell.dropped.rule)

    def _open_case(self, node: _Node, case: OpenCase) -> None:
        """Look for plans of a case, bound it with whole layers, then solve it as a model."""
        derived = None
        if node.step == 0:
            self._try_heuristics(case)
            self._improve()
        elif self._without_model(case.bounds.choices):
            self._leave_open(node, case)
            return
        elif node.step == 1:
            if case.bounds.choices.fixed_layers is None:
                case = self._whole_layers(case)
                derived = node.without if case.layers else None
        else:
            self._solve_case(node, case)
            return
        least = case.least
        if least.value_us >= INFEASIBLE:
            self._close(node.box, "infeasible", least.rule)
            return
        bound = max(node.bound_us, least.value_us)
        self._push(node.box, bound, least.rule, case=case, step=node.step + 1, derived=derived)

    def _without_model(self, choices: CaseChoices) -> bool:
        """Whether plans and bounds alone are looked for in a case."""
        moves = choices.co.degrees.pp * len(self.problem.sites) ** 2
        return self.heuristic or moves > MAX_MODEL_MOVES

    def _leave_open(self, node: _Node, case: OpenCase) -> None:
        """Give a case up at its bound."""
        self.left_open += 1
        bound = max(node.bound_us, case.least.value_us)
        self.floor_us = min(self.floor_us, bound)
        self._close(node.box, "open", node.rule, bound_us=bound)

    def _improve(self) -> None:
        """Search around the incumbent, once for each."""
        best = self.incumbent
        if best is None or best is self._improved or not self._improves(best):
            return
        choices = CaseChoices(self.problem, case_coefficients(self.problem, best.layout.degrees))
        for found in improve(
            choices,
            best.layout,
            best.time_us,
            seed=self.seed,
            max_fruitless=IMPROVE_FRUITLESS,
        ):
            self._check_time()
            self._report("improving the plan")
            if found is not None:
                self._offer(found[1], found[0])
        self._improved = self.incumbent

    def _improves(self, best: _Incumbent) -> bool:
        """Whether no model will look at the case of a plan, so that a search around it pays."""
        degrees = best.layout.degrees
        if self.lower_bound() == best.time_us or self._within_gap():
            return False
        choices = CaseChoices(self.problem, case_coefficients(self.problem, degrees))
        return self._without_model(choices) and _num_ops(choices) <= DIVE_OPS

    def _whole_layers(self, case: OpenCase) -> OpenCase:
        """Bound the pairs of a case with whole layers, the best first; try the splits found.

        Where the engine is caught with a false word none of it is left.
        """
        engine = whole_layers_engine()
        layers: dict[Pair, ChoiceBound] = {}
        if engine in self.testimony.distrusted:
            return case
        for pair, bound in sorted(case.values.items(), key=lambda item: item[1]):
            self._check_time()
            self._report("searching")
            if bound.value_us > self._beyond_us:
                break
            limit = WHOLE_LAYERS_LIMIT_S
            if self.deadline is not None:
                limit = min(limit, max(0.1, self.deadline - time.monotonic()))
            try:
                found, split = case.bounds.whole_layers(*pair, self._beyond_us, limit)
            except WholeLayersError as error:
                self._caught([engine], str(error))
                return case
            if split is not None:
                self._try_heuristics(OpenCase(case.bounds, {pair: bound}), splits=[split])
            known_us = self.testimony.known_us(case.bounds.co.degrees, [pair])
            if known_us is not None and known_us < found.value_us:
                self._caught(
                    [engine],
                    f"says that nothing is below {found.value_us} µs; a checked plan has "
                    f"{known_us} µs",
                )
                return case
            if bound < found and found.value_us < INFEASIBLE:
                layers[pair] = found
        return case._replace(layers=layers)

    def _try_heuristics(
        self,
        case: OpenCase,
        max_pairs: int | None = None,
        splits: Sequence[tuple[int, ...]] = (),
        max_priced: int | None = None,
    ) -> None:
        cutoff = None if self.incumbent is None else self.incumbent.time_us
        priced = 0
        for found in case_plans(case.bounds.choices, case.values, cutoff, max_pairs, splits):
            self._check_time()
            self._report("searching")
            if found is not None:
                self._offer(found[1], found[0])
            elif priced == max_priced:
                break
            else:
                priced += 1

    def _dive(self) -> None:
        """A first incumbent: for each pipeline degree plans of the cells that look best."""
        heaps: dict[int, list[_Node]] = {}
        for shape in self.heap:
            for child in self._children(shape.box):
                heapq.heappush(heaps.setdefault(child.box.pp[0], []), child)
        many = len(self.problem.sites) > DIVE_SITES
        step = Cell.RAMP if many else Cell.CLOSED_FORMS
        for _, heap in sorted(heaps.items()):
            ready: list[_Node] = []
            for _ in range(DIVE_STEPS):
                if not heap or heap[0].bound_us >= self._beyond_us:
                    break
                node = self._deepen(heap, step)
                if node is not None:
                    ready.append(node)
            tried: set[tuple[Shape, tuple[int, ...]]] = set()
            successes = 0
            for node in sorted(ready):
                kind = node.box.shape, node.box.dp
                if node.bound_us >= self._beyond_us or len(tried) == DIVE_CELLS:
                    break
                if kind in tried:
                    continue
                tried.add(kind)
                successes += self._try_cell(self._cell(node))
                self._cell(node).tried = not many
                if successes == DIVE_PLANS:
                    break

    def _dive_splits(self) -> None:
        """Better plans: in the cells with the least bounds, splits that fit and have short paths.

        Balanced splits are poor where memory is short or chunks go round; the local search is
        dearer and better.
        """
        if len(self.problem.sites) > DIVE_SITES:
            return
        heap = [node for shape in self.heap for node in self._children(shape.box)]
        heapq.heapify(heap)
        estimates: list[tuple[float, int, CaseBounds, Pair]] = []
        ways: set[tuple[Box, ScheduleChoice, str]] = set()
        cells = 0
        while heap and heap[0].bound_us < self._beyond_us and cells < SPLIT_CELLS:
            node = self._deepen(heap, Cell.CLOSED_FORMS)
            if node is None or node.box.pp[0] == 1:
                continue
            known_before = len(estimates)
            for bound, case, pair in self._pairs(self._cell(node))[:SPLIT_PAIRS]:
                way = node.box, pair[0], pair[1].recompute
                if way in ways or bound.value_us >= self._beyond_us:
                    continue
                if _num_ops(case.choices) <= DIVE_OPS:
                    estimate = case.even_split(*pair)
                    if estimate is not None:
                        ways.add(way)
                        estimates.append((estimate, len(estimates), case, pair))
            cells += len(estimates) > known_before
        self._search_cell_splits()
        found = 0
        for _, _, case, pair in sorted(estimates, key=lambda item: item[:2])[:SPLIT_TRIES]:
            found += self._search_split(case, pair)
            if found == SPLIT_PLANS:
                break
        if found:
            self._search_cell_splits()

    def _search_cell_splits(self) -> None:
        """Better splits in the cell of the incumbent."""
        if self.incumbent is None:
            return
        best = self.incumbent.layout.degrees
        shape = Shape(best.tp, best.cp, best.ep, best.etp, best.micro_batch_size)
        cell = self.cells.get(Box(shape, (best.pp,), (best.virtual_stages,), (best.dp,)))
        if cell is None or best.pp == 1:
            return
        for bound, case, pair in self._pairs(cell)[:SPLIT_TRIES]:
            if bound.value_us < self._beyond_us and _num_ops(case.choices) <= DIVE_OPS:
                self._search_split(case, pair)

    def _search_split(self, case: CaseBounds, pair: Pair) -> bool:
        """Try the best split found for a pair; whether it gives a better plan."""
        self._check_time()
        self._report("searching")
        before = self.incumbent
        split = case.search_split(*pair, SPLITS_PRICED, self._beyond_us)
        if split is not None:
            known = OpenCase(case, {pair: case.choice(*pair)})
            self._try_heuristics(known, splits=[split])
        return self.incumbent is not before

    @staticmethod
    def _pairs(cell: Cell) -> list[tuple[ChoiceBound, CaseBounds, Pair]]:
        """The pairs of all cases of a cell, the smallest bound first."""
        pairs = [(b, case.bounds, pair) for case in cell.cases for pair, b in case.values.items()]
        return sorted(pairs, key=lambda item: item[0])

    def _children(self, box: Box) -> Iterator[_Node]:
        """The next finer boxes that no rule closes."""
        for child, bound in self.tree.children(box):
            if not isinstance(bound, Closed):
                yield _Node(bound, next(self.serial), child)

    def _deepen(self, heap: list[_Node], step: int) -> _Node | None:
        """Take the best node of a heap one step further; return it once it has come so far."""
        self._check_time()
        self._report("searching")
        node = heapq.heappop(heap)
        if not node.box.cell:
            for child in self._children(node.box):
                heapq.heappush(heap, child)
            return None
        cell = self._cell(node)
        if cell.step < step and not cell.finished:
            cell.refine(self._beyond_us)
            node = replace(node, bound_us=max(node.bound_us, cell.bound.value_us))
        if not cell.cases:
            return None
        if cell.step < step:
            heapq.heappush(heap, node)
            return None
        return node

    def _cell(self, node: _Node) -> Cell:
        """What is known of the cell of a node."""
        if node.box not in self.cells:
            self.cells[node.box] = Cell(self.tree, node.box, ChoiceBound(node.bound_us, node.rule))
        return self.cells[node.box]

    def _try_cell(self, cell: Cell) -> bool:
        """Look for plans of the most promising cases of a cell; whether one was the best so far."""
        before = self.incumbent
        if cell.tried:
            return False
        cell.tried = True
        for case in sorted(cell.cases, key=lambda case: case.least)[:DIVE_CASES]:
            if _num_ops(case.bounds.choices) <= DIVE_OPS:
                self._try_heuristics(case, DIVE_PAIRS, max_priced=DIVE_PRICED)
        return self.incumbent is not before

    def _solve_case(self, node: _Node, case: OpenCase) -> None:
        """Solve a case as a model by the prover, up to the incumbent's Z."""
        choices, bound, derived = case.bounds.choices, node.bound_us, node.without
        best, cutoff = self.incumbent, self._cutoff(case)
        open_pairs = [pair for pair, value in case.values.items() if value.value_us <= cutoff]
        kept = [pair for pair in open_pairs if case.standing(pair).value_us <= cutoff]
        if not kept:
            self._close_bounded(node, "bounded")
            return
        start = best.layout if best and best.layout.degrees == node.box.case else None
        outcome = self.prover.solve(
            choices.only(kept),
            cutoff,
            floor_us=bound,
            deadline=self.deadline,
            start=start,
            known_us=self.testimony.known_us(node.box.case, kept),
            on_plan=self._offer,
        )
        self._record(node.box.case, outcome, cutoff)
        engines: tuple[str, ...] = (outcome.engine,)
        if bound > derived.value_us or len(kept) < len(open_pairs):
            engines += (whole_layers_engine(),)
        if outcome.contradicted:
            self._caught(engines, outcome.message)
        elif outcome.status is EngineStatus.ERROR or outcome.limit is Limit.MEMORY:
            self.errors.append(outcome.message)
        believed = (
            outcome.status is not EngineStatus.ERROR
            and outcome.trusted
            and self.testimony.distrusted.isdisjoint(engines)
        )
        if believed and (outcome.bound_us > cutoff or outcome.status is EngineStatus.OPTIMAL):
            bound_us = min(outcome.bound_us, outcome.time_us or outcome.bound_us)
            self._close_by_word(
                node,
                case,
                engines,
                "solved",
                "model",
                bound_us,
                value_us=outcome.time_us,
                trusted=outcome.trusted,
                rounds=outcome.rounds,
            )
        elif believed and outcome.bound_us > derived.value_us:
            self.floor_us = min(self.floor_us, outcome.bound_us)
            self._close_by_word(node, case, engines, "open", "model", outcome.bound_us)
        else:
            self.floor_us = min(self.floor_us, derived.value_us)
            self._close(node.box, "open", derived.rule, bound_us=derived.value_us)

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

    def _second_witnesses(self, engines: EnginePool) -> None:
        """Ask another engine about every case that rests on one, as far as the time goes.

        Whole layers are HiGHS's word; there the prover solves the model of the case.
        """
        for word in list(self.testimony.words):
            if self.deadline is not None and time.monotonic() > self.deadline:
                break
            self._report("asking a second engine")
            said_us, degrees = word.entry["bound_us"], word.case.bounds.co.degrees
            backend = PROVER if word.entry["rule"] == "layers" else SECOND_ENGINE
            outcome = self._solver(engines.engine(backend)).solve(
                word.case.bounds.choices.only(word.pairs),
                word.cutoff_us,
                deadline=self._winner_deadline(),
                known_us=self.testimony.known_us(degrees, word.pairs),
                on_plan=self._offer,
            )
            self._record(degrees, outcome, word.cutoff_us)
            self._note_failure(outcome)
            if any(standing is word for standing in self.testimony.words):
                word.entry["second"] = {
                    "engine": outcome.engine,
                    "status": outcome.status.name,
                    "agrees": outcome.status is not EngineStatus.ERROR
                    and outcome.engine not in self.testimony.distrusted
                    and outcome.bound_us >= min(said_us, word.cutoff_us + 1),
                }

    def _note_failure(self, outcome: CaseOutcome) -> None:
        """Note that an engine on which the proof does not rest failed; else believe it no more."""
        if outcome.contradicted and self.testimony.rests_on(outcome.engine):
            self._caught([outcome.engine], outcome.message)
        elif outcome.status is EngineStatus.ERROR:
            self.notes.append(f"{outcome.engine} failed in a second look: {outcome.message}")

    def _settle_winner(self, engines: EnginePool) -> None:
        """Solve the winning case as a model by the chosen engine: Z, then the fewest crossings."""
        best = self.incumbent
        if best is None or self.lower_bound() < best.time_us:
            return
        case = best.layout.degrees
        choices = CaseChoices(self.problem, case_coefficients(self.problem, case))
        if self._without_model(choices):
            return
        solver = self._solver(engines.engine(self.backend))
        bounds = CaseBounds(self.bounds, choices)
        kept = [p for p in choices.pairs if bounds.choice(*p).value_us <= best.time_us]
        self._report("solving the winning case")
        exact = solver.engine.backend == PROVER
        outcome = solver.solve(
            choices.only(kept),
            best.time_us if exact else best.time_us + best.time_us // INEXACT_SLACK,
            deadline=self._winner_deadline(),
            start=best.layout,
            known_us=best.time_us,
            on_plan=self._offer,
        )
        self._record(case, outcome, best.time_us, winner=True)
        if self._is_beaten(best):
            return
        if outcome.contradicted and self.testimony.rests_on(outcome.engine):
            self._caught([outcome.engine], outcome.message)
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
            layout = self._plain_protocols(outcome.layout)
            tied_plan = _Incumbent(time_of_layout(self.problem, choices.co, layout), layout)
            if tied_plan.time_us < best.time_us:
                self._offer(layout, tied_plan.time_us)
                self._is_beaten(best)
                return
            self._check(tied_plan)
            self.incumbent = tied_plan

    def _is_beaten(self, best: _Incumbent) -> bool:
        """Whether a plan that was taken for the optimum is not; that is an error."""
        now = self.incumbent
        if now is None or now.time_us >= best.time_us:
            return False
        self.errors.append(
            f"the model found Z = {now.time_us} µs in a case that was closed at {best.time_us} µs"
        )
        return True

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
    formulation: str = DEFAULT_FORMULATION,
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
        How a case becomes models: ``plain``, one model of everything, ``strong``, one for each
        schedule and option, or ``auto``, by the number of its chunks.
    heuristic
        Build no model: plans come from construction and a search around them, the proof from bounds
        alone.  A case with more than :data:`MAX_MODEL_MOVES` is treated so anyway.
    certify
        Ask a second engine about every case that rests on one.
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
        formulation=formulation,
        seed=seed,
        workers=workers,
        progress=progress,
        start_plans=start_plans,
        certify=certify,
        heuristic=heuristic,
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
    if search.left_open:
        search.notes.append(
            f"{search.left_open} cases were left to bounds: "
            + ("--heuristic builds no model" if search.heuristic else "too large for a model")
        )
    proof = certificate(
        search.closed,
        search.cases_total,
        search.bounds.template_bounds,
        best.time_us if best else None,
    )
    provenance = {
        "versions": versions(),
        "backend": search.backend,
        "formulation": search.formulation,
        "seed": search.seed,
        "workers": search.workers,
        "wall_time_s": round(time.monotonic() - search.began, 3),
        "cases_by_verdict": _tally(search.closed),
        "models": search.models,
        "errors": search.errors,
        "notes": search.notes,
    }
    if best is None:
        return _without_plan(search, limit, proof, provenance)
    co = case_coefficients(search.problem, best.layout.degrees)
    price = price_layout(search.problem, co, best.layout)
    if profiles := profiles_of_layout(search.problem, co, best.layout):
        provenance["profile"] = profile_uses_to_json(profiles)
    if uses := collective_uses(co, best.layout):
        provenance["collectives"] = collective_uses_to_json(uses)
    simulated_us, notes = simulated_answer(
        search.problem,
        best.layout,
        best.time_us,
        [(c.layout, c.time_us) for c in search.incumbents],
    )
    search.notes += notes
    proven = bound == best.time_us and not search.errors and proof["grade"] != "open"
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
    reason = "; ".join(filter(None, (reason, search.testimony.summary())))
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
        certificate=proof,
        provenance=provenance,
        simulated_us=simulated_us,
        found=tuple((c.time_us, to_plan(search.problem, c.layout)) for c in search.incumbents),
    )


def _without_plan(
    search: Search, limit: str | None, proof: dict[str, Any], provenance: dict[str, Any]
) -> SolveResult:
    open_cases = any(c["verdict"] == "open" for c in search.closed)
    reason = f"no plan found; {_why_open(search)}"
    status = SolveStatus.NO_SOLUTION
    if limit == "interrupt":
        status, reason = SolveStatus.INTERRUPTED, "interrupted before a plan was found"
    elif not open_cases and not search.errors:
        status = SolveStatus.INFEASIBLE
        reason, evidence = explain_infeasibility(search.problem, search.tree, search.bounds)
        reason = "; ".join(filter(None, (reason, search.testimony.summary())))
        provenance["infeasibility"] = evidence
        if evidence.get("rule") == "none":
            search.errors.append(reason)
            status = SolveStatus.NO_SOLUTION
    bound = search.floor_us if search.floor_us < INFEASIBLE else None
    return SolveResult(
        search.instance, status, reason, limit, None, None, bound, {}, (), proof, provenance
    )


def _why_open(search: Search) -> str:
    if search.errors:
        return f"some cases have no verdict, the solver failed: {search.errors[0]}"
    return "the asked gap is reached" if search.gap else "some cases have no verdict"


def _tally(closed: list[dict[str, Any]]) -> dict[str, int]:
    result: dict[str, int] = {}
    for entry in closed:
        result[entry["verdict"]] = result.get(entry["verdict"], 0) + entry["cases"]
    return result


__all__ = ["solve"]
