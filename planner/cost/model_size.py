"""Parameter counts as exact integers, whole and per GPU.

Norm weights count once per norm (RMSNorm).  Biases and the normalisation of queries and keys are
left out: they are below 0.01 % of any model in the catalog.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.cost.types import Degrees, LayerKind, ModelShape


@dataclass(frozen=True, slots=True)
class LayerParameters:
    """Parameters of one layer by the way in which they are sharded.

    Attributes
    ----------
    attention
        Projections of the attention that tensor parallelism divides.
    replicated
        Norms, router, and the down-projections of MLA: every TP rank holds all of them.
    dense_ffn, shared_expert
        Feed-forward matrices that tensor parallelism divides.
    experts
        Routed experts, divided by expert and expert-tensor parallelism.
    """

    attention: int
    replicated: int
    dense_ffn: int
    shared_expert: int
    experts: int

    @property
    def dense(self) -> int:
        """All but the routed experts: what the dense data-parallel group shares."""
        return self.attention + self.replicated + self.dense_ffn + self.shared_expert

    @property
    def total(self) -> int:
        """Sum over all parts."""
        return self.dense + self.experts


@dataclass(frozen=True, slots=True)
class EndParameters:
    """Parameters outside the layers.

    Attributes
    ----------
    embedding
        Input embedding.
    head
        Output projection; 0 where the embedding does its work.
    final_norm
        Norm in front of the head.
    mtp
        Multi-token prediction modules, without the shared embedding and head.
    """

    embedding: int
    head: int
    final_norm: int
    mtp: LayerParameters

    @property
    def total(self) -> int:
        """Sum over all parts."""
        return self.embedding + self.head + self.final_norm + self.mtp.total


def ffn_matrices(model: ModelShape) -> int:
    """Matrices of one feed-forward block: 3 if gated, else 2."""
    return 3 if model.gated else 2


def mtp_kind(model: ModelShape) -> LayerKind:
    """Kind of the layer inside a multi-token prediction module: that of the last layer."""
    return model.layer_kinds[-1]


def layer_parameters(model: ModelShape, kind: LayerKind) -> LayerParameters:
    """Parameters of one layer.

    GQA: ``2·h·a·d + 2·h·k·d``.  MLA: ``h·rq + rq·a·(dn+dr) + h·(rkv+dr) + rkv·a·(dn+dv) + a·dv·h``,
    of which the two down-projections and the inner norms are replicated.  Feed-forward: ``g·h·f``;
    MoE: ``E·g·h·fe + g·h·fs`` and a router of ``h·E``.  Two norms of ``h``.

    Source: Megatron-LM ``megatron/training/theoretical_memory_usage.py``; the replication of the
    MLA down-projections is ``parallel_mode='duplicated'`` in Megatron-Core
    ``transformer/multi_latent_attention.py``.
    """
    return _layer(model, kind, 1, 1, 1)


def layer_parameters_per_gpu(
    model: ModelShape, kind: LayerKind, degrees: Degrees
) -> LayerParameters:
    """Parameters of one layer that one GPU holds.

    Where there are more TP ranks than key/value heads each rank holds one whole head, so that heads
    are replicated ``tp / k`` times.  Shares that do not divide are rounded up.

    Source: Megatron-Core parameter sharding (reference cost model 2.1).
    """
    return _layer(model, kind, degrees.tp, degrees.ep, degrees.etp)


def _layer(model: ModelShape, kind: LayerKind, tp: int, ep: int, etp: int) -> LayerParameters:
    h, heads = model.hidden_size, model.num_heads
    replicated = 2 * h
    if model.attention == "mla":
        query, rope = model.qk_nope_head_dim + model.qk_rope_head_dim, model.qk_rope_head_dim
        rank_q, rank_kv = model.q_lora_rank, model.kv_lora_rank
        sharded = (rank_q or h) * heads * query
        sharded += rank_kv * heads * (model.qk_nope_head_dim + model.v_head_dim)
        sharded += heads * model.v_head_dim * h
        attention = _share(sharded, tp)
        replicated += h * ((rank_q or 0) + rank_kv + rope) + (rank_q or 0) + rank_kv
    else:
        attention = _share(2 * h * heads * model.head_dim, tp)
        attention += 2 * h * _share(model.num_kv_heads, tp) * model.head_dim
    g = ffn_matrices(model)
    if kind == "dense":
        dense_ffn = _share(g * h * model.ffn_hidden_size, tp)
        return LayerParameters(attention, replicated, dense_ffn, 0, 0)
    return LayerParameters(
        attention=attention,
        replicated=replicated + h * model.num_experts,
        dense_ffn=0,
        shared_expert=_share(g * h * model.shared_expert_ffn_hidden_size, tp),
        experts=_share(model.num_experts, ep) * _share(g * h * model.expert_ffn_hidden_size, etp),
    )


def end_parameters(model: ModelShape) -> EndParameters:
    """Parameters of the embedding, the head, the final norm and multi-token prediction.

    One prediction module is a layer, a projection of ``2h·h`` and three norms of ``h``; it shares
    the embedding and the head of the model.

    Source: DeepSeek-V3 (arXiv 2412.19437), section 2.2.
    """
    return _ends(model, 1, 1, 1)


def end_parameters_per_gpu(model: ModelShape, degrees: Degrees) -> EndParameters:
    """Parameters outside the layers that one GPU of the first or last stage holds.

    Embedding, head and the prediction modules' projection are divided by TP.  The embedding counts
    for the first stage, everything else for the last.
    """
    return _ends(model, degrees.tp, degrees.ep, degrees.etp)


def _ends(model: ModelShape, tp: int, ep: int, etp: int) -> EndParameters:
    h, count = model.hidden_size, model.num_mtp_layers
    table = _share(model.vocab_size, tp) * h
    if count:
        layer = _layer(model, mtp_kind(model), tp, ep, etp)
        mtp = LayerParameters(
            attention=count * (layer.attention + _share(2 * h * h, tp)),
            replicated=count * (layer.replicated + 3 * h),
            dense_ffn=count * layer.dense_ffn,
            shared_expert=count * layer.shared_expert,
            experts=count * layer.experts,
        )
    else:
        mtp = LayerParameters(0, 0, 0, 0, 0)
    return EndParameters(table, 0 if model.tied_embeddings else table, h, mtp)


def duplicated_embedding(model: ModelShape, degrees: Degrees, pp: int) -> int:
    """Parameters per GPU of the copy of the embedding on the last of several stages.

    Tied heads and multi-token prediction need the embedding on the last stage too.

    Source: Megatron-LM embedding group (reference cost model 2.1).
    """
    if pp == 1 or not (model.tied_embeddings or model.num_mtp_layers):
        return 0
    return _share(model.vocab_size, degrees.tp) * model.hidden_size


def total_parameters(model: ModelShape) -> int:
    """Parameters of the model without multi-token prediction modules."""
    ends = end_parameters(model)
    layers = sum(layer_parameters(model, kind).total for kind in model.layer_kinds)
    return layers + ends.embedding + ends.head + ends.final_norm


def active_parameters(model: ModelShape) -> int:
    """Parameters that work on one token: of the routed experts only those that it visits."""
    inactive = 0
    if model.num_experts:
        expert = ffn_matrices(model) * model.hidden_size * model.expert_ffn_hidden_size
        per_layer = (model.num_experts - model.experts_per_token) * expert
        inactive = per_layer * sum(kind == "moe" for kind in model.layer_kinds)
    return total_parameters(model) - inactive


def _share(value: int, ranks: int) -> int:
    return -(-value // ranks)
