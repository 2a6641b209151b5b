"""The report of one plan: everything that its page shows, computed once."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from markupsafe import Markup

from planner.cost.model_size import active_parameters, total_parameters
from planner.instance.schema import Instance
from planner.legality import layout_violations
from planner.plan import Plan
from planner.problem import Problem
from planner.report.html.cluster import (
    Site,
    draw_cluster,
    gbps,
    is_drawn_as_dots,
    site_letters,
)
from planner.report.html.explanation import ExplanationTables
from planner.report.html.page import render_page
from planner.report.html.plan_source import PlanSource, SolveDocument
from planner.report.html.traffic import LinkTraffic, link_traffic
from planner.report.memory_lines import fullest, memory_lines
from planner.report.placement import Column, stage_runs
from planner.report.proof import VerdictCount, verdict_counts
from planner.report.text import HEADLINES, plan_pairs
from planner.report.units import bytes_text, duration, exact_seconds, name_list, percent, span
from planner.simulation.measures import Simulation
from planner.simulation.simulate import simulate_if_short
from planner.simulation.svg import plan_picture

LARGEST_TIMELINE = 4 * 2**20
"""Bytes of SVG; a larger picture would make the page slow."""
MOST_MEMORY_LINES = 128
MOST_LINKS = 200
"""Links in the table; of more, those that send most."""

BREAKDOWN_WORDS = {
    "compute": "matrix products and kernels of forward and backward",
    "bubble": "waiting for other stages of the pipeline",
    "tp": "tensor-parallel collectives that nothing hides",
    "cp": "context-parallel exchange that nothing hides",
    "ep": "expert-parallel all-to-all that nothing hides",
    "pp": "transfers between stages that nothing hides",
    "dp": "synchronisation of gradients and parameters that nothing hides",
    "optimizer": "the optimizer step",
    "fixed": "fixed time of the training software",
}

GRADES = {
    "re-derived": "every case was closed by rules and bounds alone",
    "engine": "some cases rest on the word of a solver",
    "open": "some cases have no verdict yet",
}

VERDICTS = {
    "infeasible": "no plan of these cases keeps the rules",
    "bounded": "no plan of these cases is faster",
    "solved": "a solver searched these cases",
    "open": "no verdict: a faster plan is not ruled out",
}


class Tile(NamedTuple):
    """A figure at the top of the page."""

    name: str
    value: str
    note: str


class Part(NamedTuple):
    """A part of the iteration time."""

    name: str
    us: float
    share: float
    words: str


class MemoryBar(NamedTuple):
    """Memory of the GPUs of some stages; widths are shares of ``scale``."""

    stages: str
    sites: str
    state: float
    activations: float
    working: float
    step: float
    limit: float
    peak_mib: int
    limit_mib: int
    state_mib: int
    activations_mib: int
    working_mib: int
    step_mib: int
    free: float
    tight: bool


@dataclass(frozen=True)
class Timeline:
    """The picture of one simulated iteration, or why there is none."""

    uri: Markup | None
    alt: str
    reason: str


def plan_report(source: PlanSource, explanation: ExplanationTables | None = None) -> str:
    """Return the page of a plan.

    Parameters
    ----------
    source
        The plan, its instance, and the solve document where there is one.
    explanation
        Why this plan; None = the page has no such tables.
    """
    instance = source.instance
    problem = Problem(instance)
    layout = None if source.plan is None else layout_violations(problem, source.plan)[1]
    simulation = None if layout is None else simulate_if_short(problem, layout, record=True)
    sites = _sites(instance, source.plan)
    links = link_traffic(problem, layout, simulation)
    dp = 1 if source.plan is None else source.plan.dp
    hubs = [hub.name for hub in instance.cluster.hubs]
    return render_page(
        "plan.html.j2",
        title=instance.name,
        status=None if source.document is None else source.document.status,
        headline=_headline(source),
        reason="" if source.document is None else source.document.reason,
        tiles=_tiles(source, simulation),
        job=_job(instance),
        plan=None if source.plan is None else plan_pairs(source.plan),
        placement_kind=None if source.plan is None else source.plan.placement_kind,
        cluster=Markup(draw_cluster(sites, hubs, links, dp)),
        letters=_letters(sites) if is_drawn_as_dots(sites) else [],
        sites=sites,
        links=[_link_rows(link) for link in _busiest(links)],
        hidden_links=max(0, len(links) - MOST_LINKS),
        simulated=simulation is not None,
        timeline=None if layout is None else _timeline(instance, simulation),
        parts=_parts(source),
        memory=_memory(source),
        proof=None if source.document is None else _proof(source.document),
        explanation=explanation,
    )


def _headline(source: PlanSource) -> str:
    if source.document is None:
        return "a plan given by hand; the checker accepts it"
    return HEADLINES.get(source.document.status, "")


def _tiles(source: PlanSource, simulation: Simulation | None) -> list[Tile]:
    plan, check, document = source.plan, source.check, source.document
    tiles = []
    if check is not None and check.time_us is not None:
        tiles.append(Tile("iteration", exact_seconds(check.time_us), "one optimizer step"))
    if document is not None and document.lower_bound_s is not None:
        bound = exact_seconds(round(document.lower_bound_s * 1e6))
        gap = document.gap
        note = "no plan is faster" if gap is None else f"gap {percent(gap)}"
        tiles.append(Tile("lower bound", bound, note))
    if simulation is not None:
        note = f"the declared time is {percent(abs(simulation.model_error))} "
        note += "longer" if simulation.model_error >= 0 else "shorter"
        tiles.append(Tile("simulated", f"{simulation.time_s:,.6f} s", note))
    if check is not None and check.time_us is not None:
        training = source.instance.training
        tokens = training.global_batch_size * training.sequence_length
        tiles.append(Tile("throughput", f"{tokens / (check.time_us / 1e6):,.0f}", "tokens/s"))
    if document is not None and document.mfu is not None:
        tiles.append(Tile("MFU", percent(document.mfu), document.mfu_convention))
    if plan is not None:
        total = sum(site.num_gpus for site in source.instance.cluster.sites)
        tiles.append(Tile("GPUs", f"{plan.gpus_used:,}", f"of {total:,}"))
    return tiles


def _job(instance: Instance) -> dict[str, str]:
    model, training, cluster = instance.model, instance.training, instance.cluster
    total, active = total_parameters(model), active_parameters(model)
    size = f"{total / 1e9:,.4g} billion parameters"
    if active < total:
        size += f", {active / 1e9:,.4g} billion active"
    gpus: dict[str, int] = {}
    for site in cluster.sites:
        gpus[site.gpu.name] = gpus.get(site.gpu.name, 0) + site.num_gpus
    counted = f"{len(cluster.sites)} site{'s' * (len(cluster.sites) > 1)}"
    pairs = {
        "model": f"{model.name}: {size}, {model.num_layers} layers",
        "batch": f"{training.global_batch_size:,} sequences of "
        f"{training.sequence_length:,} tokens, {training.precision}",
        "cluster": f"{counted}, " + ", ".join(f"{count:,} {name}" for name, count in gpus.items()),
    }
    search = instance.search
    unlisted = {"protocols": search.protocols, "layers per stage": search.fixed_layers_per_stage}
    narrowed = search.restrictions() | {name: v for name, v in unlisted.items() if v is not None}
    if narrowed:
        pairs["plans narrowed to"] = "; ".join(
            f"{name.replace('_', ' ')} {_allowed(values)}" for name, values in narrowed.items()
        )
    return ({"about": instance.description} if instance.description else {}) | pairs


def _allowed(values: Any) -> str:
    """The values that a choice may take."""
    listed = values if isinstance(values, list | tuple) else [values]
    return " or ".join(
        str(value).lower() if isinstance(value, bool) else str(value) for value in listed
    )


def _sites(instance: Instance, plan: Plan | None) -> list[Site]:
    grid: dict[str, list[int]] = {}
    pp = 0 if plan is None else plan.pp
    for part in () if plan is None else plan.placement:
        row = grid.setdefault(part.site, [0] * pp)
        for stage in range(part.first_stage, part.last_stage + 1):
            row[stage] += part.replicas
    cell = 0 if plan is None else plan.degrees.cell_gpus
    return [
        Site(
            site.name,
            site.gpu.name,
            site.num_gpus,
            cell * sum(grid.get(site.name, ())),
            tuple(grid.get(site.name, [0] * pp)),
        )
        for site in instance.cluster.sites
    ]


def _letters(sites: Sequence[Site]) -> list[tuple[str, str, str]]:
    """Letter, names and stages of the sites that are drawn as equal dots."""
    found = []
    for letter, group in site_letters(sites):
        runs = stage_runs([Column((group[0].name,), group[0].replicas)])
        stages = [f"{span(first, last)} × {n:,}" for first, last, (n,) in runs if n]
        found.append((letter, name_list([site.name for site in group]), ", ".join(stages)))
    return found


def _busiest(links: Sequence[LinkTraffic]) -> list[LinkTraffic]:
    """The links of the table, in the order of the instance."""
    ranked = sorted(
        links, key=lambda k: (-(k.sent_bytes or 0), not (k.pipeline or k.synchronisation), k.number)
    )
    return sorted(ranked[:MOST_LINKS], key=lambda link: link.number)


def _link_rows(link: LinkTraffic) -> list[dict[str, str]]:
    """Both directions of a link as the cells of a table row."""
    return [
        {
            "number": str(link.number),
            "link": link.name,
            "way": f"{way.source} to {way.target}",
            "capacity": gbps(way.capacity_gbps),
            "delay": f"{link.delay_us:,.4g} µs",
            "distance": f"{link.distance_km:,.4g} km",
            "protocol": ", ".join(way.protocols) or "unused",
            "pipeline": _sent(way.pipeline_bytes),
            "synchronisation": _sent(way.synchronisation_bytes),
            "busy": "" if way.utilisation is None else percent(way.utilisation),
        }
        for way in link.directions
    ]


def _sent(size: float | None) -> str:
    return "" if size is None else bytes_text(size) if size else "0"


def _timeline(instance: Instance, simulation: Simulation | None) -> Timeline:
    if simulation is None:
        return Timeline(
            None, "", "Too many events to simulate here: 'planner simulate' does it where asked."
        )
    svg = plan_picture(simulation)
    if len(svg) > LARGEST_TIMELINE:
        return Timeline(
            None, "", "Too many rows for this page: 'planner simulate --svg' draws all of them."
        )
    encoded = base64.b64encode(svg.encode()).decode("ascii")
    return Timeline(
        Markup(f"data:image/svg+xml;base64,{encoded}"),
        f"Timeline of one iteration of {instance.name}: what every stage and link does when",
        "",
    )


def _parts(source: PlanSource) -> list[Part]:
    if source.check is None:
        return []
    total = sum(source.check.breakdown_us.values()) or 1
    return [
        Part(name, us, us / total, BREAKDOWN_WORDS.get(name, ""))
        for name, us in source.check.breakdown_us.items()
        if us
    ]


def _memory(source: PlanSource) -> dict[str, Any] | None:
    if source.check is None or not source.check.memory:
        return None
    lines = memory_lines(source.check.memory)
    kept = fullest(lines, MOST_MEMORY_LINES)
    scale = max(max(line.figures.limit_mib, line.figures.peak_mib) for line in kept)
    bars = []
    for first, last, sites, row in kept:
        stepping = row.step_mib > row.activations_mib + row.working_mib
        bars.append(
            MemoryBar(
                stages=span(first, last),
                sites=name_list(sites, most=2),
                state=row.state_mib / scale,
                activations=0.0 if stepping else row.activations_mib / scale,
                working=0.0 if stepping else row.working_mib / scale,
                step=row.step_mib / scale if stepping else 0.0,
                limit=row.limit_mib / scale,
                peak_mib=row.peak_mib,
                limit_mib=row.limit_mib,
                state_mib=row.state_mib,
                activations_mib=row.activations_mib,
                working_mib=row.working_mib,
                step_mib=row.step_mib,
                free=(row.limit_mib - row.peak_mib) / row.limit_mib,
                tight=row.is_tight(source.check.tight_share),
            )
        )
    return {"bars": bars, "hidden": len(lines) - len(kept), "share": source.check.tight_share}


def _proof(document: SolveDocument) -> dict[str, Any]:
    certificate, provenance = document.certificate, document.provenance
    counts: list[VerdictCount] = verdict_counts(box.model_dump() for box in certificate.cases)
    total = certificate.cases_total or sum(count.cases for count in counts)
    pairs = {}
    if document.lower_bound_s is not None:
        pairs["lower bound"] = exact_seconds(round(document.lower_bound_s * 1e6))
    if document.gap is not None:
        pairs["gap"] = percent(document.gap)
    if document.limit is not None:
        pairs["stopped by"] = document.limit
    pairs["degrees cases"] = f"{total:,} in {len(certificate.cases):,} boxes"
    if certificate.grade:
        told = GRADES.get(certificate.grade)
        pairs["grade"] = certificate.grade + (f": {told}" if told else "")
    engines = [model.engine for model in provenance.models if model.engine]
    if engines:
        used = dict.fromkeys(engines)
        pairs["models solved"] = ", ".join(f"{engines.count(e):,} by {e}" for e in used)
    if provenance.wall_time_s is not None:
        pairs["time taken"] = duration(provenance.wall_time_s * 1e6)
    if provenance.seed is not None:
        pairs["seed, workers"] = f"{provenance.seed}, {provenance.workers or 1}"
    if provenance.versions:
        pairs["versions"] = ", ".join(f"{k} {v}" for k, v in provenance.versions.items())
    return {
        "pairs": pairs,
        "total": total,
        "counts": counts,
        "words": VERDICTS,
        "notes": provenance.notes,
        "errors": provenance.errors,
        "synthesized": document.synthesized,
    }
