"""Directed links and the routes between sites."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from planner.instance.cluster import usable

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
                    distance_km=link.length_km,
                    loss=link.loss,
                    paths=link.paths,
                    flows=link.flows or min(s.num_gpus for s in ends or cluster.sites),
                    buffer=link.buffer,
                    lossless_distance_km=link.lossless_distance_km,
                    protocols=_protocols(link, known),
                    per_class=link.protocol_per_class,
                )
            )
    return tuple(directed)


def _capacities_gbps(link: Link, ends: list[Site]) -> tuple[float, float]:
    if link.bandwidth_gbps is not None:
        return link.bandwidth_gbps, link.reverse_bandwidth_gbps or link.bandwidth_gbps
    shared = min(site.uplink_gbps for site in ends) / (link.oversubscription or 1.0)
    return shared, shared


def _protocols(link: Link, known: dict[str, ProtocolSpec]) -> tuple[ProtocolSpec, ...]:
    """The protocols of a link, their lossless reach replaced where the link gives its own."""
    if link.protocols is not None:
        chosen = [known[name] for name in dict.fromkeys(link.protocols)]
    else:
        chosen = [
            protocol
            for protocol in known.values()
            if usable(protocol, link) is None
            and (protocol.max_paths is None or link.paths <= protocol.max_paths)
        ]
    if link.lossless_distance_km is None:
        return tuple(chosen)
    reach = {"max_distance_km": link.lossless_distance_km}
    return tuple(p if p.max_distance_km is None else p.model_copy(update=reach) for p in chosen)


def routes(cluster: Cluster) -> dict[tuple[int, int], tuple[int, ...]]:
    """For every ordered pair of sites that are connected, the directed links of its route.

    Least delay; among equals fewest links, then the links first in file order. Any site or hub
    may be passed. Delays are compared in whole picoseconds, so that sums do not depend on order.
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
    return found


def _from(start: int, leaving: dict[int, list[DirectedLink]]) -> dict[int, tuple[int, ...]]:
    """The best path from ``start`` to every node it reaches (Dijkstra on delay, hops, links)."""
    best: dict[int, tuple[int, ...]] = {}
    queue: list[tuple[int, int, tuple[int, ...], int]] = [(0, 0, (), start)]
    while queue:
        delay, hops, path, node = heapq.heappop(queue)
        if node in best:
            continue
        best[node] = path
        for link in leaving.get(node, ()):
            if link.target_node not in best:
                cost = delay + round(link.delay_s * 1e12)
                heapq.heappush(queue, (cost, hops + 1, (*path, link.index), link.target_node))
    return best
