"""The optimum against usual choices, over many design points: ``python bench/headline.py``.

A design point is a job on a network.  For each the best plan is compared with a production default,
with the best plans in which one dimension alone leaves that default, and with a pipeline across the
sites under its best schedule.  Every time is proven, or its bound is used.  Writes
``bench/results/headline.md``; results are kept in the folder of ``-o``, so that an interrupted run
goes on.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.findings import JOB, LOOP, VEE
from bench.sweep_tables import ROOT, Times, in_folder, markdown, run
from planner.report.sweeps.table import SweepRow
from planner.sweeps.load import load_sweep
from planner.versions import versions

RESULTS = ROOT / "bench" / "results" / "headline.md"
PUBLISHED = "up to 64.62 % over a production configuration, up to 37.59 % over the best baseline"

PLAIN = ("gpipe", "1f1b", "zb_h1", "zb_h2")
LOOPS = ("interleaved", "dora")
VEES = ("zbv", "dualpipe_v")

PRODUCTION: dict[str, Any] = {
    "placement_kind": "dp-out",
    "sharding": ["zero2", "zero3"],
    "protocols": "rdma_ecmp",
    "schedule": ["1f1b", "interleaved"],
    "extra_warmup": 0,
}
"""Data parallelism between the sites, FSDP or HSDP, (interleaved) 1F1B, ECMP."""
SCHEDULE = ("schedule", "extra_warmup")
FREED: dict[str, tuple[str, ...]] = {
    "optimum": tuple(PRODUCTION),
    "production": (),
    "placement-only": ("placement_kind",),
    "schedule-only": SCHEDULE,
    "protocol-only": ("protocols",),
    "state-only": ("sharding",),
}
"""What leaves the default in each way of choosing."""
CROSSPIPE: dict[str, Any] = {
    "placement_kind": "pp-out",
    "schedule": ["1f1b", "zb_h1", "zbv", "interleaved"],
}
"""The pipeline between the sites, the best schedule and warm-up; state and protocol free."""
WAYS = (*FREED, "crosspipe-like")
BASELINES = WAYS[1:]


def choices(way: str) -> dict[str, Any]:
    """What is fixed in a way of choosing."""
    if way == "crosspipe-like":
        return CROSSPIPE
    return {key: value for key, value in PRODUCTION.items() if key not in FREED[way]}


@dataclass(frozen=True)
class Family:
    """Schedules with as many chunks, and layers that give every stage equal work."""

    name: str
    schedules: tuple[str, ...]
    virtual_stages: int
    layers: Sequence[int]


TWO = (
    Family("plain", PLAIN, 1, [26, 22]),
    Family("loop", LOOPS, 2, [13, 13, 13, 9]),
    Family("vee", VEES, 2, [11, 13, 13, 11]),
)
FOUR = (
    Family("plain", PLAIN, 1, [13, 13, 13, 9]),
    Family("loop", LOOPS, 2, LOOP),
    Family("vee", VEES, 2, VEE),
)


def variants(families: Sequence[Family]) -> dict[str, Any]:
    """All ways of choosing, each once for every family of schedules and placement it allows."""
    found: dict[str, Any] = {}
    for way in WAYS:
        fixed = choices(way)
        kinds = [fixed["placement_kind"]] if "placement_kind" in fixed else ["dp-out", "pp-out"]
        for family, kind in product(families, kinds):
            allowed = [s for s in family.schedules if s in fixed.get("schedule", family.schedules)]
            if allowed:
                found[f"{way}_{family.name}_{kind}"] = {
                    "fix": fixed
                    | {"schedule": allowed, "virtual_stages": family.virtual_stages}
                    | {"layers_per_stage": list(family.layers), "placement_kind": kind}
                }
    return found


def values(name: str, label: str, path: str, numbers: Sequence[float]) -> dict[str, Any]:
    """An axis."""
    return {"name": name, "label": label, "set": path, "values": list(numbers)}


LINK = "cluster.links[*]"
THIN = (1, 4, 16, 64)


def fixed_degrees() -> Iterator[dict[str, Any]]:
    """The jobs of the shipped sweeps with their degrees, on a part of their points."""
    base = {"cp": 1, "micro_batch_size": 1, "recompute": "none"}
    seventeen = base | {"tp": 2, "pp": 4, "dp": 256, "dp_shard": 128}
    yield {
        "name": "headline-dense",
        "instance": JOB,
        "fix": seventeen,
        "axes": [
            values("batch", "sequences", "training.global_batch_size", [2048, 8192]),
            values("oversubscription", "oversubscription", f"{LINK}.oversubscription", THIN),
        ],
        "variants": variants(FOUR),
    }
    yield {
        "name": "headline-experts",
        "instance": load_sweep("moe-experts-oversubscription").base,
        "fix": base | {"tp": 4, "ep": 32, "pp": 4, "dp": 128, "dp_shard": 64},
        "axes": [
            values("experts", "experts", "model.num_experts", [32, 128]),
            values("oversubscription", "oversubscription", f"{LINK}.oversubscription", THIN),
        ],
        "variants": variants(FOUR),
    }
    yield {
        "name": "headline-delay",
        "instance": JOB,
        "fix": seventeen,
        "axes": [
            values("delay_s", "one-way delay, s", f"{LINK}.delay_s", [1e-4, 3e-3, 3e-2]),
            values("oversubscription", "oversubscription", f"{LINK}.oversubscription", [1, 64]),
        ],
        "variants": variants(FOUR),
    }
    yield {
        "name": "headline-loss",
        "instance": JOB,
        "set": {f"{LINK}.oversubscription": 8},
        "fix": base | {"tp": 4, "pp": 2, "dp": 256, "dp_shard": 128},
        "axes": [
            values("loss", "packets lost", f"{LINK}.loss", [0, 1e-5, 1e-3]),
            values("distance_km", "km", f"{LINK}.distance_km", [3, 100, 1000]),
        ],
        "variants": variants(TWO),
    }


WHOLE: dict[str, Any] = {
    "name": "headline-whole-space",
    "instance": JOB,
    "axes": [
        values("oversubscription", "oversubscription", f"{LINK}.oversubscription", (1, 2.8, 7, 16))
    ],
    "variants": {way: {"fix": choices(way)} for way in WAYS},
    "limits": {"wall_time_s": 60, "memory_bytes": "4 GiB"},
}
LIMITS = {"limits": {"wall_time_s": 20, "memory_bytes": "4 GiB"}}


@dataclass(frozen=True)
class Best:
    """The fastest plan of a way of choosing at one point; infinite where there is none.

    Attributes
    ----------
    time_s, bound_s
        Its time, and what no plan of this way beats.
    row
        Its row.
    """

    time_s: float
    bound_s: float
    row: SweepRow | None


def best(rows: Sequence[SweepRow]) -> Best:
    """The best of the families of a way of choosing."""
    infinite = float("inf")
    bounds = [
        infinite
        if row.values["status"] == "INFEASIBLE"
        else 0.0
        if row.bound_s is None
        else row.bound_s
        for row in rows
    ]
    timed = [row for row in rows if row.time_s is not None]
    first = min(timed, key=lambda row: row.time_s or infinite, default=None)
    time_s = infinite if first is None or first.time_s is None else first.time_s
    return Best(time_s, min(bounds), first)


def points(times: Times) -> Iterator[dict[str, Best]]:
    """The best plan of every way of choosing at every design point."""
    for rows in times.table.by_place().values():
        yield {way: best([r for r in rows if r.variant.split("_")[0] == way]) for way in WAYS}


def gain(found: Mapping[str, Best], way: str) -> tuple[float, float] | None:
    """T(way) ÷ T(optimum) − 1, at least and at most; None where the way has no plan.

    It is never below 0, since the optimum is taken over all that a way allows, and more.
    """
    base, optimum = found[way], found["optimum"]
    if base.time_s == float("inf"):
        return None
    return max(0.0, base.bound_s / optimum.time_s - 1), base.time_s / optimum.bound_s - 1


def percent(low: float, high: float) -> str:
    """A gain, or the range in which it lies."""
    ends = f"{100 * low:.2f}", f"{100 * high:.2f}"
    return f"{ends[0]} %" if ends[0] == ends[1] else f"{ends[0]} to {ends[1]} %"


def summary(found: Sequence[Mapping[str, Best]]) -> list[list[str]]:
    """Median and best gain over every baseline, and over the best of them."""
    rows = []
    for way in (*BASELINES, "best of them"):
        gains = []
        for point in found:
            ways = BASELINES if way == "best of them" else (way,)
            known = [g for one in ways if (g := gain(point, one)) is not None]
            if known:
                gains.append((min(low for low, _ in known), min(high for _, high in known)))
        if not gains:
            rows.append([way, f"0 of {len(found)}", "", "", ""])
            continue
        lows, highs = zip(*gains, strict=True)
        top = max(lows), max(highs)
        cells = [percent(median(lows), median(highs)), percent(*top)]
        saved = percent(*(g / (1 + g) for g in top))
        rows.append([way, f"{len(gains)} of {len(found)}", *cells, saved])
    return rows


HEAD = ["against", "points with a plan", "median gain", "best gain", "best, as time saved"]


def chosen(times: Times) -> list[str]:
    """What the optimum of each design point chooses, and the gains there."""
    dimensions = times.table.dimensions
    head = [*(d.title for d in dimensions), "optimum, s", "placement", "schedule", "sharding"]
    rows = []
    for place, found in zip(times.table.by_place(), points(times), strict=True):
        top = found["optimum"]
        assert top.row is not None
        plan = [top.row.text(f"plan_{key}") for key in ("placement_kind", "schedule", "sharding")]
        cells = ["no plan" if (g := gain(found, way)) is None else percent(*g) for way in BASELINES]
        shown = [d.labels[i] for d, i in zip(dimensions, place, strict=True)]
        rows.append([*shown, f"{top.time_s:.3f}", *plan, *cells])
    return markdown([*head, *BASELINES], rows)


def write(folder: Path) -> None:
    """The page of all comparisons."""
    whole = run(WHOLE, folder)
    fixed = [run(source | LIMITS, folder) for source in fixed_degrees()]
    every = [point for times in fixed for point in points(times)]
    lines = [
        "# The optimum against usual choices",
        "",
        "Written by `python bench/headline.py`; read [docs/findings.md](../../docs/findings.md).",
        "Gain = T(choice) ÷ T(optimum) − 1, as a range where a proof did not end in its limit.",
        f"Published: {PUBLISHED}.",
        "",
        "## Degrees of the shipped sweeps",
        "",
        *markdown(HEAD, summary(every)),
    ]
    for times in fixed:
        lines += ["", f"### {times.table.name}", ""]
        lines += [*markdown(HEAD, summary(list(points(times)))), "", *chosen(times)]
    lines += ["", "## Whole plan space, 17B", ""]
    lines += [*markdown(HEAD, summary(list(points(whole)))), "", *chosen(whole), ""]
    total = sum(t.cpu_s for t in (*fixed, whole))
    solves = sum(len(t.table.rows) for t in (*fixed, whole))
    open_ones = sum(
        r.values["status"] not in ("OPTIMAL", "INFEASIBLE")
        for t in (*fixed, whole)
        for r in t.table.rows
    )
    known = ", ".join(f"{name} {version}" for name, version in versions().items())
    lines += [
        f"{len(every)} design points, {solves:,} solves, {open_ones} of them not proven in their "
        f"limit; {total / 60:.0f} min of processor time on {platform.machine()}. Versions: {known}."
    ]
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    in_folder(__doc__, write)
