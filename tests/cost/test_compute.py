"""Computation times: kernels by hand, stacks, profiles, casts, recompute and monotonicity."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.compute import (
    LayerTimes,
    embedding_times,
    head_times,
    layer_times,
    optimizer_time,
    recompute_time,
    unmeasured_products,
)
from planner.cost.efficiency import efficiency, half_precision, measured_product_s, peak_flops
from planner.cost.flops import head_flops, layer_flops
from planner.cost.stack import exposed, with_host_floor
from planner.instance import catalog
from planner.instance.presets import gpu as catalog_gpu
from planner.instance.presets import stack as catalog_stack
from planner.instance.profile import PEAK_OF
from tests.cost.shapes import (
    DEEPSEEK_V3,
    GPT3,
    LLAMA_8B,
    LLAMA_70B,
    MIXTRAL,
    STACK,
    Constants,
    Degrees,
    Gpu,
    Model,
    Profile,
    Stack,
    Training,
)

GPU = Gpu()
TABLE: dict[str, Any] = json.loads(
    resources.files("planner.cost").joinpath("efficiency.json").read_text("utf-8")
)

PEAK, HBM = 1e15, 2e12
CONSTANTS = Constants(gemm=0.5, grouped_gemm=0.25, attention=0.4, memory=0.8)
ROUND = Gpu(
    name="round",
    peak_flops={"bf16": PEAK, "fp8": 2 * PEAK, "nvfp4": 2.5 * PEAK},
    memory_bandwidth_bytes_per_s=HBM,
    profile=Profile({"bf16": CONSTANTS, "fp8": CONSTANTS, "nvfp4": CONSTANTS}),
)
"""A GPU whose constants are round numbers."""


def with_constants(**changes: float) -> Gpu:
    """The round GPU with other constants in every precision."""
    constants = replace(CONSTANTS, **changes)
    return replace(ROUND, profile=Profile(dict.fromkeys(("bf16", "fp8", "nvfp4"), constants)))


def moved(size: float) -> float:
    """Seconds to move so many bytes on the round GPU."""
    return size / (HBM * 0.8)


def product(m: float, n: float, k: float) -> float:
    """Seconds of a large product on the round GPU."""
    return 2 * m * n * k / (PEAK * 0.5)


@pytest.mark.parametrize(
    ("model", "kind"), [(LLAMA_70B, "dense"), (MIXTRAL, "moe"), (DEEPSEEK_V3, "moe")]
)
@pytest.mark.parametrize("tp", [1, 8])
def test_a_layer_runs_between_a_quarter_and_the_whole_of_the_peak(
    model: Model, kind: Any, tp: int
) -> None:
    degrees = Degrees(tp=tp, ep=8, micro_batch_size=8)
    times = layer_times(model, kind, GPU, degrees, Training(), STACK)
    flops = layer_flops(model, kind, 4096, causal=True).total
    ideal = 8 * 4096 * flops / tp / 989e12
    assert ideal < times.forward < 4 * ideal
    assert 2 * ideal < times.backward < 8 * ideal


def test_a_dense_layer_by_hand() -> None:
    tokens, tp = 8192, 2
    times = layer_times(LLAMA_8B, "dense", ROUND, Degrees(tp=tp), Training(tokens), STACK)
    products = (
        product(tokens, (16 + 2 * 4) * 128, 4096)
        + product(tokens, 4096, 16 * 128)
        + product(tokens, 2 * 14336 / tp, 4096)
        + product(tokens, 4096, 14336 / tp)
    )
    core = 2 * tokens * (tokens / 2) * 16 * (128 + 128) / (PEAK * 0.4)
    norms = moved(2 * (2 * 2) * (tokens / tp) * 4096)
    residuals = moved(2 * (3 * 2) * (tokens / tp) * 4096)
    rotary = moved(4 * tokens * (16 + 4) * 128)
    activation = moved(3 * 2 * tokens * 14336 / tp)
    passes = norms + residuals + rotary + activation
    assert times.products == pytest.approx(products)
    assert times.core_attention == pytest.approx(core)
    assert times.norms == pytest.approx(norms)
    assert times.forward == pytest.approx(products + core + passes)
    assert times.input_gradient == pytest.approx(products + 2.5 * core + 2 * passes)
    assert times.weight_gradient == pytest.approx(products)


def test_a_mixture_layer_by_hand() -> None:
    tokens, tp, ep, factor = 8192, 2, 4, 1.5
    degrees, training = Degrees(tp=tp, ep=ep), Training(tokens, routing_imbalance=1.25)
    stack = replace(STACK, routing_factor=factor)
    moe = layer_times(MIXTRAL, "moe", ROUND, degrees, training, stack)
    dense = layer_times(MIXTRAL, "dense", ROUND, degrees, training, stack)
    block = product(tokens, 2 * 14336 / tp, 4096) + product(tokens, 4096, 14336 / tp)
    rows = tokens / tp
    copies = rows * 2 * 1.25
    experts = 2 * copies * (2 * 14336 + 14336) * 4096 / (PEAK * 0.25)
    router = max(product(rows, 8, 4096), moved(2 * (rows * 4096 + 8 * 4096 + rows * 8)))
    routing = 2 * moved(4 * copies * 4096 * factor)
    gates = moved(6 * copies * 14336) - moved(6 * tokens * 14336 / tp)
    work = experts + router - block
    assert moe.forward - dense.forward == pytest.approx(work + routing + gates)
    assert moe.input_gradient - dense.input_gradient == pytest.approx(work + 2 * (routing + gates))
    assert moe.weight_gradient - dense.weight_gradient == pytest.approx(work)


def test_every_kernel_is_launched_once() -> None:
    launched = with_constants(launch_s=1.0)

    def launches(kind: str, model: Model, **changes: Any) -> tuple[float, float, float]:
        job = Degrees(ep=8), replace(Training(), **changes), STACK
        slow = layer_times(model, kind, launched, *job)  # type: ignore[arg-type]
        fast = layer_times(model, kind, ROUND, *job)  # type: ignore[arg-type]
        return tuple(  # type: ignore[return-value]
            round(getattr(slow, part) - getattr(fast, part), 6)
            for part in ("forward", "input_gradient", "weight_gradient")
        )

    # Two norms and two residual additions; QKV, output, rotary, core; two products, activation.
    assert launches("dense", LLAMA_8B) == (4 + 4 + 3, 4 + 5 + 3, 4)
    # The router and two passes of the routing more; the experts of a rank are one kernel.
    assert launches("moe", MIXTRAL) == (4 + 4 + 3 + 3, 4 + 5 + 3 + 3, 5)
    # A cast before each of the four products forward, and one of each output's gradient.
    assert launches("dense", LLAMA_8B, precision="fp8") == (11 + 4, 12 + 4, 4)


def test_small_products_are_slower() -> None:
    """Half the speed where the tokens are ``m0`` or the features ``n0``."""
    tokens = 4096

    def products(**changes: float) -> float:
        gpu = with_constants(**changes)
        return layer_times(LLAMA_8B, "dense", gpu, Degrees(), Training(tokens), STACK).products

    assert products(m0=float(tokens)) == pytest.approx(2 * products())
    shapes = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)]
    by_hand = sum(product(tokens, n + 512, k + 512) for n, k in shapes)
    assert products(n0=512.0) == pytest.approx(by_hand)


def test_a_thin_product_is_bound_by_memory() -> None:
    times = layer_times(LLAMA_8B, "dense", ROUND, Degrees(cp=128), Training(1024), STACK)
    tokens = 8
    shapes = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)]
    by_hand = sum(moved(2 * (tokens * k + k * n + tokens * n)) for n, k in shapes)
    assert times.products == pytest.approx(by_hand)


def test_attention_is_causal_and_slower_for_short_shards() -> None:
    gpu = with_constants(s0=1024.0)

    def core(training: Training, cp: int = 1) -> float:
        return layer_times(LLAMA_8B, "dense", gpu, Degrees(cp=cp), training, STACK).core_attention

    def by_hand(length: int, share: float, cp: int = 1) -> float:
        flops = 4 * length / cp * (length * share) * 32 * 128
        return flops / (PEAK * 0.4) * (1 + 1024 / (length / cp))

    assert core(Training(65536)) == pytest.approx(by_hand(65536, 0.5))
    assert core(Training(65536, causal=False)) == pytest.approx(by_hand(65536, 1))
    assert core(Training(65536), cp=8) == pytest.approx(by_hand(65536, 0.5, 8))
    windowed = replace(LLAMA_8B, sliding_window=512)
    seen = layer_times(windowed, "dense", gpu, Degrees(), Training(65536), STACK).core_attention
    assert seen == pytest.approx(by_hand(65536, 512 / 65536))


def test_attention_kernels() -> None:
    """Triton takes 2.3 times as long; unfused writes the scores and computes all of them."""
    training, degrees = Training(2048), Degrees(tp=8)

    def layer(kernel: Any) -> LayerTimes:
        stack = replace(STACK, attention_kernel=kernel)
        return layer_times(GPT3, "dense", ROUND, degrees, training, stack)

    fused, triton, unfused = layer("fused"), layer("triton"), layer("unfused")
    assert triton.core_attention == pytest.approx(2.3 * fused.core_attention)
    more = triton.core_attention - fused.core_attention
    assert triton.forward - fused.forward == pytest.approx(more)
    assert triton.input_gradient - fused.input_gradient == pytest.approx(2.5 * more)
    assert triton.weight_gradient == fused.weight_gradient
    scores = 2048 * 2048 * 96 / 8
    by_hand = 2 * scores * 256 / (PEAK * 0.5) + moved(11 * scores)
    assert unfused.core_attention == pytest.approx(by_hand)
    change = unfused.input_gradient - fused.input_gradient
    assert change == pytest.approx(2 * by_hand - 2.5 * fused.core_attention)


def test_attention_kernel_does_not_change_the_rest() -> None:
    for name in catalog.names("stacks"):
        entry = catalog_stack(name)
        times = layer_times(LLAMA_8B, "dense", GPU, Degrees(), Training(), entry)
        plain = layer_times(LLAMA_8B, "dense", GPU, Degrees(), Training(), STACK)
        assert times.forward - times.core_attention == pytest.approx(
            plain.forward - plain.core_attention
        )
        assert times.products == plain.products


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_without_sequence_parallelism_rows_are_not_divided(tp: int) -> None:
    training, degrees = Training(), Degrees(tp=tp)
    repeated = replace(STACK, sequence_parallel=False)
    divided = layer_times(GPT3, "dense", ROUND, degrees, training, STACK)
    whole = layer_times(GPT3, "dense", ROUND, degrees, training, repeated)
    assert whole.norms == pytest.approx(moved(2 * 2 * 2 * 4096 * 12288))
    assert whole.norms == pytest.approx(tp * divided.norms)
    added = moved(2 * 5 * 2 * 4096 * 12288) * (1 - 1 / tp)
    assert whole.forward - divided.forward == pytest.approx(added, abs=1e-12)
    assert whole.input_gradient - divided.input_gradient == pytest.approx(2 * added, abs=1e-12)
    assert (whole.products, whole.core_attention) == (divided.products, divided.core_attention)


def test_expert_work_follows_tokens_and_imbalance() -> None:
    training = Training()

    def forward(degrees: Degrees, imbalance: float = 1.0) -> float:
        skewed = replace(training, routing_imbalance=imbalance)
        return layer_times(MIXTRAL, "moe", GPU, degrees, skewed, STACK).forward

    assert forward(Degrees(ep=8), 2.0) > 1.4 * forward(Degrees(ep=8))
    assert forward(Degrees(ep=8)) < forward(Degrees(ep=1))
    assert forward(Degrees(ep=4, etp=2)) == pytest.approx(forward(Degrees(ep=4)), rel=0.2)


def test_recompute_adds_forward_work() -> None:
    times = LayerTimes(5.0, 6.0, 4.0, core_attention=1.0, norms=0.5, products=3.0)
    operators = replace(STACK, selective_recompute="operators")
    assert times.backward == 10
    for stack in (STACK, operators):
        assert recompute_time(times, "none", stack) == 0
        assert recompute_time(times, "full", stack) == 5
    assert recompute_time(times, "selective", STACK) == 1.5
    assert recompute_time(times, "selective", operators) == 5 - 1 - 3 / 2


@pytest.mark.parametrize("meaning", ["attention", "operators"])
@pytest.mark.parametrize(
    ("model", "kind"), [(LLAMA_8B, "dense"), (MIXTRAL, "moe"), (DEEPSEEK_V3, "moe")]
)
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_selective_recompute_lies_between_none_and_full(
    model: Model, kind: Any, meaning: Any, precision: str
) -> None:
    stack = replace(STACK, selective_recompute=meaning)
    training = Training(precision=precision)
    times = layer_times(model, kind, GPU, Degrees(ep=8), training, stack)
    assert 0 < recompute_time(times, "selective", stack) < recompute_time(times, "full", stack)


def test_head_and_embedding() -> None:
    tokens, tp, vocab = 4096, 4, 128256
    training, degrees = Training(tokens), Degrees(tp=tp)
    head = head_times(LLAMA_8B, ROUND, degrees, training, STACK)
    projection = product(tokens, vocab / tp, 4096)
    norm = moved(5 * 2 * tokens / tp * 4096)
    logits = tokens * vocab / tp
    assert head.forward == pytest.approx(projection + norm + moved(14 * logits))
    assert head.input_gradient == pytest.approx(projection + 2 * norm + moved(6 * logits))
    assert head.weight_gradient == pytest.approx(projection)
    assert head.forward > tokens * head_flops(LLAMA_8B) / tp / PEAK
    embedding = embedding_times(LLAMA_8B, ROUND, degrees, training, STACK)
    assert embedding.forward == pytest.approx(moved(4 * tokens * 4096))
    assert embedding.input_gradient == 0
    assert embedding.weight_gradient == pytest.approx(moved((2 + 2 * 4) * tokens * 4096))


def test_a_prediction_module_runs_with_the_head() -> None:
    training, degrees = Training(), Degrees(ep=8)
    with_module = head_times(DEEPSEEK_V3, ROUND, degrees, training, STACK)
    plain = replace(DEEPSEEK_V3, num_mtp_layers=0)
    without = head_times(plain, ROUND, degrees, training, STACK)
    layer = layer_times(DEEPSEEK_V3, "moe", ROUND, degrees, training, STACK)
    projection = product(4096, 7168, 2 * 7168)
    assert with_module.forward == pytest.approx(2 * without.forward + layer.forward + projection)


def test_optimizer_is_bound_by_memory() -> None:
    assert optimizer_time(1e9, ROUND) == pytest.approx(20e9 / (HBM * 0.8))


def test_operands_below_16_bits_are_cast() -> None:
    """Each is read in half precision and written twice: the input, and the output's gradient."""
    tokens = 8192
    shapes = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)]

    def layer(precision: str) -> LayerTimes:
        training = Training(tokens, precision=precision)
        return layer_times(LLAMA_8B, "dense", ROUND, Degrees(), training, STACK)

    half = layer("bf16")
    for precision, speed, width in (("fp8", 2, 1), ("nvfp4", 2.5, 0.5)):
        low = layer(precision)
        assert low.products == pytest.approx(half.products / speed)
        saved = half.products * (1 - 1 / speed)
        inputs = moved((2 + 2 * width) * tokens * sum(k for _, k in shapes))
        gradients = moved((2 + 2 * width) * tokens * sum(n for n, _ in shapes))
        assert half.forward - low.forward == pytest.approx(saved - inputs)
        assert half.input_gradient - low.input_gradient == pytest.approx(saved - gradients)
        assert half.weight_gradient - low.weight_gradient == pytest.approx(saved)
        assert low.core_attention == half.core_attention


