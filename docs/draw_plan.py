"""Draw where a plan runs, site by site, as an SVG: ``python docs/draw_plan.py PLAN.json OUT.svg``.

``PLAN.json`` is a solve document, as ``planner solve -o`` writes it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

WIDTH = 860
MARGIN = 24
GAP = 72
HEAD = 92
ROW = 22
MOST_ROWS = 16
COLOURS = ("#2f6f9f", "#3f8f6b", "#b0722d", "#8a5aa3", "#a8474f", "#5a7d2a")


def text(x: float, y: float, words: str, size: int = 13, **more: str) -> str:
    """Return a text element."""
    attributes = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}"{attributes}>{escape(words)}</text>'


def replicas_by_site(plan: dict[str, Any]) -> dict[str, list[int]]:
    """Return the replicas of every stage at every site that the plan uses."""
    grid: dict[str, list[int]] = {}
    for part in plan["placement"]:
        row = grid.setdefault(part["site"], [0] * plan["pp"])
        for stage in range(part["first_stage"], part["last_stage"] + 1):
            row[stage] += part["replicas"]
    return grid


def stage_rows(plan: dict[str, Any], grid: dict[str, list[int]]) -> list[tuple[int, int]]:
    """Return the stages, one a row; runs of stages with equal replicas where they are many."""
    if plan["pp"] <= MOST_ROWS:
        return [(stage, stage) for stage in range(plan["pp"])]
    rows = groupby(range(plan["pp"]), key=lambda stage: [row[stage] for row in grid.values()])
    runs = [list(run) for _, run in rows]
    return [(run[0], run[-1]) for run in runs]


def heading(document: dict[str, Any]) -> Iterator[str]:
    """Yield the title and the two lines of figures."""
    plan = document["plan"]
    seconds, bound = document["iteration_time_s"], document["lower_bound_s"]
    proof = "proven" if document["status"] == "OPTIMAL" else f"at least {bound:.3f} s"
    yield text(MARGIN, 30, document.get("instance", "plan"), 17, font_weight="600")
    yield text(MARGIN, 52, f"{seconds:.3f} s an iteration, {proof}; {plan['gpus_used']:,} GPUs")
    degrees = ", ".join(f"{name} {plan[name]}" for name in ("tp", "cp", "ep", "pp", "dp"))
    choices = f"{degrees}; {plan['schedule']}, {plan['sharding']}, {plan['sync']}"
    yield text(MARGIN, 72, choices, fill="#555")


def panel(
    plan: dict[str, Any], site: str, row: list[int], rows: list[tuple[int, int]], x: float, w: float
) -> Iterator[str]:
    """Yield one site: a frame, its name, and a bar of replicas for every stage."""
    height = ROW * len(rows) + 44
    gpus = sum(row) * plan["tp"] * plan["cp"]
    yield (
        f'<rect x="{x:.1f}" y="{HEAD}" width="{w:.1f}" height="{height}" rx="6" '
        'fill="#fff" stroke="#bbb"/>'
    )
    yield text(x + 12, HEAD + 22, site, 14, font_weight="600")
    yield text(x + w - 12, HEAD + 22, f"{gpus:,} GPUs", 12, text_anchor="end", fill="#555")
    for i, (first, last) in enumerate(rows):
        y = HEAD + 34 + ROW * i
        name = f"stage {first}" if first == last else f"stages {first}-{last}"
        yield text(x + 12, y + 15, name, 11, fill="#555")
        if row[first]:
            length = max(3.0, (w - 180) * row[first] / plan["dp"])
            colour = COLOURS[i % len(COLOURS)]
            yield (
                f'<rect x="{x + 80:.1f}" y="{y + 3}" width="{length:.1f}" height="{ROW - 7}" '
                f'rx="2" fill="{colour}"/>'
            )
            yield text(x + 86 + length, y + 15, f"{row[first]:,} replicas", 11)


def crossing(plan: dict[str, Any], left: float, right: float, y: float) -> Iterator[str]:
    """Yield the arrow between two neighbours and what crosses it."""
    crosses = {"dp-out": "gradients", "pp-out": "activations", "mixed": "both"}
    yield (
        f'<line x1="{left + 6:.1f}" y1="{y}" x2="{right - 6:.1f}" y2="{y}" stroke="#555" '
        'stroke-width="1.5" marker-start="url(#tip)" marker-end="url(#tip)"/>'
    )
    middle = (left + right) / 2
    yield text(middle, y - 8, crosses[plan["placement_kind"]], 11, text_anchor="middle")


def draw(document: dict[str, Any]) -> str:
    """Return the SVG of a solve document."""
    plan = document["plan"]
    grid = replicas_by_site(plan)
    rows = stage_rows(plan, grid)
    gap = GAP if plan["placement_kind"] != "single-site" else MARGIN
    width = (WIDTH - 2 * MARGIN - gap * (len(grid) - 1)) / len(grid)
    height = HEAD + ROW * len(rows) + 44
    parts = list(heading(document))
    for i, (site, row) in enumerate(grid.items()):
        x = MARGIN + i * (width + gap)
        parts += panel(plan, site, row, rows, x, width)
        if i:
            parts += crossing(plan, x - gap, x, (HEAD + height) / 2)
    names = sorted({choice["protocol"] for choice in plan["protocols"]})
    if names:
        parts.append(text(MARGIN, height + 24, f"between sites: {', '.join(names)}", 12))
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height + 40}" '
        f'width="{WIDTH}" height="{height + 40}" font-family="Helvetica, Arial, sans-serif" '
        'fill="#222">\n<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" '
        'markerWidth="7" markerHeight="7" orient="auto-start-reverse">'
        '<path d="M0 0 L8 4 L0 8 Z" fill="#555"/></marker></defs>\n'
        f'<rect width="100%" height="100%" fill="#fafafa"/>\n{body}\n</svg>\n'
    )


def main() -> None:
    """Draw the plan named on the command line."""
    source, target = sys.argv[1:]
    document = json.loads(Path(source).read_text(encoding="utf-8"))
    Path(target).write_text(draw(document), encoding="utf-8")


if __name__ == "__main__":
    main()
