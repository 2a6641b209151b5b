"""Bytes of state per GPU: weights, gradients, optimizer.

The optimizer is Adam. Half-precision weights come with a single-precision master copy and two
moments unless the job says otherwise (``training.optimizer_bytes``).
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.cost.model_size import (
    LayerParameters,
    duplicated_embedding,
    end_parameters_per_gpu,
    layer_parameters_per_gpu,
)
from planner.cost.types import (
    Degrees,
    LayerKind,
    ModelShape,
    ShardedDegrees,
    Sharding,
    Stack,
    Training,
)

WEIGHT_BYTES = 2
"""Bytes of one working copy of a weight."""

SINGLE_BYTES = 4
"""Bytes of one number in single precision."""


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


def state_bytes_per_parameter(
    sharding: Sharding, shard: int, training: Training, stack: Stack
) -> StateBytes:
    """Bytes per parameter on one GPU when ``shard`` ranks share the state.

    ``ddp`` keeps everything, ``zero1`` divides the optimizer, ``zero2`` the gradients too,
    ``zero3`` the weights too. Where the sharded weights are the master copy, ``zero3`` keeps no
    other shard of them, and its gradients are in single precision as they are.

    Raises
    ------
    ValueError
        If the sharding is unknown.

    Source: ZeRO (arXiv 1910.02054); Megatron-LM ``theoretical_memory_usage.py``; PyTorch FSDP2
    (``fully_shard``: original parameters stay in their own precision, ``param_dtype`` is that of
    the gathered ones).
    """
    if sharding not in ("ddp", "zero1", "zero2", "zero3"):
        raise ValueError(f"unknown sharding {sharding!r}")
    weights, gradients = float(WEIGHT_BYTES), float(training.gradient_bytes)
    if sharding == "zero3" and stack.shards_master_weights:
        weights, gradients = 0.0, float(SINGLE_BYTES)
    return StateBytes(
        weights / (shard if sharding == "zero3" else 1),
        gradients / (shard if sharding in ("zero2", "zero3") else 1),
        training.optimizer_bytes / (1 if sharding == "ddp" else shard),
    )


def optimizer_parameters(
    parameters: LayerParameters, degrees: ShardedDegrees, sharding: Sharding
) -> float:
    """Parameters that the optimizer step of one GPU updates."""
    if sharding == "ddp":
        return float(parameters.total)
    return parameters.dense / dense_shard(degrees) + parameters.experts / expert_shard(degrees)


def optimizer_step_bytes(
    parameters: LayerParameters,
    degrees: ShardedDegrees,
    training: Training,
    sharding: Sharding,
    stack: Stack,
) -> float:
    """What the optimizer step allocates besides the state.

    Nothing where one kernel updates a parameter in place. An optimizer that runs operation by
    operation over all tensors (``foreach``) keeps the square roots of all second moments, as wide
    as the moments: single precision, or half precision where the whole optimizer takes 4 bytes.

    Source: PyTorch ``torch/optim/adam.py``, ``_multi_tensor_adam`` (``_foreach_sqrt``).
    """
    if stack.optimizer_kernel == "fused":
        return 0.0
    width = min(SINGLE_BYTES, training.optimizer_bytes // 2)
    return width * optimizer_parameters(parameters, degrees, sharding)


def state_bytes(
    parameters: LayerParameters,
    degrees: ShardedDegrees,
    training: Training,
    sharding: Sharding,
    stack: Stack,
) -> StateBytes:
    """Bytes of state of parameters that are counted per GPU.

    Parameters
    ----------
    parameters
        From :func:`planner.cost.model_size.layer_parameters_per_gpu`.
    """
    dense = state_bytes_per_parameter(sharding, dense_shard(degrees), training, stack)
    experts = state_bytes_per_parameter(sharding, expert_shard(degrees), training, stack)
    return dense.scaled(parameters.dense) + experts.scaled(parameters.experts)


def layer_state_bytes(
    model: ModelShape,
    kind: LayerKind,
    degrees: ShardedDegrees,
    training: Training,
    sharding: Sharding,
    stack: Stack,
) -> StateBytes:
    """Bytes of state of one layer on one GPU."""
    parameters = layer_parameters_per_gpu(model, kind, degrees)
    return state_bytes(parameters, degrees, training, sharding, stack)


def end_state_bytes(
    parameters: LayerParameters,
    degrees: ShardedDegrees,
    training: Training,
    sharding: Sharding,
    stack: Stack,
) -> StateBytes:
    """Bytes of state of the embedding or the head on one GPU.

    With ``zero3`` their weights stay gathered: the head works when the most activations are alive,
    and FSDP keeps the parameters of the outermost module gathered until the backward.

    Source: PyTorch FSDP2 (the root's parameters are not resharded after the forward).
    """
    state = state_bytes(parameters, degrees, training, sharding, stack)
    if sharding != "zero3" or dense_shard(degrees) == 1:
        return state
    return state + StateBytes(float(WEIGHT_BYTES * parameters.total), 0.0, 0.0)


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