def test_head_router_and_attention_stay_in_half_precision() -> None:
    low, high = Training(precision="fp8"), Training()
    for model in (LLAMA_8B, MIXTRAL):
        assert head_times(model, ROUND, Degrees(), low, STACK) == head_times(
            model, ROUND, Degrees(), high, STACK
        )
    listed = unmeasured_products(MIXTRAL, "moe", ROUND, Degrees(), low, STACK)
    assert {shape[0] for shape in listed if shape[2] == 8} == {"bf16"}
    assert {shape[0] for shape in listed if shape[2] != 8} == {"fp8"}


def test_rowwise_fp8_runs_at_the_peak_of_fp8_with_its_own_efficiency() -> None:
    assert peak_flops(GPU, "fp8_rowwise") == 1979e12
    assert efficiency(GPU, "fp8_rowwise").gemm < efficiency(GPU, "fp8").gemm
    slow, fast = (
        layer_times(LLAMA_70B, "dense", GPU, Degrees(), Training(precision=p), STACK)
        for p in ("fp8_rowwise", "fp8")
    )
    assert slow.forward > fast.forward
    assert slow.core_attention == fast.core_attention
    for gpu in (Gpu(peak_flops={"bf16": 1e15}), catalog_gpu("A100-80")):
        with pytest.raises(ValueError, match="fp8_rowwise"):
            peak_flops(gpu, "fp8_rowwise")


