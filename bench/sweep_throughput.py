"""1,000 points of the 17B job on two workers: ``python bench/sweep_throughput.py``.

Kills the sweep once on the way and starts it again, then compares its table with that of an
undisturbed run.  Writes ``bench/results/sweep_throughput.md``.
"""

from __future__ import annotations

import csv
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import mean, median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from planner.sweeps.table import RUN_PREFIX
from planner.versions import versions

ROOT = Path(__file__).resolve().parents[1]
SWEEP = "dense-17b-oversubscription"
WORKERS = 2
RESULTS = Path(__file__).parent / "results" / "sweep_throughput.md"


def start(folder: Path) -> subprocess.Popen[bytes]:
    """The sweep as a command."""
    command = [sys.executable, "-m", "planner", "sweep", SWEEP, "-o", str(folder)]
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


def killed_and_restarted(folder: Path, total: int) -> tuple[int, int]:
    """Kill a sweep at a random moment, then let it end; points then, and seconds of the rest."""
    process = start(folder)
    moment = random.randint(total // 10, total - total // 10)
    while num_points(folder) < moment and process.poll() is None:
        time.sleep(random.uniform(0.1, 1))
    process.kill()
    process.wait()
    kept = num_points(folder)
    began = time.monotonic()
    start(folder).wait()
    return kept, round(time.monotonic() - began)


def main() -> None:
    """Run both sweeps and write the page."""
    with tempfile.TemporaryDirectory() as name:
        whole, broken = Path(name) / "whole", Path(name) / "broken"
        began = time.monotonic()
        start(whole).wait()
        seconds = time.monotonic() - began
        rows = table(whole)
        kept, rest_s = killed_and_restarted(broken, len(rows))
        same = stable(table(broken)) == stable(rows)
    busy = [float(row["run_cpu_time_s"]) for row in rows]
    statuses = ", ".join(f"{n} {count}" for n, count in Counter(r["status"] for r in rows).items())
    used = ", ".join(f"{name} {version}" for name, version in versions().items())
    lines = [
        "# Throughput of a sweep",
        "",
        f"`{SWEEP}`, {len(rows):,} points on {WORKERS} workers. {platform.platform()}, "
        f"{os.cpu_count()} cores, load {os.getloadavg()[2]:.1f} (15 min); {used}.",
        "",
        "| what | value |",
        "|---|---|",
        f"| time of the whole sweep | {seconds:.0f} s |",
        f"| processor time of a point: mean, median, largest | {mean(busy):.2f}, "
        f"{median(busy):.2f}, {max(busy):.2f} s |",
        f"| processor time of all points, over {WORKERS} | {sum(busy) / WORKERS:.0f} s |",
        f"| points by status | {statuses} |",
        f"| killed with SIGKILL after, and the rest took | {kept} points, {rest_s} s |",
        f"| table of the restarted sweep equals the undisturbed one | {'yes' if same else 'no'} |",
        "",
    ]
    RESULTS.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
