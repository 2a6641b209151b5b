"""What the cost functions need to know of models, GPUs, degrees, training jobs and links.

The protocols are structural: any frozen object with these attributes will do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

LayerKind = Literal["dense", "moe"]
Sharding = Literal["ddp", "zero1", "zero2", "zero3"]
Recompute = Literal["none", "selective", "full"]


class ModelShape(Protocol):
    """Dimensions of a decoder-only transformer."""

    @property
    def num_layers(self) -> int:
        """Transformer layers, without those of multi-token prediction."""

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""

    @property
    def num_heads(self) -> int:
        """Query heads."""

    @property
    def num_kv_heads(self) -> int:
        """Key and value heads (GQA)."""

    @property
    def head_dim(self) -> int:
        """Width of one head (GQA)."""

    @property
    def ffn_hidden_size(self) -> int:
        """Inner width of a dense feed-forward block."""

    @property
    def gated(self) -> bool:
        """True for SwiGLU or GEGLU blocks, which have three matrices."""

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""

    @property
    def tied_embeddings(self) -> bool:
        """True where the output head shares the embedding."""

    @property
    def attention(self) -> Literal["gqa", "mla"]:
        """Attention family."""

    @property
    def q_lora_rank(self) -> int | None:
        """Rank of the query compression (MLA); None for one full query matrix."""

    @property
    def kv_lora_rank(self) -> int:
        """Rank of the key and value compression (MLA)."""

    @property
    def qk_nope_head_dim(self) -> int:
        """Width of the part of a query or key without rotary embedding (MLA)."""

    @property
    def qk_rope_head_dim(self) -> int:
        """Width of the part with rotary embedding (MLA)."""

    @property
    def v_head_dim(self) -> int:
        """Width of a value (MLA)."""

    @property
    def num_experts(self) -> int:
        """Routed experts of a MoE layer, 0 for dense models."""

    @property
    def experts_per_token(self) -> int:
        """Routed experts that one token visits."""

    @property
    def expert_ffn_hidden_size(self) -> int:
        """Inner width of one routed expert."""

    @property
    def shared_expert_ffn_hidden_size(self) -> int:
        """Inner width of all shared experts together."""

    @property
    def first_k_dense(self) -> int:
        """Number of leading layers that are dense."""

    @property
    def moe_layer_interval(self) -> int:
        """Every so many layers one is MoE."""

    @property
    def sliding_window(self) -> int | None:
        """Attention window in tokens."""

    @property
    def num_mtp_layers(self) -> int:
        """Multi-token prediction modules."""

    @property
    def num_routing_groups(self) -> int | None:
        """Groups of experts for node-limited routing."""

    @property
    def routing_groups_per_token(self) -> int | None:
        """Groups that the experts of one token come from."""

    @property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """Kind of each layer, shape (num_layers,)."""


class EfficiencyConstants(Protocol):
    """Constants of the roofline on one GPU in one precision."""

    @property
    def gemm(self) -> float:
        """Share of the peak that large matrix products reach."""

    @property
    def grouped_gemm(self) -> float:
        """The same for the products of a group of experts."""

    @property
    def attention(self) -> float:
        """The same for fused attention."""

    @property
    def memory(self) -> float:
        """Share of the HBM bandwidth that elementwise kernels reach."""

    @property
    def m0(self) -> float:
        """Tokens at which a matrix product runs at half its efficiency."""

    @property
    def n0(self) -> float:
        """Features at which it does."""

    @property
    def s0(self) -> float:
        """Tokens per context-parallel rank at which attention does."""

    @property
    def launch_s(self) -> float:
        """Seconds per kernel."""


class Profile(Protocol):
    """A user's own measurements of a GPU."""

    @property
    def efficiency(self) -> Mapping[Any, EfficiencyConstants]:
        """Constants by precision."""

    @property
    def product_times_s(self) -> Mapping[tuple[str, float, float, float, float], float]:
        """Seconds of matrix products by (precision, m, n, k, groups)."""


class Stack(Protocol):
    """The training software."""

    @property
    def name(self) -> str:
        """Key of the stack."""

    @property
    def tp_exposed(self) -> float:
        """Share of the tensor-parallel communication that no computation hides."""

    @property
    def ep_exposed(self) -> float:
        """The same for expert-parallel communication."""

    @property
    def fsdp_exposed(self) -> float:
        """The same for gathering sharded weights and scattering their gradients."""

    @property
    def routing_factor(self) -> float:
        """Memory traffic of moving tokens to experts and back over that of fused kernels."""

    @property
    def host_floor_s(self) -> float:
        """Seconds in which the host can launch the forward of one layer."""

    @property
    def fixed_s(self) -> float:
        """Seconds per iteration that depend on nothing."""

    @property
    def attention_kernel(self) -> Literal["fused", "triton", "unfused"]:
        """Kernel of the core attention; ``unfused`` writes the scores to memory."""

    @property
    def selective_recompute(self) -> Literal["attention", "operators"]:
        """What ``selective`` runs again."""

    @property
    def loss_kernel(self) -> Literal["fused", "compiled", "eager"]:
        """How the loss is computed from the logits."""

    @property
    def expert_kernels(self) -> Literal["fused", "separate"]:
        """How gate, activation and weighted sum of routed experts run."""

    @property
    def optimizer_kernel(self) -> Literal["fused", "foreach"]:
        """How the optimizer step runs."""

    @property
    def shards_master_weights(self) -> bool:
        """True where ``zero3`` shards the master copy and gathers from it."""

    @property
    def eight_bit_inputs(self) -> bool:
        """True where linear layers in 8-bit precision keep their inputs in 8 bits."""

    @property
    def flat_rings(self) -> bool:
        """True where a collective over several domains is one ring with one NIC per domain."""

    @property
    def sequence_parallel(self) -> bool:
        """False where norms and residuals are repeated on every tensor-parallel rank."""