def test_the_instance_and_the_costs_agree_on_borrowed_peaks() -> None:
    for precision, other in PEAK_OF.items():
        assert peak_flops(Gpu(peak_flops={other: 5e14}), precision) == 5e14


def row(gpu: str, precision: str) -> dict[str, Any]:
    """The row of the shipped table."""
    (found,) = [r for r in TABLE["rows"] if (r["gpu"], r["precision"]) == (gpu, precision)]
    return found


@pytest.mark.parametrize(
    ("name", "precision", "found"),
    [
        ("H100", "bf16", "H100"),
        ("h100 SXM", "bf16", "H100"),
        ("H100-SXM-80GB", "fp8", "H100"),
        ("H100-96", "bf16", "H100-96"),
        (" h100-96 ", "fp8_rowwise", "H100-96"),
        ("H100-96-SXM", "bf16", "H100"),
        ("A100-80", "bf16", "A100"),
        ("A100-40", "fp16", "A100"),
        ("GB200", "nvfp4", "GB200"),
        ("A1000", "bf16", "default"),
        ("my own", "mxfp8", "default"),
        ("A100-80", "fp8", "default"),
    ],
)
def test_constants_are_looked_up_by_name_then_type_then_default(
    name: str, precision: str, found: str
) -> None:
    expected = row(found, "bf16" if precision == "fp16" else precision)
    constants = efficiency(Gpu(name=name), precision)
    for key in ("gemm", "grouped_gemm", "attention", "memory"):
        assert getattr(constants, key) == expected[key]
    for key in ("m0", "n0", "s0", "launch_s"):
        assert getattr(constants, key) == TABLE["shape"][key]


