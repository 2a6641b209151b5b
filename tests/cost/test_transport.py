"""Effective bandwidth of links: published figures, limits and monotonicity."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost.balance import ecmp_balance
from planner.cost.transport import (
    RANDOM_LOSS_GAIN,
    TURNAROUND_S,
    cubic_bytes_per_s,
    effective_rate,
    go_back_n_share,
    tail_latency,
)
from tests.cost.shapes import Link, Protocol

GBIT = 1.25e8


@pytest.mark.parametrize(
    ("round_trip", "loss", "share"),
    [
        (20e-6, 1e-4, 0.976),
        (5e-3, 1e-6, 0.942),
        (5e-3, 1e-5, 0.62),
        (5e-3, 1e-4, 0.14),
        (20e-3, 1e-6, 0.80),
        (20e-3, 1e-5, 0.29),
    ],
)
def test_go_back_n_at_400_gigabit(round_trip: float, loss: float, share: float) -> None:
    assert go_back_n_share(400 * GBIT, round_trip, loss) == pytest.approx(share, rel=0.02)
    link = Link(400 * GBIT, (round_trip - TURNAROUND_S) / 2, loss)
    rate = effective_rate(link, Protocol("gbn"))
    assert rate.bytes_per_s == pytest.approx(share * 400 * GBIT, rel=0.02)
    assert rate.reason == "loss"


@pytest.mark.parametrize(
    ("load", "shares"),
    [
        (1, (0.38, 0.32, 0.28, 0.25)),
        (2, (0.48, 0.41, 0.37, 0.34)),
        (4, (0.57, 0.51, 0.46, 0.43)),
        (8, (0.66, 0.60, 0.56, 0.52)),
        (16, (0.73, 0.68, 0.65, 0.61)),
        (64, (0.85, 0.82, 0.79, 0.77)),
        (256, (0.92, 0.90, 0.88, 0.87)),
    ],
)
def test_balance_of_hashed_flows(load: int, shares: tuple[float, ...]) -> None:
    for paths, share in zip((8, 16, 32, 64), shares, strict=True):
        assert ecmp_balance(load * paths, paths) == pytest.approx(share, rel=0.02)


def test_a_thousand_flows_on_sixteen_links_load_one_a_fifth_above_the_mean() -> None:
    assert 1 / ecmp_balance(1024, 16) == pytest.approx(1.23, rel=0.02)


def test_few_flows_leave_paths_idle() -> None:
    assert ecmp_balance(1, 8) == 1 / 8
    assert ecmp_balance(5, 1) == 1
    assert ecmp_balance(1, 8) < ecmp_balance(4, 8) < ecmp_balance(8, 8)
    assert ecmp_balance(2, 3) > ecmp_balance(1, 3)


@pytest.mark.parametrize(("flows", "paths"), [(0, 4), (4, 0)])
def test_balance_needs_flows_and_paths(flows: int, paths: int) -> None:
    with pytest.raises(ValueError, match="at least one flow"):
        ecmp_balance(flows, paths)


@pytest.mark.parametrize(
    ("round_trip", "loss", "gigabit"), [(20e-3, 1e-6, 6.3), (20e-3, 1e-7, 36), (1e-3, 1e-5, 28)]
)
def test_tcp_flow(round_trip: float, loss: float, gigabit: float) -> None:
    assert cubic_bytes_per_s(round_trip, loss) / GBIT == pytest.approx(gigabit, rel=0.02)


def test_streams_multiply_a_lossy_tcp_flow() -> None:
    link = Link(400 * GBIT, 10e-3, 1e-6)
    one = effective_rate(link, Protocol("cubic")).bytes_per_s
    assert one / GBIT == pytest.approx(RANDOM_LOSS_GAIN * 6.3, rel=0.02)
    many = effective_rate(link, Protocol("cubic", streams=16)).bytes_per_s
    assert many == pytest.approx(16 * one)
    assert effective_rate(link, Protocol("cubic", streams=512)).bytes_per_s <= 400 * GBIT


def test_a_window_caps_a_long_flow() -> None:
    link = Link(400 * GBIT, 10e-3)
    rate = effective_rate(link, Protocol("bbr", window_bytes=16 << 20))
    assert rate.bytes_per_s / GBIT == pytest.approx(6.7, rel=0.02)
    assert rate.reason == "window"


def test_sixteen_queue_pairs_fill_100_gigabit_over_500_km() -> None:
    link = Link(100 * GBIT, 5.179e-3 / 2)
    protocol = Protocol("gbn", queue_pairs=16, window_bytes=64 * 65536)
    assert effective_rate(link, protocol).bytes_per_s == 100 * GBIT
    half = effective_rate(link, replace(protocol, queue_pairs=8))
    assert half.bytes_per_s / GBIT == pytest.approx(51.8, rel=0.02)


def test_bbr_holds_where_cubic_collapses() -> None:
    link = Link(10 * GBIT, 50e-3, 0.01)
    bbr = effective_rate(link, Protocol("bbr")).bytes_per_s
    assert bbr == pytest.approx(0.99**2 * 10 * GBIT)
    assert effective_rate(link, Protocol("cubic")).bytes_per_s < bbr / 900
    heavy = effective_rate(replace(link, loss=0.3), Protocol("bbr"))
    assert not heavy.available
    assert heavy.reason == "test holds its rate up to 20% loss, the link loses 30.00%"


def test_erasure_coding_trades_bandwidth_for_latency() -> None:
    link = Link(400 * GBIT, 10e-3, 1e-4)
    coded = effective_rate(link, Protocol("erasure", code_rate=0.8))
    assert coded.bytes_per_s == pytest.approx(0.8 * 400 * GBIT)
    assert coded.latency_s == pytest.approx(link.delay_s, rel=1e-9)
    repeated = effective_rate(link, Protocol("selective_repeat"))
    assert repeated.bytes_per_s > coded.bytes_per_s
    rounds = 1 - (1 - 1e-4) ** 4096
    assert repeated.latency_s == pytest.approx(
        link.delay_s + rounds * (2 * link.delay_s + TURNAROUND_S), rel=1e-3
    )
    lossy = effective_rate(replace(link, loss=0.3), Protocol("erasure", code_rate=0.8))
    assert lossy.bytes_per_s == pytest.approx(0.8 / (1 + 0.8 * 0.3 / 0.7) * 400 * GBIT, rel=0.05)
    assert lossy.latency_s > link.delay_s


def test_a_measured_rate_takes_the_place_of_the_rules() -> None:
    measured = {"test": 3e9, "wide": 90e9}
    link = Link(50e9, 1e-3, 1e-3, jitter_s=2e-4, paths=8, measured_bytes_per_s=measured)
    rate = effective_rate(link, Protocol("gbn"))
    assert (rate.bytes_per_s, rate.latency_s, rate.reason) == (
        3e9,
        pytest.approx(1.2e-3),
        "measured",
    )
    assert effective_rate(link, Protocol("gbn", name="wide")).bytes_per_s == 50e9
    repeated = effective_rate(link, Protocol("selective_repeat"))
    assert repeated.latency_s == pytest.approx(1.2e-3 + tail_latency(2e-3 + TURNAROUND_S, 1e-3))
    assert effective_rate(link, Protocol("gbn", name="other")).reason == "loss"


def test_without_loss_there_is_no_tail() -> None:
    assert tail_latency(0.02, 0.0) == 0
    assert tail_latency(0.02, 1e-5) == pytest.approx(0.02 * 4096e-5, rel=0.03)
    assert tail_latency(0.02, 1e-3) == pytest.approx(0.02 * (1 - 0.999**4096 + 4096e-6), rel=0.01)


def test_lossless_protocols_reach_so_far() -> None:
    protocol = Protocol("lossless", max_distance_km=1.0)
    assert effective_rate(Link(delay_s=5e-6, distance_km=1.0), protocol).available
    refused = effective_rate(Link(distance_km=3.0), protocol)
    assert not refused.available
    assert refused.bytes_per_s == 0
    assert "1 km" in refused.reason
    assert not effective_rate(Link(delay_s=20e-6), protocol).available


def test_flow_control_needs_buffers_on_long_links() -> None:
    protocol = Protocol("lossless")
    assert not effective_rate(Link(delay_s=1e-3, buffer="shallow"), protocol).available
    assert effective_rate(Link(delay_s=1e-3, buffer="deep"), protocol).available
    deep = Protocol("gbn", needs_deep_buffer=True)
    assert "deep buffers" in effective_rate(Link(buffer="shallow"), deep).reason


@pytest.mark.parametrize(
    ("link", "protocol"),
    [
        (Link(capacity_bytes_per_s=0), Protocol()),
        (Link(loss=1.0), Protocol()),
        (Link(flows=0), Protocol()),
        (Link(), Protocol(streams=0)),
        (Link(), Protocol(overhead=0.0)),
        (Link(), Protocol(code_rate=1.5)),
        (Link(), Protocol(balance=1.5)),
    ],
)
def test_figures_out_of_range_are_refused(link: Link, protocol: Protocol) -> None:
    with pytest.raises(ValueError, match=r"need|must"):
        effective_rate(link, protocol)


links = st.builds(
    Link,
    capacity_bytes_per_s=st.floats(1e6, 1e14),
    delay_s=st.floats(0, 0.2),
    jitter_s=st.floats(0, 0.01),
    loss=st.floats(0, 0.5),
    paths=st.integers(1, 600),
    flows=st.integers(1, 5000),
    buffer=st.sampled_from(["deep", "shallow"]),
)
balances: st.SearchStrategy[Literal["ecmp"] | float] = st.one_of(
    st.just("ecmp"), st.floats(0.1, 1.0)
)
protocols = st.builds(
    Protocol,
    loss_rule=st.sampled_from(
        ["gbn", "selective_repeat", "lossless", "cubic", "bbr", "erasure", "none"]
    ),
    balance=balances,
    queue_pairs=st.sampled_from([1, 4, 16]),
    overhead=st.floats(0.5, 1.0),
    streams=st.sampled_from([1, 8]),
    window_bytes=st.one_of(st.none(), st.floats(1e4, 1e9)),
    code_rate=st.floats(0.5, 1.0),
    max_distance_km=st.one_of(st.none(), st.floats(1, 1e4)),
)


@settings(max_examples=400)
@given(links, protocols, st.floats(1, 100), st.floats(0, 1), st.floats(0, 1), st.integers(0, 5000))
def test_a_better_link_is_never_slower(
    link: Link, protocol: Protocol, wider: float, cleaner: float, nearer: float, flows: int
) -> None:
    rate = effective_rate(link, protocol)
    assert 0 <= rate.bytes_per_s <= link.capacity_bytes_per_s
    assert rate.latency_s >= link.delay_s
    for better in (
        replace(link, capacity_bytes_per_s=link.capacity_bytes_per_s * wider),
        replace(link, loss=link.loss * cleaner),
        replace(link, delay_s=link.delay_s * nearer),
        replace(link, flows=link.flows + flows),
        replace(link, jitter_s=link.jitter_s * nearer),
    ):
        other = effective_rate(better, protocol)
        assert other.available >= rate.available
        assert other.bytes_per_s >= rate.bytes_per_s * (1 - 1e-12)
        if rate.available:
            assert other.latency_s <= rate.latency_s * (1 + 1e-12)
