"""Plans for comparing Z with the simulation: chains of sites, and replicas that synchronise."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

from planner.cost.coefficients import Option, case_coefficients
from planner.instance.load import load_instance
from planner.layout import Layout
from planner.legality import layout_violations
from planner.pipeline.schedules import SCHEDULES
from planner.plan import Degrees, parse_plan
from planner.problem import Problem

SCHEDULE_CASES = (
    ("gpipe", 1, False),
    ("1f1b", 1, False),
    ("1f1b", 1, True),
    ("interleaved", 2, False),
    ("zb_h1", 1, False),
    ("zb_h1", 1, True),
    ("zb_h2", 1, False),
    ("zbv", 2, False),
    ("dualpipe_v", 2, False),
    ("dora", 2, False),
)
"""Schedule, chunks a stage, whether every slow boundary has extra warm-up before it."""

STAGES = (2, 4, 8, 16, 32)
BATCHES = (1, 2, 4)
"""Microbatches over stages."""
DELAYS = (0.0, 0.25, 1.0, 3.0, 10.0)
"""One-way delay of a slow boundary, serialization included, over the time of a stage."""
SLOW = (1, 2, 4)
"""Slow boundaries."""


@dataclass(frozen=True)
class Point:
    """A plan of a grid."""

    group: str
    """Name of the schedule in the tables."""
    part: str
    """What was drawn that explains errors."""
    label: str
    problem: Problem
    layout: Layout


def chains(*, shared: bool, seed: int = 0) -> Iterator[Point]:
    """One pipeline over several sites, every schedule, size, delay and number of slow boundaries.

    Drawn for each: position of the boundaries, equal or unequal stages, share of the serialization
    in the delay, and the extra warm-up.

    Parameters
    ----------
    shared
        False: a site after each slow boundary, with a link of its own to the next.  True: two sites
        in turn, so that all slow boundaries share one link.
    """
    rng = random.Random(f"chains {shared} {seed}")
    for case, pp, factor, delay, slow in product(SCHEDULE_CASES, STAGES, BATCHES, DELAYS, SLOW):
        if slow <= pp - 1:
            yield _chain(rng, case, pp, factor * pp, delay, slow, shared)


def _chain(
    rng: random.Random,
    case: tuple[str, int, bool],
    pp: int,
    m: int,
    delay: float,
    slow: int,
    shared: bool,
) -> Point:
    schedule, v, warm = case
    unequal = rng.random() < 0.5
    layers = [rng.randint(1, 4) if unequal else 2 for _ in range(pp * v)]
    adjacent = rng.random() < 0.5
    first = rng.randrange(pp - slow)
    cuts = list(range(first, first + slow)) if adjacent else sorted(rng.sample(range(pp - 1), slow))
    serial = rng.choice((0.05, 0.3, 0.6))
    site_of_run = [run % 2 if shared else run for run in range(slow + 1)]
    site = [site_of_run[sum(cut < s for cut in cuts)] for s in range(pp)]
    stage_us = _layer_us(split=SCHEDULES[schedule].split_backward) * sum(layers) / pp
    delay_us = delay * stage_us
    document = _instance(max(site) + 1, sum(layers), m, delay_us, serial, gpus=8 * pp)
    step = rng.randint(1, 8)
    extra = [step * sum(cut >= s for cut in cuts) if warm else 0 for s in range(pp)]
    moves = [(b, site[b], site[b + 1]) for b in range(pp - 1)]
    if v > 1 and SCHEDULES[schedule].chunk_map == "loop":
        moves.append((pp - 1, site[-1], site[0]))
    plan = _plan(schedule, pp, v, m, layers, extra, document)
    plan["placement"] = [
        {"site": f"s{d}", "first_stage": s, "last_stage": s, "replicas": 1}
        for s, d in enumerate(site)
    ]
    plan["flows"] = [
        {"boundary": b, "from": f"s{d}", "to": f"s{e}", "replicas": 1}
        for b, d, e in moves
        if d != e
    ]
    plan["placement_kind"] = "pp-out"
    label = (
        f"{schedule} pp {pp} m {m} delay {delay} serial {serial} cuts {cuts} layers {layers} "
        f"extra {extra}"
    )
    part = f"serialization {100 * serial:.0f} % of the delay"
    return _point(schedule + (" + warm-up" if warm else ""), part, label, document, plan)


def synchronised(*, seed: int = 0) -> Iterator[Point]:
    """Four replicas on two sites: gradients, the pipeline or both cross the link.

    Drawn for each: sharding, exchange, schedule and how long the exchange of all gradients takes,
    from a hundredth to once the time of the ops.
    """
    rng = random.Random(f"synchronised {seed}")
    kinds = ("dp-out", "pp-out", "mixed")
    cases = [case for case in SCHEDULE_CASES if not case[2]]
    for kind, case, pp, factor, overlap in product(kinds, cases, (2, 4, 8), (2, 4), (True, False)):
        schedule, v, _ = case
        m = factor * pp
        layers = [2] * (pp * v)
        split = SCHEDULES[schedule].split_backward
        work_us = _layer_us(split=split) * sum(layers) / pp * m
        gradients = 4 * sum(layers) * 218_112_000
        bandwidth = gradients / (work_us * 1e-6 * rng.choice((0.01, 0.1, 0.3, 1.0)))
        document = _instance(2, sum(layers), 4 * m, 50.0, 0.0, gpus=64 * pp, rate=bandwidth)
        plan = _plan(schedule, pp, v, m, layers, [0] * pp, document)
        sharded = rng.random() < 0.5
        plan |= {"dp": 4, "gpus_used": 4 * pp, "overlap": overlap}
        plan |= (
            {"dp_shard": 2, "dp_replicate": 2, "sharding": "zero1"}
            if sharded
            else {
                "dp_shard": 1,
                "dp_replicate": 4,
            }
        )
        plan["sync"] = rng.choice(("hierarchical", "flat"))
        half = pp // 2
        first, second = {
            "dp-out": ((2, 2), (2, 2)),
            "pp-out": ((4, 0), (0, 4)),
            "mixed": ((4, 0), (2, 2)),
        }[kind]
        plan["placement"] = [
            {"site": f"s{d}", "first_stage": a, "last_stage": b, "replicas": row[d]}
            for a, b, row in ((0, half - 1, first), (half, pp - 1, second))
            for d in range(2)
            if row[d]
        ]
        moved = first[0] - second[0]
        loop = v > 1 and SCHEDULES[schedule].chunk_map == "loop"
        ways = [(half - 1, "s0", "s1")] + ([(pp - 1, "s1", "s0")] if loop else [])
        plan["flows"] = [
            {"boundary": b, "from": d, "to": e, "replicas": moved} for b, d, e in ways if moved
        ]
        plan["placement_kind"] = kind
        label = f"{kind} {schedule} pp {pp} m {m} overlap {overlap} {plan['sync']} "
        label += f"{plan['sharding']} link {bandwidth / 1.25e8:.0f} Gb/s"
        group = f"{kind}, {'overlapped' if overlap else 'not overlapped'}"
        yield _point(group, f"{plan['sync']} exchange", label, document, plan)


def _instance(
    sites: int,
    layers: int,
    batch: int,
    delay_us: float,
    serial: float,
    *,
    gpus: int,
    rate: float | None = None,
) -> dict[str, Any]:
    """Sites in a chain; a transfer of one microbatch takes the share ``serial`` of the delay."""
    size = 2 * 4096 * 4096
    bytes_per_s = rate or size / max(1e-6, serial * delay_us * 1e-6)
    return {
        "name": "grid",
        "model": {
            "num_layers": layers,
            "hidden_size": 4096,
            "num_heads": 32,
            "num_kv_heads": 8,
            "ffn_hidden_size": 14336,
            "vocab_size": 32000,
        },
        "training": {"global_batch_size": batch, "sequence_length": 4096},
        "cluster": {
            "sites": [{"name": f"s{d}", "gpu": "H100", "num_gpus": gpus} for d in range(sites)],
            "links": [
                {
                    "from": f"s{d}",
                    "to": f"s{d + 1}",
                    "bandwidth_gbps": min(bytes_per_s / 1.25e8, 1e6),
                    "delay_s": (1 - serial) * delay_us * 1e-6,
                    "protocols": ["dedicated"],
                    "flows": 1,
                }
                for d in range(sites - 1)
            ],
        },
    }


def _plan(
    schedule: str,
    pp: int,
    v: int,
    m: int,
    layers: list[int],
    extra: list[int],
    document: dict[str, Any],
) -> dict[str, Any]:
    return {
        **dict.fromkeys(("tp", "cp", "ep", "etp", "dp", "dp_shard", "dp_replicate"), 1),
        "pp": pp,
        "virtual_stages": v,
        "micro_batch_size": 1,
        "num_microbatches": m,
        "gpus_used": pp,
        "schedule": schedule,
        "run_length": pp if SCHEDULES[schedule].has_run_length else None,
        "extra_warmup": extra,
        "sharding": "ddp",
        "sync": "hierarchical",
        "overlap": True,
        "recompute": "none",
        "layers_per_stage": layers,
        "protocols": [
            {"link": f"{a}--{b}", "from": x, "to": y, "class": "all", "protocol": "dedicated"}
            for link in document["cluster"]["links"]
            for a, b in ((link["from"], link["to"]),)
            for x, y in ((a, b), (b, a))
        ],
    }


def _point(
    group: str, part: str, label: str, document: dict[str, Any], plan: dict[str, Any]
) -> Point:
    problem = Problem(load_instance(document))
    violations, layout = layout_violations(problem, parse_plan(plan))
    if violations or layout is None:
        raise ValueError(f"{label}: {violations}")
    return Point(group, part, label, problem, layout)


@lru_cache(maxsize=2)
def _layer_us(*, split: bool) -> int:
    """Forward and backward of one layer, µs."""
    problem = Problem(load_instance(_instance(2, 4, 4, 1.0, 0.1, gpus=64)))
    costs = case_coefficients(problem, Degrees(1, 1, 1, 1, 2, 1, 1, 1, 1)).ops(
        0, Option("ddp", True, "none", False)
    )
    backward = costs.input_gradient[0] + costs.weight_gradient[0] if split else costs.backward[0]
    return costs.forward[0] + backward
