"""Floating-point operations of a forward pass per token, and of a training step.

A multiply-add counts as two.  ``model FLOPs`` are three forward passes without recompute; what one
forward pass of the attention counts depends on the convention, which goes by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from planner.cost.model_size import ffn_matrices, mtp_kind
from planner.cost.types import LayerKind, ModelShape

AttentionConvention = Literal["causal", "full"]
"""``causal`` counts the lower half of the scores (Megatron-Core, Megatron-Bridge), ``full`` all of
them (Korthikanti 2022, Narayanan 2021, NeMo 24.07, llm-foundry)."""


@dataclass(frozen=True, slots=True)
class LayerFlops:
    """Forward FLOPs of one layer per token."""

    projections: float
    core_attention: float
    dense_ffn: float
    shared_expert: float
    experts: float
    router: float

    @property
    def total(self) -> float:
        """Sum over all parts."""
        return (
            self.projections
            + self.core_attention
            + self.dense_ffn
            + self.shared_expert
            + self.experts
            + self.router
        )


def attended_tokens(model: ModelShape, sequence_length: int, causal: bool) -> float:
    """Tokens that one token attends to on average: ``s·κ``, at most the sliding window.

    Source: reference cost model 1.3 (κ = 1/2 if causal).
    """
    tokens = sequence_length / 2 if causal else float(sequence_length)
    return tokens if model.sliding_window is None else min(float(model.sliding_window), tokens)


def projection_flops(model: ModelShape) -> int:
    """FLOPs per token of the projections of one attention block: twice their weights.

    Source: reference cost model 1.2 and 1.3.
    """
    h, heads = model.hidden_size, model.num_heads
    if model.attention == "gqa":
        return 4 * h * model.head_dim * (heads + model.num_kv_heads)
    query = model.qk_nope_head_dim + model.qk_rope_head_dim
    rank_q, rank_kv = model.q_lora_rank, model.kv_lora_rank
    weights = h * heads * query if rank_q is None else rank_q * (h + heads * query)
    weights += h * (rank_kv + model.qk_rope_head_dim)
    weights += rank_kv * heads * (model.qk_nope_head_dim + model.v_head_dim)
    weights += heads * model.v_head_dim * h
    return 2 * weights


def core_attention_flops(model: ModelShape, sequence_length: int, causal: bool) -> float:
    """FLOPs per token of scores and weighted values.

    ``4·s·κ·a·d`` for GQA, ``2·s·κ·a·(dn+dr+dv)`` for MLA.

    Source: Megatron-Core ``num_floating_point_operations`` (reference cost model 1.3).
    """
    if model.attention == "gqa":
        widths = 2 * model.head_dim
    else:
        widths = model.qk_nope_head_dim + model.qk_rope_head_dim + model.v_head_dim
    return 2 * model.num_heads * widths * attended_tokens(model, sequence_length, causal)


def layer_flops(
    model: ModelShape, kind: LayerKind, sequence_length: int, causal: bool
) -> LayerFlops:
    """Forward FLOPs of one layer per token, by component.

    Source: reference cost model 1.3, checked there against 190 published runs.
    """
    g, h = ffn_matrices(model), model.hidden_size
    moe = kind == "moe"
    routed = model.experts_per_token * model.expert_ffn_hidden_size
    return LayerFlops(
        projections=projection_flops(model),
        core_attention=core_attention_flops(model, sequence_length, causal),
        dense_ffn=0 if moe else 2 * g * h * model.ffn_hidden_size,
        shared_expert=2 * g * h * model.shared_expert_ffn_hidden_size if moe else 0,
        experts=2 * g * h * routed if moe else 0,
        router=2 * h * model.num_experts if moe else 0,
    )


def head_flops(model: ModelShape) -> int:
    """Forward FLOPs per token of the output projection: ``2·h·V``."""
    return 2 * model.hidden_size * model.vocab_size


def mtp_flops(model: ModelShape, sequence_length: int, causal: bool) -> float:
    """Forward FLOPs per token of all multi-token prediction modules.

    Each is one layer, a projection of ``2h`` to ``h`` and one more output projection.

    Source: DeepSeek-V3 (arXiv 2412.19437) section 2.2; Megatron-Core counts it likewise.
    """
    if not model.num_mtp_layers:
        return 0.0
    layer = layer_flops(model, mtp_kind(model), sequence_length, causal).total
    return model.num_mtp_layers * (layer + 4 * model.hidden_size**2 + head_flops(model))


def forward_flops_per_token(model: ModelShape, sequence_length: int, causal: bool) -> float:
    """Forward FLOPs per token of the whole model with head and multi-token prediction."""
    kinds = model.layer_kinds
    layers = sum(
        kinds.count(kind) * layer_flops(model, kind, sequence_length, causal).total
        for kind in set(kinds)
    )
    return layers + head_flops(model) + mtp_flops(model, sequence_length, causal)


def model_flops_per_token(
    model: ModelShape, sequence_length: int, convention: AttentionConvention = "causal"
) -> float:
    """Model FLOPs per token of one training step: three forward passes, no recompute.

    Source: reference cost model 1.3; Korthikanti 2022 (arXiv 2205.05198) appendix A with ``full``.
    """
    return 3 * forward_flops_per_token(model, sequence_length, convention == "causal")
