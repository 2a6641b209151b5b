"""The ``search`` key: which values of each choice a plan may take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field

from planner.instance._base import (
    Count,
    CountOrZero,
    Flag,
    Frozen,
    GpuCount,
    LayerCount,
    Name,
    problem,
)

Schedule = Literal["gpipe", "1f1b", "interleaved", "zb_h1", "zb_h2", "zbv", "dualpipe_v", "dora"]
Sharding = Literal["ddp", "zero1", "zero2", "zero3"]
Sync = Literal["flat", "hierarchical"]
Recompute = Literal["none", "selective", "full"]
PlacementKind = Literal["single-site", "dp-out", "pp-out", "mixed"]

MICRO_BATCH_SIZES = (1, 2, 4, 8)
VIRTUAL_STAGES = tuple(range(1, 9))
EXTRA_WARMUP = tuple(range(9))
PIPELINE_DEGREES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
LARGEST_PIPELINE = 64
TOKENS_PER_CONTEXT_RANK = 4096
VIRTUAL_STAGES_OF_SCHEDULE: dict[Schedule, tuple[int, ...]] = {
    "gpipe": (1,),
    "1f1b": (1,),
    "interleaved": VIRTUAL_STAGES,
    "zb_h1": (1,),
    "zb_h2": (1,),
    "zbv": (2,),
    "dualpipe_v": (2,),
    "dora": VIRTUAL_STAGES,
}

T = TypeVar("T")


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list | tuple | dict) else [value]


def _no_repeats(values: tuple[T, ...]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(values))


def _power_of_two(value: int) -> int:
    if value & (value - 1):
        raise problem(f"expected a power of two, got {value}")
    return value


def _one_of(allowed: tuple[int, ...]) -> AfterValidator:
    def check(value: int) -> int:
        if value not in allowed:
            raise problem(f"expected one of {', '.join(map(str, allowed))}; got {value}")
        return value

    return AfterValidator(check)


Allowed = Annotated[
    tuple[T, ...],
    Field(min_length=1, max_length=1000),
    AfterValidator(_no_repeats),
    BeforeValidator(_as_list, json_schema_input_type=T | list[T]),
]
"""One allowed value or a list of them."""

PowerOfTwo = Annotated[Count, AfterValidator(_power_of_two)]


class Search(Frozen):
    """Allowed values per choice; null = the whole default range."""

    tp: Allowed[PowerOfTwo] | None = None
    cp: Allowed[PowerOfTwo] | None = None
    ep: Allowed[PowerOfTwo] | None = None
    etp: Allowed[Annotated[Count, _one_of((1,))]] | None = None
    pp: Allowed[LayerCount] | None = None
    virtual_stages: Allowed[Annotated[Count, _one_of(VIRTUAL_STAGES)]] | None = None
    micro_batch_size: Allowed[Annotated[Count, _one_of(MICRO_BATCH_SIZES)]] | None = None
    dp: Allowed[Count] | None = None
    dp_shard: Allowed[Count] | None = None
    dp_replicate: Allowed[Count] | None = None
    num_microbatches: Allowed[Count] | None = None
    gpus_used: Allowed[GpuCount] | None = None
    """GPUs of the plan, tp * cp * pp * dp."""
    schedule: Allowed[Schedule] | None = None
    run_length: Allowed[Count] | None = None
    extra_warmup: Allowed[Annotated[CountOrZero, _one_of(EXTRA_WARMUP)]] | None = None
    sharding: Allowed[Sharding] | None = None
    sync: Allowed[Sync] | None = None
    overlap: Allowed[Flag] | None = None
    recompute: Allowed[Recompute] | None = None
    placement_kind: Allowed[PlacementKind] | None = None
    protocols: Allowed[Name] | None = None
    """Every link that carries traffic uses one of these."""
    shard_across_sites: Flag = False
    fixed_layers_per_stage: (
        Annotated[tuple[LayerCount, ...], Field(min_length=1, max_length=512)] | None
    ) = None
    """Layers of every chunk, in the order in which a microbatch visits them."""

    def restrictions(self) -> dict[str, Sequence[Any]]:
        """The choices of one value a plan that are narrowed, by plan field, with their values."""
        unlisted = ("shard_across_sites", "fixed_layers_per_stage", "protocols")
        return {
            key: value
            for key in type(self).model_fields
            if key not in unlisted and (value := getattr(self, key)) is not None
        }