def test_an_unknown_precision_takes_the_default() -> None:
    default = efficiency(Gpu(name="unheard-of"), "bf16")
    assert efficiency(Gpu(name="unheard-of"), "int3") == default
    assert half_precision(Gpu(peak_flops={"fp16": 1e14}), "fp8") == "fp16"
    assert half_precision(Gpu(peak_flops={"fp8": 1e14}), "fp8") == "fp8"
    with pytest.raises(ValueError, match="nvfp4"):
        peak_flops(GPU, "nvfp4")


@pytest.mark.parametrize("name", catalog.names("gpus"))
def test_every_gpu_of_the_catalog_has_its_rows(name: str) -> None:
    gpu = catalog_gpu(name)
    rows = {(r["gpu"], r["precision"]) for r in TABLE["rows"]}
    wanted = set(gpu.peak_flops) - {"fp16"} | (
        {"fp8_rowwise"} if "fp8" in gpu.peak_flops else set()
    )
    for precision in wanted:
        assert {(name, precision), (name.partition("-")[0], precision)} & rows


def test_every_efficiency_is_a_share_with_a_source() -> None:
    fields = {"gpu", "precision", "gemm", "grouped_gemm", "attention", "memory", "fitted", "source"}
    assert TABLE["source"]
    assert set(TABLE["shape"]) == {"m0", "n0", "s0", "launch_s"}
    keys = [(r["gpu"], r["precision"]) for r in TABLE["rows"]]
    assert len(set(keys)) == len(keys)
    for entry in TABLE["rows"]:
        assert set(entry) == fields
        assert entry["source"]
        assert all(0 < entry[key] <= 1 for key in ("gemm", "grouped_gemm", "attention", "memory"))
        assert entry["grouped_gemm"] <= entry["gemm"]
        assert set(entry["fitted"]) <= {"gemm", "grouped", "attention", "memory"}


