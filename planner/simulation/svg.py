"""A timeline as SVG: a row a stage and a row a link, a box an op.

Colours are those of Okabe and Ito, which colour-blind readers tell apart; lines and words follow
the reader's light or dark scheme.  Rows of very many boxes are drawn pixel by pixel, so the size
of a picture is bounded by its rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Literal, NamedTuple

from planner.simulation.measures import Simulation
from planner.simulation.scenario import TICKS_PER_US

Kind = Literal["F", "B", "W", "optimizer", "pp", "dp"]

WIDTH = 1200
LABEL = 150
MARGIN = 16
ROW = 20
HEAD = 78
CHARACTER = 6.5
"""Width of a character of the labels in boxes."""

COLOURS: dict[Kind, str] = {
    "F": "#56b4e9",
    "B": "#e69f00",
    "W": "#009e73",
    "optimizer": "#cc79a7",
    "pp": "#0072b2",
    "dp": "#d55e00",
}

NAMES: dict[Kind, str] = {
    "F": "forward",
    "B": "backward",
    "W": "weight gradient",
    "optimizer": "optimizer",
    "pp": "pipeline transfer",
    "dp": "synchronisation",
}

STYLE = """
text { font-family: Helvetica, Arial, sans-serif; font-size: 12px; fill: #222 }
.title { font-size: 16px; font-weight: 600 }
.soft { fill: #555 }
.in { font-size: 10px; fill: #111; text-anchor: middle }
.lane { fill: #000; fill-opacity: 0.05 }
.page { fill: #fff }
line { stroke: #999; stroke-width: 1 }
@media (prefers-color-scheme: dark) {
  text { fill: #eee }
  .soft { fill: #bbb }
  .in { fill: #111 }
  .lane { fill: #fff; fill-opacity: 0.09 }
  .page { fill: #181a1f }
  line { stroke: #888 }
}
""".strip()


class Box(NamedTuple):
    """Something that takes from ``begin`` to ``end``, in any unit of time."""

    begin: int
    end: int
    kind: Kind
    label: str


class Row(NamedTuple):
    """A row of boxes that do not overlap, ascending; ``gap`` leaves space above it."""

    name: str
    boxes: Sequence[Box]
    gap: bool = False


def draw(rows: Sequence[Row], end: int, title: str, subtitle: str, axis: Sequence[str]) -> str:
    """Return a timeline as SVG text.

    Parameters
    ----------
    rows
        What is drawn, from top to bottom.
    end
        When the timeline ends.
    title, subtitle
        The two lines above it.
    axis
        Labels below, at equal distances from 0 to ``end``.
    """
    parts = [*_heading(rows, title, subtitle)]
    y = HEAD
    scale = (WIDTH - LABEL - 2 * MARGIN) / end
    for row in rows:
        y += 10 if row.gap else 0
        parts.append(_text(MARGIN, y + 14, row.name))
        width = WIDTH - LABEL - 2 * MARGIN
        parts.append(
            f'<rect class="lane" x="{MARGIN + LABEL}" y="{y + 1}" width="{width}" '
            f'height="{ROW - 2}"/>'
        )
        parts += _boxes(_visible(row.boxes, scale), y, scale)
        y += ROW
    parts += _axis(axis, y)
    height = y + 34
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n"
        f'<rect class="page" width="100%" height="100%"/>\n{body}\n</svg>\n'
    )


def plan_picture(simulation: Simulation) -> str:
    """Return the picture of a simulation with a recorded run: stages by site, then links."""
    plan, run = simulation.plan, simulation.run
    rows: list[Row] = []
    site = -1
    first_stage = {d: s for s, d in reversed(plan.teams)}
    cells = sorted(
        range(plan.num_ports),
        key=lambda c: (first_stage[plan.site_of(c)], plan.site_of(c), c % plan.pp, c),
    )
    for cell in cells:
        strand, stage = divmod(cell, plan.pp)
        first = plan.site_of(cell) != site
        site = plan.site_of(cell)
        name = f"stage {stage} · {plan.problem.sites[site].name}"
        if sum(s.sites[stage] == site for s in plan.strands) > 1:
            name += f" ({strand})"
        order = plan.orders[stage]
        boxes = [
            Box(begin, end, op.kind, str(op.microbatch))
            for op, begin, end in zip(order, run.starts[cell], run.ends[cell], strict=True)
        ]
        tail = plan.optimizer_us(cell) * TICKS_PER_US
        if tail:
            boxes.append(Box(run.done[cell] - tail, run.done[cell], "optimizer", ""))
        rows.append(Row(_short(name), boxes, first and bool(rows)))
    rows += _link_rows(simulation)
    end = max(1, int(simulation.time_us * TICKS_PER_US))
    title = f"{plan.problem.instance.name}: {simulation.time_s:.4g} s an iteration, simulated"
    layout = plan.layout
    subtitle = (
        f"{layout.schedule}, {plan.pp} stages, {plan.co.num_microbatches} microbatches; bubble "
        f"{100 * simulation.bubble:.1f} %; Z {100 * simulation.model_error:+.2f} %"
    )
    axis = [f"{simulation.time_s * i / 5:.3g} s" for i in range(6)]
    return draw(rows, end, title, subtitle, axis)


def _link_rows(simulation: Simulation) -> Iterator[Row]:
    plan, run = simulation.plan, simulation.run
    used: dict[int, list[Box]] = {}
    for link, begin, end, cell, _ in run.occupations:
        if link < len(plan.problem.links) and begin < end:
            used.setdefault(link, []).append(Box(begin, end, "pp" if cell >= 0 else "dp", ""))
    for i, link in enumerate(sorted(used)):
        ends = plan.problem.links[link]
        yield Row(_short(f"{ends.source} to {ends.target}"), sorted(used[link]), i == 0)


def _short(name: str) -> str:
    most = int(LABEL / CHARACTER)
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _text(x: float, y: float, words: str, style: str = "", anchor: str = "") -> str:
    attributes = f' class="{style}"' if style else ""
    attributes += f' text-anchor="{anchor}"' if anchor else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{attributes}>{escape(words)}</text>'


def _heading(rows: Sequence[Row], title: str, subtitle: str) -> Iterator[str]:
    yield _text(MARGIN, 24, title, "title")
    yield _text(MARGIN, 43, subtitle, "soft")
    kinds = {box.kind for row in rows for box in row.boxes}
    x = float(MARGIN + LABEL)
    for kind in COLOURS:
        if kind in kinds:
            yield (
                f'<rect x="{x:.1f}" y="55" width="12" height="12" rx="2" fill="{COLOURS[kind]}"/>'
            )
            yield _text(x + 17, 65, NAMES[kind])
            x += 34 + CHARACTER * len(NAMES[kind])


def _axis(labels: Sequence[str], y: int) -> Iterator[str]:
    width = WIDTH - LABEL - 2 * MARGIN
    for i, label in enumerate(labels):
        x = MARGIN + LABEL + width * i / max(1, len(labels) - 1)
        yield f'<line x1="{x:.1f}" y1="{y + 2}" x2="{x:.1f}" y2="{y + 7}"/>'
        anchor = "end" if i == len(labels) - 1 else "middle" if i else "start"
        yield _text(x, y + 21, label, "soft", anchor)


def _visible(boxes: Sequence[Box], scale: float) -> Sequence[Box]:
    """Return the boxes, or runs of whole pixels if they are too many.

    Each pixel takes one colour, or none for idle time; what it does not show of the others is made
    good by the next pixels, so that every kind keeps its share.
    """
    shown = [box for box in boxes if box.begin < box.end]
    if len(shown) <= WIDTH / 3:
        return shown
    filled: dict[int, dict[Kind | None, float]] = {}
    for box in shown:
        left, right = box.begin * scale, box.end * scale
        for pixel in range(int(left), int(right) + 1):
            share = min(right, pixel + 1) - max(left, pixel)
            if share > 0:
                here = filled.setdefault(pixel, {})
                here[box.kind] = here.get(box.kind, 0.0) + share
    owed: dict[Kind | None, float] = {}
    runs: list[Box] = []
    for pixel in sorted(filled):
        shares = filled[pixel]
        shares[None] = 1 - sum(shares.values())
        for kind, share in shares.items():
            owed[kind] = owed.get(kind, 0.0) + share
        chosen = max(shares, key=lambda kind: owed[kind])
        owed[chosen] -= 1
        if chosen is None:
            continue
        begin, end = round(pixel / scale), round((pixel + 1) / scale)
        if runs and runs[-1].kind == chosen and runs[-1].end == begin:
            runs[-1] = Box(runs[-1].begin, end, chosen, "")
        else:
            runs.append(Box(begin, end, chosen, ""))
    return runs


def _boxes(boxes: Sequence[Box], y: int, scale: float) -> Iterator[str]:
    for begin, end, kind, label in boxes:
        x, width = MARGIN + LABEL + begin * scale, (end - begin) * scale
        inner = width - min(0.6, width / 10)
        yield (
            f'<rect x="{x:.2f}" y="{y + 2}" width="{inner:.2f}" height="{ROW - 4}" '
            f'fill="{COLOURS[kind]}"/>'
        )
        if label and width > CHARACTER * len(label) + 4:
            yield _text(x + width / 2, y + 14, label, "in")
