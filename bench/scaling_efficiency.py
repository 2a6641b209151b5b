"""Two sites 1,000 km apart against one of the same GPUs: ``python bench/scaling_efficiency.py``.

Solves ``nemotron-340b-1000km`` for every long-haul bandwidth and number of GPUs, and one site of as
many GPUs, all with the same choices fixed.  Writes ``bench/results/scaling_efficiency.md`` and
``docs/images/scaling_efficiency.svg`` (needs matplotlib: ``pip install '.[report]'``).
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from planner.check import check_plan
from planner.instance.load import load_instance
from planner.instance.schema import Instance
from planner.search.result import SolveResult, SolveStatus
from planner.search.solve import solve
from planner.versions import versions

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results" / "scaling_efficiency.md"
PICTURE = ROOT / "docs" / "images" / "scaling_efficiency.svg"

INSTANCE = "nemotron-340b-1000km"
GPUS = (1024, 2048, 4096, 8192)
BANDWIDTHS_TBPS = (0.4, 0.8, 1.6, 3.2, 6.4, 12.8)
TIME_LIMIT_S = 60.0
PUBLISHED = 0.96

TP, PP = 8, 8
"""One node wide, as many stages as NeMo's recipe of the model."""

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
MARKERS = ("o", "s", "^", "D")


@dataclass(frozen=True)
class Way:
    """What is fixed in all solves of one table."""

    title: str
    schedule: str
    virtual_stages: int
    placement: str | None


WAYS = (
    Way("Data parallelism between the sites, interleaved 1F1B", "interleaved", 6, "dp-out"),
    Way("Any placement, plain 1F1B", "1f1b", 1, None),
)


