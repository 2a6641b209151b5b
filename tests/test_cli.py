"""The commands: exit codes, one-line errors, clean output, interrupts, files."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from planner.backends import BackendUnavailableError
from planner.cli import main
from planner.instance import load_instance
from planner.report import output
from tests.fake_search import Progress, Result, Status, answer, install, tiny_plan

ROOT = Path(__file__).resolve().parents[1]
MALFORMED = ROOT / "tests" / "malformed"
MANIFEST: dict[str, str] = json.loads((MALFORMED / "manifest.json").read_text(encoding="utf-8"))
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}

needs_search = pytest.mark.skipif(
    find_spec("planner.search.solve") is None, reason="the search is not built in"
)

Capture = pytest.CaptureFixture[str]


def planner(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "planner", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=120,
        check=False,
        **options,
    )


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Replace the search by one that records how it was called and proves the tiny plan."""
    return replace_search(monkeypatch, answer(Status.OPTIMAL, gap=0.0))


def replace_search(
    monkeypatch: pytest.MonkeyPatch, result: Result | BaseException
) -> list[dict[str, Any]]:
    recorded: list[dict[str, Any]] = []

    def solve(instance: Any, **options: Any) -> Result:
        recorded.append({"instance": instance, **options})
        options["progress"](Progress())
        if isinstance(result, BaseException):
            raise result
        return result

    monkeypatch.setitem(sys.modules, "planner.search.solve", None)
    install(solve)
    return recorded


def one_error_line(capsys: Capture) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("error: ")
    return captured.err


@pytest.mark.parametrize(
    ("status", "reached", "asked", "code"),
    [
        (Status.OPTIMAL, 0.0, "0", 0),
        (Status.FEASIBLE, 0.005, "0.01", 0),
        (Status.FEASIBLE, 0.02, "0.01", 4),
        (Status.FEASIBLE, 0.0, "0", 4),
        (Status.FEASIBLE, None, "0.01", 4),
        (Status.INFEASIBLE, None, "0", 3),
        (Status.NO_SOLUTION, None, "0", 5),
        (Status.ERROR, None, "0", 1),
        (Status.INTERRUPTED, 0.1, "0", 130),
    ],
)
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_exit_codes_of_solve(
    status: Status,
    reached: float | None,
    asked: str,
    code: int,
    form: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
    tmp_path: Path,
) -> None:
    replace_search(monkeypatch, answer(status, gap=reached))
    file = tmp_path / "plan.json"
    assert main(["solve", "tiny", "--gap", asked, "-o", str(file), *form]) == code
    assert json.loads(file.read_text(encoding="utf-8"))["status"] == status.value
    out = capsys.readouterr().out
    if form:
        assert json.loads(out)["status"] == status.value
    else:
        assert status.value in out


def test_options_reach_the_search(calls: list[dict[str, Any]]) -> None:
    arguments = ["--time-limit", "5", "--backend", "cbc", "--heuristic", "--certify"]
    arguments += ["--seed", "3", "--workers", "2", "--formulation", "plain"]
    arguments += ["--fix", "pp=2", "--fix", "pp=3", "--fix", "overlap=true"]
    arguments += ["--fix", "schedule=1f1b", "--fix", "placement_kind=dp-out"]
    assert main(["solve", "tiny", *arguments]) == 0
    (call,) = calls
    restrictions = call["instance"].search.restrictions()
    assert restrictions == {
        "pp": (2, 3),
        "overlap": (True,),
        "schedule": ("1f1b",),
        "placement_kind": ("dp-out",),
    }
    assert call["time_limit_s"] == 5.0
    assert (call["backend"], call["formulation"], call["seed"]) == ("cbc", "plain", 3)
    assert (call["heuristic"], call["certify"], call["workers"]) == (True, True, 2)


def test_defaults_of_solve(calls: list[dict[str, Any]]) -> None:
    assert main(["solve", "tiny"]) == 0
    (call,) = calls
    assert call["instance"] == load_instance("tiny")
    assert call["time_limit_s"] is None
    assert (call["gap"], call["backend"], call["workers"]) == (0.0, "auto", 4)


def test_layers_are_fixed_as_one_list(calls: list[dict[str, Any]]) -> None:
    assert main(["solve", "tiny", "--fix", "layers_per_stage=4, 2"]) == 0
    assert calls[0]["instance"].search.fixed_layers_per_stage == (4, 2)


