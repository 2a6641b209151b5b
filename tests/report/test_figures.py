"""The pictures of a sweep: what they show, as PNG and SVG, the same every time."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from xml.etree import ElementTree

import pytest

from planner.report.figures.drawings import encoded, phase_diagrams, sweep_figures
from planner.report.palette import COLOURS, HATCHES, MARKERS
from planner.report.sweeps.table import read_sweep
from tests.report.documents import VARIANTS, campus, write_sweep


def words(svg: bytes) -> list[str]:
    root = ElementTree.fromstring(svg)
    return [
        "".join(text.itertext()).strip() for text in root.iter("{http://www.w3.org/2000/svg}text")
    ]


def test_every_picture_has_names_units_and_a_legend(tmp_path: Path) -> None:
    figures = dict(sweep_figures(read_sweep(campus(tmp_path, name="<b>$x$</b>"))))
    assert list(figures) == [
        "phase-variant",
        "phase-placement",
        "phase-schedule",
        "curves",
        "pareto",
    ]
    told = {name: words(encoded(figure, "svg")) for name, figure in figures.items()}
    phase = told["phase-variant"]
    assert {"oversubscription (n:1)", "microbatches", "A  dp-out", "B  pp-out"} <= set(phase)
    assert {"20 %", "5.0 %", "50 %", "10 %", "tie", "A?", "B?"} <= set(phase)
    assert {"iteration time (s)", "free", "dp-out", "pp-out", "microbatches: 2"} <= set(
        told["curves"]
    )
    assert {"GPUs in use", "iteration time (s)"} <= set(told["pareto"])
    assert all(any("<b>$x$</b>" in text for text in texts) for texts in told.values())


def test_pictures_are_the_same_every_time(tmp_path: Path) -> None:
    table = read_sweep(campus(tmp_path))
    first, second = (encoded(phase_diagrams(table, "variant")[0], "svg") for _ in range(2))
    assert first == second
    assert encoded(phase_diagrams(table, "variant")[0], "png").startswith(b"\x89PNG\r\n")


def test_many_panels_go_to_several_pictures(tmp_path: Path) -> None:
    sizes = {"w": 3, "x": 4, "y": 4, "z": 4}
    axes = [{"name": name, "values": list(range(size))} for name, size in sizes.items()]
    times = {
        place: {"dp-out": 1.0 + place[0], "pp-out": 2.0, "free": 1.0}
        for place in product(*(range(size) for size in sizes.values()))
    }
    pages = phase_diagrams(read_sweep(write_sweep(tmp_path, axes, VARIANTS, times)), "variant")
    assert [sum(axes.get_visible() for axes in page.axes) for page in pages] == [9, 3]
    panel = pages[0].axes[0]
    assert (panel.get_xlabel(), panel.get_ylabel(), panel.get_title()) == ("x", "y", "z: 0\nw: 0")


def test_small_cells_keep_colour_pattern_and_doubt(tmp_path: Path) -> None:
    axis = {"name": "x", "values": [1.2345678 * (i + 1) for i in range(60)]}
    times = {(i,): {"dp-out": 1.0, "pp-out": 0.5 + i / 60} for i in range(60)}
    folder = write_sweep(tmp_path, [axis], VARIANTS, times, bounds={((40,), "pp-out"): 0.9})
    (figure,) = phase_diagrams(read_sweep(folder), "variant")
    told = words(encoded(figure, "svg"))
    assert told.count("?") == 1
    assert {"A  pp-out", "B  dp-out"} <= set(told)
    assert "1.235" in told
    colours = {patch.get_facecolor()[:3] for patch in figure.axes[0].patches}
    assert len(colours) == 3  # two winners, and the clear boxes with the patterns


def test_nothing_rests_on_colour_alone() -> None:
    assert len(set(COLOURS)) == len(set(HATCHES)) == len(set(MARKERS)) == len(COLOURS)


@pytest.mark.parametrize("deficiency", ["protan", "deutan"])
def test_colours_stay_apart_for_colour_blind_readers(deficiency: str) -> None:
    """Simulated after Viénot, Brettel and Mollon (1999), distances in linear RGB."""
    to_lms = (
        (17.8824, 43.5161, 4.11935),
        (3.45565, 27.1554, 3.86714),
        (0.0299566, 0.184309, 1.46709),
    )

    def seen(colour: str) -> tuple[float, ...]:
        rgb = [(int(part, 16) / 255) ** 2.2 for part in re.findall("..", colour[1:])]
        long, middle, short = (sum(a * b for a, b in zip(row, rgb, strict=True)) for row in to_lms)
        if deficiency == "protan":
            long = 2.02344 * middle - 2.52581 * short
        else:
            middle = 0.494207 * long + 1.24827 * short
        return (long / 65, middle / 35, short / 1.7)

    points = [seen(colour) for colour in COLOURS]
    distances = [
        sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5
        for i, one in enumerate(points)
        for other in points[:i]
    ]
    assert min(distances) > 0.05
