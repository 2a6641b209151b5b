"""Engines survive crashes, hangs, kills and Ctrl-C, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import pytest
from test_engine_status import cover, simple

from formulations.algebra import Model
from planner.backends import (
    BackendUnavailableError,
    Engine,
    EngineOptions,
    Limit,
    SolveStatus,
    frames,
)
from planner.backends.child import FOLDER_PREFIX, sweep_stale_folders

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path, monkeypatch):
    """Each test has a TMPDIR with a space and a non-ASCII name; it must end up empty."""
    folder = tmp_path / "tmp dir ü"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield folder
    assert list(folder.iterdir()) == []
    wait_until(lambda: not processes_with(str(folder)))


def fake(name: str, **arguments) -> Engine:
    return Engine(f"fake_backends:{name}", **arguments)


def processes_with(text: str) -> list[int]:
    """Living processes whose environment has the text, without this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z" and f"TMPDIR={text}/".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def group_members(group: int) -> list[int]:
    """Living processes of a process group."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == group and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def wait_until(condition, limit_s: float = 10.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "condition not reached"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("name", "status", "text"),
    [
        ("Segfault", SolveStatus.ERROR, "SIGSEGV"),
        ("SegfaultWithPlan", SolveStatus.FEASIBLE, "SIGSEGV"),
        ("Exit", SolveStatus.ERROR, "exit code 3"),
        ("Raises", SolveStatus.ERROR, "RuntimeError: something broke"),
        ("Broken", SolveStatus.ERROR, "most of all"),
        ("HighBound", SolveStatus.ERROR, "above the objective"),
        ("NoBinary", SolveStatus.ERROR, "no CBC binary can be run at /nonexistent/cbc"),
        ("FakeBinary", SolveStatus.ERROR, "CBC ended with"),
        ("DoesNotImport", SolveStatus.ERROR, "no such library"),
        ("NotThere", SolveStatus.ERROR, "cannot be imported"),
    ],
)
def test_failures_are_results(name, status, text):
    """Crashes, errors, false claims and missing programs give a result with a reason."""
    model = simple()
    model.add(model.variables[0] <= (8 if name == "Broken" else 9), family="high")
    with fake(name) as engine:
        result = engine.solve(model)
        assert (result.status, result.limit) == (status, Limit.NONE), result.message
        assert text in result.message
        assert not result.trusted
        if status is SolveStatus.FEASIBLE:
            assert (result.values, result.objective, result.bound) == ((9,), 9, -7)


def test_contradicted_infeasibility_is_an_error():
    """INFEASIBLE next to a hinted plan is a contradiction."""
    with fake("SaysInfeasible") as engine:
        assert engine.solve(simple()).status is SolveStatus.INFEASIBLE
        result = engine.solve(simple(), EngineOptions(hint={0: 5}))
        assert result.status is SolveStatus.ERROR and result.objective == 5


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("Hang", SolveStatus.NO_SOLUTION),
        ("HangWithPlan", SolveStatus.FEASIBLE),
        ("HangWithProof", SolveStatus.OPTIMAL),
    ],
)
def test_watchdog_ends_a_hang(name, status):
    """A solver that ignores its limit is killed with all that it started."""
    with fake(name, grace_s=0.3) as engine:
        engine.start()
        group = engine.child_pid
        start = time.monotonic()
        result = engine.solve(simple(), EngineOptions(time_limit_s=0.2))
        assert time.monotonic() - start < 5
        assert (result.status, result.limit) == (status, Limit.TIME)
        assert "overran" in result.message
        wait_until(lambda: not group_members(group))


@pytest.mark.parametrize("name", ["Glutton", "NativeGlutton"])
def test_memory_limit(name):
    """Lack of memory is NO_SOLUTION with limit MEMORY, and the engine goes on."""
    with fake(name) as engine:
        for _ in range(2):
            result = engine.solve(simple(), EngineOptions(memory_limit_bytes=1 << 29))
            assert (result.status, result.limit) == (SolveStatus.NO_SOLUTION, Limit.MEMORY)
            assert "memory limit" in result.message


def test_memory_limit_of_cp_sat():
    """A limit below what CP-SAT needs is reported as such; a later solve works."""
    with Engine("cp-sat") as engine:
        result = engine.solve(cover(400), EngineOptions(memory_limit_bytes=1 << 26))
        assert result.limit is Limit.MEMORY, result.message
        assert engine.solve(simple()).status is SolveStatus.OPTIMAL


@pytest.mark.parametrize("name", ["cp-sat", "cbc"])
def test_kill_from_outside_and_restart(name):
    """A solver killed in a solve gives ERROR or FEASIBLE; the next solve has a new child."""
    with Engine(name) as engine:
        engine.start()
        group = engine.child_pid

        def kill_soon():
            time.sleep(0.7)
            for pid in group_members(group):
                if pid != group:
                    os.kill(pid, signal.SIGKILL)

        killer = threading.Thread(target=kill_soon)
        killer.start()
        result = engine.solve(cover(60), EngineOptions(time_limit_s=30))
        killer.join()
        assert "SIGKILL" in result.message
        if name == "cp-sat":
            assert result.status is SolveStatus.FEASIBLE
        else:
            assert result.status is SolveStatus.ERROR
        assert not result.trusted
        wait_until(lambda: not group_members(group))
        assert engine.solve(simple()).objective == 2
        assert engine.child_pid != group


def test_idle_child_that_died_is_replaced():
    """A child that dies between two solves costs nothing."""
    with Engine("cbc") as engine:
        assert engine.solve(simple()).objective == 2
        group = engine.child_pid
        os.killpg(group, signal.SIGKILL)
        wait_until(lambda: not group_members(group))
        assert engine.solve(simple()).objective == 2


def test_child_is_kept_between_solves():
    """A warm child serves many solves."""
    with Engine("cbc") as engine:
        pids = set()
        for _ in range(3):
            engine.solve(simple())
            pids.add(engine.child_pid)
        assert len(pids) == 1


def test_folder_with_space_is_used(own_temporary_folder):
    """CBC works in a folder with a space and a non-ASCII name, and cleans it up."""
    with Engine("cbc") as engine:
        assert engine.solve(simple()).status is SolveStatus.OPTIMAL
        (folder,) = own_temporary_folder.iterdir()
        assert [entry.name for entry in folder.iterdir()] == ["output.txt"]


def test_close_from_another_thread():
    """Closing an engine ends its solve with INTERRUPTED and the best plan."""
    engine = fake("HangWithPlan")
    engine.start()
    closer = threading.Timer(0.5, engine.close)
    closer.start()
    result = engine.solve(simple())
    closer.join()
    assert (result.status, result.limit) == (SolveStatus.INTERRUPTED, Limit.INTERRUPT)
    assert result.objective == 9
    assert "closed" in engine.solve(simple()).message
    with pytest.raises(BackendUnavailableError, match="closed"):
        engine.start()


def test_close_from_the_callback():
    """A callback may close the engine; the solve then ends with the best plan."""
    engine = fake("SlowProgress")
    result = engine.solve(simple(), None, lambda *report: engine.close())
    assert (result.status, result.objective) == (SolveStatus.INTERRUPTED, 9)


def test_callback_errors_come_through():
    """An error of the progress callback ends the solve and reaches the caller."""

    def broken(objective, bound, values):
        raise LookupError("callback")

    with fake("SlowProgress") as engine:
        with pytest.raises(LookupError, match="callback"):
            engine.solve(simple(), None, broken)
        assert engine.interrupted_result.status is SolveStatus.INTERRUPTED


SCRIPT = """
import sys
sys.path[:] = {path!r}
from test_engine_status import cover, simple
from planner.backends import Engine, EngineOptions
engine = Engine({backend!r})
engine.start()
print(engine.child_pid, flush=True)
try:
    engine.solve(cover(60), EngineOptions(time_limit_s=60))
