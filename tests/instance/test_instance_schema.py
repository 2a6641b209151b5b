"""Defaults, overrides and cross-field rules of the schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.instance.checks import pipeline_degrees
from planner.instance.errors import InputError, dotted, nearest, one_line
from planner.instance.load import load_instance, narrowed
from planner.instance.presets import gpu, stack
from planner.instance.profile import PEAK_OF, Precision
from planner.instance.schema import Instance, json_schema
from planner.instance.search_space import Search

ROOT = Path(__file__).resolve().parents[2]


def document(**changes: Any) -> dict[str, Any]:
    return {
        "model": "llama3-8b",
        "training": {"global_batch_size": 64, "sequence_length": 8192},
        "cluster": {
            "sites": [
                {"name": "a", "gpu": "H100", "num_gpus": 16},
                {"name": "b", "gpu": "A100-80", "num_gpus": 8},
            ],
            "links": [{"from": "a", "to": "b", "bandwidth_gbps": 400, "distance_km": 3}],
        },
        **changes,
    }


def test_defaults() -> None:
    instance = load_instance(document())
    site = instance.cluster.sites[0]
    assert (site.gpus_per_node, site.nic_gbps, site.fabric_oversubscription) == (8, 400, 1)
    assert site.memory_limit_bytes == int(0.94 * 80 * 2**30)
    assert instance.training.precision == "bf16"
    assert instance.training.gradient_bytes == 4
    assert instance.model.num_kv_heads == 8
    assert instance.model.head_dim == 128
    assert instance.cluster.links[0].name == "a--b"
    assert instance.search == Search()
    assert instance.search.restrictions() == {}


def test_reserve_lowers_the_default_limit_only() -> None:
    changed = document(memory_reserve="2 GiB")
    changed["cluster"]["sites"][1]["memory_limit_bytes"] = "70 GiB"
    sites = load_instance(changed).cluster.sites
    assert sites[0].memory_limit_bytes == int(0.94 * 80 * 2**30) - 2 * 2**30
    assert sites[1].memory_limit_bytes == 70 * 2**30


def test_presets_with_overrides() -> None:
    changed = document(model={"preset": "llama3-8b", "num_layers": 16, "name": "half"})
    changed["cluster"]["sites"][0]["gpu"] = {"preset": "H100", "nic_gbps": "200 Gb/s"}
    instance = load_instance(changed)
    assert (instance.model.name, instance.model.num_layers) == ("half", 16)
    assert instance.cluster.sites[0].nic_gbps == 200


def test_the_stack_is_a_name_a_changed_entry_or_fields() -> None:
    assert load_instance(document()).stack == stack("megatron-core")
    assert load_instance(document(stack="TorchTitan")).stack == stack("torchtitan")
    changed = load_instance(document(stack={"preset": "jax", "fixed_s": "30 ms"})).stack
    assert changed == stack("jax").model_copy(update={"fixed_s": 0.03})
    shares = {"tp_exposed": 0.1, "ep_exposed": 0.2, "fsdp_exposed": 0.3}
    own = load_instance(document(stack=shares)).stack
    assert (own.name, own.routing_factor, own.host_floor_s, own.fixed_s) == ("custom", 1, 0, 0)
    assert (own.attention_kernel, own.sequence_parallel, own.flat_rings) == ("fused", True, False)


def with_profile(**profile: Any) -> dict[str, Any]:
    changed = document()
    changed["cluster"]["sites"][0]["gpu"] = {"preset": "H100", "profile": profile}
    return changed


def test_a_profile_keeps_the_rest_of_the_gpu() -> None:
    product = {"precision": "bf16", "m": 8192, "n": 4096, "k": 1024, "time_s": "0.25 ms"}
    constants = {"gemm": 0.7, "grouped_gemm": 0.5, "attention": 0.4, "memory": 0.8}
    instance = load_instance(with_profile(products=[product], efficiency={"bf16": constants}))
    ours = instance.cluster.sites[0].gpu
    assert ours.model_copy(update={"profile": None}) == gpu("H100")
    profile = ours.profile
    assert profile is not None
    assert profile.product_times_s == {("bf16", 8192, 4096, 1024, 1): 0.00025}
    assert profile.efficiency["bf16"].gemm == 0.7
    assert profile.efficiency["bf16"].launch_s == 0
    again = load_instance(json.loads(instance.model_dump_json(by_alias=True)))
    assert again == instance
    assert hash(again) == hash(instance)


def test_products_of_a_profile_differ_in_anything_but_time() -> None:
    product = {"precision": "bf16", "m": 8, "n": 4, "k": 2, "time_s": 1e-6}
    others = [{**product, key: 16} for key in ("m", "n", "k", "groups")]
    others.append({**product, "precision": "fp8"})
    assert load_instance(with_profile(products=[product, *others])).cluster.sites[0].gpu.profile
    with pytest.raises(InputError, match=r"products\[5\]: products\[2\] is the same product"):
        load_instance(with_profile(products=[product, *others[:-1], {**others[1], "time_s": 1}]))


@pytest.mark.parametrize("precision", get_args(Precision))
def test_every_precision_needs_its_peak(precision: str) -> None:
    changed = document()
    changed["training"]["precision"] = precision
    peak = {PEAK_OF.get(precision, precision): "1 PFLOP/s"}  # type: ignore[call-overload]
    for site in changed["cluster"]["sites"]:
        site["gpu"] = {"preset": "H100", "peak_flops": peak}
    assert load_instance(changed).training.precision == precision
    changed["cluster"]["sites"][1]["gpu"]["peak_flops"] = {
        other: "1 PFLOP/s"
        for other in get_args(Precision)
        if other not in PEAK_OF and other not in peak
    }
    with pytest.raises(InputError, match=rf"sites\[1\]\.gpu: GPU H100 has no {precision} peak"):
        load_instance(changed)


def test_a_validated_instance_round_trips() -> None:
    instance = load_instance(document(memory_reserve="1 GiB", search={"tp": [1, 8], "pp": 4}))
    again = load_instance(json.loads(instance.model_dump_json(by_alias=True)))
    assert again == instance
    assert hash(again) == hash(instance)


def test_narrowing_replaces_keys_and_keeps_the_rest() -> None:
    instance = load_instance(document(memory_reserve="1 GiB", search={"tp": [4, 8], "pp": 4}))
    tighter = narrowed(instance, {"tp": 8, "overlap": [True]})
    assert tighter.search.restrictions() == {"tp": (8,), "pp": (4,), "overlap": (True,)}
    assert tighter.cluster == instance.cluster
    with pytest.raises(InputError, match=r"search\.tpp: unknown key \(did you mean 'tp'"):
        narrowed(instance, {"tpp": 8})


def test_search_takes_single_values_and_drops_repeats() -> None:
    search = load_instance(
        document(search={"tp": 8, "pp": [4, 2, 4], "overlap": True, "schedule": "1f1b"})
    ).search
    assert search.restrictions() == {
        "tp": (8,),
        "pp": (4, 2),
        "schedule": ("1f1b",),
        "overlap": (True,),
    }


@pytest.mark.parametrize(
    ("search", "path"),
    [
        ({"tp": 0}, "search.tp[0]"),
        ({"tp": [1, "2"]}, "search.tp[1]"),
        ({"overlap": 1}, "search.overlap[0]"),
        ({"cp": 2, "tp": 64}, "search.tp[0]"),
        ({"etp": 2}, "search.etp[0]"),
        ({"micro_batch_size": 3}, "search.micro_batch_size[0]"),
        ({"dp_shard": 7}, "search.dp_shard[0]"),
        ({"dp": 8, "dp_shard": 16}, "search.dp_shard[0]"),
        ({"dp": 8, "dp_shard": 2, "dp_replicate": 2}, "search.dp"),
        ({"dp": 8, "num_microbatches": 64}, "search.num_microbatches"),
        ({"num_microbatches": 6}, "search.num_microbatches[0]"),
        ({"virtual_stages": 9}, "search.virtual_stages[0]"),
        ({"run_length": 65}, "search.run_length[0]"),
        ({"schedule": {"1f1b": 1}}, "search.schedule"),
        ({"fixed_layers_per_stage": [16, 15, 1], "pp": 2}, "search.fixed_layers_per_stage"),
        ({"schedules": "1f1b"}, "search.schedules"),
        ({"pp": 33}, "search.pp[0]"),
    ],
)
def test_search_refusals(search: dict[str, Any], path: str) -> None:
    with pytest.raises(InputError) as caught:
        load_instance(document(search=search))
    assert caught.value.path == path


def test_pipeline_degrees_hold_the_divisors_of_the_layers() -> None:
    assert pipeline_degrees(126) == (
        1,
        2,
        3,
        4,
        6,
        7,
        8,
        9,
        12,
        14,
        16,
        18,
        21,
        24,
        32,
        42,
        48,
        63,
        64,
    )
    assert pipeline_degrees(6) == (1, 2, 3, 4, 6)


@pytest.mark.parametrize(
    "fields",
    [
        {"oversubscription": "1:4"},
        {"oversubscription": "4:1"},
        {"oversubscription": 4},
    ],
)
def test_oversubscription_as_ratio(fields: dict[str, Any]) -> None:
    changed = document()
    link = {"from": "a", "to": "b", "delay_s": "30 us", **fields}
    changed["cluster"]["links"] = [link]
    assert load_instance(changed).cluster.links[0].oversubscription == 4


def test_models_are_immutable() -> None:
    instance = load_instance(document())
    with pytest.raises(ValueError, match="frozen"):
        instance.name = "other"


def test_shipped_json_schema_is_current() -> None:
    text = (ROOT / "instances" / "instance.schema.json").read_text(encoding="utf-8")
    assert json.loads(text) == json_schema()


def test_json_schema_names_the_public_keys() -> None:
    top = json_schema()["properties"]
    assert list(top) == ["$schema", *list(Instance.model_fields)[1:]]
    link = json_schema()["$defs"]["Link"]
    assert {"from", "to"} <= set(link["required"])
    assert link["additionalProperties"] is False


def test_error_text() -> None:
    error = InputError("cluster.sites[1].gpu", "unknown GPU\n'H1000'", "H100")
    assert str(error) == "cluster.sites[1].gpu: unknown GPU\\n'H1000' (did you mean 'H100'?)"
    assert dotted(["cluster", "sites", 1, "gpu"]) == "cluster.sites[1].gpu"
    assert nearest("GPUS_PER_NOD", ["gpus_per_node", "num_gpus"]) == "gpus_per_node"
    assert nearest("zzz", ["gpus_per_node"]) is None


@given(st.text())
def test_one_line_is_always_printable(text: str) -> None:
    line = one_line(text + "\ud800\n")
    line.encode()
    assert line.isprintable()
