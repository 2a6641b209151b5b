"""Bytes per GPU: state, activations and working sets.

Sequence parallelism is on, attention is fused unless the stack says otherwise, and the optimizer is
Adam with half-precision weights and single-precision master copy and moments.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from planner.cost.model_size import (
    LayerParameters,
    duplicated_embedding,
    end_parameters_per_gpu,
    layer_parameters_per_gpu,
    mtp_kind,
)
from planner.cost.types import (
    Degrees,
    LayerKind,
    ModelShape,
    Recompute,
    ShardedDegrees,
    Sharding,
    Stack,
    Training,
)

WEIGHT_BYTES = 2
"""Bytes of one working copy of a weight."""

OPTIMIZER_BYTES = 12
"""Bytes of master copy and two moments per parameter."""

LOGIT_BYTES = 6
"""Bytes per logit with fused cross entropy: half-precision logits, single-precision softmax
(reference cost model 2.4)."""

CONSTANT_BYTES = 200_000_000
"""Bytes that every GPU allocates besides (reference cost model 2.4)."""

GATHERED_LAYERS = 2
"""Layers whose gathered parameters ``zero3`` holds at once: the current and the prefetched one."""


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes of state on one GPU."""

    weights: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        """Sum over all parts."""
        return self.weights + self.gradients + self.optimizer

    def __add__(self, other: StateBytes) -> StateBytes:
        """Sum of two sets of parameters."""
        return StateBytes(
            self.weights + other.weights,
            self.gradients + other.gradients,
            self.optimizer + other.optimizer,
        )

    def scaled(self, factor: float) -> StateBytes:
        """State of ``factor`` times as many parameters."""
        return StateBytes(self.weights * factor, self.gradients * factor, self.optimizer * factor)


def dense_shard(degrees: ShardedDegrees) -> int:
    """Ranks that share the state of dense parameters: ``dp_shard·cp``.

    Source: reference cost model 2.1 (context-parallel ranks hold the same weights).
    """
    return degrees.dp_shard * degrees.cp


