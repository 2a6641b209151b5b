"""Properties of the optimum that hold whatever the numbers are."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pytest

from planner.check import check_plan
from planner.instance.load import load_instance, narrowed
from planner.instance.schema import Instance
from planner.pipeline.schedules import SCHEDULES
from planner.plan import Plan
from planner.search.result import Progress, SolveResult, SolveStatus
from planner.search.solve import solve
from tests.random_instances import random_instance

Document = dict[str, Any]

LINKED_SEEDS = (1, 6, 11, 25, 57)
"""The best plan crosses the sites."""
MEMORY_SEEDS = (3, 8, 9, 13)
"""The memory limit is tight."""
OTHER_SEEDS = (2, 5, 7, 10)
WORST = 1 << 62
"""Z where there is no plan."""

PROTOCOLS = (
    "rdma_ecmp",
    "rdma_ecmp_qp16",
    "rdma_spray",
    "rdma_ec",
    "tcp_cubic",
    "tcp_bbr",
    "own_udp",
    "own_window",
)


def document_of(instance: Instance) -> Document:
    """An instance as the JSON object that gives it."""
    document: Document = instance.model_dump(by_alias=True, mode="json")
    document["search"] = instance.search.model_dump(exclude_unset=True, mode="json")
    return document


@lru_cache
def base(seed: int) -> tuple[Instance, SolveResult]:
    """The instance of a seed and its optimum."""
    instance = random_instance(seed)
    return instance, settled(instance)


def settled(instance: Instance) -> SolveResult:
    """The proven answer to an instance."""
    result = solve(instance, backend="cp-sat")
    assert result.status in (SolveStatus.OPTIMAL, SolveStatus.INFEASIBLE), result.reason
    return result


def value(result: SolveResult) -> int:
    """The optimum, or what is worse than any where there is no plan."""
    return WORST if result.time_us is None else result.time_us


def value_of(document: Document) -> int:
    """The optimum of an instance as a JSON object."""
    return value(settled(load_instance(document)))


def best_plan_of(seed: int) -> tuple[Instance, Plan, int]:
    """Instance, best plan and optimum of a seed that has one."""
    instance, result = base(seed)
    assert result.plan is not None and result.time_us is not None
    return instance, result.plan, result.time_us


@pytest.mark.parametrize("seed", LINKED_SEEDS)
def test_more_bandwidth_never_costs_time(seed: int) -> None:
    """Links of twice and of eight times the capacity."""
    instance, result = base(seed)
    last = value(result)
    for factor in (2, 8):
        document = document_of(instance)
        for link in document["cluster"]["links"]:
            link["bandwidth_gbps"] *= factor
            if link["reverse_bandwidth_gbps"]:
                link["reverse_bandwidth_gbps"] *= factor
        now = value_of(document)
        assert now <= last
        last = now


@pytest.mark.parametrize("seed", LINKED_SEEDS)
def test_less_loss_never_costs_time(seed: int) -> None:
    """Every link with 2 % loss, then 0.01 %, then none."""
    instance, _ = base(seed)
    last = WORST
    for loss in (2e-2, 1e-4, 0.0):
        document = document_of(instance)
        for link in document["cluster"]["links"]:
            link["loss"] = loss
        now = value_of(document)
        assert now <= last
        last = now


@pytest.mark.parametrize("seed", LINKED_SEEDS)
def test_another_protocol_never_costs_time(seed: int) -> None:
    """One more protocol allowed on every link."""
    instance, result = base(seed)
    document = document_of(instance)
    rng = random.Random(seed)
    for link in document["cluster"]["links"]:
        more = [name for name in PROTOCOLS if name not in link["protocols"]]
        link["protocols"] = [*link["protocols"], rng.choice(more)]
    assert value_of(document) <= value(result)


@pytest.mark.parametrize("seed", MEMORY_SEEDS)
def test_more_memory_never_costs_time(seed: int) -> None:
    """Limits 20 % lower, as they are, 30 % higher and three times as high."""
    instance, result = base(seed)
    values = []
    for factor in (0.8, 1.0, 1.3, 3.0):
        document = document_of(instance)
        for site in document["cluster"]["sites"]:
            limit = site["memory_limit_bytes"] * factor
            site["memory_limit_bytes"] = min(int(limit), site["gpu"]["memory_bytes"])
        values.append(value(result) if factor == 1.0 else value_of(document))
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize("seed", [*LINKED_SEEDS, *OTHER_SEEDS])
def test_names_and_order_of_sites_do_not_matter(seed: int) -> None:
    """Sites renamed and rotated, links renamed and shuffled: the same optimum.

    Rotated, because a flat ring goes round the hosting sites in file order.
    """
    instance, result = base(seed)
    document = document_of(instance)
    cluster = document["cluster"]
    rng = random.Random(seed)
    places = [*cluster["sites"], *cluster["hubs"]]
    letters = rng.sample("abcdefgh", len(places))
    names = {place["name"]: letters[i] for i, place in enumerate(places)}
    for place in places:
        place["name"] = names[place["name"]]
    cluster["sites"] = [*cluster["sites"][1:], cluster["sites"][0]]
    for number, link in enumerate(cluster["links"]):
        link |= {"name": f"x{number}", "from": names[link["from"]], "to": names[link["to"]]}
    rng.shuffle(cluster["links"])
    assert value_of(document) == value(result)


def forbidding(instance: Instance, plan: Plan) -> dict[str, list[Any]]:
    """For some choices the values of the search without that of a plan."""
    search, batch = instance.search, instance.training.global_batch_size
    divisors = [n for n in range(1, batch + 1) if batch % n == 0]
    ranges: dict[str, Sequence[Any]] = {
        "schedule": search.schedule or tuple(SCHEDULES),
        "dp": search.dp or divisors,
        "recompute": search.recompute or ("none", "selective", "full"),
        "micro_batch_size": search.micro_batch_size or [n for n in (1, 2, 4, 8) if n in divisors],
    }
    rest = {
        name: [value for value in values if value != getattr(plan, name)]
        for name, values in ranges.items()
    }
    return {name: values for name, values in rest.items() if values}


@pytest.mark.parametrize("seed", OTHER_SEEDS)
def test_forbidding_the_optimum_never_helps(seed: int) -> None:
    """A search without the best plan's schedule, or without another of its values."""
    instance, plan, time_us = best_plan_of(seed)
    rest = forbidding(instance, plan)
    assert rest
    for name, values in rest.items():
        narrow = narrowed(instance, {name: values})
        assert value(settled(narrow)) >= time_us, name


