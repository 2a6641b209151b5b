"""Directed links and the routes between sites."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from planner.instance.cluster import refusal
from planner.instance.route import route_links

if TYPE_CHECKING:
    from planner.instance.cluster import Cluster, Link, ProtocolSpec, Site

BYTES_PER_S_PER_GBPS = 1.25e8


@dataclass(frozen=True)
class DirectedLink:
    """One direction of a link. Nodes are numbered sites first, then hubs, in file order."""

    index: int
    name: str
    source: str
    target: str
    source_node: int
    target_node: int
    capacity_bytes_per_s: float
    delay_s: float
    """One way: propagation and switching."""
    jitter_s: float
    """Spread of the one-way delay."""
    distance_km: float
    """As given, or the fibre length that the delay stands for."""
    loss: float
    paths: int
    flows: int
    """Concurrent flows of one traffic class, before queue pairs and streams."""
    buffer: Literal["deep", "shallow"]
    lossless_distance_km: float | None
    protocols: tuple[ProtocolSpec, ...]
    """Only those that can run here."""
    per_class: bool
    """Pipeline and data-parallel traffic may use different protocols."""
    measured_bytes_per_s: Mapping[str, float]
    """Measured rate of all flows together, by protocol."""


def directed_links(cluster: Cluster) -> tuple[DirectedLink, ...]:
    """Both directions of every link in file order: ``from``-``to`` at 2i, back at 2i + 1."""
    sites = {site.name: site for site in cluster.sites}
    names = [site.name for site in cluster.sites] + [hub.name for hub in cluster.hubs]
    nodes = {name: i for i, name in enumerate(names)}
    known = cluster.known_protocols
    directed = []
    for i, link in enumerate(cluster.links):
        ends = [sites[name] for name in (link.source, link.target) if name in sites]
        forward, back = _capacities_gbps(link, ends)
        directions = ((link.source, link.target, forward), (link.target, link.source, back))
        for way, (source, target, gbps) in enumerate(directions):
            directed.append(
                DirectedLink(
                    index=2 * i + way,
                    name=link.name,
                    source=source,
                    target=target,
                    source_node=nodes[source],
                    target_node=nodes[target],
                    capacity_bytes_per_s=gbps * BYTES_PER_S_PER_GBPS,
                    delay_s=link.one_way_delay_s,
                    jitter_s=link.jitter_s,
                    distance_km=link.length_km,
                    loss=link.loss,
                    paths=link.paths,
                    flows=link.flows or min(s.num_gpus for s in ends or cluster.sites),
                    buffer=link.buffer,
                    lossless_distance_km=link.lossless_distance_km,
                    protocols=_protocols(link, known),
                    per_class=link.protocol_per_class,
                    measured_bytes_per_s=_measured(link, back=way == 1),
                )
            )
    return tuple(directed)


def _capacities_gbps(link: Link, ends: list[Site]) -> tuple[float, float]:
    if link.bandwidth_gbps is not None:
        return link.bandwidth_gbps, link.reverse_bandwidth_gbps or link.bandwidth_gbps
    shared = min(site.uplink_gbps for site in ends) / (link.oversubscription or 1.0)
    return shared, shared


def _measured(link: Link, *, back: bool) -> dict[str, float]:
    rates = {}
    for rate in link.measured:
        gbps = rate.bandwidth_gbps
        if back and rate.reverse_bandwidth_gbps is not None:
            gbps = rate.reverse_bandwidth_gbps
        rates[rate.protocol] = gbps * BYTES_PER_S_PER_GBPS
    return rates


def _protocols(link: Link, known: dict[str, ProtocolSpec]) -> tuple[ProtocolSpec, ...]:
    """The protocols of a link, their lossless reach replaced where the link gives its own."""
    if link.protocols is not None:
        chosen = [known[name] for name in dict.fromkeys(link.protocols)]
    else:
        chosen = [protocol for protocol in known.values() if refusal(protocol, link) is None]
    if link.lossless_distance_km is None:
        return tuple(chosen)
    reach = {"max_distance_km": link.lossless_distance_km}
    return tuple(p if p.max_distance_km is None else p.model_copy(update=reach) for p in chosen)


def routes(cluster: Cluster) -> dict[tuple[int, int], tuple[int, ...]]:
    """For every ordered pair of sites that are connected, the directed links of its route.

    A route that the cluster gives stands.  Any other has the fewest links; among equals the least
    delay, then the links first in file order.  Any site or hub may be passed.  Delays are compared
    in whole picoseconds, so that sums do not depend on order.

    The number of links comes first, so that no figure of a link moves a route where one route has
    the fewest links: more capacity, less loss or a shorter distance then never makes a plan slower
    (``docs/network.md``).
    """
    links = directed_links(cluster)
    leaving: dict[int, list[DirectedLink]] = {}
    for link in links:
        leaving.setdefault(link.source_node, []).append(link)
    found: dict[tuple[int, int], tuple[int, ...]] = {}
    for start in range(len(cluster.sites)):
        for node, path in sorted(_from(start, leaving).items()):
            if node != start and node < len(cluster.sites):
                found[start, node] = path
    return found | _given(cluster)


def _given(cluster: Cluster) -> dict[tuple[int, int], tuple[int, ...]]:
    """The routes that the cluster gives."""
    sites = {site.name: d for d, site in enumerate(cluster.sites)}
    hubs = [hub.name for hub in cluster.hubs]
    found: dict[tuple[int, int], tuple[int, ...]] = {}
    for route in cluster.routes:
        path = route_links(route, list(sites), hubs, cluster.links)
        pair = sites[route.source], sites[route.target]
        found[pair] = tuple(2 * link + (not forward) for link, forward in path)
        if route.both_ways:
            found[pair[::-1]] = tuple(2 * link + forward for link, forward in reversed(path))
    return found


def _from(start: int, leaving: dict[int, list[DirectedLink]]) -> dict[int, tuple[int, ...]]:
    """The best path from ``start`` to every node it reaches (Dijkstra on hops, delay, links)."""
    best: dict[int, tuple[int, ...]] = {}
    queue: list[tuple[int, int, tuple[int, ...], int]] = [(0, 0, (), start)]
    while queue:
        hops, delay, path, node = heapq.heappop(queue)
        if node in best:
            continue
        best[node] = path
        for link in leaving.get(node, ()):
            if link.target_node not in best:
                cost = delay + round(link.delay_s * 1e12)
                heapq.heappush(queue, (hops + 1, cost, (*path, link.index), link.target_node))
    return best
