"""The network inside a site: zones under an oversubscribed fabric, and measured curves."""

from __future__ import annotations

from typing import Any

import pytest

from planner.cost.coefficients import Option, case_coefficients
from planner.cost.collectives import (
    LAUNCH_S,
    NETWORK_STEP_S,
    expert_parallel,
    flat_time,
    group_time,
)
from planner.cost.curves import Curve, Curves, Piece
from planner.instance.errors import InputError
from planner.instance.load import load_instance, narrowed
from planner.instance.schema import Instance
from planner.plan import Degrees
from planner.problem import GpuClass, Problem
from tests.cost.shapes import DEEPSEEK_V3, Gpu, Training
from tests.cost.shapes import Degrees as Shape

NIC = 50e9


def site(**fields: Any) -> dict[str, Any]:
    return {"name": "a", "gpu": "H100", "num_gpus": 512, **fields}


def job(**fields: Any) -> Instance:
    return load_instance(
        {
            "model": "llama3-8b",
            "training": {"global_batch_size": 512, "sequence_length": 4096},
            "cluster": {"sites": [site(**fields)]},
        }
    )


def gpu_class(**fields: Any) -> GpuClass:
    (found,) = Problem(job(**fields)).classes
    return found


@pytest.mark.parametrize(
    ("op", "ranks", "stride", "share"),
    [
        ("all_reduce", 0, 4, 1),
        ("all_reduce", 1, 512, 1),
        ("all_reduce", 8, 1, 1),
        ("all_reduce", 16, 8, 1),
        ("all_gather", 128, 1, 1),
        ("all_gather", 128, 2, 1),
        ("all_gather", 96, 1, 1),
        ("all_gather", 64, 8, 1),
        ("all_gather", 2, 128, 1 / 7),
        ("all_gather", 8, 32, 4 / 7),
        ("all_to_all", 64, 1, 1),
        ("all_to_all", 128, 1, 1),
        ("all_to_all", 256, 1, 1 / (128 / 248 * 7)),
        ("all_to_all", 4, 128, 1 / 7),
        ("p2p", 256, 1, 1),
    ],
)
def test_a_group_that_leaves_its_zone_shares_the_uplink(
    op: str, ranks: int, stride: int, share: float
) -> None:
    """Zones of 128 GPUs, 1:7 above: rings of many domains cross seldom, all-to-alls often."""
    zoned = gpu_class(zone_gpus=128, fabric_oversubscription=7)
    assert zoned.group_nic_bytes_per_s(op, ranks, stride) == pytest.approx(share * NIC)
    flat = gpu_class(fabric_oversubscription=7)
    assert flat.group_nic_bytes_per_s(op, ranks, stride) == pytest.approx(NIC / 7)
    assert zoned.nic_bytes_per_s == pytest.approx(NIC / 7)


def optimizer_costs(instance: Instance, dp: int) -> Any:
    co = case_coefficients(Problem(instance), Degrees(8, 1, 1, 1, 1, 1, 1, dp, dp))
    option = Option("zero1", overlap=False, recompute="none", spanning=False)
    return co.sync(0, option, "flat", 1).gather


def test_zones_speed_up_the_groups_that_fit() -> None:
    flat, zoned = (job(fabric_oversubscription=4, **zone) for zone in ({}, {"zone_gpus": 128}))
    full = job()
    assert optimizer_costs(zoned, 16) == optimizer_costs(full, 16) < optimizer_costs(flat, 16)
    assert optimizer_costs(zoned, 64) == optimizer_costs(full, 64)


MESSAGE = {
    "tier": "network",
    "collective": "p2p",
    "launch_s": "30 us",
    "pieces": [{"step_s": "70 us", "bytes_per_s": "25 GB/s"}],
}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"zone_gpus": 12}, "zone_gpus: 12 GPUs are not whole nodes of 8"),
        ({"zone_gpus": 12, "gpus_per_node": 4}, "12 GPUs are not whole scale-up domains of 8"),
        ({"measured": [MESSAGE] * 2}, r"measured\[0\] already gives p2p on tier network"),
        ({"measured": [{"tier": "network"}]}, r"measured\[0\].collective: missing"),
    ],
)
def test_sites_that_contradict_themselves(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        job(**fields)


def test_a_measured_curve_takes_the_place_of_the_data_sheet() -> None:
    gpu, size = Gpu(), 1e9
    curve = Curve(30e-6, (Piece(2e-6, 300e9), Piece(5e-6, 400e9)), any_algorithm=True)
    curves = Curves({("scale_up", "all_reduce"): curve}, NIC)
    slow = 30e-6 + flat_time("all_reduce", 8, size, 300e9, 2e-6)
    assert group_time("all_reduce", 8, 8, size, gpu, NIC, curves) == pytest.approx(slow)
    assert group_time("tree_all_reduce", 8, 8, size, gpu, NIC, curves) == pytest.approx(slow)
    fast = Curves({("scale_up", "all_reduce"): curve._replace(fastest=True)}, NIC)
    quick = 30e-6 + flat_time("all_reduce", 8, size, 400e9, 5e-6)
    assert group_time("all_reduce", 8, 8, size, gpu, NIC, fast) == pytest.approx(quick)
    gather = 30e-6 + flat_time("all_gather", 8, size, 300e9, 2e-6)
    assert group_time("all_gather", 8, 8, size, gpu, NIC, curves) == pytest.approx(gather)
    assumed = group_time("all_to_all", 8, 8, size, gpu, NIC)
    assert group_time("all_to_all", 8, 8, size, gpu, NIC, curves) == assumed


def test_a_measured_network_keeps_the_share_that_a_group_gets() -> None:
    gpu, size = Gpu(), 1e9
    curve = Curve(20e-6, (Piece(15e-6, 40e9),), any_algorithm=True)
    curves = Curves({("network", "all_gather"): curve}, NIC)
    whole = group_time("all_gather", 16, 1, size, gpu, NIC, curves)
    assert whole == pytest.approx(LAUNCH_S + flat_time("all_gather", 16, size, 40e9, 15e-6))
    half = group_time("all_gather", 16, 1, size, gpu, NIC / 2, curves)
    assert half == pytest.approx(LAUNCH_S + flat_time("all_gather", 16, size, 20e9, 15e-6))


def test_expert_parallelism_takes_measured_all_to_alls() -> None:
    curve = Curve(40e-6, (Piece(12e-6, 30e9),))
    curves = Curves({("network", "all_to_all"): curve}, NIC)
    shape, training = Shape(ep=64), Training()
    assumed = expert_parallel(DEEPSEEK_V3, "moe", Gpu(), shape, training, NIC)
    measured = expert_parallel(DEEPSEEK_V3, "moe", Gpu(), shape, training, NIC, curves)
    outside = (assumed.forward / 2 - LAUNCH_S - 7 * NETWORK_STEP_S) * NIC
    assert measured.forward == pytest.approx(2 * (40e-6 + 7 * 12e-6 + outside / 30e9))


def test_a_measured_message_times_the_pipeline_inside_a_site() -> None:
    degrees = Degrees(8, 1, 1, 1, 4, 1, 1, 8, 8)
    delays = []
    for instance in (job(), job(measured=[MESSAGE]), narrowed(job(measured=[MESSAGE]), {"pp": 4})):
        delays.append(case_coefficients(Problem(instance), degrees).inside(0))
    size = 2 * 4096 * 4096 / 8
    assert delays[0] == (int(size / NIC * 1e6 + 9.6) + 1, int(size / NIC * 1e6) + 1)
    assert delays[1] == delays[2] == (int(100 + size / 25e9 * 1e6) + 1, delays[0][1])
