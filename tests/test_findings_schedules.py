"""Findings of the field about pipeline schedules across sites, as directions.

One pipeline lies across two sites, half of its stages at each.  Sources: CrossPipe (arXiv
2507.00217) for crossings and their cost; the statement on schedules that split the backward and
run several chunks is the secondary account of Meta's DoraPP, modelled here as ``dora``.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from planner.check import check_plan
from planner.cost.coefficients import Option
from planner.instance.load import load_instance
from planner.instance.schema import Instance
from planner.layout import Layout, num_boundaries, to_plan
from planner.pipeline.schedules import SCHEDULES
from planner.plan import Degrees, Plan
from planner.problem import Problem
from planner.simulation.simulate import simulate

PP = 4
MODEL = {
    "num_layers": 16, "hidden_size": 4096, "num_heads": 32, "ffn_hidden_size": 16384,
    "vocab_size": 32000,
}  # fmt: skip
OVERSUBSCRIPTIONS = (1, 2, 4, 8, 16)


def two_sites(
    sequences: int = 16, *, oversubscription: float = 1, delay_s: float = 0.0
) -> Instance:
    """A job whose pipeline of four stages needs both sites."""
    sites = [
        {"name": name, "gpu": "H100", "num_gpus": 2, "gpus_per_node": 2, "nic_gbps": 400}
        for name in "ab"
    ]
    link = {"from": "a", "to": "b", "oversubscription": oversubscription, "delay_s": delay_s}
    stack: dict[str, Any] = {"preset": "megatron-core", "host_floor_s": 0, "fixed_s": 0}
    return load_instance(
        {
            "model": MODEL,
            "training": {"global_batch_size": sequences, "sequence_length": 4096},
            "cluster": {"sites": sites, "links": [link | {"protocols": ["rdma_spray"]}]},
            "stack": stack,
        }
    )


def pp_out(instance: Instance, schedule: str, chunks: int = 1) -> Plan:
    """The plan with stages 0 and 1 at the first site and 2 and 3 at the second."""
    problem = Problem(instance)
    sites = [0, 0, 1, 1]
    boundaries = num_boundaries(schedule, PP, chunks)
    return to_plan(
        problem,
        Layout(
            degrees=Degrees(1, 1, 1, 1, PP, chunks, 1, 1, 1),
            schedule=schedule,
            run_length=PP if SCHEDULES[schedule].has_run_length else None,
            extra_warmup=(0,) * PP,
            option=Option("ddp", overlap=True, recompute="full", spanning=False),
            sync="hierarchical",
            layers=(16 // (PP * chunks),) * (PP * chunks),
            replicas=tuple(tuple(int(d == site) for d in range(2)) for site in sites),
            flows=tuple(((sites[b], sites[(b + 1) % PP], 1),) for b in range(boundaries)),
            protocols=dict.fromkeys(range(len(problem.links)), ("rdma_spray", "rdma_spray")),
        ),
    )


def seconds(instance: Instance, schedule: str, chunks: int = 1) -> float:
    """Simulated iteration time of the plan, which the checker accepts."""
    plan = pp_out(instance, schedule, chunks)
    report = check_plan(instance, plan)
    assert report.feasible, report.violations
    return simulate(instance, plan).time_s


def test_pipeline_traffic_grows_with_the_number_of_microbatches() -> None:
    """Finding 2: the link works in proportion to the microbatches."""
    work = []
    for sequences in (8, 16, 32, 64):
        instance = two_sites(sequences)
        links = simulate(instance, pp_out(instance, "1f1b")).links
        work.append(sum(link.pipeline_s for link in links))
        assert all(link.synchronisation_s == 0 for link in links)
    for before, after in pairwise(work):
        assert after == pytest.approx(2 * before, rel=1e-6)
    assert work[0] > 0


def test_chunks_with_split_backward_lose_their_advantage_on_thin_links() -> None:
    """Finding 4: ``dora`` beats 1F1B on a wide link and falls behind as the link gets thinner."""
    ratios = [
        seconds(two_sites(oversubscription=number), "dora", 2)
        / seconds(two_sites(oversubscription=number), "1f1b")
        for number in (*OVERSUBSCRIPTIONS, 64, 256)
    ]
    assert ratios[0] < 1
    assert ratios[-1] > 1
    assert all(after >= before * (1 - 1e-3) for before, after in pairwise(ratios)), ratios


@pytest.mark.parametrize(
    ("schedule", "chunks", "crossings"),
    [("1f1b", 1, 2), ("zb_h1", 1, 2), ("zbv", 2, 4), ("interleaved", 2, 6), ("dora", 2, 6)],
)
def test_crossings_per_microbatch(schedule: str, chunks: int, crossings: int) -> None:
    """Finding 5: plain schedules cross the link twice, a V four times, a loop of two chunks six."""
    sequences = 16
    instance = two_sites(sequences)
    links = simulate(instance, pp_out(instance, schedule, chunks)).links
    plain = simulate(instance, pp_out(instance, "1f1b")).links
    one_way = sum(link.pipeline_s for link in plain) / (2 * sequences)
    found = sum(link.pipeline_s for link in links) / one_way / sequences
    assert found == pytest.approx(crossings, rel=1e-6)


def test_which_schedule_suits_which_delay() -> None:
    """Finding 5: the V is best at low delay, plain schedules as it grows; loops suffer most.

    Delay is propagation and serialization together, as in CrossPipe; propagation alone moves the
    order little.
    """
    settings = ((1, 0.0), (16, 2e-3), (64, 8e-3), (256, 32e-3))
    times = {
        name: [seconds(two_sites(oversubscription=o, delay_s=d), name, chunks) for o, d in settings]
        for name, chunks in (("1f1b", 1), ("zb_h1", 1), ("zbv", 2), ("interleaved", 2))
    }
    assert min(times, key=lambda name: times[name][0]) == "zbv"
    assert min(times, key=lambda name: times[name][-1]) in ("1f1b", "zb_h1")
    growth = {name: values[-1] - values[0] for name, values in times.items()}
    assert max(growth, key=lambda name: growth[name]) == "interleaved"
    assert growth["zbv"] > max(growth["1f1b"], growth["zb_h1"])
