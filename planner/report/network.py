"""Networks for people: links with what every protocol makes of them, and imported measurements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rich.padding import Padding
from rich.table import Table

from planner.instance.cluster import refusal
from planner.problem import Problem
from planner.report.output import json_text
from planner.report.units import bytes_text, four_digits, percent

if TYPE_CHECKING:
    from rich.console import Console

    from planner.cost.transport import TransportRate
    from planner.instance.schema import Instance
    from planner.measured import Imported

BITS = 8e-9
"""Gb/s of one byte/s."""


def describe_links(instance: Instance) -> dict[str, Any]:
    """Every directed link with every known protocol, and the routes between sites.

    Returns
    -------
    dict
        ``links``: one entry per direction with ``link``, ``from``, ``to``, ``capacity_gbps``,
        ``delay_s``, ``per_class`` and ``protocols``: ``protocol``, ``available``,
        ``bandwidth_gbps``, ``latency_s`` and ``reason`` (what limits it, or why it is no choice).
        ``routes``: ``from``, ``to`` and the names of the ``links`` passed.
    """
    problem = Problem(instance)
    cluster, known = instance.cluster, instance.cluster.known_protocols
    links = []
    for directed, table in zip(problem.links, problem.transports, strict=True):
        link = cluster.links[directed.index // 2]
        chosen = problem.protocols[directed.index]
        rows = []
        for name, protocol in known.items():
            rate = table.get(name)
            reason = refusal(protocol, link) if rate is None else None
            if rate is not None and rate.available and name not in chosen:
                reason = f"'{name}' is not among search.protocols"
            rows.append(_protocol_row(name, rate, reason))
        links.append(
            {
                "link": directed.name,
                "from": directed.source,
                "to": directed.target,
                "capacity_gbps": directed.capacity_bytes_per_s * BITS,
                "delay_s": directed.delay_s,
                "per_class": directed.per_class,
                "protocols": rows,
            }
        )
    routes = [
        {
            "from": problem.sites[source].name,
            "to": problem.sites[target].name,
            "links": [problem.links[link].name for link in route],
        }
        for (source, target), route in sorted(problem.routes.items())
    ]
    return {"instance": instance.name, "links": links, "routes": routes}


def _protocol_row(name: str, rate: TransportRate | None, reason: str | None) -> dict[str, Any]:
    if rate is None or not rate.available or reason is not None:
        why = reason or (rate.reason if rate is not None else "not allowed")
        return {"protocol": name, "available": False, "reason": why}
    return {
        "protocol": name,
        "available": True,
        "bandwidth_gbps": rate.bytes_per_s * BITS,
        "latency_s": rate.latency_s,
        "reason": rate.reason,
    }


def render_links(document: Mapping[str, Any], console: Console) -> None:
    """Print what :func:`describe_links` found, one table a link and direction."""
    for link in document["links"]:
        console.print(
            f"{link['link']}: {link['from']} to {link['to']}, "
            f"{four_digits(link['capacity_gbps'])} Gb/s, "
            f"{four_digits(link['delay_s'] * 1e6)} us one way"
            + (", a protocol for each class" if link["per_class"] else ""),
            style="bold",
        )
        rows: list[tuple[str, ...]] = []
        for row in link["protocols"]:
            if row["available"]:
                rate = four_digits(row["bandwidth_gbps"])
                latency = four_digits(row["latency_s"] * 1e6)
                rows.append((row["protocol"], rate, latency, f"by {row['reason']}"))
            else:
                rows.append((row["protocol"], "-", "-", row["reason"]))
        _print_table(("protocol", "Gb/s", "latency us", "limited"), rows, console)
        console.print()
    console.print("routes", style="bold")
    rows = [(r["from"], r["to"], ", ".join(r["links"])) for r in document["routes"]]
    _print_table(("from", "to", "links"), rows, console)


def render_import(imported: Imported, console: Console) -> None:
    """Print the fits, the notes and the fragment."""
    for fit in imported.fits:
        curve = fit.curve
        ranks = ", ".join(map(str, fit.ranks))
        console.print(f"{curve.collective} on tier {curve.tier}, {ranks} ranks", style="bold")
        pieces = [
            f"{four_digits(p.step_s * 1e6)} us/step, {four_digits(p.bytes_per_s / 1e9)} GB/s"
            for p in curve.pieces
        ]
        joined = {"max": "the slowest of ", "min": "the fastest of "}[curve.combine]
        time = f"{four_digits(curve.launch_s * 1e6)} us + " + (joined if len(pieces) > 1 else "")
        aside = ", ".join(bytes_text(size) for size in fit.outliers) or "none"
        _print_table(
            ("", ""),
            [
                ("time", time + "; ".join(pieces)),
                ("error", f"mean {percent(fit.mean_error)}, worst {percent(fit.worst_error)}"),
                ("times", f"{fit.samples}; set aside as outliers: {aside}"),
            ],
            console,
        )
        console.print()
    for note in imported.notes:
        console.print(f"note: {note}", soft_wrap=True)
    place = (
        "a site (cluster.sites[..])" if imported.target == "site" else "a link (cluster.links[..])"
    )
    console.print(f"Paste these fields into {place} of the instance:")
    console.print(json_text(imported.fragment), soft_wrap=True)


def _print_table(
    header: tuple[str, ...], rows: Iterable[tuple[str, ...]], console: Console
) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="", show_header=any(header))
    for name in header:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(Padding(table, (0, 0, 0, 2)))
