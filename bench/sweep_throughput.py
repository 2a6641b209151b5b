"""1,000 points of the 17B job on two workers: ``python bench/sweep_throughput.py``.

Kills the sweep once on the way and starts it again, runs it once more on a local Dask cluster of
which one worker is killed, and compares both tables with that of the undisturbed run.  Writes
``bench/results/sweep_throughput.md``.  ``--points N`` runs the disturbed ones on about N points.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil

from planner.instance.load import shipped_directory
from planner.sweeps.run import SweepProgress, sweep
from planner.sweeps.table import RUN_PREFIX
from planner.versions import versions

ROOT = Path(__file__).resolve().parents[1]
SWEEP = "dense-17b-oversubscription"
WORKERS = 2
RESULTS = Path(__file__).parent / "results" / "sweep_throughput.md"


def shortened(num_points: int) -> dict[str, Any]:
    """The sweep with evenly spaced oversubscriptions left, so that about so many points are."""
    document = json.loads((shipped_directory() / "sweeps" / f"{SWEEP}.json").read_text("utf-8"))
    axis = document["axes"][1]
    values = axis["log"]["num"]
    axis["log"]["num"] = max(2, round(values * num_points / 1000))
    found: dict[str, Any] = document
    return found


def start(source: str, folder: Path) -> subprocess.Popen[bytes]:
    """A sweep as a command."""
    command = [sys.executable, "-m", "planner", "sweep", source, "-o", str(folder)]
    return subprocess.Popen([*command, "--workers", str(WORKERS)], cwd=ROOT)


def table(folder: Path) -> list[dict[str, str]]:
    """The rows of a finished sweep."""
    with (folder / "results.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def stable(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """The rows without the columns that differ from run to run."""
    return [{k: v for k, v in row.items() if not k.startswith(RUN_PREFIX)} for row in rows]


def num_points(folder: Path) -> int:
    """Results in a folder."""
    return len(list(folder.glob("points/*.json")))


def killed_and_restarted(source: str, folder: Path, total: int) -> tuple[int, int]:
    """Kill a sweep at a random moment, then let it end; points then, and seconds of the rest."""
    process = start(source, folder)
    moment = random.randint(total // 10, total - total // 10)
    while num_points(folder) < moment and process.poll() is None:
        time.sleep(random.uniform(0.1, 1))
    process.kill()
    process.wait()
    kept = num_points(folder)
    began = time.monotonic()
    start(source, folder).wait()
    return kept, round(time.monotonic() - began)


def without_a_worker(source: str, folder: Path, total: int) -> int:
    """Run a sweep on a local Dask cluster and kill one of its workers; points until then."""
    moment = random.randint(total // 10, total - total // 10)
    killed: list[int] = []

    def kill_one(state: SweepProgress) -> None:
        if state.done >= moment and not killed:
            workers = [
                child
                for child in psutil.Process().children()
                if "spawn_main" in " ".join(child.cmdline())
            ]
            workers[0].kill()
            killed.append(state.done)

    sweep(source, folder, local_cluster=WORKERS, progress=kill_one)
    return killed[0]


def timed(action: Callable[[], object]) -> float:
    """Seconds that something takes."""
    began = time.monotonic()
    action()
    return time.monotonic() - began


def main() -> None:
    """Run the sweeps and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=1000, help="of the disturbed runs")
    wanted = parser.parse_args().points
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        seconds = timed(lambda: start(SWEEP, folder / "whole").wait())
        rows = table(folder / "whole")
        source, alike = SWEEP, rows
        if wanted < len(rows):
            source = str(folder / "shortened.json")
            Path(source).write_text(json.dumps(shortened(wanted)), encoding="utf-8")
            start(source, folder / "undisturbed").wait()
            alike = table(folder / "undisturbed")
        kept, rest_s = killed_and_restarted(source, folder / "broken", len(alike))
        same = stable(table(folder / "broken")) == stable(alike)
        lost_at = without_a_worker(source, folder / "cluster", len(alike))
        same_cluster = stable(table(folder / "cluster")) == stable(alike)
    RESULTS.write_text(
        "\n".join(
            page(
                rows,
                seconds,
                [
                    f"| disturbed runs | {len(alike):,} points |",
                    f"| killed with SIGKILL after, and the rest took | {kept} points, {rest_s} s |",
                    f"| table of the restarted sweep equals the undisturbed one | {yes(same)} |",
                    f"| local Dask cluster, one of {WORKERS} workers killed after | "
                    f"{lost_at} points |",
                    f"| table of the cluster equals the undisturbed one | {yes(same_cluster)} |",
                ],
            )
        ),
        encoding="utf-8",
    )


def yes(truth: bool) -> str:
    """In words."""
    return "yes" if truth else "no"


def page(rows: list[dict[str, str]], seconds: float, disturbed: list[str]) -> list[str]:
    """The lines of the results page."""
    busy = [float(row["run_cpu_time_s"]) for row in rows]
    statuses = ", ".join(f"{n} {count}" for n, count in Counter(r["status"] for r in rows).items())
    used = ", ".join(f"{name} {version}" for name, version in versions().items())
    return [
        "# Throughput of a sweep",
        "",
        f"`{SWEEP}`, {len(rows):,} points on {WORKERS} workers. {platform.platform()}, "
        f"{os.cpu_count()} cores, load {os.getloadavg()[2]:.1f} (15 min); {used}.",
        "",
        "| what | value |",
        "|---|---|",
        f"| wall time of the whole sweep | {seconds:.0f} s |",
        f"| processor time of a point: mean, median, largest | {mean(busy):.2f}, "
        f"{median(busy):.2f}, {max(busy):.2f} s |",
        f"| processor time of all points, over {WORKERS} | {sum(busy) / WORKERS:.0f} s |",
        f"| points by status | {statuses} |",
        *disturbed,
        "",
    ]


if __name__ == "__main__":
    main()
