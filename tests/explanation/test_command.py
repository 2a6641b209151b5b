"""``planner explain``: exit codes, one-line errors, clean output, interrupts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from planner.cli import main
from tests.explanation.jobs import best, explained, job_document

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """The job and its best plan."""
    instance, plan = tmp_path / "job.json", tmp_path / "plan.json"
    instance.write_text(json.dumps(job_document()), encoding="utf-8")
    plan.write_text(json.dumps({"plan": best()[1].to_json()}), encoding="utf-8")
    return str(instance), str(plan)


def test_the_text_has_every_table(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = explained()
    monkeypatch.setattr("planner.explanation.explain.explain", lambda *_, **__: found)
    assert main(["explain", *files]) == 0
    out = capsys.readouterr().out
    assert "job: the plan is optimal" in out
    for row in found.alternatives:
        assert row.fix in out
    for title in ("Critical path", "Links", "Memory", "More of a resource", "within 1 %"):
        assert title in out
    assert "infeasible: " in out
    assert max(map(len, out.splitlines())) <= 80


def test_json_alone_is_on_standard_output(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *files, "--json", "--time-limit", "0.5"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["iteration_time_s"] == best()[0] / 1e6
    assert document["plan"] == best()[1].to_json()


def test_a_refused_plan_names_its_rules(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    plan = best()[1].to_json() | {"gpus_used": 3}
    Path(files[1]).write_text(json.dumps(plan), encoding="utf-8")
    assert main(["explain", *files]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: the plan is refused: ")
    assert "gpus_used" in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("[]", "object"),
        ('{"plan": null}', "no plan"),
        ('{"plan": {"tp": 1}}', "missing"),
        ('{"plan": {"tpp": 1}}', "plan.tp"),
        ('{"tp": NaN}', "NaN"),
        ("[" * 100_000, "nested"),
    ],
)
def test_a_faulty_plan_is_one_line(
    text: str, words: str, files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path(files[1]).write_text(text, encoding="utf-8")
    assert main(["explain", *files]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert words in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon"])
def test_a_time_limit_is_seconds(
    seconds: str, files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *files, "--time-limit", seconds]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_missing_plan_is_named(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", files[0], "no-such-plan.json"]) == 2
    assert "no-such-plan.json" in capsys.readouterr().err


def children_of(pid: int) -> set[int]:
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == pid and int(entry.name) != pid:
                found.add(int(entry.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_ctrl_c_prints_what_is_done_and_leaves_no_process(files: tuple[str, str]) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "planner", "explain", *files, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        assert "whole plan space" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    document = json.loads(out)
    assert document["limit"] == "interrupt"
    assert document["binding"]["critical_path"]
    assert document["best"]["iteration_time_s"] == best()[0] / 1e6
    until = time.monotonic() + 5
    while children_of(process.pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not children_of(process.pid)
