"""Zones of a site: shares of the NIC rate against counted flows, levels of a collective, laws."""

from __future__ import annotations

from itertools import product
from math import lcm
from typing import Any

import pytest

from planner.check import check_plan
from planner.cost.coefficients import CaseCoefficients, Option, Way, case_coefficients
from planner.cost.collectives import NETWORK_STEP_S
from planner.cost.zones import Zones
from planner.instance.load import load_instance
from planner.plan import Degrees
from planner.problem import Problem
from planner.search.solve import solve

DOMAIN = 8
ZONES = (8, 16, 24, 32, 64, 96, 128, 192, 256, 1024)
OVERSUBSCRIPTIONS = (1.0, 1.5, 4.0, 20.0)


def flows(op: str, ranks: int, stride: int, gpus: int) -> list[tuple[int, int, float]]:
    """(from, to, share of what the NIC sends) of every group side by side on so many GPUs.

    A ring goes from domain to domain; an all-to-all sends as much to every rank elsewhere.
    """
    span, hop = ranks * stride, max(stride, DOMAIN)
    found = []
    for gpu in range(gpus - gpus % span):
        first = gpu - gpu % span
        if op != "all_to_all":
            found.append((gpu, first + (gpu - first + hop) % span, 1.0))
            continue
        members = range(first + gpu % stride, first + span, stride)
        others = [other for other in members if other // DOMAIN != gpu // DOMAIN]
        found += [(gpu, other, 1 / len(others)) for other in others]
    return found


def counted_share(op: str, ranks: int, stride: int, zone: int, oversubscription: float) -> float:
    """The rate at which the fullest uplink of a zone lets its flows go, over that of a NIC."""
    gpus = lcm(ranks * stride, zone)
    leaving: dict[int, float] = {}
    for source, target, load in flows(op, ranks, stride, gpus):
        if source // zone != target // zone:
            leaving[source // zone] = leaving.get(source // zone, 0.0) + load
    most = max(leaving.values(), default=0.0)
    return min(1.0, zone / oversubscription / most) if most else 1.0


@pytest.mark.parametrize("op", ["all_reduce", "all_to_all"])
@pytest.mark.parametrize("zone", [8, 16, 24, 32, 64])
def test_shares_follow_counted_flows(op: str, zone: int) -> None:
    """Exact where zones and groups fit each other, never more than counted elsewhere."""
    exact = 0
    for ranks, stride, o in product((2, 3, 4, 6, 16), (1, 2, 8, 16, 32), (2.0, 9.0)):
        if ranks * stride % DOMAIN or ranks * stride <= DOMAIN:
            continue
        share = Zones(zone, o, DOMAIN).share(op, ranks, stride)
        counted = counted_share(op, ranks, stride, zone, o)
        assert share <= counted + 1e-12, (ranks, stride, o)
        if ranks * stride % zone == 0 and (stride % zone == 0 or zone % stride == 0):
            assert share == pytest.approx(counted), (ranks, stride, o)
            exact += 1
        else:
            assert share >= max(1 / o, counted / 3.01), (ranks, stride, o)
    assert exact >= 4


@pytest.mark.parametrize("zone", [16, 24, 64])
def test_transfers_follow_counted_flows(zone: int) -> None:
    for stage, stages, o in product((8, 16, 24, 40), (2, 3, 8), (2.0, 5.0)):
        leaving: dict[int, int] = {}
        for gpu in range(stage * stages):
            for target in (gpu + stage, gpu - stage):
                if 0 <= target < stage * stages and target // zone != gpu // zone:
                    leaving[gpu // zone] = leaving.get(gpu // zone, 0) + 1
        most = min(zone, max(leaving.values(), default=0))
        counted = min(1.0, zone / o / most) if most else 1.0
        share = Zones(zone, o, DOMAIN).transfer_share(stage, stages)
        assert 1 / o <= share <= counted + 1e-12, (stage, stages, o)
        if 2 * stage <= zone and 3 * zone <= stage * stages:
            assert share == pytest.approx(counted), (stage, stages, o)


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "all_to_all", "p2p"])
def test_zones_that_join_and_thinner_oversubscription_never_take_a_share(op: str) -> None:
    groups = list(product((2, 3, 4, 6, 8, 30, 256), (1, 2, 3, 8, 12, 64, 96)))
    for zone, o, (ranks, stride) in product(ZONES, OVERSUBSCRIPTIONS, groups):
        share = Zones(zone, o, DOMAIN).share(op, ranks, stride)
        assert 1 / o <= share <= 1
        assert Zones(zone, 1 + (o - 1) / 2, DOMAIN).share(op, ranks, stride) >= share
        for times in (2, 3, 5):
            assert Zones(times * zone, o, DOMAIN).share(op, ranks, stride) >= share - 1e-12


def test_transfers_of_larger_zones_never_lose() -> None:
    for o, stage, stages in product(OVERSUBSCRIPTIONS, (1, 8, 48, 512), (2, 4, 16)):
        shares = [Zones(zone, o, DOMAIN).transfer_share(stage, stages) for zone in ZONES]
        assert shares == sorted(shares)
        assert shares[0] >= 1 / o


def test_blocks_lie_inside_zones() -> None:
    assert Zones(128, 4, DOMAIN).blocks(64, 8) == (2, 4, 8, 16)
    assert Zones(128, 4, DOMAIN).blocks(32, 1) == (16,)
    assert Zones(128, 4, DOMAIN).blocks(8, 1) == ()
    assert Zones(128, 4, DOMAIN).blocks(4, 128) == ()
    assert Zones(96, 4, DOMAIN).blocks(48, 8) == (2, 3, 4, 6, 12)
    assert Zones(72, 4, 72).blocks(32, 8) == ()
    assert Zones(128, 4, DOMAIN).blocks(1, 8) == Zones(128, 4, DOMAIN).blocks(-1, 8) == ()


def no_rank(ranks: int, stride: int) -> None:
    Zones(128, 4, DOMAIN).share("all_reduce", ranks, stride)


@pytest.mark.parametrize(("ranks", "stride"), [(0, 8), (4, 0)])
def test_a_group_has_ranks(ranks: int, stride: int) -> None:
    with pytest.raises(ValueError, match="need at least one rank and stride"):
        no_rank(ranks, stride)


def least(ways: list[Way]) -> float:
    return min(way.seconds for way in ways)


def case(degrees: Degrees, **fields: Any) -> CaseCoefficients:
    return case_coefficients(Problem(load_instance(job(**fields))), degrees)


def job(**fields: Any) -> dict[str, Any]:
    site = {"name": "a", "gpu": "H100", "num_gpus": 2048, **fields}
    return {
        "model": "llama3-8b",
        "training": {"global_batch_size": 512, "sequence_length": 4096},
        "cluster": {"sites": [site]},
    }


WIDE = Degrees(1, 1, 1, 1, 1, 1, 1, 512, 512)


def test_levels_save_steps() -> None:
    """512 ranks in zones of 64: 7 + 7 steps in place of 63."""
    co = case(WIDE, zone_gpus=64, fabric_oversubscription=4)
    ways = {way.block: way.seconds for way in co.ways("all_gather", 512, 1, 1e6, 0)}
    assert set(ways) == {None, 16, 32, 64}
    assert ways[64] == min(ways.values()) < ways[None] / 2
    inner, outer, whole = (
        co.ways("all_gather", ranks, stride, size, 0)[0].seconds
        for ranks, stride, size in ((64, 1, 1e6), (8, 64, 1e6 / 64), (512, 1, 1e6))
    )
    assert ways[64] == pytest.approx(inner + outer)
    assert ways[None] == whole
    reduced = {way.block: way.seconds for way in co.ways("all_reduce", 512, 1, 1e6, 0)}
    scatter, among = (
        co.ways(op, ranks, stride, size, 0)[0].seconds
        for op, ranks, stride, size in (
            ("reduce_scatter", 64, 1, 1e6),
            ("all_reduce", 8, 64, 1e6 / 64),
        )
    )
    assert reduced[64] == pytest.approx(scatter + among + inner)


def test_levels_save_bytes_over_a_thin_uplink() -> None:
    """Two zones: a ring takes 63/64 of the data over the border, an exchange of blocks half."""
    co = case(WIDE, zone_gpus=256, fabric_oversubscription=1e5)
    flat, *_, levels = (way.seconds for way in co.ways("all_gather", 512, 1, 1e10, 0))
    assert levels / flat == pytest.approx(1 / 2 / (63 / 64), rel=0.02)


@pytest.mark.parametrize("reducing", [[], ["network"], ["scale_up", "network"]])
def test_a_stage_pays_for_the_levels_it_takes(reducing: list[str]) -> None:
    """Units of a stage: never less than one way for all of them takes, never more than flat."""
    for zone, o, chunks in product((8, 64, 256), (1.0, 6.0, 50.0), (1, 8)):
        fields = {"fabric_oversubscription": o, "in_network_reduction": reducing}
        co = case(WIDE, zone_gpus=zone, collective_chunks=chunks, **fields)
        for op, ranks, stride in product(("all_gather", "all_reduce"), (16, 512), (1, 4)):
            group = (ranks, stride)
            for size, units in product((1e5, 1e7, 1e9), (1, 3, 40)):
                ways, shared, empty = (
                    ways_of(op, *group, amount, 0)
                    for ways_of, amount in ((co.ways, size), (co.stage_ways, size), (co.ways, 0.0))
                )
                least = min(way.seconds for way in shared)
                total = empty[0].seconds + units * (least - empty[0].seconds)
                together = [
                    late.seconds + units * (way.seconds - late.seconds)
                    for way, late in zip(ways, empty, strict=True)
                ]
                assert min(together) <= total * (1 + 1e-9)
                assert total <= together[0] * (1 + 1e-9)


def test_stacks_of_flat_rings_have_one_way() -> None:
    document = job(zone_gpus=64, fabric_oversubscription=4)
    co = case_coefficients(Problem(load_instance(document | {"stack": "deepspeed-2021"})), WIDE)
    assert [way.block for way in co.ways("all_gather", 512, 1, 1e6, 0)] == [None]


@pytest.mark.parametrize("op", ["all_reduce", "tree_all_reduce", "all_gather", "reduce_scatter"])
def test_the_fastest_way_only_gets_faster(op: Any) -> None:
    """Zones at all, zones that join, thinner oversubscription, reduction in switches, chunks."""
    better: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"zone_gpus": 8}, {}),
        ({"zone_gpus": 64}, {"zone_gpus": 8}),
        ({"zone_gpus": 128}, {"zone_gpus": 64}),
        ({"zone_gpus": 192}, {"zone_gpus": 64}),
        ({"zone_gpus": 128}, {}),
        *(
            ({"zone_gpus": 128, **more}, {"zone_gpus": 128})
            for more in (
                {"in_network_reduction": ["network"]},
                {"in_network_reduction": ["scale_up", "network"]},
                {"collective_chunks": 16},
                {"fabric_oversubscription": 2},
            )
        ),
    ]
    for after, before in better:
        old, new = (
            case(WIDE, **{"fabric_oversubscription": 7, **fields}) for fields in (before, after)
        )
        for ranks, stride, size in product((16, 48, 64, 512), (1, 8, 32), (0.0, 1e5, 1e7, 1e9)):
            alone = [least(co.ways(op, ranks, stride, size, 0)) for co in (old, new)]
            assert alone[1] <= alone[0] * (1 + 1e-12), (after, before, ranks, stride, size)
            for units in (1, 4, 50):
                stage = [
                    empty + units * (least(co.stage_ways(op, ranks, stride, size, 0)) - empty)
                    for co in (old, new)
                    for empty in [least(co.stage_ways(op, ranks, stride, 0.0, 0))]
                ]
                assert stage[1] <= stage[0] * (1 + 1e-12), (after, before, ranks, stride, size)


