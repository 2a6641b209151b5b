"""What people found wrong with the times of other planners, each with the right value.

Every docstring gives the address of the report and what it demands.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from planner.check import check_plan, price_layout, time_of_layout
from planner.cost.coefficients import case_coefficients
from planner.instance.errors import InputError
from planner.instance.load import load_instance
from planner.instance.schema import Instance
from planner.pipeline.event_graph import Duration, event_graph
from planner.pipeline.schedules import Template
from planner.plan import Plan
from planner.problem import Problem
from planner.search.result import SolveStatus
from planner.search.solve import solve
from tests.layouts import one_cluster, one_site_layout, one_site_plan, rules, stage_memory

SMALL = {
    "num_layers": 16, "hidden_size": 2048, "num_heads": 16, "ffn_hidden_size": 8192,
    "vocab_size": 32000,
}  # fmt: skip
SHARP: dict[str, Any] = {
    "preset": "megatron-core",
    "tp_exposed": 0,
    "host_floor_s": 0,
    "fixed_s": 0,
}


def time_us(instance: Instance, **choices: Any) -> int:
    """Z of a plan on the first site."""
    problem, layout = Problem(instance), one_site_layout(instance, **choices)
    return time_of_layout(problem, case_coefficients(problem, layout.degrees), layout)


def durations(instance: Instance, **choices: Any) -> dict[Duration, int]:
    """All durations of the event graph of a plan on the first site."""
    problem, layout = Problem(instance), one_site_layout(instance, **choices)
    return price_layout(problem, case_coefficients(problem, layout.degrees), layout).durations


def test_one_microbatch_passes_every_stage() -> None:
    """https://github.com/microsoft/nnscaler/issues/30

    With one microbatch an iteration takes the sum over the stages, not the longest of them; GPUs
    that a plan leaves unused are reported.
    """
    instance = one_cluster(SMALL, 16, training={"global_batch_size": 1}, stack=SHARP)
    plan = {"pp": 4, "layers": (1, 2, 3, 10)}
    parts = durations(instance, **plan)
    work = sum(value for key, value in parts.items() if key.kind in ("F", "B"))
    transfers = sum(value for key, value in parts.items() if key.kind == "delay")
    ends = [parts[Duration(kind, s)] for kind in ("start", "end") for s in range(4)]
    # The loop of stage 3 to stage 0 exists for chunks only; here it carries nothing.
    assert work <= time_us(instance, **plan) <= work + transfers + sum(ends)
    longest = max(parts[Duration("F", s)] + parts[Duration("B", s)] for s in range(4))
    assert time_us(instance, **plan) > 1.5 * longest
    public = one_site_plan(instance, **plan)
    assert public.gpus_used == 4 < instance.cluster.sites[0].num_gpus


@pytest.mark.parametrize(("pp", "v"), [(4, 1), (4, 2), (8, 3)])
def test_transfers_of_an_interleaved_pipeline(pp: int, v: int) -> None:
    """https://github.com/aliyun/SimAI/issues/90

    A microbatch is sent ``pp·v − 1`` times forward and as often backward.
    """
    schedule = "interleaved" if v > 1 else "1f1b"
    template = Template(schedule, pp, v, pp, pp if v > 1 else None, (0,) * pp)
    kinds = ("F", "B", "start", "end", "occupancy")
    values: dict[Duration, int] = {}
    for k in range(pp * v):
        values |= {Duration(kind, k): 0 for kind in ("F", "B")}
    for s in range(pp):
        values |= {Duration(kind, s): 0 for kind in ("start", "end")}
        for t in ((s + 1) % pp, (s - 1) % pp):
            values |= {Duration("delay", (s, t)): 1, Duration("occupancy", (s, t)): 0}
    assert all(values[key] == 0 for key in values if key.kind in kinds)
    _, path = event_graph(template).critical_path(values)
    sends = sum(count for key, count in path.items() if key.kind == "delay")
    assert sends >= 2 * (pp * v - 1)


def test_a_batch_that_the_replicas_cannot_share_is_refused() -> None:
    """https://github.com/aliyun/SimAI/issues/202

    1,472 GPUs with tp 8 and pp 8 make 23 replicas, which cannot share 32 sequences.
    """
    training = {"global_batch_size": 32}
    with pytest.raises(InputError, match="23 replicas cannot share a global batch of 32"):
        one_cluster(SMALL, 1472, training=training, search={"tp": 8, "pp": 8, "dp": 23})
    instance = one_cluster(SMALL, 1472, training=training)
    plan = one_site_plan(one_cluster(SMALL, 1472, training={"global_batch_size": 23}), dp=23, tp=8)
    assert not check_plan(instance, plan).feasible


def test_expert_parallelism_without_tensor_parallelism() -> None:
    """https://github.com/aliyun/SimAI/issues/298

    tp = 1 with ep = 8 has an answer.
    """
    model = SMALL | {"num_experts": 8, "experts_per_token": 2, "expert_ffn_hidden_size": 2048}
    search = {"tp": 1, "ep": 8, "pp": 1, "cp": 1, "micro_batch_size": 1, "sharding": "zero1"}
    result = solve(one_cluster(model, 8, training={"global_batch_size": 16}, search=search))
    assert result.status is SolveStatus.OPTIMAL
    assert result.plan is not None
    assert (result.plan.tp, result.plan.ep) == (1, 8)


@pytest.mark.parametrize("gbps", [25, 100, 400])
def test_tensor_parallelism_across_nodes_loses_to_a_pipeline_across_nodes(gbps: float) -> None:
    """https://github.com/CSA-infra/AMPeD/issues/2

    Over links between nodes tensor parallelism is slower than a pipeline; the plan space does not
    even hold it.
    """
    instance = one_cluster("llama3-70b", 16, site={"nic_gbps": gbps})
    assert time_us(instance, tp=16, pp=1) > time_us(instance, tp=8, pp=2)
    assert rules(instance, one_site_plan(instance, tp=16, pp=1))


@pytest.mark.parametrize(
    ("schedule", "v"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 4)]
)
def test_pipelines_lie_between_their_bounds(schedule: str, v: int) -> None:
    """https://github.com/JF-D/Proteus/pull/3

    GPT-3 2.7B on 32 GPUs: no faster than the busiest stage, no slower than all work in a row.
    """
    model = {
        "num_layers": 32, "hidden_size": 2560, "num_heads": 32, "ffn_hidden_size": 10240,
        "vocab_size": 51200, "gated": False,
    }  # fmt: skip
    instance = one_cluster(model, 32, training={"global_batch_size": 128})
    plan = {"pp": 8, "dp": 4, "virtual_stages": v, "schedule": schedule}
    parts = durations(instance, **plan)
    m, pp = 32, 8
    ops = {key: value for key, value in parts.items() if key.kind in ("F", "B")}
    stages = [
        m * sum(value for key, value in ops.items() if int(key.index) % pp == s)  # type: ignore[call-overload]
        for s in range(pp)
    ]
    rest = sum(value for key, value in parts.items() if key.kind in ("start", "end"))
    delays = 2 * m * v * sum(value for key, value in parts.items() if key.kind == "delay")
    fixed = Problem(instance).instance.stack.fixed_s * 1e6
    time = time_us(instance, **plan)
    assert max(stages) <= time <= sum(stages) + rest + delays + fixed + 1
    assert time < 2 * max(stages)


def two_sites(bandwidth_gbps: float, delay_s: float, gpus: tuple[int, int] = (8, 8)) -> Instance:
    """A small job on two sites."""
    sites = [
        {"name": name, "gpu": "H100", "num_gpus": count}
        for name, count in zip("ab", gpus, strict=True)
    ]
    link = {"from": "a", "to": "b", "bandwidth_gbps": bandwidth_gbps, "delay_s": delay_s}
    return load_instance(
        {
            "model": SMALL,
            "training": {"global_batch_size": 16, "sequence_length": 4096},
            "cluster": {"sites": sites, "links": [link]},
            "search": {"micro_batch_size": 1, "cp": 1, "recompute": "none", "sharding": "zero1"},
        }
    )


def spread(**changes: Any) -> Plan:
    """A plan over both sites: by its stages or by its replicas."""
    fields: dict[str, Any] = {
        "tp": 1, "cp": 1, "ep": 1, "etp": 1, "pp": 2, "dp": 8, "dp_shard": 8, "dp_replicate": 1,
        "virtual_stages": 1, "micro_batch_size": 1, "num_microbatches": 2, "gpus_used": 16,
        "schedule": "1f1b", "extra_warmup": [0, 0], "sharding": "zero1", "sync": "hierarchical",
        "overlap": True, "recompute": "none", "layers_per_stage": [8, 8],
        "placement": [
            {"site": "a", "first_stage": 0, "last_stage": 0, "replicas": 8},
            {"site": "b", "first_stage": 1, "last_stage": 1, "replicas": 8},
        ],
        "flows": [{"boundary": 0, "from": "a", "to": "b", "replicas": 8}],
        "placement_kind": "pp-out",
        "protocols": [
            {"link": "a--b", "from": s, "to": t, "class": "all", "protocol": "rdma_spray"}
            for s, t in (("a", "b"), ("b", "a"))
        ],
    }  # fmt: skip
    return Plan.model_validate_json(json.dumps(fields | changes))


DP_OUT = {
    "dp_shard": 4,
    "dp_replicate": 2,
    "placement": [
        {"site": "a", "first_stage": 0, "last_stage": 1, "replicas": 4},
        {"site": "b", "first_stage": 0, "last_stage": 1, "replicas": 4},
    ],
    "flows": [],
    "placement_kind": "dp-out",
}


@pytest.mark.parametrize("changes", [{}, DP_OUT], ids=["pp-out", "dp-out"])
def test_the_link_between_sites_changes_the_cost(changes: dict[str, Any]) -> None:
    """https://github.com/astra-sim/astra-sim/issues/207

    A thinner or a longer link between sites costs time whenever traffic crosses it.
    """
    plan = spread(**changes)
    reports = [
        check_plan(two_sites(bandwidth, delay), plan)
        for bandwidth, delay in ((100, 1e-3), (50, 1e-3), (100, 1e-2))
    ]
    assert all(report.feasible for report in reports), reports[0].violations
    base, thinner, longer = (report.time_us or 0 for report in reports)
    assert thinner > base
    assert longer > base


def test_equal_sites_in_another_order_have_the_same_optimum() -> None:
    """https://github.com/astra-sim/astra-sim/issues/150

    Naming equal links and sites the other way round changes nothing.
    """
    found = [solve(two_sites(100, 1e-3, gpus)) for gpus in ((8, 16), (16, 8))]
    assert all(result.status is SolveStatus.OPTIMAL for result in found)
    assert found[0].time_us == found[1].time_us


def test_the_ranking_of_schedules_flips_with_memory_and_microbatches() -> None:
    """https://github.com/sail-sg/zero-bubble-pipeline-parallelism/issues/21

    6.2B on 8 H800, measured: 1F1B 55 samples/s in 48 GB, interleaved 66 in 57, ZB-2p 67 in 79, ZBV
    64 in 53.  1F1B is the slowest and the smallest, ZB-2p takes most memory, and which is best
    depends on the memory that there is and on the number of microbatches.
    """
    model = {
        "num_layers": 32, "hidden_size": 4096, "num_heads": 32, "ffn_hidden_size": 16384,
        "vocab_size": 51200, "gated": False, "tied_embeddings": True,
    }  # fmt: skip
    plans = {
        "1f1b": {"schedule": "1f1b"},
        "interleaved": {"schedule": "interleaved", "virtual_stages": 4},
        "zb_h2": {"schedule": "zb_h2"},
        "zbv": {"schedule": "zbv", "virtual_stages": 2},
    }

    def measure(m: int) -> tuple[dict[str, int], dict[str, int]]:
        training = {"global_batch_size": 3 * m, "sequence_length": 1024}
        instance = one_cluster(model, 8, training=training, site={"gpu": "H800"})
        shared = {"pp": 8, "micro_batch_size": 3}
        times = {name: time_us(instance, **plan, **shared) for name, plan in plans.items()}
        memory = {
            name: max(row.peak_mib for row in stage_memory(instance, **plan, **shared))
            for name, plan in plans.items()
        }
        return times, memory

    times, memory = measure(24)
    assert max(times, key=lambda name: times[name]) == "1f1b"
    assert max(memory, key=lambda name: memory[name]) == "zb_h2"
    assert memory["1f1b"] < memory["interleaved"] < memory["zb_h2"]
    winners = {
        min((name for name in plans if memory[name] <= cap), key=lambda name: times[name])
        for cap in (memory["1f1b"], memory["zbv"], memory["interleaved"], memory["zb_h2"])
    }
    assert len(winners) >= 2
    few, many = measure(24)[0], measure(512)[0]
    assert few["1f1b"] / few["zb_h2"] > 1.05
    assert many["1f1b"] < many["zb_h2"]


def test_the_class_of_a_link_follows_from_the_placement() -> None:
    """https://github.com/cli99/llm-analysis/issues/27

    Eight data-parallel ranks on two nodes of four synchronise over the network, on one node of
    eight inside it.
    """
    choices = {"dp": 8, "dp_shard": 8, "sharding": "zero1", "overlap": False}
    whole = one_cluster(SMALL, 8)
    preset = {"preset": "H100", "scale_up_domain": 4, "gpus_per_node": 4}
    split = one_cluster(SMALL, 8, site={"gpu": preset, "nic_gbps": 100})
    assert time_us(split, **choices) > time_us(whole, **choices)
    tensor = {"tp": 4, "dp": 2, "dp_shard": 2, "sharding": "zero1", "overlap": False}
    assert time_us(split, **tensor) > time_us(whole, **tensor)
