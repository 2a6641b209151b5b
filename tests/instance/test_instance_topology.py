"""Directed links and routes."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from planner.instance.cluster import Cluster, Link, refusal
from planner.instance.errors import InputError
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


def test_routes_have_the_fewest_links_over_sites_and_hubs() -> None:
    hub = [link("a", "x", 1), link("b", "x", 1)]
    assert routes(cluster(hub, hubs="x")) == {(0, 1): (0, 3), (1, 0): (2, 1)}
    assert routes(cluster([link("a", "b", 50), *hub], hubs="x")) == {(0, 1): (0,), (1, 0): (1,)}
    over_site = routes(cluster([link("a", "b", 2), link("a", "c", 20)]))
    assert over_site[1, 2] == (1, 2)
    assert over_site[2, 1] == (3, 0)


def wire(source: str, target: str, us: int) -> dict[str, Any]:
    return {"from": source, "to": target, "bandwidth_gbps": 1, "delay_s": f"{us} us"}


def test_as_many_links_prefer_less_delay_then_file_order() -> None:
    over_y = [wire("a", "y", 10), wire("y", "b", 20)]
    faster = cluster([*over_y, wire("a", "x", 5), wire("x", "b", 20)], hubs="xy")
    assert routes(faster)[0, 1] == (4, 6)
    tie = cluster([*over_y, wire("a", "x", 20), wire("x", "b", 10)], hubs="xy")
    assert routes(tie)[0, 1] == (0, 2)


TRIANGLE = [link("a", "b", 10), link("a", "c", 10), link("b", "c", 10, name="north")]


@pytest.mark.parametrize(
    ("given", "there", "back"),
    [
        ({"via": ["c"]}, (2, 5), (4, 3)),
        ({"via": ["c", "north"]}, (2, 5), (4, 3)),
        ({"via": ["north"], "from": "c", "to": "a"}, (0,), (1,)),
        ({"via": ["c"], "both_ways": False}, (2, 5), (1,)),
        ({}, (0,), (1,)),
    ],
)
def test_given_routes_stand(
    given: dict[str, Any], there: tuple[int, ...], back: tuple[int, ...]
) -> None:
    document = cluster(TRIANGLE).model_dump(by_alias=True, exclude_defaults=True)
    document["routes"] = [{"from": "a", "to": "b", **given}]
    found = routes(Cluster.model_validate(document))
    assert (found[0, 1], found[1, 0]) == (there, back)
    if given.get("from") == "c":
        assert found[2, 0] == (5, 1)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([{"to": "d"}], "no site is named 'd'"),
        ([{"to": "a"}], "the route joins 'a' to itself"),
        ([{"via": ["nort"]}], "no site, hub or link is named 'nort'"),
        ([{"via": ["north"]}], "link 'north' does not leave 'a'"),
        ([{"via": ["c", "a"]}], "the route passes 'a' twice"),
        ([{"via": ["x"]}], "no link joins 'a' and 'x'"),
        ([{}, {"from": "b", "to": "a"}], r"routes\[0\] already joins 'b' to 'a'"),
    ],
)
def test_routes_that_lead_nowhere(given: list[dict[str, Any]], reason: str) -> None:
    document = cluster(TRIANGLE, hubs="x").model_dump(by_alias=True, exclude_defaults=True)
    document["routes"] = [{"from": "a", "to": "b", **route} for route in given]
    with pytest.raises(ValidationError, match=reason):
        Cluster.model_validate(document)


def test_what_a_link_lacks_takes_protocols_away() -> None:
    shallow = Link.model_validate(link("a", "b", 0.5, lossless=False, out_of_order=False, paths=4))
    known = cluster([]).known_protocols
    assert {name: refusal(protocol, shallow) for name, protocol in known.items()} == {
        "rdma_ecmp": None,
        "rdma_ecmp_qp16": None,
        "rdma_nocc": None,
        "rdma_spray": "'rdma_spray' sprays packets, the link's NICs do not reorder them",
        "rdma_ec": None,
        "ib_ar": "'ib_ar' sprays packets, the link's NICs do not reorder them",
        "tcp_cubic": None,
        "tcp_bbr": None,
        "dedicated": "'dedicated' runs over 1 path, the link has 4",
    }
    ordered = shallow.model_copy(update={"out_of_order": True})
    reason = "'ib_ar' needs flow control, the link is not lossless"
    assert refusal(known["ib_ar"], ordered) == reason
    with pytest.raises(ValidationError, match="needs flow control"):
        cluster([link("a", "b", 0.5, lossless=False, protocols=["ib_ar"])])


def test_measured_rates_have_a_direction() -> None:
    rates = [
        {"protocol": "tcp_bbr", "bandwidth_gbps": 8, "reverse_bandwidth_gbps": 4},
        {"protocol": "tcp_cubic", "bandwidth_gbps": 2},
    ]
    there, back = directed_links(cluster([link("a", "b", measured=rates)]))
    assert there.measured_bytes_per_s == {"tcp_bbr": 1e9, "tcp_cubic": 0.25e9}
    assert back.measured_bytes_per_s == {"tcp_bbr": 0.5e9, "tcp_cubic": 0.25e9}
    for wrong, reason in (
        ([rates[1], rates[1]], r"measured\[0\] already gives 'tcp_cubic'"),
        ([{**rates[0], "protocol": "tcp_bbl"}], "unknown protocol 'tcp_bbl'"),
    ):
        with pytest.raises(ValidationError, match=reason):
            cluster([link("a", "b", measured=wrong)])


def test_unreachable_pairs_are_absent() -> None:
    assert set(routes(cluster([link("a", "b")]))) == {(0, 1), (1, 0)}


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_instances_connect_every_pair(name: str) -> None:
    sites = load_instance(name).cluster
    count = len(sites.sites)
    assert len(routes(sites)) == count * (count - 1)


def test_a_link_that_loses_nearly_all_is_refused() -> None:
    """The mean number of repetitions is a series that grows with 1/(1 - loss)."""
    assert cluster([link("a", "b", 1, loss=0.99)]).links[0].loss == 0.99
    for loss in (0.999999, 1 - 1e-16, 1.0):
        with pytest.raises(ValidationError, match=r"expected a number from 0 to 0\.99"):
            cluster([link("a", "b", 1, loss=loss)])


@pytest.mark.parametrize(
    ("site", "cluster", "reason"),
    [
        (
            {"in_network_reduction": ["network", "network"]},
            {},
            r"in_network_reduction\[1\]: 'network' is given twice",
        ),
        ({"collective_chunks": 0}, {}, "collective_chunks: expected a whole number from 1 to 64"),
        ({"collective_chunks": 65}, {}, "collective_chunks: expected a whole number from 1 to 64"),
        *(
            (
                {},
                {"protocols": [{"name": "own", "balance": 1, "loss_rule": "none", field: value}]},
                rf"protocols\[0\].{field}: expected {expected}",
            )
            for field, value, expected in (
                ("balance", 1e-300, "'ecmp' or a number from 1e-06 to 1"),
                ("overhead", 1e-300, "a number from 1e-06 to 1"),
                ("code_rate", 1e-300, "a number from 1e-06 to 1"),
                ("queue_pairs", 0, "a whole number from 1 to 65536"),
                ("streams", 65537, "a whole number from 1 to 65536"),
            )
        ),
    ],
)
def test_figures_beyond_sense_name_the_right_limits(
    site: dict[str, Any], cluster: dict[str, Any], reason: str
) -> None:
    document = {
        "model": "llama3-8b",
        "training": {"global_batch_size": 64, "sequence_length": 4096},
        "cluster": {"sites": [{"name": "a", "gpu": "H100", "num_gpus": 64, **site}], **cluster},
    }
    with pytest.raises(InputError, match=reason):
        load_instance(document)
