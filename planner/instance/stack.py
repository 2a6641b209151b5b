"""The training software: what of the communication it exposes, and its fixed costs."""

from __future__ import annotations

from typing import Annotated, Literal

from planner.instance._base import Flag, Frozen, Name, number
from planner.instance.units import Seconds


class StackSpec(Frozen):
    """One training software.

    Six numbers at most, shared by all models, GPUs and precisions, and some facts of its design.
    """

    name: Name = "custom"
    tp_exposed: Annotated[float, number(0, 1)]
    """Share of the tensor-parallel communication that no computation hides."""
    ep_exposed: Annotated[float, number(0, 1)]
    """The same for expert-parallel communication."""
    fsdp_exposed: Annotated[float, number(0, 1)]
    """The same for gathering sharded weights and scattering their gradients."""
    routing_factor: Annotated[float, number(0, 100)] = 1.0
    """Memory traffic of moving tokens to experts and back over that of fused kernels."""
    host_floor_s: Seconds = 0.0
    """Seconds in which the host can launch the forward of one layer."""
    fixed_s: Seconds = 0.0
    """Seconds per iteration for the data loader, gradient norm and logging."""
    attention_kernel: Literal["fused", "triton", "unfused"] = "fused"
    """``unfused`` writes the scores to memory (before 2022), ``triton`` is the fused kernel of
    2022 and 2023, ``fused`` FlashAttention-2 and later."""
    selective_recompute: Literal["attention", "operators"] = "attention"
    """What ``selective`` runs again: the core attention and the norms (Megatron), or all but the
    core attention and every second matrix product (torchtitan)."""
    loss_kernel: Literal["fused", "compiled", "eager"] = "fused"
    """``fused`` turns the logits into their gradient in one kernel (Megatron), ``compiled`` keeps
    no single-precision copy of them, ``eager`` keeps three."""
    expert_kernels: Literal["fused", "separate"] = "fused"
    """``separate`` keeps the activation of every gate and the output of every routed expert."""
    optimizer_kernel: Literal["fused", "foreach"] = "fused"
    """``foreach`` runs the update operation by operation over all tensors, with temporaries."""
    shards_master_weights: Flag = False
    """True where fully sharded weights are in single precision and gathered in half (FSDP2)."""
    eight_bit_inputs: Flag = False
    """True where linear layers in 8-bit precision keep their inputs in 8 bits (Transformer
    Engine)."""
    sequence_parallel: Flag = True
    """False where norms and residuals are repeated on every tensor-parallel rank."""
    replicates_kv_heads: Flag = True
    """False where TP must divide the key and value heads."""
    flat_rings: Flag = False
    """True where a collective over several scale-up domains is one ring with one NIC per domain."""
    fitted: tuple[str, ...] = ()
    """Constants that measured runs identify; the others are defaults."""
    source: str = ""
