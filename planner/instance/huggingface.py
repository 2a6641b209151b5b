"""Hugging Face ``config.json`` to :class:`ModelSpec`.

Key mapping as in Megatron-Bridge ``models/conversion/model_bridge.py`` (CONFIG_MAPPING); which
layers are dense as in the ``modeling_*.py`` of transformers. Sliding windows that only some of the
layers have are left out: attention is then counted in full, never too low.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from planner.instance.errors import InputError, describe, first_input_error, nearest
from planner.instance.model import ModelSpec
from planner.instance.text import read_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True)
class _Family:
    """What a ``model_type`` implies where its config is silent."""

    tied: bool = False
    gated: bool = True
    window_everywhere: bool = False
    experts: str = ""
    expert_width: str = "moe_intermediate_size"
    mla: bool = False


_DEEPSEEK = _Family(experts="n_routed_experts", mla=True)
_LLAMA4 = _Family(experts="num_local_experts", expert_width="intermediate_size")
_GEMMA = _Family(tied=True)
_GPT2 = _Family(tied=True, gated=False)

_FAMILIES: Mapping[str, _Family] = {
    "llama": _Family(),
    "mistral": _Family(window_everywhere=True),
    "qwen2": _Family(),
    "qwen3": _Family(),
    "mixtral": _Family(
        window_everywhere=True, experts="num_local_experts", expert_width="intermediate_size"
    ),
    "qwen2_moe": _Family(experts="num_experts"),
    "qwen3_moe": _Family(experts="num_experts"),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "kimi_k2": _DEEPSEEK,
    "llama4_text": _LLAMA4,
    "gemma": _GEMMA,
    "gemma2": _GEMMA,
    "gemma3_text": _GEMMA,
    "nemotron": _Family(gated=False),
    "gpt2": _GPT2,
}

_NESTED: Mapping[str, str] = {
    "llama4": "llama4_text",
    "gemma3": "gemma3_text",
    "mistral3": "mistral",
    "kimi_k25": "kimi_k2",
}
"""Multimodal configs, whose language model stands under ``text_config``."""

_ARCHITECTURES: Mapping[str, str] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "MixtralForCausalLM": "mixtral",
    "Qwen2MoeForCausalLM": "qwen2_moe",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "Llama4ForCausalLM": "llama4_text",
    "Llama4ForConditionalGeneration": "llama4",
    "GemmaForCausalLM": "gemma",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3_text",
    "Gemma3ForConditionalGeneration": "gemma3",
    "Mistral3ForConditionalGeneration": "mistral3",
    "NemotronForCausalLM": "nemotron",
    "GPT2LMHeadModel": "gpt2",
}

_GPT2_KEYS: Mapping[str, str] = {
    "num_hidden_layers": "n_layer",
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
}


def is_config(fields: Mapping[str, Any]) -> bool:
    """Whether an object is a Hugging Face config rather than fields of a ``ModelSpec``."""
    return "model_type" in fields or "architectures" in fields


def read_config(path: Path) -> ModelSpec:
    """The model that a ``config.json`` file describes."""
    return from_config(read_json(path), where=f"{path}: config", name=path.resolve().parent.name)


def from_config(config: object, *, where: str = "model", name: str = "") -> ModelSpec:
    """The model that a parsed ``config.json`` describes.

    ``where`` is the path that errors begin with; ``name`` is used if the config gives none.
    """
    if not isinstance(config, dict):
        raise InputError(where, f"expected a config.json object, got {describe(config)}")
    family_name = _family_name(config, where)
    body: Any = config
    if family_name in _NESTED:
        body = config.get("text_config")
        if not isinstance(body, dict):
            raise InputError(f"{where}.text_config", "missing: the language model stands there")
        # transformers writes the tie flag at the top or below; below wins.
        body = {
            **{key: config[key] for key in ("tie_word_embeddings",) if key in config},
            **body,
        }
        family_name = _NESTED[family_name]
        where = f"{where}.text_config"
    fields = _Reader(body, where, _FAMILIES[family_name], family_name).fields()
    given = config.get("_name_or_path")
    label = given.rstrip("/").rsplit("/", 1)[-1] if isinstance(given, str) else ""
    fields["name"] = label.strip() or name or family_name
    try:
        return ModelSpec.model_validate(fields)
    except ValidationError as error:
        raise first_input_error(error, ModelSpec, where) from None


def _family_name(config: Mapping[str, Any], where: str) -> str:
    known = {**_FAMILIES, **_NESTED}
    kind = config.get("model_type")
    if isinstance(kind, str):
        if kind in known:
            return kind
        raise InputError(
            f"{where}.model_type", f"unknown architecture {describe(kind)}", nearest(kind, known)
        )
    listed = config.get("architectures")
    name = listed[0] if isinstance(listed, list) and listed else listed
    if isinstance(name, str):
        if name in _ARCHITECTURES:
            return _ARCHITECTURES[name]
        raise InputError(
            f"{where}.architectures",
            f"unknown architecture {describe(name)}",
            nearest(name, _ARCHITECTURES),
        )
    raise InputError(where, "no model_type and no architectures: not a Hugging Face config.json")


class _Reader:
    """Reads one language-model config."""

    def __init__(
        self, config: Mapping[str, Any], where: str, family: _Family, family_name: str
    ) -> None:
        self.config = config
        self.where = where
        self.family = family
        self.keys = _GPT2_KEYS if family_name == "gpt2" else {}
        self.family_name = family_name

    def fields(self) -> dict[str, Any]:
        """The fields of a ``ModelSpec``, without name."""
        hidden, heads = self.need("hidden_size"), self.need("num_attention_heads")
        dense_key = "intermediate_size_mlp" if self.family is _LLAMA4 else "intermediate_size"
        fields: dict[str, Any] = {
            "num_layers": self.need("num_hidden_layers"),
            "hidden_size": hidden,
            "num_heads": heads,
            "num_kv_heads": self.number("num_key_value_heads", heads),
            "vocab_size": self.need("vocab_size"),
            "ffn_hidden_size": self.dense_width(dense_key, hidden),
            "gated": self.family.gated,
            "tied_embeddings": self.flag("tie_word_embeddings", self.family.tied),
            "num_mtp_layers": self.number("num_nextn_predict_layers", 0),
        }
        if self.family.mla:
            fields |= self.latent_attention()
        else:
            head_dim = self.number("head_dim", 0) or self.number("kv_channels", 0)
            if head_dim:
                fields["head_dim"] = head_dim
        if self.family.window_everywhere and self.number("sliding_window", 0):
            fields["sliding_window"] = self.number("sliding_window", 0)
        if self.family.experts and self.number(self.family.experts, 0):
            fields |= self.experts()
        return fields

    def dense_width(self, key: str, hidden: int) -> int:
        if self.family_name == "gpt2":
            return self.number("intermediate_size", 4 * hidden)
        return self.need(key)

    def latent_attention(self) -> dict[str, Any]:
        widths = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        return {
            "attention": "mla",
            "q_lora_rank": self.number("q_lora_rank", 0) or None,
            **{key: self.need(key) for key in widths},
        }

    def experts(self) -> dict[str, Any]:
        width = self.need(self.family.expert_width)
        first, interval = self.dense_layers()
        fields: dict[str, Any] = {
            "num_experts": self.need(self.family.experts),
            "experts_per_token": self.need("num_experts_per_tok"),
            "expert_ffn_hidden_size": width,
            "shared_expert_ffn_hidden_size": self.shared_width(width),
            "first_k_dense": first,
            "moe_layer_interval": interval,
        }
        groups = self.number("n_group", 0)
        if groups > 1:
            fields["num_routing_groups"] = groups
            fields["routing_groups_per_token"] = self.need("topk_group")
        return fields

    def shared_width(self, width: int) -> int:
        if self.family is _LLAMA4:
            return width
        if self.family is _DEEPSEEK:
            return self.number("n_shared_experts", 0) * width
        return self.number("shared_expert_intermediate_size", 0)

    def dense_layers(self) -> tuple[int, int]:
        """``first_k_dense`` and ``moe_layer_interval``."""
        if self.family is _LLAMA4:
            return 0, self.llama4_interval()
        if self.family is _DEEPSEEK:
            if self.number("moe_layer_freq", 1) != 1:
                raise self.error("moe_layer_freq", "only 1 is supported")
            return self.number("first_k_dense_replace", 0), 1
        dense = self.config.get("mlp_only_layers") or []
        if dense != list(range(len(dense) if isinstance(dense, list) else 0)):
            raise self.error("mlp_only_layers", "only leading layers may be dense")
        return len(dense), self.number("decoder_sparse_step", 1) or 1

    def llama4_interval(self) -> int:
        interval = self.number("interleave_moe_layer_step", 1) or 1
        listed = self.config.get("moe_layers")
        layers = self.need("num_hidden_layers")
        if layers > 10**4:
            raise self.error("num_hidden_layers", "more than 10000 layers")
        if listed and listed != list(range(interval - 1, layers, interval)):
            raise self.error(
                "moe_layers", f"expected every layer of interleave_moe_layer_step {interval}"
            )
        return interval

    def need(self, key: str) -> int:
        """A positive whole number that must be there."""
        actual = self.keys.get(key, key)
        if self.config.get(actual) is None:
            close = nearest(actual, self.config)
            raise InputError(f"{self.where}.{actual}", "missing", close)
        value = self.number(key, 0)
        if value < 1:
            raise self.error(key, f"expected a whole number of at least 1, got {value}")
        return value

    def number(self, key: str, default: int) -> int:
        """A whole number of at least 0; null or absent = ``default``."""
        value = self.config.get(self.keys.get(key, key))
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 10**9:
            raise self.error(
                key, f"expected a whole number from 0 to 1000000000, got {describe(value)}"
            )
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.config.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, f"expected true or false, got {describe(value)}")
        return value

    def error(self, key: str, reason: str) -> InputError:
        return InputError(f"{self.where}.{self.keys.get(key, key)}", reason)