except KeyboardInterrupt:
    result = engine.interrupted_result
    print(result.status.name, result.limit.name, result.has_plan, flush=True)
    sys.exit(130)
"""


def start_planner(backend: str) -> tuple[subprocess.Popen[str], int]:
    """A planner in a process of its own, in the middle of a solve."""
    code = textwrap.dedent(SCRIPT).format(path=sys.path, backend=backend)
    planner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    group = int(planner.stdout.readline())
    if backend == "cbc":
        wait_until(lambda: len(group_members(group)) == 3)
    time.sleep(0.7)
    return planner, group


@pytest.mark.parametrize("backend", ["cp-sat", "cbc", "fake_backends:HangWithPlan"])
def test_ctrl_c(backend):
    """SIGINT to the planner raises KeyboardInterrupt, keeps the best plan, leaves nothing."""
    planner, group = start_planner(backend)
    if backend != "cbc":
        for pid in group_members(group):
            os.kill(pid, signal.SIGINT)
    planner.send_signal(signal.SIGINT)
    output, _ = planner.communicate(timeout=20)
    assert planner.returncode == 130
    assert output.split() == ["INTERRUPTED", "INTERRUPT", str(backend != "cbc")]
    wait_until(lambda: not group_members(group))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_death_of_the_planner(number, own_temporary_folder):
    """Where the planner is killed, the solver, its program and its folder go too."""
    planner, group = start_planner("cbc")
    planner.send_signal(number)
    planner.communicate(timeout=20)
    wait_until(lambda: not group_members(group))
    wait_until(lambda: not list(own_temporary_folder.iterdir()))


def test_forgotten_engine_is_collected():
    """An engine that was never closed is ended when it is collected."""
    engine = Engine("cbc")
    engine.start()
    group = engine.child_pid
    del engine
    wait_until(lambda: not group_members(group))


def test_stale_folders_are_swept(own_temporary_folder):
    """Only old folders with our name and a dead planner are removed."""
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    old = own_temporary_folder / f"{FOLDER_PREFIX}{ended.pid}-x"
    young = own_temporary_folder / f"{FOLDER_PREFIX}{ended.pid}-y"
    living = own_temporary_folder / f"{FOLDER_PREFIX}{os.getpid()}-z"
    other = own_temporary_folder / "something-else"
    for folder in (old, young, living, other):
        folder.mkdir()
    for folder in (old, living, other):
        os.utime(folder, (1, 1))
    sweep_stale_folders()
    assert sorted(own_temporary_folder.iterdir()) == sorted([young, living, other])
    for folder in (young, living, other):
        folder.rmdir()


def test_frames_survive_any_cut():
    """Messages come out whole, however the stream is cut."""
    messages = [("a", 1), list(range(1000)), None]
    stream = b"".join(frames.encode(message) for message in messages)
    for size in (1, 7, 4096, len(stream)):
        buffer = frames.FrameBuffer()
        received = []
        for start in range(0, len(stream), size):
            received += buffer.feed(stream[start : start + size])
        assert received == messages


def test_large_model_goes_through():
    """A model larger than the pipe's buffer reaches the child."""
    model = Model()
    x = [model.boolean(f"x{i}") for i in range(20000)]
    model.add(x[0] + x[-1] >= 1, family="need")
    model.minimize(x[0] + 2 * x[-1])
    with Engine("cp-sat") as engine:
        assert engine.solve(model).objective == 1