def test_gathers_of_every_microbatch_and_the_tail_take_the_fastest_way() -> None:
    """A layer over 512 ranks: the ring over the domains pays its steps with every collective."""
    sharded = Option("zero3", overlap=False, recompute="none", spanning=False)
    tail = Option("zero1", overlap=True, recompute="none", spanning=False)
    flat, zoned = (
        case(WIDE, fabric_oversubscription=1, **zone) for zone in ({}, {"zone_gpus": 128})
    )
    steps = 1e6 * NETWORK_STEP_S
    saved = flat.ops(0, sharded).forward[0] - zoned.ops(0, sharded).forward[0]
    assert 20 * steps < saved < 63 * steps
    synced = [co.sync(0, tail, "flat", 1) for co in (flat, zoned)]
    assert synced[1].gather_tail < synced[0].gather_tail
    assert synced[1].reduce_tail < synced[0].reduce_tail
    assert synced[1].gather == synced[0].gather
    assert synced[1].gather_latency == synced[0].gather_latency


def test_a_pipeline_inside_a_zone_has_the_full_rate() -> None:
    degrees = Degrees(8, 1, 1, 1, 4, 1, 1, 4, 4)
    full = case(degrees).inside(0)
    assert case(degrees, zone_gpus=128, fabric_oversubscription=8).inside(0) == full
    narrow = case(degrees, zone_gpus=64, fabric_oversubscription=8).inside(0)
    flat = case(degrees, fabric_oversubscription=8).inside(0)
    assert full < narrow == flat
    between = case(degrees, zone_gpus=96, fabric_oversubscription=8).inside(0)
    assert full < between < flat


