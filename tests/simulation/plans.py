"""A small job on two or three equal sites, and plans of it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from planner.instance.load import load_instance
from planner.instance.schema import Instance
from planner.plan import Plan, parse_plan

LAYERS = 8


def job(
    sites: str = "ab", *, batch: int = 16, gbps: float = 100.0, delay_s: float = 1e-4
) -> Instance:
    """The job; every two neighbours of ``sites`` are linked."""
    return load_instance(
        {
            "name": "small",
            "model": {
                "num_layers": LAYERS,
                "hidden_size": 2048,
                "num_heads": 16,
                "num_kv_heads": 8,
                "ffn_hidden_size": 8192,
                "vocab_size": 32000,
            },
            "training": {"global_batch_size": batch, "sequence_length": 4096},
            "cluster": {
                "sites": [{"name": name, "gpu": "H100", "num_gpus": 64} for name in sites],
                "links": [
                    {
                        "from": a,
                        "to": b,
                        "bandwidth_gbps": gbps,
                        "delay_s": delay_s,
                        "flows": 1,
                        "protocols": ["dedicated"],
                    }
                    for a, b in pairwise(sites)
                ],
            },
        }
    )


def plan(
    rows: list[dict[str, int]],
    *,
    batch: int = 16,
    schedule: str = "1f1b",
    v: int = 1,
    run: int | None = None,
    links: str = "ab",
    **more: Any,
) -> Plan:
    """A plan with these replicas of every stage at every site; moves keep what can stay."""
    pp, dp = len(rows), sum(rows[0].values())
    flows = []
    kinds = set()
    boundaries = pp if v > 1 and schedule in ("interleaved", "dora") and pp > 1 else pp - 1
    for b in range(boundaries):
        before, after = dict(rows[b]), dict(rows[(b + 1) % pp])
        for site in list(before):
            stay = min(before[site], after.get(site, 0))
            before[site] -= stay
            after[site] = after.get(site, 0) - stay
        for source, count in before.items():
            for target in after:
                moved = min(count, after[target])
                if moved > 0:
                    flows.append({"boundary": b, "from": source, "to": target, "replicas": moved})
                    after[target] -= moved
                    count -= moved
    if flows:
        kinds.add("pp")
    if any(sum(1 for r in row.values() if r) > 1 for row in rows):
        kinds.add("dp")
    kind = {0: "single-site", 2: "mixed"}.get(len(kinds), f"{min(kinds, default='')}-out")
    document = {
        **dict.fromkeys(("tp", "cp", "ep", "etp"), 1),
        "pp": pp,
        "dp": dp,
        "dp_shard": 1,
        "dp_replicate": dp,
        "virtual_stages": v,
        "micro_batch_size": 1,
        "num_microbatches": batch // dp,
        "gpus_used": pp * dp,
        "schedule": schedule,
        "run_length": run,
        "extra_warmup": [0] * pp,
        "sharding": "ddp",
        "sync": "hierarchical",
        "overlap": False,
        "recompute": "full",
        "layers_per_stage": [LAYERS // (pp * v)] * (pp * v),
        "placement": [
            {"site": site, "first_stage": s, "last_stage": s, "replicas": count}
            for s, row in enumerate(rows)
            for site, count in row.items()
            if count
        ],
        "flows": flows,
        "placement_kind": kind,
        "protocols": [
            {"link": f"{a}--{b}", "from": x, "to": y, "class": "all", "protocol": "dedicated"}
            for a, b in (pairwise(links) if kinds else ())
            for x, y in ((a, b), (b, a))
        ],
    }
    return parse_plan(document | more)
