"""FLOPs per token against the conventions of Megatron, Korthikanti and DeepSeek."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cost.flops import (
    attended_tokens,
    head_flops,
    layer_flops,
    model_flops_per_token,
    mtp_flops,
)
from planner.cost.model_size import active_parameters, total_parameters
from tests.cost.shapes import DEEPSEEK_V3, GPT3, LLAMA_405B, MIXTRAL


def test_gpt_equals_the_closed_form_of_narayanan() -> None:
    layers, h, length, vocab = 96, 12288, 2048, 51200
    closed = 72 * layers * h**2 * (1 + length / (6 * h) + vocab / (12 * layers * h))
    assert model_flops_per_token(GPT3, length, "full") == pytest.approx(closed, rel=1e-12)


def test_llama_405b_counts_six_flops_a_weight_and_half_the_scores() -> None:
    model, length = LLAMA_405B, 8192
    norms = model.hidden_size * (2 * model.num_layers + 1)
    weights = total_parameters(model) - model.vocab_size * model.hidden_size - norms
    scores = 3 * model.num_layers * 2 * length * model.num_heads * model.head_dim
    assert model_flops_per_token(model, length) == pytest.approx(6 * weights + scores, rel=1e-12)
    assert model_flops_per_token(model, length) / 1e12 == pytest.approx(2.524, rel=1e-3)


def test_full_attention_counts_twice_the_causal_scores() -> None:
    causal = layer_flops(LLAMA_405B, "dense", 4096, causal=True)
    full = layer_flops(LLAMA_405B, "dense", 4096, causal=False)
    assert full.core_attention == 2 * causal.core_attention
    assert full.total - full.core_attention == causal.total - causal.core_attention


def test_flops_follow_active_parameters() -> None:
    flops = layer_flops(MIXTRAL, "moe", 4096, causal=True)
    assert flops.experts == 2 * 2 * 3 * 4096 * 14336
    assert flops.router == 2 * 4096 * 8
    more = layer_flops(replace(MIXTRAL, num_experts=16), "moe", 4096, causal=True)
    assert more.experts == flops.experts


def test_deepseek_v3_with_and_without_prediction_module() -> None:
    length = 4096
    without = replace(DEEPSEEK_V3, num_mtp_layers=0)
    embedding_and_norms = 129280 * 7168 + 61 * (2 * 7168 + 1536 + 512) + 7168
    scores = 3 * 61 * length * 128 * (128 + 64 + 128)
    weights = active_parameters(DEEPSEEK_V3) - embedding_and_norms
    expected = 6 * weights + scores
    assert model_flops_per_token(without, length) == pytest.approx(expected, rel=1e-9)
    layer = layer_flops(DEEPSEEK_V3, "moe", length, causal=True).total
    module = layer + 4 * 7168**2 + head_flops(DEEPSEEK_V3)
    assert mtp_flops(DEEPSEEK_V3, length, causal=True) == module
    extra = model_flops_per_token(DEEPSEEK_V3, length) - model_flops_per_token(without, length)
    assert extra == pytest.approx(3 * module, rel=1e-9)


def test_a_sliding_window_bounds_the_attended_tokens() -> None:
    model = replace(MIXTRAL, sliding_window=1024)
    assert attended_tokens(model, 8192, causal=True) == 1024
    assert attended_tokens(model, 1024, causal=True) == 512
    assert attended_tokens(MIXTRAL, 8192, causal=False) == 8192
