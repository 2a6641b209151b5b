"""Rules that tie ``search`` to the model, the batch and the cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import TYPE_CHECKING

from planner.instance._base import problem
from planner.instance.errors import nearest
from planner.instance.search_space import (
    LARGEST_PIPELINE,
    MICRO_BATCH_SIZES,
    PIPELINE_DEGREES,
    TOKENS_PER_CONTEXT_RANK,
    VIRTUAL_STAGES_OF_SCHEDULE,
)

if TYPE_CHECKING:
    from planner.instance.schema import Instance


def pipeline_degrees(num_layers: int) -> tuple[int, ...]:
    """The pipeline degrees of the default space: the fixed ones and the divisors of the layers."""
    divisors = {p for p in range(1, LARGEST_PIPELINE + 1) if num_layers % p == 0}
    return tuple(p for p in sorted(divisors | set(PIPELINE_DEGREES)) if p <= num_layers)


def check_search(instance: Instance) -> None:
    """Refuse the first allowed value that no plan of this instance can take."""
    refusals: dict[str, Callable[[Instance, int], str | None]] = {
        "tp": _tp,
        "cp": _cp,
        "ep": _ep,
        "pp": _pp,
        "virtual_stages": _virtual_stages,
        "micro_batch_size": _divides_batch,
        "dp": _dp,
        "dp_shard": _part_of_dp,
        "dp_replicate": _part_of_dp,
        "num_microbatches": _divides_batch,
        "gpus_used": _gpus_used,
        "run_length": _run_length,
    }
    for key, refuse in refusals.items():
        for i, value in enumerate(getattr(instance.search, key) or ()):
            reason = refuse(instance, value)
            if reason:
                raise problem(f"{value} {reason}", at=("search", key, i))
    _check_protocols(instance)
    for key, reason in _combinations(instance):
        raise problem(reason, at=("search", key))


def _tp(instance: Instance, tp: int) -> str | None:
    model = instance.model
    domain = max(site.gpu.scale_up_domain for site in instance.cluster.sites)
    if tp > domain:
        return f"is more than the largest scale-up domain of {domain} GPUs"
    if model.num_heads % tp:
        return f"does not divide the {model.num_heads} heads"
    if "dense" in model.layer_kinds and model.ffn_hidden_size % tp:
        return f"does not divide the FFN width {model.ffn_hidden_size}"
    if model.shared_expert_ffn_hidden_size % tp:
        return f"does not divide the shared expert width {model.shared_expert_ffn_hidden_size}"
    heads = model.num_kv_heads
    if model.attention == "gqa" and heads % tp and not instance.stack.replicates_kv_heads:
        return f"does not divide the {heads} KV heads, which the stack does not replicate"
    if model.attention == "gqa" and heads % tp and tp % heads:
        return f"neither divides the {heads} KV heads nor is a multiple of them"
    return None


def _cp(instance: Instance, cp: int) -> str | None:
    length = instance.training.sequence_length
    if cp > 1 and length % (2 * cp):
        return f"does not split a sequence of {length} tokens: it must be a multiple of {2 * cp}"
    if cp > 1 and length // cp < TOKENS_PER_CONTEXT_RANK:
        return (
            f"leaves {length // cp} tokens per rank, at least {TOKENS_PER_CONTEXT_RANK} are needed"
        )
    return None


def _ep(instance: Instance, ep: int) -> str | None:
    experts = instance.model.num_experts
    if ep > 1 and not experts:
        return "needs experts, the model is dense"
    if experts % ep:
        return f"does not divide the {experts} experts"
    return None


def _pp(instance: Instance, pp: int) -> str | None:
    layers = instance.model.num_layers
    if pp > layers:
        return f"stages cannot share {layers} layers"
    allowed = pipeline_degrees(layers)
    if pp not in allowed:
        return f"is not among the pipeline degrees {', '.join(map(str, allowed))}"
    return None


def _virtual_stages(instance: Instance, virtual_stages: int) -> str | None:
    layers = instance.model.num_layers
    if virtual_stages > layers:
        return f"chunks per stage are more than the {layers} layers"
    schedules = instance.search.schedule or tuple(VIRTUAL_STAGES_OF_SCHEDULE)
    if not any(virtual_stages in VIRTUAL_STAGES_OF_SCHEDULE[name] for name in schedules):
        return f"chunks per stage fit none of the schedules {', '.join(schedules)}"
    return None


def _divides_batch(instance: Instance, value: int) -> str | None:
    batch = instance.training.global_batch_size
    return f"does not divide the global batch of {batch} sequences" if batch % value else None


def _dp(instance: Instance, dp: int) -> str | None:
    batch = instance.training.global_batch_size
    sizes = instance.search.micro_batch_size or MICRO_BATCH_SIZES
    if any(batch % (dp * size) == 0 for size in sizes):
        return None
    return (
        f"replicas cannot share a global batch of {batch} sequences in microbatches of "
        f"{' or '.join(map(str, sizes))}"
    )


def _part_of_dp(instance: Instance, part: int) -> str | None:
    allowed = instance.search.dp
    if allowed is None:
        return _divides_batch(instance, part)
    if any(dp % part == 0 for dp in allowed):
        return None
    return f"divides none of dp {', '.join(map(str, allowed))}"


def _gpus_used(instance: Instance, gpus: int) -> str | None:
    total = sum(site.num_gpus for site in instance.cluster.sites)
    return f"is more than the {total} GPUs of all sites" if gpus > total else None


def _check_protocols(instance: Instance) -> None:
    known = instance.cluster.known_protocols
    for i, name in enumerate(instance.search.protocols or ()):
        if name not in known:
            raise problem(
                f"unknown protocol '{name}'",
                at=("search", "protocols", i),
                suggestion=nearest(name, known),
            )


def _run_length(instance: Instance, length: int) -> str | None:
    batch = instance.training.global_batch_size
    if length > batch:
        return f"is more than the {batch} sequences of the global batch"
    return None


def _combinations(instance: Instance) -> Iterator[tuple[str, str]]:
    """Keys whose allowed values exclude each other, each with its reason."""
    search, batch = instance.search, instance.training.global_batch_size
    if (
        search.schedule
        and search.virtual_stages
        and not any(
            v in VIRTUAL_STAGES_OF_SCHEDULE[name]
            for name, v in product(search.schedule, search.virtual_stages)
        )
    ):
        yield "schedule", "none of them runs with the allowed virtual_stages"
    sizes = set(search.micro_batch_size or MICRO_BATCH_SIZES)
    if (
        search.dp
        and search.num_microbatches
        and not any(
            batch % (dp * m) == 0 and batch // (dp * m) in sizes
            for dp, m in product(search.dp, search.num_microbatches)
        )
    ):
        yield (
            "num_microbatches",
            f"no dp x num_microbatches x micro_batch_size gives the global batch of {batch}",
        )
    if search.dp and search.dp_shard and search.dp_replicate:
        degrees = set(search.dp)
        pairs = product(search.dp_shard, search.dp_replicate)
        if not any(shard * replicate in degrees for shard, replicate in pairs):
            yield "dp", "no dp_shard x dp_replicate gives an allowed dp"
    yield from _layer_split(instance)


def _layer_split(instance: Instance) -> Iterator[tuple[str, str]]:
    search, split = instance.search, instance.search.fixed_layers_per_stage
    if split is None:
        return
    layers, chunks = instance.model.num_layers, len(split)
    key = "fixed_layers_per_stage"
    if sum(split) != layers:
        yield key, f"adds up to {sum(split)} layers, the model has {layers}"
    degrees = search.pp or pipeline_degrees(layers)
    virtual = search.virtual_stages or VIRTUAL_STAGES_OF_SCHEDULE["interleaved"]
    if not any(pp * v == chunks for pp, v in product(degrees, virtual)):
        yield key, f"has {chunks} chunks, which is no allowed pp x virtual_stages"
