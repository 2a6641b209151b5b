"""Sweeps for the benches: run or continued in a folder, and read back as times by axis value."""

from __future__ import annotations

import argparse
import csv
import math
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.report.figures.drawings import encoded
from planner.report.sweeps.table import SweepRow, SweepTable, read_sweep
from planner.sweeps.run import sweep

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"


@dataclass(frozen=True)
class Times:
    """The rows of a finished sweep.

    Attributes
    ----------
    table
        The sweep as the pictures read it.
    cpu_s
        Processor time of all solves, s.
    """

    table: SweepTable
    cpu_s: float

    def row(self, variant: str, **values: float) -> SweepRow:
        """The row of a variant at these values of the axes.

        Raises
        ------
        KeyError
            If there is none.
        """
        place = tuple(
            next(
                axis.numbers.index(values[axis.name])
                for axis in dimension.axes
                if axis.name in values and axis.numbers is not None
            )
            for dimension in self.table.dimensions
        )
        for row in self.table.rows:
            if row.place == place and row.variant == variant:
                return row
        raise KeyError((variant, values))

    def time_s(self, variant: str, **values: float) -> float:
        """Proven optimum of a variant, s; infinite where no plan exists.

        Raises
        ------
        ValueError
            If the optimum is not proven.
        """
        row = self.row(variant, **values)
        if row.values["status"] == "INFEASIBLE":
            return math.inf
        if row.values["status"] != "OPTIMAL" or row.time_s is None:
            raise ValueError(f"{self.table.name} {variant} {values}: {row.values['status']}")
        return row.time_s

    def numbers(self, name: str) -> tuple[float, ...]:
        """The values of an axis."""
        for dimension in self.table.dimensions:
            for axis in dimension.axes:
                if axis.name == name and axis.numbers is not None:
                    return axis.numbers
        raise KeyError(name)


def run(source: str | Mapping[str, Any], folder: Path) -> Times:
    """Run a sweep, or what is missing of it, with one worker, and read its table."""
    name = source if isinstance(source, str) else source["name"]
    place = folder / name
    print(f"{name} in {place}", file=sys.stderr)
    if sweep(source, place, workers=1).interrupted:
        raise KeyboardInterrupt
    with (place / "results.csv").open(encoding="utf-8", newline="") as file:
        cpu_s = sum(float(row["run_cpu_time_s"] or 0) for row in csv.DictReader(file))
    return Times(read_sweep(place), cpu_s)


def crossing(xs: Sequence[float], ratios: Sequence[float], level: float) -> float | None:
    """Where a ratio first reaches a level from below, on a logarithmic axis.

    Between two points the ratio is taken as linear in the logarithm; None where it never does, the
    first value where it is there from the beginning.
    """
    before: tuple[float, float] | None = None
    for x, ratio in zip(xs, ratios, strict=True):
        if ratio >= level:
            if before is None or not math.isfinite(ratio):
                return x
            share = (level - before[1]) / (ratio - before[1])
            return float(before[0] * (x / before[0]) ** share)
        before = (x, ratio)
    return None


def picture(name: str, figure: Any) -> None:
    """Write a figure as ``docs/images/NAME.svg``."""
    (IMAGES / f"{name}.svg").write_bytes(encoded(figure, "svg"))


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table in Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def in_folder(description: str, write: Callable[[Path], None]) -> None:
    """Write a page from the command line, its sweeps in the folder that ``-o`` keeps."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, help="folder of the sweeps, kept")
    with tempfile.TemporaryDirectory() as temporary:
        write(parser.parse_args().output or Path(temporary))
