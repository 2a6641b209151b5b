"""More of one resource leaves everything else alone."""

from __future__ import annotations

from typing import Any

import pytest

from planner.explanation.resources import with_bandwidth, with_delay, with_memory, with_node
from planner.instance.load import load_instance
from planner.instance.schema import Instance
from planner.instance.topology import directed_links, routes
from planner.problem import Problem
from tests.explanation.jobs import GPU


def ring(**fields: Any) -> Instance:
    """Four sites in a ring: opposite ones have two routes of two links."""
    pairs = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")]
    links = [
        {"from": s, "to": t, "oversubscription": 3, "delay_s": 1e-3 + i * 1e-6, "jitter_s": 1e-6}
        for i, (s, t) in enumerate(pairs)
    ]
    return load_instance(
        {
            "model": "llama3-8b",
            "training": {"global_batch_size": 8, "sequence_length": 1024},
            "cluster": {
                "sites": [{"name": name, "gpu": GPU, "num_gpus": 2} for name in "abcd"],
                "links": links,
            },
        }
        | fields
    )


@pytest.mark.parametrize("link", range(4))
def test_a_shorter_delay_moves_no_route(link: int) -> None:
    """Even where the other way round would now be shorter."""
    instance = ring()
    nearer = with_delay(instance, link, 0.0)
    assert {
        pair: route for pair, route in routes(nearer.cluster).items() if pair[0] != pair[1]
    } == {pair: route for pair, route in routes(instance.cluster).items() if pair[0] != pair[1]}
    for before, after in zip(
        directed_links(instance.cluster), directed_links(nearer.cluster), strict=True
    ):
        mine = before.index // 2 == link
        assert after.delay_s == (0.0 if mine else before.delay_s)
        assert after.jitter_s == (0.0 if mine else before.jitter_s)
        assert after.capacity_bytes_per_s == before.capacity_bytes_per_s


@pytest.mark.parametrize("site", range(4))
def test_another_node_changes_no_link(site: int) -> None:
    instance = ring()
    larger = with_node(instance, site)
    gpus = [s.num_gpus for s in larger.cluster.sites]
    assert gpus == [4 if d == site else 2 for d in range(4)]
    before, after = directed_links(instance.cluster), directed_links(larger.cluster)
    assert [link.flows for link in after] == [link.flows for link in before]
    for old, new in zip(before, after, strict=True):
        assert new.capacity_bytes_per_s == pytest.approx(old.capacity_bytes_per_s, rel=1e-12)
        assert new.capacity_bytes_per_s >= old.capacity_bytes_per_s


def test_bandwidth_grows_both_ways_with_what_was_measured() -> None:
    link = {
        "from": "a",
        "to": "b",
        "bandwidth_gbps": 100,
        "reverse_bandwidth_gbps": 40,
        "delay_s": 1e-3,
        "protocols": ["tcp_cubic"],
        "measured": [{"protocol": "tcp_cubic", "bandwidth_gbps": 30}],
    }
    cluster = {"sites": [{"name": n, "gpu": GPU, "num_gpus": 2} for n in "ab"], "links": [link]}
    instance = ring(cluster=cluster)
    faster = Problem(with_bandwidth(instance, 0, 1.1))
    for old, new in zip(Problem(instance).transports, faster.transports, strict=True):
        assert new["tcp_cubic"].bytes_per_s == pytest.approx(1.1 * old["tcp_cubic"].bytes_per_s)
    capacities = [way.capacity_bytes_per_s / 1.25e8 for way in faster.links]
    assert capacities == pytest.approx([110, 44])


def test_memory_grows_at_the_sites_named_alone() -> None:
    instance = ring()
    more = with_memory(instance, (1, 3), 1 << 30)
    grown = [
        after.memory_limit_bytes - before.memory_limit_bytes
        for before, after in zip(instance.cluster.sites, more.cluster.sites, strict=True)
    ]
    assert grown == [0, 1 << 30, 0, 1 << 30]
