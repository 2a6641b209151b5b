"""Catalog entries against published figures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from planner.instance import catalog
from planner.instance.model import ModelSpec
from planner.instance.presets import gpu, model, protocol, stack
from planner.instance.stack import StackSpec

NUMBERS = (
    "tp_exposed",
    "ep_exposed",
    "fsdp_exposed",
    "routing_factor",
    "host_floor_s",
    "fixed_s",
)


def parameters(spec: ModelSpec, *, active: bool = False) -> int:
    """Weights of the main model, without MTP modules: cost_model.md 1.2."""
    h, a = spec.hidden_size, spec.num_heads
    if spec.attention == "mla":
        queries = a * (spec.qk_nope_head_dim + spec.qk_rope_head_dim)
        rank = spec.q_lora_rank
        attention = h * rank + rank * queries if rank else h * queries
        attention += h * (spec.kv_lora_rank + spec.qk_rope_head_dim)
        attention += spec.kv_lora_rank * a * (spec.qk_nope_head_dim + spec.v_head_dim)
        attention += a * spec.v_head_dim * h
    else:
        attention = 2 * h * spec.head_dim * (a + spec.num_kv_heads)
    matrices = 3 if spec.gated else 2
    total = (1 if spec.tied_embeddings else 2) * spec.vocab_size * h + h
    for kind in spec.layer_kinds:
        width = spec.ffn_hidden_size
        router = 0
        if kind == "moe":
            experts = spec.experts_per_token if active else spec.num_experts
            width = experts * spec.expert_ffn_hidden_size + spec.shared_expert_ffn_hidden_size
            router = h * spec.num_experts
        total += attention + 2 * h + matrices * h * width + router
    return total


@pytest.mark.parametrize("name", catalog.names("models"))
def test_total_parameters_are_the_published_ones(name: str) -> None:
    total = parameters(model(name)) / 1e9
    assert total == pytest.approx(catalog.model_parameters_billion(name), rel=0.002)
    assert catalog.model_source(name)


@pytest.mark.parametrize(
    ("name", "billion"),
    [
        ("llama4-scout", 17.2),
        ("llama4-maverick", 17.2),
        ("mixtral-8x7b", 12.9),
        ("mixtral-8x22b", 39.1),
        ("qwen3-30b-a3b", 3.35),
        ("qwen3-235b-a22b", 22.2),
        ("deepseek-v3", 37.6),
    ],
)
def test_active_parameters(name: str, billion: float) -> None:
    assert parameters(model(name), active=True) / 1e9 == pytest.approx(billion, rel=0.01)


def test_layer_kinds() -> None:
    assert set(model("llama3-8b").layer_kinds) == {"dense"}
    assert model("llama4-maverick").layer_kinds == ("dense", "moe") * 24
    assert model("deepseek-v3").layer_kinds == ("dense",) * 3 + ("moe",) * 58


@pytest.mark.parametrize("name", catalog.names("gpus"))
def test_every_gpu_figure_has_a_source(name: str) -> None:
    spec = gpu(name)
    figures = set(type(spec).model_fields) - {"name", "sources", "profile"}
    assert figures == set(spec.sources)
    assert spec.profile is None
    assert {"bf16", "fp16"} <= set(spec.peak_flops)
    assert spec.scale_up_domain % spec.gpus_per_node == 0


def test_gpu_figures() -> None:
    assert gpu("A100-80").peak_flops["bf16"] == 312e12
    assert "fp8" not in gpu("A100-40").peak_flops
    assert gpu("H800").scale_up_bytes_per_s == 200e9
    assert gpu("H100").memory_bytes == 80 * 2**30
    assert gpu("GB200").scale_up_domain == 72
    assert {gpu(n).nic_gbps for n in ("A100-40", "A100-80")} == {200}
    assert {gpu(n).nic_gbps for n in ("H100", "H800")} == {400}
    hash(gpu("H100"))


@pytest.mark.parametrize("name", catalog.names("protocols"))
def test_protocols(name: str) -> None:
    spec = protocol(name)
    assert spec.source
    assert 0 < spec.overhead <= 1
    assert (spec.loss_rule == "erasure") == (spec.code_rate < 1)


def test_a_stack_is_six_numbers_and_facts_of_its_design() -> None:
    numeric = [name for name, f in StackSpec.model_fields.items() if f.annotation is float]
    assert tuple(numeric) == NUMBERS
    facts = {
        "attention_kernel", "loss_kernel", "expert_kernels", "optimizer_kernel",
        "selective_recompute", "sequence_parallel", "shards_master_weights", "eight_bit_inputs",
        "replicates_kv_heads", "flat_rings",
    }  # fmt: skip
    assert set(StackSpec.model_fields) - {"name", "source", "fitted", *NUMBERS} == facts


@pytest.mark.parametrize("name", catalog.names("stacks"))
def test_stacks(name: str) -> None:
    spec = stack(name)
    assert spec.name == name
    assert spec.source
    assert set(spec.fitted) <= set(NUMBERS)
    assert len(set(spec.fitted)) == len(spec.fitted) > 0
    assert all(0 <= getattr(spec, number) <= 1 for number in NUMBERS[:3])
    assert 0.5 < spec.routing_factor < 10
    assert 0 < spec.host_floor_s < 2e-3 < spec.fixed_s < 0.1
    hash(spec)


def test_the_documentation_lists_the_stacks_and_what_the_runs_identify() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "cost_model.md"
    rows = re.findall(
        r"^\| `([\w.-]+)`(?: \(default\))? \|.*\|(.*)\|$", page.read_text("utf-8"), re.M
    )
    listed = {name: tuple(re.findall(r"`(\w+)`", last)) for name, last in rows}
    for name in catalog.names("stacks"):
        assert listed[name] == stack(name).fitted, name


def test_facts_of_stacks() -> None:
    assert {n for n in catalog.names("stacks") if not stack(n).sequence_parallel} == {
        "megatron-2021",
        "deepspeed-2021",
    }
    assert {n for n in catalog.names("stacks") if stack(n).flat_rings} == {"deepspeed-2021"}
    assert stack("torchtitan").selective_recompute == "operators"
    assert stack("megatron-core").selective_recompute == "attention"
    assert stack("megatron-2021").attention_kernel == "unfused"
    assert stack("fsdp").attention_kernel == "triton"


def test_names_ignore_letter_case() -> None:
    assert catalog.canonical("gpus", "h100") == "H100"
    assert catalog.canonical("stacks", "JAX") == "jax"
    assert catalog.canonical("gpus", "h1000") is None
