"""Sweeps as a whole: what is missing is solved, kept and put into the table."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from planner.instance.errors import InputError
from planner.report.output import write_atomically
from planner.sweeps.executors import Executor, LocalExecutor
from planner.sweeps.load import LoadedSweep, load_sweep
from planner.sweeps.neighbours import PlanBook
from planner.sweeps.points import Point, code_versions, expand, in_shard
from planner.sweeps.store import Store
from planner.sweeps.table import Column, Row, columns, csv_text, parquet_bytes, rows
from planner.sweeps.task import SOLVE_POINT, Result, Task, has_failed, task_of


@dataclass(frozen=True)
class SweepProgress:
    """State of a running sweep.

    ``done`` and ``total`` count the solves of this run, ``kept`` the results that were there,
    ``failed`` the points of this run without a sound answer.
    """

    done: int
    total: int
    kept: int
    failed: int
    elapsed_s: float

    @property
    def rate_per_s(self) -> float | None:
        """Points per second; None before the first one."""
        return self.done / self.elapsed_s if self.done and self.elapsed_s > 0 else None

    @property
    def left_s(self) -> float | None:
        """Seconds that the rest will take at this rate."""
        rate = self.rate_per_s
        return None if rate is None else (self.total - self.done) / rate


@dataclass(frozen=True)
class SweepResult:
    """The table of a sweep.

    Attributes
    ----------
    rows
        A row per point whose result is there, as ``docs/sweeps.md`` describes.
    columns
        Name and type of every column.
    missing
        Points without a result: those of other shards, or after an interrupt.
    interrupted
        Whether a KeyboardInterrupt ended the sweep.
    files
        What was written.
    notes
        What is worth a line for the user.
    """

    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    missing: int
    interrupted: bool
    files: tuple[Path, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def statuses(self) -> dict[str, int]:
        """Rows by status."""
        return dict(Counter(str(row["status"]) for row in self.rows))

    @property
    def failed(self) -> int:
        """Rows without a sound answer."""
        return sum(bool(row["failed"]) for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Counts, files and notes."""
        return {
            "rows": len(self.rows),
            "statuses": self.statuses,
            "failed": self.failed,
            "missing": self.missing,
            "interrupted": self.interrupted,
            "files": [str(path) for path in self.files],
            "notes": list(self.notes),
        }


Shard = tuple[int, int]
"""Number of the shard from 1, and how many there are."""


def sweep(
    source: str | Path | Mapping[str, Any],
    folder: str | Path,
    *,
    workers: int = 1,
    scheduler: str | None = None,
    local_cluster: int | None = None,
    shard: Shard = (1, 1),
    retry_failed: bool = False,
    progress: Callable[[SweepProgress], None] | None = None,
    function: str = SOLVE_POINT,
) -> SweepResult:
    """Solve the points of a sweep that have no result yet, and write the table.

    Parameters
    ----------
    source
        A path, the name of a shipped sweep, or the parsed JSON object.
    folder
        Where results are kept; made where it is missing.
    workers
        Points side by side on this machine.
    scheduler
        Address of a Dask scheduler whose workers solve the points in place of this process.
    local_cluster
        So many Dask workers are started on this machine and solve the points.
    shard
        ``(i, n)``: only the points of part i of n.
    retry_failed
        Solve failed points again.
    progress
        Called now and then.
    function
        What the process of a point runs, ``module:function`` from a task to a result.

    Returns
    -------
    SweepResult
        Also where the sweep is interrupted (KeyboardInterrupt).

    Raises
    ------
    InputError
        If the sweep is not valid or the folder cannot be written.
    OutputError
        If a result cannot be written, such as on a full disk; no file is half-written.
    ClusterError
        If the cluster has no workers or is lost.
    """
    loaded = load_sweep(source)
    points = expand(loaded)
    store = Store(Path(folder))
    store.write_sweep(_description(loaded, points))
    run = _Run(loaded, points, store, shard, retry_failed, function)
    interrupted = False
    try:
        if run.todo:
            with closing(_executor(workers, scheduler, local_cluster)) as executor:
                run.solve_missing(executor, progress)
    except KeyboardInterrupt:
        interrupted = True
    return _tabulated(run, interrupted)


