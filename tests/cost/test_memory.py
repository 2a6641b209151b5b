"""Bytes against Korthikanti's table, measured runs and the facts that simple models miss."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.activations import (
    head_activation_bytes,
    layer_activation_bytes,
    layer_held_bytes,
)
from planner.cost.memory import (
    communication_bytes,
    dummy_gradient_bytes,
    head_working_bytes,
    logit_bytes,
    logits_bytes,
    sharding_working_bytes,
    transient_bytes,
    working_bytes,
)
from planner.cost.model_size import layer_parameters_per_gpu
from planner.cost.state import (
    dense_shard,
    embedding_parameters,
    end_state_bytes,
    expert_shard,
    head_parameters,
    layer_state_bytes,
    optimizer_parameters,
    optimizer_step_bytes,
    state_bytes,
    state_bytes_per_parameter,
)
from planner.cost.types import LayerKind, Recompute, Sharding
from planner.instance.presets import stack as get_stack
from planner.instance.stack import StackSpec
from planner.pipeline.memory import live_counts
from planner.pipeline.schedules import Template, chunk_devices
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

MEGATRON = get_stack("megatron-core")
CLASSIC = get_stack("megatron-2021")
TITAN = get_stack("torchtitan")
PARALLEL = CLASSIC.model_copy(update={"sequence_parallel": True})
EAGER = TITAN.model_copy(update={"loss_kernel": "eager", "optimizer_kernel": "foreach"})

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
    state = sum(
        layer_state_bytes(model, kind, degrees, training, "zero1", MEGATRON).total for kind in kinds
    )
    for ends in (embedding_parameters(model, degrees), head_parameters(model, degrees)):
        state += state_bytes(ends, degrees, training, "zero1", MEGATRON).total
    kept = head_activation_bytes(model, degrees, training, "none", MEGATRON)
    kept += sum(
        layer_activation_bytes(model, kind, degrees, training, "none", MEGATRON) for kind in kinds
    )
    working = max(
        head_working_bytes(model, kind, degrees, training, "zero1", "none", MEGATRON)
        for kind in kinds
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
    layer = layer_state_bytes(model, "dense", degrees, Training(2048), "ddp", MEGATRON).total
    closed = 18 * 12 * layers * hidden**2 / (tp * pp)
    assert layer * layers / pp == pytest.approx(closed, rel=2e-3)


@pytest.mark.parametrize(
    ("sharding", "total"),
    [("ddp", 18), ("zero1", 6 + 12 / 8), ("zero2", 2 + 16 / 8), ("zero3", 18 / 8)],
)
def test_bytes_per_parameter(sharding: Sharding, total: float) -> None:
    four, two = Training(), Training(gradient_bytes=2)
    assert state_bytes_per_parameter(sharding, 8, four, MEGATRON).total == total
    assert state_bytes_per_parameter(sharding, 1, four, MEGATRON).total == 18
    assert state_bytes_per_parameter(sharding, 1, two, MEGATRON).total == 16
    lean = Training(gradient_bytes=2, optimizer_bytes=4)
    assert state_bytes_per_parameter(sharding, 1, lean, MEGATRON).total == 8


def test_fsdp_shards_the_master_copy_alone() -> None:
    for width in (2, 4):
        training = Training(gradient_bytes=width)
        assert state_bytes_per_parameter("zero3", 8, training, TITAN).total == 16 / 8
    assert state_bytes_per_parameter("zero1", 8, Training(), TITAN).total == 6 + 12 / 8


def test_embedding_and_head_stay_gathered() -> None:
    degrees, training = Degrees(dp_shard=8), Training()
    ends = embedding_parameters(LLAMA_8B, degrees)
    sharded = state_bytes(ends, degrees, training, "zero3", TITAN)
    whole = end_state_bytes(ends, degrees, training, "zero3", TITAN)
    assert whole.total - sharded.total == 2 * 128256 * 4096
    for sharding, shard in (("zero2", 8), ("zero3", 1)):
        alone = replace(degrees, dp_shard=shard)
        assert end_state_bytes(ends, alone, training, sharding, TITAN) == state_bytes(
            ends, alone, training, sharding, TITAN
        )


@pytest.mark.parametrize(("optimizer_bytes", "width"), [(12, 4), (8, 4), (4, 2)])
def test_foreach_optimizers_allocate_as_much_as_one_moment(
    optimizer_bytes: int, width: int
) -> None:
    training = Training(optimizer_bytes=optimizer_bytes)
    share = layer_parameters_per_gpu(LLAMA_8B, "dense", Degrees())
    for sharding, ranks in (("ddp", 1), ("zero1", 8), ("zero3", 8)):
        degrees = Degrees(dp_shard=ranks)
        step = optimizer_step_bytes(share, degrees, training, sharding, EAGER)
        assert step == width * share.total / ranks
        assert optimizer_step_bytes(share, degrees, training, sharding, TITAN) == 0


def test_an_unknown_sharding_is_refused() -> None:
    with pytest.raises(ValueError, match="zero9"):
        state_bytes_per_parameter("zero9", 8, Training(), MEGATRON)  # type: ignore[arg-type]


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
    narrow = layer_state_bytes(DEEPSEEK_V3, "moe", degrees, training, "zero1", MEGATRON)
    fewer = replace(DEEPSEEK_V3, experts_per_token=1)
    assert layer_state_bytes(fewer, "moe", degrees, training, "zero1", MEGATRON) == narrow


@pytest.mark.parametrize("tp", [1, 8])
def test_classic_layer_of_korthikanti(tp: int) -> None:
    """Table 2 of the paper: none, selective and full, with and without sequence parallelism."""
    h, heads, length = GPT3.hidden_size, GPT3.num_heads, 2048
    training, degrees = Training(length), Degrees(tp=tp)
    scores = 5 * heads * length / h
    for recompute, parallel, plain in (
        ("none", (34 + scores) / tp, 10 + 24 / tp + scores / tp),
        ("selective", 34 / tp, 10 + 24 / tp),
        ("full", 2 / tp, 2),
    ):
        for stack, closed in ((PARALLEL, parallel), (CLASSIC, plain)):
            layer = layer_activation_bytes(GPT3, "dense", degrees, training, recompute, stack)
            assert layer == length * h * closed


FIGURE_1 = [
    (48, 6144, 64, 4, 1, 1, 1, 45.56, 59.25, 9.56),
    (96, 12288, 96, 1, 8, 3, 64, 45.56, 66.84, 12.35),
    (105, 20480, 128, 1, 35, 3, 280, 31.64, 114.02, 23.08),
]
"""Layers, hidden size, heads, microbatch, stages, chunks, microbatches; GiB of parameters and
optimizer, of activations with tensor parallelism alone, and of those with sequence parallelism and
selective recompute: Korthikanti 2022, figure 1, first stage, 8-way tensor parallelism."""


def classic_model(layers: int, hidden: int, heads: int) -> Model:
    """A GPT with a vocabulary of 51,200."""
    return Model(layers, hidden, heads, heads, hidden // heads, 4 * hidden, 51200, gated=False)


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "batch", "pp", "v", "m", "state", "plain", "present"), FIGURE_1
)
def test_figure_1_of_korthikanti(
    layers: int, hidden: int, heads: int, batch: int, pp: int, v: int, m: int,
    state: float, plain: float, present: float,
) -> None:  # fmt: skip
    """To two decimals. The figure counts the matrices of the layers, without norms and ends."""
    model = classic_model(layers, hidden, heads)
    training, degrees = Training(2048), Degrees(tp=8, pp=pp, micro_batch_size=batch)
    share = layer_parameters_per_gpu(model, "dense", degrees)
    per_parameter = state_bytes_per_parameter("ddp", 1, training, CLASSIC).total
    matrices = (share.attention + share.dense_ffn) * layers / pp * per_parameter
    assert round(matrices / 2**30, 2) == state
    schedule = "interleaved" if v > 1 else "1f1b"
    template = Template(schedule, pp, v, m, pp if v > 1 else None, (0,) * pp)
    assert chunk_devices(schedule, pp, v)[0] == 0
    live = max(sum(vector.full) for vector in live_counts(template)[0])
    for recompute, stack, expected in (
        ("none", CLASSIC, plain), ("selective", PARALLEL, present),
    ):  # fmt: skip
        layer = layer_activation_bytes(model, "dense", degrees, training, recompute, stack)
        kept = live * layers / (pp * v) * layer
        assert round(kept / 2**30, 2) == expected


FIGURE_7 = [
    (48, 6144, 64, 66.84, 49.42, 16.18, 7.64),
    (96, 12288, 96, 62.04, 56.53, 18.49, 8.71),
    (105, 20480, 128, 58.31, 62.04, 20.27, 9.42),
]
"""Layers, hidden size, heads; percent of the activations of tensor parallelism alone that are kept
with sequence parallelism, selective recompute, both, full recompute: Korthikanti 2022, figure 7.
The figure includes the ends, at most 0.15 percentage points."""


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "parallel", "selective", "both", "full"), FIGURE_7
)
def test_figure_7_of_korthikanti(
    layers: int, hidden: int, heads: int,
    parallel: float, selective: float, both: float, full: float,
) -> None:  # fmt: skip
    model, training = classic_model(layers, hidden, heads), Training(2048)

    def kept(recompute: Recompute, stack: StackSpec) -> int:
        return layer_activation_bytes(model, "dense", Degrees(tp=8), training, recompute, stack)

    base = kept("none", CLASSIC)
    shares = [
        kept("none", PARALLEL), kept("selective", CLASSIC), kept("selective", PARALLEL),
        kept("full", CLASSIC),
    ]  # fmt: skip
    percent = [round(100 * share / base, 2) for share in shares]
    assert percent == pytest.approx([parallel, selective, both, full], abs=0.15)


def test_without_sequence_parallelism_the_residual_stream_is_whole() -> None:
    stack = MEGATRON.model_copy(update={"sequence_parallel": False})
    training, h = Training(), LLAMA_8B.hidden_size

    def kept(tp: int, stack: StackSpec) -> int:
        return layer_activation_bytes(LLAMA_8B, "dense", Degrees(tp=tp), training, "none", stack)

    assert kept(1, stack) == kept(1, MEGATRON)
    assert kept(8, stack) - kept(8, MEGATRON) == 4096 * 8 * h * 7 // 8


def test_checkpointing_by_operator_keeps_every_second_product() -> None:
    """torchtitan's Llama layer: its input, wq, wv, w1, w2, the attention and its statistics."""
    training, degrees = Training(8192), Degrees(micro_batch_size=2)
    h, ffn, heads, kv, dim = 4096, 14336, 32, 8, 128
    width = 2 * h + 2 * heads * dim + 2 * kv * dim + 2 * ffn + 2 * h
    width += 2 * heads * dim + 4 * heads
    kept = layer_activation_bytes(LLAMA_8B, "dense", degrees, training, "selective", TITAN)
    assert kept == 2 * 8192 * width
    full = layer_activation_bytes(LLAMA_8B, "dense", degrees, training, "none", TITAN)
    plain = transient_bytes(LLAMA_8B, "dense", degrees, training, "none", TITAN)
    again = transient_bytes(LLAMA_8B, "dense", degrees, training, "selective", TITAN)
    assert again - plain == full - kept


