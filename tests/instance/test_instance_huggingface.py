"""Hugging Face configs of every supported family, with the values of published models."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from planner.instance.errors import InputError
from planner.instance.huggingface import from_config, read_config
from planner.instance.load import load_instance
from planner.instance.presets import model

if TYPE_CHECKING:
    from pathlib import Path


def dense(kind: str, h: int, layers: int, a: int, k: int, f: int, v: int, **more: Any) -> Any:
    return {
        "model_type": kind,
        "hidden_size": h,
        "num_hidden_layers": layers,
        "num_attention_heads": a,
        "num_key_value_heads": k,
        "intermediate_size": f,
        "vocab_size": v,
        **more,
    }


MLA = {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
MIXTRAL = dense(
    "mixtral",
    4096,
    32,
    32,
    8,
    14336,
    32000,
    num_local_experts=8,
    num_experts_per_tok=2,
    sliding_window=None,
)
QWEN3_MOE = dense(
    "qwen3_moe",
    2048,
    48,
    32,
    4,
    6144,
    151936,
    head_dim=128,
    num_experts=128,
    num_experts_per_tok=8,
    moe_intermediate_size=768,
    decoder_sparse_step=1,
    mlp_only_layers=[],
    tie_word_embeddings=False,
)
DEEPSEEK_V3 = dense(
    "deepseek_v3",
    7168,
    61,
    128,
    128,
    18432,
    129280,
    **MLA,
    n_routed_experts=256,
    num_experts_per_tok=8,
    moe_intermediate_size=2048,
    n_shared_experts=1,
    first_k_dense_replace=3,
    moe_layer_freq=1,
    n_group=8,
    topk_group=4,
    num_nextn_predict_layers=1,
    tie_word_embeddings=False,
)
MAVERICK_TEXT = dense(
    "llama4_text",
    5120,
    48,
    40,
    8,
    8192,
    202048,
    head_dim=128,
    intermediate_size_mlp=16384,
    num_local_experts=128,
    num_experts_per_tok=1,
    interleave_moe_layer_step=2,
    moe_layers=list(range(1, 48, 2)),
)
MAVERICK = {
    "model_type": "llama4",
    "text_config": MAVERICK_TEXT,
    "tie_word_embeddings": False,
    "vision_config": {"hidden_size": 1408},
}
NEMOTRON = dense("nemotron", 18432, 96, 96, 8, 73728, 256000, hidden_act="relu2")


@pytest.mark.parametrize(
    ("config", "preset"),
    [
        (dense("llama", 4096, 32, 32, 8, 14336, 128256), "llama3-8b"),
        (dense("llama", 16384, 126, 128, 8, 53248, 128256), "llama3.1-405b"),
        (MIXTRAL, "mixtral-8x7b"),
        (QWEN3_MOE, "qwen3-30b-a3b"),
        (DEEPSEEK_V3, "deepseek-v3"),
        (MAVERICK, "llama4-maverick"),
        (NEMOTRON, "nemotron-4-340b"),
        (
            {
                "model_type": "gpt2",
                "n_embd": 12288,
                "n_layer": 96,
                "n_head": 96,
                "vocab_size": 50257,
            },
            "gpt3-175b",
        ),
    ],
)
def test_config_equals_catalog(config: dict[str, Any], preset: str) -> None:
    expected = model(preset).model_dump()
    assert from_config(config, name=preset).model_dump() == expected


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        (
            dense("mistral", 4096, 32, 32, 8, 14336, 32000, sliding_window=4096),
            {"sliding_window": 4096, "gated": True},
        ),
        (
            dense(
                "qwen2",
                8192,
                80,
                64,
                8,
                29568,
                152064,
                use_sliding_window=False,
                sliding_window=131072,
            ),
            {"sliding_window": None},
        ),
        (
            dense("qwen3", 2560, 36, 32, 8, 9728, 151936, head_dim=128, tie_word_embeddings=True),
            {"head_dim": 128, "tied_embeddings": True},
        ),
        (
            dense(
                "qwen2_moe",
                2048,
                24,
                16,
                16,
                5632,
                151936,
                num_experts=60,
                num_experts_per_tok=4,
                moe_intermediate_size=1408,
                shared_expert_intermediate_size=5632,
                decoder_sparse_step=1,
            ),
            {"num_experts": 60, "shared_expert_ffn_hidden_size": 5632},
        ),
        (
            dense(
                "qwen3_moe",
                2048,
                8,
                16,
                4,
                6144,
                151936,
                num_experts=8,
                num_experts_per_tok=2,
                moe_intermediate_size=768,
                decoder_sparse_step=2,
                mlp_only_layers=[0, 1],
            ),
            {"layer_kinds": ("dense", "dense", "dense", "moe", "dense", "moe", "dense", "moe")},
        ),
        (
            dense(
                "deepseek_v2",
                2048,
                27,
                16,
                16,
                10944,
                102400,
                **(MLA | {"q_lora_rank": None}),
                n_routed_experts=64,
                num_experts_per_tok=6,
                moe_intermediate_size=1408,
                n_shared_experts=2,
                first_k_dense_replace=1,
                n_group=1,
                topk_group=1,
            ),
            {
                "q_lora_rank": None,
                "shared_expert_ffn_hidden_size": 2816,
                "num_routing_groups": None,
            },
        ),
        (
            dense(
                "kimi_k2",
                7168,
                61,
                64,
                64,
                18432,
                163840,
                **MLA,
                n_routed_experts=384,
                num_experts_per_tok=8,
                moe_intermediate_size=2048,
                n_shared_experts=1,
                first_k_dense_replace=1,
            ),
            {"num_experts": 384, "first_k_dense": 1, "attention": "mla"},
        ),
        (
            dense("gemma2", 3584, 42, 16, 8, 14336, 256000, head_dim=256, sliding_window=4096),
            {"head_dim": 256, "tied_embeddings": True, "sliding_window": None},
        ),
        (
            {
                "architectures": ["LlamaForCausalLM"],
                **{
                    k: v
                    for k, v in dense("", 4096, 32, 32, 32, 11008, 32000).items()
                    if k != "model_type"
                },
            },
            {"num_kv_heads": 32},
        ),
        (
            dense("llama", 4096, 32, 32, 8, 14336, 128256, _name_or_path="meta-llama/Llama-3-8B"),
            {"name": "Llama-3-8B"},
        ),
    ],
)
def test_families(config: dict[str, Any], fields: dict[str, Any]) -> None:
    spec = from_config(config)
    assert {key: getattr(spec, key) for key in fields} == fields


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (dense("mamba2", 1, 1, 1, 1, 1, 1), "model.model_type: unknown architecture text 'mamba2'"),
        (dense("qwen3moe", 1, 1, 1, 1, 1, 1), "(did you mean 'qwen3_moe'?)"),
        ({"architectures": ["BertModel"]}, "model.architectures: unknown architecture"),
        ({"model_type": "llama4"}, "model.text_config: missing"),
        ({"model_type": "llama"}, "model.hidden_size: missing"),
        ([], "expected a config.json object, got a list"),
        ({**MIXTRAL, "num_hidden_layers": True}, "expected a whole number from 0"),
        ({**MIXTRAL, "num_experts_per_tok": 9}, "9 experts per token, but only 8 experts"),
        ({**QWEN3_MOE, "mlp_only_layers": [3]}, "only leading layers may be dense"),
        ({**DEEPSEEK_V3, "moe_layer_freq": 2}, "only 1 is supported"),
        ({**MAVERICK_TEXT, "moe_layers": [0]}, "expected every layer"),
        (dense("llama", 4096, 32, 32, 8, 14336, 1, tie_word_embeddings="no"), "true or false"),
    ],
)
def test_refusals(config: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        from_config(config)
    assert message in str(caught.value)


def test_path_inside_an_instance(tmp_path: Path) -> None:
    (tmp_path / "my-model").mkdir()
    (tmp_path / "my-model" / "config.json").write_text(json.dumps(MIXTRAL), encoding="utf-8")
    document = {
        "training": {"global_batch_size": 8, "sequence_length": 4096},
        "cluster": {"sites": [{"name": "a", "gpu": "H100", "num_gpus": 8}]},
    }
    for value in ("my-model/config.json", "./my-model"):
        file = tmp_path / "job.json"
        file.write_text(json.dumps({**document, "model": value}), encoding="utf-8")
        assert load_instance(file).model == read_config(tmp_path / "my-model" / "config.json")
    assert load_instance({**document, "model": MIXTRAL}).model.num_experts == 8
