"""Laws of the optimum with zones, switches that reduce and collectives in chunks.

Whole plan spaces are priced: no figure that gets better makes the best plan slower, and each of
them makes some best plans faster.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy
from functools import lru_cache
from typing import Any

import pytest

from planner.instance.load import load_instance
from planner.instance.schema import Instance
from planner.search.solve import solve
from tests.agreement import assert_settled, tie_key
from tests.brute_force import best_plan
from tests.random_instances import random_fabric

Document = dict[str, Any]
Change = Callable[[Document, random.Random], None]

SEEDS = range(16)
SEARCHED = range(20, 27)
PROTOCOLS = ("rdma_ecmp", "rdma_ecmp_qp16", "rdma_spray", "rdma_ec", "tcp_cubic", "tcp_bbr")
WORST = 1 << 62
"""Z where there is no plan."""


def document_of(instance: Instance) -> Document:
    document: Document = instance.model_dump(by_alias=True, mode="json")
    document["search"] = instance.search.model_dump(exclude_unset=True, mode="json")
    return document


def value_of(document: Document) -> int:
    best = best_plan(load_instance(document), samples=0, broken=0).best_time_us
    return WORST if best is None else best


@lru_cache
def base(seed: int) -> tuple[str, int]:
    """The instance of a seed and its optimum."""
    instance = random_fabric(seed)
    return instance.model_dump_json(by_alias=True), value_of(document_of(instance))


def drawn(seed: int) -> tuple[Document, int]:
    text, value = base(seed)
    return document_of(Instance.model_validate_json(text)), value


def zones(site: Document, rng: random.Random) -> None:
    """Zones in place of none, or zones that join."""
    node = max(site["gpus_per_node"], site["gpu"]["scale_up_domain"])
    zone = site["zone_gpus"]
    site["zone_gpus"] = node * rng.choice((1, 2, 4)) if zone is None else zone * rng.choice((2, 3))


def less_oversubscription(site: Document, rng: random.Random) -> None:
    over = site["fabric_oversubscription"] - 1
    site["fabric_oversubscription"] = 1 + over * rng.choice((0.0, 0.5, 0.9))


def reduction(site: Document, rng: random.Random) -> None:
    site["in_network_reduction"] = ["network", "scale_up"]


def chunks(site: Document, rng: random.Random) -> None:
    site["collective_chunks"] *= rng.choice((2, 8))


def capacity(link: Document, rng: random.Random) -> None:
    for way in ("bandwidth_gbps", "reverse_bandwidth_gbps"):
        link[way] = link[way] and 3 * link[way]


def loss(link: Document, rng: random.Random) -> None:
    link["loss"] *= rng.choice((0.0, 0.1))


def distance(link: Document, rng: random.Random) -> None:
    link["distance_km"] *= rng.choice((0.0, 0.3))


def protocol(link: Document, rng: random.Random) -> None:
    more = [name for name in PROTOCOLS if name not in link["protocols"]]
    link["protocols"].append(rng.choice(more))


SITES: tuple[Change, ...] = (zones, less_oversubscription, reduction, chunks)
LINKS: tuple[Change, ...] = (capacity, loss, distance, protocol)


def changed(seed: int, change: Change) -> tuple[int, int]:
    """The optimum of a seed before and after a change of every site or every link."""
    document, before = drawn(seed)
    rng = random.Random(f"{seed} {change.__name__}")
    places = document["cluster"]["sites" if change in SITES else "links"]
    for place in places:
        change(place, rng)
    return before, value_of(document) if places else before


@pytest.mark.parametrize("change", [*SITES, *LINKS])
def test_a_better_figure_never_costs_time(change: Change) -> None:
    found = {seed: changed(seed, change) for seed in SEEDS}
    worse = {seed: values for seed, values in found.items() if values[1] > values[0]}
    assert not worse
    assert any(after < before for before, after in found.values())


@pytest.mark.parametrize("seed", SEEDS)
def test_better_figures_in_any_order_never_cost_time(seed: int) -> None:
    """One random place after the other gets better, all in one instance."""
    document, last = drawn(seed)
    rng = random.Random(f"path {seed}")
    for _ in range(4):
        links = document["cluster"]["links"]
        change = rng.choice((*SITES, *LINKS) if links else SITES)
        change(rng.choice(links if change in LINKS else document["cluster"]["sites"]), rng)
        for link in links:
            link["protocols"] = list(dict.fromkeys(link["protocols"]))
        for site in document["cluster"]["sites"]:
            site["collective_chunks"] = min(64, site["collective_chunks"])
        now = value_of(document)
        assert now <= last, change.__name__
        last = now


def renamed(document: Document) -> Document:
    """Other names for all sites, hubs and links, in another alphabetic order."""
    other = deepcopy(document)
    cluster = other["cluster"]
    nodes = [*cluster["sites"], *cluster["hubs"]]
    names = {node["name"]: f"{len(nodes) - i}-new" for i, node in enumerate(nodes)}
    for node in nodes:
        node["name"] = names[node["name"]]
    for i, link in enumerate(cluster["links"]):
        link |= {"from": names[link["from"]], "to": names[link["to"]], "name": f"link {-i}"}
    return other


@pytest.mark.parametrize("seed", SEEDS)
def test_names_change_nothing(seed: int) -> None:
    document, value = drawn(seed)
    assert value_of(renamed(document)) == value


@pytest.mark.parametrize("seed", SEARCHED)
def test_the_search_proves_the_best_plan_of_all(seed: int) -> None:
    instance = random_fabric(seed)
    brute = best_plan(instance)
    result = solve(instance, backend="cp-sat")
    assert_settled(instance, result)
    assert result.time_us == brute.best_time_us
    assert tie_key(result.plan) == tie_key(brute.plan)