@pytest.mark.parametrize("seed", [*LINKED_SEEDS, *OTHER_SEEDS])
def test_fixing_the_optimum_keeps_it(seed: int) -> None:
    """A search of the best plan's own values has the same optimum."""
    instance, plan, time_us = best_plan_of(seed)
    names = (
        *("tp", "cp", "ep", "pp", "virtual_stages", "micro_batch_size", "dp", "dp_shard"),
        *("dp_replicate", "num_microbatches", "gpus_used", "schedule", "sharding", "sync"),
        *("overlap", "recompute", "placement_kind"),
    )
    fixed: dict[str, Any] = {name: getattr(plan, name) for name in names}
    fixed["fixed_layers_per_stage"] = list(plan.layers_per_stage)
    fixed["extra_warmup"] = sorted(
        {a - b for a, b in zip(plan.extra_warmup, (*plan.extra_warmup[1:], 0), strict=True)}
    )
    if plan.run_length is not None:
        fixed["run_length"] = plan.run_length
    result = settled(narrowed(instance, fixed))
    assert result.time_us == time_us
    assert result.certificate["cases_total"] == 1


@pytest.mark.parametrize("seed", OTHER_SEEDS)
def test_the_same_command_twice(seed: int) -> None:
    """The same plan and the same certificate."""
    instance, first = base(seed)
    second = settled(instance)
    assert first.plan == second.plan
    assert first.certificate == second.certificate