def test_eight_bit_inputs_of_linear_layers() -> None:
    """Norm outputs and the input of the last product in 8 bits, a copy of the attention besides."""
    h, ffn, width = 8192, 28672, 64 * 128
    degrees = Degrees(tp=4)
    half = layer_activation_bytes(LLAMA_70B, "dense", degrees, Training(), "none", MEGATRON)
    for precision in ("fp8", "mxfp8", "nvfp4"):
        training = Training(precision=precision)
        kept = layer_activation_bytes(LLAMA_70B, "dense", degrees, training, "none", MEGATRON)
        assert half - kept == 4096 * (2 * h + ffn - width) // 4
        same = layer_activation_bytes(LLAMA_70B, "dense", degrees, training, "none", TITAN)
        assert same == half


def test_bytes_of_a_logit() -> None:
    assert logit_bytes(Degrees(), MEGATRON) == 6
    assert logit_bytes(Degrees(), TITAN) == 4
    assert logit_bytes(Degrees(), EAGER) == 12
    assert logit_bytes(Degrees(tp=8), EAGER) == 16


def test_communication_buffers() -> None:
    training, h = Training(), LLAMA_8B.hidden_size

    def buffers(degrees: Degrees) -> int:
        return communication_bytes(LLAMA_8B, degrees, training, MEGATRON)

    assert buffers(Degrees()) == 0
    assert buffers(Degrees(tp=8)) == 0
    assert buffers(Degrees(cp=2)) == 4096 // 2 * 2 * 2 * 2 * 8 * 128
    assert buffers(Degrees(pp=2)) == 4096 * 4 * h
    assert communication_bytes(DEEPSEEK_V3, Degrees(cp=2), training, MEGATRON) > 0


