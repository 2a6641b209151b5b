"""Seconds of computation of one microbatch on one GPU, without communication.

Every kernel takes the longer of its arithmetic and its memory traffic, plus a launch gap.  With
sequence parallelism norms, residuals and the router work on ``s·b/(c·t)`` tokens, without it on all
``s·b/c`` tokens of the context-parallel rank; projections always do.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from planner.cost.efficiency import (
    efficiency,
    half_precision,
    measured_product_s,
    peak_flops,
)
from planner.cost.flops import attended_tokens
from planner.cost.model_size import mtp_kind
from planner.cost.types import (
    Degrees,
    EfficiencyConstants,
    Gpu,
    LayerKind,
    ModelShape,
    Recompute,
    Stack,
    Training,
)

BACKWARD_ATTENTION = 2.5
"""Backward over forward time of fused attention: five products for two (FlashAttention-2,
arXiv 2307.08691, section 4.1)."""

TRITON_ATTENTION = 2.3
"""Time of the Triton attention kernels of 2022 and 2023 over that of FlashAttention-2 (fit to the
llm-foundry runs, bench/fit_cost_model.py)."""

OPTIMIZER_BYTES_PER_PARAMETER = 20
"""HBM traffic of one Adam step per parameter (reference cost model 3.4, study of fidelity)."""

_HALF = 2
_SINGLE = 4
_CAST_BYTES = {"fp8": 1.0, "fp8_rowwise": 1.0, "mxfp8": 1.0, "nvfp4": 0.5}
"""Bytes of one element of the operands of matrix products below 16 bits."""


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Seconds of one layer, or of one end of the model, for one microbatch on one GPU.

    Attributes
    ----------
    forward
        Whole forward.
    input_gradient, weight_gradient
        The two parts of the backward.
    core_attention
        Part of the forward: scores and weighted values.
    norms
        Part of the forward: normalisation.
    products
        Part of the forward: matrix products of the linear layers.
    """

    forward: float
    input_gradient: float
    weight_gradient: float
    core_attention: float = 0.0
    norms: float = 0.0
    products: float = 0.0

    @property
    def backward(self) -> float:
        """Whole backward without recompute."""
        return self.input_gradient + self.weight_gradient

    def __add__(self, other: LayerTimes) -> LayerTimes:
        """Sum of two pieces of work that run one after the other."""
        return LayerTimes(
            self.forward + other.forward,
            self.input_gradient + other.input_gradient,
            self.weight_gradient + other.weight_gradient,
            self.core_attention + other.core_attention,
            self.norms + other.norms,
            self.products + other.products,
        )

    def scaled(self, factor: float) -> LayerTimes:
        """The same work ``factor`` times."""
        return LayerTimes(
            self.forward * factor,
            self.input_gradient * factor,
            self.weight_gradient * factor,
            self.core_attention * factor,
            self.norms * factor,
            self.products * factor,
        )


def recompute_time(times: LayerTimes, recompute: Recompute, stack: Stack) -> float:
    """Seconds that recompute adds to the backward of one layer.

    ``full`` runs the forward again, ``selective`` the core attention and the norms, or all but the
    core attention and every second matrix product, whichever the stack means.

    Source: Korthikanti 2022 (arXiv 2205.05198) sections 5 and 6; the norms are the ``layernorm``
    entry of Megatron-Core ``--recompute-modules``; torchtitan ``selective_ac_option: op``.
    """
    if recompute == "none":
        return 0.0
    if recompute == "full":
        return times.forward
    if stack.selective_recompute == "operators":
        return times.forward - times.core_attention - times.products / 2
    return times.core_attention + times.norms


def layer_times(
    model: ModelShape,
    kind: LayerKind,
    gpu: Gpu,
    degrees: Degrees,
    training: Training,
    stack: Stack,
) -> LayerTimes:
    """Seconds of one layer.

    Raises
    ------
    ValueError
        If the GPU states no peak for the job's precision.
    """
    return _Kernels(model, gpu, degrees, training, stack).layer(kind)


