"""Sweeps on a Dask cluster: lost workers, stops, errors."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest
from fake_points import small
from test_sweep_isolation import processes_with
from test_sweep_run import stable, wait_until_gone

from planner.cli import main
from planner.instance.errors import InputError
from planner.sweeps import cluster
from planner.sweeps.cluster import ClusterError
from planner.sweeps.run import SweepProgress, sweep

pytestmark = pytest.mark.filterwarnings("default")
"""Dask and its event loop warn at their own end."""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


def test_a_lost_worker_changes_nothing(tmp_path: Path, temporary: Path) -> None:
    import psutil

    killed: list[int] = []

    def kill_one(state: SweepProgress) -> None:
        if state.done >= 2 and not killed:
            workers = [
                process
                for process in psutil.Process().children()
                if "spawn_main" in " ".join(process.cmdline())
            ]
            assert len(workers) == 2
            killed.append(workers[0].pid)
            workers[0].kill()

    result = sweep(
        small(),
        tmp_path / "cluster",
        local_cluster=2,
        progress=kill_one,
        function="fake_points:slow",
    )
    assert len(killed) == 1
    assert (result.statuses, result.failed) == ({"OPTIMAL": 8}, 0)
    wait_until_gone(temporary)
    assert list(temporary.iterdir()) == []
    sweep(small(), tmp_path / "here", workers=2)
    assert stable(tmp_path / "cluster") == stable(tmp_path / "here")


def test_an_interrupt_stops_the_points_of_the_workers(tmp_path: Path, temporary: Path) -> None:
    def interrupt(state: SweepProgress) -> None:
        if state.elapsed_s > 3 and len(processes_with(temporary)) >= 2:
            raise KeyboardInterrupt

    result = sweep(
        small(), tmp_path / "out", local_cluster=2, progress=interrupt, function="fake_points:hang"
    )
    assert result.interrupted
    wait_until_gone(temporary)
    assert list(temporary.iterdir()) == []


def test_a_scheduler_that_is_not_there_is_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cluster, "CONNECT_LIMIT_S", 0.5)
    with pytest.raises(InputError, match="no Dask scheduler answers at tcp://127"):
        sweep(small(), tmp_path, scheduler="tcp://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert (
        main(["sweep", "dense-17b-oversubscription", "-o", str(tmp_path), "--local-cluster=1"]) == 2
    )
    assert "pip install 'scaleacross-planner[cluster]'" in capsys.readouterr().err


def test_a_scheduler_without_workers_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import distributed

    monkeypatch.setattr(cluster, "WORKERS_LIMIT_S", 0.5)
    with (
        distributed.LocalCluster(n_workers=0, dashboard_address=None, processes=True) as empty,
        pytest.raises(ClusterError, match="no Dask worker appeared"),
    ):
        sweep(small(), tmp_path, scheduler=empty.scheduler_address)
