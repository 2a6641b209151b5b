"""Transport rules against simulations that share nothing with them: throws of flows on paths,
packets on a wire, windows that grow and shrink.  Seeds are fixed."""

from __future__ import annotations

import heapq
from collections import deque
from math import ceil
from typing import Any

import numpy as np
import pytest

from planner.cost.balance import ecmp_balance
from planner.cost.transport import (
    BBR_LOSS_LIMIT,
    CODE_BLOCK,
    MESSAGE_BYTES,
    MSS_BYTES,
    MTU_BYTES,
    TURNAROUND_S,
    cubic_bytes_per_s,
    effective_rate,
    go_back_n_share,
    tail_latency,
)
from tests.cost.shapes import Link, Protocol

GBIT = 1.25e8
WITHIN = 0.10
MESSAGE_PACKETS = MESSAGE_BYTES // MTU_BYTES


@pytest.mark.parametrize("paths", [2, 4, 6, 16, 24, 64, 100, 256])
def test_balance_of_hashed_flows_is_that_of_random_throws(paths: int) -> None:
    rng = np.random.default_rng(paths)
    counts = {1, 2, paths // 4, paths // 2, paths - 1, paths, 3 * paths // 2, 5 * paths, 40 * paths}
    for flows in sorted(counts - {0}):
        throws = rng.integers(0, paths, (1500, flows))
        fullest = np.mean([np.bincount(row, minlength=paths).max() for row in throws])
        finished = flows / paths / fullest
        assert ecmp_balance(flows, paths) == pytest.approx(finished, rel=WITHIN), flows


def go_back_n(delay_slots: int, loss: float, slots: int, seed: int) -> float:
    """Share of the slots of a wire that carry new packets.

    One packet a slot; the receiver takes packets in order only and reports the first one missing,
    once for every time that the sender has gone back; packets and reports take ``delay_slots``.
    """
    rng = np.random.default_rng(seed)
    lost = rng.random(slots) < loss
    wire: deque[tuple[int, int, int]] = deque()
    reports: deque[tuple[int, int]] = deque()
    following = expected = epoch = reported = 0
    for slot in range(slots):
        while reports and reports[0][0] <= slot:
            following, epoch = reports.popleft()[1], epoch + 1
        if not lost[slot]:
            wire.append((slot + delay_slots, following, epoch))
        following += 1
        while wire and wire[0][0] <= slot:
            _, number, sent_in = wire.popleft()
            if number == expected:
                expected += 1
            elif number > expected and sent_in >= reported:
                reported = sent_in + 1
                reports.append((slot + delay_slots, expected))
    return expected / slots


@pytest.mark.parametrize(
    ("delay_slots", "loss"),
    [(1, 0.1), (2, 0.02), (10, 0.01), (100, 1e-3), (500, 1e-3), (500, 1e-2), (2000, 3e-4)],
)
def test_go_back_n_is_that_of_packets_on_a_wire(delay_slots: int, loss: float) -> None:
    share = go_back_n(delay_slots, loss, 400_000, seed=delay_slots)
    rate = 50e9
    round_trip = 2 * delay_slots * MTU_BYTES / rate
    assert go_back_n_share(rate, round_trip, loss) == pytest.approx(share, rel=WITHIN)


def repeated_until_all_are_there(
    packets: int, loss: float, rng: np.random.Generator
) -> tuple[int, int]:
    """Rounds of repetition, and packets sent, of one message."""
    missing, rounds, sent = packets, -1, 0
    while missing:
        sent += missing
        missing = int(rng.binomial(missing, loss))
        rounds += 1
    return rounds, sent


@pytest.mark.parametrize("loss", [1e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.3])
def test_selective_repeat_is_that_of_messages_sent_until_whole(loss: float) -> None:
    rng = np.random.default_rng(int(1 / loss))
    runs = [repeated_until_all_are_there(MESSAGE_PACKETS, loss, rng) for _ in range(20_000)]
    rounds, sent = np.mean(runs, axis=0)
    assert tail_latency(1.0, loss) == pytest.approx(rounds, rel=WITHIN)
    link = Link(loss=loss)
    rate = effective_rate(link, Protocol("selective_repeat")).bytes_per_s
    share = MESSAGE_PACKETS / sent
    assert rate == pytest.approx(share * link.capacity_bytes_per_s, rel=WITHIN)


def windowed(connections: int, window: int, message: int, rate: float, delay: float) -> float:
    """Bytes/s of connections that each keep ``window`` bytes of messages in flight on one wire."""
    wire_free, delivered, end = 0.0, 0, 40 * delay
    ready = [(0.0, c) for c in range(connections) for _ in range(window // message)]
    heapq.heapify(ready)
    while ready:
        when, connection = heapq.heappop(ready)
        wire_free = max(wire_free, when) + message / rate
        if wire_free + 2 * delay > end:
            break
        delivered += message
        heapq.heappush(ready, (wire_free + 2 * delay, connection))
    return delivered / (end - 2 * delay)


@pytest.mark.parametrize("queue_pairs", [1, 4, 8, 12, 16, 32])
def test_a_window_limits_as_on_a_wire(queue_pairs: int) -> None:
    """The long-distance RoCE test: 64 outstanding writes of 64 KiB a queue pair, 500 km."""
    rate, delay = 100 * GBIT, 5.179e-3 / 2
    reached = windowed(queue_pairs, 64 * 65536, 65536, rate, delay)
    link = Link(rate, delay - TURNAROUND_S / 2)
    protocol = Protocol("gbn", queue_pairs=queue_pairs, window_bytes=64 * 65536)
    assert effective_rate(link, protocol).bytes_per_s == pytest.approx(reached, rel=WITHIN)


CUBIC_C, CUBIC_BETA = 0.4, 0.7


def cubic_flow(round_trip: float, loss: float, gaps: np.ndarray[Any, Any]) -> float:
    """Bytes/s of one CUBIC window, round trip by round trip, that loses a packet after every gap.

    RFC 9438: the cubic curve, the Reno-friendly estimate with its two slopes, fast convergence.
    """
    window = most = max(4.0, 1.2 * max((round_trip / loss) ** 0.75, loss**-0.5))
    friendly, age, prior = window, 0.0, window
    packets = seconds = 0.0
    slope = 3 * (1 - CUBIC_BETA) / (1 + CUBIC_BETA)
    for gap in gaps:
        left = gap
        while True:
            step = min(round_trip, left / window * round_trip)
            packets += window * step / round_trip
            seconds += step
            age += step
            left -= window * step / round_trip
            turn = ((most - min(most, prior * CUBIC_BETA)) / CUBIC_C) ** (1 / 3)
            friendly += (slope if friendly < prior else 1.0) * step / round_trip
            window = max(CUBIC_C * (age - turn) ** 3 + most, friendly)
            if left <= 1e-9 * gap:
                break
        most = window * (1 + CUBIC_BETA) / 2 if window < most else window
        prior = window
        window = friendly = max(2.0, window * CUBIC_BETA)
        age = 0.0
    return packets / seconds * MSS_BYTES


CUBIC_POINTS = [(20e-3, 1e-6), (5e-3, 1e-6), (20e-3, 1e-5), (1e-3, 1e-5), (10e-3, 1e-4)]


@pytest.mark.parametrize(("round_trip", "loss"), CUBIC_POINTS)
def test_cubic_is_that_of_a_window_with_a_loss_every_so_many_packets(
    round_trip: float, loss: float
) -> None:
    reached = cubic_flow(round_trip, loss, np.full(150, 1 / loss))
    assert cubic_bytes_per_s(round_trip, loss) == pytest.approx(reached, rel=WITHIN)


def cubic_packets(round_trip: float, loss: float, losses: int, seed: int) -> float:
    """Bytes/s of one CUBIC connection that loses each packet with the same chance.

    RFC 9438 round by round with whole packets: W_cubic of the round to come, between the window and
    half as much again; Reno-friendly window with both slopes; fast convergence; packets lost in one
    round are one event.
    """
    rng = np.random.default_rng(seed)
    window = most = prior = friendly = max(4.0, 1.2 * max((round_trip / loss) ** 0.75, loss**-0.5))
    age = turn = 0.0
    packets, rounds, events = 0.0, 0, 0
    until_loss = float(rng.geometric(loss))
    while events < losses:
        packets += window
        rounds += 1
        until_loss -= window
        if until_loss <= 0:
            events += 1
            while until_loss <= 0:
                until_loss += float(rng.geometric(loss))
            most = window * (1 + CUBIC_BETA) / 2 if window < most else window
            prior = window
            window = friendly = max(2.0, window * CUBIC_BETA)
            turn = ((max(most, window) - window) / CUBIC_C) ** (1 / 3)
            age = 0.0
            continue
        age += round_trip
        slope = 3 * (1 - CUBIC_BETA) / (1 + CUBIC_BETA)
        friendly += slope if friendly < prior else 1.0
        target = CUBIC_C * (age - turn) ** 3 + most
        window = max(min(max(target, window), 1.5 * window), friendly)
    return packets / (rounds * round_trip) * MSS_BYTES


@pytest.mark.parametrize(
    ("round_trip", "loss"), [*CUBIC_POINTS, (20e-3, 1e-7), (100e-3, 1e-5), (2e-3, 1e-6)]
)
def test_cubic_is_that_of_packets_lost_at_random(round_trip: float, loss: float) -> None:
    events = 700
    reached = cubic_packets(round_trip, loss, events, seed=11)
    link = Link(1e15, (round_trip - TURNAROUND_S) / 2, loss)
    rate = effective_rate(link, Protocol("cubic")).bytes_per_s
    assert rate == pytest.approx(reached, rel=WITHIN)


@pytest.mark.parametrize("streams", [1, 4, 16, 64, 256])
def test_streams_share_a_wire(streams: int) -> None:
    """Streams with independent losses, no more together than the wire carries."""
    rate, round_trip, loss = 100 * GBIT, 20e-3, 1e-6
    one = cubic_packets(round_trip, loss, 500, seed=5)
    link = Link(rate, (round_trip - TURNAROUND_S) / 2, loss)
    together = effective_rate(link, Protocol("cubic", streams=streams)).bytes_per_s
    assert together == pytest.approx(min(rate, streams * one), rel=WITHIN)


def bbr_flow(capacity: int, loss: float, rounds: int, seed: int) -> float:
    """Share of a wire of ``capacity`` packets a round trip that one BBR flow delivers.

    ProbeBW: gains 5/4, 3/4 and six times 1 of the largest rate that arrived in ten round trips, at
    least four packets; what does not fit waits in a queue of one round trip.
    """
    rng = np.random.default_rng(seed)
    arrived = deque([round(capacity * (1 - loss))] * 10, maxlen=10)
    queue = total = 0
    for n in range(rounds):
        gain = (1.25, 0.75)[n % 8] if n % 8 < 2 else 1.0
        offered = max(4, round(gain * max(arrived))) + queue
        passed = min(offered, capacity)
        queue = min(offered - passed, capacity)
        arrived.append(int(rng.binomial(passed, 1 - loss)))
        total += arrived[-1]
    return total / rounds / capacity


@pytest.mark.parametrize("loss", [1e-4, 0.01, 0.05, 0.1, 0.15, 0.18])
@pytest.mark.parametrize("streams", [1, 16])
def test_bbr_is_that_of_a_flow_that_probes(loss: float, streams: int) -> None:
    shares = [bbr_flow(16_000 // streams, loss, 2000, seed) for seed in range(min(streams, 4))]
    link = Link(loss=loss)
    rate = effective_rate(link, Protocol("bbr", streams=streams)).bytes_per_s
    assert rate == pytest.approx(np.mean(shares) * link.capacity_bytes_per_s, rel=WITHIN)


def test_bbr_collapses_where_its_rule_ends() -> None:
    assert bbr_flow(10_000, BBR_LOSS_LIMIT + 0.03, 4000, 0) < 0.1
    link = Link(loss=BBR_LOSS_LIMIT + 0.03)
    assert not effective_rate(link, Protocol("bbr")).available


def coded_message(loss: float, sent: int, rng: np.random.Generator) -> tuple[int, int]:
    """Rounds of repetition, and packets sent, of one message in erasure-coded blocks.

    A block of ``sent`` packets is whole if any :data:`CODE_BLOCK` of them arrive; of the others the
    data packets that are missing are repeated until all are there.
    """
    blocks = ceil(MESSAGE_PACKETS / CODE_BLOCK)
    data_lost = rng.binomial(CODE_BLOCK, loss, blocks)
    code_lost = rng.binomial(sent - CODE_BLOCK, loss, blocks)
    missing = int(data_lost[data_lost + code_lost > sent - CODE_BLOCK].sum())
    if not missing:
        return 0, blocks * sent
    rounds, again = repeated_until_all_are_there(missing, loss, rng)
    return 1 + rounds, blocks * sent + again


@pytest.mark.parametrize("loss", [0.01, 0.05, 0.08, 0.1, 0.13, 0.16, 0.2, 0.3])
def test_erasure_coding_is_that_of_blocks_on_a_wire(loss: float) -> None:
    rng = np.random.default_rng(3)
    runs = [coded_message(loss, CODE_BLOCK * 5 // 4, rng) for _ in range(20_000)]
    rounds, sent = np.mean(runs, axis=0)
    link = Link(loss=loss)
    coded = effective_rate(link, Protocol("erasure", code_rate=0.8))
    share = MESSAGE_PACKETS / sent
    assert coded.bytes_per_s == pytest.approx(share * link.capacity_bytes_per_s, rel=WITHIN)
    late = (coded.latency_s - link.delay_s) / (2 * link.delay_s + TURNAROUND_S)
    assert late == pytest.approx(rounds, rel=WITHIN, abs=1e-3)
