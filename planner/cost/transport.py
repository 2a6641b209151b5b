"""Effective bandwidth and latency of a directed link under a protocol.

The rate of a protocol never falls with more capacity, less loss, less delay or more flows; every
rule below is written so that this holds exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, lgamma, log, log1p, sqrt
from typing import NamedTuple

from planner.cost.balance import ecmp_balance
from planner.cost.types import Link, LinkProtocol

MTU_BYTES = 4096
"""Packet of RDMA (reference cost model 5.2)."""

MSS_BYTES = 8948
"""Segment of TCP over jumbo frames (reference cost model 5.2)."""

TURNAROUND_S = 2e-6
"""Round trip of the end hosts without propagation; assumed."""

RANDOM_LOSS_GAIN = 1.14
"""Mean rate of a CUBIC connection that loses packets at random over that of one that loses as many
at equal distances: long gaps gain more than short ones lose.  RFC 9438 with fast convergence and
its Reno-friendly region, simulated packet by packet: 1.13 to 1.20, the largest where both regions
meet (``tests/cost/test_transport_simulation.py``).  That the law of equal distances is too low is
the result of Poojary and Sharma, "An asymptotic approximation of TCP CUBIC" (arXiv 1510.08496), and
for Reno of Ott, Kemperman and Mathis 1996."""

MESSAGE_BYTES = 16 << 20
"""Message whose last packets decide the tail of selective repeat; assumed."""

SECONDS_PER_KM = 5e-6
"""One-way delay of fibre (reference cost model 5.1)."""

SHALLOW_LOSSLESS_KM = 10.0
"""Distance up to which shallow buffers hold the headroom of priority flow control
(reference cost model 5.2)."""

BBR_LOSS_LIMIT = 0.2
"""Loss beyond which BBR loses its rate: it probes with 5/4 of its estimate, so above ``1 − 4/5`` no
probe can see the full rate again (Cardwell et al., "BBR", ACM Queue 14(5), 2016)."""

NEGLIGIBLE = 1e-9
"""Chance below which the rest of a series does not count."""

CODE_BLOCK = 32
"""Data packets of one erasure-coded block (SDR-RDMA, arXiv 2505.05366)."""


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


def go_back_n_share(bytes_per_s: float, round_trip_s: float, loss: float) -> float:
    """Share of a connection's rate that is not sent again after losses.

    ``(1−p)/(1−p+p·W)``: a loss costs the packet itself and those sent in the round trip until the
    sender hears of it, ``W = 1 + `` the bandwidth-delay product in packets.

    Source: Bertsekas and Gallager, Data Networks, 2.4 (reference cost model 5.2).
    """
    window = 1 + bytes_per_s * round_trip_s / MTU_BYTES
    return (1 - loss) / (1 - loss + loss * window)


def cubic_bytes_per_s(round_trip_s: float, loss: float) -> float:
    """Rate of one CUBIC connection that loses a packet every ``1/p``, bytes/s; infinite without.

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

    ``RTT·Σ_{r≥1} (1 − (1 − p^r)^M)`` for a message of ``M`` packets: the mean largest of ``M``
    geometric numbers of repetitions.

    Source: Szpankowski and Rego, "Yet another application of a binomial recurrence: order
    statistics" (Computing 43, 1990).
    """
    return round_trip_s * _mean_rounds(loss, MESSAGE_BYTES // MTU_BYTES)


class CodedRepeats(NamedTuple):
    """What an erasure code leaves to repeat: data packets a block, and round trips a message."""

    packets: float
    rounds: float


def coded_repeats(loss: float, code_rate: float) -> CodedRepeats:
    """Mean repetitions of erasure-coded blocks of 32 data packets in ``n = 32/R`` packets.

    A block is whole if any 32 of its packets arrive.  With ``P_j`` the chance that it is not and
    ``j`` data packets are missing, ``Σ j·P_j/(1−p)`` packets are repeated a block, and a message of
    ``B`` blocks takes ``Σ_{r≥0} (1 − (P_0 + Σ_j P_j·(1−p^r)^j)^B)`` round trips more.

    Source: SDR-RDMA (arXiv 2505.05366), maximum distance separable codes with selective repeat as
    the way out; order statistics as in :func:`tail_latency`.
    """
    if loss <= 0:
        return CodedRepeats(0.0, 0.0)
    parity = round(CODE_BLOCK / code_rate) - CODE_BLOCK
    missing = [0.0] * (CODE_BLOCK + 1)
    beyond = 0.0
    for j in range(1, CODE_BLOCK + 1):
        if j > parity:
            beyond = 1.0
        else:
            beyond += _binomial(parity, parity - j + 1, loss)
        missing[j] = _binomial(CODE_BLOCK, j, loss) * min(1.0, beyond)
    whole = 1 - min(1.0, sum(missing))
    blocks = MESSAGE_BYTES // MTU_BYTES / CODE_BLOCK
    rounds, late, still = 0.0, 1.0, 1.0
    while late > NEGLIGIBLE:
        done = whole + sum(chance * (1 - still) ** j for j, chance in enumerate(missing) if j)
        late = 1 - min(1.0, done) ** blocks
        rounds += late
        still *= loss
    again = sum(j * chance for j, chance in enumerate(missing)) / (1 - loss)
    return CodedRepeats(again, rounds)


def _binomial(trials: int, successes: int, chance: float) -> float:
    """Probability of so many successes; logarithms, so that nothing overflows."""
    ways = lgamma(trials + 1) - lgamma(successes + 1) - lgamma(trials - successes + 1)
    return exp(ways + successes * log(chance) + (trials - successes) * log1p(-chance))


def _mean_rounds(loss: float, packets: int) -> float:
    """Mean largest number of repetitions over some packets."""
    total, missing = 0.0, loss
    while (late := 1 - (1 - missing) ** packets) > NEGLIGIBLE:
        total += late
        missing *= loss
    return total


def effective_rate(link: Link, protocol: LinkProtocol) -> TransportRate:
    """Rate and latency of a protocol on a directed link.

    The rate is the smallest of: the capacity times the overhead factor, the balance over the paths
    and what the loss rule leaves; and the windows of all connections per round trip.  There are
    ``flows·queue_pairs·streams`` connections, each hashed and windowed on its own.  A rate that was
    measured takes the place of all this, up to the capacity.  The latency contains the jitter.

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
    round_trip = 2 * link.delay_s + TURNAROUND_S
    late = link.delay_s + link.jitter_s
    measured = link.measured_bytes_per_s.get(protocol.name)
    if measured is not None:
        tail = tail_latency(round_trip, link.loss) if protocol.loss_rule in _REPEATING else 0.0
        rate = min(measured, link.capacity_bytes_per_s)
        return TransportRate(rate, late + tail, True, "measured")
    connections = link.flows * protocol.queue_pairs * protocol.streams
    if protocol.balance == "ecmp":
        share = ecmp_balance(connections, link.paths)
    else:
        share = protocol.balance
    balanced = link.capacity_bytes_per_s * protocol.overhead * share
    rate, latency = _after_loss(link, protocol, balanced, connections, round_trip)
    reason = "capacity" if rate == balanced else "loss"
    if protocol.window_bytes is not None:
        window = connections * protocol.window_bytes / round_trip
        if window < rate:
            rate, reason = window, "window"
    return TransportRate(rate, late + latency, True, reason)


