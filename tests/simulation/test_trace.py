"""Traces and pictures of simulated plans."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest

from planner.simulation.measures import Simulation
from planner.simulation.scenario import TICKS_PER_US
from planner.simulation.simulate import simulate
from planner.simulation.svg import COLOURS, Box, Row, draw, plan_picture
from planner.simulation.trace import chrome_trace
from tests.simulation.plans import job, plan

PLANS: dict[str, dict[str, Any]] = {
    "1f1b": {"rows": [{"a": 2}, {"a": 2}, {"b": 2}, {"b": 2}]},
    "mixed": {"rows": [{"a": 3, "b": 1}, {"a": 1, "b": 3}], "overlap": True},
    "interleaved": {
        "rows": [{"a": 2}, {"b": 2}],
        "schedule": "interleaved",
        "v": 2,
        "run": 4,
        "overlap": True,
    },
    "zbv": {"rows": [{"a": 1}, {"b": 1}], "schedule": "zbv", "v": 2},
}

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(params=PLANS, scope="module")
def found(request: pytest.FixtureRequest) -> Simulation:
    return simulate(job(), plan(**PLANS[request.param]), record=True)


@pytest.fixture(scope="module")
def events(found: Simulation) -> list[dict[str, Any]]:
    """The events, read back from JSON text, with times in ticks."""
    document = json.loads(json.dumps(chrome_trace(found), allow_nan=False))
    assert document["displayTimeUnit"] == "ms"
    for event in document["traceEvents"]:
        for name in ("ts", "dur"):
            if name in event:
                ticks = event[name] * TICKS_PER_US
                assert ticks == pytest.approx(round(ticks), abs=1e-2)
                event[name] = round(ticks)
    return document["traceEvents"]


def test_events_of_a_track_do_not_overlap(events: list[dict[str, Any]]) -> None:
    tracks = defaultdict(list)
    for event in events:
        assert event["ph"] in "XMCsf"
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert len(tracks) > 4
    for slices in tracks.values():
        assert all(a[1] <= b[0] for a, b in pairwise(sorted(slices)))


def test_the_last_event_ends_with_the_iteration(
    found: Simulation, events: list[dict[str, Any]]
) -> None:
    last = max(event["ts"] + event["dur"] for event in events if event["ph"] == "X")
    assert last == found.time_us * TICKS_PER_US


def test_every_op_is_there_once(found: Simulation, events: list[dict[str, Any]]) -> None:
    names = {"forward", "backward", "weight gradient"}
    ops = [event for event in events if event["ph"] == "X" and event["cat"] in names]
    assert len(ops) == sum(len(starts) for starts in found.run.starts)


def test_every_track_and_process_has_a_name(events: list[dict[str, Any]]) -> None:
    named = {
        (event["name"], event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["ph"] == "M" and event["name"].endswith("_name")
    }
    for event in events:
        if event["ph"] == "X":
            assert ("process_name", event["pid"], 0) in named
            single = named["process_name", event["pid"], 0] == "iteration"
            assert single or ("thread_name", event["pid"], event["tid"]) in named
    sites = [name for (kind, _, _), name in named.items() if kind == "process_name"]
    assert sorted(sites) == ["iteration", "links", "site a", "site b"]


def test_arrows_begin_and_end_in_ops(found: Simulation, events: list[dict[str, Any]]) -> None:
    slices = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    arrows = [event for event in events if event["ph"] in "sf"]
    remote = sum(time >= 0 for row in found.run.sent for time in row)
    assert len(arrows) == 2 * remote > 0
    times: dict[int, dict[str, int]] = defaultdict(dict)
    for event in arrows:
        track = slices[event["pid"], event["tid"]]
        assert any(begin <= event["ts"] < end for begin, end in track)
        times[event["id"]][event["ph"]] = event["ts"]
    assert all(pair["s"] < pair["f"] for pair in times.values())


def test_activations_come_back_to_nothing(events: list[dict[str, Any]]) -> None:
    counters = defaultdict(list)
    for event in events:
        if event["ph"] == "C":
            counters[event["pid"], event["name"]].append((event["ts"], event["args"]["GiB"]))
    assert counters
    for steps in counters.values():
        assert steps[0][1] == steps[-1][1] == 0
        assert max(level for _, level in steps) > 0
        assert steps == sorted(steps, key=lambda step: step[0])


def test_the_picture_is_well_formed(found: Simulation) -> None:
    root = ElementTree.fromstring(plan_picture(found))
    assert root.tag == f"{SVG}svg"
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    boxes = [e for e in root.iter(f"{SVG}rect") if e.attrib.get("fill") in COLOURS.values()]
    assert len(boxes) > 20
    for box in boxes:
        x, y, w, h = (float(box.attrib[name]) for name in ("x", "y", "width", "height"))
        assert 0 <= x <= x + w <= width
        assert 0 <= y <= y + h <= height
    words = [element.text for element in root.iter(f"{SVG}text")]
    assert any(word and word.startswith("stage 0") for word in words)
    assert any(word and "a to b" in word for word in words)


def test_a_long_picture_stays_small() -> None:
    """A hundred times the ops: not many more boxes than there are pixels."""
    boxes = [Box(2 * i, 2 * i + 1 + i % 2, "F" if i % 3 else "B", str(i)) for i in range(100_000)]
    text = draw([Row("stage 0", boxes)], 200_000, "<many>", "a & b", ["0", "1"])
    assert len(text) < 300_000
    assert "&lt;many&gt;" in text
    ElementTree.fromstring(text)


def test_narrow_boxes_keep_their_share() -> None:
    """A third of the time is backward: so is a third of what is drawn."""
    boxes = [Box(100 * i, 100 * i + 100, "B" if i % 9 < 3 else "F", "") for i in range(9000)]
    root = ElementTree.fromstring(draw([Row("stage 0", boxes)], 900_000, "", "", []))
    drawn: dict[str, float] = defaultdict(float)
    for element in root.iter(f"{SVG}rect"):
        if float(element.attrib.get("y", 0) or 0) > 70:
            drawn[element.attrib.get("fill", "")] += float(element.attrib["width"])
    total = drawn[COLOURS["F"]] + drawn[COLOURS["B"]]
    assert drawn[COLOURS["B"]] / total == pytest.approx(1 / 3, abs=0.1)
