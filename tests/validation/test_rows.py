"""Reading rows: files, objects and what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from planner import cli
from planner.instance.errors import InputError
from planner.validation.rows import read_runs


def test_lists_and_wrapped_lists_are_read(tmp_path: Path) -> None:
    rows = [{"id": "a", "source": "s", "model": None}, {"source": "t"}]
    for document in (rows, {"runs": rows}, {"rows": rows}):
        path = tmp_path / "runs.json"
        path.write_text(json.dumps(document), "utf-8")
        assert [(run.id, run.source) for run in read_runs(path)] == [("a", "s"), (None, "t")]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"a": 1}, "expected a list of runs, got an object"),
        ({"runs": [], "rows": [{}]}, "runs.json: has both 'runs' and 'rows'; give one list"),
        ([1], r"\[0\]: expected an object, got 1"),
        (
            [{"model": {"layers": -3}}],
            r"\[0\].model.layers: expected greater than or equal to 1, got -3",
        ),
        (
            [{}, {"parallel": {"tp": "two"}}],
            r"\[1\].parallel.tp: expected a valid integer, got text",
        ),
        ([{"measured": {"iter_time_s": 0}}], r"\[0\].measured.iter_time_s: expected greater than"),
        ([{"model": {"layers": True}}], r"\[0\].model.layers: expected a valid integer, got true"),
        ([{"id": True}], r"\[0\].id: expected a valid string, got true"),
        ([{"source": "overall"}], r"\[0\].source: 'overall' is the name of the whole summary"),
        ([{"parallel": {"vp": 10**9}}], r"\[0\].parallel.vp: expected less than or equal to 1024"),
        ([{"measured": {"mfu": 1e308}}], r"\[0\].measured.mfu: expected less than"),
        (
            [{"stage_profile": {"stages": 10**9, "microbatches": 1, "F_s": 1}}],
            r"\[0\].stage_profile.stages: expected less than or equal to 4096",
        ),
        ([{"model": {"mla": {"q_lora": 1}}}], r"\[0\].model.mla.kv_lora: missing"),
    ],
)
def test_faulty_rows_name_the_field(tmp_path: Path, document: Any, message: str) -> None:
    path = tmp_path / "runs.json"
    path.write_text(json.dumps(document), "utf-8")
    with pytest.raises(InputError, match=message):
        read_runs(path)


def test_command_prints_errors_and_skips(tmp_path: Path, raw_runs: list[dict[str, Any]]) -> None:
    path = tmp_path / "runs.json"
    path.write_text(json.dumps(raw_runs[-20:] + raw_runs[:3]), "utf-8")
    runner = CliRunner()
    shown = runner.invoke(cli.cli, ["validate", str(path)], standalone_mode=False)
    assert shown.return_value == 0
    assert "overall" in shown.stdout
    assert "predicted best" in shown.stdout
    as_json = runner.invoke(cli.cli, ["validate", str(path), "--json"], standalone_mode=False)
    assert len(json.loads(as_json.stdout)["rows"]) == 23


@pytest.mark.parametrize("name", ["missing.json", "text.json"])
def test_command_refuses_files_in_one_line(tmp_path: Path, name: str, capsys: Any) -> None:
    (tmp_path / "text.json").write_text("tokens/s: 12", "utf-8")
    assert cli.main(["validate", str(tmp_path / name)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert name in error