def layered(layers: int) -> Instance:
    """A job of so many equal layers on two small sites.

    One way to keep state: how many of them bounds leave for the model is no matter of layers.
    """
    gpu = {
        "name": "micro",
        "peak_flops": {"bf16": 100e12},
        "memory_bytes": "256 GiB",
        "memory_bandwidth_bytes_per_s": 1.5e12,
        "scale_up_bytes_per_s": 300e9,
        "scale_up_domain": 4,
        "gpus_per_node": 4,
        "nic_gbps": 100,
    }
    return load_instance(
        {
            "model": {
                "num_layers": layers,
                "hidden_size": 1024,
                "num_heads": 8,
                "ffn_hidden_size": 4096,
                "vocab_size": 32000,
            },
            "training": {"global_batch_size": 16, "sequence_length": 1024},
            "cluster": {
                "sites": [{"name": name, "gpu": gpu, "num_gpus": 8} for name in "ab"],
                "links": [{"from": "a", "to": "b", "bandwidth_gbps": 100, "distance_km": 10}],
            },
            "search": {
                "pp": 2,
                "dp": 2,
                "tp": 1,
                "micro_batch_size": 1,
                "virtual_stages": 1,
                "schedule": "1f1b",
                "recompute": "none",
                "sharding": "zero1",
                "overlap": True,
            },
        }
    )


def test_the_number_of_equal_layers_hardly_matters() -> None:
    """24 and 96 equal layers: models of equal size, solved in nearly the same time."""
    seconds, sizes = [], []
    for layers in (24, 96):
        instance = layered(layers)
        began = time.process_time(), time.monotonic()
        result = settled(instance)
        seconds.append(max(time.process_time() - began[0], time.monotonic() - began[1]))
        (winner,) = [model for model in result.provenance["models"] if model["winner"]]
        sizes.append([winner[name] for name in ("booleans", "integers", "rows")])
    assert sizes[0] == sizes[1]
    assert max(seconds) < 3 * min(seconds) + 1


class _Stop:
    """Raises KeyboardInterrupt at the first plan."""

    def __call__(self, progress: Progress) -> None:
        if progress.found_new:
            raise KeyboardInterrupt


def assert_unfinished(instance: Instance, result: SolveResult) -> None:
    """A checked plan if any, a bound that does not exceed it, and every case with a verdict."""
    certificate = result.certificate
    assert sum(entry["cases"] for entry in certificate["cases"]) == certificate["cases_total"]
    assert certificate["cases_total"] > 0
    if result.plan is None:
        return
    assert result.time_us is not None and result.bound_us is not None
    assert result.bound_us <= result.time_us
    report = check_plan(instance, result.plan)
    assert report.feasible and report.time_us == result.time_us


@pytest.mark.parametrize("name", ["dense-17b-2-buildings", "tiny", "mixtral-8x7b-mixed-gpus"])
def test_interrupted(name: str) -> None:
    """Ctrl-C at the first plan leaves this plan, a bound and a whole certificate."""
    instance = load_instance(name)
    result = solve(instance, backend="cp-sat", progress=_Stop())
    assert result.status is SolveStatus.INTERRUPTED
    assert result.limit == "interrupt"
    assert result.plan is not None
    assert_unfinished(instance, result)


@pytest.mark.parametrize("seconds", [0.05, 3])
@pytest.mark.parametrize("name", ["dense-17b-2-buildings", "nemotron-340b-1000km"])
def test_time_limit(name: str, seconds: float) -> None:
    """The time limit leaves the best plan so far, a bound and a whole certificate."""
    instance = load_instance(name)
    result = solve(instance, backend="cp-sat", time_limit_s=seconds)
    assert result.status in (SolveStatus.FEASIBLE, SolveStatus.NO_SOLUTION)
    assert result.limit == "time"
    assert_unfinished(instance, result)


@pytest.mark.parametrize("seed", OTHER_SEEDS)
def test_a_bound_at_any_time_is_valid(seed: int) -> None:
    """No bound that is reported on the way exceeds the optimum."""
    instance, _, time_us = best_plan_of(seed)
    seen: list[Progress] = []
    solve(instance, backend="cp-sat", progress=seen.append)
    assert seen
    assert all(progress.bound_us <= time_us for progress in seen if progress.best_us is not None)
    assert all(progress.cases_done <= progress.cases_total for progress in seen)