_REPEATING = ("selective_repeat", "cubic", "bbr")
"""Rules under which the last packets of a message are repeated one by one."""


def _after_loss(
    link: Link, protocol: LinkProtocol, balanced: float, connections: int, round_trip: float
) -> tuple[float, float]:
    """Rate that the loss rule leaves of the balanced capacity, and the latency that it adds.

    BBR paces at the rate that it saw arrive, ``C·(1−p)``, and loses ``p`` of that again; its probes
    fill the bottleneck and are drained at once (Cardwell et al. 2016, ProbeBW).
    """
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
        flows = connections * RANDOM_LOSS_GAIN * cubic_bytes_per_s(round_trip, loss)
        return min(kept, flows), tail_latency(round_trip, loss)
    if rule == "bbr":
        return kept * (1 - loss), tail_latency(round_trip, loss)
    repeats = coded_repeats(loss, protocol.code_rate)
    sent = CODE_BLOCK / protocol.code_rate + repeats.packets
    return balanced * CODE_BLOCK / sent, round_trip * repeats.rounds


def _refusal(link: Link, protocol: LinkProtocol) -> str:
    deep = link.buffer == "deep"
    if protocol.needs_deep_buffer and not deep:
        return f"{protocol.name} needs deep buffers"
    if protocol.loss_rule == "bbr" and link.loss > BBR_LOSS_LIMIT:
        return (
            f"{protocol.name} holds its rate up to {BBR_LOSS_LIMIT:.0%} loss, the link loses "
            f"{link.loss:.2%}"
        )
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