@pytest.mark.parametrize(
    ("fix", "message"),
    [
        ("shedule=1f1b", "--fix shedule: no choice of a plan has this name (did you mean 'sche"),
        ("schedule=1f2b", "(did you mean '1f1b'?)"),
        ("pp", "expected KEY=VALUE"),
        ("=2", "expected KEY=VALUE"),
        ("pp=", "expected KEY=VALUE"),
        ("pp=2,3", "one value at a time"),
        ("pp=two", "--fix pp: expected a whole number"),
        ("pp=-1", "--fix pp: expected a whole number from 1"),
        ("tp=3", "--fix tp: expected a power of two, got 3"),
        ("overlap=1", "--fix overlap: expected true or false"),
        ("dp=5", "--fix dp: 5 replicas cannot share"),
        ("layers_per_stage=4,4", "--fix layers_per_stage:"),
        ("zzz=1", "known choices: tp, cp,"),
        ("shard_across_sites=true", "known choices: tp, cp,"),
        ("tp=" + "9" * 5000, "--fix tp: "),
    ],
)
def test_wrong_fixes(fix: str, message: str, calls: list[dict[str, Any]], capsys: Capture) -> None:
    assert main(["solve", "tiny", "--fix", fix]) == 2
    assert message in one_error_line(capsys)
    assert not calls


def test_an_unknown_formulation(calls: list[dict[str, Any]], capsys: Capture) -> None:
    assert main(["solve", "tiny", "--formulation", "plane"]) == 2
    assert "did you mean 'plain'?" in one_error_line(capsys)
    assert not calls


def test_a_backend_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    replace_search(monkeypatch, BackendUnavailableError("HiGHS is not installed"))
    assert main(["solve", "tiny", "--backend", "highs"]) == 2
    assert capsys.readouterr().err.endswith("error: --backend: HiGHS is not installed\n")


def test_layers_are_fixed_once(calls: list[dict[str, Any]], capsys: Capture) -> None:
    assert main(["solve", "tiny", *["--fix", "layers_per_stage=3,3"] * 2]) == 2
    assert "give it once" in one_error_line(capsys)


@pytest.mark.parametrize(
    "arguments",
    [
        ["solve"],
        ["sovle", "tiny"],
        ["solve", "tiny", "--time-limt", "3"],
        *(["solve", "tiny", "--time-limit", text] for text in ("nan", "inf", "-1", "0", "x")),
        *(["solve", "tiny", "--gap", text] for text in ("nan", "inf", "-0.1", "1.5", "x")),
        *(["solve", "tiny", "--workers", text] for text in ("0", "-1", "1.5")),
        ["solve", "tiny", "--seed", "-1"],
        ["solve", "tiny", "--backend", "gurobi"],
        ["check", "tiny"],
        ["instances", "extra"],
    ],
)
def test_bad_usage_is_one_line(
    arguments: list[str], calls: list[dict[str, Any]], capsys: Capture
) -> None:
    assert main(arguments) == 2
    assert "--help" in one_error_line(capsys)
    assert not calls


@pytest.mark.parametrize("name", MANIFEST)
@pytest.mark.parametrize("command", [["solve"], ["check"]])
def test_malformed_instances(
    name: str, command: list[str], calls: list[dict[str, Any]], capsys: Capture
) -> None:
    more = [str(MALFORMED / "absent.json")] if command == ["check"] else []
    assert main([*command, str(MALFORMED / name), *more]) == 2
    assert MANIFEST[name] in one_error_line(capsys)
    assert not calls


@pytest.fixture
def unreadable(tmp_path: Path) -> dict[str, Path]:
    """Files of no use, by the reason why."""
    files = {
        name: tmp_path / f"{name.replace(' ', '-')}.json"
        for name in (
            "is empty",
            "larger than",
            "not UTF-8",
            "not JSON",
            "no such",
            "is a directory",
        )
    }
    files["is empty"].write_bytes(b"")
    files["larger than"].touch()
    os.truncate(files["larger than"], 100 * 10**6)
    files["not UTF-8"].write_bytes(b"\xff\xfe{")
    files["not JSON"].write_bytes(b"{")
    files["is a directory"].mkdir()
    return files


