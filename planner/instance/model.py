"""The shape of a transformer: everything that FLOPs, parameters and memory follow from."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from planner.instance._base import (
    CountOrZero,
    Flag,
    Frozen,
    LayerCount,
    Name,
    Width,
    WidthOrZero,
    problem,
)

LayerKind = Literal["dense", "moe"]

_MLA_WIDTHS = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def _default_head_dim(data: dict[str, Any]) -> int:
    if data["attention"] == "mla":
        return int(data["qk_nope_head_dim"] + data["qk_rope_head_dim"])
    return int(data["hidden_size"] // data["num_heads"])


class ModelSpec(Frozen):
    """A decoder-only transformer, dense or mixture of experts. Sizes are element counts.

    Layer ``i`` (from 0) is MoE iff ``num_experts > 0``, ``i >= first_k_dense`` and
    ``(i + 1) % moe_layer_interval == 0``. ``shared_expert_ffn_hidden_size`` is the total over all
    shared experts. A ``sliding_window`` applies to every layer.
    """

    name: Name = "custom"
    num_layers: LayerCount
    hidden_size: Width
    num_heads: Width
    num_kv_heads: Width = Field(default_factory=lambda data: data["num_heads"])
    ffn_hidden_size: WidthOrZero = 0
    gated: Flag = True
    vocab_size: Width
    tied_embeddings: Flag = False
    attention: Literal["gqa", "mla"] = "gqa"
    q_lora_rank: Width | None = None
    kv_lora_rank: WidthOrZero = 0
    qk_nope_head_dim: WidthOrZero = 0
    qk_rope_head_dim: WidthOrZero = 0
    v_head_dim: WidthOrZero = 0
    head_dim: Width = Field(default_factory=_default_head_dim)
    num_experts: WidthOrZero = 0
    experts_per_token: WidthOrZero = 0
    expert_ffn_hidden_size: WidthOrZero = 0
    shared_expert_ffn_hidden_size: WidthOrZero = 0
    first_k_dense: CountOrZero = 0
    moe_layer_interval: LayerCount = 1
    sliding_window: Width | None = None
    num_mtp_layers: CountOrZero = Field(default=0, le=100)
    num_routing_groups: Width | None = None
    routing_groups_per_token: Width | None = None

    @cached_property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """The kind of every layer, first to last."""
        return tuple(
            "moe"
            if self.num_experts
            and i >= self.first_k_dense
            and (i + 1) % self.moe_layer_interval == 0
            else "dense"
            for i in range(self.num_layers)
        )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self._check_attention()
        self._check_experts()
        if "dense" in self.layer_kinds and not self.ffn_hidden_size:
            raise problem("missing: the model has dense layers", at=("ffn_hidden_size",))
        return self

    def _check_attention(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise problem(
                f"{self.num_heads} query heads cannot share {self.num_kv_heads} KV heads evenly",
                at=("num_kv_heads",),
            )
        if self.attention == "mla":
            for key in _MLA_WIDTHS:
                if not getattr(self, key):
                    raise problem("missing: attention 'mla' needs it", at=(key,))
            return
        for key in ("q_lora_rank", *_MLA_WIDTHS):
            if getattr(self, key):
                raise problem("only for attention 'mla', the model has 'gqa'", at=(key,))
        if "head_dim" not in self.model_fields_set and self.hidden_size % self.num_heads:
            raise problem(
                f"hidden size {self.hidden_size} is not a multiple of {self.num_heads} heads; "
                "give head_dim",
                at=("num_heads",),
            )

    def _check_experts(self) -> None:
        moe_only = (
            "experts_per_token",
            "expert_ffn_hidden_size",
            "shared_expert_ffn_hidden_size",
            "first_k_dense",
            "num_routing_groups",
            "routing_groups_per_token",
        )
        if not self.num_experts:
            for key in moe_only:
                if getattr(self, key):
                    raise problem("only for a model with num_experts", at=(key,))
            return
        for key in ("experts_per_token", "expert_ffn_hidden_size"):
            if not getattr(self, key):
                raise problem("missing: the model has experts", at=(key,))
        if self.experts_per_token > self.num_experts:
            raise problem(
                f"{self.experts_per_token} experts per token, but only {self.num_experts} experts",
                at=("experts_per_token",),
            )
        if "moe" not in self.layer_kinds:
            raise problem(
                f"no layer is MoE: first_k_dense {self.first_k_dense} and moe_layer_interval "
                f"{self.moe_layer_interval} leave none of {self.num_layers} layers",
                at=("num_experts",),
            )
        self._check_routing_groups()

    def _check_routing_groups(self) -> None:
        groups, chosen = self.num_routing_groups, self.routing_groups_per_token
        if (groups is None) != (chosen is None):
            missing = "num_routing_groups" if groups is None else "routing_groups_per_token"
            raise problem("missing: routing groups need both numbers", at=(missing,))
        if groups is None or chosen is None:
            return
        if self.num_experts % groups:
            raise problem(
                f"{self.num_experts} experts do not split into {groups} equal groups",
                at=("num_routing_groups",),
            )
        if chosen > groups or self.experts_per_token > chosen * (self.num_experts // groups):
            raise problem(
                f"{chosen} of {groups} groups cannot serve {self.experts_per_token} experts "
                "per token",
                at=("routing_groups_per_token",),
            )
