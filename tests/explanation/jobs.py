"""A job whose alternatives are all solved at once, and its explanation."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from planner.check import check_plan
from planner.explanation.document import Explanation
from planner.explanation.explain import explain
from planner.instance.load import load_instance
from planner.instance.schema import Instance
from planner.plan import Plan
from planner.search.result import SolveStatus
from planner.search.solve import solve

GPU = {
    "name": "micro",
    "peak_flops": {"bf16": 100e12},
    "memory_bytes": "16 GiB",
    "memory_bandwidth_bytes_per_s": 1.5e12,
    "scale_up_bytes_per_s": 300e9,
    "scale_up_domain": 2,
    "gpus_per_node": 2,
    "nic_gbps": 100,
}


def job_document() -> dict[str, Any]:
    """Two sites that are both needed: two replicas of two stages, one node of two GPUs a site."""
    return {
        "name": "job",
        "model": {
            "num_layers": 4,
            "hidden_size": 1024,
            "num_heads": 8,
            "ffn_hidden_size": 4096,
            "vocab_size": 32000,
        },
        "training": {"global_batch_size": 8, "sequence_length": 1024},
        "cluster": {
            "sites": [{"name": name, "gpu": GPU, "num_gpus": 2} for name in "ab"],
            "links": [
                {
                    "name": "long",
                    "from": "a",
                    "to": "b",
                    "bandwidth_gbps": 20,
                    "delay_s": 1e-3,
                    "protocols": ["rdma_ecmp", "tcp_cubic"],
                }
            ],
        },
        "search": {
            "pp": 2,
            "dp": 2,
            "dp_shard": 2,
            "tp": 1,
            "micro_batch_size": 1,
            "virtual_stages": [1, 2],
            "schedule": ["gpipe", "1f1b", "zb_h2", "zbv"],
            "sharding": ["zero1", "zero2"],
            "recompute": ["none", "selective"],
        },
    }


@lru_cache
def job() -> Instance:
    return load_instance(job_document())


def optimum(instance: Instance) -> tuple[int, Plan] | None:
    """The proven optimum of an instance, by a solve of its own; None = there is no plan."""
    result = solve(instance, backend="cp-sat")
    assert result.status in (SolveStatus.OPTIMAL, SolveStatus.INFEASIBLE), result.reason
    if result.plan is None or result.time_us is None:
        return None
    assert check_plan(instance, result.plan).time_us == result.time_us
    return result.time_us, result.plan


@lru_cache
def best() -> tuple[int, Plan]:
    found = optimum(job())
    assert found is not None
    return found


@lru_cache
def explained() -> Explanation:
    """The best plan of the job explained, with time enough."""
    return explain(job(), best()[1], backend="cp-sat", time_limit_s=300)
