"""From seconds to integers: host floor, recompute, flat rings, split backward."""

from __future__ import annotations

from typing import Any

import pytest

from planner.cost.coefficients import CaseCoefficients, OpCosts, Option
from planner.instance.load import load_instance
from planner.plan import Degrees, Recompute, Sharding
from planner.problem import Problem

NIC, DOMAIN = 50e9, 450e9 * 0.75
LAYER, EMBEDDING = 0, 1


def case(
    degrees: Degrees | None = None, model: str = "llama3-8b", **stack: Any
) -> CaseCoefficients:
    """Coefficients of a job on two nodes of H100 whose software exposes and adds nothing."""
    own = {"tp_exposed": 0, "ep_exposed": 0, "fsdp_exposed": 0, **stack}
    instance = load_instance(
        {
            "model": model,
            "training": {"global_batch_size": 64, "sequence_length": 4096},
            "cluster": {"sites": [{"name": "a", "gpu": "H100", "num_gpus": 16}]},
            "stack": own,
        }
    )
    return CaseCoefficients(
        Problem(instance), degrees or Degrees(1, 1, 1, 1, 1, 1, 1, dp=16, dp_shard=16)
    )


def ops(
    co: CaseCoefficients,
    recompute: Recompute = "none",
    sharding: Sharding = "zero1",
    *,
    overlap: bool = False,
) -> OpCosts:
    """Durations under an option."""
    return co.ops(0, Option(sharding, overlap, recompute, False))


def soft_maximum(gpu_us: float, floor_us: float) -> float:
    """The fourth root of the sum of fourth powers."""
    return float((gpu_us**4 + floor_us**4) ** 0.25)


@pytest.mark.parametrize("floor_us", [500, 20_000, 1_000_000])
def test_a_layer_takes_no_less_time_than_the_host(floor_us: int) -> None:
    """The whole forward, the whole backward, and half of it for each part of a split backward."""
    free, paced = ops(case()), ops(case(host_floor_s=floor_us * 1e-6))
    for name, share in (
        ("forward", 1),
        ("backward", 1),
        ("input_gradient", 0.5),
        ("weight_gradient", 0.5),
    ):
        before, after = getattr(free, name), getattr(paced, name)
        expected = soft_maximum(before[LAYER], share * floor_us)
        assert after[LAYER] == pytest.approx(expected, abs=2)
        assert after[LAYER] >= share * floor_us
        assert after[EMBEDDING:] == before[EMBEDDING:]


def test_full_recompute_launches_the_forward_again() -> None:
    floor_us = 50_000
    free = ops(case(), "full")
    paced = ops(case(host_floor_s=floor_us * 1e-6), "full")
    assert paced.backward[LAYER] == pytest.approx(
        soft_maximum(free.backward[LAYER], 2 * floor_us), abs=2
    )
    assert paced.input_gradient[LAYER] == pytest.approx(
        soft_maximum(free.input_gradient[LAYER], 1.5 * floor_us), abs=2
    )
    assert paced.weight_gradient[LAYER] == pytest.approx(
        soft_maximum(free.weight_gradient[LAYER], 0.5 * floor_us), abs=2
    )


def test_the_wait_for_the_host_is_computation() -> None:
    degrees = Degrees(8, 1, 1, 1, 1, 1, 1, dp=2, dp_shard=2)
    free = ops(case(degrees, tp_exposed=0.5))
    paced = ops(case(degrees, tp_exposed=0.5, host_floor_s=0.05))
    assert free.forward_parts[1][LAYER] > 0
    for name in ("forward", "backward", "input_gradient", "weight_gradient"):
        parts = getattr(paced, f"{name}_parts")
        assert sum(part[LAYER] for part in parts) == getattr(paced, name)[LAYER]
        before = getattr(free, f"{name}_parts")
        assert [p[LAYER] for p in parts[1:]] == [p[LAYER] for p in before[1:]]
        assert parts[0][LAYER] > before[0][LAYER]


def test_recompute_costs_what_the_stack_means() -> None:
    none, selective, full = (
        ops(case()).backward,
        ops(case(), "selective").backward,
        ops(case(), "full").backward,
    )
    operators = ops(case(selective_recompute="operators"), "selective").backward
    forward = ops(case()).forward
    assert full[LAYER] - none[LAYER] == pytest.approx(forward[LAYER], abs=2)
    assert none[LAYER] < selective[LAYER] < operators[LAYER] < full[LAYER]


def test_a_split_backward_takes_longer_by_its_overhead() -> None:
    plain = ops(case())
    split = plain.input_gradient[LAYER] + plain.weight_gradient[LAYER]
    assert split == pytest.approx(1.03 * plain.backward[LAYER], abs=3)


def layer_parameters(co: CaseCoefficients) -> int:
    """Parameters of a layer of Llama 3 8B: QKV, output, three matrices, two norms."""
    return 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336 + 2 * 4096


def ring_s(ranks: int, size: float, speed: float, step: float) -> float:
    """An all-gather or reduce-scatter over equal ports."""
    return (ranks - 1) * step + (ranks - 1) / ranks * size / speed


@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
@pytest.mark.parametrize("flat", [False, True])
def test_sharded_state_over_two_nodes(sharding: Sharding, flat: bool) -> None:
    """In levels: in the node, then a shard of it over the network.  Flat: all over the network."""
    co = case(flat_rings=flat)
    weights, gradients = 2 * layer_parameters(co), 4 * layer_parameters(co)

    def seconds(size: float) -> float:
        if flat:
            return 22e-6 + ring_s(16, size, NIC, 9.6e-6)
        return 22e-6 + ring_s(8, size, DOMAIN, 3.4e-6) + ring_s(2, size / 8, NIC, 9.6e-6)

    plain, sharded = ops(co), ops(co, sharding=sharding)
    gather = seconds(weights) * 1e6 if sharding == "zero3" else 0
    scatter = seconds(gradients) * 1e6
    assert sharded.forward[LAYER] - plain.forward[LAYER] == pytest.approx(gather, abs=2)
    change = sharded.backward[LAYER] - plain.backward[LAYER]
    assert change == pytest.approx(gather + scatter, abs=2)


def test_flat_rings_are_those_of_one_node_inside_a_node() -> None:
    degrees = Degrees(1, 1, 1, 1, 1, 1, 1, dp=16, dp_shard=8)
    levels, flat = (ops(case(degrees, flat_rings=flag), sharding="zero3") for flag in (False, True))
    assert levels == flat


def test_overlapped_state_exposes_its_share_and_the_excess() -> None:
    plain = ops(case())
    alone = ops(case(), sharding="zero3").forward[LAYER] - plain.forward[LAYER]
    shared = ops(case(fsdp_exposed=0.25), sharding="zero3", overlap=True)
    work = plain.forward[LAYER]
    expected = max(work, alone) + 0.25 * min(work, alone)
    assert shared.forward[LAYER] == pytest.approx(expected, abs=3)


def test_fixed_time_is_that_of_the_stack() -> None:
    assert case(fixed_s=0.0123456).fixed_us == 12346
    assert case().fixed_us == 0
