"""Instances with more of one resource, everything else as it is.

More GPUs leave the capacities and flows of the links alone, and a shorter delay moves no route, so
every legal plan stays legal and none becomes slower.
"""

from __future__ import annotations

from math import inf, nextafter
from typing import Any

from planner.instance.cluster import Link
from planner.instance.route import Route
from planner.instance.schema import Instance
from planner.instance.topology import BYTES_PER_S_PER_GBPS, DirectedLink, directed_links, routes


def with_bandwidth(instance: Instance, link: int, factor: float) -> Instance:
    """The instance with the capacity of a link multiplied, both ways, measured rates included.

    Parameters
    ----------
    link
        Index in ``cluster.links``.
    factor
        At least 1.
    """
    there, back = directed_links(instance.cluster)[2 * link : 2 * link + 2]
    measured = [
        rate.model_copy(
            update={
                "bandwidth_gbps": rate.bandwidth_gbps * factor,
                "reverse_bandwidth_gbps": None
                if rate.reverse_bandwidth_gbps is None
                else rate.reverse_bandwidth_gbps * factor,
            }
        )
        for rate in instance.cluster.links[link].measured
    ]
    update = {
        "bandwidth_gbps": _gbps(there) * factor,
        "reverse_bandwidth_gbps": _gbps(back) * factor,
        "oversubscription": None,
        "measured": tuple(measured),
    }
    return _with_link(instance, link, update)


def with_delay(instance: Instance, link: int, factor: float) -> Instance:
    """The instance with the one-way delay and the jitter of a link multiplied.

    Its length is that of the new delay.  All routes stay.

    Parameters
    ----------
    link
        Index in ``cluster.links``.
    factor
        At most 1; 0 = no delay.
    """
    given = instance.cluster.links[link]
    update = {
        "delay_s": given.one_way_delay_s * factor,
        "distance_km": None,
        "rtt_s": None,
        "jitter_s": given.jitter_s * factor,
    }
    cluster = instance.cluster.model_copy(update={"routes": _all_routes(instance)})
    return _with_link(instance.model_copy(update={"cluster": cluster}), link, update)


def with_node(instance: Instance, site: int) -> Instance:
    """The instance with one more node of GPUs at a site; links keep capacity and flows."""
    given = instance.cluster.sites[site]
    larger = given.model_copy(update={"num_gpus": given.num_gpus + given.gpus_per_node})
    sites = tuple(larger if d == site else s for d, s in enumerate(instance.cluster.sites))
    ways = directed_links(instance.cluster)
    links = tuple(_unchanging(link, ways[2 * i]) for i, link in enumerate(instance.cluster.links))
    cluster = instance.cluster.model_copy(update={"sites": sites, "links": links})
    return instance.model_copy(update={"cluster": cluster})


def with_memory(instance: Instance, sites: tuple[int, ...], more_bytes: int) -> Instance:
    """The instance with a higher memory limit of each GPU of some sites."""
    changed = tuple(
        site.model_copy(update={"memory_limit_bytes": site.memory_limit_bytes + more_bytes})
        if d in sites
        else site
        for d, site in enumerate(instance.cluster.sites)
    )
    cluster = instance.cluster.model_copy(update={"sites": changed})
    return instance.model_copy(update={"cluster": cluster})


def _with_link(instance: Instance, link: int, update: dict[str, Any]) -> Instance:
    links = list(instance.cluster.links)
    links[link] = links[link].model_copy(update=update)
    cluster = instance.cluster.model_copy(update={"links": tuple(links)})
    return instance.model_copy(update={"cluster": cluster})


def _unchanging(link: Link, there: DirectedLink) -> Link:
    """The link with what follows from the number of GPUs given as numbers."""
    update: dict[str, Any] = {"flows": there.flows}
    if link.bandwidth_gbps is None:
        update |= {"bandwidth_gbps": _gbps(there), "oversubscription": None}
    return link.model_copy(update=update)


def _gbps(link: DirectedLink) -> float:
    """Capacity in Gb/s that gives no fewer bytes/s than the link has, rounding included."""
    gbps = link.capacity_bytes_per_s / BYTES_PER_S_PER_GBPS
    exact = gbps * BYTES_PER_S_PER_GBPS >= link.capacity_bytes_per_s
    return gbps if exact else nextafter(gbps, inf)


def _all_routes(instance: Instance) -> tuple[Route, ...]:
    """The route of every pair of sites, as given ones."""
    cluster = instance.cluster
    ways = directed_links(cluster)
    return tuple(
        Route.model_validate(
            {
                "from": cluster.sites[source].name,
                "to": cluster.sites[target].name,
                "via": [ways[link].target for link in route[:-1]],
                "both_ways": False,
            }
        )
        for (source, target), route in sorted(routes(cluster).items())
        if source != target
    )
