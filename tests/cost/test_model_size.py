"""Parameter counts against published ones, and the way they are sharded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cost.model_size import (
    active_parameters,
    duplicated_embedding,
    end_parameters,
    layer_parameters,
    layer_parameters_per_gpu,
    total_parameters,
)
from tests.cost.shapes import (
    DEEPSEEK_V3,
    GPT3,
    LLAMA_8B,
    LLAMA_70B,
    LLAMA_405B,
    MIXTRAL,
    Degrees,
    Model,
)


@pytest.mark.parametrize(
    ("model", "billion"),
    [
        (LLAMA_8B, 8.030),
        (LLAMA_70B, 70.554),
        (LLAMA_405B, 405.853),
        (GPT3, 174.6),
        (MIXTRAL, 46.703),
        (DEEPSEEK_V3, 671.03),
    ],
)
def test_total_parameters_match_published_counts(model: Model, billion: float) -> None:
    assert total_parameters(model) / 1e9 == pytest.approx(billion, rel=5e-4)


@pytest.mark.parametrize(("model", "billion"), [(MIXTRAL, 12.88), (DEEPSEEK_V3, 37.55)])
def test_active_parameters_match_published_counts(model: Model, billion: float) -> None:
    assert active_parameters(model) / 1e9 == pytest.approx(billion, rel=2e-3)


def test_a_dense_model_is_fully_active() -> None:
    assert active_parameters(LLAMA_8B) == total_parameters(LLAMA_8B)


def test_a_prediction_module_is_not_counted_in_the_model() -> None:
    without = replace(DEEPSEEK_V3, num_mtp_layers=0)
    assert total_parameters(without) == total_parameters(DEEPSEEK_V3)
    assert end_parameters(DEEPSEEK_V3).mtp.total / 1e9 == pytest.approx(11.6, rel=0.01)
    assert end_parameters(without).mtp.total == 0


def test_norms_and_router_are_replicated_over_tensor_parallelism() -> None:
    h, experts = MIXTRAL.hidden_size, MIXTRAL.num_experts
    for tp in (1, 8):
        assert layer_parameters_per_gpu(LLAMA_8B, "dense", Degrees(tp=tp)).replicated == 2 * h
        share = layer_parameters_per_gpu(MIXTRAL, "moe", Degrees(tp=tp))
        assert share.replicated == 2 * h + h * experts


def test_experts_are_divided_by_expert_parallelism_only() -> None:
    whole = layer_parameters_per_gpu(MIXTRAL, "moe", Degrees(tp=1, ep=4))
    assert layer_parameters_per_gpu(MIXTRAL, "moe", Degrees(tp=8, ep=4)).experts == whole.experts
    assert 2 * layer_parameters_per_gpu(MIXTRAL, "moe", Degrees(ep=8)).experts == whole.experts
    halved = layer_parameters_per_gpu(MIXTRAL, "moe", Degrees(ep=4, etp=2))
    assert 2 * halved.experts == whole.experts
    assert halved.attention == whole.attention


def test_sharded_parts_divide_and_add_up() -> None:
    whole = layer_parameters(LLAMA_70B, "dense")
    share = layer_parameters_per_gpu(LLAMA_70B, "dense", Degrees(tp=8))
    assert 8 * share.attention == whole.attention
    assert 8 * share.dense_ffn == whole.dense_ffn
    assert whole.total == whole.attention + whole.replicated + whole.dense_ffn


def test_key_value_heads_are_replicated_beyond_their_number() -> None:
    model = LLAMA_8B
    share = layer_parameters_per_gpu(model, "dense", Degrees(tp=16)).attention
    query_and_output = 2 * model.hidden_size * model.num_heads * model.head_dim // 16
    assert share == query_and_output + 2 * model.hidden_size * model.head_dim


def test_compression_of_mla_is_replicated() -> None:
    whole = layer_parameters(DEEPSEEK_V3, "dense")
    share = layer_parameters_per_gpu(DEEPSEEK_V3, "dense", Degrees(tp=8))
    assert share.replicated == whole.replicated
    assert 8 * share.attention == whole.attention
    full_query = layer_parameters(replace(DEEPSEEK_V3, q_lora_rank=None), "dense")
    assert full_query.replicated == whole.replicated - 1536 * (7168 + 1)


def test_the_last_stage_copies_a_tied_embedding() -> None:
    table = GPT3.vocab_size * GPT3.hidden_size
    assert end_parameters(GPT3).head == 0
    assert duplicated_embedding(GPT3, Degrees(tp=8), pp=4) == table // 8
    assert duplicated_embedding(GPT3, Degrees(tp=8), pp=1) == 0
    assert duplicated_embedding(LLAMA_8B, Degrees(), pp=4) == 0
