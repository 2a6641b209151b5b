"""The picture of the cluster: nothing covers anything else, and traffic is what the plan sends."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.instance.load import load_instance
from planner.instance.schema import Instance
from planner.legality import layout_violations
from planner.problem import Problem
from planner.report.html.cluster import MOST_CARDS, Site, draw_cluster, site_letters
from planner.report.html.traffic import LinkTraffic, link_traffic
from planner.simulation.simulate import simulate
from tests.simulation.plans import job, plan

Box = tuple[float, float, float, float]


def cluster(sites: int, hubs: int, *, full: bool) -> Instance:
    names = [f"s{i}" for i in range(sites)]
    spokes = [(name, f"h{i % hubs}") for i, name in enumerate(names)] if hubs else []
    trunks = list(pairwise(f"h{i}" for i in range(hubs)))
    mesh = [(a, b) for i, a in enumerate(names) for b in names[:i]] if full else []
    return load_instance(
        {
            "model": "llama3-8b",
            "training": {"global_batch_size": 64, "sequence_length": 8192},
            "cluster": {
                "sites": [{"name": name, "gpu": "H100", "num_gpus": 8} for name in names],
                "hubs": [{"name": f"h{i}"} for i in range(hubs)],
                "links": [
                    {"from": a, "to": b, "bandwidth_gbps": 400, "distance_km": 10}
                    for a, b in (*spokes, *trunks, *mesh)
                ],
            },
        }
    )


def boxes(svg: str, style: str) -> list[Box]:
    root = ElementTree.fromstring(svg)
    found = []
    for shape in root.iter():
        if shape.get("class") in style.split():
            if (r := shape.get("r")) is not None:
                x, y, d = float(shape.attrib["cx"]), float(shape.attrib["cy"]), float(r)
                found.append((x - d, y - d, x + d, y + d))
            else:
                x, y, w, h = (float(shape.attrib[k]) for k in ("x", "y", "width", "height"))
                found.append((x, y, x + w, y + h))
    return found


@given(st.integers(1, 40), st.integers(0, 5), st.integers(1, 30), st.booleans())
def test_sites_hubs_and_labels_lie_apart_inside_the_picture(
    sites: int, hubs: int, stages: int, full: bool
) -> None:
    instance = cluster(sites, hubs, full=full and sites <= MOST_CARDS)
    links = link_traffic(Problem(instance), None, None)
    drawn = [
        Site(site.name, "H100", 8, 8, tuple((i + s) % 3 for s in range(stages)))
        for i, site in enumerate(instance.cluster.sites)
    ]
    svg = draw_cluster(drawn, [hub.name for hub in instance.cluster.hubs], links, 3 * sites)
    width, height = (float(v) for v in ElementTree.fromstring(svg).attrib["viewBox"].split()[2:])
    nodes = boxes(svg, "c-card c-on c-off c-hub")
    assert len(nodes) == sites + hubs
    for i, (left, top, right, bottom) in enumerate(nodes):
        assert left >= 0 and top >= 0 and right <= width and bottom <= height
        for other in nodes[:i]:
            assert right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top
    for left, top, right, bottom in boxes(svg, "c-label"):
        for box in boxes(svg, "c-card"):
            assert right <= box[0] or box[2] <= left or bottom <= box[1] or box[3] <= top


def traffic(rows: list[dict[str, int]], **more: object) -> tuple[LinkTraffic, ...]:
    instance, found = job(), plan(rows, **more)  # type: ignore[arg-type]
    problem = Problem(instance)
    _, layout = layout_violations(problem, found)
    assert layout is not None
    return link_traffic(problem, layout, simulate(instance, found))


def test_a_pipeline_sends_every_microbatch_once_each_way() -> None:
    (link,) = traffic([{"a": 4}, {"b": 4}])
    there, back = link.directions
    # 4 replicas × 4 microbatches × 4,096 tokens × 2,048 wide × 2 bytes.
    assert there.pipeline_bytes == pytest.approx(4 * 4 * 4096 * 2048 * 2, rel=0.01)
    assert back.pipeline_bytes == pytest.approx(4 * 4 * 4096 * 2048 * 2, rel=0.01)
    assert (there.synchronisation_bytes, link.synchronisation) == (0, False)
    assert there.protocols == ("dedicated",)
    assert there.utilisation is not None
    assert 0 < there.utilisation < 1
    assert link.sent_bytes == pytest.approx(2 * 4 * 4 * 4096 * 2048 * 2, rel=0.01)


def test_replicas_at_both_sites_exchange_gradients() -> None:
    (link,) = traffic([{"a": 2, "b": 2}])
    there = link.directions[0]
    assert (link.pipeline, there.pipeline_bytes) == (False, 0)
    # Half of what a ring over all replicas of both sites moves: more than the gradients of the
    # layers' weights in 2 bytes, less than all parameters in 8.
    layers = 8 * (2048 * 2048 * 2 + 2048 * 1024 * 2 + 3 * 2048 * 8192)
    assert there.synchronisation_bytes is not None
    assert 2 * layers / 2 < there.synchronisation_bytes < 8 * (layers + 2 * 32000 * 2048)


def test_equal_sites_have_the_same_letter_and_idle_ones_none() -> None:
    sites = [Site(f"s{i}", "H100", 8, 0, ((2, 2), (0, 0), (1, 3))[i % 3]) for i in range(9)]
    found = [(letter, [site.name for site in group]) for letter, group in site_letters(sites)]
    assert found == [("A", ["s0", "s3", "s6"]), ("B", ["s2", "s5", "s8"])]
