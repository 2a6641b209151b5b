"""The child process of an engine: ``python -m planner.backends.worker``.

Two processes share one session.  The *guard* waits for the end of the planner (its end
of the request pipe closes) and then ends the whole process group and removes the
temporary folder; the *solver* runs the backend.  So neither a solver binary nor a file
outlives a planner that was killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import resource
import select
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.backends import frames
from planner.backends.base import Backend, EngineOptions, solve_here
from planner.backends.frames import FAILED, OUT_OF_MEMORY, PROGRESS, READY, RESULT
from planner.backends.memory_limit import set_memory_limit
from planner.backends.registry import load_backend

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_GUARD_POLL_MS = 1000


def main(arguments: list[str]) -> int:
    """Start the guard and the solver; arguments: backend, request and reply descriptors."""
    name, request, reply = arguments[0], int(arguments[1]), int(arguments[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    planner = os.getppid()
    guard = os.getpid()
    solver = os.fork()
    if solver == 0:
        die_with(guard)
        serve(name, request, reply)
        return 0
    os.close(reply)
    return _guard(planner, solver, request)


def serve(name: str, request: int, reply: int) -> None:
    """Answer requests until the request pipe closes."""
    try:
        backend = load_backend(name)
        backend.prepare()
    except Exception as error:  # noqa: BLE001
        frames.write(reply, (FAILED, str(error)))
        return
    frames.write(reply, (READY, backend.version(), backend.exact))
    while True:
        try:
            options, model = frames.read(request)
        except EOFError:
            return
        try:
            answer = _answer(backend, options, model, reply)
        except MemoryError:
            set_memory_limit(None)
            answer = (OUT_OF_MEMORY, "the memory limit was reached")
        except Exception as error:  # noqa: BLE001
            answer = (FAILED, f"{type(error).__name__}: {error}")
        frames.write(reply, answer)


def _answer(
    backend: Backend, options: EngineOptions, pickled_model: bytes, reply: int
) -> tuple[Any, ...]:
    last: tuple[int, ...] | None = None

    def report(objective: int | None, bound: int | None, values: tuple[int, ...] | None) -> None:
        nonlocal last
        fresh = values if values is not last else None
        last = values
        frames.write(reply, (PROGRESS, objective, bound, fresh))

    set_memory_limit(options.memory_limit_bytes)
    model = pickle.loads(pickled_model)
    result = solve_here(backend, model, replace(options, memory_limit_bytes=None), report)
    set_memory_limit(None)
    return (RESULT, result)


def die_with(guard: int) -> None:
    """Ask Linux to end this process when its parent, the guard, ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != guard:
            os._exit(1)


def adopt_orphans() -> None:
    """Ask Linux to make this process the parent of descendants whose own parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _guard(planner: int, solver: int, request: int) -> int:
    """Wait for the end of the solver or of the planner."""
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    wakeup, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    poller = select.poll()
    poller.register(request, 0)
    poller.register(wakeup, select.POLLIN)
    while True:
        pid, status = os.waitpid(solver, os.WNOHANG)
        if pid:
            return _exit_like(status)
        events = dict(poller.poll(_GUARD_POLL_MS))
        if wakeup in events:
            os.read(wakeup, 64)
        if request in events or os.getppid() != planner:
            _end_group(solver)


def _end_group(solver: int) -> None:
    """End all processes of the group, this one last, and remove the folder."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    for _ in range(20):
        if os.waitpid(solver, os.WNOHANG)[0]:
            break
        time.sleep(0.05)
    folder = Path.cwd()
    if os.environ.get("TMPDIR") == str(folder):
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
    os.killpg(0, signal.SIGKILL)


def _exit_like(status: int) -> int:
    """End as the solver ended: by the same signal, or with the same code."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
