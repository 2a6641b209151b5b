"""Engines: a backend in a long-lived child process that may crash, hang or be killed."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from formulations.algebra import Model
from planner.backends import frames
from planner.backends.base import (
    BackendUnavailableError,
    EngineOptions,
    ProgressCallback,
)
from planner.backends.child import Child, ChildLostError, ChildTimeoutError, Program
from planner.backends.memory_limit import has_memory_limit, is_memory_text
from planner.backends.registry import is_preloaded, select_backend
from planner.backends.result import Claim, EngineResult, Limit, settle


class Engine:
    """A backend in a child process; use it as a context manager.

    The child starts with the first solve, serves any number of solves, and is replaced
    after a crash, a hang or an interrupt.  One engine runs one solve at a time.

    Args:
        backend: A name of `available_backends`, "auto", or an import path
            ``module:class``.
        grace_s: Seconds that the solver may overrun its time limit before it is killed.
        start_limit_s: Seconds that the child may take to start.

    Attributes:
        interrupted_result: After a KeyboardInterrupt (or an error of the progress
            callback) out of `solve`: the best checked plan of that solve, with status
            INTERRUPTED.
    """

    def __init__(
        self, backend: str = "auto", *, grace_s: float = 5.0, start_limit_s: float = 120.0
    ) -> None:
        self.backend = backend
        self.grace_s = grace_s
        self.start_limit_s = start_limit_s
        self.interrupted_result: EngineResult | None = None
        self._child: Child | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._solving_thread: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def child_pid(self) -> int | None:
        """Process and group id of the child, if there is one."""
        return None if self._child is None else self._child.pid

    def start(self) -> None:
        """Start the child now, so that the first solve does not wait for imports.

        Raises:
            BackendUnavailableError: The backend is missing or does not start.
        """
        with self._lock:
            self._started()

    def close(self) -> None:
        """End the child, also during a solve: from another thread or the callback."""
        self._closed = True
        child = self._child
        if child is not None:
            child.kill()
        if self._solving_thread != threading.get_ident():
            with self._lock:
                self._stop()

    def solve(
        self,
        model: Model,
        options: EngineOptions | None = None,
        on_progress: ProgressCallback | None = None,
    ) -> EngineResult:
        """Solve a model; a crash, a kill, a hang or lack of memory is a result too.

        Args:
            model: The model; the caller keeps it unchanged during the solve.
            options: Options; None stands for no limit and one worker.
            on_progress: Called in this thread with (objective, bound, values) at each
                better plan or bound, if the backend has `Feature.PROGRESS`.

        Raises:
            KeyboardInterrupt: After the solve was killed; see `interrupted_result`.
            Exception: What ``on_progress`` raises, after the solve was killed.
        """
        options = options or EngineOptions()
        with self._lock:
            self.interrupted_result = None
            start = time.perf_counter()
            best = _Best()

            def checked(claim: Claim) -> EngineResult:
                elapsed = time.perf_counter() - start
                return settle(model, options, claim, engine=self.backend, wall_time_s=elapsed)

            try:
                self._solving_thread = threading.get_ident()
                answer = self._answer(model, options, best, on_progress)
            except BaseException:
                self._stop()
                self.interrupted_result = checked(best.claim(limit=Limit.INTERRUPT))
                raise
            finally:
                self._solving_thread = None
                if self._closed:
                    self._stop()
            return checked(answer) if isinstance(answer, Claim) else answer

    def _answer(
        self,
        model: Model,
        options: EngineOptions,
        best: _Best,
        on_progress: ProgressCallback | None,
    ) -> EngineResult | Claim:
        """Return the result of the child, or a claim about its failure."""
        try:
            child = self._started()
            best.engine_version, best.exact = child.engine_version, child.exact
            hint = None if options.hint is None else dict(options.hint)
            request = frames.encode((replace(options, hint=hint), pickle.dumps(model, protocol=5)))
        except BackendUnavailableError as error:
            return Claim(failure=str(error), refused=True)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            return Claim(failure=f"the model cannot be sent to the solver: {error}", refused=True)
        try:
            return self._converse(child, request, options, best, on_progress)
        except ChildTimeoutError:
            output = child.output_tail()
            self._stop()
            return best.claim(
                limit=Limit.TIME,
                message=f"the solver overran its time limit by {self.grace_s:g} s and was killed",
                log=output,
            )
        except ChildLostError:
            return self._lost(child, options, best)

    def _converse(
        self,
        child: Child,
        request: bytes,
        options: EngineOptions,
        best: _Best,
        on_progress: ProgressCallback | None,
    ) -> EngineResult | Claim:
        deadline = None
        if options.time_limit_s is not None:
            deadline = time.monotonic() + options.time_limit_s + self.grace_s
        outgoing = memoryview(request)
        while True:
            outgoing, messages = child.exchange(outgoing, deadline)
            for tag, *content in messages:
                if tag == frames.PROGRESS:
                    best.update(*content)
                    if on_progress is not None:
                        on_progress(best.objective, best.bound, best.values)
                elif tag == frames.RESULT:
                    result: EngineResult = content[0]
                    return result
                elif tag == frames.OUT_OF_MEMORY:
                    self._stop()
                    return best.claim(limit=Limit.MEMORY, message=content[0])
                else:
                    return best.claim(failure=content[0])

    def _lost(self, child: Child, options: EngineOptions, best: _Best) -> Claim:
        if self._closed:
            return best.claim(limit=Limit.INTERRUPT, message="the engine was closed")
        reason, output = child.post_mortem()
        self._child = None
        limited = options.memory_limit_bytes is not None or has_memory_limit()
        if limited and is_memory_text(output):
            message = f"the memory limit was reached: {reason}"
            return best.claim(limit=Limit.MEMORY, message=message, log=output)
        return best.claim(failure=reason, log=output)

    def _started(self) -> Child:
        """Return the running child, or start one.

        Raises:
            BackendUnavailableError: The backend is missing or does not start.
        """
        if self._closed:
            raise BackendUnavailableError("the engine is closed")
        if self._child is not None:
            if self._child.is_silent():
                return self._child
            self._stop()
        if ":" not in self.backend:
            self.backend = select_backend(self.backend)
        child = self._child = Child(_program(self.backend), self.backend)
        try:
            messages = _receive(child, time.monotonic() + self.start_limit_s)
        except ChildTimeoutError as error:
            self._stop()
            raise BackendUnavailableError(
                f"backend {self.backend!r} did not start in {self.start_limit_s:g} s"
            ) from error
        except ChildLostError as error:
            reason, output = child.post_mortem()
            self._child = None
            raise BackendUnavailableError(
                f"backend {self.backend!r} did not start: {reason}; {output.strip()}"
            ) from error
        except BaseException:
            self._stop()
            raise
        tag, *content = messages[0]
        if tag != frames.READY:
            self._stop()
            raise BackendUnavailableError(content[0])
        child.engine_version, child.exact = content
        return child

    def _stop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end()


class EnginePool:
    """Engines by backend, each started once and kept; use it as a context manager.

    Args:
        grace_s: See `Engine`.
        start_limit_s: See `Engine`.
    """

    def __init__(self, *, grace_s: float = 5.0, start_limit_s: float = 120.0) -> None:
        self._make: Callable[[str], Engine] = lambda backend: Engine(
            backend, grace_s=grace_s, start_limit_s=start_limit_s
        )
        self._engines: dict[str, Engine] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def engine(self, backend: str = "auto") -> Engine:
        """Return the engine of a backend.

        Raises:
            BackendUnavailableError: "auto" finds no installed backend.
        """
        name = select_backend() if backend == "auto" else backend
        if name not in self._engines:
            self._engines[name] = self._make(name)
        return self._engines[name]

    def close(self) -> None:
        """End all engines."""
        for engine in self._engines.values():
            engine.close()
        self._engines.clear()


class _Best:
    """The best plan and bound that a child streamed."""

    def __init__(self) -> None:
        self.objective: int | None = None
        self.bound: int | None = None
        self.values: tuple[int, ...] | None = None
        self.engine_version = ""
        self.exact = False

    def update(
        self, objective: int | None, bound: int | None, values: tuple[int, ...] | None
    ) -> None:
        """Take over a progress report; values come only with a new plan."""
        self.objective = objective
        self.bound = bound
        if values is not None:
            self.values = values

    def claim(
        self, *, limit: Limit = Limit.NONE, failure: str = "", message: str = "", log: str = ""
    ) -> Claim:
        """Return a claim of what is known although the child gave no result."""
        return Claim(
            values=self.values,
            bound=self.bound,
            limit=limit,
            failure=failure,
            exact=self.exact,
            engine_version=self.engine_version,
            message=message,
            log=log,
        )


def _program(backend: str) -> Program:
    """The worker as a copy of this process where that has the solver, else as a new one."""
    if not is_preloaded(backend):
        return "planner.backends.worker"
    from planner.backends.worker import main

    return main


def _receive(child: Child, deadline: float) -> list[Any]:
    """Return the next messages of a child that has nothing to be told."""
    messages: list[Any] = []
    while not messages:
        _, messages = child.exchange(memoryview(b""), deadline)
    return messages
