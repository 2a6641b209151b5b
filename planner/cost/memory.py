"""Working sets per GPU: what exists for a moment besides state and kept activations.

State is in :mod:`planner.cost.state`, activations in :mod:`planner.cost.activations`.
"""

from __future__ import annotations

from math import ceil

from planner.cost.activations import Width, layer_activation_bytes, routed_width, score_width
from planner.cost.model_size import layer_parameters_per_gpu
from planner.cost.state import WEIGHT_BYTES, dense_shard
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

CONSTANT_BYTES = 200_000_000
"""Bytes that every GPU allocates besides (reference cost model 2.4)."""

GATHERED_LAYERS = 2
"""Layers whose gathered parameters ``zero3`` holds at once: the current and the prefetched one."""

RING_BUFFERS = 2
"""Blocks of keys and values in flight around the ring of context parallelism."""


def logit_bytes(degrees: Degrees, stack: Stack) -> int:
    """Bytes per logit at the peak of the loss.

    - ``fused``: half-precision logits, a single-precision softmax that becomes the gradient; 6.
    - ``compiled``: half-precision logits and gradient, all between them in registers; 4.
    - ``eager``: the logarithm of the softmax, the gradient of its choice and the gradient of the
      logits, each in single precision; 12. With TP the exponential of the first is a further
      tensor; 16.

    Source: reference cost model 2.4 (6 and 10 to 12); torchtitan ``cross_entropy_loss``; PyTorch
    ``torch/distributed/tensor/parallel/loss.py``, ``_nll_loss_and_log_softmax_backward``.
    """
    if stack.loss_kernel == "fused":
        return 6
    if stack.loss_kernel == "compiled":
        return 4
    return 16 if degrees.tp > 1 else 12


def logits_bytes(model: ModelShape, degrees: Degrees, training: Training, stack: Stack) -> int:
    """Working set of the loss: :func:`logit_bytes` for the head and each prediction module."""
    count = model.vocab_size * (1 + model.num_mtp_layers)
    return Width(inner=logit_bytes(degrees, stack) * count).bytes(degrees, training, stack)


def transient_bytes(
    model: ModelShape,
    kind: LayerKind,
    degrees: Degrees,
    training: Training,
    recompute: Recompute,
    stack: Stack,
) -> int:
    """Working set of the backward of one layer.

    Gradients of one block: feed-forward ``6f`` per token (``4f`` if not gated), MoE
    ``K(6fe + 4h·etp)·imbalance + 6fs``; or, if larger, of attention that is not fused: gradients
    of scores and softmax ``4as``, and with ``selective`` what it recomputes, ``5as``. What the
    backward of a whole layer recomputes (``full``, or ``selective`` by operator) comes on top, and
    with TP and sequence parallelism the gathered input of the block, ``2h`` on every rank.

    Source: reference cost model 2.4; Korthikanti 2022, 4.1, 4.2.2 (gathered inputs are gathered
    again in the backward) and 5.
    """
    inner = 6 if model.gated else 4
    if kind == "dense":
        block = Width(inner=inner * model.ffn_hidden_size)
    else:
        routed = routed_width(model, degrees, training, 4, inner)
        block = Width(routed, inner * model.shared_expert_ffn_hidden_size)
    total = block.bytes(degrees, training, stack)
    if stack.attention_kernel == "unfused":
        scores = score_width(model, training)
        again = scores if recompute == "selective" else 0.0
        attention = Width(inner=0.8 * scores + again)
        total = max(total, attention.bytes(degrees, training, stack))
    if recompute == "full" or stack.selective_recompute == "operators":
        whole = layer_activation_bytes(model, kind, degrees, training, "none", stack)
        kept = layer_activation_bytes(model, kind, degrees, training, recompute, stack)
        total += whole if recompute == "full" else whole - kept
    if degrees.tp > 1 and stack.sequence_parallel:
        total += Width(whole=2 * model.hidden_size).bytes(degrees, training, stack)
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


def communication_bytes(
    model: ModelShape, degrees: ShardedDegrees, training: Training, stack: Stack
) -> int:
    """Buffers of communication between stages and around the ring of context parallelism.

    - CP: keys and values of :data:`RING_BUFFERS` other ranks.
    - PP: a received activation and a received gradient, ``2h`` each.

    Source: ring attention (arXiv 2310.01889); Megatron-Core
    ``pipeline_parallel/p2p_communication.py``.
    """
    h, heads = model.hidden_size, model.num_heads
    width = Width()
    if degrees.cp > 1:
        if model.attention == "mla":
            block = heads * (model.qk_nope_head_dim + model.qk_rope_head_dim + model.v_head_dim)
        else:
            block = 2 * max(model.num_kv_heads, degrees.tp) * model.head_dim
        width = width.plus(Width(inner=2 * RING_BUFFERS * block))
    if degrees.pp > 1:
        width = width.plus(Width(residual=4 * h))
    return width.bytes(degrees, training, stack)


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
        + communication_bytes(model, degrees, training, stack)
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
    logits = logits_bytes(model, degrees, training, stack)
    transient = transient_bytes(model, kind, degrees, training, recompute, stack)
    base = working_bytes(model, kind, degrees, training, sharding, recompute, stack)
    return base + max(0, logits - transient)