def test_the_answer_says_which_way() -> None:
    document = job(zone_gpus=64, fabric_oversubscription=4, num_gpus=512)
    document["search"] = {
        **{"tp": 1, "cp": 1, "pp": 1, "dp": 512, "dp_shard": 512, "micro_batch_size": 1},
        **{"sharding": "zero3", "schedule": "gpipe", "recompute": "full"},
    }
    instance = load_instance(document)
    result = solve(instance, backend="cp-sat")
    assert result.plan is not None and check_plan(instance, result.plan).feasible
    uses = result.provenance["collectives"]
    assert [(use["collective"], use["ranks"], use["stride_gpus"]) for use in uses] == [
        ("reduce_scatter", 512, 1),
        ("all_gather", 512, 1),
    ]
    co = case(WIDE, zone_gpus=64, fabric_oversubscription=4, num_gpus=512)
    for use in uses:
        (group,) = co.shard_groups("dense")
        width = 4 if use["collective"] == "reduce_scatter" else 2
        best = min(co.ways(use["collective"], 512, 1, group.parameters * width, 0))
        assert (use["time_s"], use["block_ranks"]) == best[:2]
    document["cluster"]["sites"][0]["zone_gpus"] = None
    assert "collectives" not in solve(load_instance(document), backend="cp-sat").provenance