def instance_of(gpus: int, bandwidth_tbps: float | None, way: Way, **search: Any) -> Instance:
    """The instance with so many GPUs, halves of them at each end of a link of so many Tb/s.

    Parameters
    ----------
    bandwidth_tbps
        None for one site of all GPUs.
    search
        More keys of ``search``.
    """
    document = load_instance(INSTANCE).model_dump(by_alias=True, mode="json")
    cluster = document["cluster"]
    dp = gpus // (TP * PP)
    microbatches = document["training"]["global_batch_size"] // dp
    layers = document["model"]["num_layers"]
    chunks = PP * way.virtual_stages
    narrowed: dict[str, Any] = {
        "tp": TP,
        "cp": 1,
        "pp": PP,
        "virtual_stages": way.virtual_stages,
        "micro_batch_size": 1,
        "dp": dp,
        "schedule": way.schedule,
        "recompute": "none",
        "fixed_layers_per_stage": [layers // chunks] * chunks,
    }
    if way.virtual_stages > 1:
        runs = [run for run in range(PP, microbatches + 1) if microbatches % run == 0]
        narrowed["run_length"] = runs[0]
    if bandwidth_tbps is None:
        cluster["sites"] = [cluster["sites"][0] | {"num_gpus": gpus}]
        cluster["links"] = []
    else:
        for site in cluster["sites"]:
            site["num_gpus"] = gpus // 2
        cluster["links"][0]["bandwidth_gbps"] = 1000 * bandwidth_tbps
        if way.placement is not None:
            narrowed["placement_kind"] = way.placement
    return load_instance(document | {"search": narrowed | search})


def solved(instance: Instance) -> SolveResult:
    """The best plan, proven or with the gap that is left."""
    result = solve(instance, time_limit_s=TIME_LIMIT_S)
    if result.plan is None:
        raise SystemExit(f"{instance.name}: no plan: {result.reason}")
    return result


def synchronisation(result: SolveResult) -> str:
    """How the plan synchronises; a flat ring of one shard group a site is hierarchical too."""
    plan = result.plan
    assert plan is not None
    if plan.placement_kind in ("single-site", "pp-out"):
        return "in the sites"
    if plan.sync == "flat":
        twin = plan.model_copy(update={"sync": "hierarchical"})
        if check_plan(result.instance, twin).time_us == result.time_us:
            return "hierarchical"
    return plan.sync


@dataclass(frozen=True)
class Cell:
    """One bandwidth and number of GPUs."""

    gpus: int
    bandwidth_tbps: float
    efficiency: float
    alone: SolveResult
    apart: SolveResult

    def row(self) -> str:
        """One line of the table of plans."""
        plan = self.apart.plan
        assert plan is not None
        assert self.apart.time_us is not None
        assert self.alone.time_us is not None
        names = sorted({choice.protocol for choice in plan.protocols})
        proof = "yes"
        if not all(r.status is SolveStatus.OPTIMAL for r in (self.alone, self.apart)):
            gaps = (1 - (r.bound_us or 0) / (r.time_us or 1) for r in (self.alone, self.apart))
            proof = f"gap {max(gaps):.1%}"
        return (
            f"| {self.gpus:,} | {self.bandwidth_tbps:g} | {self.alone.time_us / 1e6:.3f} "
            f"| {self.apart.time_us / 1e6:.3f} | {self.efficiency:.1%} | {plan.placement_kind} "
            f"| {plan.sharding}, {plan.dp_shard} × {plan.dp_replicate} "
            f"| {synchronisation(self.apart)} | {', '.join(names)} | {proof} |"
        )


def cells(way: Way) -> Iterator[Cell]:
    """All cells of one table, with progress on standard error."""
    for gpus in GPUS:
        alone = solved(instance_of(gpus, None, way))
        for bandwidth in BANDWIDTHS_TBPS:
            apart = solved(instance_of(gpus, bandwidth, way))
            assert alone.time_us is not None
            assert apart.time_us is not None
            cell = Cell(gpus, bandwidth, alone.time_us / apart.time_us, alone, apart)
            print(cell.row(), file=sys.stderr)
            yield cell


def table(found: Sequence[Cell]) -> list[str]:
    """Efficiency by bandwidth and number of GPUs; bold where the published figure is reached."""
    values = {(cell.gpus, cell.bandwidth_tbps): cell.efficiency for cell in found}
    lines = [
        "| GPUs \\ Tb/s | " + " | ".join(f"{b:g}" for b in BANDWIDTHS_TBPS) + " |",
        "|---" * (len(BANDWIDTHS_TBPS) + 1) + "|",
    ]
    for gpus in GPUS:
        shown = [f"{values[gpus, b]:.1%}" for b in BANDWIDTHS_TBPS]
        bold = [
            f"**{text}**" if values[gpus, b] >= PUBLISHED - 0.005 else text
            for text, b in zip(shown, BANDWIDTHS_TBPS, strict=True)
        ]
        lines.append(f"| {gpus:,} | " + " | ".join(bold) + " |")
    return lines


def draw(tables: Sequence[tuple[Way, Sequence[Cell]]]) -> None:
    """Draw efficiency over bandwidth, one panel a table."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "scaling", "svg.fonttype": "none", "font.size": 10})
    from matplotlib import pyplot
    from matplotlib.ticker import FixedLocator, NullLocator, PercentFormatter

    figure, axes = pyplot.subplots(1, len(tables), figsize=(10, 4), sharey=True)
    for axis, (way, found) in zip(axes, tables, strict=True):
        for gpus, colour, marker in zip(GPUS, COLOURS, MARKERS, strict=True):
            mine = [cell for cell in found if cell.gpus == gpus]
            x, y = [c.bandwidth_tbps for c in mine], [100 * c.efficiency for c in mine]
            axis.plot(x, y, color=colour, marker=marker, label=f"{gpus:,} GPUs")
        axis.axhline(100 * PUBLISHED, color="#555555", linestyle="--", label="published: 96 %")
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(FixedLocator(BANDWIDTHS_TBPS))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_xticklabels([f"{b:g}" for b in BANDWIDTHS_TBPS])
        axis.yaxis.set_major_formatter(PercentFormatter(decimals=0))
        axis.set_ylim(0, 105)
        axis.set_xlabel("long-haul bandwidth per direction, Tb/s")
        axis.set_title(way.title, fontsize=10)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("throughput, share of one site's")
    axes[-1].legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(PICTURE, metadata={"Date": None})


def main() -> None:
    """Solve, draw and write the page."""
    began = time.monotonic()
    tables = [(way, list(cells(way))) for way in WAYS]
    draw(tables)
    lines = [
        "# Scaling efficiency over 1,000 km",
        "",
        f"Throughput of `{INSTANCE}` on two sites over that of one site of as many GPUs, both",
        f"solved with the same choices fixed: `tp={TP}`, `cp=1`, `pp={PP}`, one sequence a",
        "microbatch, equal stages, no recomputation, `dp` = GPUs ÷ 64, the whole batch of 2,304",
        "sequences at every size; interleaved: chunks of 2 layers (`virtual_stages=6`), shortest",
        "legal run length. The planner chooses sharding and its groups, synchronisation, overlap,",
        "placement where the title leaves it open, extra warm-up, and protocols.",
        "Bold: at least the published 96 %, rounded.",
    ]
    for way, found in tables:
        lines += ["", f"## {way.title}", "", *table(found), "", "### Plans", ""]
        lines += [
            "| GPUs | Tb/s | one site, s | two sites, s | efficiency | placement "
            "| sharding, groups | synchronisation | protocol | proven |",
            "|---" * 10 + "|",
            *(cell.row() for cell in found),
        ]
    known = ", ".join(f"{name} {version}" for name, version in versions().items())
    lines += ["", f"{time.monotonic() - began:.0f} s on {platform.machine()}. Versions: {known}."]
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
