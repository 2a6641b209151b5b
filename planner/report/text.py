"""The readable report of a solve or a check, for a terminal of 80 columns or more."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from planner.report.memory_lines import fullest, memory_lines
from planner.report.placement import print_placement
from planner.report.proof import verdict_counts
from planner.report.units import (
    bytes_text,
    duration,
    exact_seconds,
    gib,
    name_list,
    percent,
    run_lengths,
    span,
)

if TYPE_CHECKING:
    from planner.check import CheckReport, StageMemory
    from planner.plan import Plan
    from planner.search.result import SolveResult
    from planner.simulation.measures import Simulation

HEADLINES = {
    "OPTIMAL": "proven: no plan of the declared space has a shorter iteration",
    "FEASIBLE": "a checked plan, not proven to be the best",
    "INFEASIBLE": "proven: no plan is feasible",
    "NO_SOLUTION": "no plan found, and none ruled out",
    "INTERRUPTED": "interrupted",
    "ERROR": "the solve failed",
}
MOST_MEMORY_ROWS = 16
BAR = 20


def report_console() -> Console:
    """Return a console on standard output that takes text literally."""
    return Console(file=sys.stdout, markup=False, highlight=False, emoji=False)


def render_solve(result: SolveResult, console: Console) -> None:
    """Print the plan, where it runs, its time and memory, and how it was proven."""
    document = result.to_json()
    status = result.status.name
    console.print(f"{result.instance.name}: {status}", style="bold")
    _indented(HEADLINES[status], console)
    if result.reason:
        _indented(result.reason, console)
    if result.plan is not None:
        _print_pairs(_figures(result, document), console)
        _title("Plan", console)
        _print_pairs(plan_pairs(result.plan), console)
        _title(f"Placement ({result.plan.placement_kind}; replicas of every stage)", console)
        print_placement(result.instance, result.plan, console)
        _print_time(result.breakdown_us, console)
        _print_memory(result.memory, result.instance.tight_share, console)
        _print_links(result.provenance.get("link_bytes"), console)
        _print_profiles(result.provenance.get("profile", ()), console)
    if (synthesized := document.get("synthesized")) is not None:
        _title("Synthesised schedule (op order of its own, beside the plan)", console)
        _print_pairs(_synthesis_pairs(synthesized), console)
    _title("Proof", console)
    _print_pairs(_proof_pairs(result), console)


def render_check(report: CheckReport, console: Console) -> None:
    """Print the verdict on a plan with every violated rule."""
    console.print("accepted" if report.feasible else "refused", style="bold")
    for violation in report.violations:
        _indented(f"{violation.rule}: {violation.message}", console)
    if report.time_us is None:
        _indented("the plan is not complete enough to be timed", console)
        return
    _print_pairs({"iteration": exact_seconds(report.time_us)}, console)
    _print_time(report.breakdown_us, console)
    _print_memory(report.memory, report.tight_share, console)
    _print_profiles(report.to_json().get("profile", ()), console)


def render_simulation(simulation: Simulation, console: Console) -> None:
    """Print what a simulated iteration took, and where its time went."""
    sign = "longer" if simulation.model_error >= 0 else "shorter"
    pairs = {
        "simulated": f"{simulation.time_s:,.6f} s",
        "Z": f"{exact_seconds(simulation.declared_us)}, "
        f"{percent(abs(simulation.model_error))} {sign}",
        "bubble": percent(simulation.bubble),
    }
    if simulation.first_come_us != simulation.time_us:
        pairs["first come"] = f"{float(simulation.first_come_us) / 1e6:,.6f} s on shared links"
    _print_pairs(pairs, console)
    _print_time({name: 1e6 * s for name, s in simulation.breakdown_s.items()}, console)
    _title("Peak memory of a GPU (GiB)", console)
    table = Table(box=None, padding=(0, 1, 0, 2), header_style="bold")
    table.add_column("stage", justify="right", no_wrap=True)
    table.add_column("site", ratio=1)
    for name in ("peak", "limit", "at"):
        table.add_column(name, justify="right", no_wrap=True)
    fullest = sorted(simulation.memory, key=lambda row: row.limit_mib - row.peak_mib)
    kept = fullest[:MOST_MEMORY_ROWS]
    for row in simulation.memory:
        if row in kept:
            at = duration(1e6 * row.peak_at_s)
            table.add_row(str(row.stage), row.site, gib(row.peak_mib), gib(row.limit_mib), at)
    console.print(table)
    if len(fullest) > len(kept):
        _indented(f"and {len(fullest) - len(kept)} rows with more room", console)
    if simulation.links:
        _title("Links", console)
        _print_pairs(
            {
                f"{link.source} to {link.target}": f"{percent(link.utilisation)} of the time "
                f"(pipeline {duration(1e6 * link.pipeline_s)}, synchronisation "
                f"{duration(1e6 * link.synchronisation_s)})"
                for link in simulation.links
            },
            console,
        )


def render_pairs(pairs: Mapping[str, str], console: Console) -> None:
    """Print names with what belongs to them."""
    _print_pairs(pairs, console)


def plan_pairs(plan: Plan) -> dict[str, str]:
    """Return the choices of a plan other than its placement, by the name of the choice."""
    chunks = "" if plan.virtual_stages == 1 else f", {plan.virtual_stages} chunks a stage"
    run = "" if plan.run_length is None else f", run length {plan.run_length}"
    pairs = {
        "degrees": f"tp {plan.tp} · cp {plan.cp} · ep {plan.ep} · etp {plan.etp} · pp {plan.pp} · "
        f"dp {plan.dp} = {plan.dp_shard} sharded × {plan.dp_replicate} replicated",
        "batch": f"{plan.num_microbatches:,} microbatches of {plan.micro_batch_size} sequences a "
        "replica",
        "GPUs": f"{plan.gpus_used:,}",
        "schedule": f"{plan.schedule}{chunks}{run}",
    }
    if any(plan.extra_warmup):
        pairs["extra warm-up"] = f"{run_lengths(plan.extra_warmup)} microbatches, stage by stage"
    pairs |= {
        "layers": run_lengths(plan.layers_per_stage)
        + (", in visiting order" if len(plan.layers_per_stage) > 1 else ""),
        "state": f"{plan.sharding}, {'overlapped' if plan.overlap else 'not overlapped'}, "
        f"{plan.sync} synchronisation",
        "recompute": plan.recompute,
    }
    for (protocol, traffic), group in _grouped(
        plan.protocols, key=lambda p: (p.protocol, p.traffic)
    ):
        used = [f"{p.source} to {p.target}" for p in group]
        what = "" if traffic == "all" else f" ({traffic} traffic)"
        pairs[f"protocol {protocol}{what}"] = (
            ", ".join(used) if len(used) <= 4 else f"{used[0]} and {len(used) - 1} more"
        )
    return pairs


def _figures(result: SolveResult, document: Mapping[str, Any]) -> dict[str, str]:
    """The numbers that stand first."""
    figures = {}
    if result.time_us is not None:
        figures["iteration"] = exact_seconds(result.time_us)
    if result.simulated_us is not None:
        figures["simulated"] = f"{result.simulated_us / 1e6:,.6f} s"
    if (rate := document.get("tokens_per_s")) is not None:
        figures["throughput"] = f"{rate:,.0f} tokens/s"
    if (mfu := document.get("mfu")) is not None:
        convention = document.get("mfu_convention")
        figures["MFU"] = percent(mfu) + (f" ({convention})" if convention else "")
    return figures


def _synthesis_pairs(synthesized: Mapping[str, Any]) -> dict[str, str]:
    """Time, bound and kind of a synthesised schedule."""
    case = synthesized["case"]
    template = synthesized["template_time_s"]
    time = synthesized["iteration_time_s"]
    count = case["virtual_stages"]
    where = {"v": " in a V", "loop": ""}[synthesized["chunk_map"]]
    chunks = f"{count} chunks a stage{where}" if count > 1 else "1 chunk a stage"
    backward = "split backward" if synthesized["split_backward"] else "unsplit backward"
    proof = "proven" if synthesized["proven"] else f"gap {percent(synthesized['gap'])}"
    return {
        "iteration": exact_seconds(round(time * 1e6)),
        "lower bound": f"{exact_seconds(round(synthesized['lower_bound_s'] * 1e6))} ({proof}, "
        f"{synthesized['bound_rule']})",
        "placement of": f"tp {case['tp']} · cp {case['cp']} · ep {case['ep']} · pp {case['pp']} · "
        f"dp {case['dp']}, template plan {exact_seconds(round(template * 1e6))}",
        "order": f"{chunks}, {backward}, found by {synthesized['method']}",
    }


def _print_time(breakdown_us: Mapping[str, float], console: Console) -> None:
    """Where the time goes; parts of no time are left out."""
    total = sum(breakdown_us.values())
    if not total:
        return
    _title("Time", console)
    bar = _bar_character(console)
    table = Table(box=None, padding=(0, 2, 0, 2), show_header=False)
    table.add_column()
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    for name, us in breakdown_us.items():
        if us:
            share = us / total
            table.add_row(name, duration(us), percent(share), bar * max(0, round(BAR * share)))
    console.print(table)


def _print_memory(rows: Sequence[StageMemory], tight_share: float, console: Console) -> None:
    """Memory of a GPU of every stage, equal stages together, the fullest ones where many differ."""
    if not rows:
        return
    lines = memory_lines(rows)
    kept = fullest(lines, MOST_MEMORY_ROWS)
    table = Table(box=None, padding=(0, 1, 0, 2), header_style="bold")
    table.add_column("stage", justify="right", no_wrap=True)
    table.add_column("site", ratio=1)
    for name in ("state", "activ.", "work", "peak", "limit", "free"):
        table.add_column(name, justify="right", no_wrap=True)
    for first, last, sites, row in kept:
        limit, peak = row.limit_mib, row.peak_mib
        sizes = (row.state_mib, row.activations_mib, row.working_mib, peak, limit)
        table.add_row(
            span(first, last),
            name_list(sites, most=2),
            *(gib(mib) for mib in sizes),
            f"{100 * (limit - peak) / limit:.1f} %",
            style="red" if peak > limit else None,
        )
    _title("Memory of a GPU (GiB)", console)
    console.print(table)
    if len(lines) > len(kept):
        _indented(f"and {len(lines) - len(kept)} rows with more room", console)
    if any(row.step_mib > row.activations_mib + row.working_mib for row in rows):
        _indented("the peak of a stage is its optimizer step", console)
    if any(row.is_tight(tight_share) and row.peak_mib <= row.limit_mib for row in rows):
        _indented(f"tight: less than {percent(tight_share)} of a limit is free", console)


def _print_links(link_bytes: Mapping[str, float] | None, console: Console) -> None:
    """Bytes that each directed link carries in one iteration."""
    if link_bytes:
        _title("Traffic of an iteration", console)
        _print_pairs({link: bytes_text(size) for link, size in link_bytes.items()}, console)


def _print_profiles(uses: Iterable[Mapping[str, Any]], console: Console) -> None:
    """How many matrix products of the plan were measured, and which follow the constants."""
    pairs = {}
    for use in uses:
        listed, rest = use["defaults"], use["products"] - use["measured"] - len(use["defaults"])
        text = f"{use['measured']:,} of {use['products']:,} matrix products measured"
        if listed:
            shapes = [
                f"{p['precision']} "
                + (f"{p['groups']:g} of " if p["groups"] != 1 else "")
                + " × ".join(f"{p[key]:g}" for key in ("m", "n", "k"))
                for p in listed
            ]
            more = f" and {rest:,} more" if rest else ""
            text += f"; by the constants: {', '.join(shapes)}{more}"
        pairs[f"{use['gpu']} at {name_list(use['sites'], most=2)}"] = text
    if pairs:
        _title("Profiles of GPUs", console)
        _print_pairs(pairs, console)


def _proof_pairs(result: SolveResult) -> dict[str, str]:
    """Bound, gap, and how many cases ended how."""
    pairs = {}
    if result.bound_us is not None:
        pairs["lower bound"] = exact_seconds(result.bound_us)
    if result.gap is not None:
        pairs["gap"] = percent(result.gap)
    if result.limit is not None:
        pairs["stopped by"] = f"{result.limit} limit" if result.limit != "interrupt" else "the user"
    boxes = result.certificate.get("cases", ())
    total = result.certificate.get("cases_total")
    if total is not None:
        pairs["degrees cases"] = f"{total:,} in {len(boxes):,} boxes"
    pairs |= _verdict_pairs(boxes)
    if grade := result.certificate.get("grade"):
        pairs["grade"] = str(grade)
    engines = Counter(str(model["engine"]) for model in result.provenance.get("models", ()))
    if engines:
        pairs["models solved"] = ", ".join(f"{n:,} by {name}" for name, n in engines.items())
    if errors := result.provenance.get("errors"):
        pairs["disagreements"] = "; ".join(map(str, errors))
    if (seconds := result.provenance.get("wall_time_s")) is not None:
        pairs["time taken"] = f"{seconds:.2f} s"
    return pairs


def _verdict_pairs(boxes: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Cases by verdict, and the rules or bounds that gave it."""
    pairs = {}
    for verdict, cases, rules in verdict_counts(boxes):
        named = [f"{rule} {n:,}" for rule, n in rules if rule]
        pairs[f"  {verdict}"] = f"{cases:,}" + (f" ({', '.join(named)})" if named else "")
    return pairs


def _grouped(items: Iterable[Any], key: Any) -> Iterable[tuple[Any, list[Any]]]:
    """Items with the same key together, in the order of their first."""
    groups: dict[Any, list[Any]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups.items()


def _bar_character(console: Console) -> str:
    return "█" if console.encoding.lower().startswith("utf") else "#"


def _title(text: str, console: Console) -> None:
    console.print()
    console.print(text, style="bold")


def _indented(text: str, console: Console) -> None:
    console.print(Padding(text, (0, 0, 0, 2)))


def _print_pairs(pairs: Mapping[str, str], console: Console) -> None:
    table = Table(box=None, padding=(0, 2, 0, 2), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    for name, text in pairs.items():
        table.add_row(name, text)
    console.print(table)