PRELOADED = """
import os, sys
sys.path[:0] = {paths!r}
from planner.backends import Engine, EngineOptions, preload
from test_engine_status import simple

for name in ("cp-sat", "fake_backends:Segfault", "fake_backends:Hang"):
    preload(name)
before = set(os.listdir("/proc/self/fd"))
with Engine("cp-sat") as engine:
    result = engine.solve(simple())
    print(result.status.name, result.objective, engine.solve(simple()).status.name)
    command = open(f"/proc/{{engine.child_pid}}/cmdline").read()
    print("-m" in command.split(chr(0)), len(os.listdir(f"/proc/{{engine.child_pid}}/fd")) < 10)
with Engine("fake_backends:Segfault") as engine:
    print(engine.solve(simple()).message)
with Engine("fake_backends:Hang", grace_s=0.2) as engine:
    print(engine.solve(simple(), EngineOptions(time_limit_s=0.2)).limit.name)
print(sorted(set(os.listdir("/proc/self/fd")) - before))
"""


def test_engines_of_a_preloaded_process_are_copies_of_it(own_temporary_folder):
    """No interpreter is started, and everything else is as with a new process."""
    tests = Path(__file__).parent
    code = PRELOADED.format(paths=[str(tests), str(tests.parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.splitlines() == [
        "OPTIMAL 2 OPTIMAL",
        "False True",
        "the solver process was ended by SIGSEGV",
        "TIME",
        "[]",
    ], done.stderr
