"""The plan space: default ranges of every choice and the legality of a degrees case.

``docs/plan_space.md`` gives the table that this module implements.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import gcd, lcm
from typing import TYPE_CHECKING

from planner.instance.checks import pipeline_degrees
from planner.instance.search_space import (
    EXTRA_WARMUP,
    MICRO_BATCH_SIZES,
    TOKENS_PER_CONTEXT_RANK,
    VIRTUAL_STAGES,
)
from planner.pipeline.schedules import SCHEDULES
from planner.plan import Degrees, Sharding

if TYPE_CHECKING:
    from planner.problem import Problem


@lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    """Divisors of a positive integer, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(sorted(set(small + [number // d for d in small])))


def powers_of_two(limit: int) -> tuple[int, ...]:
    """Powers of two up to a limit."""
    return tuple(1 << i for i in range(max(limit, 1).bit_length()) if 1 << i <= limit)


def tp_range(problem: Problem) -> tuple[int, ...]:
    """Tensor-parallel degrees: powers of two up to the largest scale-up domain."""
    return powers_of_two(max(c.gpu.scale_up_domain for c in problem.classes))


def cp_range(problem: Problem) -> tuple[int, ...]:
    """Context-parallel degrees: powers of two that leave 4,096 tokens a rank."""
    return powers_of_two(max(1, problem.training.sequence_length // TOKENS_PER_CONTEXT_RANK))


def ep_range(problem: Problem) -> tuple[int, ...]:
    """Expert-parallel degrees: powers of two that divide the experts."""
    experts = problem.model.num_experts
    return tuple(e for e in powers_of_two(experts) if experts % e == 0) or (1,)


def pp_range(problem: Problem) -> tuple[int, ...]:
    """Pipeline degrees: the usual ones and every divisor of the layers, at most one a layer."""
    return tuple(sorted(pipeline_degrees(problem.model.num_layers)))


def dp_range(problem: Problem, micro_batch_size: int) -> tuple[int, ...]:
    """Data-parallel degrees: divisors of the batch in microbatches."""
    batch = problem.training.global_batch_size
    return divisors(batch // micro_batch_size) if batch % micro_batch_size == 0 else ()


def tp_legal(problem: Problem, tp: int) -> bool:
    """``tp`` divides heads and FFN widths; KV heads split evenly or are replicated evenly.

    Replication is up to the training software (``stack.replicates_kv_heads``).
    """
    model = problem.model
    widths = [model.num_heads]
    if "dense" in model.layer_kinds:
        widths.append(model.ffn_hidden_size)
    if model.shared_expert_ffn_hidden_size:
        widths.append(model.shared_expert_ffn_hidden_size)
    kv = model.num_kv_heads
    replicates = problem.instance.stack.replicates_kv_heads and tp % kv == 0
    return all(w % tp == 0 for w in widths) and (kv % tp == 0 or replicates)


def cp_legal(problem: Problem, cp: int) -> bool:
    """The sequence splits into ``2 * cp`` equal parts."""
    return cp == 1 or problem.training.sequence_length % (2 * cp) == 0


def expert_groups_legal(degrees: Degrees, num_experts: int) -> bool:
    """Expert groups fill whole replicas' worth of ranks, and expert shards come out whole."""
    group = degrees.ep * degrees.etp
    if num_experts == 0:
        return group == 1
    cell = degrees.cell_gpus
    if num_experts % degrees.ep or (degrees.dp * cell) % group:
        return False
    shard = degrees.dp_shard * cell
    return shard % group == 0 or group % shard == 0


def sharding_legal(degrees: Degrees, sharding: Sharding) -> bool:
    """``ddp`` shards nothing; the ZeRO modes need ``dp_shard * cp`` ranks to shard over."""
    if sharding == "ddp":
        return degrees.dp_shard == 1
    return degrees.dp_shard * degrees.cp > 1


def granularity(degrees: Degrees, *, spanning: bool) -> int:
    """Replicas of a stage at one site are a multiple of this.

    A site holds whole expert groups (``ep * etp`` ranks out of ``tp * cp`` per replica) and, unless
    shard groups may span sites, whole shard groups.
    """
    group = degrees.ep * degrees.etp
    experts = group // gcd(group, degrees.cell_gpus)
    return experts if spanning else lcm(experts, degrees.dp_shard)


def virtual_stages_range(schedule: str) -> tuple[int, ...]:
    """Chunks per stage that a schedule allows."""
    return tuple(v for v in VIRTUAL_STAGES if SCHEDULES[schedule].allows_chunks(v))


def schedules_for(virtual_stages: int) -> Iterator[str]:
    """Schedules that run with ``virtual_stages`` chunks, in canonical order."""
    return (name for name in SCHEDULES if SCHEDULES[name].allows_chunks(virtual_stages))


__all__ = [
    "EXTRA_WARMUP",
    "MICRO_BATCH_SIZES",
    "VIRTUAL_STAGES",
    "cp_legal",
    "cp_range",
    "divisors",
    "dp_range",
    "ep_range",
    "expert_groups_legal",
    "granularity",
    "powers_of_two",
    "pp_range",
    "schedules_for",
    "sharding_legal",
    "tp_legal",
    "tp_range",
    "virtual_stages_range",
]