def test_unreadable_instances_and_plans(
    unreadable: dict[str, Path], calls: list[dict[str, Any]], capsys: Capture
) -> None:
    for reason, file in unreadable.items():
        for arguments in (["solve", str(file)], ["check", "tiny", str(file)]):
            assert main(arguments) == 2
            assert reason in one_error_line(capsys)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "a JSON object is needed"),
        ({}, "tp: missing"),
        ({"plan": None}, "the document holds no plan"),
        ({"plan": []}, "a JSON object is needed"),
        ({**tiny_plan().to_json(), "tp": "x"}, "tp: expected a whole number"),
        ({**tiny_plan().to_json(), "run_lenght": 1}, "did you mean 'run_length'?"),
        ({**tiny_plan().to_json(), "sharding": "zero9"}, "sharding: expected"),
    ],
)
def test_malformed_plans(document: Any, message: str, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    assert main(["check", "tiny", str(file)]) == 2
    assert message in one_error_line(capsys)


def test_errors_of_a_process_are_one_line_and_exit_code_two() -> None:
    done = planner("solve", MALFORMED / "misspelt-top-key.json")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "error: trainning: unknown key (did you mean 'training'?)\n"


def test_check_accepts_and_refuses(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "plan.json"
    good = tiny_plan().to_json()
    for document, code in (({"plan": good}, 0), (good, 0), ({**good, "gpus_used": 5}, 1)):
        file.write_text(json.dumps(document), encoding="utf-8")
        assert main(["check", "tiny", str(file)]) == code
        text = capsys.readouterr().out
        assert ("gpus_used" in text) == (code == 1)
        assert main(["check", "tiny", str(file), "--json"]) == code
        assert json.loads(capsys.readouterr().out)["accepted"] == (code == 0)


def test_json_is_alone_on_standard_output(
    calls: list[dict[str, Any]], capsys: Capture, tmp_path: Path
) -> None:
    assert main(["solve", "tiny", "--json", "-o", str(tmp_path / "p.json")]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document == json.loads((tmp_path / "p.json").read_text(encoding="utf-8"))
    assert "10 of 1,000 cases" in captured.err
    assert "gap 25.00 %" in captured.err


def test_schema_instances_and_versions(capsys: Capture) -> None:
    assert main(["schema"]) == 0
    assert "cluster" in json.loads(capsys.readouterr().out)["properties"]
    assert main(["instances", "--json"]) == 0
    assert "tiny" in [row["name"] for row in json.loads(capsys.readouterr().out)]
    assert main(["instances"]) == 0
    assert "dense-17b-2-buildings" in capsys.readouterr().out
    assert main(["show-versions", "--json"]) == 0
    assert {"python", "ortools"} <= set(json.loads(capsys.readouterr().out))
    assert main(["show-versions"]) == 0
    assert "ortools" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["solve", "check", "schema", "instances", "show-versions"])
def test_help_has_examples(command: str, capsys: Capture) -> None:
    assert main([command, "--help"]) == 0
    assert f"planner {command}" in capsys.readouterr().out.partition("Example")[2]


def test_help_without_a_command(capsys: Capture) -> None:
    assert main([]) == 2
    assert "Commands:" in "".join(capsys.readouterr())
    assert main(["--version"]) == 0


def test_internal_errors_are_one_line(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    replace_search(monkeypatch, ZeroDivisionError("a\nb"))
    assert main(["solve", "tiny"]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("internal error: ZeroDivisionError: a\\nb")
    assert "--debug" in error
    for arguments in (["--debug", "solve", "tiny"], ["solve", "tiny", "--debug"]):
        assert main(arguments) == 1
        assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_outside_the_search(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    replace_search(monkeypatch, KeyboardInterrupt())
    assert main(["solve", "tiny"]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted"


def test_paths_that_cannot_be_written(
    calls: list[dict[str, Any]], tmp_path: Path, capsys: Capture
) -> None:
    instance = tmp_path / "job.json"
    instance.write_text(load_instance("tiny").model_dump_json(by_alias=True), encoding="utf-8")
    file_as_folder = instance / "plan.json"
    targets = [tmp_path, tmp_path / "absent" / "plan.json", file_as_folder, instance]
    targets += [Path("nul\0byte"), tmp_path / ("x" * 400)]
    for target in targets:
        assert main(["solve", str(instance), "-o", str(target)]) == 2
        one_error_line(capsys)
    assert not calls
    assert list(tmp_path.iterdir()) == [instance]


def test_a_folder_that_refuses_files(
    calls: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: Capture,
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(output.tempfile, "TemporaryFile", refuse)
    assert main(["solve", "tiny", "-o", str(tmp_path / "plan.json")]) == 2
    assert "cannot be written: Permission denied" in one_error_line(capsys)
    assert not calls


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file(
    failing: str,
    calls: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: Capture,
) -> None:
    file = tmp_path / "plan.json"
    file.write_text("old", encoding="utf-8")

    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(output.os, failing, full)
    assert main(["solve", "tiny", "-o", str(file), "--json"]) == 1
    captured = capsys.readouterr()
    assert captured.err.splitlines()[-1].endswith("cannot be written: No space left on device")
    assert json.loads(captured.out)["status"] == "OPTIMAL"
    assert file.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_written_files_keep_links_and_permissions(
    calls: list[dict[str, Any]], tmp_path: Path
) -> None:
    file, link = tmp_path / "plan.json", tmp_path / "link.json"
    file.touch(mode=0o640)
    link.symlink_to(file)
    assert main(["solve", "tiny", "-o", str(link)]) == 0
    assert link.is_symlink()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert json.loads(file.read_text(encoding="utf-8"))["status"] == "OPTIMAL"
    assert main(["solve", "tiny", "-o", "/dev/null"]) == 0
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def start(arguments: list[str | Path], **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        **options,
    )


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_writes_the_best_plan(number: int, tmp_path: Path) -> None:
    pid_file, folder = tmp_path / "pid", tmp_path / "out"
    folder.mkdir()
    script = ROOT / "tests" / "fake_search.py"
    file = folder / "plan.json"
    process = start([script, pid_file, "solve", "tiny", "-o", file, "--json"])
    wait_for(lambda: pid_file.exists() and pid_file.read_text(encoding="utf-8") != "")
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert json.loads(out)["status"] == "INTERRUPTED"
    assert json.loads(file.read_text(encoding="utf-8"))["plan"] is not None
    assert "Traceback" not in err
    assert list(folder.iterdir()) == [file]
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text(encoding="utf-8")), 0)


@pytest.mark.parametrize("arguments", [["schema"], ["instances"], ["--help"]])
def test_a_reader_that_goes_away_is_no_traceback(arguments: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "planner", *arguments],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        check=False,
    )
    os.close(write)
    assert done.stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_standard_output_on_a_full_disk() -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-m", "planner", "schema"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "error: standard output: cannot be written: No space left on device\n"


@needs_search
def test_the_tiny_instance_end_to_end(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    done = planner("solve", "tiny", "--json", "-o", file, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document == json.loads(file.read_text(encoding="utf-8"))
    assert document["status"] == "OPTIMAL"
    assert document["lower_bound_s"] == document["iteration_time_s"]
    assert sum(document["breakdown"].values()) == pytest.approx(document["iteration_time_s"])
    assert planner("check", "tiny", file).returncode == 0


@needs_search
def test_the_infeasible_instance_end_to_end() -> None:
    done = planner("solve", "infeasible-memory")
    assert done.returncode == 3, done.stderr
    assert "memory" in done.stdout
    assert "GiB" in done.stdout


@needs_search
def test_an_interrupted_search_leaves_nothing_behind(tmp_path: Path) -> None:
    folder, scratch = tmp_path / "out", tmp_path / "tmp"
    folder.mkdir()
    scratch.mkdir()
    file = folder / "plan.json"
    process = subprocess.Popen(
        [sys.executable, "-m", "planner", "solve", "nemotron-340b-1000km", "-o", str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**ENVIRONMENT, "TMPDIR": str(scratch)},
        start_new_session=True,
    )
    time.sleep(12.0)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    assert process.returncode in (0, 130)
    assert json.loads(file.read_text(encoding="utf-8"))["plan"] is not None
    assert list(folder.iterdir()) == [file]
    assert list(scratch.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(tiny_plan().to_json()), encoding="utf-8")
    return file


def test_simulate_prints_one_json_document(plan_file: Path, capsys: Capture) -> None:
    assert main(["simulate", "tiny", str(plan_file), "--json"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert captured.err == ""
    assert set(document) == {
        "simulated_time_s",
        "first_come_time_s",
        "iteration_time_s",
        "model_error",
        "bubble",
        "breakdown",
        "exposed",
        "stages",
        "memory",
        "links",
    }
    assert sum(document["breakdown"].values()) == pytest.approx(document["simulated_time_s"])
    assert main(["check", "tiny", str(plan_file), "--json"]) == 0
    checked = json.loads(capsys.readouterr().out)
    assert document["iteration_time_s"] == checked["iteration_time_s"]


def test_simulate_reads_a_solve_document_and_prints_a_report(
    tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "answer.json"
    file.write_text(json.dumps(answer(Status.OPTIMAL, gap=0.0).to_json()), encoding="utf-8")
    assert main(["simulate", "tiny", str(file)]) == 0
    out = capsys.readouterr().out
    for word in ("simulated", "bubble", "Peak memory", "h100-node"):
        assert word in out


def test_simulate_writes_a_trace_and_a_picture(
    plan_file: Path, tmp_path: Path, capsys: Capture
) -> None:
    trace, svg = tmp_path / "t.json", tmp_path / "t.svg"
    arguments = ["simulate", "tiny", str(plan_file), "--json"]
    assert main([*arguments, "--trace", str(trace), "--svg", str(svg)]) == 0
    captured = capsys.readouterr()
    assert captured.err == f"written: {trace}\nwritten: {svg}\n"
    document = json.loads(trace.read_text(encoding="utf-8"))
    last = max(e["ts"] + e["dur"] for e in document["traceEvents"] if e["ph"] == "X")
    assert last / 1e6 == pytest.approx(json.loads(captured.out)["simulated_time_s"], abs=1e-11)
    assert svg.read_text(encoding="utf-8").startswith("<svg")


def test_simulate_refuses_a_plan_that_the_checker_refuses(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "plan.json"
    wrong = tiny_plan().to_json() | {"placement_kind": "dp-out"}
    file.write_text(json.dumps(wrong), encoding="utf-8")
    trace = tmp_path / "t.json"
    assert main(["simulate", "tiny", str(file), "--trace", str(trace)]) == 1
    assert "the plan is refused: placement_kind: " in one_error_line(capsys)
    assert not trace.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schedul": "1f1b"}, "schedul: unknown key (did you mean 'schedule'?)"),
        ({"pp": "two"}, "pp: expected a whole number"),
        ({"overlap": 1}, "overlap: expected true or false"),
    ],
)
def test_simulate_names_what_is_wrong_with_a_plan(
    change: dict[str, Any], message: str, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(tiny_plan().to_json() | change), encoding="utf-8")
    assert main(["simulate", "tiny", str(file)]) == 2
    assert message in one_error_line(capsys)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["--trace", "nowhere/t.json"], "no such folder"),
        (["--svg", "."], "is a directory"),
        (["--trace", "plan.json"], "each file needs a name of its own"),
        (["--trace", "same", "--svg", "same"], "each file needs a name of its own"),
    ],
)
def test_simulate_refuses_files_that_it_cannot_write(
    files: list[str],
    message: str,
    plan_file: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(plan_file.parent)
    before = plan_file.read_bytes()
    assert main(["simulate", "tiny", "plan.json", *files]) == 2
    assert message in one_error_line(capsys)
    assert plan_file.read_bytes() == before


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '{"plan": null}', '{"plan": 3}'])
def test_simulate_refuses_what_is_no_plan(text: str, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "plan.json"
    file.write_text(text, encoding="utf-8")
    assert main(["simulate", "tiny", str(file)]) == 2
    one_error_line(capsys)


def test_a_schedule_file_needs_synthesis(capsys: Capture, tmp_path: Path) -> None:
    target = tmp_path / "schedule.csv"
    assert main(["solve", "tiny", "--schedule-csv", str(target)]) == 2
    assert "--schedule-csv: needs --schedule synthesize" in one_error_line(capsys)
    both = ["--schedule", "synthesize", "--schedule-csv", str(target), "-o", str(target)]
    assert main(["solve", "tiny", *both]) == 2
    assert "is the file of --output" in one_error_line(capsys)
    assert not target.exists()


def test_a_synthesised_schedule_is_told_and_written(capsys: Capture, tmp_path: Path) -> None:
    target = tmp_path / "schedule.csv"
    fixed = [
        word for key in ("pp=2", "dp=4", "tp=1", "micro_batch_size=1") for word in ("--fix", key)
    ]
    asked = ["--schedule", "synthesize", "--schedule-csv", str(target), "--workers", "2"]
    assert main(["solve", "tiny", *fixed, *asked]) == 0
    captured = capsys.readouterr()
    assert "Synthesised schedule" in captured.out
    assert "unsplit backward" in captured.out or "split backward" in captured.out
    assert f"written: {target}" in captured.err
    rows = target.read_text(encoding="utf-8").splitlines()
    assert len(rows) == 2 and rows[0].startswith("0F0,0F1")
