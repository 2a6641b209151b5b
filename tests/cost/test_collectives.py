"""Alpha-beta times, hierarchical groups and the volumes of each dimension."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.collectives import (
    DOMAIN_STEP_S,
    LAUNCH_S,
    NETWORK_STEP_S,
    SILENT,
    TREE_EFFICIENCY,
    Collective,
    context_parallel,
    context_parallel_bytes,
    domain_bytes_per_s,
    expert_parallel,
    expert_parallel_bytes,
    flat_time,
    group_time,
    tensor_parallel,
    tensor_parallel_bytes,
    vocabulary_parallel,
)
from tests.cost.shapes import (
    DEEPSEEK_V3,
    GPT3,
    LLAMA_8B,
    MIXTRAL,
    NIC,
    STACK,
    Degrees,
    Gpu,
    Model,
    Stack,
    Training,
)

GPU = Gpu()
MIB = 1 << 20


@pytest.mark.parametrize(
    ("op", "steps", "volume"),
    [
        ("all_reduce", 14, 2 * 7 / 8),
        ("reduce_scatter", 7, 7 / 8),
        ("all_gather", 7, 7 / 8),
        ("all_to_all", 7, 7 / 8),
        ("p2p", 1, 1),
        ("tree_all_reduce", 6, 2 / TREE_EFFICIENCY),
    ],
)
def test_flat_times(op: Collective, steps: int, volume: float) -> None:
    assert flat_time(op, 8, 1e9, 1e11, 1e-6) == pytest.approx(steps * 1e-6 + volume * 1e-2)


def test_one_rank_is_silent() -> None:
    assert flat_time("all_reduce", 1, 1e9, 1e11, 1e-6) == 0
    assert group_time("all_gather", 1, 8, 1e9, GPU, NIC) == 0
    degrees = Degrees()
    assert tensor_parallel(LLAMA_8B, "dense", GPU, degrees, Training(), NIC, STACK) == SILENT
    assert context_parallel(LLAMA_8B, GPU, degrees, Training(), NIC) == SILENT
    assert expert_parallel(LLAMA_8B, "dense", GPU, degrees, Training(), NIC) == SILENT
    assert vocabulary_parallel(LLAMA_8B, GPU, degrees, Training(), NIC) == (SILENT, SILENT)
    assert expert_parallel(MIXTRAL, "moe", GPU, degrees, Training(), NIC) == SILENT


def test_an_unknown_collective_is_refused() -> None:
    with pytest.raises(ValueError, match="gossip"):
        flat_time("gossip", 4, 1.0, 1.0, 0.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 1"):
        group_time("all_gather", 4, 0, 1.0, GPU, NIC)


@pytest.mark.parametrize(("ranks", "bandwidth"), [(2, 194e9), (4, 220e9), (8, 228e9)])
def test_large_all_reduce_on_a100_agrees_with_nccl_logs(ranks: int, bandwidth: float) -> None:
    gpu = replace(GPU, name="A100", scale_up_bytes_per_s=300e9)
    size = 1024 * MIB
    measured = 46e-6 + 2 * (ranks - 1) * 3.2e-6 + 2 * (ranks - 1) / ranks * size / bandwidth
    assert group_time("all_reduce", ranks, 8, size, gpu, NIC) == pytest.approx(measured, rel=0.15)


def test_a_group_over_several_domains_works_in_levels() -> None:
    size, fast = 64.0 * MIB, domain_bytes_per_s(GPU)
    inside = flat_time("reduce_scatter", 8, size, fast, DOMAIN_STEP_S)
    outside = flat_time("all_reduce", 4, size / 8, NIC, NETWORK_STEP_S)
    expected = LAUNCH_S + 2 * inside + outside
    assert group_time("all_reduce", 32, 8, size, GPU, NIC) == pytest.approx(expected)
    shard = flat_time("all_gather", 4, size / 8, NIC, NETWORK_STEP_S)
    expected = LAUNCH_S + inside + shard
    assert group_time("all_gather", 32, 8, size, GPU, NIC) == pytest.approx(expected)
    alone = LAUNCH_S + flat_time("reduce_scatter", 32, size, NIC, NETWORK_STEP_S)
    assert group_time("reduce_scatter", 32, 1, size, GPU, NIC) == pytest.approx(alone)


def test_reduce_scatter_and_all_gather_make_an_all_reduce() -> None:
    size = 64.0 * MIB
    for ranks in (4, 32):
        parts = group_time("reduce_scatter", ranks, 8, size, GPU, NIC)
        parts += group_time("all_gather", ranks, 8, size, GPU, NIC)
        whole = group_time("all_reduce", ranks, 8, size, GPU, NIC)
        assert whole == pytest.approx(parts - LAUNCH_S)


def test_tensor_parallel_volumes() -> None:
    training, degrees = Training(8192), Degrees(tp=4, cp=2)
    full = 2 * 4096 * 4096 * 3 / 4
    volume = tensor_parallel_bytes(LLAMA_8B, "dense", degrees, training)
    assert (volume.forward, volume.backward) == (4 * full, 6 * full)
    routed = tensor_parallel_bytes(MIXTRAL, "moe", degrees, training)
    assert (routed.forward, routed.backward) == (2 * full, 3 * full)
    shared = tensor_parallel_bytes(DEEPSEEK_V3, "moe", degrees, training)
    assert shared.forward == pytest.approx(4 * full * 7168 / 4096)


def test_without_sequence_parallelism_every_block_all_reduces() -> None:
    """One all-reduce a block in each direction: twice the volume of an all-gather."""
    repeated = replace(STACK, sequence_parallel=False)
    speed, tp = 450e9 * 0.75, 8

    def growth(stack: Stack) -> tuple[float, float]:
        """Seconds that 4096 tokens more take, so that latencies cancel."""
        short, long = (
            tensor_parallel(GPT3, "dense", GPU, Degrees(tp=tp), Training(length), NIC, stack)
            for length in (4096, 8192)
        )
        return long.forward - short.forward, long.backward - short.backward

    gather = 2 * 4096 * 12288 * (tp - 1) / tp / speed
    assert growth(STACK) == (pytest.approx(2 * 2 * gather), pytest.approx(2 * 3 * gather))
    assert growth(repeated) == (pytest.approx(2 * 2 * gather), pytest.approx(2 * 2 * gather))


def test_context_parallel_volumes() -> None:
    volume = context_parallel_bytes(LLAMA_8B, Degrees(tp=2, cp=4), Training(8192))
    step = 2 * 2 * 2048 * 8 * 128 / 2
    assert (volume.forward, volume.backward) == (3 * step, 6 * step)
    replicated = context_parallel_bytes(LLAMA_8B, Degrees(tp=16, cp=2), Training(8192))
    assert replicated.forward == 2 * 2 * 4096 * 128
    expanded = context_parallel_bytes(DEEPSEEK_V3, Degrees(cp=2), Training(8192))
    assert expanded.forward == 2 * 4096 * 128 * (128 + 64 + 128)


def test_expert_parallel_volumes() -> None:
    training, row = Training(4096), 2 * 4096 * 4096
    inside, outside = expert_parallel_bytes(MIXTRAL, GPU, Degrees(ep=8), training)
    assert (inside, outside) == (row * 2 * 7 / 8, 0)
    halved, _ = expert_parallel_bytes(MIXTRAL, GPU, Degrees(ep=8, tp=2), training)
    assert halved == inside / 2
    many = replace(MIXTRAL, num_experts=32)
    degrees = Degrees(ep=32)
    inside, outside = expert_parallel_bytes(many, GPU, degrees, training)
    assert inside == pytest.approx(row * 2 * 7 / 8)
    # Of 4 domains 2 experts out of 32 reach 4 (1 - (24 * 23) / (32 * 31)).
    assert outside == pytest.approx(row * 4 * (1 - 552 / 992) * 3 / 4)
    skewed = replace(training, routing_imbalance=2)
    assert expert_parallel_bytes(many, GPU, degrees, skewed)[1] == pytest.approx(2 * outside)


def routed_copies(model: Model, ranks: int, near: int, *, tokens: int) -> tuple[float, float]:
    """Rows that one rank sends per token inside domains and over the network, by drawing.

    The experts of a token are drawn evenly.  A token is sent once to every other domain where one
    of its experts is, to the rank there that has the sender's place in its domain, and from there
    (or from the sender) to each expert on another rank of that domain.
    """
    rng = np.random.default_rng(7)
    experts, top = model.num_experts, model.experts_per_token
    keys = rng.random((tokens, experts))
    chosen = np.argpartition(keys, top, axis=1)[:, :top]
    sender = rng.integers(0, ranks, (tokens, 1))
    holder = chosen * ranks // experts
    inside = (holder % near != sender % near).sum()
    domains = np.sort(holder // near, axis=1)
    first = np.ones_like(domains, dtype=bool)
    first[:, 1:] = domains[:, 1:] != domains[:, :-1]
    outside = (first & (domains != sender // near)).sum()
    return inside / tokens, outside / tokens


@pytest.mark.parametrize(
    ("experts", "top", "ranks", "near"),
    [(32, 2, 32, 8), (256, 8, 64, 8), (128, 8, 16, 8), (64, 6, 64, 8), (128, 1, 32, 4)],
)
def test_a_token_crosses_the_network_once_per_domain(
    experts: int, top: int, ranks: int, near: int
) -> None:
    model = replace(MIXTRAL, num_experts=experts, experts_per_token=top)
    gpu, row = replace(GPU, scale_up_domain=near), 2 * 4096 * 4096
    found = expert_parallel_bytes(model, gpu, Degrees(ep=ranks), Training(4096))
    drawn = routed_copies(model, ranks, near, tokens=40_000)
    assert found[0] == pytest.approx(row * drawn[0], rel=0.01)
    assert found[1] == pytest.approx(row * drawn[1], rel=0.01)
    assert found[1] <= row * top * (ranks - near) / ranks * (1 + 1e-12)


def test_the_slower_tier_sets_the_time_of_dispatch_and_combine() -> None:
    degrees, training = Degrees(ep=32), Training(4096)
    many = replace(MIXTRAL, num_experts=32)
    inside, outside = 2 * 4096 * 4096 * 2 * 7 / 8, 2 * 4096 * 4096 * 4 * (1 - 552 / 992) * 3 / 4
    slow_network = 22e-6 + outside / NIC + 3 * 9.6e-6
    found = expert_parallel(many, "moe", GPU, degrees, training, NIC)
    assert found.forward == found.backward == pytest.approx(2 * slow_network)
    slow_domain = 22e-6 + inside / (450e9 * 0.6) + 7 * 3.4e-6
    found = expert_parallel(many, "moe", GPU, degrees, training, 100 * NIC)
    assert found.forward == pytest.approx(2 * slow_domain)


def test_node_limited_routing_crosses_the_network_less() -> None:
    training, degrees = Training(4096), Degrees(ep=64)
    inside, outside = expert_parallel_bytes(DEEPSEEK_V3, GPU, degrees, training)
    row = 2 * 4096 * 7168
    assert outside == pytest.approx(row * 4 * 7 / 8)
    assert inside == pytest.approx(row * 8 * 7 / 8)
    free = replace(DEEPSEEK_V3, num_routing_groups=None, routing_groups_per_token=None)
    visits = 8 * (1 - prod((224 - i) / (256 - i) for i in range(8)))
    assert visits > 4
    assert expert_parallel_bytes(free, GPU, degrees, training) == (
        inside,
        pytest.approx(row * visits * 7 / 8),
    )
    two = Degrees(ep=16)
    assert expert_parallel_bytes(DEEPSEEK_V3, GPU, two, training) == expert_parallel_bytes(
        free, GPU, two, training
    )


def test_expert_tensor_parallelism_adds_collectives() -> None:
    training = Training()
    plain = expert_parallel(MIXTRAL, "moe", GPU, Degrees(tp=2, ep=4), training, NIC)
    divided = expert_parallel(MIXTRAL, "moe", GPU, Degrees(tp=2, ep=4, etp=2), training, NIC)
    assert divided.forward > plain.forward > 0


def test_heads_of_prediction_modules_communicate_too() -> None:
    _, one = vocabulary_parallel(LLAMA_8B, GPU, Degrees(tp=2), Training(), NIC)
    module = replace(LLAMA_8B, num_mtp_layers=1)
    _, two = vocabulary_parallel(module, GPU, Degrees(tp=2), Training(), NIC)
    assert two.forward == 2 * one.forward


@given(
    op=st.sampled_from(get_args(Collective)),
    ranks=st.integers(1, 512),
    near=st.sampled_from([1, 2, 8, 72]),
    size=st.floats(0, 1e12),
    factor=st.floats(1, 100),
)
def test_more_bandwidth_or_less_data_is_never_slower(
    op: Collective, ranks: int, near: int, size: float, factor: float
) -> None:
    base = group_time(op, ranks, near, size, GPU, NIC)
    faster = replace(GPU, scale_up_bytes_per_s=GPU.scale_up_bytes_per_s * factor)
    assert group_time(op, ranks, near, size, faster, NIC) <= base
    assert group_time(op, ranks, near, size, GPU, NIC * factor) <= base
    assert group_time(op, ranks, near, size / factor, GPU, NIC) <= base


@given(ep=st.sampled_from([2, 8, 32]), cp=st.sampled_from([2, 16]), factor=st.floats(1, 100))
def test_faster_fabrics_never_slow_a_layer(ep: int, cp: int, factor: float) -> None:
    training, degrees = Training(32768), Degrees(tp=4, cp=cp, ep=ep)
    faster = replace(GPU, scale_up_bytes_per_s=GPU.scale_up_bytes_per_s * factor)
    for gpu, nic in ((faster, NIC), (GPU, NIC * factor)):
        for kind in ("dense", "moe"):
            new = tensor_parallel(DEEPSEEK_V3, kind, gpu, degrees, training, nic, STACK)
            old = tensor_parallel(DEEPSEEK_V3, kind, GPU, degrees, training, NIC, STACK)
            assert new.forward <= old.forward
        ring = context_parallel(DEEPSEEK_V3, gpu, degrees, training, nic)
        assert ring.backward <= context_parallel(DEEPSEEK_V3, GPU, degrees, training, NIC).backward
        routed = expert_parallel(DEEPSEEK_V3, "moe", gpu, degrees, training, nic)
        before = expert_parallel(DEEPSEEK_V3, "moe", GPU, degrees, training, NIC)
        assert routed.forward <= before.forward