def test_own_constants_replace_the_table() -> None:
    own = Constants(gemm=0.9, grouped_gemm=0.8, attention=0.7, memory=0.6)
    gpu = replace(GPU, profile=Profile({"bf16": own}))
    assert efficiency(gpu, "bf16") == own
    assert efficiency(gpu, "fp16") == own
    assert efficiency(gpu, "fp8") == efficiency(GPU, "fp8")
    both = replace(gpu, profile=Profile({"bf16": own, "fp16": replace(own, gemm=0.1)}))
    assert efficiency(both, "fp16").gemm == 0.1
    assert optimizer_time(1e9, gpu) == pytest.approx(20e9 / (3.35e12 * 0.6))
    assert efficiency(replace(GPU, profile=Profile()), "bf16") == efficiency(GPU, "bf16")


def test_a_measured_product_is_used_exactly_and_others_fall_back() -> None:
    """One shape of four is measured; it counts forward and in both parts of the backward."""
    training, degrees = Training(8192), Degrees(tp=2)
    before = layer_times(LLAMA_8B, "dense", ROUND, degrees, training, STACK)
    shape = ("bf16", 8192, 14336, 4096, 1)
    measured = replace(
        ROUND, profile=Profile(dict.fromkeys(("bf16", "fp8"), CONSTANTS), {shape: 7.0})
    )
    after = layer_times(LLAMA_8B, "dense", measured, degrees, training, STACK)
    change = 7.0 - product(8192, 14336, 4096)
    for part in ("forward", "input_gradient", "weight_gradient", "products"):
        assert getattr(after, part) - getattr(before, part) == pytest.approx(change)
    assert after.core_attention == before.core_attention
    every = {
        ("bf16", 8192, 3072, 4096, 1),
        ("bf16", 8192, 4096, 2048, 1),
        shape,
        ("bf16", 8192, 4096, 7168, 1),
    }
    job = LLAMA_8B, "dense"
    assert set(unmeasured_products(*job, ROUND, degrees, training, STACK)) == every  # type: ignore[arg-type]
    left = unmeasured_products(*job, measured, degrees, training, STACK)  # type: ignore[arg-type]
    assert list(left) == sorted(every - {shape})


