"""``planner verify``: exit codes, output, no solver, second engines."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from planner import load_instance, solve, verify
from planner.cli import main
from planner.instance import Instance
from planner.instance.fixes import with_fixes
from planner.instance.load import instance_document
from tests.verification.conftest import FIXES, Solved

ROOT = Path(__file__).resolve().parents[2]
LONGEST_S = 10
FIX_OPTIONS = [part for fix in FIXES for part in ("--fix", fix)]


@pytest.fixture
def plan(solved: Solved, tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(solved.text, encoding="utf-8")
    return path


def test_accepted(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "tiny", str(plan), *FIX_OPTIONS]) == 0
    out = capsys.readouterr().out
    assert out.startswith("accepted\n")
    assert "engine" in out


def test_json(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "tiny", str(plan), "--json", *FIX_OPTIONS]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["accepted"] is True
    assert report["violations"] == []
    assert report["iteration_time_s"] == report["lower_bound_s"]
    assert sum(report["cases_by_evidence"].values()) == report["cases_total"]


def test_refused_with_the_rule(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "tiny", str(plan)]) == 1
    out = capsys.readouterr().out
    assert out.startswith("refused\n  instance: another one was solved: search")


@pytest.mark.parametrize("text", ["[]", "{}", "{", '{"plan": {}}', '{"certificate": {}}'])
def test_bad_input_is_one_line(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text, encoding="utf-8")
    assert main(["verify", "tiny", str(path)]) == 2
    assert main(["verify", "tiny", str(tmp_path / "none.json")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 2


def test_no_solver_and_no_formulation_is_loaded(plan: Path) -> None:
    code = (
        "import sys\n"
        "from planner.cli import main\n"
        f"assert main({['verify', 'tiny', str(plan), *FIX_OPTIONS]!r}) == 0\n"
        "heavy = {'ortools', 'pulp', 'highspy', 'scipy', 'cvxpy', 'formulations'}\n"
        "loaded = {name for name in sys.modules if name.partition('.')[0] in heavy}\n"
        "loaded |= {name for name in sys.modules if name.startswith('planner.backends')}\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120)


def verified_in_s(instance: Instance, **options: object) -> float:
    """CPU time of the verification of a job that is solved for it."""
    document = json.loads(json.dumps(solve(instance, **options).to_json()))  # type: ignore[arg-type]
    began = time.process_time()
    found = verify(instance, document)
    assert found.violations == ()
    assert document["certificate"]["grade"] == found.grade
    return time.process_time() - began


def test_a_job_of_2048_gpus_is_verified_in_time() -> None:
    assert verified_in_s(load_instance("dense-17b-2-buildings")) < LONGEST_S


def test_a_proof_of_infeasibility_is_verified() -> None:
    document = instance_document("tiny")
    for site in document["cluster"]["sites"]:
        site["memory_limit_bytes"] = 1 << 28
    assert verified_in_s(with_fixes(load_instance(document), FIXES)) < LONGEST_S


def test_an_answer_within_a_gap_is_verified() -> None:
    instance = with_fixes(load_instance("tiny"), FIXES)
    document = json.loads(json.dumps(solve(instance, gap=0.5).to_json()))
    found = verify(instance, document)
    assert found.violations == ()
    assert found.grade == document["certificate"]["grade"] == "open"
    assert found.bound_us is not None
    assert found.time_us is not None
    assert found.bound_us < found.time_us
    document["lower_bound_s"] = (found.bound_us + 1) / 1e6
    assert "lower_bound_s" in {v.rule for v in verify(instance, document).violations}


def test_certify_asks_a_second_engine() -> None:
    fixes = [
        *("tp=1", "cp=1", "micro_batch_size=1", "pp=2", "dp=4", "placement_kind=pp-out", "ep=4"),
        *("dp_shard=4", "recompute=none", "schedule=1f1b", "sharding=zero1"),
    ]
    instance = with_fixes(load_instance("tiny"), fixes)
    document = json.loads(json.dumps(solve(instance, certify=True, workers=1).to_json()))
    entries = [e for e in document["certificate"]["cases"] if e["rule"] in ("model", "layers")]
    assert entries
    for entry in entries:
        assert entry["second"]["agrees"], entry
        assert entry["second"]["engine"].partition(" ")[0] != entry["engine"].partition(" ")[0]
    found = verify(instance, document)
    assert found.violations == ()
    assert any("agrees" in name for name in found.cases_by_evidence)