def embedding_times(
    model: ModelShape, gpu: Gpu, degrees: Degrees, training: Training, stack: Stack
) -> LayerTimes:
    """Seconds of the embedding: a table look-up, and a scatter of gradients.

    Each token reads and writes a half-precision row; its gradient is read and added to a row of
    the accumulated gradients.
    """
    kernels = _Kernels(model, gpu, degrees, training, stack)
    row = kernels.tokens * model.hidden_size
    gradient = kernels.elementwise(row * (_HALF + 2 * training.gradient_bytes))
    return LayerTimes(kernels.elementwise(row * 2 * _HALF), 0.0, gradient)


def head_times(
    model: ModelShape,
    gpu: Gpu,
    degrees: Degrees,
    training: Training,
    stack: Stack,
) -> LayerTimes:
    """Seconds of final norm, output projection and loss, with multi-token prediction.

    The vocabulary is divided by TP.  The loss passes over the logits in half and single precision
    (14 bytes a logit forward, 6 backward).  A multi-token prediction module adds its layer, its
    projection of ``2h`` to ``h`` and one more head.

    Source: Megatron-Core vocabulary-parallel cross entropy; DeepSeek-V3 (arXiv 2412.19437) 2.2.
    """
    kernels = _Kernels(model, gpu, degrees, training, stack)
    head = kernels.head()
    if not model.num_mtp_layers:
        return head
    layer = layer_times(model, mtp_kind(model), gpu, degrees, training, stack)
    return head + (layer + kernels.mtp_projection() + head).scaled(model.num_mtp_layers)


def optimizer_time(parameters: float, gpu: Gpu) -> float:
    """Seconds of one Adam step over the parameters whose state this GPU keeps.

    Source: 20 bytes of traffic a parameter (reference cost model 3.4).
    """
    share = efficiency(gpu, "bf16").memory
    return OPTIMIZER_BYTES_PER_PARAMETER * parameters / (gpu.memory_bandwidth_bytes_per_s * share)


def unmeasured_products(
    model: ModelShape,
    unit: LayerKind | Literal["head"],
    gpu: Gpu,
    degrees: Degrees,
    training: Training,
    stack: Stack,
) -> tuple[tuple[str, float, float, float, float], ...]:
    """Matrix products of a layer, or of the head, that the GPU's profile does not hold.

    Returns
    -------
    tuple
        (precision, m, n, k, groups) of each, sorted.

    Raises
    ------
    ValueError
        If the GPU states no peak for the job's precision.
    """
    kernels = _Kernels(model, gpu, degrees, training, stack)
    if unit != "head":
        kernels.layer(unit)
    else:
        kernels.head()
        if model.num_mtp_layers:
            kernels.layer(mtp_kind(model))
            kernels.mtp_projection()
    return tuple(sorted(set(kernels.modelled)))


def _product(
    m: float, n: float, k: float, peak: float, eta: float, constants: EfficiencyConstants, gpu: Gpu
) -> float:
    """Seconds of a product of an ``m × k`` with a ``k × n`` matrix, without its launch.

    ``2mnk/(peak·η)·(1 + m0/m)(1 + n0/n)(1 + n0/k)``, at least the time to read and write the
    half-precision operands once.  ``m`` counts tokens.

    Source: reference study of fidelity, "Form that worked"; roofline of Williams 2009.
    """
    if m <= 0 or n <= 0 or k <= 0:
        return 0.0
    arithmetic = 2 / (peak * eta) * (m + constants.m0) * (n + constants.n0) * (k + constants.n0)
    moved = _HALF * (m * k + k * n + m * n)
    return max(arithmetic, moved / (gpu.memory_bandwidth_bytes_per_s * constants.memory))


