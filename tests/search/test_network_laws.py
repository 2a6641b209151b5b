"""Laws of the network: a better link never makes the best plan slower, whole plan spaces priced.

The laws hold where no figure of a link moves a route: one route has the fewest links, or the routes
are given (``docs/network.md``).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy
from functools import lru_cache
from typing import Any

import pytest

from planner.check import check_plan
from planner.instance.load import load_instance
from planner.instance.schema import Instance
from planner.plan import Plan
from planner.problem import Problem
from planner.search.result import SolveStatus
from planner.search.solve import solve
from tests.brute_force import best_plan
from tests.random_instances import random_instance, random_network, with_network_features

Document = dict[str, Any]
Link = dict[str, Any]

FIRST_HUB = 1000
SEEDS = (5, 6, 7, 15, 16, 25, 26, *range(FIRST_HUB, FIRST_HUB + 6))
"""Plans over two or three sites, joined directly, by a chain or by hubs that share an uplink; with
losses, jitter, zones, measured curves and rates, histograms of tokens per expert."""

WORST = 1 << 62
"""Z where there is no plan."""

PROTOCOLS = ("rdma_ecmp", "rdma_ecmp_qp16", "rdma_spray", "rdma_ec", "tcp_cubic", "tcp_bbr")


@lru_cache
def decorated(seed: int) -> str:
    """The network of a seed: below :data:`FIRST_HUB` joined anyhow, from there on by hubs."""
    if seed >= FIRST_HUB:
        instance = random_network(seed - FIRST_HUB)
        return instance.model_dump_json(by_alias=True)
    instance = random_instance(seed)
    document: Document = instance.model_dump(by_alias=True, mode="json")
    document["search"] = instance.search.model_dump(exclude_unset=True, mode="json")
    with_network_features(document, random.Random(f"network {seed}"))
    for link in document["cluster"]["links"]:
        link["distance_km"] = None
    return load_instance(document).model_dump_json(by_alias=True)


def document_of(seed: int) -> Document:
    instance = Instance.model_validate_json(decorated(seed))
    document: Document = instance.model_dump(by_alias=True, mode="json")
    document["search"] = instance.search.model_dump(exclude_unset=True, mode="json")
    return document


def value_of(document: Document) -> int:
    """The optimum over every legal plan."""
    best = best_plan(load_instance(document), samples=0, broken=0).best_time_us
    return WORST if best is None else best


@lru_cache
def base(seed: int) -> int:
    return value_of(document_of(seed))


def wider(link: Link, rng: random.Random) -> None:
    factor = rng.choice((1.3, 3.0))
    link["bandwidth_gbps"] *= factor
    if link["reverse_bandwidth_gbps"]:
        link["reverse_bandwidth_gbps"] *= factor


def cleaner(link: Link, rng: random.Random) -> None:
    link["loss"] *= rng.choice((0.0, 0.01, 0.5))


def nearer(link: Link, rng: random.Random) -> None:
    link["delay_s"] *= rng.choice((0.1, 0.5))
    link["jitter_s"] *= rng.choice((0.0, 1.0))


def freer(link: Link, rng: random.Random) -> None:
    more = [name for name in PROTOCOLS if name not in link["protocols"]]
    if more:
        link["protocols"] = [*link["protocols"], rng.choice(more)]


def smoother(link: Link, rng: random.Random) -> None:
    link["jitter_s"] *= rng.choice((0.0, 0.5))


def measured_better(link: Link, rng: random.Random) -> None:
    for rate in link["measured"]:
        rate["bandwidth_gbps"] *= rng.choice((1.2, 2.0))


@pytest.mark.parametrize("better", [wider, cleaner, nearer, smoother, freer, measured_better])
@pytest.mark.parametrize("seed", SEEDS)
def test_one_better_link_never_costs_time(
    seed: int, better: Callable[[Link, random.Random], None]
) -> None:
    rng = random.Random(f"{seed} {better.__name__}")
    document = document_of(seed)
    better(rng.choice(document["cluster"]["links"]), rng)
    assert value_of(document) <= base(seed)


def roomier_zone(site: Document) -> None:
    site["zone_gpus"] = None if site["zone_gpus"] is None else site["num_gpus"]


def thinner_oversubscription(site: Document) -> None:
    site["fabric_oversubscription"] = 1 + (site["fabric_oversubscription"] - 1) / 2


def quicker_curve(site: Document) -> None:
    for curve in site["measured"]:
        for piece in curve["pieces"]:
            piece["bytes_per_s"] *= 2
            piece["step_s"] /= 2


@pytest.mark.parametrize("better", [roomier_zone, thinner_oversubscription, quicker_curve])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_better_site_never_costs_time(seed: int, better: Callable[[Document], None]) -> None:
    document = document_of(seed)
    for site in document["cluster"]["sites"]:
        better(site)
    assert value_of(document) <= base(seed)


@pytest.mark.parametrize("seed", [*SEEDS[:4], FIRST_HUB, FIRST_HUB + 1])
def test_a_choice_for_each_class_never_costs_time(seed: int) -> None:
    document = document_of(seed)
    for link in document["cluster"]["links"]:
        link["protocol_per_class"] = False
    together = value_of(document)
    for link in document["cluster"]["links"]:
        link["protocol_per_class"] = True
    assert value_of(document) <= together


@pytest.mark.parametrize("seed", [5, 16, 25, 26, FIRST_HUB + 2])
def test_the_search_finds_the_optimum_of_such_networks(seed: int) -> None:
    document = document_of(seed)
    result = solve(load_instance(document), backend="cp-sat")
    expected = base(seed)
    if expected == WORST:
        assert result.status is SolveStatus.INFEASIBLE
    else:
        assert result.status is SolveStatus.OPTIMAL
        assert result.time_us == expected


def two_hubs(**routes: Any) -> Document:
    """A pipeline over two sites that are joined over a thick and over a thin hub."""
    gpu = {
        "name": "micro",
        "peak_flops": {"bf16": 100e12},
        "memory_bytes": "256 GiB",
        "memory_bandwidth_bytes_per_s": 1.5e12,
        "scale_up_bytes_per_s": 300e9,
        "scale_up_domain": 1,
        "gpus_per_node": 1,
        "nic_gbps": 400,
    }

    def link(end: str, hub: str, gbps: float) -> Link:
        figures = {"bandwidth_gbps": gbps, "delay_s": "100 us", "protocols": ["dedicated"]}
        return {"from": end, "to": hub, **figures}

    return {
        "model": {
            "num_layers": 4,
            "hidden_size": 1024,
            "num_heads": 8,
            "ffn_hidden_size": 4096,
            "vocab_size": 32000,
        },
        "training": {"global_batch_size": 8, "sequence_length": 1024},
        "cluster": {
            "sites": [{"name": name, "gpu": gpu, "num_gpus": 1} for name in "ab"],
            "hubs": [{"name": "thick"}, {"name": "thin"}],
            "links": [link(end, "thick", 400) for end in "ab"]
            + [link(end, "thin", 1) for end in "ab"],
            **routes,
        },
        "search": {"pp": 2, "tp": 1, "dp": 1, "micro_batch_size": 1, "schedule": ["1f1b"]},
    }


def shortened(document: Document) -> Document:
    """The thin hub ten times as near."""
    changed = deepcopy(document)
    for link in changed["cluster"]["links"][2:]:
        link["delay_s"] = "10 us"
    return changed


def test_given_routes_keep_the_laws() -> None:
    document = two_hubs(routes=[{"from": "a", "to": "b", "via": ["thick"]}])
    assert value_of(shortened(document)) == value_of(document)


def test_among_routes_of_as_many_links_a_shorter_one_may_hurt() -> None:
    """The limit of the laws: such a cluster needs its routes given."""
    document = two_hubs()
    assert Problem(load_instance(document)).routes[0, 1] == (0, 3)
    moved = shortened(document)
    assert Problem(load_instance(moved)).routes[0, 1] == (4, 7)
    assert value_of(moved) > 2 * value_of(document)


@pytest.mark.parametrize(
    ("protocol", "figures"),
    [
        ({"balance": "ecmp", "loss_rule": "bbr"}, {"loss": 0.3}),
        ({"balance": 1.0, "loss_rule": "lossless"}, {"buffer": "shallow", "delay_s": "1 ms"}),
    ],
)
def test_a_link_that_no_allowed_protocol_can_drive_joins_nothing(
    protocol: Document, figures: Link
) -> None:
    """Neither BBR above 20 % loss nor flow control far beyond shallow buffers."""
    document = two_hubs()
    cluster = document["cluster"]
    cluster["hubs"], cluster["protocols"] = [], [{"name": "own", **protocol}]
    link = {"from": "a", "to": "b", "bandwidth_gbps": 100, "delay_s": "1 ms"}
    cluster["links"] = [{**link, "protocols": ["own"], **figures}]
    assert Problem(load_instance(document)).routes == {}
    assert value_of(document) == WORST
    assert solve(load_instance(document), backend="cp-sat").status is SolveStatus.INFEASIBLE
    for site in cluster["sites"]:
        site["num_gpus"] = 2
    result = solve(load_instance(document), backend="cp-sat")
    assert result.status is SolveStatus.OPTIMAL
    assert result.plan is not None and len(result.plan.placement) == 1
    assert result.time_us == value_of(document)


def renamed(document: Document) -> Document:
    """Other names for all sites, hubs and links, in another alphabetic order."""
    changed = deepcopy(document)
    cluster = changed["cluster"]
    nodes = [*cluster["sites"], *cluster["hubs"]]
    names = {node["name"]: f"{len(nodes) - i}-new" for i, node in enumerate(nodes)}
    for node in nodes:
        node["name"] = names[node["name"]]
    for i, link in enumerate(cluster["links"]):
        link |= {"from": names[link["from"]], "to": names[link["to"]], "name": f"link {-i}"}
    return changed


@pytest.mark.parametrize("seed", SEEDS)
def test_names_change_nothing(seed: int) -> None:
    assert value_of(renamed(document_of(seed))) == base(seed)


def refusing(document: Document, protocol: str, **fields: Any) -> tuple[Instance, Plan]:
    """An instance and its best plan with another protocol on every link."""
    changed = deepcopy(document)
    changed["cluster"]["links"][0] |= fields
    instance = load_instance(changed)
    plan = solve(instance, backend="cp-sat").plan
    assert plan is not None
    choices = tuple(c.model_copy(update={"protocol": protocol}) for c in plan.protocols)
    return instance, plan.model_copy(update={"protocols": choices})


def test_each_class_takes_the_protocol_that_suits_it() -> None:
    """Messages of the pipeline take the quick protocol, gradients the thick one."""
    document = two_hubs()
    cluster = document["cluster"]
    cluster["hubs"] = []
    cluster["protocols"] = [
        {"name": "quick", "balance": 0.3, "loss_rule": "none"},
        {"name": "thick", "balance": 1.0, "loss_rule": "selective_repeat"},
    ]
    cluster["links"] = [
        {
            "from": "a",
            "to": "b",
            "bandwidth_gbps": 100,
            "delay_s": "1 ms",
            "loss": 1e-3,
            "protocols": ["quick", "thick"],
        }
    ]
    for site in cluster["sites"]:
        site["num_gpus"] = 2
    document["search"] |= {"dp": 2, "placement_kind": "mixed"}
    document["model"]["hidden_size"] = 2048

    def solved(**fields: Any) -> tuple[int, set[tuple[str, str]]]:
        changed = deepcopy(document)
        changed["cluster"]["links"][0] |= fields
        instance = load_instance(changed)
        result = solve(instance, backend="cp-sat")
        assert result.status is SolveStatus.OPTIMAL
        assert result.plan is not None and result.time_us is not None
        assert check_plan(instance, result.plan).time_us == result.time_us
        return result.time_us, {(c.traffic, c.protocol) for c in result.plan.protocols}

    apart, choices = solved(protocol_per_class=True)
    assert {("pp", "quick"), ("dp", "thick")} <= choices
    together, shared = solved()
    assert {traffic for traffic, _ in shared} == {"all"}
    assert apart < together
    violations = check_plan(*refusing(document, "ib_ar")).violations
    assert [v.rule for v in violations] == ["protocols.allowed"] * len(violations) != []
    assert "'ib_ar' is not among the link's protocols" in violations[0].message
    far = {"protocols": None, "delay_s": "3 ms", "out_of_order": False}
    for name, reason in (
        ("ib_ar", "'ib_ar' sprays packets, the link's NICs do not reorder them"),
        ("own", "no protocol has that name"),
    ):
        violations = check_plan(*refusing(document, name, **far)).violations
        assert reason in violations[0].message
    for name in ("quick", "thick"):
        alone, only = solved(protocol_per_class=True, protocols=[name])
        assert {protocol for _, protocol in only} == {name}
        assert alone > apart