def test_a_wholly_measured_layer_needs_no_constants_for_its_products() -> None:
    training, degrees = Training(), Degrees(ep=2)
    listed = unmeasured_products(MIXTRAL, "moe", ROUND, degrees, training, STACK)
    assert ("bf16", 4096 * 2 / 4, 2 * 14336, 4096, 4) in listed
    times = {shape: 0.5**i for i, shape in enumerate(listed)}
    gpu = replace(ROUND, profile=Profile({"bf16": CONSTANTS}, times))
    assert unmeasured_products(MIXTRAL, "moe", gpu, degrees, training, STACK) == ()
    layer = layer_times(MIXTRAL, "moe", gpu, degrees, training, STACK)
    assert layer.products == pytest.approx(sum(times.values()))
    slower = replace(gpu, profile=Profile({"bf16": replace(CONSTANTS, gemm=1e-6)}, times))
    assert layer_times(MIXTRAL, "moe", slower, degrees, training, STACK) == layer


def test_a_measurement_counts_for_its_own_precision_and_groups() -> None:
    gpu = replace(GPU, profile=Profile({}, {("bf16", 8, 16, 32, 1): 2.0}))
    assert measured_product_s(gpu, "bf16", 8.0, 16.0, 32.0, 1.0) == 2.0
    assert measured_product_s(gpu, "fp8", 8, 16, 32, 1) is None
    assert measured_product_s(gpu, "bf16", 8, 16, 32, 2) is None
    assert measured_product_s(gpu, "bf16", 16, 8, 32, 1) is None
    assert measured_product_s(GPU, "bf16", 8, 16, 32, 1) is None