def test_attention_that_is_not_fused_needs_room_for_the_gradients_of_its_scores() -> None:
    training, degrees = Training(2048), Degrees(tp=8)
    scores, gathered = 96 * 2048 * 2048 // 8, 2 * 2048 * 12288
    none = transient_bytes(GPT3, "dense", degrees, training, "none", PARALLEL)
    assert none == 4 * scores + gathered
    assert transient_bytes(GPT3, "dense", degrees, training, "selective", PARALLEL) == (
        9 * scores + gathered
    )
    full = transient_bytes(GPT3, "dense", degrees, training, "full", PARALLEL)
    kept = layer_activation_bytes(GPT3, "dense", degrees, training, "none", PARALLEL)
    assert full == none + kept


def test_modern_dense_layer() -> None:
    training, degrees = Training(4096), Degrees(tp=2, cp=2, micro_batch_size=2)
    h, ffn, heads, kv, dim = 4096, 14336, 32, 8, 128
    width = 4 * h + 2 * (2 * heads * dim + 2 * kv * dim) + 4 * heads + 4 * h + 6 * ffn
    kept = layer_activation_bytes(LLAMA_8B, "dense", degrees, training, "none", MEGATRON)
    assert kept == 2 * 4096 * width // 4
    selective = layer_activation_bytes(LLAMA_8B, "dense", degrees, training, "selective", MEGATRON)
    assert kept - selective == 2 * 4096 * (4 * h + 4 * heads) // 4


