"""Progress on standard error: a live line on a terminal, else a line now and then."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TextIO

from planner.report.units import duration, percent, rough_time

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar

    from planner.search.result import Progress
    from planner.sweeps.run import SweepProgress

SECONDS_BETWEEN_LINES = 5.0
"""Pause between two lines where standard error is not a terminal."""


class Reporter(Protocol):
    """Shows progress while it is entered as a context."""

    def __enter__(self) -> Self:
        """Begin to show."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Remove what was shown on a terminal."""
        ...

    def __call__(self, progress: Progress) -> None:
        """Show the state of the search."""
        ...


def reporter(stream: TextIO | None) -> Reporter:
    """Return the reporter that suits a stream."""
    if stream is not None and stream.isatty():
        from rich.console import Console

        console = Console(file=stream, highlight=False, markup=False)
        if not console.is_dumb_terminal:
            return _Live(console)
    return _Lines(stream)


def progress_line(progress: Progress) -> str:
    """Return the state of the search as one line without the time."""
    best = "none" if progress.best_us is None else duration(progress.best_us)
    gap = "unknown" if progress.gap is None else percent(progress.gap)
    return (
        f"{progress.phase}: {progress.cases_done:,} of {progress.cases_total:,} cases, "
        f"best {best}, bound {duration(progress.bound_us)}, gap {gap}"
    )


class _Lines:
    """Plain lines, at most one every few seconds."""

    def __init__(self, stream: TextIO | None, pause_s: float = SECONDS_BETWEEN_LINES) -> None:
        self._stream = stream
        self._pause_s = pause_s
        self._next = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if self._stream is None or now < self._next:
            return
        self._next = now + self._pause_s
        with contextlib.suppress(OSError):
            print(
                f"[{progress.elapsed_s:.1f} s] {progress_line(progress)}",
                file=self._stream,
                flush=True,
            )


class _Live:
    """One line that is redrawn and disappears at the end."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._bar: Bar = Progress(
            SpinnerColumn(),
            TimeElapsedColumn(),
            BarColumn(bar_width=12),
            TextColumn("{task.description}", markup=False),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task("reading", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def __call__(self, progress: Progress) -> None:
        self._bar.update(
            self._task,
            description=progress_line(progress),
            total=progress.cases_total or None,
            completed=progress.cases_done,
        )


@contextlib.contextmanager
def sweep_reporter(stream: TextIO | None) -> Iterator[Callable[[SweepProgress], None]]:
    """Show a sweep as a bar on a terminal, else as a line every few seconds.

    Yields a function of the state of the sweep.
    """
    if stream is None or not stream.isatty():
        yield _SweepLines(stream)
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TimeElapsedColumn(), BarColumn(), TextColumn("{task.description}", markup=False))
    with Bar(*columns, console=Console(file=stream), transient=True) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda state: bar.update(
            task, description=sweep_line(state), total=state.total or None, completed=state.done
        )


def sweep_line(state: SweepProgress) -> str:
    """Return the state of a sweep as one line without the time."""
    parts = [f"{state.done:,} of {state.total:,} points"]
    if state.kept:
        parts.append(f"{state.kept:,} kept")
    if state.rate_per_s is not None and state.left_s is not None:
        parts += [f"{60 * state.rate_per_s:.1f} a minute", f"{rough_time(state.left_s)} left"]
    parts.append(f"{state.failed:,} failed")
    return ", ".join(parts)


class _SweepLines:
    """Plain lines, at most one every few seconds."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._next = 0.0

    def __call__(self, state: SweepProgress) -> None:
        now = time.monotonic()
        if self._stream is None or now < self._next:
            return
        self._next = now + SECONDS_BETWEEN_LINES
        with contextlib.suppress(OSError):
            print(f"[{state.elapsed_s:.1f} s] {sweep_line(state)}", file=self._stream, flush=True)


@contextlib.contextmanager
def counter(stream: TextIO | None, label: str) -> Iterator[Callable[[int, int], None]]:
    """A bar for work with a known number of steps; silent where ``stream`` is no terminal.

    Yields a function of the steps done and the number of steps.
    """
    if stream is None or not stream.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(file=stream), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
