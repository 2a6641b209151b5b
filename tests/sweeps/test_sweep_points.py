"""Points: fields by path, order, keys, shards."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from fake_points import BANDWIDTHS, small

from planner.instance.errors import InputError
from planner.instance.load import instance_document, load_instance
from planner.sweeps import points as points_module
from planner.sweeps.load import load_sweep
from planner.sweeps.paths import set_field
from planner.sweeps.points import Point, expand, in_shard


def with_field(name: str, path: str, value: Any) -> dict[str, Any]:
    document = instance_document(name)
    set_field(document, path, value)
    return document


def test_a_field_is_set_by_index_by_name_and_everywhere() -> None:
    for path in ("sites[0]", "sites[a100-node]", "sites[*]"):
        cluster = load_instance(with_field("tiny", f"cluster.{path}.num_gpus", 16)).cluster
        assert cluster.sites[0].num_gpus == 16
        assert cluster.sites[1].num_gpus == (16 if path == "sites[*]" else 8)
    for place in ("0", "a100-node--h100-node"):
        document = with_field("tiny", f"cluster.links[{place}].loss", 0.5)
        assert load_instance(document).cluster.links[0].loss == 0.5


def test_a_part_of_a_catalog_entry_overrides_it() -> None:
    job = load_instance(with_field("dense-17b-2-buildings", "model.num_layers", 24))
    assert job.model.num_layers == 24
    assert job.model.hidden_size == load_instance("dense-17b-2-buildings").model.hidden_size
    job = load_instance(with_field("tiny", "cluster.sites[*].gpu.nic_gbps", 100))
    assert {site.nic_gbps for site in job.cluster.sites} == {100}
    job = load_instance(with_field("tiny", "stack.replicates_kv_heads", True))
    assert job.stack.replicates_kv_heads
    assert job.stack.name == load_instance("tiny").stack.name


def test_what_follows_from_a_field_follows_from_its_new_value() -> None:
    job = load_instance(with_field("tiny", "cluster.sites[*].gpu", "H100"))
    assert job.cluster.sites[0] == job.cluster.sites[1].model_copy(update={"name": "a100-node"})


def test_of_alternatives_the_last_one_stands() -> None:
    document = with_field("tiny", "cluster.links[*].oversubscription", 4)
    set_field(document, "cluster.links[*].delay_s", 0.001)
    link = load_instance(document).cluster.links[0]
    assert (link.oversubscription, link.bandwidth_gbps) == (4, None)
    assert (link.delay_s, link.distance_km) == (0.001, None)


def test_a_new_field_and_one_behind_a_scalar() -> None:
    assert load_instance(with_field("tiny", "search.pp", [2])).search.pp == (2,)
    with pytest.raises(InputError, match="is no object"):
        with_field("tiny", "training.global_batch_size.x", 1)
    with pytest.raises(InputError, match="is no list"):
        with_field("tiny", "training[0]", 1)


def test_the_last_axis_is_the_fastest_and_variants_come_inside() -> None:
    document = small()
    document["axes"].append({"name": "m", "fix": "num_microbatches", "values": [1, 2]})
    document["variants"] = {"a": {}, "b": {"fix": {"pp": 2}}}
    found = [(p.number, p.axes["bandwidth"], p.axes["m"], p.variant) for p in points_of(document)]
    assert found == [
        (2 * i + j, bandwidth, m, variant)
        for i, bandwidth in enumerate(BANDWIDTHS)
        for j, m in enumerate([1, 2])
        for variant in ("a", "b")
    ]


def points_of(document: dict[str, Any]) -> list[Point]:
    return expand(load_sweep(document))


def test_a_zip_moves_axes_together() -> None:
    document = small(
        axes=[
            {
                "zip": [
                    {"name": "b", "set": "cluster.links[0].bandwidth_gbps", "values": [1, 2, 3]},
                    {"name": "km", "set": "cluster.links[0].distance_km", "values": [7, 8, 9]},
                ]
            }
        ],
        variants={"free": {}},
    )
    assert [point.axes for point in points_of(document)] == [
        {"b": 1, "km": 7},
        {"b": 2, "km": 8},
        {"b": 3, "km": 9},
    ]


def test_later_fixes_win_and_null_frees() -> None:
    document = small(
        fix={"pp": 1, "tp": 2},
        axes=[{"name": "pp", "fix": "pp", "values": [2, 3]}],
        variants={"axis": {}, "own": {"fix": {"pp": 6}}, "free": {"fix": {"pp": None}}},
    )
    found = [load_instance(point.document).search for point in points_of(document)]
    assert [search.pp for search in found] == [(2,), (6,), None, (3,), (6,), None]
    assert {search.tp for search in found} == {(2,)}
    keys = [point.key for point in points_of(document)]
    assert keys[1:3] == keys[4:6]
    assert len(set(keys)) == 4


def test_one_axis_may_set_and_fix_several_things() -> None:
    sites = "cluster.sites[*].num_gpus"
    axis = {"name": "n", "set": [sites, "training.global_batch_size"], "values": [8, 16]}
    jobs = [load_instance(p.document) for p in points_of(small(axes=[axis], fix={}))]
    assert {(j.training.global_batch_size, j.cluster.sites[0].num_gpus) for j in jobs} == {
        (8, 8),
        (16, 16),
    }


def test_the_key_depends_on_all_that_a_result_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {point.key for point in points_of(small())}
    assert len(keys) == 8
    assert {point.key for point in points_of(small(name="other", description="x"))} == keys
    for change in (
        {"limits": {"wall_time_s": 61, "grace_s": 10}},
        {"solve": {"gap": 0.1}},
        {"set": {"training.sequence_length": 512}},
        {"fix": {**small()["fix"], "sharding": "ddp"}},
    ):
        assert not {point.key for point in points_of(small(**change))} & keys
    monkeypatch.setattr(points_module, "code_versions", lambda: {"code": "another"})
    assert not {point.key for point in points_of(small())} & keys


def test_the_same_instance_written_otherwise_has_the_same_key() -> None:
    plain = points_of(small(axes=[], set={"cluster.links[*].bandwidth_gbps": 100}))
    words = points_of(small(axes=[], set={"cluster.links[0].bandwidth_gbps": "0.1 Tb/s"}))
    assert [point.key for point in plain] == [point.key for point in words]


@pytest.mark.parametrize("shards", [1, 2, 3, 7])
def test_shards_are_a_partition(shards: int) -> None:
    keys = [hashlib.sha256(bytes([i])).hexdigest()[:32] for i in range(200)]
    for key in keys:
        assert sum(in_shard(key, shard, shards) for shard in range(1, shards + 1)) == 1
    used = {
        shard for shard in range(1, shards + 1) if any(in_shard(k, shard, shards) for k in keys)
    }
    assert len(used) == shards


def test_a_refused_combination_is_a_point_with_a_reason() -> None:
    document = small(
        axes=[
            {"name": "dp", "fix": "dp", "values": [4, 8]},
            {"name": "m", "fix": "num_microbatches", "values": [1, 2]},
        ],
        variants={"free": {}},
        fix={"schedule": "1f1b"},
    )
    refusals = {(p.axes["dp"], p.axes["m"]): p.refusal for p in points_of(document)}
    assert refusals.pop((8, 2)) is not None
    assert set(refusals.values()) == {None}