def expert_shard(degrees: ShardedDegrees) -> int:
    """Ranks that share the state of routed experts: ``dp_shard·cp·tp/(ep·etp)``, at least 1.

    Source: Megatron-Core expert data parallelism (reference cost model 2.1).
    """
    return max(1, dense_shard(degrees) * degrees.tp // (degrees.ep * degrees.etp))


def state_bytes_per_parameter(sharding: Sharding, shard: int, gradient_bytes: int) -> StateBytes:
    """Bytes per parameter on one GPU when ``shard`` ranks share the state.

    ``ddp`` keeps everything, ``zero1`` divides the optimizer, ``zero2`` the gradients too,
    ``zero3`` the weights too.

    Raises
    ------
    ValueError
        If the sharding is unknown.

    Source: ZeRO (arXiv 1910.02054); Megatron-LM ``theoretical_memory_usage.py``.
    """
    if sharding not in ("ddp", "zero1", "zero2", "zero3"):
        raise ValueError(f"unknown sharding {sharding!r}")
    return StateBytes(
        WEIGHT_BYTES / (shard if sharding == "zero3" else 1),
        gradient_bytes / (shard if sharding in ("zero2", "zero3") else 1),
        OPTIMIZER_BYTES / (1 if sharding == "ddp" else shard),
    )


def optimizer_parameters(
    parameters: LayerParameters, degrees: ShardedDegrees, sharding: Sharding
) -> float:
    """Parameters that the optimizer step of one GPU updates."""
    if sharding == "ddp":
        return float(parameters.total)
    return parameters.dense / dense_shard(degrees) + parameters.experts / expert_shard(degrees)


def state_bytes(
    parameters: LayerParameters,
    degrees: ShardedDegrees,
    training: Training,
    sharding: Sharding,
) -> StateBytes:
    """Bytes of state of parameters that are counted per GPU.

    Parameters
    ----------
    parameters
        From :func:`planner.cost.model_size.layer_parameters_per_gpu`.
    """
    gradient = training.gradient_bytes
    dense = state_bytes_per_parameter(sharding, dense_shard(degrees), gradient)
    experts = state_bytes_per_parameter(sharding, expert_shard(degrees), gradient)
    return dense.scaled(parameters.dense) + experts.scaled(parameters.experts)


def layer_state_bytes(
    model: ModelShape,
    kind: LayerKind,
    degrees: ShardedDegrees,
    training: Training,
    sharding: Sharding,
) -> StateBytes:
    """Bytes of state of one layer on one GPU."""
    parameters = layer_parameters_per_gpu(model, kind, degrees)
    return state_bytes(parameters, degrees, training, sharding)


def embedding_parameters(model: ModelShape, degrees: Degrees) -> LayerParameters:
    """Parameters per GPU that the first stage holds besides its layers."""
    return LayerParameters(end_parameters_per_gpu(model, degrees).embedding, 0, 0, 0, 0)


def head_parameters(model: ModelShape, degrees: ShardedDegrees) -> LayerParameters:
    """Parameters per GPU that the last stage holds besides its layers.

    Head, final norm, multi-token prediction, and with several stages the copy of the embedding
    that tied heads and multi-token prediction need.
    """
    ends = end_parameters_per_gpu(model, degrees)
    copy = duplicated_embedding(model, degrees, degrees.pp)
    return LayerParameters(
        ends.mtp.attention + ends.head + copy,
        ends.mtp.replicated + ends.final_norm,
        ends.mtp.dense_ffn,
        ends.mtp.shared_expert,
        ends.mtp.experts,
    )


def layer_activation_bytes(
    model: ModelShape,
    kind: LayerKind,
    degrees: Degrees,
    training: Training,
    recompute: Recompute,
    stack: Stack,
) -> int:
    """Bytes that one layer keeps of one microbatch from its forward to its backward.

    ``none`` keeps per token, before the division by ``t·c``:

    - GQA: ``4h + 2(2ad + 2kd) + 4a``; MLA: ``4h + 2(2rq + 2rkv + dr) + 2(2a(dn+dr) + 2a·dv)``;
    - dense: ``4h + 6f`` gated, ``4h + 4f`` otherwise;
      MoE: ``4h + K(2h·x + 6fe)·imbalance + 6fs``.

    ``selective`` drops what the core attention and the norms can recompute: the softmax statistics
    ``4a`` and both norms' outputs ``2·2h``.  With fused attention the scores are never kept, so
    little is saved.  ``full`` keeps the layer's input, ``2h``.

    Without fused attention a layer follows Korthikanti: ``h(34 + 5as/h)``, ``34h`` with
    ``selective``; experts count as above.

    Source: reference cost model 2.2 and 2.3; Korthikanti 2022 (arXiv 2205.05198) table 2.
    """
    h = model.hidden_size
    if recompute == "full":
        return _bytes(2 * h, degrees, training)
    fused = stack.attention_kernel != "unfused"
    if not fused and kind == "dense" and model.attention == "gqa":
        scores = 0 if recompute == "selective" else 5 * model.num_heads * training.sequence_length
        return _bytes(34 * h + scores, degrees, training)
    width = _attention_width(model, degrees) + _feed_forward_width(model, kind, degrees, training)
    if recompute == "none" and not fused:
        width += 5 * model.num_heads * training.sequence_length
    if recompute == "selective":
        statistics = 0 if model.attention == "mla" else 4 * model.num_heads
        width -= statistics + 4 * h
    return _bytes(width, degrees, training)


def layer_held_bytes(
    model: ModelShape, kind: LayerKind, degrees: Degrees, training: Training
) -> int:
    """Bytes that one layer keeps of one microbatch between its split backward ops.

    The weight gradient needs the input and the output gradient of every linear layer: per token
    ``4h + 4ad + 4kd`` (MLA ``4h + 2(2rq + 2rkv + dr) + 2a(2dn + dr + 2dv)``), dense ``4h + 6f``
    (``4h + 4f`` if not gated), MoE ``2h + K(4h·x + 6fe)·imbalance + 2h + 6fs``.  For MoE it may
    exceed what the forward keeps, as the gradients of every token copy are stored.

    Source: Zero Bubble (arXiv 2401.10241) section 4 for GPT (32 of 34 ``h``), same count here for
    modern layers.
    """
    h, heads = model.hidden_size, model.num_heads
    if model.attention == "mla":
        nope, rope, value = model.qk_nope_head_dim, model.qk_rope_head_dim, model.v_head_dim
        width = 4 * h + _compressed_width(model) + 2 * heads * (2 * nope + rope + 2 * value)
    else:
        width = 4 * h + 4 * model.head_dim * (heads + _kv_heads(model, degrees))
    inner = 6 if model.gated else 4
    if kind == "dense":
        width += 4 * h + inner * model.ffn_hidden_size
        return _bytes(width, degrees, training)
    copy = 4 * h * degrees.etp + inner * model.expert_ffn_hidden_size
    routed = model.experts_per_token * copy * training.routing_imbalance
    shared = inner * model.shared_expert_ffn_hidden_size
    return _bytes(width + 4 * h + routed + shared, degrees, training)


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
    total = _bytes(4 * h * (1 + 3 * count), degrees, training)
    if count:
        layer = layer_activation_bytes(model, mtp_kind(model), degrees, training, recompute, stack)
        total += count * layer
    return total


def logits_bytes(model: ModelShape, degrees: Degrees, training: Training) -> int:
    """Working set of the loss: ``6·s·b·V/(t·c)`` for the head and each prediction module.

    Source: reference cost model 2.4.
    """
    return _bytes(LOGIT_BYTES * model.vocab_size * (1 + model.num_mtp_layers), degrees, training)


def transient_bytes(
    model: ModelShape,
    kind: LayerKind,
    degrees: Degrees,
    training: Training,
    recompute: Recompute,
    stack: Stack,
) -> int:
    """Working set of the backward of one layer.

    Gradients of one feed-forward block: ``6f`` per token, MoE ``K(6fe + 4h·x)·imbalance + 6fs``.
    With ``full`` recompute the layer's activations come on top.

    Source: reference cost model 2.4.
    """
    inner = 6 if model.gated else 4
    if kind == "dense":
        width: float = inner * model.ffn_hidden_size
    else:
        copy = inner * model.expert_ffn_hidden_size + 4 * model.hidden_size * degrees.etp
        width = model.experts_per_token * copy * training.routing_imbalance
        width += inner * model.shared_expert_ffn_hidden_size
    total = _bytes(width, degrees, training)
    if recompute == "full":
        total += layer_activation_bytes(model, kind, degrees, training, "none", stack)
    return total


def sharding_working_bytes(
    model: ModelShape,
    kind: LayerKind,
    degrees: ShardedDegrees,
    training: Training,
    sharding: Sharding,
) -> int:
    """Working set of sharded state around one layer.

    ``zero3`` holds the gathered weights of two layers and the unreduced gradients of one, ``zero2``
    the unreduced gradients of one; nothing where the shard group has one rank.

    Source: reference cost model 2.1.
    """
    if sharding not in ("zero2", "zero3") or dense_shard(degrees) == 1:
        return 0
    parameters = layer_parameters_per_gpu(model, kind, degrees).total
    gathered = GATHERED_LAYERS * WEIGHT_BYTES if sharding == "zero3" else 0
    return parameters * (gathered + training.gradient_bytes)


def dummy_gradient_bytes(model: ModelShape, kind: LayerKind, degrees: Degrees) -> int:
    """Placeholder weight gradients: half precision, one layer, of the experts one only.

    Source: Transformer Engine fused gradient accumulation (reference cost model 2.4).
    """
    parameters = layer_parameters_per_gpu(model, kind, degrees)
    local = max(1, ceil(model.num_experts / degrees.ep))
    return WEIGHT_BYTES * (parameters.dense + parameters.experts // local)


def working_bytes(
    model: ModelShape,
    kind: LayerKind,
    degrees: ShardedDegrees,
    training: Training,
    sharding: Sharding,
    recompute: Recompute,
    stack: Stack,
) -> int:
    """Working set of a stage with layers of one kind, constants included, without the head."""
    return (
        transient_bytes(model, kind, degrees, training, recompute, stack)
        + sharding_working_bytes(model, kind, degrees, training, sharding)
        + dummy_gradient_bytes(model, kind, degrees)
        + CONSTANT_BYTES
    )


def head_working_bytes(
    model: ModelShape,
    kind: LayerKind,
    degrees: ShardedDegrees,
    training: Training,
    sharding: Sharding,
    recompute: Recompute,
    stack: Stack,
) -> int:
    """Working set of the stage with the head: the larger of logits and transients, and the rest.

    Source: reference cost model 2.4.
    """
    logits = logits_bytes(model, degrees, training)
    transient = transient_bytes(model, kind, degrees, training, recompute, stack)
    base = working_bytes(model, kind, degrees, training, sharding, recompute, stack)
    return base + max(0, logits - transient)


def _bytes(width: float, degrees: Degrees, training: Training) -> int:
    """Bytes per GPU of so many bytes per token, rounded up."""
    tokens = degrees.micro_batch_size * training.sequence_length
    return ceil(tokens * width / (degrees.tp * degrees.cp))


def _kv_heads(model: ModelShape, degrees: Degrees) -> int:
    """Key and value heads with their copies where TP exceeds them."""
    return max(model.num_kv_heads, degrees.tp)


def _compressed_width(model: ModelShape) -> int:
    rank_q = model.q_lora_rank or 0
    return 2 * (2 * rank_q + 2 * model.kv_lora_rank + model.qk_rope_head_dim)


def _attention_width(model: ModelShape, degrees: Degrees) -> int:
    h, heads = model.hidden_size, model.num_heads
    if model.attention == "mla":
        query = model.qk_nope_head_dim + model.qk_rope_head_dim
        return 4 * h + _compressed_width(model) + 4 * heads * (query + model.v_head_dim)
    return 4 * h + 4 * model.head_dim * (heads + _kv_heads(model, degrees)) + 4 * heads


def _feed_forward_width(
    model: ModelShape, kind: LayerKind, degrees: Degrees, training: Training
) -> float:
    h, inner = model.hidden_size, 6 if model.gated else 4
    if kind == "dense":
        return 4 * h + inner * model.ffn_hidden_size
    copy = 2 * h * degrees.etp + inner * model.expert_ffn_hidden_size
    routed = model.experts_per_token * copy * training.routing_imbalance
    return 4 * h + routed + inner * model.shared_expert_ffn_hidden_size
