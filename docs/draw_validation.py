"""Predicted against measured iteration times: ``python docs/draw_validation.py RUNS.json OUT.svg``.

Also prints the error table of ``docs/validation.md``.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path

from planner.validation.validate import Prediction, Validation, validate_runs

WIDTH, HEIGHT, LEFT, TOP, SIDE = 900, 560, 70, 30, 480
COLOURS = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#d55e00",
    "#cc79a7",
    "#56b4e9",
    "#8c6d00",
    "#555555",
    "#7a4fa3",
    "#b22222",
    "#3b7a3b",
    "#2f4b7c",
)
SHAPES = ("circle", "square", "diamond")


def short(source: str) -> str:
    """Return a source without its remarks in brackets."""
    return re.sub(r" \([^)]*\)", "", source).removeprefix("NVIDIA ").strip()


def table(validation: Validation) -> Iterator[str]:
    """Yield the lines of the error table in Markdown."""
    yield "| source | time: n | mean | median | p90 | bias | memory: n | mean | worst | bias |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    for source, parts in validation.summary.items():
        time, memory = parts["time"], parts["memory"]
        if not time.n and not memory.n:
            continue
        cells = [short(source)]
        cells += [str(time.n or "")] + [
            "" if v is None else f"{100 * v:.1f} %"
            for v in (time.mape, time.median_ape, time.p90_ape, time.bias)
        ]
        errors = [
            abs(row.memory_error)
            for row in validation.rows
            if source in (row.family, "overall") and row.memory_error is not None
        ]
        worst = max(errors, default=None)
        cells += [str(memory.n or "")] + [
            "" if v is None else f"{100 * v:.1f} %" for v in (memory.mape, worst, memory.bias)
        ]
        yield "| " + " | ".join(cells) + " |"


def mark(kind: str, x: float, y: float, colour: str) -> str:
    """Return a small mark."""
    style = f'fill="{colour}" fill-opacity="0.65" stroke="{colour}" stroke-width="0.6"'
    if kind == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.4" {style}/>'
    if kind == "square":
        return f'<rect x="{x - 3:.1f}" y="{y - 3:.1f}" width="6" height="6" {style}/>'
    points = f"{x:.1f},{y - 4:.1f} {x + 4:.1f},{y:.1f} {x:.1f},{y + 4:.1f} {x - 4:.1f},{y:.1f}"
    return f'<polygon points="{points}" {style}/>'


def picture(validation: Validation) -> str:
    """Return the scatter plot on logarithmic axes."""
    shown = [row for row in validation.rows if row.time_error is not None]
    values = [v for row in shown for v in (row.predicted_time_s, row.measured_time_s) if v]
    low = math.floor(math.log10(min(values)))
    high = math.ceil(math.log10(max(values)))

    def at(seconds: float) -> float:
        return (math.log10(seconds) - low) / (high - low) * SIDE

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="system-ui, sans-serif" font-size="13" role="img" '
        'aria-label="Predicted against measured iteration time">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<rect x="{LEFT}" y="{TOP}" width="{SIDE}" height="{SIDE}" fill="none" stroke="#888"/>',
    ]
    for power in range(low, high + 1):
        x, y = LEFT + at(10.0**power), TOP + SIDE - at(10.0**power)
        label = f"{10.0**power:g} s"
        parts += [
            f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{TOP + SIDE}" stroke="#ddd"/>',
            f'<line x1="{LEFT}" y1="{y:.1f}" x2="{LEFT + SIDE}" y2="{y:.1f}" stroke="#ddd"/>',
            f'<text x="{x:.1f}" y="{TOP + SIDE + 18}" text-anchor="middle">{label}</text>',
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>',
        ]
    for factor, dash in ((1.0, ""), (1.1, "4 3"), (1 / 1.1, "4 3")):
        shift = math.log10(factor) / (high - low) * SIDE
        x1, y1 = LEFT + max(0.0, -shift), TOP + SIDE - max(0.0, shift)
        x2, y2 = LEFT + SIDE - max(0.0, shift), TOP + max(0.0, -shift)
        parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#333" '
            f'stroke-dasharray="{dash}"/>'
        )
    sources: dict[str, list[Prediction]] = {}
    for row in shown:
        sources.setdefault(short(row.family), []).append(row)
    for i, (source, rows) in enumerate(sources.items()):
        colour, kind = COLOURS[i % len(COLOURS)], SHAPES[i % len(SHAPES)]
        for row in rows:
            assert row.measured_time_s is not None
            assert row.predicted_time_s is not None
            parts.append(
                mark(
                    kind,
                    LEFT + at(row.measured_time_s),
                    TOP + SIDE - at(row.predicted_time_s),
                    colour,
                )
            )
        y = TOP + 14 + 22 * i
        parts += [
            mark(kind, LEFT + SIDE + 24, y - 4, colour),
            f'<text x="{LEFT + SIDE + 36}" y="{y}">{escape(source[:42])} ({len(rows)})</text>',
        ]
    middle = TOP + SIDE / 2
    parts += [
        f'<text x="{LEFT + SIDE / 2}" y="{TOP + SIDE + 40}" text-anchor="middle">measured</text>',
        f'<text x="18" y="{middle}" text-anchor="middle" '
        f'transform="rotate(-90 18 {middle})">predicted</text>',
        f'<text x="{LEFT + SIDE + 20}" y="{TOP + SIDE - 6}" fill="#444">'
        "dashed: 10 % too long or too short</text>",
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def main(runs: str, out: str) -> None:
    """Write the picture and print the table."""
    validation = validate_runs(runs)
    Path(out).write_text(picture(validation), encoding="utf-8")
    print("\n".join(table(validation)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
