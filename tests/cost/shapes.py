"""Models, GPUs, jobs, links and protocols for the tests of the cost functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Model:
    """A model; dimensions that do not apply are 0 or None."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_hidden_size: int
    vocab_size: int
    gated: bool = True
    tied_embeddings: bool = False
    attention: Literal["gqa", "mla"] = "gqa"
    q_lora_rank: int | None = None
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    num_experts: int = 0
    experts_per_token: int = 0
    expert_ffn_hidden_size: int = 0
    shared_expert_ffn_hidden_size: int = 0
    first_k_dense: int = 0
    moe_layer_interval: int = 1
    sliding_window: int | None = None
    num_mtp_layers: int = 0
    num_routing_groups: int | None = None
    routing_groups_per_token: int | None = None

    @property
    def layer_kinds(self) -> tuple[Literal["dense", "moe"], ...]:
        """Leading layers are dense, the rest MoE where there are experts."""
        dense = self.first_k_dense if self.num_experts else self.num_layers
        return tuple("dense" if layer < dense else "moe" for layer in range(self.num_layers))


@dataclass(frozen=True)
class Constants:
    """Constants of the roofline, by default of a GPU that runs at its data sheet."""

    gemm: float = 1.0
    grouped_gemm: float = 1.0
    attention: float = 1.0
    memory: float = 1.0
    m0: float = 0.0
    n0: float = 0.0
    s0: float = 0.0
    launch_s: float = 0.0


@dataclass(frozen=True)
class Profile:
    """What the owner of a GPU measured."""

    efficiency: Mapping[str, Constants] = field(default_factory=dict)
    product_times_s: Mapping[tuple[str, float, float, float, float], float] = field(
        default_factory=dict
    )


@dataclass(frozen=True)
class Stack:
    """Training software, by default one that hides half of everything."""

    name: str = "test"
    tp_exposed: float = 0.5
    ep_exposed: float = 0.5
    fsdp_exposed: float = 0.5
    routing_factor: float = 1.0
    host_floor_s: float = 0.0
    fixed_s: float = 0.0
    attention_kernel: Literal["fused", "triton", "unfused"] = "fused"
    selective_recompute: Literal["attention", "operators"] = "attention"
    flat_rings: bool = False
    sequence_parallel: bool = True


@dataclass(frozen=True)
class Gpu:
    """A GPU, by default an H100 in a node of eight."""

    name: str = "H100"
    peak_flops: Mapping[str, float] = field(
        default_factory=lambda: {"bf16": 989e12, "fp8": 1979e12}
    )
    memory_bytes: int = 80 << 30
    memory_bandwidth_bytes_per_s: float = 3.35e12
    scale_up_bytes_per_s: float = 450e9
    scale_up_domain: int = 8
    gpus_per_node: int = 8
    nic_gbps: float = 400.0
    profile: Profile | None = None


@dataclass(frozen=True)
class Degrees:
    """Degrees of parallelism."""

    tp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    micro_batch_size: int = 1
    pp: int = 1
    dp_shard: int = 1


@dataclass(frozen=True)
class Training:
    """A training job."""

    sequence_length: int = 4096
    global_batch_size: int = 256
    precision: str = "bf16"
    gradient_bytes: int = 4
    optimizer_bytes: int = 12
    causal: bool = True
    routing_imbalance: float = 1.0


@dataclass(frozen=True)
class Link:
    """A directed link."""

    capacity_bytes_per_s: float = 50e9
    delay_s: float = 2.5e-3
    loss: float = 0.0
    jitter_s: float = 0.0
    paths: int = 1
    flows: int = 1
    buffer: Literal["deep", "shallow"] = "deep"
    distance_km: float | None = None
    measured_bytes_per_s: Mapping[str, float] = field(default_factory=dict)


Rule = Literal["gbn", "selective_repeat", "lossless", "cubic", "bbr", "erasure", "none"]


@dataclass(frozen=True)
class Protocol:
    """A protocol of a link."""

    loss_rule: Rule = "none"
    name: str = "test"
    balance: Literal["ecmp"] | float = 1.0
    queue_pairs: int = 1
    overhead: float = 1.0
    streams: int = 1
    window_bytes: float | None = None
    code_rate: float = 1.0
    max_distance_km: float | None = None
    needs_deep_buffer: bool = False


STACK = Stack()

NIC = 50e9
"""Bytes/s of a 400 Gb/s NIC."""

LLAMA_8B = Model(32, 4096, 32, 8, 128, 14336, 128256)
LLAMA_70B = Model(80, 8192, 64, 8, 128, 28672, 128256)
LLAMA_405B = Model(126, 16384, 128, 8, 128, 53248, 128256)
GPT3 = Model(96, 12288, 96, 96, 128, 49152, 51200, gated=False, tied_embeddings=True)
MIXTRAL = Model(
    32, 4096, 32, 8, 128, 14336, 32000, num_experts=8, experts_per_token=2,
    expert_ffn_hidden_size=14336,
)  # fmt: skip
DEEPSEEK_V3 = Model(
    61, 7168, 128, 128, 128, 18432, 129280, attention="mla", q_lora_rank=1536, kv_lora_rank=512,
    qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, num_experts=256, experts_per_token=8,
    expert_ffn_hidden_size=2048, shared_expert_ffn_hidden_size=2048, first_k_dense=3,
    num_mtp_layers=1, num_routing_groups=8, routing_groups_per_token=4,
)  # fmt: skip