def test_exposed_communication() -> None:
    assert exposed(3.0, 10.0, 0.5) == 1.5
    assert exposed(12.0, 10.0, 0.5) == 7.0
    assert exposed(12.0, 10.0, 0.0) == 2.0
    assert exposed(4.0, 10.0, 1.0) == 4.0


def test_host_floor_where_both_are_equal() -> None:
    assert with_host_floor(3.0, 3.0) == pytest.approx(3 * 2**0.25)
    assert with_host_floor(1.0, 2.0) == pytest.approx(17**0.25)
    assert with_host_floor(5.0, 0.0) == 5
    assert with_host_floor(0.0, 0.0) == 0


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_host_floor_is_a_soft_maximum(gpu: float, floor: float, more: float) -> None:
    value = with_host_floor(gpu, floor)
    assert max(gpu, floor) <= value <= 1.19 * max(gpu, floor) + 1e-300
    assert with_host_floor(gpu + more, floor) >= value * (1 - 1e-12)
    assert with_host_floor(gpu, floor) == with_host_floor(floor, gpu)


@given(
    model=st.sampled_from([LLAMA_8B, MIXTRAL, DEEPSEEK_V3]),
    tp=st.sampled_from([1, 2, 8]),
    stack=st.sampled_from([STACK, *map(catalog_stack, catalog.names("stacks"))]),
    compute=st.floats(1, 20),
    memory=st.floats(1, 20),
)
def test_a_faster_gpu_is_never_slower(
    model: Model, tp: int, stack: Stack, compute: float, memory: float
) -> None:
    training, degrees = Training(), Degrees(tp=tp, ep=8)
    faster = replace(
        GPU,
        peak_flops={"bf16": 989e12 * compute},
        memory_bandwidth_bytes_per_s=GPU.memory_bandwidth_bytes_per_s * memory,
    )
    for kind in set(model.layer_kinds):
        old = layer_times(model, kind, GPU, degrees, training, stack)
        new = layer_times(model, kind, faster, degrees, training, stack)
        assert new.forward <= old.forward
        assert new.input_gradient <= old.input_gradient
        assert new.weight_gradient <= old.weight_gradient
    old, new = (head_times(model, gpu, degrees, training, stack) for gpu in (GPU, faster))
    assert new.forward <= old.forward


@given(
    model=st.sampled_from([LLAMA_8B, MIXTRAL, DEEPSEEK_V3]),
    batch=st.sampled_from([1, 2, 4]),
    precision=st.sampled_from(["bf16", "fp8", "fp8_rowwise"]),
)
def test_more_sequences_take_longer_but_less_each(model: Model, batch: int, precision: str) -> None:
    kind, training = model.layer_kinds[-1], Training(precision=precision)

    def forward(size: int) -> float:
        degrees = Degrees(micro_batch_size=size)
        return layer_times(model, kind, GPU, degrees, training, STACK).forward

    assert forward(batch) < forward(2 * batch) <= 2 * forward(batch)


Times = Callable[[Gpu], float]


@pytest.mark.parametrize(
    "times",
    [
        lambda gpu: head_times(LLAMA_8B, gpu, Degrees(), Training(), STACK).forward,
        lambda gpu: embedding_times(LLAMA_8B, gpu, Degrees(), Training(), STACK).forward,
        lambda gpu: layer_times(LLAMA_8B, "dense", gpu, Degrees(), Training(), STACK).forward,
    ],
)
def test_a_gpu_that_reaches_less_of_its_peak_is_slower(times: Times) -> None:
    assert times(with_constants(memory=0.4)) > times(ROUND)
