"""Published findings on scale-across training, examined: ``python bench/findings.py``.

Runs the shipped sweeps and a few finer ones, all of proven optima, computes the crossovers, and
writes ``bench/results/findings.md`` and the pictures ``docs/images/findings_*.svg`` (needs
matplotlib: ``pip install '.[report]'``).  Results are kept in the folder of ``-o``, so that an
interrupted run goes on.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.sweep_tables import ROOT, Times, crossing, in_folder, markdown, picture, run
from planner.cost.collectives import group_time
from planner.instance.load import load_instance
from planner.instance.schema import Instance
from planner.legality import layout_violations
from planner.problem import Problem
from planner.report.figures.drawings import curves, phase_diagrams
from planner.report.html.traffic import link_traffic
from planner.search.result import SolveStatus
from planner.search.solve import solve
from planner.simulation.simulate import simulate_layout
from planner.versions import versions

RESULTS = ROOT / "bench" / "results" / "findings.md"

JOB = "dense-17b-2-buildings"
STOCK = {"cp": 1, "micro_batch_size": 1, "extra_warmup": 0, "recompute": "none"}
"""One sequence a microbatch, no extra warm-up, nothing recomputed."""
FOUR = {"tp": 2, "pp": 4, "layers_per_stage": [13, 13, 13, 9]}
"""Stages of equal work: the head weighs as much as four layers."""
THIN = {"name": "oversubscription", "set": "cluster.links[*].oversubscription"}
THINNER = THIN | {
    "label": "oversubscription between buildings",
    "unit": ":1",
    "log": {"start": 1, "stop": 256, "num": 17},
}
LOOP, VEE = [7, 7, 7, 6, 6, 6, 6, 3], [6, 7, 7, 7, 6, 6, 6, 3]

NICS: dict[str, Any] = {
    "name": "findings-nic",
    "description": "17B, four stages, eight microbatches: what crosses, by network of a GPU.",
    "instance": JOB,
    "fix": STOCK
    | FOUR
    | {"dp": 256, "dp_shard": 128, "sharding": "zero1", "schedule": "1f1b", "num_microbatches": 8},
    "axes": [
        {
            "name": "nic_gbps",
            "label": "network of a GPU",
            "unit": "Gb/s",
            "set": "cluster.sites[*].nic_gbps",
            "values": [25, 100, 400],
        },
        THINNER,
    ],
    "variants": {
        "dp-out": {"fix": {"placement_kind": "dp-out"}},
        "pp-out": {"fix": {"placement_kind": "pp-out"}},
        "pp-out-extra-warm-up": {"fix": {"placement_kind": "pp-out", "extra_warmup": None}},
    },
}
SCHEDULES: dict[str, Any] = {
    "1f1b": {"fix": {"schedule": "1f1b", "layers_per_stage": FOUR["layers_per_stage"]}},
    "zb-h1": {"fix": {"schedule": "zb_h1", "layers_per_stage": FOUR["layers_per_stage"]}},
    "zbv": {"fix": {"schedule": "zbv", "layers_per_stage": VEE}},
    "interleaved": {
        "fix": {"schedule": "interleaved", "virtual_stages": 2, "layers_per_stage": LOOP}
    },
    "dora": {"fix": {"schedule": "dora", "virtual_stages": 2, "layers_per_stage": LOOP}},
}


def schedules_over(name: str, axis: Mapping[str, Any]) -> dict[str, Any]:
    """The schedules of a pipeline over two sites, half of its stages at each, along one axis."""
    return {
        "name": name,
        "description": "17B, four stages over two sites of 512 GPUs, sixteen microbatches.",
        "instance": JOB,
        "set": {
            "cluster.links[*].protocols": ["dedicated"],
            "cluster.sites[*].num_gpus": 512,
            "cluster.links[*].oversubscription": 1,
            "cluster.links[*].delay_s": 1e-5,
        },
        "fix": STOCK
        | {"tp": 2, "pp": 4, "num_microbatches": 16, "placement_kind": "pp-out"}
        | {"dp_shard": 128, "sharding": "zero1"},
        "axes": [axis],
        "variants": SCHEDULES,
    }


OVER_THIN = schedules_over(
    "findings-schedules-thin",
    THIN
    | {
        "label": "oversubscription between sites",
        "unit": ":1",
        "log": {"start": 1, "stop": 512, "num": 28},
    },
)
OVER_DELAY = schedules_over(
    "findings-schedules-delay",
    {
        "name": "delay_s",
        "label": "one-way delay",
        "unit": "s",
        "set": "cluster.links[*].delay_s",
        "log": {"start": 0.001, "stop": 1, "num": 28},
    },
)
STATE: dict[str, Any] = {
    "name": "findings-state",
    "description": "17B without a pipeline, fully sharded: inside each building, or over both.",
    "instance": JOB,
    "fix": {
        **{"tp": 4, "cp": 1, "pp": 1, "dp": 512, "micro_batch_size": 1, "schedule": "1f1b"},
        **{"recompute": "none", "placement_kind": "dp-out"},
    },
    "axes": [THINNER],
    "variants": {
        "zero3-inside": {"fix": {"dp_shard": 256, "sharding": "zero3"}},
        "zero3-over-both": {
            "set": {"search.shard_across_sites": True},
            "fix": {"dp_shard": 512, "sharding": "zero3"},
        },
        "zero1-inside": {"fix": {"dp_shard": 256, "sharding": "zero1"}},
        "zero1-over-both": {
            "set": {"search.shard_across_sites": True},
            "fix": {"dp_shard": 512, "sharding": "zero1"},
        },
    },
}


def percent(ratio: float) -> str:
    """By how much a ratio is above or below one."""
    return f"{100 * (ratio - 1):+.2f} %" if abs(ratio - 1) < 0.1 else f"{100 * (ratio - 1):+.0f} %"


def to_one(value: float | None, *, last: float) -> str:
    """A ratio of capacities, such as 1:70."""
    return f"beyond 1:{last:g}" if value is None else f"1:{value:.3g}"


def series(times: Times, over: str, upper: str, lower: str, **at: float) -> list[float]:
    """T(upper) ÷ T(lower) along an axis."""
    return [
        times.time_s(upper, **at, **{over: x}) / times.time_s(lower, **at, **{over: x})
        for x in times.numbers(over)
    ]


def nearest(values: Sequence[float], wanted: Sequence[float]) -> list[float]:
    """Of an axis the values next to these, in a ratio."""
    return [min(values, key=lambda v: max(v, w) / min(v, w)) for w in wanted]


def pipeline_or_data(times: Times, nics: Times) -> Iterator[str]:
    """Finding 1: T(pp-out) ÷ T(dp-out) over oversubscription."""
    yield "## 1. Dense: what crosses, over oversubscription"
    yield ""
    ratios = times.numbers("oversubscription")
    shown = nearest(ratios, (1, 4, 8, 16, 32, 64, 128, 256))
    head = ["stages", "microbatches", *(f"1:{o:.3g}" for o in shown), "5 % at", "10 % at", "falls"]
    rows = []
    for stages in (2, 4):
        for m in times.numbers("microbatches"):
            found = series(
                times,
                "oversubscription",
                f"pp-out-{stages}-stages",
                f"dp-out-{stages}-stages",
                microbatches=m,
            )
            by = dict(zip(ratios, found, strict=True))
            falls = max(0.0, *(a - b for a, b in pairwise(found)))
            marks = [
                to_one(crossing(ratios, found, level), last=ratios[-1]) for level in (1.05, 1.1)
            ]
            cells = [*(percent(by[o]) for o in shown), *marks, f"{100 * falls:.3f} %"]
            rows.append([f"{stages}", f"{m:g}", *cells])
    yield "T(pp-out) ÷ T(dp-out) − 1, both proven, all 2,048 GPUs, `dp` 256, stock 1F1B. *falls*:"
    yield "the most by which the ratio falls from one oversubscription to the next one."
    yield ""
    yield from markdown(head, rows)
    yield ""
    yield "By network of a GPU (four stages, eight microbatches):"
    yield ""
    rows = []
    ratios = nics.numbers("oversubscription")
    for nic in nics.numbers("nic_gbps"):
        for variant in ("pp-out", "pp-out-extra-warm-up"):
            found = series(nics, "oversubscription", variant, "dp-out", nic_gbps=nic)
            at = [crossing(ratios, found, level) for level in (1.0001, 1.05, 1.1)]
            rate = "none" if at[2] is None else f"{nic / at[2]:.2f}"
            by = dict(zip(ratios, found, strict=True))
            cells = [percent(by[o]) for o in nearest(ratios, (1, 4, 16))]
            marks = [to_one(x, last=ratios[-1]) for x in at]
            rows.append([f"{nic:g}", variant, *cells, *marks, rate])
    yield from markdown(
        [
            *("Gb/s a GPU", "pipeline", "1:1", "1:4", "1:16", "0.01 % at", "5 % at", "10 % at"),
            "Gb/s a GPU between buildings at 10 %",
        ],
        rows,
    )
    picture("findings_dense", curves(nics.table)[0])


def instance_of(name: str, search: Mapping[str, Any], **training: int) -> Instance:
    """A shipped instance with other training fields and this search."""
    document = load_instance(name).model_dump(by_alias=True, mode="json")
    document["training"] |= training
    return load_instance(document | {"search": dict(search)})


def sent_bytes(instance: Instance) -> tuple[float, float]:
    """What the best plan sends over the busiest direction of a link: pipeline, synchronisation.

    Raises
    ------
    ValueError
        If the best plan is not proven.
    """
    result = solve(instance)
    if result.status is not SolveStatus.OPTIMAL or result.plan is None:
        raise ValueError(f"{instance.name}: {result.status}: {result.reason}")
    problem = Problem(instance)
    _, layout = layout_violations(problem, result.plan)
    assert layout is not None
    traffic = link_traffic(problem, layout, simulate_layout(problem, layout))
    directions = [d for link in traffic for d in link.directions]
    return (
        max(d.pipeline_bytes or 0.0 for d in directions),
        max(d.synchronisation_bytes or 0.0 for d in directions),
    )


def fixed_case(dp: int, kind: str, **more: Any) -> dict[str, Any]:
    """``search`` of a stock 1F1B case of four stages."""
    return {
        **{"tp": 2, "cp": 1, "pp": 4, "dp": dp, "micro_batch_size": 1, "extra_warmup": 0},
        **{"fixed_layers_per_stage": FOUR["layers_per_stage"], "schedule": "1f1b"},
        **{"recompute": "none", "sharding": "zero1", "placement_kind": kind, "virtual_stages": 1},
        **more,
    }


def pipeline_traffic() -> Iterator[str]:
    """Finding 2: bytes of the pipeline between the buildings over microbatches."""
    yield "## 2. Bytes between the buildings over microbatches"
    yield ""
    yield "17B, four stages; GB per direction and iteration, by simulation of the proven plan."
    yield ""
    rows = []
    for m in (8, 16, 32, 64):
        growing, _ = sent_bytes(
            instance_of(JOB, fixed_case(256, "pp-out", dp_shard=128), global_batch_size=256 * m)
        )
        _, gradients = sent_bytes(
            instance_of(JOB, fixed_case(256, "dp-out", dp_shard=128), global_batch_size=256 * m)
        )
        dp = 2048 // m
        same, _ = sent_bytes(instance_of(JOB, fixed_case(dp, "pp-out", dp_shard=dp // 2)))
        rows.append([f"{m}", *(f"{x / 1e9:.1f}" for x in (growing, gradients, same))])
    yield from markdown(
        [
            *("microbatches", "PP-out, `dp` 256, batch grows", "DP-out, `dp` 256, batch grows"),
            "PP-out, batch of 2,048, `dp` falls",
        ],
        rows,
    )


def experts(times: Times) -> Iterator[str]:
    """Finding 3: T(dp-out) ÷ T(pp-out) over experts and oversubscription."""
    yield "## 3. Experts"
    yield ""
    yield "T(dp-out) ÷ T(pp-out) − 1, both proven; Llama-4 Maverick with other numbers of experts,"
    yield "four stages, sixteen microbatches, all 2,048 GPUs. Above 0 the pipeline should cross."
    yield ""
    ratios = times.numbers("oversubscription")
    rows = []
    for number in times.numbers("experts"):
        found = series(times, "oversubscription", "dp-out", "pp-out", experts=number)
        marks = [to_one(crossing(ratios, found, level), last=ratios[-1]) for level in (1.01, 1.1)]
        kinds = {
            str(times.row("free", experts=number, oversubscription=o).values["plan_placement_kind"])
            for o in ratios
        }
        rows.append(
            [f"{number:g}", *(percent(r) for r in found[::2]), *marks, ", ".join(sorted(kinds))]
        )
    yield from markdown(
        ["experts", *(f"1:{o:.3g}" for o in ratios[::2]), "1 % at", "10 % at", "best placement"],
        rows,
    )
    yield ""
    count = times.numbers("experts")
    rows = []
    for o in ratios[::2]:
        found = [
            times.time_s("dp-out", experts=e, oversubscription=o)
            / times.time_s("pp-out", experts=e, oversubscription=o)
            for e in count
        ]
        cells = []
        for level in (1.0, 1.01, 1.1):
            at = crossing(count, found, level)
            lowest = at == count[0]
            cells.append("never" if at is None else f"{'≤ ' if lowest else ''}{at:.0f}")
        rows.append([f"1:{o:.3g}", *cells])
    yield "Experts from which the pipeline is ahead (interpolated):"
    yield ""
    yield from markdown(["oversubscription", "ahead", "by 1 %", "by 10 %"], rows)
    picture("findings_experts", phase_diagrams(times.table, "variant")[0])


def chunks(over_thin: Times, over_delay: Times, times: Times) -> Iterator[str]:
    """Findings 4 and 5: where schedules that cross more often fall behind."""
    yield "## 4 and 5. Schedules across the link"
    yield ""
    yield "17B, four stages of equal work over two sites of 512 GPUs, sixteen microbatches, proven."
    yield "Time over that of 1F1B − 1:"
    yield ""
    others = [name for name in SCHEDULES if name != "1f1b"]
    for found, axis, wanted, written in (
        (over_thin, "oversubscription", (1, 8, 16, 32, 64, 128, 256, 512), "1:{:.3g}"),
        (over_delay, "delay_s", (0.001, 0.01, 0.03, 0.1, 0.2, 0.5, 1), "{:.3g} s"),
    ):
        xs = found.numbers(axis)
        shown = nearest(xs, wanted)
        rows = []
        for name in others:
            by = dict(zip(xs, series(found, axis, name, "1f1b"), strict=True))
            rows.append([name, *(percent(by[x]) for x in shown)])
        yield from markdown(["schedule", *(written.format(x) for x in shown)], rows)
        yield ""
    yield "Where the row falls behind the column:"
    yield ""
    for found, axis, title, written in (
        (over_thin, "oversubscription", "at an oversubscription of", "1:{:.3g}"),
        (over_delay, "delay_s", "at a one-way delay of", "{:.3g} s"),
    ):
        xs = found.numbers(axis)
        rows = []
        for name in ("zbv", "interleaved", "dora"):
            cells = []
            for plain in SCHEDULES:
                values = series(found, axis, name, plain)
                at = crossing(xs, values, 1.0 + 1e-9)
                if name == plain:
                    cells.append("")
                elif at == xs[0]:
                    cells.append("always" if min(values) > 1 else "at first")
                else:
                    cells.append("never" if at is None else written.format(at))
            rows.append([name, *cells])
        yield from markdown([title, *SCHEDULES], rows)
        yield ""
    picture("findings_schedules_thin", curves(over_thin.table)[0])
    picture("findings_schedules_delay", curves(over_delay.table)[0])
    picture("findings_schedules", phase_diagrams(times.table, "variant")[0])


SIZES = (64 * 2**10, 2**20, 16 * 2**20, 256 * 2**20, 4 * 2**30)


def messages_and_protocols(times: Times) -> Iterator[str]:
    """Finding 6: message sizes, and what loss and distance make of both kinds of traffic."""
    yield "## 6. Message size, loss, distance, protocol"
    yield ""
    yield "Bus bandwidth of the cost model, GB/s, H100 nodes of 8 with 400 Gb/s a GPU:"
    yield ""
    gpu = Problem(load_instance(JOB)).classes[0].gpu
    rows = []
    for ranks in (16, 128, 1024):
        cells = []
        for size in SIZES:
            seconds = group_time("all_reduce", ranks, 8, size, gpu, 400e9 / 8)
            cells.append(f"{2 * (ranks - 1) / ranks * size / seconds / 1e9:.2f}")
        rows.append([f"all-reduce, {ranks} GPUs", *cells])
    sends = [size / group_time("p2p", 2, 1, size, gpu, 400e9 / 8) / 1e9 for size in SIZES]
    rows.append(["point to point", *(f"{rate:.2f}" for rate in sends)])
    names = ["64 KiB", "1 MiB", "16 MiB", "256 MiB", "4 GiB"]
    yield from markdown(["collective", *names], rows)
    yield ""
    yield "Iteration time over that of spraying at no loss and 1 km − 1; 1:8, two stages, eight"
    yield "microbatches, all 2,048 GPUs:"
    yield ""
    rows = []
    places = ((0, 1), (0, 100), (0, 1000), (1e-5, 1), (1e-5, 100), (1e-3, 1), (1e-3, 1000))
    for kind in ("dp-out", "pp-out"):
        best = times.time_s(f"{kind}-spray", loss=0, distance_km=1)
        for protocol in ("ecmp", "ecmp-qp16", "spray", "erasure"):
            cells = [
                percent(times.time_s(f"{kind}-{protocol}", loss=p, distance_km=km) / best)
                for p, km in places
            ]
            rows.append([kind, protocol, *cells])
    yield from markdown(
        ["crosses", "protocol", *(f"loss {p:g}, {km:,} km" for p, km in places)], rows
    )
    pipelines = tuple(row for row in times.table.rows if row.variant.startswith("pp-out"))
    drawn = phase_diagrams(replace(times.table, rows=pipelines), "variant")
    picture("findings_protocols", drawn[0])


def state(times: Times) -> Iterator[str]:
    """Finding 7: sharded state inside the buildings against over both."""
    yield "## 7. Sharding inside the buildings or over both"
    yield ""
    yield "17B without a pipeline, `tp` 4, `dp` 512, four microbatches: iteration time, s."
    yield ""
    ratios = times.numbers("oversubscription")
    shown = nearest(ratios, (1, 4, 8, 16, 64, 256))
    rows = []
    for variant in STATE["variants"]:
        cells = [f"{times.time_s(variant, oversubscription=o):.3f}" for o in shown]
        rows.append([variant, *cells])
    yield from markdown(["state", *(f"1:{o:.3g}" for o in shown)], rows)
    yield ""
    for inside, over in (
        ("zero3-inside", "zero3-over-both"),
        ("zero1-inside", "zero1-over-both"),
    ):
        found = series(times, "oversubscription", over, inside)
        at = [to_one(crossing(ratios, found, level), last=ratios[-1]) for level in (1.01, 1.1)]
        yield f"`{over}` behind `{inside}` by 1 % at {at[0]}, by 10 % at {at[1]}."
    picture("findings_state", curves(times.table)[0])


MODELS = (
    ("17B dense", JOB, 17.17e9, {}),
    ("109B, 16 experts", "llama4-scout", 107.8e9, {"ep": 16}),
    ("400B, 128 experts", "llama4-maverick", 400.7e9, {"ep": 32}),
)


def byte_arithmetic() -> Iterator[str]:
    """Finding 8: bytes of both kinds of traffic, by hand and by simulation."""
    yield "## 8. Bytes by hand and by the planner"
    yield ""
    yield "GB per direction and iteration between two buildings, 2,048 × 8,192 tokens, four"
    yield "stages, 1F1B. By hand: PP tokens × 5,120 × 2 bytes for one crossing; DP parameters ×"
    yield "4 bytes × 2 (G − 1) ÷ G, G = 2 buildings (gradients reduced and gathered in 4 bytes)."
    yield ""
    tokens = 2048 * 8192
    rows = []
    for title, model, parameters, degrees in MODELS:
        document = load_instance(JOB).model_dump(by_alias=True, mode="json")
        if model != JOB:
            document["model"] = model
        dp = 256 if model == JOB else 128
        found = []
        for kind in ("pp-out", "dp-out"):
            case = fixed_case(dp, kind, tp=2048 // 4 // dp, **degrees)
            found.append(sent_bytes(load_instance(document | {"search": case})))
        sizes = (tokens * 5120 * 2, found[0][0], 4 * parameters, found[1][1])
        rows.append([title, *(f"{size / 1e9:.0f}" for size in sizes)])
    yield from markdown(
        ["model", "PP by hand", "PP, planner", "DP by hand", "DP, planner"],
        rows,
    )


def write(folder: Path) -> None:
    """The page of all findings."""
    dense = run("dense-17b-oversubscription", folder)
    nics = run(NICS, folder)
    mixtures = run("moe-experts-oversubscription", folder)
    schedules = run("schedules-oversubscription-delay", folder)
    over_thin, over_delay = run(OVER_THIN, folder), run(OVER_DELAY, folder)
    protocols = run("ecmp-spraying-loss-distance", folder)
    states = run(STATE, folder)
    every = (dense, nics, mixtures, schedules, over_thin, over_delay, protocols, states)
    known = ", ".join(f"{name} {version}" for name, version in versions().items())
    lines = [
        "# Findings, examined",
        "",
        "Written by `python bench/findings.py`; read [docs/findings.md](../../docs/findings.md).",
        "",
    ]
    for part in (
        pipeline_or_data(dense, nics),
        pipeline_traffic(),
        experts(mixtures),
        chunks(over_thin, over_delay, schedules),
        messages_and_protocols(protocols),
        state(states),
        byte_arithmetic(),
    ):
        lines += ["\n".join(part).rstrip(), ""]
    lines += [
        "## Sweeps",
        "",
        *markdown(
            ["sweep", "points", "processor time, s"],
            [[t.table.name, f"{len(t.table.rows):,}", f"{t.cpu_s:.0f}"] for t in every],
        ),
        "",
        f"One worker, {platform.machine()}. Versions: {known}.",
    ]
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    in_folder(__doc__, write)