def _executor(workers: int, scheduler: str | None, local_cluster: int | None) -> Executor:
    """Where the points are solved."""
    if scheduler is None and local_cluster is None:
        return LocalExecutor(workers)
    from planner.sweeps.cluster import connect, start_local

    return start_local(local_cluster or 1) if scheduler is None else connect(scheduler)


class _Run:
    """The points to solve, and the results so far."""

    def __init__(
        self,
        loaded: LoadedSweep,
        points: Sequence[Point],
        store: Store,
        shard: Shard,
        retry_failed: bool,
        function: str,
    ) -> None:
        self.loaded = loaded
        self.points = points
        self.store = store
        self.function = function
        self.book = PlanBook()
        self.by_key: dict[str, list[Point]] = {}
        for point in points:
            if point.refusal is None:
                self.by_key.setdefault(point.key, []).append(point)
        self.todo: deque[Point] = deque()
        self.kept = 0
        for key, same in self.by_key.items():
            result = store.read(key)
            if result is not None and not (retry_failed and has_failed(result)):
                self.kept += 1
                self._enter(result)
            elif in_shard(key, *shard):
                self.todo.append(same[0])

    def _enter(self, result: Result) -> None:
        for point in self.by_key[result["key"]]:
            self.book.add(point, result)

    def solve_missing(
        self, executor: Executor, progress: Callable[[SweepProgress], None] | None
    ) -> None:
        """Keep the executor busy until every point has its result."""
        began, total, done, failed, running = time.monotonic(), len(self.todo), 0, 0, 0
        while self.todo or running:
            while self.todo and running < executor.slots:
                executor.submit(self._task(self.todo.popleft()))
                running += 1
            for result in executor.finished():
                running -= 1
                done += 1
                failed += has_failed(result)
                self.store.write(result)
                self._enter(result)
            if progress is not None:
                elapsed = time.monotonic() - began
                progress(SweepProgress(done, total, self.kept, failed, elapsed))

    def _task(self, point: Point) -> Task:
        sweep = self.loaded.sweep
        task = task_of(point, sweep)
        near = self.book.near(point) if sweep.reuse_plans else ()
        return replace(task, start_plans=near, function=self.function)


def _description(loaded: LoadedSweep, points: Sequence[Point]) -> dict[str, Any]:
    """What ``sweep.json`` holds."""
    sweep = loaded.sweep
    return {
        "sweep": sweep.model_dump(mode="json", by_alias=True, exclude_unset=True),
        "axes": [
            {
                "name": axis.name,
                "label": axis.label or axis.name,
                "unit": axis.unit,
                "values": list(axis.points),
                "labels": None if axis.labels is None else list(axis.labels),
            }
            for axis in sweep.plain_axes
        ],
        "variants": list(sweep.variants),
        "num_points": len(points),
        "versions": code_versions(),
    }


def _tabulated(run: _Run, interrupted: bool) -> SweepResult:
    """Write the table of all results in the folder."""
    axes = run.loaded.sweep.plain_axes
    head = columns(axes)
    notes = []
    files = [run.store.csv_path]
    with run.store.locked():
        results = {key: result for key in run.by_key if (result := run.store.read(key)) is not None}
        table = rows(run.points, results, axes)
        write_atomically(run.store.csv_path, csv_text(table, head))
        parquet = parquet_bytes(table, head)
        if parquet is None:
            run.store.parquet_path.unlink(missing_ok=True)
            notes.append(
                "no Parquet file: pyarrow is not installed; "
                "run: pip install 'scaleacross-planner[sweep]'"
            )
        else:
            write_atomically(run.store.parquet_path, parquet)
            files.append(run.store.parquet_path)
    return SweepResult(
        rows=tuple(table),
        columns=tuple(head),
        missing=len(run.points) - len(table),
        interrupted=interrupted,
        files=tuple(files),
        notes=tuple(notes),
    )


def parse_shard(text: str) -> Shard:
    """``i/n`` as numbers.

    Raises
    ------
    InputError
        If it is something else.
    """
    first, _, second = text.partition("/")
    if first.isascii() and first.isdigit() and second.isascii() and second.isdigit():
        shard, shards = int(first), int(second)
        if 1 <= shard <= shards <= 100_000:
            return shard, shards
    raise InputError("--shard", f"expected i/n with i from 1 to n, such as 1/4, got '{text}'")
