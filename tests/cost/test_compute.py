"""Computation times: bounds, sharding, recompute and monotonicity."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.compute import (
    BACKWARD_ATTENTION,
    LayerTimes,
    embedding_times,
    gemm_time,
    head_times,
    layer_times,
    optimizer_time,
    recompute_time,
)
from planner.cost.efficiency import efficiency, half_precision, peak_flops
from planner.cost.flops import head_flops, layer_flops
from planner.cost.stack import STACKS, exposed, get_stack, straggler_factor, with_host_floor
from tests.cost.shapes import (
    DEEPSEEK_V3,
    GPT3,
    LLAMA_8B,
    LLAMA_70B,
    MIXTRAL,
    Degrees,
    Gpu,
    Model,
    Training,
)

GPU = Gpu()


@pytest.mark.parametrize(
    ("model", "kind"), [(LLAMA_70B, "dense"), (MIXTRAL, "moe"), (DEEPSEEK_V3, "moe")]
)
@pytest.mark.parametrize("tp", [1, 8])
def test_a_layer_runs_between_a_quarter_and_the_whole_of_the_peak(
    model: Model, kind: str, tp: int
) -> None:
    training = Training()
    times = layer_times(model, kind, GPU, Degrees(tp=tp, ep=8), training)  # type: ignore[arg-type]
    flops = layer_flops(model, kind, 4096, causal=True).total  # type: ignore[arg-type]
    ideal = 4096 * flops / tp / 989e12
    assert ideal < times.forward < 4 * ideal
    assert 2 * ideal < times.backward < 8 * ideal


def test_a_large_product_approaches_its_efficiency() -> None:
    constants = efficiency(GPU, "bf16")
    size = 65536
    time = gemm_time(size, size, size, 989e12, constants.gemm, constants, GPU)
    assert time == pytest.approx(2 * size**3 / (989e12 * constants.gemm), rel=0.01)


def test_a_thin_product_is_bound_by_memory() -> None:
    constants = efficiency(GPU, "bf16")
    time = gemm_time(1, 65536, 65536, 989e12, constants.gemm, constants, GPU)
    assert time > 2 * 65536**2 / GPU.memory_bandwidth_bytes_per_s


def test_attention_is_causal_and_slower_for_short_shards() -> None:
    degrees = Degrees(micro_batch_size=1)

    def core(training: Training, cp: int = 1) -> float:
        return layer_times(LLAMA_8B, "dense", GPU, replace(degrees, cp=cp), training).core_attention

    short, long = Training(65536), Training(131072)
    assert core(long) == pytest.approx(4 * core(short), rel=0.02)
    assert core(replace(long, causal=False)) == pytest.approx(2 * core(long), rel=0.01)
    assert core(long, cp=8) > core(long) / 8


def test_backward_of_attention_is_two_and_a_half_times_its_forward() -> None:
    training, degrees = Training(131072), Degrees()
    with_scores = layer_times(LLAMA_8B, "dense", GPU, degrees, training)
    windowed = layer_times(replace(LLAMA_8B, sliding_window=1), "dense", GPU, degrees, training)
    core = with_scores.core_attention - windowed.core_attention
    extra = with_scores.input_gradient - windowed.input_gradient
    assert extra == pytest.approx(BACKWARD_ATTENTION * core, rel=1e-6)
    assert with_scores.weight_gradient == windowed.weight_gradient


def test_without_fused_attention_scores_cost_memory_traffic() -> None:
    training, degrees = Training(2048), Degrees(tp=8)
    old = layer_times(GPT3, "dense", GPU, degrees, training, get_stack("megatron-2021"))
    new = layer_times(GPT3, "dense", GPU, degrees, training)
    assert old.core_attention > 2 * new.core_attention


def test_expert_work_follows_tokens_and_imbalance() -> None:
    training = Training()

    def forward(degrees: Degrees, imbalance: float = 1.0) -> float:
        skewed = replace(training, routing_imbalance=imbalance)
        return layer_times(MIXTRAL, "moe", GPU, degrees, skewed).forward

    assert forward(Degrees(ep=8), 2.0) > 1.4 * forward(Degrees(ep=8))
    assert forward(Degrees(ep=8)) < forward(Degrees(ep=1))
    assert forward(Degrees(ep=4, etp=2)) == pytest.approx(forward(Degrees(ep=4)), rel=0.2)


def test_recompute_adds_forward_work() -> None:
    times = LayerTimes(5.0, 6.0, 4.0, core_attention=1.0, norms=0.5)
    assert times.backward == 10
    assert recompute_time(times, "none") == 0
    assert recompute_time(times, "selective") == 1.5
    assert recompute_time(times, "full") == 5


def test_head_and_embedding() -> None:
    training, degrees = Training(), Degrees(tp=4)
    head = head_times(LLAMA_8B, GPU, degrees, training)
    assert head.forward > 4096 * head_flops(LLAMA_8B) / 4 / 989e12
    embedding = embedding_times(LLAMA_8B, GPU, degrees, training)
    assert 0 < embedding.forward < head.forward / 10
    assert embedding.input_gradient == 0
    assert embedding.weight_gradient > embedding.forward


def test_a_prediction_module_runs_with_the_head() -> None:
    training, degrees = Training(), Degrees(ep=8)
    with_module = head_times(DEEPSEEK_V3, GPU, degrees, training)
    without = head_times(replace(DEEPSEEK_V3, num_mtp_layers=0), GPU, degrees, training)
    layer = layer_times(DEEPSEEK_V3, "moe", GPU, degrees, training)
    assert with_module.forward > 2 * without.forward + layer.forward


def test_optimizer_is_bound_by_memory() -> None:
    assert optimizer_time(1e9, GPU) == pytest.approx(20e9 / (3.35e12 * 0.77))


def test_lower_precision_is_faster_except_in_attention() -> None:
    degrees, training = Degrees(), Training()
    half = layer_times(LLAMA_70B, "dense", GPU, degrees, training)
    eight = layer_times(LLAMA_70B, "dense", GPU, degrees, replace(training, precision="fp8"))
    assert eight.forward < half.forward
    assert eight.core_attention == half.core_attention


def test_precision_and_gpu_look_up() -> None:
    assert efficiency(Gpu(name="A100-80"), "bf16").attention == 0.74
    assert efficiency(Gpu(name="h100 SXM"), "fp16") == efficiency(GPU, "bf16")
    default = efficiency(Gpu(name="unheard-of"), "bf16")
    assert efficiency(Gpu(name="unheard-of"), "int3") == default
    assert half_precision(Gpu(peak_flops={"fp16": 1e14}), "fp8") == "fp16"
    assert half_precision(Gpu(peak_flops={"fp8": 1e14}), "fp8") == "fp8"
    with pytest.raises(ValueError, match="nvfp4"):
        peak_flops(GPU, "nvfp4")


def test_stacks() -> None:
    assert get_stack().name == "megatron-core"
    assert all(STACKS[name].name == name for name in STACKS)
    with pytest.raises(ValueError, match="megatron-core"):
        get_stack("no-such-stack")


def test_iterations_take_longer_on_more_gpus() -> None:
    assert straggler_factor(1) == 1
    assert straggler_factor(1024) == pytest.approx(1.06)


def test_older_attention_kernels_are_slower() -> None:
    training, degrees = Training(65536), Degrees()
    new = layer_times(LLAMA_8B, "dense", GPU, degrees, training).core_attention
    old = layer_times(LLAMA_8B, "dense", GPU, degrees, training, get_stack("fsdp"))
    factor = get_stack("fsdp").attention_factor
    assert old.core_attention == pytest.approx(factor * new, rel=1e-2)


def test_every_efficiency_is_a_share_with_a_source() -> None:
    text = resources.files("planner.cost").joinpath("efficiency.json").read_text("utf-8")
    table = json.loads(text)
    assert table["shape"]["source"]
    for row in table["rows"]:
        assert row["source"]
        assert all(0 < row[key] <= 1 for key in ("gemm", "grouped_gemm", "attention", "memory"))


def test_exposed_communication() -> None:
    assert exposed(3.0, 10.0, 0.5) == 1.5
    assert exposed(12.0, 10.0, 0.5) == 7.0
    assert exposed(12.0, 10.0, 0.0) == 2.0
    assert exposed(4.0, 10.0, 1.0) == 4.0


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_host_floor_is_a_soft_maximum(gpu: float, floor: float, more: float) -> None:
    value = with_host_floor(gpu, floor)
    assert max(gpu, floor) <= value <= 1.19 * max(gpu, floor) + 1e-300
    assert with_host_floor(gpu + more, floor) >= value * (1 - 1e-12)
    assert with_host_floor(gpu, floor) == with_host_floor(floor, gpu)


@given(
    model=st.sampled_from([LLAMA_8B, MIXTRAL, DEEPSEEK_V3]),
    tp=st.sampled_from([1, 2, 8]),
    compute=st.floats(1, 20),
    memory=st.floats(1, 20),
)
def test_a_faster_gpu_is_never_slower(model: Model, tp: int, compute: float, memory: float) -> None:
    training, degrees = Training(), Degrees(tp=tp, ep=8)
    faster = replace(
        GPU,
        peak_flops={"bf16": 989e12 * compute},
        memory_bandwidth_bytes_per_s=GPU.memory_bandwidth_bytes_per_s * memory,
    )
    for kind in set(model.layer_kinds):
        old = layer_times(model, kind, GPU, degrees, training)
        new = layer_times(model, kind, faster, degrees, training)
        assert new.forward <= old.forward
        assert new.input_gradient <= old.input_gradient
        assert new.weight_gradient <= old.weight_gradient
    old, new = (head_times(model, gpu, degrees, training) for gpu in (GPU, faster))
    assert new.forward <= old.forward


@given(
    model=st.sampled_from([LLAMA_8B, MIXTRAL, DEEPSEEK_V3]),
    batch=st.sampled_from([1, 2, 4]),
)
def test_more_sequences_take_longer_but_less_each(model: Model, batch: int) -> None:
    kind, training = model.layer_kinds[-1], Training()
    one = layer_times(model, kind, GPU, Degrees(micro_batch_size=batch), training).forward
    two = layer_times(model, kind, GPU, Degrees(micro_batch_size=2 * batch), training).forward
    assert one < two <= 2 * one
