"""Where points are solved: on this machine, or on a Dask cluster."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Protocol

from planner.sweeps.isolation import Supervisor
from planner.sweeps.task import Result, Task

WAIT_S = 0.5
"""Longest pause before the caller can look at the clock again."""


class Executor(Protocol):
    """Solves points side by side.

    Attributes
    ----------
    slots
        Points that are worth being under way at a time.
    """

    slots: int

    def submit(self, task: Task) -> None:
        """Begin a point."""
        ...

    def finished(self) -> Iterator[Result]:
        """Wait a moment for points and return those that have ended."""
        ...

    def close(self) -> None:
        """End all processes, also those of points under way."""
        ...


class LocalExecutor:
    """Points on this machine, one supervisor per worker."""

    def __init__(self, workers: int) -> None:
        self.slots = workers
        self._supervisors = [Supervisor() for _ in range(workers)]
        self._idle: queue.SimpleQueue[Supervisor] = queue.SimpleQueue()
        for supervisor in self._supervisors:
            self._idle.put(supervisor)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="point")
        self._running: set[Future[Result]] = set()

    def submit(self, task: Task) -> None:
        """Begin a point."""
        self._running.add(self._threads.submit(self._solve, task))

    def finished(self) -> Iterator[Result]:
        """Wait a moment for points and return those that have ended."""
        done, self._running = wait(self._running, timeout=WAIT_S, return_when=FIRST_COMPLETED)
        for future in done:
            yield future.result()

    def close(self) -> None:
        """End all processes, also those of points under way."""
        with ThreadPoolExecutor(len(self._supervisors)) as closers:
            list(closers.map(Supervisor.close, self._supervisors))
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _solve(self, task: Task) -> Result:
        supervisor = self._idle.get()
        try:
            return supervisor.solve(task)
        finally:
            self._idle.put(supervisor)
