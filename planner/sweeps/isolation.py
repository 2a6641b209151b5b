"""Points solved by a supervisor process, which a crash, a hang or a kill replaces."""

from __future__ import annotations

import threading
import time

from planner.backends import frames
from planner.backends.child import Child, ChildLostError, ChildTimeoutError
from planner.sweeps.task import Failure, Result, Task, failure

START_LIMIT_S = 120.0
"""Time for a supervisor to start."""
END_WAIT_S = 5.0
"""Time for a supervisor to end its point."""


class StoppedError(Exception):
    """The supervisor was closed during a point."""


class Supervisor:
    """Solves one point at a time, each in a process group of its own.

    ``solve`` runs in one thread; ``close`` may be called from any.
    """

    def __init__(self) -> None:
        self._child: Child | None = None
        self._closed = False
        self._lock = threading.Lock()

    def solve(self, task: Task) -> Result:
        """Solve a point; whatever happens to its processes is a result.

        Raises
        ------
        StoppedError
            If the supervisor is closed before the result is there.
        """
        try:
            child = self._started()
            outgoing = memoryview(frames.encode(task))
            while True:
                outgoing, messages = child.exchange(outgoing, None)
                for _, *content in messages:
                    result: Result = content[0]
                    return result
        except (ChildLostError, ChildTimeoutError) as error:
            return self._lost(task, error)

    def close(self) -> None:
        """End the supervisor with the point that it works on."""
        with self._lock:
            self._closed = True
            child = self._child
        if child is not None:
            child.terminate(END_WAIT_S)
            child.end()

    def _started(self) -> Child:
        with self._lock:
            if self._closed:
                raise StoppedError
            if self._child is not None:
                return self._child
            child = self._child = Child("planner.sweeps.supervisor")
        deadline = time.monotonic() + START_LIMIT_S
        messages: list[object] = []
        while not messages:
            _, messages = child.exchange(memoryview(b""), deadline)
        return child

    def _lost(self, task: Task, error: Exception) -> Result:
        with self._lock:
            child, self._child = self._child, None
            if self._closed or child is None:
                raise StoppedError from error
        if isinstance(error, ChildTimeoutError):
            child.end()
            return failure(task.key, Failure.ERROR, f"no solver started in {START_LIMIT_S:g} s")
        reason, output = child.post_mortem()
        last = output.strip().splitlines()[-1:]
        return failure(task.key, Failure.CRASHED, ": ".join([reason, *last]))
