"""Reduction inside switches, and levels of a collective that work at once."""

from __future__ import annotations

import pytest

from planner.cost.collectives import group_time, pipelined_time, tier_load
from planner.cost.curves import Curves
from planner.instance.load import load_instance
from planner.problem import Problem
from tests.cost.shapes import Gpu

NIC = 50e9
BOTH = frozenset({"scale_up", "network"})


def simulated(half: float, outside: float, chunks: int) -> float:
    """Reduce-scatter, network, all-gather per chunk; both halves share the domain's ports."""
    domain = network = 0.0
    reduced, summed = [], []
    for _ in range(chunks):
        domain += half
        reduced.append(domain)
    for ready in reduced:
        network = max(network, ready) + outside
        summed.append(network)
    for ready in summed:
        domain = max(domain, ready) + half
    return domain


@pytest.mark.parametrize("inside", [1.0, 3.0, 8.0, 20.0])
@pytest.mark.parametrize("chunks", [8, 16, 64])
def test_levels_follow_a_simulation(inside: float, chunks: int) -> None:
    predicted = pipelined_time(lambda c: inside / c, lambda c: 8.0 / c, chunks)
    assert predicted == pytest.approx(simulated(inside / 2 / chunks, 8 / chunks, chunks), rel=0.1)


def test_a_reducing_switch_carries_each_byte_once() -> None:
    assert tier_load("all_reduce", 8, 800.0, "network", Curves(reducing=BOTH)) == (2, 800.0)
    assert tier_load("all_reduce", 8, 800.0, "network", Curves()) == (14, 1400.0)


@pytest.mark.parametrize("op", ["all_reduce", "tree_all_reduce", "reduce_scatter", "all_gather"])
@pytest.mark.parametrize("ranks", [2, 8, 16, 128])
@pytest.mark.parametrize("size", [0.0, 1e6, 1e8, 1e10])
def test_neither_makes_a_collective_slower(op: str, ranks: int, size: float) -> None:
    def time(curves: Curves) -> float:
        return group_time(op, ranks, 8, size, Gpu(), NIC, curves)  # type: ignore[arg-type]

    for chunks in (1, 4, 16):
        assert time(Curves(reducing=BOTH, chunks=chunks)) <= time(Curves(chunks=chunks)) + 1e-12
        assert time(Curves(chunks=2 * chunks)) <= time(Curves(chunks=chunks)) + 1e-12


def test_a_site_says_so() -> None:
    fields = {"in_network_reduction": ["network"], "collective_chunks": 8}
    document = {
        "model": "llama3-8b",
        "training": {"global_batch_size": 64, "sequence_length": 4096},
        "cluster": {"sites": [{"name": "a", "gpu": "H100", "num_gpus": 64, **fields}]},
    }
    curves = Problem(load_instance(document)).classes[0].curves
    assert curves.reducing == {"network"}
    assert curves.chunks == 8
