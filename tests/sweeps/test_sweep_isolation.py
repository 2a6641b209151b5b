"""Points in processes of their own: what they see, how they may fail, what is left of them."""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_points import SICK, small

from planner.sweeps.isolation import StoppedError, Supervisor
from planner.sweeps.load import load_sweep
from planner.sweeps.points import expand
from planner.sweeps.task import Task, has_failed, task_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

BACKENDS = Path(__file__).resolve().parents[1] / "backends"


def processes_with(folder: Path) -> list[int]:
    """Living processes whose temporary folder lies in a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if not entry.name.isdigit():
                continue
            state = (entry / "stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
            if state != "Z" and f"TMPDIR={folder}/".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.fixture(scope="module")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A TMPDIR for everything that the supervisor of this module starts."""
    folder = tmp_path_factory.mktemp("tmp dir ü")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", None)
        yield folder
    assert list(folder.iterdir()) == []
    assert processes_with(folder) == []


@pytest.fixture(scope="module")
def supervisor(temporary: Path) -> Iterator[Supervisor]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path, str(BACKENDS)])
        supervisor = Supervisor()
        yield supervisor
        supervisor.close()


def sick_task(function: str, **changes: Any) -> Task:
    loaded = load_sweep(small())
    point = next(p for p in expand(loaded) if p.axes["bandwidth"] == SICK and p.variant == "two")
    return replace(task_of(point, loaded.sweep), function=f"fake_points:{function}", **changes)


def test_a_point_leads_a_group_in_a_folder_of_its_own(supervisor: Supervisor) -> None:
    first = supervisor.solve(sick_task("who", memory_limit_bytes=2**32))["solve"]
    second = supervisor.solve(sick_task("who"))["solve"]
    for seen in (first, second):
        assert seen["pid"] == seen["group"]
        assert seen["folder"] == seen["temporary"]
        assert not Path(seen["folder"]).exists()
        assert len(seen["descriptors"]) <= 5  # three standard ones, its pipe, the listing
        assert seen["modules_loaded"]
    assert first["pid"] != second["pid"]
    assert first["folder"] != second["folder"]
    assert first["address_space"] == 2**32
    assert second["address_space"] == resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("function", "status", "words"),
    [
        ("segfault", "CRASHED", "the process was ended by SIGSEGV"),
        ("exit_code", "CRASHED", "the process ended with exit code 3: cannot go on"),
        ("raises", "ERROR", "RuntimeError: something broke"),
        ("no_such_function", "ERROR", "AttributeError: "),
        ("hang", "TIMEOUT", "killed after 1 s"),
        ("glutton", "OUT_OF_MEMORY", "a process reached the memory limit of 0.50 GiB"),
        ("native_glutton", "OUT_OF_MEMORY", "a process reached the memory limit of 0.50 GiB"),
        ("lose_supervisor", "CRASHED", "ended by SIGKILL"),
    ],
)
def test_a_failure_is_a_result(
    supervisor: Supervisor, temporary: Path, function: str, status: str, words: str
) -> None:
    limits = {"time_limit_s": 0.5, "grace_s": 0.5} if function == "hang" else {}
    result = supervisor.solve(sick_task(function, memory_limit_bytes=2**29, **limits))
    assert (result["status"], result["solve"]) == (status, None)
    assert words in result["reason"]
    assert has_failed(result)
    assert len(processes_with(temporary)) <= 1  # the supervisor


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("solver_segfaults", "the solver failed: the solver process was ended by SIGSEGV"),
        ("solver_eats_memory", "the solver failed: the memory limit was reached"),
        ("solver_hangs", "time limit; the plan is checked"),
    ],
)
def test_a_failing_solver_leaves_the_checked_plan_and_a_bound(
    supervisor: Supervisor, function: str, words: str
) -> None:
    limits = {"time_limit_s": 2.0} if function == "solver_hangs" else {}
    result = supervisor.solve(sick_task(function, memory_limit_bytes=2**29, **limits))
    assert result["status"] == "FEASIBLE"
    assert words in result["reason"]
    assert result["solve"]["lower_bound_s"] < result["solve"]["iteration_time_s"]
    assert has_failed(result) == (function != "solver_hangs")


def test_a_good_point_after_all_that(supervisor: Supervisor) -> None:
    task = replace(sick_task("unused"), function="planner.sweeps.task:solve_point")
    result = supervisor.solve(task)
    assert result["status"] == "OPTIMAL"
    assert "cases" not in result["solve"]["certificate"]
    assert result["run"]["cpu_time_s"] > 0
    assert 2**25 < result["run"]["peak_memory_bytes"] < 2**32
    assert not has_failed(result)


def test_a_worker_with_other_code_is_refused(supervisor: Supervisor) -> None:
    task = replace(
        sick_task("unused"), function="planner.sweeps.task:solve_point", versions={"code": "x"}
    )
    result = supervisor.solve(task)
    assert result["status"] == "ERROR"
    assert "in place of x" in result["reason"]


def test_a_closed_supervisor_ends_its_point(temporary: Path) -> None:
    from threading import Thread

    supervisor = Supervisor()
    outcome: list[str] = []

    def work() -> None:
        try:
            supervisor.solve(sick_task("hang"))
        except StoppedError:
            outcome.append("stopped")

    thread = Thread(target=work)
    thread.start()
    end = time.monotonic() + 60
    while len(processes_with(temporary)) < 2:
        assert time.monotonic() < end
        time.sleep(0.05)
    supervisor.close()
    thread.join(timeout=30)
    assert outcome == ["stopped"]
    with pytest.raises(StoppedError):
        supervisor.solve(sick_task("hang"))