def test_experts_are_not_priced_as_dense() -> None:
    training, degrees = Training(), Degrees(ep=8)

    def kept(model: Model) -> int:
        return layer_activation_bytes(model, "moe", degrees, training, "none", MEGATRON)

    base = kept(MIXTRAL)
    assert kept(replace(MIXTRAL, experts_per_token=4)) > base
    assert kept(replace(MIXTRAL, expert_ffn_hidden_size=28672)) > base
    assert kept(replace(MIXTRAL, shared_expert_ffn_hidden_size=1024)) > base
    assert (
        layer_activation_bytes(MIXTRAL, "moe", Degrees(ep=4, etp=2), training, "none", MEGATRON)
        > base
    )


def test_imbalance_multiplies_the_expert_part() -> None:
    degrees = Degrees(ep=8)
    balanced = layer_activation_bytes(MIXTRAL, "moe", degrees, Training(), "none", MEGATRON)
    skewed = layer_activation_bytes(
        MIXTRAL, "moe", degrees, Training(routing_imbalance=1.5), "none", MEGATRON
    )
    expert = 4096 * 2 * (2 * 4096 + 6 * 14336)
    assert skewed - balanced == expert // 2


def test_a_split_backward_keeps_almost_everything_and_more_for_experts() -> None:
    training, degrees = Training(), Degrees(tp=2)
    full = layer_activation_bytes(LLAMA_8B, "dense", degrees, training, "none", MEGATRON)
    held = layer_held_bytes(LLAMA_8B, "dense", degrees, training, MEGATRON)
    assert 0.9 * full < held < full
    routed = layer_held_bytes(MIXTRAL, "moe", degrees, training, MEGATRON)
    assert routed > layer_activation_bytes(MIXTRAL, "moe", degrees, training, "none", MEGATRON)
    assert layer_held_bytes(DEEPSEEK_V3, "moe", degrees, training, MEGATRON) > 0


