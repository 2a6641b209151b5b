"""The process that solves points one by one: ``python -m planner.sweeps.supervisor``.

It has imported everything that a solve needs.  Each point runs in a copy of it (fork), which leads
a process group of its own, has its own temporary folder and limits, and ends with its point.  The
supervisor watches the copy and the planner: it ends the one at its limit, and itself with all that
it started when the planner ends.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import platform
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before numpy is imported: copies have one thread

from planner.backends import BackendUnavailableError, frames, preload, select_backend
from planner.backends.child import enter, kill_group, remove_folder
from planner.backends.memory_limit import fix_memory_limit, is_memory_text
from planner.backends.worker import adopt_orphans, die_with
from planner.sweeps.task import Failure, Result, Task, failure

DESCENDANTS_WAIT_S = 3.0
"""Time for engines to end by themselves after their point was killed."""
OUTPUT_TAIL_BYTES = 4000
RSS_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024

_CHUNK = 1 << 16


class PlannerGoneError(Exception):
    """The planner that asks has ended."""


def main(arguments: list[str]) -> int:
    """Answer requests until the request pipe closes; arguments: request and reply descriptors."""
    request, reply = int(arguments[0]), int(arguments[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    adopt_orphans()
    _import_all()
    frames.write(reply, (frames.READY,))
    with contextlib.suppress(EOFError, PlannerGoneError, BrokenPipeError):
        while True:
            task: Task = frames.read(request)
            frames.write(reply, (frames.RESULT, solve_apart(task, request)))
    return 0


def _import_all() -> None:
    """Import what a solve needs now or later, once for all points."""
    import scipy.optimize  # noqa: F401

    import planner.search.solve
    import planner.simulation.simulate  # noqa: F401

    with contextlib.suppress(BackendUnavailableError):
        preload(select_backend())


def solve_apart(task: Task, request: int) -> Result:
    """Solve a point in a copy of this process; whatever happens to the copy is a result.

    Raises
    ------
    PlannerGoneError
        If the other end of ``request`` closes; then the copy has been ended.
    """
    began = time.monotonic()
    deadline = began + task.time_limit_s + task.grace_s
    supervisor = os.getpid()
    point_folder = tempfile.mkdtemp(prefix="point-")
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        _run_copy(task, write, point_folder, supervisor)
    usages: list[resource.struct_rusage] = []
    try:
        with contextlib.suppress(OSError):  # the copy does the same, whoever comes first
            os.setpgid(pid, pid)
        os.close(write)
        message = _receive(read, request, deadline)
        overran = not _ends(pid, deadline)
        kill_group(pid)
        _, status, usage = os.wait4(pid, 0)
        usages.append(usage)
        tail = _tail(Path(point_folder) / "output.txt")
        result = message or _lost(task, os.waitstatus_to_exitcode(status), overran, tail)
    finally:
        if not usages:
            kill_group(pid)
        usages += _end_descendants()
        os.close(read)
        remove_folder(point_folder)
    result["run"] = {
        "wall_time_s": round(time.monotonic() - began, 6),
        "cpu_time_s": round(sum(u.ru_utime + u.ru_stime for u in usages), 6),
        "peak_memory_bytes": max(u.ru_maxrss for u in usages) * RSS_UNIT_BYTES,
        "host": platform.node(),
    }
    return result


def _run_copy(task: Task, write: int, folder: str, supervisor: int) -> None:
    """Run the point in this process, a copy, and end it."""
    code = 1
    try:
        os.setpgid(0, 0)
        die_with(supervisor)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        output = os.open(
            os.path.join(folder, "output.txt"), os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600
        )
        enter(folder, output, keep=(write,))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if task.memory_limit_bytes is not None:
            fix_memory_limit(task.memory_limit_bytes)
        frames.write(write, _answer(task))
        code = 0
    except BaseException:  # noqa: BLE001 (the output tells)
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _answer(task: Task) -> Result:
    try:
        module, _, name = task.function.partition(":")
        function: Callable[[Task], Result] = getattr(importlib.import_module(module), name)
        return function(task)
    except MemoryError:
        return failure(task.key, Failure.OUT_OF_MEMORY, _memory_reason(task))
    except Exception as error:  # noqa: BLE001
        return failure(task.key, Failure.ERROR, f"{type(error).__name__}: {error}")


def _receive(read: int, request: int, deadline: float) -> Any:
    """The message of the copy; None where it ends without one or does not end in time."""
    buffer = frames.FrameBuffer()
    poller = select.poll()
    poller.register(read, select.POLLIN)
    poller.register(request, 0)
    while True:
        ready = dict(poller.poll(max(0.0, 1000 * (deadline - time.monotonic()))))
        if request in ready:
            raise PlannerGoneError
        if read not in ready:
            return None
        chunk = os.read(read, _CHUNK)
        if not chunk:
            return None
        for message in buffer.feed(chunk):
            return message


def _lost(task: Task, code: int, overran: bool, output: str) -> Result:
    if overran:
        limit = task.time_limit_s + task.grace_s
        return failure(task.key, Failure.TIMEOUT, f"killed after {limit:g} s")
    if task.memory_limit_bytes is not None and is_memory_text(output):
        return failure(task.key, Failure.OUT_OF_MEMORY, _memory_reason(task))
    if code < 0:
        name = signal.Signals(-code).name
        return failure(task.key, Failure.CRASHED, f"the process was ended by {name}")
    last = output.strip().splitlines()[-1:] or ["no output"]
    return failure(task.key, Failure.CRASHED, f"the process ended with exit code {code}: {last[0]}")


def _memory_reason(task: Task) -> str:
    limit = task.memory_limit_bytes
    return (
        "no memory left"
        if limit is None
        else f"a process reached the memory limit of {limit / 2**30:.2f} GiB"
    )


def _tail(path: Path) -> str:
    with contextlib.suppress(OSError), path.open("rb") as output:
        size = output.seek(0, os.SEEK_END)
        output.seek(max(0, size - OUTPUT_TAIL_BYTES))
        return output.read().decode(errors="replace")
    return ""


def _ends(pid: int, deadline: float) -> bool:
    """Whether a process ends by itself in time; it stays to be waited for."""
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.002)
    return True


def _end_descendants() -> list[resource.struct_rusage]:
    """Wait for what a point left behind, such as an engine that sees it gone, then end it."""
    usages = []
    end = time.monotonic() + DESCENDANTS_WAIT_S
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, _, usage = os.wait4(-1, os.WNOHANG)
            if pid:
                usages.append(usage)
                continue
            if time.monotonic() >= end:
                for child in _children():
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(child, signal.SIGKILL)
            time.sleep(0.005)
    return usages


def _children() -> list[int]:
    """The children of this process that Linux lists."""
    with contextlib.suppress(OSError):
        listed = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
        return [int(pid) for pid in listed.split()]
    return []


if __name__ == "__main__":
    folder = os.getcwd()
    try:
        code = main(sys.argv[1:])
    finally:
        if os.environ.get("TMPDIR") == folder:
            shutil.rmtree(folder, ignore_errors=True)
    sys.exit(code)
