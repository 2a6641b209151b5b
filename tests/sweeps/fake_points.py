"""Functions that stand in for the solve of a point, named by import path; and a small sweep."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from planner.sweeps.task import Result, Task, solve_point

BANDWIDTHS = [50, 100, 200, 400]
SICK = 100
"""The bandwidth at which the fakes below fail, with the variant that has two stages."""


def small(**changes: Any) -> dict[str, Any]:
    """Eight points that are solved in a moment."""
    return {
        "name": "small",
        "instance": "tiny",
        "fix": {"tp": 1, "cp": 1, "ep": 1, "micro_batch_size": 1, "schedule": "1f1b"},
        "axes": [
            {"name": "bandwidth", "set": "cluster.links[*].bandwidth_gbps", "values": BANDWIDTHS}
        ],
        "variants": {"one": {"fix": {"pp": 1, "dp": 8}}, "two": {"fix": {"pp": 2, "dp": 4}}},
        "limits": {"wall_time_s": 60, "grace_s": 10},
        **changes,
    }


def is_sick(task: Task) -> bool:
    link = task.document["cluster"]["links"][0]
    return link["bandwidth_gbps"] == SICK and task.document["search"]["pp"] == 2


def segfault(task: Task) -> Result:
    if is_sick(task):
        ctypes.string_at(0)
    return solve_point(task)


def exit_code(task: Task) -> Result:
    if is_sick(task):
        os.write(2, b"cannot go on\n")
        os._exit(3)
    return solve_point(task)


def raises(task: Task) -> Result:
    if is_sick(task):
        raise RuntimeError("something broke")
    return solve_point(task)


def hang(task: Task) -> Result:
    """Starts a program in a session of its own and waits for ever."""
    if is_sick(task):
        with subprocess.Popen(["sleep", "300"], start_new_session=True) as program:
            program.wait()
    return solve_point(task)


def glutton(task: Task) -> Result:
    if is_sick(task):
        hoard = []
        while True:
            hoard.append(bytearray(1 << 24))
    return solve_point(task)


def native_glutton(task: Task) -> Result:
    if is_sick(task):
        os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n")
        os.abort()
    return solve_point(task)


def lose_supervisor(task: Task) -> Result:
    if is_sick(task):
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
    return solve_point(task)


def slow(task: Task) -> Result:
    """Takes long enough to be interrupted, and owns a program meanwhile."""
    with subprocess.Popen(["sleep", "300"]) as program:
        time.sleep(0.3)
        program.kill()
    return solve_point(task)


def who(task: Task) -> Result:
    """Tells about the process of the point."""
    solve = {
        "pid": os.getpid(),
        "group": os.getpgid(0),
        "folder": os.getcwd(),
        "temporary": os.environ["TMPDIR"],
        "descriptors": sorted(int(name) for name in os.listdir("/proc/self/fd")),
        "address_space": resource.getrlimit(resource.RLIMIT_AS)[0],
        "modules_loaded": Path("/proc/self/maps").read_text(encoding="utf-8").count("ortools") > 0,
    }
    return {"key": task.key, "status": "", "reason": "", "limit": None, "solve": solve, "run": {}}


def sick_solver(task: Task, kind: str) -> Result:
    """Solve a point, one of them with a backend that fails."""
    if is_sick(task):
        import planner.search.solve as search

        search.PROVER = f"fake_backends:{kind}"
    return solve_point(task)


def solver_segfaults(task: Task) -> Result:
    return sick_solver(task, "Segfault")


def solver_hangs(task: Task) -> Result:
    return sick_solver(task, "Hang")


def solver_eats_memory(task: Task) -> Result:
    return sick_solver(task, "Glutton")