class Gpu(Protocol):
    """Data-sheet figures of a GPU and its node, and what its owner measured."""

    @property
    def name(self) -> str:
        """Type, for example ``H100``."""

    @property
    def peak_flops(self) -> Mapping[Any, float]:
        """Dense peak by name of the precision, FLOP/s."""

    @property
    def memory_bytes(self) -> int:
        """Size of the HBM."""

    @property
    def memory_bandwidth_bytes_per_s(self) -> float:
        """Bandwidth of the HBM."""

    @property
    def scale_up_bytes_per_s(self) -> float:
        """Bandwidth of the scale-up fabric per GPU and direction."""

    @property
    def scale_up_domain(self) -> int:
        """GPUs of one scale-up domain."""

    @property
    def gpus_per_node(self) -> int:
        """GPUs of one node."""

    @property
    def nic_gbps(self) -> float:
        """Network bandwidth per GPU and direction, Gb/s."""

    @property
    def profile(self) -> Profile | None:
        """The owner's measurements, in place of the shipped constants."""


class Degrees(Protocol):
    """Degrees of parallelism inside one pipeline stage."""

    @property
    def tp(self) -> int:
        """Tensor parallelism."""

    @property
    def cp(self) -> int:
        """Context parallelism."""

    @property
    def ep(self) -> int:
        """Expert parallelism."""

    @property
    def etp(self) -> int:
        """Tensor parallelism inside an expert."""

    @property
    def micro_batch_size(self) -> int:
        """Sequences of one microbatch."""


class ShardedDegrees(Degrees, Protocol):
    """Degrees of parallelism together with those that decide how state is sharded."""

    @property
    def pp(self) -> int:
        """Pipeline stages."""

    @property
    def dp_shard(self) -> int:
        """Data-parallel ranks that share one copy of the state."""


class Training(Protocol):
    """The training job."""

    @property
    def global_batch_size(self) -> int:
        """Sequences of one iteration."""

    @property
    def sequence_length(self) -> int:
        """Tokens of one sequence."""

    @property
    def precision(self) -> str:
        """Precision of the linear layers: a key of :attr:`Gpu.peak_flops`."""

    @property
    def gradient_bytes(self) -> int:
        """Bytes of one accumulated gradient."""

    @property
    def optimizer_bytes(self) -> int:
        """Bytes of master copy and moments per parameter."""

    @property
    def causal(self) -> bool:
        """True where a token attends to earlier ones only."""

    @property
    def routing_imbalance(self) -> float:
        """Tokens of the fullest expert rank over the mean, at least 1."""


class Link(Protocol):
    """One direction of a connection between two sites or hubs."""

    @property
    def capacity_bytes_per_s(self) -> float:
        """Sum over the parallel paths."""

    @property
    def delay_s(self) -> float:
        """One-way propagation delay."""

    @property
    def jitter_s(self) -> float:
        """Spread of the one-way delay."""

    @property
    def loss(self) -> float:
        """Probability that a packet is lost, below 1."""

    @property
    def paths(self) -> int:
        """Equal parallel paths."""

    @property
    def flows(self) -> int:
        """Flows that cross the link at the same time."""

    @property
    def buffer(self) -> Literal["deep", "shallow"]:
        """Kind of switch buffer at the ends."""

    @property
    def distance_km(self) -> float | None:
        """Length of the fibre; None to derive it from the delay."""

    @property
    def measured_bytes_per_s(self) -> Mapping[str, float]:
        """Measured rate of all flows together, by name of the protocol."""


class LinkProtocol(Protocol):
    """How a link is driven."""

    @property
    def name(self) -> str:
        """Key of the protocol."""

    @property
    def balance(self) -> Literal["ecmp"] | float:
        """Usable share of the parallel paths, or ``ecmp`` for hashed flows."""

    @property
    def queue_pairs(self) -> int:
        """Queue pairs of one flow, each hashed on its own."""

    @property
    def loss_rule(
        self,
    ) -> Literal["gbn", "selective_repeat", "lossless", "cubic", "bbr", "erasure", "none"]:
        """How lost packets are recovered."""

    @property
    def overhead(self) -> float:
        """Share of the capacity that headers and hosts leave, in (0, 1]."""

    @property
    def streams(self) -> int:
        """Parallel TCP connections of one flow."""

    @property
    def window_bytes(self) -> float | None:
        """Bytes in flight that one queue pair or stream allows; None for no limit."""

    @property
    def code_rate(self) -> float:
        """Data packets over all packets of an erasure code, in (0, 1]."""

    @property
    def max_distance_km(self) -> float | None:
        """Longest link the protocol can drive."""

    @property
    def needs_deep_buffer(self) -> bool:
        """True where the protocol works with deep buffers only."""
