"""Alpha-beta times of collectives, and of the communication inside a pipeline stage.

A site has two tiers: the scale-up domain, and the network of one NIC per GPU.  Ranks are placed
with tensor parallelism innermost, then context parallelism, then data parallelism; the expert grid
is folded over the same ranks, expert-tensor parallelism innermost (Megatron-Core MoE parallel
folding, reference cost model 4.2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, comb, log2
from typing import Literal

from planner.cost.curves import ASSUMED, Curve, Curves, Piece, Tier
from planner.cost.types import Degrees, Gpu, LayerKind, ModelShape, Stack, Training

Collective = Literal[
    "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "p2p", "tree_all_reduce"
]

LAUNCH_S = 22e-6
"""Fixed seconds of one collective (SimuMax B200 fit 22 to 26 µs; vTrain A100 logs 46 µs)."""

DOMAIN_STEP_S = 3.4e-6
"""Seconds of one step in the scale-up domain (NCCL ``tuning.cc``, NVLink ring; vTrain 3.2 µs)."""

NETWORK_STEP_S = 9.6e-6
"""Seconds of one step over the network (NCCL ``tuning.cc``, NET ring)."""

DOMAIN_EFFICIENCY = 0.75
"""Share of the nominal scale-up bandwidth (vTrain 0.65 to 0.76, SimuMax 0.67 to 0.74)."""

ALL_TO_ALL_EFFICIENCY = 0.60
"""The same for all-to-all (SimuMax B200 0.597)."""

TREE_EFFICIENCY = 0.9
"""Bus bandwidth of a double binary tree over that of a ring (NCCL ``tuning.cc``)."""

_HALF = 2


@dataclass(frozen=True, slots=True)
class Communication:
    """Seconds of communication of one layer and microbatch, as if nothing hid it."""

    forward: float
    backward: float

    def __add__(self, other: Communication) -> Communication:
        """Communication of two pieces of work that run one after the other."""
        return Communication(self.forward + other.forward, self.backward + other.backward)

    def scaled(self, factor: float) -> Communication:
        """The same communication ``factor`` times."""
        return Communication(self.forward * factor, self.backward * factor)


SILENT = Communication(0.0, 0.0)


def flat_time(
    op: Collective, ranks: int, size_bytes: float, bytes_per_s: float, step_s: float
) -> float:
    """Seconds of a collective over equal ports, without its fixed launch time.

    Parameters
    ----------
    op
        Collective; ``tree_all_reduce`` is a double binary tree, the others rings or direct sends.
    ranks
        Members of the group.
    size_bytes
        The full vector: input of a reduce-scatter, output of an all-gather, all that one rank sends
        in an all-to-all, the message of a point-to-point transfer.
    bytes_per_s
        Bandwidth of one port in each direction.
    step_s
        Latency of one step.

    Raises
    ------
    ValueError
        If the collective is unknown.

    Source: nccl-tests ``PERFORMANCE.md``; NCCL ``tuning.cc`` (reference cost model 4.1).
    """
    steps, wire = load(op, ranks, size_bytes)
    return steps * step_s + wire / bytes_per_s


def load(op: Collective, ranks: int, size_bytes: float) -> tuple[int, float]:
    """Steps of a collective, and bytes that each rank puts on the wire.

    Raises
    ------
    ValueError
        If the collective is unknown.

    Source: as :func:`flat_time`; the bytes of a tree are those that a ring of its speed would send.
    """
    if op == "p2p":
        return 1, size_bytes
    if ranks <= 1:
        return 0, 0.0
    part = (ranks - 1) / ranks * size_bytes
    if op == "all_reduce":
        return 2 * (ranks - 1), 2 * part
    if op in ("reduce_scatter", "all_gather", "all_to_all"):
        return ranks - 1, part
    if op == "tree_all_reduce":
        return 2 * ceil(log2(ranks)), 2 * size_bytes / TREE_EFFICIENCY
    raise ValueError(f"unknown collective {op!r}")


def tier_load(
    op: Collective, ranks: int, size_bytes: float, tier: Tier, curves: Curves
) -> tuple[int, float]:
    """Steps and wire bytes of a collective on a tier.

    Where its switches reduce, every rank sends an all-reduce's vector up once and gets the sum down
    once: two steps and ``S`` bytes.  A measured curve already contains that.

    Source: NVLS and SHARP; reference cost model 4.1.
    """
    reduces = op in ("all_reduce", "tree_all_reduce") and tier in curves.reducing
    measured = curves.find(tier, op)
    if ranks > 1 and reduces and measured is None:
        return 2, size_bytes
    if op == "tree_all_reduce" and measured is not None and measured.any_algorithm:
        op = "all_reduce"
    return load(op, ranks, size_bytes)


def pipelined_time(
    inside: Callable[[int], float], outside: Callable[[int], float], chunks: int
) -> float:
    """Seconds of two levels, each given by the seconds of one of ``c`` equal chunks.

    With ``c`` chunks a level pays its latency ``c`` times, and all but one chunk of the faster
    level hide behind the slower one: ``max + min/c``, for the best ``c`` up to ``chunks``.

    Source: reference cost model 4.2.
    """
    best = inside(1) + outside(1)
    for c in range(2, chunks + 1):
        one = inside(c), outside(c)
        best = min(best, c * max(one) + min(one))
    return best


def domain_curve(gpu: Gpu, op: Collective, curves: Curves) -> Curve:
    """The curve of a collective in the scale-up domain."""
    piece = Piece(DOMAIN_STEP_S, domain_bytes_per_s(gpu, op))
    return curves.scale_up(op, Curve(LAUNCH_S, (piece,)))


def network_curve(nic_bytes_per_s: float, op: Collective, curves: Curves) -> Curve:
    """The curve of a collective over the network, with the NIC rate that its group gets."""
    return curves.network(op, Curve(LAUNCH_S, (Piece(NETWORK_STEP_S, nic_bytes_per_s),)))


def domain_bytes_per_s(gpu: Gpu, op: Collective = "all_reduce") -> float:
    """Bandwidth of one GPU in its scale-up domain for a collective, bytes/s."""
    share = ALL_TO_ALL_EFFICIENCY if op == "all_to_all" else DOMAIN_EFFICIENCY
    return gpu.scale_up_bytes_per_s * share


def group_time(
    op: Collective,
    ranks: int,
    ranks_in_domain: int,
    size_bytes: float,
    gpu: Gpu,
    nic_bytes_per_s: float,
    curves: Curves = ASSUMED,
) -> float:
    """Seconds of a collective inside one site.

    A group that spans several scale-up domains works in levels: an all-reduce is a reduce-scatter
    in the domain, an all-reduce of each shard over the network and an all-gather in the domain.
    An all-to-all uses both tiers at once.  A point-to-point transfer takes the network unless the
    whole group shares a domain.

    Parameters
    ----------
    ranks_in_domain
        How many members share one domain; the others sit in further domains of as many.
    size_bytes
        As in :func:`flat_time`.
    nic_bytes_per_s
        Network bandwidth per GPU and direction, oversubscription of the fabric included.
    curves
        What was measured in the site.

    Raises
    ------
    ValueError
        If ``ranks_in_domain`` is not positive.

    Source: reference cost model 4.2; NCCL ``tuning.cc``.
    """
    if ranks_in_domain < 1:
        raise ValueError(f"ranks_in_domain must be at least 1, not {ranks_in_domain}")
    if ranks <= 1:
        return 0.0
    near = min(ranks, ranks_in_domain)
    domains = ceil(ranks / near)
    fast, slow = domain_curve(gpu, op, curves), network_curve(nic_bytes_per_s, op, curves)
    if domains == 1:
        return fast.launch_s + fast.seconds(*tier_load(op, ranks, size_bytes, "scale_up", curves))
    if op == "p2p":
        return slow.launch_s + slow.seconds(*load(op, 2, size_bytes))
    launch = max(fast.launch_s, slow.launch_s)
    if op == "all_to_all":
        inside = fast.seconds(near - 1, (near - 1) / ranks * size_bytes)
        outside = slow.seconds(ranks - near, (ranks - near) / ranks * size_bytes)
        return launch + max(inside, outside)
    far_steps, far_wire = tier_load(op, domains, size_bytes / near, "network", curves)
    one_way = op in ("reduce_scatter", "all_gather")
    half = fast if one_way else domain_curve(gpu, "all_gather", curves)
    passes = 1 if one_way else 2
    steps, wire = load(op if one_way else "all_gather", near, size_bytes)
    return launch + pipelined_time(
        lambda c: passes * half.seconds(steps, wire / c),
        lambda c: slow.seconds(far_steps, far_wire / c),
        curves.chunks,
    )


def tensor_parallel_bytes(
    model: ModelShape, kind: LayerKind, degrees: Degrees, training: Training
) -> Communication:
    """Bytes that one GPU sends per layer and microbatch for TP with sequence parallelism.

    ``4·2Th·(t−1)/t`` forward and ``6·2Th·(t−1)/t`` backward over ``T = s·b/c`` tokens; half of it
    where the feed-forward block is not divided by TP (MoE without shared experts).

    Source: reference cost model 4.3; Korthikanti 2022 (arXiv 2205.05198) section 4.2.
    """
    tp = degrees.tp
    one = _tokens(degrees, training) * model.hidden_size * _HALF * (tp - 1) / tp
    blocks = _tensor_parallel_blocks(model, kind)
    return Communication(2 * blocks * one, 3 * blocks * one)


def tensor_parallel(
    model: ModelShape,
    kind: LayerKind,
    gpu: Gpu,
    degrees: Degrees,
    training: Training,
    nic_bytes_per_s: float,
    stack: Stack,
    curves: Curves = ASSUMED,
) -> Communication:
    """Seconds of the collectives of TP.

    With sequence parallelism an all-gather and a reduce-scatter per divided block forward, and one
    gather more backward (of the input, for the weight gradient); without it one all-reduce each.

    Source: reference cost model 4.3.
    """
    if degrees.tp == 1:
        return SILENT
    size = _tokens(degrees, training) * model.hidden_size * _HALF
    domain = gpu.scale_up_domain
    one = group_time("all_gather", degrees.tp, domain, size, gpu, nic_bytes_per_s, curves)
    blocks = _tensor_parallel_blocks(model, kind)
    backward = 3 if stack.sequence_parallel else 2
    return Communication(2 * blocks * one, backward * blocks * one)


def vocabulary_parallel(
    model: ModelShape,
    gpu: Gpu,
    degrees: Degrees,
    training: Training,
    nic_bytes_per_s: float,
    curves: Curves = ASSUMED,
) -> tuple[Communication, Communication]:
    """Seconds of TP communication of the embedding and of the head.

    Embedding: one reduce-scatter forward, one all-gather backward.  Head: one all-gather forward,
    a reduce-scatter and an all-gather backward, once more for each prediction module.  The layer
    inside a module communicates like any layer of its kind and is not part of this.

    Source: Megatron-Core ``VocabParallelEmbedding`` and output layer with sequence parallelism.
    """
    if degrees.tp == 1:
        return SILENT, SILENT
    size = _tokens(degrees, training) * model.hidden_size * _HALF
    domain = gpu.scale_up_domain
    one = group_time("all_gather", degrees.tp, domain, size, gpu, nic_bytes_per_s, curves)
    heads = 1 + model.num_mtp_layers
    return Communication(one, one), Communication(heads * one, 2 * heads * one)


def context_parallel_bytes(
    model: ModelShape, degrees: Degrees, training: Training
) -> Communication:
    """Bytes that one GPU sends per layer and microbatch in ring attention.

    ``c − 1`` steps with the keys and values of one rank, ``2·2·T·k·d/t`` bytes forward, twice that
    backward (again, and their gradients).  MLA exchanges the expanded heads.

    Source: reference cost model 4.3; Ring Attention (arXiv 2310.01889).
    """
    steps = degrees.cp - 1
    step = _tokens(degrees, training) * _kv_width(model, degrees) * _HALF
    return Communication(steps * step, 2 * steps * step)


def context_parallel(
    model: ModelShape,
    gpu: Gpu,
    degrees: Degrees,
    training: Training,
    nic_bytes_per_s: float,
    curves: Curves = ASSUMED,
) -> Communication:
    """Seconds of the ring of CP; runs beside the core attention.

    Every step waits for its slowest hop: the network where the ring leaves a scale-up domain.

    Source: reference cost model 4.3.
    """
    if degrees.cp == 1:
        return SILENT
    near = max(1, gpu.scale_up_domain // degrees.tp)
    step = _tokens(degrees, training) * _kv_width(model, degrees) * _HALF
    ranks = degrees.cp
    forward = group_time("p2p", ranks, near, step, gpu, nic_bytes_per_s, curves)
    backward = group_time("p2p", ranks, near, 2 * step, gpu, nic_bytes_per_s, curves)
    return Communication((ranks - 1) * forward, (ranks - 1) * backward)


def expert_parallel_bytes(
    model: ModelShape, gpu: Gpu, degrees: Degrees, training: Training
) -> tuple[float, float]:
    """Bytes that one GPU sends in one dispatch or combine: in its domain, and over the network.

    Each of ``T/t`` tokens goes to ``K`` experts in half precision, times the imbalance.  It crosses
    the network once per domain that it visits and is copied inside the domain: of ``D`` domains
    that share ``E`` experts it visits ``D(1 − C(E − E/D, K)/C(E, K))`` on average, at most
    ``min(groups per token, D, K)`` with node-limited routing, and of those the share
    ``(D − 1)/D`` is remote.

    Source: reference cost model 4.3; DeepSeek-V3 (arXiv 2412.19437) section 3.2.2; DeepEP.
    """
    ranks, top = degrees.ep, model.experts_per_token
    row = _tokens(degrees, training) / degrees.tp * model.hidden_size * _HALF
    row *= training.routing_imbalance
    near = min(ranks, max(1, gpu.scale_up_domain // degrees.etp))
    domains = ceil(ranks / near)
    if domains == 1:
        return row * top * (ranks - 1) / ranks, 0.0
    experts = model.num_experts
    elsewhere = comb(experts - experts // domains, top) / comb(experts, top)
    visits = domains * (1 - elsewhere)
    limit = model.routing_groups_per_token
    if limit is not None:
        visits = min(visits, limit)
    return row * top * (near - 1) / near, row * visits * (domains - 1) / domains


def expert_parallel(
    model: ModelShape,
    kind: LayerKind,
    gpu: Gpu,
    degrees: Degrees,
    training: Training,
    nic_bytes_per_s: float,
    curves: Curves = ASSUMED,
) -> Communication:
    """Seconds of dispatch and combine of a MoE layer, and of ETP's collectives.

    Two all-to-all forward and two backward; both tiers work at once.  With expert-tensor
    parallelism every rank gathers the token copies of its group and scatters the results.

    Source: reference cost model 4.1 and 4.3.
    """
    if kind == "dense":
        return SILENT
    one = 0.0
    if degrees.ep > 1:
        inside, outside = expert_parallel_bytes(model, gpu, degrees, training)
        near = min(degrees.ep, max(1, gpu.scale_up_domain // degrees.etp))
        fast = domain_curve(gpu, "all_to_all", curves)
        slow = network_curve(nic_bytes_per_s, "all_to_all", curves)
        domains = ceil(degrees.ep / near)
        one = fast.launch_s if domains == 1 else max(fast.launch_s, slow.launch_s)
        one += max(fast.seconds(near - 1, inside), slow.seconds(domains - 1, outside))
    if degrees.etp > 1:
        copies = _tokens(degrees, training) / degrees.tp * model.experts_per_token
        copies *= training.routing_imbalance * degrees.etp
        size = copies * model.hidden_size * _HALF
        domain = gpu.scale_up_domain
        one += group_time("all_gather", degrees.etp, domain, size, gpu, nic_bytes_per_s, curves)
    return Communication(2 * one, 2 * one)


def _tokens(degrees: Degrees, training: Training) -> float:
    return degrees.micro_batch_size * training.sequence_length / degrees.cp


def _tensor_parallel_blocks(model: ModelShape, kind: LayerKind) -> int:
    return 2 if kind == "dense" or model.shared_expert_ffn_hidden_size else 1


def _kv_width(model: ModelShape, degrees: Degrees) -> float:
    if model.attention == "mla":
        width = model.qk_nope_head_dim + model.qk_rope_head_dim + model.v_head_dim
        return model.num_heads / degrees.tp * width
    return 2 * max(model.num_kv_heads / degrees.tp, 1.0) * model.head_dim
