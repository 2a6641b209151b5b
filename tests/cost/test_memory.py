"""Bytes against Korthikanti's table, measured runs and the facts that simple models miss."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.memory import (
    dense_shard,
    dummy_gradient_bytes,
    embedding_parameters,
    expert_shard,
    head_activation_bytes,
    head_parameters,
    head_working_bytes,
    layer_activation_bytes,
    layer_held_bytes,
    layer_state_bytes,
    logits_bytes,
    optimizer_parameters,
    sharding_working_bytes,
    state_bytes,
    state_bytes_per_parameter,
    transient_bytes,
    working_bytes,
)
from planner.cost.model_size import layer_parameters_per_gpu
from planner.cost.stack import get_stack
from planner.cost.types import LayerKind, Recompute, Sharding
from tests.cost.shapes import (
    DEEPSEEK_V3,
    GPT3,
    LLAMA_8B,
    LLAMA_70B,
    LLAMA_405B,
    MIXTRAL,
    Degrees,
    Model,
    Training,
)

CLASSIC = get_stack("megatron-2021")

SIMUMAX_DENSE = [
    (LLAMA_70B, 12, 8, Degrees(tp=8), 4096, 28.29),
    (LLAMA_70B, 12, 8, Degrees(tp=4, dp_shard=2), 4096, 39.07),
    (LLAMA_70B, 12, 8, Degrees(tp=2, dp_shard=4), 4096, 60.68),
    (LLAMA_405B, 4, 16, Degrees(tp=8), 4096, 38.57),
    (LLAMA_405B, 4, 16, Degrees(tp=2, dp_shard=4), 4096, 81.59),
    (LLAMA_405B, 4, 16, Degrees(tp=2, cp=4), 32768, 87.03),
    (LLAMA_405B, 4, 16, Degrees(cp=8), 32768, 139.22),
    (LLAMA_405B, 4, 16, Degrees(tp=2, cp=4), 131072, 118.13),
]
"""Model, layers, key/value heads, degrees, sequence and measured GiB of SimuMax v1.2 on B200."""


def single_stage_bytes(model: Model, degrees: Degrees, training: Training) -> float:
    """Peak of a job with one stage and the distributed optimizer."""
    kinds = model.layer_kinds
    state = sum(layer_state_bytes(model, kind, degrees, training, "zero1").total for kind in kinds)
    for ends in (embedding_parameters(model, degrees), head_parameters(model, degrees)):
        state += state_bytes(ends, degrees, training, "zero1").total
    kept = head_activation_bytes(model, degrees, training, "none")
    kept += sum(layer_activation_bytes(model, kind, degrees, training, "none") for kind in kinds)
    working = max(
        head_working_bytes(model, kind, degrees, training, "zero1", "none") for kind in kinds
    )
    return state + kept + working


@pytest.mark.parametrize(
    ("model", "layers", "kv_heads", "degrees", "length", "measured"), SIMUMAX_DENSE
)
def test_dense_peaks_of_simumax(
    model: Model, layers: int, kv_heads: int, degrees: Degrees, length: int, measured: float
) -> None:
    model = replace(model, num_layers=layers, num_kv_heads=kv_heads)
    peak = single_stage_bytes(model, degrees, Training(length))
    assert peak / 2**30 == pytest.approx(measured, rel=0.02)


def test_moe_peak_of_simumax() -> None:
    model = replace(DEEPSEEK_V3, num_layers=4, first_k_dense=1, num_mtp_layers=0)
    peak = single_stage_bytes(model, Degrees(ep=8, dp_shard=8), Training())
    assert peak / 2**30 == pytest.approx(104.3, rel=0.02)


@pytest.mark.parametrize(
    ("layers", "hidden", "tp", "pp"), [(48, 6144, 8, 1), (96, 12288, 8, 8), (128, 25600, 8, 64)]
)
def test_korthikanti_state_is_18_bytes_of_12_h_squared(
    layers: int, hidden: int, tp: int, pp: int
) -> None:
    heads = hidden // 128
    model = Model(layers, hidden, heads, heads, 128, 4 * hidden, 51200, gated=False)
    degrees = Degrees(tp=tp, pp=pp)
    layer = layer_state_bytes(model, "dense", degrees, Training(2048), "ddp").total
    closed = 18 * 12 * layers * hidden**2 / (tp * pp)
    assert layer * layers / pp == pytest.approx(closed, rel=2e-3)


@pytest.mark.parametrize(
    ("sharding", "total"),
    [("ddp", 18), ("zero1", 6 + 12 / 8), ("zero2", 2 + 16 / 8), ("zero3", 18 / 8)],
)
def test_bytes_per_parameter(sharding: Sharding, total: float) -> None:
    assert state_bytes_per_parameter(sharding, 8, 4).total == total
    assert state_bytes_per_parameter(sharding, 1, 4).total == 18
    assert state_bytes_per_parameter(sharding, 1, 2).total == 16


def test_an_unknown_sharding_is_refused() -> None:
    with pytest.raises(ValueError, match="zero9"):
        state_bytes_per_parameter("zero9", 8, 4)  # type: ignore[arg-type]


def test_shard_groups_of_dense_and_expert_parameters() -> None:
    degrees = Degrees(tp=2, cp=2, ep=8, etp=1, dp_shard=16)
    assert dense_shard(degrees) == 32
    assert expert_shard(degrees) == 8
    assert expert_shard(Degrees(ep=8, dp_shard=4)) == 1
    share = layer_parameters_per_gpu(MIXTRAL, "moe", degrees)
    updated = optimizer_parameters(share, degrees, "zero1")
    assert updated == share.dense / 32 + share.experts / 8
    assert optimizer_parameters(share, degrees, "ddp") == share.total


def test_memory_counts_all_experts() -> None:
    training, degrees = Training(), Degrees(ep=8, dp_shard=8)
    narrow = layer_state_bytes(DEEPSEEK_V3, "moe", degrees, training, "zero1")
    fewer = replace(DEEPSEEK_V3, experts_per_token=1)
    assert layer_state_bytes(fewer, "moe", degrees, training, "zero1") == narrow


@pytest.mark.parametrize("tp", [1, 8])
def test_classic_layer_of_korthikanti(tp: int) -> None:
    h, heads, length = GPT3.hidden_size, GPT3.num_heads, 2048
    training, degrees = Training(length), Degrees(tp=tp)
    closed = length * h * (34 + 5 * heads * length / h) / tp
    layer = layer_activation_bytes(GPT3, "dense", degrees, training, "none", CLASSIC)
    assert layer == closed
    selective = layer_activation_bytes(GPT3, "dense", degrees, training, "selective", CLASSIC)
    assert selective == 34 * length * h / tp
    full = layer_activation_bytes(GPT3, "dense", degrees, training, "full", CLASSIC)
    assert full == 2 * length * h / tp


def test_modern_dense_layer() -> None:
    training, degrees = Training(4096), Degrees(tp=2, cp=2, micro_batch_size=2)
    h, ffn, heads, kv, dim = 4096, 14336, 32, 8, 128
    width = 4 * h + 2 * (2 * heads * dim + 2 * kv * dim) + 4 * heads + 4 * h + 6 * ffn
    kept = layer_activation_bytes(LLAMA_8B, "dense", degrees, training, "none")
    assert kept == 2 * 4096 * width // 4
    selective = layer_activation_bytes(LLAMA_8B, "dense", degrees, training, "selective")
    assert kept - selective == 2 * 4096 * (4 * h + 4 * heads) // 4


def test_experts_are_not_priced_as_dense() -> None:
    training, degrees = Training(), Degrees(ep=8)

    def kept(model: Model) -> int:
        return layer_activation_bytes(model, "moe", degrees, training, "none")

    base = kept(MIXTRAL)
    assert kept(replace(MIXTRAL, experts_per_token=4)) > base
    assert kept(replace(MIXTRAL, expert_ffn_hidden_size=28672)) > base
    assert kept(replace(MIXTRAL, shared_expert_ffn_hidden_size=1024)) > base
    assert layer_activation_bytes(MIXTRAL, "moe", Degrees(ep=4, etp=2), training, "none") > base


def test_imbalance_multiplies_the_expert_part() -> None:
    degrees = Degrees(ep=8)
    balanced = layer_activation_bytes(MIXTRAL, "moe", degrees, Training(), "none")
    skewed = layer_activation_bytes(
        MIXTRAL, "moe", degrees, Training(routing_imbalance=1.5), "none"
    )
    expert = 4096 * 2 * (2 * 4096 + 6 * 14336)
    assert skewed - balanced == expert // 2


def test_a_split_backward_keeps_almost_everything_and_more_for_experts() -> None:
    training, degrees = Training(), Degrees(tp=2)
    full = layer_activation_bytes(LLAMA_8B, "dense", degrees, training, "none")
    held = layer_held_bytes(LLAMA_8B, "dense", degrees, training)
    assert 0.9 * full < held < full
    routed = layer_held_bytes(MIXTRAL, "moe", degrees, training)
    assert routed > layer_activation_bytes(MIXTRAL, "moe", degrees, training, "none")
    assert layer_held_bytes(DEEPSEEK_V3, "moe", degrees, training) > 0


def test_working_sets() -> None:
    training, degrees = Training(), Degrees(tp=2, dp_shard=4)
    assert logits_bytes(LLAMA_8B, degrees, training) == 6 * 4096 * 128256 // 2
    assert logits_bytes(DEEPSEEK_V3, degrees, training) == 2 * 6 * 4096 * 129280 // 2
    plain = transient_bytes(LLAMA_8B, "dense", degrees, training, "none")
    assert plain == 4096 * 6 * 14336 // 2
    kept = layer_activation_bytes(LLAMA_8B, "dense", degrees, training, "none")
    assert transient_bytes(LLAMA_8B, "dense", degrees, training, "full") == plain + kept
    share = layer_parameters_per_gpu(LLAMA_8B, "dense", degrees).total
    assert sharding_working_bytes(LLAMA_8B, "dense", degrees, training, "zero1") == 0
    assert sharding_working_bytes(LLAMA_8B, "dense", degrees, training, "zero2") == 4 * share
    assert sharding_working_bytes(LLAMA_8B, "dense", degrees, training, "zero3") == 8 * share
    alone = replace(degrees, dp_shard=1)
    assert sharding_working_bytes(LLAMA_8B, "dense", alone, training, "zero3") == 0
    assert dummy_gradient_bytes(LLAMA_8B, "dense", degrees) == 2 * share
    one_expert = layer_parameters_per_gpu(MIXTRAL, "moe", Degrees(ep=8))
    assert dummy_gradient_bytes(MIXTRAL, "moe", Degrees(ep=4)) == 2 * one_expert.total


def test_the_head_works_on_the_larger_of_logits_and_transients() -> None:
    training, degrees = Training(), Degrees()
    stage = working_bytes(LLAMA_8B, "dense", degrees, training, "zero1", "none")
    head = head_working_bytes(LLAMA_8B, "dense", degrees, training, "zero1", "none")
    transient = transient_bytes(LLAMA_8B, "dense", degrees, training, "none")
    assert head - stage == logits_bytes(LLAMA_8B, degrees, training) - transient
    small = replace(LLAMA_8B, vocab_size=1024)
    head = head_working_bytes(small, "dense", degrees, training, "zero1", "none")
    assert head == working_bytes(small, "dense", degrees, training, "zero1", "none")


def test_prediction_modules_weigh_on_the_last_stage() -> None:
    training, degrees = Training(), Degrees(pp=4, ep=8, dp_shard=8)
    without = replace(DEEPSEEK_V3, num_mtp_layers=0)
    extra = head_parameters(DEEPSEEK_V3, degrees).total - head_parameters(without, degrees).total
    assert extra > layer_parameters_per_gpu(DEEPSEEK_V3, "moe", degrees).total
    kept = head_activation_bytes(DEEPSEEK_V3, degrees, training, "none")
    layer = layer_activation_bytes(DEEPSEEK_V3, "moe", degrees, training, "none")
    assert kept > layer + head_activation_bytes(without, degrees, training, "none")


@given(
    model=st.sampled_from([LLAMA_8B, MIXTRAL, DEEPSEEK_V3]),
    tp=st.sampled_from([1, 2, 4, 8]),
    cp=st.sampled_from([1, 2, 4]),
    recompute=st.sampled_from(get_args(Recompute)),
)
def test_more_ranks_never_keep_more(model: Model, tp: int, cp: int, recompute: Recompute) -> None:
    training = Training()
    for kind in set(model.layer_kinds):
        here = layer_activation_bytes(model, kind, Degrees(tp=tp, cp=cp), training, recompute)
        wider = Degrees(tp=2 * tp, cp=cp)
        assert layer_activation_bytes(model, kind, wider, training, recompute) <= here
        wider = Degrees(tp=tp, cp=2 * cp)
        assert layer_activation_bytes(model, kind, wider, training, recompute) <= here


@given(
    kind=st.sampled_from(get_args(LayerKind)),
    shard=st.sampled_from([8, 16, 64]),
    sharding=st.sampled_from(get_args(Sharding)),
)
def test_sharding_more_never_costs_state(kind: LayerKind, shard: int, sharding: Sharding) -> None:
    training = Training()
    order = get_args(Sharding)
    here = Degrees(ep=8, dp_shard=shard)
    base = layer_state_bytes(DEEPSEEK_V3, kind, here, training, sharding).total
    wider = replace(here, dp_shard=2 * shard)
    assert layer_state_bytes(DEEPSEEK_V3, kind, wider, training, sharding).total <= base
    for stronger in order[order.index(sharding) :]:
        assert layer_state_bytes(DEEPSEEK_V3, kind, here, training, stronger).total <= base


@given(recompute=st.sampled_from(get_args(Recompute)[:2]), model=st.sampled_from([GPT3, MIXTRAL]))
def test_recompute_keeps_less_in_the_order_none_selective_full(
    recompute: Recompute, model: Model
) -> None:
    order = get_args(Recompute)
    stronger = order[order.index(recompute) + 1]
    kind = model.layer_kinds[0]
    for stack in (None, CLASSIC):
        weak = layer_activation_bytes(model, kind, Degrees(), Training(), recompute, stack)
        assert layer_activation_bytes(model, kind, Degrees(), Training(), stronger, stack) < weak
