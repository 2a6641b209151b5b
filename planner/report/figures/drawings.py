"""The pictures: phase diagrams with margins, curves with gap bars, time against GPUs."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import NullLocator, ScalarFormatter, StrMethodFormatter

from planner.report.figures.panels import (
    COLUMNS,
    in_slice,
    open_dimensions,
    pages,
    slice_title,
    slices,
)
from planner.report.palette import COLOURS, HATCHES, MARKERS, code_of
from planner.report.sweeps.front import front
from planner.report.sweeps.table import Dimension, SweepRow, SweepTable
from planner.report.sweeps.winners import Winner, categories_of, label_of, winners

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "hatch.linewidth": 0.6,
    "svg.fonttype": "none",
    "svg.hashsalt": "planner",
    "figure.dpi": 100,
    "text.parse_math": False,
}
LINES: tuple[Literal["-", "--", ":", "-."], ...] = ("-", "--", ":", "-.")
MOST_TICKS = 16
CLEAR = 0.1
"""Margin from which a cell has the full colour."""


def sweep_figures(table: SweepTable) -> Iterator[tuple[str, Figure]]:
    """Yield the pictures of a sweep with the names of their files, without suffix."""
    if open_dimensions(table):
        for category in categories_of(table):
            yield from _numbered(f"phase-{category}", phase_diagrams(table, category))
        yield from _numbered("curves", curves(table))
    if len({row.gpus for row in _timed(table.rows)}) > 1:
        yield from _numbered("pareto", time_against_gpus(table))


def encoded(figure: Figure, form: Literal["png", "svg"]) -> bytes:
    """Return a picture as a file; the same picture gives the same bytes."""
    buffer = io.BytesIO()
    with mpl.rc_context(STYLE):
        metadata = {"Date": None} if form == "svg" else {}
        figure.savefig(buffer, format=form, dpi=160, bbox_inches="tight", metadata=metadata)
    return buffer.getvalue()


def _numbered(name: str, figures: Sequence[Figure]) -> Iterator[tuple[str, Figure]]:
    for i, figure in enumerate(figures, 1):
        yield (name if len(figures) == 1 else f"{name}-{i}"), figure


def phase_diagrams(table: SweepTable, category: str) -> list[Figure]:
    """Who wins over the two longest dimensions, a panel for each combination of the others.

    A cell has the letter of the winner, with ``?`` where the bounds do not prove it, and by how
    much longer the best of the others takes; cells that are too small for words have colour and
    pattern alone.
    """
    found = winners(table, category)
    wins = [winner.label for winner in found]
    labels = sorted(dict.fromkeys(wins), key=lambda label: -wins.count(label))
    drawn = open_dimensions(table)[:2]
    x = table.dimensions[drawn[0]]
    y = table.dimensions[drawn[1]] if len(drawn) > 1 else None
    height = len(y.labels) if y else 1
    cell = (_clamp(11 / len(x.labels), 0.16, 0.62), _clamp(6 / height, 0.16, 0.5))
    size = (cell[0] * len(x.labels) + 1.4, cell[1] * height + 1.3)

    def panel(axes: Axes, chosen: dict[int, int]) -> None:
        for winner in found:
            if in_slice(winner.place, chosen):
                at = (winner.place[drawn[0]], winner.place[drawn[1]] if y else 0)
                _cell(axes, at, winner, labels.index(winner.label), words=min(cell) >= 0.38)
        axes.set_xlim(-0.5, len(x.labels) - 0.5)
        axes.set_ylim(-0.5, (len(y.labels) if y else 1) - 0.5)
        _name(axes, x, "x")
        if y:
            _name(axes, y, "y")
        else:
            axes.set_yticks([])

    handles = [
        Patch(
            facecolor=COLOURS[i % len(COLOURS)],
            hatch=HATCHES[i % len(HATCHES)],
            edgecolor="#333333",
            label=f"{code_of(i)}  {label}",
        )
        for i, label in enumerate(labels)
    ]
    title = (
        f"{table.name}: {category} with the shortest iteration, and its lead over the next "
        f"(full colour from {CLEAR:.0%})"
    )
    return [_page(table, page, size, panel, handles, title) for page in pages(slices(table, drawn))]


def _clamp(value: float, low: float, high: float) -> float:
    return min(high, max(low, value))


def _cell(axes: Axes, at: tuple[int, int], winner: Winner, index: int, *, words: bool) -> None:
    margin = winner.margin
    strength = 1.0 if margin is None else 0.35 + 0.65 * min(1.0, margin / CLEAR)
    corner = (at[0] - 0.5, at[1] - 0.5)
    colour = COLOURS[index % len(COLOURS)]
    axes.add_patch(Rectangle(corner, 1, 1, facecolor=colour, alpha=strength, edgecolor="none"))
    axes.add_patch(
        Rectangle(
            corner,
            1,
            1,
            facecolor="none",
            edgecolor="#33333388",
            hatch=HATCHES[index % len(HATCHES)],
            linewidth=0.5,
        )
    )
    doubt = "" if winner.proven else "?"
    told = doubt
    if words:
        told = code_of(index) + doubt + ("" if margin is None else f"\n{_percent(margin)}")
    paper = {"boxstyle": "round,pad=0.15", "facecolor": "white", "alpha": 0.7, "edgecolor": "none"}
    if told:
        axes.text(*at, told, ha="center", va="center", fontsize=7.5, color="#111111", bbox=paper)


def _percent(margin: float) -> str:
    if margin == 0:
        return "tie"
    return f"{100 * margin:.1f} %" if margin < 0.0995 else f"{100 * margin:.0f} %"


def curves(table: SweepTable) -> list[Figure]:
    """Iteration time of every variant over the longest dimension, with bars down to the bounds."""
    across = open_dimensions(table)[0]
    dimension = table.dimensions[across]
    numbers = dimension.numbers
    positions: Sequence[float] = numbers or range(len(dimension.labels))
    timed = _timed(table.rows)

    def panel(axes: Axes, chosen: dict[int, int]) -> None:
        for i, variant in enumerate(table.variants):
            line = [row for row in timed if row.variant == variant and in_slice(row.place, chosen)]
            line.sort(key=lambda row: positions[row.place[across]])
            times = [row.time_s or 0.0 for row in line]
            gaps = [max(0.0, (row.time_s or 0.0) - (row.bound_s or 0.0)) for row in line]
            axes.errorbar(
                [positions[row.place[across]] for row in line],
                times,
                yerr=[gaps, [0.0] * len(line)],
                color=COLOURS[i % len(COLOURS)],
                marker=MARKERS[i % len(MARKERS)],
                linestyle=LINES[i % len(LINES)],
                markeredgecolor="#333333",
                markeredgewidth=0.5,
                markersize=5,
                linewidth=1.4,
                capsize=3,
            )
        if numbers and min(numbers) > 0 and max(numbers) / min(numbers) >= 8:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(ScalarFormatter())
            axes.xaxis.set_minor_locator(NullLocator())
        if len(positions) <= 10:
            axes.set_xticks(positions, dimension.ticks)
        axes.set_xlabel(dimension.title)
        axes.set_ylabel("iteration time (s)")
        axes.grid(True, axis="y", color="#dddddd", linewidth=0.6)

    title = f"{table.name}: best plan found (mark) and proven lower bound (bar)"
    return [
        _page(table, page, (3.6, 2.7), panel, _variant_handles(table, timed, lines=True), title)
        for page in pages(slices(table, [across]))
    ]


def time_against_gpus(table: SweepTable) -> list[Figure]:
    """All plans by GPUs and time, with the line of those that none beats in both.

    A panel has iterations with as many tokens.
    """
    timed = _timed(table.rows)

    across = [i for i in range(len(table.dimensions)) if i not in table.workload_dimensions()]

    def panel(axes: Axes, chosen: dict[int, int]) -> None:
        drawn = [row for row in timed if in_slice(row.place, chosen)]
        best = front(drawn)
        axes.step(
            [row.gpus or 0 for row in best],
            [row.time_s or 0.0 for row in best],
            where="post",
            color="#555555",
            linewidth=1.2,
            zorder=1,
        )
        for i, variant in enumerate(table.variants):
            rows = [row for row in drawn if row.variant == variant]
            axes.scatter(
                [row.gpus or 0 for row in rows],
                [row.time_s or 0.0 for row in rows],
                color=COLOURS[i % len(COLOURS)],
                marker=MARKERS[i % len(MARKERS)],
                edgecolors="#333333",
                linewidths=0.5,
                s=26,
                zorder=2,
            )
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.set_xlabel("GPUs in use")
        axes.set_ylabel("iteration time (s)")
        axes.grid(True, color="#dddddd", linewidth=0.6)

    handles = _variant_handles(table, timed, lines=False)
    handles.append(Line2D([], [], color="#555555", label="no plan beats these in both"))
    title = f"{table.name}: time against GPUs"
    return [
        _page(table, page, (4.2, 3.1), panel, handles, title)
        for page in pages(slices(table, across))
    ]


def _timed(rows: Sequence[SweepRow]) -> list[SweepRow]:
    return [row for row in rows if row.time_s is not None]


def _variant_handles(
    table: SweepTable, rows: Sequence[SweepRow], *, lines: bool
) -> list[Patch | Line2D]:
    present = {label_of(row, "variant") for row in rows}
    return [
        Line2D(
            [],
            [],
            color=COLOURS[i % len(COLOURS)],
            marker=MARKERS[i % len(MARKERS)],
            linestyle=LINES[i % len(LINES)] if lines else "",
            markeredgecolor="#333333",
            markeredgewidth=0.5,
            label=variant,
        )
        for i, variant in enumerate(table.variants)
        if variant in present
    ]


def _name(axes: Axes, dimension: Dimension, side: Literal["x", "y"]) -> None:
    every = -(-len(dimension.labels) // MOST_TICKS)
    ticks = range(0, len(dimension.labels), every)
    labels = [textwrap.shorten(dimension.ticks[i], 24, placeholder="…") for i in ticks]
    if side == "x":
        turned = max(map(len, labels)) > 5
        axes.set_xticks(
            ticks, labels, rotation=35 if turned else 0, ha="right" if turned else "center"
        )
        axes.set_xlabel(dimension.title)
    else:
        axes.set_yticks(ticks, labels)
        axes.set_ylabel(dimension.title)


def _page(
    table: SweepTable,
    page: Sequence[dict[int, int]],
    size: tuple[float, float],
    panel: Callable[[Axes, dict[int, int]], None],
    handles: Sequence[Patch | Line2D],
    title: str,
) -> Figure:
    """One picture: its panels, the title above and the legend below."""
    columns = min(COLUMNS, len(page))
    rows = -(-len(page) // columns)
    with mpl.rc_context(STYLE):
        width, height = max(5.0, size[0] * columns), size[1] * rows + 0.9
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes, chosen in zip(grid.flat, page, strict=False):
            panel(axes, chosen)
            axes.set_title(slice_title(table, chosen))
        for axes in list(grid.flat)[len(page) :]:
            axes.set_visible(False)
        wrapped = textwrap.fill(title, int(width * 13))
        figure.suptitle(wrapped, fontsize=10.5)
        figure.legend(
            handles=list(handles),
            loc="outside lower center",
            ncols=max(1, min(4, int(width / 1.7))),
            frameon=False,
        )
    return figure
