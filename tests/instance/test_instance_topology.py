"""Directed links and routes."""

from __future__ import annotations

from typing import Any

import pytest

from planner.instance.cluster import Cluster
from planner.instance.load import load_instance, shipped_names
from planner.instance.topology import directed_links, routes


def cluster(links: list[dict[str, Any]], *, sites: str = "abc", hubs: str = "") -> Cluster:
    return Cluster.model_validate(
        {
            "sites": [
                {"name": name, "gpu": "H100", "num_gpus": 8 * (i + 1)}
                for i, name in enumerate(sites)
            ],
            "hubs": [{"name": name} for name in hubs],
            "links": links,
        }
    )


def link(source: str, target: str, km: float = 1, **fields: Any) -> dict[str, Any]:
    fields.setdefault("bandwidth_gbps", 100)
    chosen = {key: value for key, value in fields.items() if value is not None}
    return {"from": source, "to": target, "distance_km": km, **chosen}


def test_both_directions_in_file_order() -> None:
    found = directed_links(
        cluster([link("b", "a", reverse_bandwidth_gbps=50), link("a", "x")], hubs="x")
    )
    assert [(d.index, d.source, d.target) for d in found] == [
        (0, "b", "a"),
        (1, "a", "b"),
        (2, "a", "x"),
        (3, "x", "a"),
    ]
    assert [d.capacity_bytes_per_s for d in found[:2]] == [12.5e9, 6.25e9]
    assert (found[2].source_node, found[2].target_node) == (0, 3)


def test_oversubscription_divides_the_smaller_site() -> None:
    both, up = directed_links(
        cluster(
            [
                link("b", "a", bandwidth_gbps=None, oversubscription=4),
                link("x", "b", bandwidth_gbps=None, oversubscription=4),
            ],
            hubs="x",
        )
    )[::2]
    assert both.capacity_bytes_per_s == 8 * 400 / 4 * 1.25e8
    assert up.capacity_bytes_per_s == 16 * 400 / 4 * 1.25e8
    assert (both.flows, up.flows) == (8, 16)


@pytest.mark.parametrize(
    ("fields", "delay", "km"),
    [
        ({"distance_km": 10}, 55.5e-6, 10),
        ({"rtt_s": "10.2 ms"}, 5.1e-3, 5095e-6 / 5.05e-6),
        ({"delay_s": "30 us"}, 30e-6, 25e-6 / 5.05e-6),
        ({"delay_s": 0}, 0.0, 0.0),
    ],
)
def test_delay(fields: dict[str, Any], delay: float, km: float) -> None:
    one = {"from": "a", "to": "b", "bandwidth_gbps": 1, **fields}
    found = directed_links(cluster([one]))[0]
    assert found.delay_s == pytest.approx(delay)
    assert found.distance_km == pytest.approx(km)


def names(fields: dict[str, Any], km: float = 0.5) -> set[str]:
    return {p.name for p in directed_links(cluster([link("a", "b", km, **fields)]))[0].protocols}


def test_protocols_that_can_run() -> None:
    everything = {
        "rdma_ecmp",
        "rdma_ecmp_qp16",
        "rdma_nocc",
        "rdma_spray",
        "rdma_ec",
        "ib_ar",
        "tcp_cubic",
        "tcp_bbr",
        "dedicated",
    }
    assert names({}) == everything
    assert names({"paths": 64}) == everything - {"dedicated"}
    assert names({"buffer": "shallow"}) == everything - {"rdma_nocc"}
    assert names({}, 3) == everything - {"ib_ar"}
    assert names({"protocols": ["tcp_bbr", "dedicated"], "paths": 64}) == {"tcp_bbr", "dedicated"}


def test_range_extender_carries_lossless_traffic() -> None:
    extended = cluster([link("a", "b", 30, protocols=["ib_ar"], lossless_distance_km=40)])
    assert [p.max_distance_km for p in directed_links(extended)[0].protocols] == [40]


def test_own_protocols() -> None:
    own = {"name": "mine", "balance": 0.9, "loss_rule": "selective_repeat"}
    fields = cluster([]).model_dump(by_alias=True)
    found = Cluster.model_validate(
        {**fields, "protocols": [own], "links": [link("a", "b", protocols=["mine"])]}
    )
    assert directed_links(found)[0].protocols[0].balance == 0.9
    everywhere = Cluster.model_validate({**fields, "protocols": [own], "links": [link("a", "b")]})
    assert "mine" in {p.name for p in directed_links(everywhere)[0].protocols}


def test_routes_take_the_least_delay_over_sites_and_hubs() -> None:
    found = routes(cluster([link("a", "b", 50), link("a", "x", 1), link("b", "x", 1)], hubs="x"))
    assert found == {(0, 1): (2, 5), (1, 0): (4, 3)}
    over_site = routes(cluster([link("a", "b", 2), link("a", "c", 20), link("b", "c", 90)]))
    assert over_site[1, 2] == (1, 2)
    assert over_site[2, 1] == (3, 0)


def test_equal_delays_prefer_fewer_links_then_file_order() -> None:
    def wire(source: str, target: str, us: int) -> dict[str, Any]:
        return {"from": source, "to": target, "bandwidth_gbps": 1, "delay_s": f"{us} us"}

    direct = cluster([wire("a", "x", 10), wire("x", "b", 20), wire("a", "b", 30)], hubs="x")
    assert routes(direct)[0, 1] == (4,)
    tie = cluster(
        [wire("a", "y", 10), wire("a", "x", 20), wire("y", "b", 20), wire("x", "b", 10)],
        hubs="xy",
    )
    assert routes(tie)[0, 1] == (0, 4)


def test_unreachable_pairs_are_absent() -> None:
    assert set(routes(cluster([link("a", "b")]))) == {(0, 1), (1, 0)}


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_instances_connect_every_pair(name: str) -> None:
    sites = load_instance(name).cluster
    count = len(sites.sites)
    assert len(routes(sites)) == count * (count - 1)
