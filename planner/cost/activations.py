"""Bytes per GPU that a microbatch keeps from its forward to its backward.

Widths are bytes per token. What runs along the residual stream (norms, residuals, inputs of the
first products of a block, routed token copies) is divided by TP with sequence parallelism alone;
what lies inside attention and feed-forward blocks always is.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from planner.cost.model_size import ffn_matrices, mtp_kind
from planner.cost.types import Degrees, LayerKind, ModelShape, Recompute, Stack, Training

HALF_PRECISIONS = ("bf16", "fp16")
"""Precisions in which nothing is kept in 8 bits."""


class Width(NamedTuple):
    """Bytes per token before the division by TP.

    Attributes
    ----------
    residual
        Divided by TP with sequence parallelism alone.
    inner
        Divided by TP.
    whole
        Not divided by TP.
    """

    residual: float = 0.0
    inner: float = 0.0
    whole: float = 0.0

    def plus(self, other: Width) -> Width:
        """Sum of two widths."""
        return Width(*(a + b for a, b in zip(self, other, strict=True)))

    def times(self, factor: float) -> Width:
        """A multiple of the width."""
        return Width(*(factor * part for part in self))

    def bytes(self, degrees: Degrees, training: Training, stack: Stack) -> int:
        """Bytes of one microbatch on one GPU, rounded up."""
        tokens = degrees.micro_batch_size * training.sequence_length
        residual = self.residual / (degrees.tp if stack.sequence_parallel else 1)
        width = residual + self.inner / degrees.tp + self.whole
        return ceil(tokens * width / degrees.cp)


def layer_activation_bytes(
    model: ModelShape,
    kind: LayerKind,
    degrees: Degrees,
    training: Training,
    recompute: Recompute,
    stack: Stack,
) -> int:
    """Bytes that one layer keeps of one microbatch from its forward to its backward.

    ``none`` keeps per token, before the division by ``t·c`` (``x`` = bytes of an input that a
    linear layer keeps: 2, or 1 with 8-bit precision where the stack keeps them so):

    - GQA: ``2h + x·h + 4d(a+k) + 4a``, and ``a·d`` for an 8-bit copy of the output;
      MLA: ``4h + 2(2rq + 2rkv + dr) + 4a(dn+dr+dv)``;
    - dense: ``2h + x·h + (4+x)f`` gated, ``2h + x·h + (2+x)f`` otherwise;
      MoE: ``4h + K(x·h·etp + (4+x)fe)·imbalance + (4+x)fs``, and ``K(2h·etp + 2fe)·imbalance`` more
      where the experts run as separate kernels: their weighted sum needs every expert's output,
      the product of the gate its activation.

    ``selective`` drops what the core attention and the norms can recompute: the softmax statistics
    ``4a`` and both norms' outputs. With fused attention the scores are never kept, so little is
    saved. Where the stack checkpoints by operator it keeps the layer's input, the attention's
    output and statistics, and the output of every second product instead. ``full`` keeps the
    layer's input, ``2h``.

    Without fused attention a dense GQA layer follows Korthikanti: ``10h + 24h + 5as``, of which
    ``10h`` is along the residual stream, without ``5as`` with ``selective``.

    Source: reference cost model 2.2 and 2.3; Korthikanti 2022 (arXiv 2205.05198) table 2;
    Transformer Engine (8-bit inputs); torchtitan ``apply_ac`` (every second ``aten.mm``);
    mlc-ai/pith-train ``tools/memory_estimator`` (separate kernels).
    """
    return layer_width(model, kind, degrees, training, recompute, stack).bytes(
        degrees, training, stack
    )


def layer_width(
    model: ModelShape,
    kind: LayerKind,
    degrees: Degrees,
    training: Training,
    recompute: Recompute,
    stack: Stack,
) -> Width:
    """Width of :func:`layer_activation_bytes`."""
    h = model.hidden_size
    if recompute == "full":
        return Width(residual=2 * h)
    fused = stack.attention_kernel != "unfused"
    if recompute == "selective" and stack.selective_recompute == "operators":
        kept = _operator_width(model, kind, degrees)
        full = layer_width(model, kind, degrees, training, "none", stack)
        fewer = kept.bytes(degrees, training, stack) < full.bytes(degrees, training, stack)
        return kept if fewer else full
    scores = Width(inner=0 if fused or recompute == "selective" else score_width(model, training))
    if not fused and kind == "dense" and model.attention == "gqa":
        return Width(10 * h, 24 * h).plus(scores)
    kept_input = _input_bytes(training, stack)
    width = _attention_width(model, degrees, kept_input)
    width = width.plus(_feed_forward_width(model, kind, degrees, training, stack))
    if recompute == "selective":
        statistics = 0 if model.attention == "mla" else 4 * model.num_heads
        norms = 2 if model.attention == "mla" else kept_input
        norms += kept_input if kind == "dense" else 2
        return width.plus(Width(-norms * h, -statistics))
    return width.plus(scores)


def score_width(model: ModelShape, training: Training) -> float:
    """Scores, their softmax and its dropout without fused attention: ``5·a·s`` bytes per token.

    Source: Korthikanti 2022, 4.1.
    """
    return 5.0 * model.num_heads * training.sequence_length


def layer_held_bytes(
    model: ModelShape, kind: LayerKind, degrees: Degrees, training: Training, stack: Stack
) -> int:
    """Bytes that one layer keeps of one microbatch between its split backward ops.

    The weight gradient needs the input and the output gradient of every linear layer: per token
    ``4h + 4ad + 4kd`` (MLA ``4h + 2(2rq + 2rkv + dr) + 2a(2dn + dr + 2dv)``), dense ``4h + 6f``
    (``4h + 4f`` if not gated), MoE ``2h + K(4h·etp + 6fe)·imbalance + 2h + 6fs``. For MoE it may
    exceed what the forward keeps, as the gradients of every token copy are stored.

    Source: Zero Bubble (arXiv 2401.10241) section 4 for GPT (32 of 34 ``h``), same count here for
    modern layers.
    """
    h, heads = model.hidden_size, model.num_heads
    if model.attention == "mla":
        nope, rope, value = model.qk_nope_head_dim, model.qk_rope_head_dim, model.v_head_dim
        width = Width(4 * h + _compressed_width(model), 2 * heads * (2 * nope + rope + 2 * value))
    else:
        width = Width(4 * h, 4 * model.head_dim * (heads + _kv_heads(model, degrees)))
    inner = 6 if model.gated else 4
    if kind == "dense":
        block = Width(4 * h, inner * model.ffn_hidden_size)
    else:
        routed = routed_width(model, degrees, training, 4, inner)
        block = Width(4 * h + routed, inner * model.shared_expert_ffn_hidden_size)
    return width.plus(block).bytes(degrees, training, stack)


def routed_width(
    model: ModelShape, degrees: Degrees, training: Training, outer: float, inner: float
) -> float:
    """Bytes per token of its copies at the experts: ``K(outer·h·etp + inner·fe)·imbalance``."""
    copy = outer * model.hidden_size * degrees.etp + inner * model.expert_ffn_hidden_size
    return model.experts_per_token * copy * training.routing_imbalance


def head_activation_bytes(
    model: ModelShape,
    degrees: Degrees,
    training: Training,
    recompute: Recompute,
    stack: Stack,
) -> int:
    """Bytes that the head keeps of one microbatch besides its logits.

    Input and output of the final norm, ``4h`` per token; a multi-token prediction module adds
    its layer, its norms and the input of its projection, ``8h``, and a final norm.
    """
    h, count = model.hidden_size, model.num_mtp_layers
    total = Width(4 * h * (1 + 3 * count)).bytes(degrees, training, stack)
    if count:
        layer = layer_activation_bytes(model, mtp_kind(model), degrees, training, recompute, stack)
        total += count * layer
    return total


def _input_bytes(training: Training, stack: Stack) -> int:
    """Bytes per number of an input that a linear layer keeps for its weight gradient."""
    return 1 if stack.eight_bit_inputs and training.precision not in HALF_PRECISIONS else 2


def _kv_heads(model: ModelShape, degrees: Degrees) -> int:
    """Key and value heads with their copies where TP exceeds them."""
    return max(model.num_kv_heads, degrees.tp)


def _compressed_width(model: ModelShape) -> int:
    rank_q = model.q_lora_rank or 0
    return 2 * (2 * rank_q + 2 * model.kv_lora_rank + model.qk_rope_head_dim)


def _attention_width(model: ModelShape, degrees: Degrees, kept_input: int) -> Width:
    h, heads = model.hidden_size, model.num_heads
    if model.attention == "mla":
        query = model.qk_nope_head_dim + model.qk_rope_head_dim
        return Width(4 * h + _compressed_width(model), 4 * heads * (query + model.v_head_dim))
    inner = 4 * model.head_dim * (heads + _kv_heads(model, degrees)) + 4 * heads
    if kept_input == 1:
        inner += heads * model.head_dim
    return Width((2 + kept_input) * h, inner)


def _feed_forward_width(
    model: ModelShape, kind: LayerKind, degrees: Degrees, training: Training, stack: Stack
) -> Width:
    h, kept_input = model.hidden_size, _input_bytes(training, stack)
    inner = (4 if model.gated else 2) + kept_input
    if kind == "dense":
        return Width((2 + kept_input) * h, inner * model.ffn_hidden_size)
    more = 0 if stack.expert_kernels == "fused" else 2
    routed = routed_width(model, degrees, training, kept_input + more, inner + more)
    return Width(4 * h + routed, inner * model.shared_expert_ffn_hidden_size)


def _operator_width(model: ModelShape, kind: LayerKind, degrees: Degrees) -> Width:
    """What checkpointing by operator keeps: see :func:`layer_activation_bytes`.

    The first, third, ... product of a layer in the order in which it runs. With TP the output of a
    row-parallel product is a partial sum over all tokens. Products of routed experts are grouped
    kernels, which it does not keep.
    """
    h, heads = model.hidden_size, model.num_heads
    if model.attention == "mla":
        query = model.qk_nope_head_dim + model.qk_rope_head_dim
        products = [Width(model.q_lora_rank)] if model.q_lora_rank else []
        products += [
            Width(inner=heads * query),
            Width(model.kv_lora_rank + model.qk_rope_head_dim),
            Width(inner=heads * (model.qk_nope_head_dim + model.v_head_dim)),
        ]
        output = Width(inner=2 * heads * model.v_head_dim + 4 * heads)
    else:
        keys = Width(inner=_kv_heads(model, degrees) * model.head_dim)
        products = [Width(inner=heads * model.head_dim), keys, keys]
        output = Width(inner=2 * heads * model.head_dim + 4 * heads)
    products.append(Width(whole=h))
    if kind == "moe":
        products.append(Width(model.num_experts))
    block = model.ffn_hidden_size if kind == "dense" else model.shared_expert_ffn_hidden_size
    if block:
        products += [Width(inner=block)] * (ffn_matrices(model) - 1) + [Width(whole=h)]
    width = Width(residual=2 * h).plus(output)
    for product in products[::2]:
        width = width.plus(product.times(2))
    return width
