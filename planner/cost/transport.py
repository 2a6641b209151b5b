"""Effective bandwidth and latency of a directed link under a protocol.

The rate of a protocol never falls with more capacity, less loss, less delay or more flows; every
rule below is written so that this holds exactly.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from math import ceil, log, log2, sqrt

from planner.cost.types import Link, LinkProtocol

MTU_BYTES = 4096
"""Packet of RDMA (reference cost model 5.2)."""

MSS_BYTES = 8948
"""Segment of TCP over jumbo frames (reference cost model 5.2)."""

TURNAROUND_S = 2e-6
"""Round trip of the end hosts without propagation; assumed."""

MESSAGE_BYTES = 16 << 20
"""Message whose last packets decide the tail of selective repeat; assumed."""

SECONDS_PER_KM = 5e-6
"""One-way delay of fibre (reference cost model 5.1)."""

SHALLOW_LOSSLESS_KM = 10.0
"""Distance up to which shallow buffers hold the headroom of priority flow control
(reference cost model 5.2)."""

BBR_LOSS_LIMIT = 0.15
"""Loss up to which BBR keeps its rate (reference cost model 5.2)."""

_LOADS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 1024.0)

_ECMP = {
    2: (0.665, 0.729, 0.784, 0.836, 0.877, 0.910, 0.934, 0.953, 0.966, 0.983),
    4: (0.471, 0.564, 0.652, 0.727, 0.792, 0.844, 0.885, 0.916, 0.939, 0.969),
    8: (0.386, 0.477, 0.568, 0.653, 0.730, 0.795, 0.846, 0.887, 0.918, 0.957),
    16: (0.325, 0.415, 0.508, 0.599, 0.683, 0.755, 0.815, 0.863, 0.900, 0.947),
    32: (0.283, 0.369, 0.462, 0.557, 0.645, 0.722, 0.789, 0.842, 0.884, 0.939),
    64: (0.253, 0.336, 0.427, 0.521, 0.613, 0.696, 0.766, 0.824, 0.870, 0.931),
    128: (0.228, 0.308, 0.397, 0.493, 0.586, 0.672, 0.746, 0.808, 0.858, 0.924),
    256: (0.210, 0.286, 0.374, 0.468, 0.563, 0.652, 0.729, 0.794, 0.846, 0.918),
}
"""``λ/E[largest load]`` of ``λ·n`` flows thrown on ``n`` paths, by ``n`` and for each λ of
``_LOADS``: Monte Carlo of 4,000 to 20,000 throws (reference cost model 5.3)."""


@dataclass(frozen=True, slots=True)
class TransportRate:
    """What a protocol makes of a directed link.

    Attributes
    ----------
    bytes_per_s
        Sustained rate of all flows together; 0 where not available.
    latency_s
        One-way delay, with the expected wait for lost packets at the end of a message.
    available
        False where the protocol cannot drive the link.
    reason
        What limits the rate, or why the protocol is not available.
    """

    bytes_per_s: float
    latency_s: float
    available: bool
    reason: str


def ecmp_balance(flows: float, paths: int) -> float:
    """Share of ``paths`` that hashed flows use when all must finish together.

    ``λ/E[largest load]`` with ``λ = flows/paths``, interpolated in log λ and log paths; between one
    flow (``1/paths``) and one flow a path it is linear in λ.  Beyond the table its edge holds.

    Raises
    ------
    ValueError
        If there is no flow or no path.

    Source: reference cost model 5.3; balls into bins.
    """
    if flows <= 0 or paths < 1:
        raise ValueError(f"need at least one flow and one path, not {flows} and {paths}")
    if paths == 1:
        return 1.0
    load = flows / paths
    if load >= 1:
        return _table_balance(load, paths)
    if flows <= 1:
        return load
    return 1 / paths + (_table_balance(1.0, paths) - 1 / paths) * (flows - 1) / (paths - 1)


def _table_balance(load: float, paths: int) -> float:
    sizes = tuple(_ECMP)
    high = min(bisect_right(sizes, paths), len(sizes) - 1)
    low = max(high - 1, 0)
    weight = min(1.0, log2(paths / sizes[low]) / log2(sizes[high] / sizes[low]))
    below, above = _row_balance(load, sizes[low]), _row_balance(load, sizes[high])
    return below + weight * (above - below)


def _row_balance(load: float, size: int) -> float:
    row = _ECMP[size]
    high = min(bisect_right(_LOADS, load), len(_LOADS) - 1)
    weight = min(1.0, log2(load / _LOADS[high - 1]) / log2(_LOADS[high] / _LOADS[high - 1]))
    return row[high - 1] + weight * (row[high] - row[high - 1])


def go_back_n_share(bytes_per_s: float, round_trip_s: float, loss: float) -> float:
    """Share of a connection's rate that is not sent again after losses.

    ``(1−p)/(1−p+p·W)`` with the bandwidth-delay product ``W`` in packets, at least one.

    Source: textbook go-back-N (reference cost model 5.2).
    """
    window = max(1.0, bytes_per_s * round_trip_s / MTU_BYTES)
    return (1 - loss) / (1 - loss + loss * window)


def cubic_bytes_per_s(round_trip_s: float, loss: float) -> float:
    """Rate of one CUBIC connection in bytes/s; infinite without loss.

    The larger of Mathis' ``1.22·MSS/(RTT·√p)`` and RFC 9438's
    ``(C(3+β)/(4(1−β)))^¼·RTT^¾/p^¾·MSS/RTT`` with C = 0.4, β = 0.7.

    Source: Mathis 1997; RFC 9438 section 5.1, equation 6.
    """
    if loss <= 0:
        return float("inf")
    reno = 1.22 * MSS_BYTES / (round_trip_s * sqrt(loss))
    factor = (0.4 * 3.7 / (4 * 0.3)) ** 0.25
    return float(max(reno, factor * MSS_BYTES / (round_trip_s**0.25 * loss**0.75)))


def tail_latency(round_trip_s: float, loss: float) -> float:
    """Expected seconds until the last packets of a message are repeated.

    ``RTT·⌈log M / log(1/p)⌉`` for a message of ``M`` packets.

    Source: textbook selective repeat; SDR-RDMA (arXiv 2505.05366).
    """
    if loss <= 0:
        return 0.0
    packets = MESSAGE_BYTES / MTU_BYTES
    return round_trip_s * ceil(log(packets) / log(1 / loss))


def effective_rate(link: Link, protocol: LinkProtocol) -> TransportRate:
    """Rate and latency of a protocol on a directed link.

    The rate is the smallest of: the capacity times the overhead factor, the balance over the paths
    and what the loss rule leaves; and the windows of all connections per round trip.  There are
    ``flows·queue_pairs·streams`` connections, each hashed and windowed on its own.

    Raises
    ------
    ValueError
        If the link or the protocol has figures outside their ranges.

    Source: reference cost model 5.
    """
    _check(link, protocol)
    refusal = _refusal(link, protocol)
    if refusal:
        return TransportRate(0.0, link.delay_s, False, refusal)
    connections = link.flows * protocol.queue_pairs * protocol.streams
    if protocol.balance == "ecmp":
        share = ecmp_balance(connections, link.paths)
    else:
        share = protocol.balance
    balanced = link.capacity_bytes_per_s * protocol.overhead * share
    round_trip = 2 * link.delay_s + TURNAROUND_S
    rate, latency = _after_loss(link, protocol, balanced, connections, round_trip)
    reason = "capacity" if rate == balanced else "loss"
    if protocol.window_bytes is not None:
        window = connections * protocol.window_bytes / round_trip
        if window < rate:
            rate, reason = window, "window"
    return TransportRate(rate, link.delay_s + latency, True, reason)


def _after_loss(
    link: Link, protocol: LinkProtocol, balanced: float, connections: int, round_trip: float
) -> tuple[float, float]:
    """Rate that the loss rule leaves of the balanced capacity, and the latency that it adds."""
    rule, loss = protocol.loss_rule, link.loss
    kept = balanced * (1 - loss)
    if rule == "none":
        return balanced, 0.0
    if rule == "lossless":
        return kept, 0.0
    if rule == "gbn":
        return balanced * go_back_n_share(balanced / connections, round_trip, loss), 0.0
    if rule == "selective_repeat":
        return kept, tail_latency(round_trip, loss)
    if rule == "cubic":
        flows = connections * cubic_bytes_per_s(round_trip, loss)
        return min(kept, flows), tail_latency(round_trip, loss)
    if rule == "bbr":
        beyond = 1.0 if loss <= BBR_LOSS_LIMIT else (BBR_LOSS_LIMIT / loss) ** 2
        return kept * beyond, tail_latency(round_trip, loss)
    if loss <= 1 - protocol.code_rate:
        return balanced * protocol.code_rate, 0.0
    return kept * protocol.code_rate, tail_latency(round_trip, loss)


def _refusal(link: Link, protocol: LinkProtocol) -> str:
    deep = link.buffer == "deep"
    if protocol.needs_deep_buffer and not deep:
        return f"{protocol.name} needs deep buffers"
    limit = protocol.max_distance_km
    if limit is None and protocol.loss_rule == "lossless" and not deep:
        limit = SHALLOW_LOSSLESS_KM
    distance = link.distance_km
    if distance is None:
        distance = link.delay_s / SECONDS_PER_KM
    if limit is not None and distance > limit:
        return f"{protocol.name} reaches {limit:g} km, the link is {distance:g} km long"
    return ""


def _check(link: Link, protocol: LinkProtocol) -> None:
    if link.capacity_bytes_per_s <= 0 or link.delay_s < 0 or not 0 <= link.loss < 1:
        raise ValueError("a link needs capacity > 0, delay >= 0 and 0 <= loss < 1")
    if link.flows < 1 or link.paths < 1 or protocol.queue_pairs < 1 or protocol.streams < 1:
        raise ValueError("flows, paths, queue pairs and streams must be at least 1")
    if not 0 < protocol.overhead <= 1 or not 0 < protocol.code_rate <= 1:
        raise ValueError(f"{protocol.name}: overhead and code rate must lie in (0, 1]")
    if protocol.balance != "ecmp" and not 0 < protocol.balance <= 1:
        raise ValueError(f"{protocol.name}: balance must be 'ecmp' or lie in (0, 1]")
