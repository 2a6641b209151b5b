"""Alpha-beta times, hierarchical groups and the volumes of each dimension."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

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
from tests.cost.shapes import DEEPSEEK_V3, LLAMA_8B, MIXTRAL, NIC, Degrees, Gpu, Training

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
    assert tensor_parallel(LLAMA_8B, "dense", GPU, degrees, Training(), NIC) == SILENT
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
    inside, outside = expert_parallel_bytes(many, GPU, Degrees(ep=32), training)
    assert inside + outside == pytest.approx(row * 2 * 31 / 32)
    assert outside == pytest.approx(row * 2 * 24 / 32)
    skewed = expert_parallel_bytes(
        many, GPU, Degrees(ep=32), replace(training, routing_imbalance=2)
    )
    assert skewed[1] == pytest.approx(2 * outside)


def test_node_limited_routing_crosses_the_network_less() -> None:
    training, degrees = Training(4096), Degrees(ep=64)
    inside, outside = expert_parallel_bytes(DEEPSEEK_V3, GPU, degrees, training)
    row = 2 * 4096 * 7168
    assert outside == pytest.approx(row * 4 * 7 / 8)
    assert inside == pytest.approx(row * 8 * 7 / 8)
    free = replace(DEEPSEEK_V3, num_routing_groups=None, routing_groups_per_token=None)
    assert expert_parallel_bytes(free, GPU, degrees, training)[1] > outside


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
            new = tensor_parallel(DEEPSEEK_V3, kind, gpu, degrees, training, nic)
            old = tensor_parallel(DEEPSEEK_V3, kind, GPU, degrees, training, NIC)
            assert new.forward <= old.forward
        ring = context_parallel(DEEPSEEK_V3, gpu, degrees, training, nic)
        assert ring.backward <= context_parallel(DEEPSEEK_V3, GPU, degrees, training, NIC).backward
        routed = expert_parallel(DEEPSEEK_V3, "moe", gpu, degrees, training, nic)
        before = expert_parallel(DEEPSEEK_V3, "moe", GPU, degrees, training, NIC)
        assert routed.forward <= before.forward
