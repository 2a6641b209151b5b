"""Sweeps as a whole: the table, going on after any end, full disks, interrupts."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from fake_points import SICK, small
from test_sweep_isolation import processes_with

from planner.check import check_plan
from planner.cli import main
from planner.instance import load_instance
from planner.instance.errors import InputError
from planner.plan import parse_plan
from planner.report.output import OutputError
from planner.sweeps import table as table_module
from planner.sweeps.dry_run import dry_run
from planner.sweeps.load import load_sweep
from planner.sweeps.neighbours import PlanBook
from planner.sweeps.points import expand
from planner.sweeps.run import SweepProgress, SweepResult, parse_shard, sweep
from planner.sweeps.table import RUN_PREFIX, columns

ROOT = Path(__file__).resolve().parents[2]
SLOW = "fake_points:slow"


def stable(folder: Path) -> list[dict[str, str]]:
    """The table without the columns that differ from run to run."""
    with (folder / "results.csv").open(encoding="utf-8", newline="") as file:
        return [
            {name: text for name, text in row.items() if not name.startswith(RUN_PREFIX)}
            for row in csv.DictReader(file)
        ]


def copied(finished: tuple[Path, SweepResult], folder: Path, *, without: int) -> Path:
    """A sweep that lacks the results of its last points."""
    shutil.copytree(finished[0] / "points", folder / "points")
    for point in expand(load_sweep(small()))[8 - without :]:
        (folder / "points" / f"{point.key}.json").unlink()
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SweepResult]:
    """The small sweep, undisturbed, on one worker."""
    folder = tmp_path_factory.mktemp("finished") / "out"
    return folder, sweep(small(), folder)


def test_every_row_is_a_checked_optimum(finished: tuple[Path, SweepResult]) -> None:
    folder, result = finished
    assert (result.statuses, result.failed, result.missing) == ({"OPTIMAL": 8}, 0, 0)
    for point, row in zip(expand(load_sweep(small())), result.rows, strict=True):
        assert (row["point"], row["variant"]) == (point.number, point.variant)
        kept = json.loads((folder / "points" / f"{point.key}.json").read_text(encoding="utf-8"))
        plan = parse_plan(kept["solve"]["plan"])
        report = check_plan(load_instance(point.document), plan)
        assert report.feasible
        assert report.time_us == round(float(str(row["iteration_time_s"])) * 1e6)
        parts = [float(str(row[f"breakdown_{n}_s"])) for n in table_module.BREAKDOWN]
        assert sum(parts) == pytest.approx(row["iteration_time_s"])
        assert (row["plan_pp"], row["gap"]) == ({"one": 1, "two": 2}[point.variant], 0.0)
        assert row["plan_layers_per_stage"] == ",".join(map(str, plan.layers_per_stage))


def test_csv_and_parquet_hold_the_same_table(finished: tuple[Path, SweepResult]) -> None:
    folder, result = finished
    table = pyarrow.parquet.read_table(folder / "results.parquet")
    assert table.column_names == [column.name for column in result.columns]
    assert table.to_pylist() == list(result.rows)
    kinds = {c.name: str(table.schema.field(c.name).type) for c in result.columns}
    assert kinds["axis_bandwidth"] == "int64"
    assert (kinds["gap"], kinds["plan_overlap"], kinds["variant"]) == ("double", "bool", "string")
    with (folder / "results.csv").open(encoding="utf-8", newline="") as file:
        read = list(csv.DictReader(file))
    for row, texts in zip(result.rows, read, strict=True):
        for name, value in row.items():
            if isinstance(value, bool):
                assert texts[name] == str(value).lower()
            elif value is None:
                assert texts[name] == ""
            else:
                assert type(value)(texts[name]) == value


def test_the_documentation_names_every_column() -> None:
    page = (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8")
    for column in columns([]):
        name = column.name
        if name.startswith("breakdown_"):
            name = "_" + name.removeprefix("breakdown_")
        assert f"`{name}`" in page or f"breakdown{name}`" in page, name


def test_a_rerun_solves_nothing(
    finished: tuple[Path, SweepResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, result = finished
    before = stable(folder)
    monkeypatch.setattr("planner.sweeps.run.LocalExecutor", None)
    again = sweep(small(), folder)
    assert again.rows == result.rows
    assert stable(folder) == before


def test_workers_shards_and_starts_do_not_change_the_table(
    finished: tuple[Path, SweepResult], tmp_path: Path
) -> None:
    copied(finished, tmp_path, without=4)
    states: list[SweepProgress] = []
    first = sweep(small(), tmp_path, workers=2, shard=(1, 2), progress=states.append)
    assert 0 < first.missing < 4
    assert len(first.rows) + first.missing == 8
    last = sweep(small(reuse_plans=False), tmp_path, shard=(2, 2))
    assert last.missing == 0
    assert stable(tmp_path) == stable(finished[0])
    solved = 4 - first.missing
    assert (states[-1].done, states[-1].total, states[-1].failed) == (solved, solved, 0)
    assert (states[-1].kept, states[-1].left_s) == (4, 0)


def test_a_changed_sweep_keeps_what_it_shares(
    finished: tuple[Path, SweepResult], tmp_path: Path
) -> None:
    copied(finished, tmp_path, without=0)
    longer = small()
    longer["axes"][0]["values"] = [300, 200]
    states: list[SweepProgress] = []
    result = sweep(longer, tmp_path, progress=states.append)
    assert (states[-1].kept, states[-1].total) == (2, 2)
    assert [row["axis_bandwidth"] for row in result.rows] == [300, 300, 200, 200]


def test_a_failed_point_is_a_row_and_can_be_tried_again(
    finished: tuple[Path, SweepResult], tmp_path: Path
) -> None:
    copied(finished, tmp_path, without=6)
    result = sweep(small(), tmp_path, workers=2, function="fake_points:segfault")
    assert (result.statuses, result.failed) == ({"OPTIMAL": 7, "CRASHED": 1}, 1)
    rows = stable(tmp_path)
    good = stable(finished[0])
    odd = [i for i, row in enumerate(rows) if row != good[i]]
    assert len(odd) == 1
    assert (rows[odd[0]]["axis_bandwidth"], rows[odd[0]]["variant"]) == (str(SICK), "two")
    assert rows[odd[0]]["reason"] == "the process was ended by SIGSEGV"
    assert sweep(small(), tmp_path).statuses == result.statuses
    assert sweep(small(), tmp_path, retry_failed=True).statuses == {"OPTIMAL": 8}
    assert stable(tmp_path) == good


def test_a_refused_combination_is_a_row(tmp_path: Path) -> None:
    document = small(
        fix={"schedule": "1f1b", "tp": 1, "pp": 1},
        axes=[
            {"name": "dp", "fix": "dp", "values": [4, 8]},
            {"name": "m", "fix": "num_microbatches", "values": [1, 2]},
        ],
        variants={"free": {}},
    )
    result = sweep(document, tmp_path, workers=2)
    assert result.statuses == {"OPTIMAL": 3, "INVALID": 1}
    (row,) = [row for row in result.rows if row["status"] == "INVALID"]
    assert (row["axis_dp"], row["axis_m"], row["failed"]) == (8, 2, True)
    assert "gives the global batch of 8" in str(row["reason"])


def command(arguments: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """A sweep in a process of its own whose points take a while."""
    code = (
        "import sys; from planner.sweeps import run; from planner.cli import main\n"
        f"run.sweep.__kwdefaults__['function'] = {SLOW!r}\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    path = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    return subprocess.Popen(
        [sys.executable, "-c", code, "sweep", *arguments],
        env={**os.environ, "PYTHONPATH": path, **options},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.fixture
def sweep_file(tmp_path: Path) -> str:
    file = tmp_path / "small.json"
    file.write_text(json.dumps(small()), encoding="utf-8")
    return str(file)


def wait_for_points(folder: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 120
    while len(list(folder.glob("points/*.json"))) < count:
        assert time.monotonic() < end
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def wait_until_gone(temporary: Path) -> None:
    end = time.monotonic() + 20
    while processes_with(temporary):
        assert time.monotonic() < end, processes_with(temporary)
        time.sleep(0.05)


def test_a_killed_sweep_goes_on_and_ends_with_the_same_table(
    finished: tuple[Path, SweepResult], tmp_path: Path, sweep_file: str
) -> None:
    folder, temporary = tmp_path / "out", tmp_path / "tmp"
    temporary.mkdir()
    copied(finished, folder, without=6)
    for count in (3, 5):
        process = command([sweep_file, "-o", str(folder), "--workers", "2"], TMPDIR=str(temporary))
        wait_for_points(folder, count, process)
        process.kill()
        process.communicate()
        wait_until_gone(temporary)
        assert not (folder / "results.csv").exists()
    kept = len(list(folder.glob("points/*.json")))
    states: list[SweepProgress] = []
    sweep(small(), folder, progress=states.append)
    assert states[-1].kept == kept >= 5
    assert stable(folder) == stable(finished[0])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_all_and_writes_the_table(
    tmp_path: Path, sweep_file: str, number: signal.Signals
) -> None:
    folder, temporary = tmp_path / "out", tmp_path / "tmp"
    temporary.mkdir()
    process = command([sweep_file, "-o", str(folder), "--workers", "2"], TMPDIR=str(temporary))
    wait_for_points(folder, 1, process)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert b"Traceback" not in err
    assert processes_with(temporary) == []
    assert list(temporary.iterdir()) == []
    assert 1 <= len(stable(folder)) < 8
    assert len(stable(folder)) == len(list(folder.glob("points/*.json")))
    assert sorted(p.name for p in folder.iterdir()) == [
        "points",
        "results.csv",
        "results.parquet",
        "sweep.json",
    ]
    assert not [p for p in folder.rglob("*") if p.name.startswith(".")]


@contextlib.contextmanager
def largest_file(size: int) -> Any:
    """No file may grow beyond a size, as on a disk that is nearly full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_a_full_disk_stops_with_an_error_and_no_half_file(tmp_path: Path) -> None:
    with largest_file(2000), pytest.raises(OutputError, match=r"cannot be written: File too large"):
        sweep(small(), tmp_path)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["sweep.json"]
    json.loads((tmp_path / "sweep.json").read_text(encoding="utf-8"))