def test_working_sets() -> None:
    training, degrees = Training(), Degrees(tp=2, dp_shard=4)
    assert logits_bytes(LLAMA_8B, degrees, training, MEGATRON) == 6 * 4096 * 128256 // 2
    assert logits_bytes(DEEPSEEK_V3, degrees, training, MEGATRON) == 2 * 6 * 4096 * 129280 // 2
    plain = transient_bytes(LLAMA_8B, "dense", degrees, training, "none", MEGATRON)
    assert plain == 4096 * 6 * 14336 // 2 + 4096 * 2 * 4096
    kept = layer_activation_bytes(LLAMA_8B, "dense", degrees, training, "none", MEGATRON)
    assert transient_bytes(LLAMA_8B, "dense", degrees, training, "full", MEGATRON) == plain + kept
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
    stage = working_bytes(LLAMA_8B, "dense", degrees, training, "zero1", "none", MEGATRON)
    head = head_working_bytes(LLAMA_8B, "dense", degrees, training, "zero1", "none", MEGATRON)
    transient = transient_bytes(LLAMA_8B, "dense", degrees, training, "none", MEGATRON)
    assert head - stage == logits_bytes(LLAMA_8B, degrees, training, MEGATRON) - transient
    small = replace(LLAMA_8B, vocab_size=1024)
    head = head_working_bytes(small, "dense", degrees, training, "zero1", "none", MEGATRON)
    assert head == working_bytes(small, "dense", degrees, training, "zero1", "none", MEGATRON)


def test_prediction_modules_weigh_on_the_last_stage() -> None:
    training, degrees = Training(), Degrees(pp=4, ep=8, dp_shard=8)
    without = replace(DEEPSEEK_V3, num_mtp_layers=0)
    extra = head_parameters(DEEPSEEK_V3, degrees).total - head_parameters(without, degrees).total
    assert extra > layer_parameters_per_gpu(DEEPSEEK_V3, "moe", degrees).total
    kept = head_activation_bytes(DEEPSEEK_V3, degrees, training, "none", MEGATRON)
    layer = layer_activation_bytes(DEEPSEEK_V3, "moe", degrees, training, "none", MEGATRON)
    assert kept > layer + head_activation_bytes(without, degrees, training, "none", MEGATRON)


@given(
    model=st.sampled_from([LLAMA_8B, MIXTRAL, DEEPSEEK_V3]),
    tp=st.sampled_from([1, 2, 4, 8]),
    cp=st.sampled_from([1, 2, 4]),
    recompute=st.sampled_from(get_args(Recompute)),
)
def test_more_ranks_never_keep_more(model: Model, tp: int, cp: int, recompute: Recompute) -> None:
    training = Training()
    for kind in set(model.layer_kinds):
        here = layer_activation_bytes(
            model, kind, Degrees(tp=tp, cp=cp), training, recompute, MEGATRON
        )
        wider = Degrees(tp=2 * tp, cp=cp)
        assert layer_activation_bytes(model, kind, wider, training, recompute, MEGATRON) <= here
        wider = Degrees(tp=tp, cp=2 * cp)
        assert layer_activation_bytes(model, kind, wider, training, recompute, MEGATRON) <= here


@given(
    kind=st.sampled_from(get_args(LayerKind)),
    shard=st.sampled_from([8, 16, 64]),
    sharding=st.sampled_from(get_args(Sharding)),
)
def test_sharding_more_never_costs_state(kind: LayerKind, shard: int, sharding: Sharding) -> None:
    training = Training()
    order = get_args(Sharding)
    here = Degrees(ep=8, dp_shard=shard)
    base = layer_state_bytes(DEEPSEEK_V3, kind, here, training, sharding, MEGATRON).total
    wider = replace(here, dp_shard=2 * shard)
    assert layer_state_bytes(DEEPSEEK_V3, kind, wider, training, sharding, MEGATRON).total <= base
    for stronger in order[order.index(sharding) :]:
        assert (
            layer_state_bytes(DEEPSEEK_V3, kind, here, training, stronger, MEGATRON).total <= base
        )


@given(recompute=st.sampled_from(get_args(Recompute)[:2]), model=st.sampled_from([GPT3, MIXTRAL]))
def test_recompute_keeps_less_in_the_order_none_selective_full(
    recompute: Recompute, model: Model
) -> None:
    order = get_args(Recompute)
    stronger = order[order.index(recompute) + 1]
    kind = model.layer_kinds[0]
    for stack in (MEGATRON, CLASSIC, TITAN):
        for degrees in (Degrees(), Degrees(tp=32)):
            weak = layer_activation_bytes(model, kind, degrees, Training(), recompute, stack)
            strong = layer_activation_bytes(model, kind, degrees, Training(), stronger, stack)
            assert strong <= weak
