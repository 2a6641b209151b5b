"""What must hold of memory whatever the numbers are."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from planner.check import StageMemory
from planner.instance.presets import stack as get_stack
from tests.layouts import one_cluster, stage_memory

STACKS = ("megatron-core", "megatron-2021", "torchtitan", "fsdp")
MOE = {
    "num_layers": 8, "hidden_size": 2048, "num_heads": 16, "num_kv_heads": 8,
    "ffn_hidden_size": 8192, "vocab_size": 64000, "num_experts": 16, "experts_per_token": 4,
    "expert_ffn_hidden_size": 1024, "shared_expert_ffn_hidden_size": 1024, "first_k_dense": 2,
}  # fmt: skip
DENSE = {
    "num_layers": 8, "hidden_size": 2048, "num_heads": 16, "num_kv_heads": 8,
    "ffn_hidden_size": 8192, "vocab_size": 64000,
}  # fmt: skip


def peak(rows: tuple[StageMemory, ...]) -> int:
    """The highest peak of any stage, MiB."""
    return max(row.peak_mib for row in rows)


def peaks(
    stack: Any, model: dict[str, Any], steps: list[dict[str, Any]], **fixed: Any
) -> list[int]:
    """Highest peaks along a series of plans."""
    training = fixed.pop("training", {"global_batch_size": 64})
    instance = one_cluster(model, 64, stack=stack, training=training)
    return [peak(stage_memory(instance, **fixed | step)) for step in steps]


@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize("model", [DENSE, MOE])
def test_more_ranks_never_need_more(name: str, model: dict[str, Any]) -> None:
    """TP, CP, shard group, EP and pipeline stages of equal layers."""
    ranks = (1, 2, 4, 8)
    for recompute in ("none", "selective", "full"):
        common = {"recompute": recompute, "sharding": "zero1", "dp": 8, "dp_shard": 8}
        series = [
            peaks(name, model, [{"tp": n} for n in ranks], **common),
            peaks(name, model, [{"pp": n} for n in ranks], **common | {"schedule": "gpipe"}),
        ]
        for sharding in ("zero1", "zero2", "zero3"):
            wider = [{"dp": n, "dp_shard": n} for n in (2, 4, 8)]
            series.append(peaks(name, model, wider, recompute=recompute, sharding=sharding))
        if model is MOE:
            series.append(peaks(name, model, [{"ep": n} for n in ranks], **common))
        for row in series:
            assert all(after <= before + 1 for before, after in pairwise(row)), row
    longer = {"global_batch_size": 8, "sequence_length": 32768}
    row = peaks(name, model, [{"cp": n} for n in ranks], training=longer, dp=1, dp_shard=1)
    assert all(after <= before for before, after in pairwise(row)), row


@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize("model", [DENSE, MOE])
def test_stronger_recomputation_and_sharding_never_keep_more(
    name: str, model: dict[str, Any]
) -> None:
    """Activations fall with recomputation; state falls with sharding."""
    instance = one_cluster(model, 64, stack=name)
    common = {"dp": 8, "dp_shard": 8, "pp": 2}
    activations = [
        [row.activations_mib for row in stage_memory(instance, **common, recompute=recompute)]
        for recompute in ("none", "selective", "full")
    ]
    for weak, strong in pairwise(activations):
        assert all(a >= b for a, b in zip(weak, strong, strict=True))
    middle = [
        stage_memory(
            instance, pp=4, dp=8, dp_shard=1 if sharding == "ddp" else 8, sharding=sharding
        )[1]
        for sharding in ("ddp", "zero1", "zero2", "zero3")
    ]
    assert all(a.state_mib >= b.state_mib for a, b in pairwise(middle))


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zb_h1", "zb_h2", "zbv"])
def test_more_microbatches_never_need_less(schedule: str) -> None:
    """Every stage keeps at least as much with more microbatches."""
    v = 2 if schedule in ("interleaved", "zbv") else 1
    rows = []
    for m in (4, 8, 12, 16, 32):
        instance = one_cluster(DENSE, 8, training={"global_batch_size": m})
        found = stage_memory(instance, pp=4, virtual_stages=v, schedule=schedule)
        rows.append([row.peak_mib for row in found])
    for fewer, more in pairwise(rows):
        assert all(b >= a for a, b in zip(fewer, more, strict=True)), rows


@pytest.mark.parametrize("name", STACKS)
def test_longer_sequences_and_larger_microbatches_need_more(name: str) -> None:
    """And so do imbalance, wider gradients and wider moments."""
    stack = get_stack(name).model_dump(exclude_defaults=True)

    def need(batch: int = 1, **training: Any) -> int:
        instance = one_cluster(MOE, 64, stack=stack, training={"global_batch_size": 64} | training)
        return peak(stage_memory(instance, ep=8, dp=8, dp_shard=1, micro_batch_size=batch))

    base = need()
    assert need(batch=2) > base
    assert need(sequence_length=8192) > base
    assert need(routing_imbalance=1.5) > base
    assert need(gradient_bytes=2) < base
    assert need(optimizer_bytes=4) < need(optimizer_bytes=8) < base