def test_a_folder_that_cannot_be_written_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("planner.sweeps.run.LocalExecutor", None)
    file = tmp_path / "file"
    file.write_text("", encoding="utf-8")
    for place in ("/proc/planner-sweep", str(file / "out"), str(file)):
        with pytest.raises(InputError, match="cannot be"):
            sweep(small(), place)
        name = tmp_path / "small.json"
        name.write_text(json.dumps(small()), encoding="utf-8")
        assert main(["sweep", str(name), "-o", place]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith(f"error: {place}")
        assert captured.err.count("\n") == 1


@contextlib.contextmanager
def without_privileges() -> Any:
    """Root may write everywhere; somebody else may not."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


def test_a_read_only_folder_is_refused_before_anything_is_solved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("planner.sweeps.run.LocalExecutor", None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "points").mkdir()
        for closed in (folder / "points", folder):
            closed.chmod(0o555)
            with without_privileges(), pytest.raises(InputError, match="cannot be written: Perm"):
                sweep(small(), folder)
            closed.chmod(0o777)
        assert [path.name for path in folder.rglob("*")] == ["points"]


def test_a_spoiled_result_is_named(finished: tuple[Path, SweepResult], tmp_path: Path) -> None:
    key = expand(load_sweep(small()))[0].key
    (tmp_path / "points").mkdir()
    (tmp_path / "points" / f"{key}.json").write_text('{"key": 1}', encoding="utf-8")
    with pytest.raises(InputError, match="is no result of this point"):
        sweep(small(), tmp_path)


def test_a_dry_run_writes_nothing_and_estimates(
    finished: tuple[Path, SweepResult], tmp_path: Path
) -> None:
    shorter = small()
    shorter["axes"][0]["values"] = [50, 100, 300]
    known = dry_run(shorter, finished[0], workers=2)
    assert [planned.fate for planned in known.points] == ["kept"] * 4 + ["solve"] * 2
    assert known.seconds_per_point is not None
    assert known.estimated_s == pytest.approx(known.seconds_per_point)
    fresh = dry_run(small(), tmp_path / "none", workers=2)
    assert (fresh.to_solve, len(fresh.points)) == (8, 8)
    assert fresh.estimated_s is not None
    assert 0 < fresh.estimated_s < 600
    assert not (tmp_path / "none").exists()


def test_the_command_lists_solves_and_prints_json(
    finished: tuple[Path, SweepResult],
    tmp_path: Path,
    sweep_file: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = str(finished[0])
    assert main(["sweep", sweep_file, "-o", folder, "--dry-run"]) == 0
    listed = capsys.readouterr().out
    assert "8 points: kept 8" in listed
    assert main(["sweep", sweep_file, "-o", folder, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["rows"], document["statuses"]) == (8, {"OPTIMAL": 8})
    assert main(["sweep", sweep_file, "-o", folder]) == 0
    assert "8 points: OPTIMAL 8" in capsys.readouterr().out
    for wrong in (
        ["--shard", "0/2"],
        ["--shard", "x"],
        ["--scheduler", "a", "--local-cluster", "2"],
    ):
        assert main(["sweep", sweep_file, "-o", folder, *wrong]) == 2
        assert capsys.readouterr().err.startswith("error: --")


def test_shards_are_read() -> None:
    assert parse_shard("2/3") == (2, 3)
    for wrong in ("", "3/2", "0/1", "1", "1/2/3", "-1/2", "a/b"):
        with pytest.raises(InputError, match="--shard"):
            parse_shard(wrong)


def test_neighbours_are_the_nearest_finished_points() -> None:
    points = {(p.place, p.variant): p for p in expand(load_sweep(small()))}
    book = PlanBook()
    for place, variant, plan in (((0,), "one", "a"), ((3,), "one", "b"), ((2,), "two", "c")):
        book.add(points[place, variant], {"solve": {"plan": {"name": plan}}})
    book.add(points[(1,), "one"], {"solve": None})

    def near(place: tuple[int, ...], variant: str) -> list[str]:
        return [plan["name"] for plan in book.near(points[place, variant])]

    assert near((1,), "one") == ["a", "b"]
    assert near((2,), "one") == ["c", "a", "b"]
    assert near((0,), "two") == ["a", "c"]
    assert near((3,), "two") == ["b", "c"]


def test_without_pyarrow_there_is_a_csv_and_a_note(
    finished: tuple[Path, SweepResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied(finished, tmp_path, without=0)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = sweep(small(), tmp_path)
    assert [path.name for path in result.files] == ["results.csv"]
    assert "pip install 'scaleacross-planner[sweep]'" in result.notes[0]