class _Kernels:
    """Kernels of one GPU under one set of degrees; every method returns seconds."""

    def __init__(
        self,
        model: ModelShape,
        gpu: Gpu,
        degrees: Degrees,
        training: Training,
        stack: Stack,
    ) -> None:
        self.model, self.gpu, self.degrees = model, gpu, degrees
        self.training, self.stack = training, stack
        self.tokens = degrees.micro_batch_size * training.sequence_length / degrees.cp
        self.rows = self.tokens / (degrees.tp if stack.sequence_parallel else 1)
        self.half_name = half_precision(gpu, training.precision)
        self.half = efficiency(gpu, self.half_name)
        self.half_peak = peak_flops(gpu, self.half_name)
        self.bandwidth = gpu.memory_bandwidth_bytes_per_s * self.half.memory
        self.modelled: list[tuple[str, float, float, float, float]] = []

    def layer(self, kind: LayerKind) -> LayerTimes:
        """One layer."""
        return self.attention() + (self.dense_ffn() if kind == "dense" else self.moe())

    def elementwise(self, moved: float) -> float:
        """One elementwise kernel that moves so many bytes."""
        return moved / self.bandwidth + self.half.launch_s

    def linear_times(self, m: float, n: float, k: float, *, half: bool = False) -> LayerTimes:
        """A linear layer of ``k`` inputs and ``n`` outputs over ``m`` tokens, and its backward."""
        return self.linear(self.half_name if half else self.training.precision, m, n, k)

    def linear(
        self, precision: str, m: float, n: float, k: float, groups: float = 1.0
    ) -> LayerTimes:
        """``groups`` linear layers in one kernel, ``m`` tokens each.

        Below 16 bits the input is cast before the forward and the output's gradient before the
        backward: each is read in half precision and written twice, once transposed.
        """
        time = self.product(precision, m, n, k, groups)
        cast_input = cast_gradient = 0.0
        if precision in _CAST_BYTES:
            moved = (_HALF + 2 * _CAST_BYTES[precision]) * m * groups
            cast_input, cast_gradient = self.elementwise(moved * k), self.elementwise(moved * n)
        return LayerTimes(time + cast_input, time + cast_gradient, time, products=time)

    def product(self, precision: str, m: float, n: float, k: float, groups: float = 1.0) -> float:
        """Seconds of ``groups`` products in one kernel: measured, or by the constants."""
        measured = measured_product_s(self.gpu, precision, m, n, k, groups)
        if measured is not None:
            return measured
        self.modelled.append((precision, m, n, k, groups))
        constants, peak = efficiency(self.gpu, precision), peak_flops(self.gpu, precision)
        eta = constants.gemm if groups == 1 else constants.grouped_gemm
        return constants.launch_s + groups * _product(m, n, k, peak, eta, constants, self.gpu)

    def chain(self, m: float, *widths: float) -> LayerTimes:
        """Linear layers one after another."""
        total = LayerTimes(0.0, 0.0, 0.0)
        for k, n in pairwise(widths):
            total += self.linear_times(m, n, k)
        return total

    def pointwise(self, moved: float) -> LayerTimes:
        """An elementwise op; its backward reads the gradient as well and moves twice as much."""
        return LayerTimes(self.elementwise(moved), self.elementwise(2 * moved), 0.0)

    def norm(self) -> LayerTimes:
        """Residual addition (three passes) and normalisation (two passes)."""
        row = self.rows * self.model.hidden_size * _HALF
        norm = self.pointwise(2 * row)
        times = self.pointwise(3 * row) + norm
        return LayerTimes(times.forward, times.input_gradient, 0.0, norms=norm.forward)

    def attention(self) -> LayerTimes:
        """Norm, projections, rotary embedding and core attention."""
        model, tp = self.model, self.degrees.tp
        h, heads = model.hidden_size, model.num_heads / tp
        total = self.norm() + self.core_attention()
        if model.attention == "mla":
            nope, rope, value = model.qk_nope_head_dim, model.qk_rope_head_dim, model.v_head_dim
            rank_q, rank_kv = model.q_lora_rank, model.kv_lora_rank
            if rank_q is None:
                total += self.chain(self.tokens, h, heads * (nope + rope))
            else:
                total += self.chain(self.rows, h, rank_q)
                total += self.chain(self.tokens, rank_q, heads * (nope + rope))
            total += self.chain(self.rows, h, rank_kv + rope)
            total += self.chain(self.tokens, rank_kv, heads * (nope + value))
            total += self.chain(self.tokens, heads * value, h)
            return total + self.pointwise(4 * self.tokens * heads * (nope + rope))
        kv = max(model.num_kv_heads / tp, 1.0)
        total += self.chain(self.tokens, h, (heads + 2 * kv) * model.head_dim)
        total += self.chain(self.tokens, heads * model.head_dim, h)
        return total + self.pointwise(2 * _HALF * self.tokens * (heads + kv) * model.head_dim)

    def core_attention(self) -> LayerTimes:
        """Scores and weighted values.

        Fused: at the causal share of the FLOPs over ``η_a``, times ``1 + s0/(s/c)``; backward 2.5
        times as long.  Otherwise two products over all scores and 11 bytes of traffic a score
        forward (write, softmax, dropout, read), twice that backward.

        Source: reference study of fidelity; Korthikanti 2022 (arXiv 2205.05198) section 4.1.
        """
        model, length = self.model, self.training.sequence_length
        heads = model.num_heads / self.degrees.tp
        if model.attention == "mla":
            widths = model.qk_nope_head_dim + model.qk_rope_head_dim + model.v_head_dim
        else:
            widths = 2 * model.head_dim
        launch = self.half.launch_s
        if self.stack.attention_kernel != "unfused":
            attended = attended_tokens(model, length, self.training.causal)
            flops = 2 * self.tokens * attended * heads * widths
            saturation = 1 + self.half.s0 / (length / self.degrees.cp)
            time = flops / (self.half_peak * self.half.attention) * saturation
            if self.stack.attention_kernel == "triton":
                time *= TRITON_ATTENTION
            backward = BACKWARD_ATTENTION * time + 2 * launch
            return LayerTimes(time + launch, backward, 0.0, core_attention=time + launch)
        scores = self.tokens * length * heads
        products = 2 * scores * widths / (self.half_peak * self.half.gemm)
        time = products + 11 * scores / self.bandwidth + 4 * launch
        return LayerTimes(time, 2 * time, 0.0, core_attention=time)

    def activation(self, tokens: float, width: float) -> LayerTimes:
        """Activation function over ``width`` features, gated or not."""
        passes = 3 if self.model.gated else 2
        return self.pointwise(passes * _HALF * tokens * width)

    def feed_forward(self, width: float) -> LayerTimes:
        """A feed-forward block whose ``width`` is divided by TP."""
        inner, h = width / self.degrees.tp, self.model.hidden_size
        fan = 2 if self.model.gated else 1
        total = self.chain(self.tokens, h, fan * inner) + self.chain(self.tokens, inner, h)
        return total + self.activation(self.tokens, inner)

    def dense_ffn(self) -> LayerTimes:
        """Norm and dense feed-forward block."""
        return self.norm() + self.feed_forward(self.model.ffn_hidden_size)

    def moe(self) -> LayerTimes:
        """Norm, router, permutation, routed and shared experts.

        Of the ``x·(T/t)·K`` token copies that one expert-parallel rank receives each of its experts
        takes an equal part; the imbalance multiplies the routed work.
        """
        model, h = self.model, self.model.hidden_size
        ep, etp = self.degrees.ep, self.degrees.etp
        copies = self.rows * model.experts_per_token * self.training.routing_imbalance
        inner = model.expert_ffn_hidden_size / etp
        fan = 2 if model.gated else 1
        experts = model.num_experts / ep
        total = self.norm() + self.linear_times(self.rows, model.num_experts, h, half=True)
        total += self.grouped(copies * etp, experts, fan * inner, h)
        total += self.grouped(copies * etp, experts, h, inner)
        total += self.activation(copies * etp, inner)
        moved = 2 * _HALF * copies * h * self.stack.routing_factor
        total += self.pointwise(moved) + self.pointwise(moved)
        if model.shared_expert_ffn_hidden_size:
            total += self.feed_forward(model.shared_expert_ffn_hidden_size)
        return total

    def grouped(self, copies: float, experts: float, n: float, k: float) -> LayerTimes:
        """A grouped product: ``experts`` products over ``copies / experts`` tokens each."""
        return self.linear(self.training.precision, copies / experts, n, k, experts)

    def head(self) -> LayerTimes:
        """Final norm, output projection and loss."""
        vocab = self.model.vocab_size / self.degrees.tp
        times = self.norm() + self.linear_times(
            self.tokens, vocab, self.model.hidden_size, half=True
        )
        logits = self.tokens * vocab
        loss = LayerTimes(
            self.elementwise((_HALF + 3 * _SINGLE) * logits),
            self.elementwise((_SINGLE + _HALF) * logits),
            0.0,
        )
        return times + loss

    def mtp_projection(self) -> LayerTimes:
        """Projection of the concatenated hidden state and embedding."""
        h = self.model.hidden_size
        return self.linear_times(self.tokens, h / self.degrees.tp, 2 * h)
