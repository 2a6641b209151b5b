"""Find the op table of one pipeline with the least makespan: bound, lists, model, neighbourhoods.

The steps stop as soon as the best table meets the lower bound.  Every table is evaluated and
checked by :mod:`planner.pipeline.op_table`; an engine only proposes orders and bounds.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from formulations.schedule import Window, build_schedule, time_window, whole
from planner.backends import Engine, EngineOptions, EngineResult, SolveStatus
from planner.pipeline.op_table import (
    OpTable,
    ScheduleProblem,
    Timeline,
    evaluate,
    violations,
)
from planner.pipeline.schedule_bound import ScheduleBound, schedule_bound
from planner.search.synthesis.list_scheduling import (
    Class,
    keys_by_kind,
    latest_starts,
    list_schedule,
)
from planner.search.synthesis.periodic import unrolled

MAX_MODEL_OPS = 1200
"""Ops of the largest pipeline that is modelled as a whole."""
WHOLE_SHARE = 0.6
"""Share of the time left that the model of the whole pipeline may take."""
WINDOW_OPS = 240
"""Ops of a window at the start; windows grow where they find nothing."""
WINDOW_LIMIT_S = 10.0
"""Time for one window."""
PATIENCE = (0.0, 0.5, 1.0)
"""Degrees of waiting on purpose that list scheduling tries."""
SHORT_ROUNDS = 4
"""Microbatches, in devices, of the short pipeline whose cycle is repeated."""
MEMORY_LIMIT_BYTES = 6 << 30
"""Address space of a solver."""

Proof = Literal["re-derived", "engine", "open"]

OnProgress = Callable[[int, int], None]
"""Called with the makespan of the best table and the bound, µs."""


@dataclass
class Synthesis:
    """The best op table found, and what is known of the others.

    Attributes
    ----------
    problem, timeline
        The pipeline, and the best table with its starts.
    bound_us, rule
        No table has a smaller makespan; what the bound rests on.
    bound_engine
        Version of the engine that gave the bound, None where it is re-derived without one.
    method
        What found the table.
    limit
        ``time``, ``interrupt`` or None.
    steps
        Every improvement: method, makespan in µs, seconds since the start.
    errors
        Contradictions of an engine; with one its bounds count for nothing.
    """

    problem: ScheduleProblem
    timeline: Timeline
    bound_us: int
    rule: str
    method: str
    began: float
    bound_engine: str | None = None
    limit: str | None = None
    wall_time_s: float = 0.0
    steps: list[tuple[str, int, float]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def makespan_us(self) -> int:
        """End of the iteration, µs."""
        return self.timeline.makespan

    @property
    def proven(self) -> bool:
        """Whether no table is faster."""
        return self.makespan_us == self.bound_us

    @property
    def proof(self) -> Proof:
        """What the optimality rests on: integers alone, an engine, or nothing yet."""
        if not self.proven:
            return "open"
        return "re-derived" if self.bound_engine is None else "engine"

    @property
    def gap(self) -> float:
        """(makespan − bound) ÷ makespan."""
        return (self.makespan_us - self.bound_us) / self.makespan_us if self.makespan_us else 0.0


class _OutOfTimeError(Exception):
    """The time limit has passed."""


class _DoneError(Exception):
    """The wanted gap is reached."""


def synthesize(
    problem: ScheduleProblem,
    *,
    engine: Engine | None = None,
    time_limit_s: float | None = 60.0,
    gap: float = 0.0,
    workers: int = 4,
    seed: int = 0,
    starts: Iterable[tuple[str, OpTable]] = (),
    on_progress: OnProgress | None = None,
) -> Synthesis:
    """Find a fast op table for a pipeline, with a lower bound on all of them.

    Parameters
    ----------
    problem
        The pipeline.
    engine
        Engine with ``Feature.SCHEDULING``; None = heuristics and the bound alone.
    time_limit_s
        Wall time; list scheduling in one pass is not cut short.
    gap
        Stop as soon as (makespan − bound) ÷ makespan is at most this.
    workers, seed
        For the engine.
    starts
        Named tables to begin with; those that do not fit the problem or its memory are left out.
    on_progress
        Called with every better table or bound.

    Returns
    -------
    Synthesis
        Also when interrupted (KeyboardInterrupt), with the best checked table.
    """
    run = _Run(problem, time_limit_s, gap, workers, seed, on_progress)
    try:
        run.heuristics(starts)
        if engine is not None:
            run.model(engine)
            run.neighbourhoods(engine)
    except _DoneError:
        pass
    except _OutOfTimeError:
        run.best.limit = "time"
    except KeyboardInterrupt:
        run.best.limit = "interrupt"
    run.best.wall_time_s = time.monotonic() - run.best.began
    return run.best


class _Run:
    def __init__(
        self,
        problem: ScheduleProblem,
        time_limit_s: float | None,
        gap: float,
        workers: int,
        seed: int,
        on_progress: OnProgress | None,
    ) -> None:
        began = time.monotonic()
        self.problem = problem
        self.deadline = None if time_limit_s is None else began + time_limit_s
        self.gap = gap
        self.workers = workers
        self.seed = seed
        self.on_progress = on_progress
        self.bound: ScheduleBound = schedule_bound(problem)
        first = self._checked(list_schedule(problem, _tail_keys(problem, self.bound)))
        self.best = Synthesis(
            problem, first, self.bound.value, self.bound.rule, "list: tails, 0", began
        )
        self.best.steps.append((self.best.method, first.makespan, time.monotonic() - began))

    # -- bookkeeping -----------------------------------------------------------------------

    def _left(self) -> float | None:
        """Seconds left; raises where there are none."""
        if self.deadline is None:
            return None
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise _OutOfTimeError
        return left

    def _stop_if_done(self) -> None:
        if self.best.gap <= self.gap:
            raise _DoneError
        self._left()

    def _checked(self, table: OpTable) -> Timeline:
        timeline = evaluate(self.problem, table)
        faults = violations(self.problem, timeline)
        if faults:
            raise RuntimeError(
                f"internal disagreement: a proposed op table is refused: {faults[0]}"
            )
        return timeline

    def _offer(self, method: str, table: OpTable) -> bool:
        """Take a table if it is better and the checker accepts it."""
        if evaluate(self.problem, table).makespan >= self.best.makespan_us:
            return False
        timeline = self._checked(table)
        best = self.best
        if timeline.makespan < self.bound.value:
            raise RuntimeError(
                f"internal disagreement: a checked op table of {timeline.makespan} µs is below the "
                f"bound of {self.bound.value} µs"
            )
        if timeline.makespan < best.bound_us:
            self._distrust(
                f"{best.bound_engine} claims that nothing is below {best.bound_us} µs; a checked "
                f"table has {timeline.makespan} µs"
            )
        best.timeline, best.method = timeline, method
        best.steps.append((method, timeline.makespan, time.monotonic() - best.began))
        self._report()
        return True

    def _raise_bound(self, value: int, engine: str) -> None:
        best = self.best
        if value > best.bound_us and not best.errors:
            best.bound_us, best.rule, best.bound_engine = value, "model", engine
            self._report()

    def _distrust(self, fault: str) -> None:
        """Note a contradiction of the engine, and go back to the bound that needs none."""
        best = self.best
        best.errors.append(fault)
        best.bound_us, best.rule, best.bound_engine = self.bound.value, self.bound.rule, None

    def _report(self) -> None:
        if self.on_progress is not None:
            self.on_progress(self.best.makespan_us, self.best.bound_us)

    # -- heuristics ------------------------------------------------------------------------

    def heuristics(self, starts: Iterable[tuple[str, OpTable]]) -> None:
        """Given tables, list scheduling by several rules, repeated cycles of a short pipeline."""
        for name, table in starts:
            self._stop_if_done()
            if not self._refused(table):
                self._offer(name, table)
        for method, table in self._lists():
            self._stop_if_done()
            if self._offer(method, table):
                self._justify()
        for method, table in self._cycles():
            self._stop_if_done()
            self._offer(method, table)

    def _refused(self, table: OpTable) -> bool:
        try:
            return bool(violations(self.problem, evaluate(self.problem, table)))
        except ValueError:
            return True

    def _lists(self) -> Iterator[tuple[str, OpTable]]:
        problem = self.problem
        for name, keys in _rules(problem, self.bound):
            for patience in PATIENCE:
                yield f"list: {name}, {patience:g}", list_schedule(problem, keys, patience=patience)

    def _justify(self) -> None:
        """List scheduling by the latest starts of the best table, as long as that helps."""
        better = True
        while better:
            self._stop_if_done()
            keys = latest_starts(self.problem, self.best.timeline)
            better = any(
                self._offer(
                    f"list: justified, {patience:g}",
                    list_schedule(self.problem, keys, patience=patience),
                )
                for patience in PATIENCE
            )

    def _cycles(self) -> Iterator[tuple[str, OpTable]]:
        """Tables that repeat a cycle of a pipeline with fewer microbatches."""
        count = SHORT_ROUNDS * self.problem.num_devices
        if self.problem.num_microbatches <= 2 * count:
            return
        for extra in range(4):
            short = replace(self.problem, num_microbatches=count + extra)
            keys = _tail_keys(short, schedule_bound(short))
            for patience in PATIENCE:
                timeline = evaluate(short, list_schedule(short, keys, patience=patience))
                for table in unrolled(self.problem, timeline):
                    yield "cycle of a short pipeline", table

    # -- engine ----------------------------------------------------------------------------

    def model(self, engine: Engine) -> None:
        """Model the whole pipeline, if it is small enough; its bound holds for all tables."""
        self._stop_if_done()
        if self.problem.num_ops > MAX_MODEL_OPS:
            return
        left = self._left()
        window = whole(self.problem, self.bound, self.best.timeline)
        result = self._solve(engine, window, None if left is None else left * WHOLE_SHARE)
        if result.trusted and result.bound is not None:
            if result.bound <= self.best.makespan_us:
                self._raise_bound(result.bound, result.engine_version)
            else:
                self._distrust(
                    f"{result.engine_version} claims that nothing is below {result.bound} µs; a "
                    f"checked table has {self.best.makespan_us} µs"
                )
        self._stop_if_done()

    def neighbourhoods(self, engine: Engine) -> None:
        """Model one window after the other; larger ones where no window of a size helps."""
        size = min(WINDOW_OPS, self.problem.num_ops)
        order = random.Random(self.seed)
        while size < min(MAX_MODEL_OPS, self.problem.num_ops):
            before = self.best.makespan_us
            begins = list(range(0, self.problem.num_ops, size // 2))
            order.shuffle(begins)
            for first in begins:
                self._stop_if_done()
                moments = sorted(s for row in self.best.timeline.starts for s in row)
                last = min(first + size, len(moments) - 1)
                window = time_window(
                    self.problem,
                    self.bound,
                    self.best.timeline,
                    moments[min(first, len(moments) - 1)],
                    moments[last] + (last == len(moments) - 1),
                )
                left = self._left()
                limit = WINDOW_LIMIT_S if left is None else min(WINDOW_LIMIT_S, left)
                self._solve(engine, window, limit)
            if self.best.makespan_us == before:
                size *= 2

    def _solve(self, engine: Engine, window: Window, limit_s: float | None) -> EngineResult:
        """Let the engine order the ops of a window; take its table where it is not worse."""
        best = self.best
        built = build_schedule(self.problem, window, lower=best.bound_us, upper=best.makespan_us)
        result = engine.solve(
            built.model,
            EngineOptions(
                time_limit_s=limit_s,
                memory_limit_bytes=MEMORY_LIMIT_BYTES,
                workers=self.workers,
                seed=self.seed,
                hint=built.hint(best.timeline),
            ),
        )
        if result.status is SolveStatus.ERROR:
            self._distrust(result.message)
        if result.values is not None:
            table = built.table(result.values, best.timeline.table.rows)
            if not self._offer(result.engine_version, table):
                same = self._checked(table)
                if same.makespan == best.makespan_us:
                    best.timeline = same
        return result


def _tail_keys(problem: ScheduleProblem, bound: ScheduleBound) -> dict[Class, list[int]]:
    """The op with the longest way to the end goes first."""
    return {
        cls: [-(tail + problem.duration(*cls)) for tail in tails.tolist()]
        for cls, tails in bound.tails.items()
    }


def _rules(
    problem: ScheduleProblem, bound: ScheduleBound
) -> Iterator[tuple[str, dict[Class, list[int]]]]:
    """Urgencies by name."""
    yield "tails", _tail_keys(problem, bound)
    for order in ("BFW", "FBW"):
        yield order, keys_by_kind(problem, order)
