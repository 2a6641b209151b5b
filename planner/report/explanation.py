"""The report of ``planner explain`` for people, for a terminal of 80 columns or more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from planner.report.units import (
    bytes_text,
    duration,
    exact_seconds,
    name_list,
    percent,
    run_lengths,
)

if TYPE_CHECKING:
    from planner.explanation.binding import Binding, PathTerm
    from planner.explanation.document import Explanation
    from planner.explanation.near_ties import NearTie
    from planner.explanation.questions import Verdict
    from planner.explanation.what_if import WhatIf

HEADLINES = {
    "optimal": "proven: no plan of the declared space has a shorter iteration",
    "beaten": "a shorter plan of the declared space was found",
    "not proven": "no shorter plan was found, and none is ruled out",
}
OPS = {"F": "forward", "B": "backward", "W": "weight gradient"}
WAITS = {
    "delay": "transfer",
    "occupancy": "transfers in a queue",
    "port": "network ports of a cell",
    "service": "a turn on",
    "latency": "on the way over",
    "start": "before the first op",
    "end": "after the last op",
}
MOST_ROWS = 8
"""Rows of the critical path, the links and the memory."""
MOST_TIES = 20
LONGEST = 48
"""Characters of a value of a near-tie."""


def render_explanation(explanation: Explanation, console: Console) -> None:
    """Print what binds the plan, then the tables."""
    status = explanation.plan_status
    console.print(f"{explanation.instance.name}: the plan is {status}", style="bold")
    _indented(HEADLINES[status], console)
    if explanation.limit is not None:
        why = {"time": "the time is up", "interrupt": "interrupted"}[explanation.limit]
        _indented(f"{why}: rows that are not proven hold what is known", console)
    best = explanation.best
    pairs = [("iteration", exact_seconds(explanation.time_us))]
    if status == "beaten" and best.time_us is not None:
        pairs.append(("best found", exact_seconds(best.time_us)))
    if best.bound_us is not None:
        gap = "" if best.gap is None else f", gap {percent(best.gap)}"
        pairs.append(("lower bound", exact_seconds(best.bound_us) + gap))
    _table((), pairs, console)
    _binding(explanation.binding, console)
    _alternatives(explanation, console)
    _what_ifs(explanation, console)
    _near_ties(explanation.near_ties, console)


def _binding(binding: Binding, console: Console) -> None:
    whole = binding.time_us
    _title("Where the time goes", console)
    _table(
        ("", ">", ">"),
        [
            (name, duration(us), percent(us / whole))
            for name, us in binding.breakdown_us.items()
            if us
        ],
        console,
    )
    _title("Critical path (a longer duration costs at least times × what it grows)", console)
    rows = [
        (
            _term(term),
            name_list(term.sites, most=2),
            f"{term.sensitivity:,}",
            duration(term.duration_us),
            percent(term.total_us / whole),
        )
        for term in binding.path
        if term.total_us
    ]
    _table(("what", "site", ">times", ">each", ">of Z"), rows[:MOST_ROWS], console)
    _rest(len(rows), "of the path", console)
    if binding.links:
        _title("Links (what Z would lose without their limit, same plan)", console)
        _table(
            ("link", "class", "protocol", ">capacity", ">delay"),
            [
                (
                    use.link,
                    use.traffic,
                    ", ".join(use.protocols),
                    duration(use.without_capacity_limit_us),
                    duration(use.without_delay_us),
                )
                for use in binding.links[:MOST_ROWS]
            ],
            console,
        )
        _rest(len(binding.links), "of links", console)
    _title("Memory (the fullest GPUs)", console)
    _table(
        (">stage", "site", ">peak", ">limit", ">free", ""),
        [
            (
                str(row.stage),
                row.site,
                bytes_text(row.peak_mib << 20),
                bytes_text(row.limit_mib << 20),
                percent((row.limit_mib - row.peak_mib) / row.limit_mib),
                "tight" if row.is_tight(binding.tight_share) else "",
            )
            for row in binding.memory[:MOST_ROWS]
        ],
        console,
    )
    _rest(len(binding.memory), "with more room", console)


def _term(term: PathTerm) -> str:
    """A duration of the critical path in words."""
    if term.chunk is not None:
        return f"{OPS[term.kind]} of stage {term.stage}, chunk {term.chunk}"
    if term.to_stage is not None:
        what = WAITS[term.kind] if term.link is None else f"{WAITS[term.kind]} {term.link}"
        return f"{what}, stage {term.stage} to {term.to_stage}"
    return f"{WAITS[term.kind]} of stage {term.stage}"


def _alternatives(explanation: Explanation, console: Console) -> None:
    _title("Forced alternatives (price against this plan)", console)
    rows = []
    for row in explanation.alternatives:
        verdict = row.verdict
        rows.append(
            (
                f"{row.fix} *" if row.chosen else row.fix,
                "-" if verdict.time_us is None else exact_seconds(verdict.time_us),
                _price(verdict.time_us, verdict.bound_us, explanation.time_us),
                _state(verdict),
            )
        )
    _table(("|fix", ">iteration", ">price", "state"), rows, console)
    _indented("* what the plan has", console)
    reasons = [row.verdict.reason for row in explanation.alternatives if _infeasible(row.verdict)]
    for reason in dict.fromkeys(reasons):
        _indented(f"infeasible: {reason}", console)


def _infeasible(verdict: Verdict) -> bool:
    return verdict.status == "infeasible"


def _price(time_us: int | None, bound_us: int | None, plan_us: int) -> str:
    if time_us is None and bound_us is None:
        return "-"
    if time_us is None:
        return f"at least {_signed(bound_us - plan_us)}" if bound_us is not None else "-"
    if bound_us is None or bound_us == time_us:
        return _signed(time_us - plan_us)
    return f"{_signed(bound_us - plan_us)} to {_signed(time_us - plan_us)}"


def _state(verdict: Verdict) -> str:
    if verdict.status == "not proven" and verdict.evidence == "none":
        return "not solved"
    return verdict.status


def _what_ifs(explanation: Explanation, console: Console) -> None:
    best_us = explanation.time_us
    if explanation.best.time_us is not None:
        best_us = explanation.best.time_us
    rows = []
    for row in explanation.what_ifs:
        same = "-"
        if row.same_plan_us is not None:
            same = _signed(row.same_plan_us - explanation.time_us)
        gain = _gain(row, best_us, explanation.best.bound_us)
        rows.append((row.change, row.name, same, gain, _state(row.verdict)))
    _title("More of a resource (gain of the best plan)", console)
    _table(("|change", "where", ">same plan", ">gain", "state"), rows, console)


def _gain(row: WhatIf, best_us: int, bound_us: int | None) -> str:
    at_least, at_most = row.gain_us(best_us, bound_us)
    if at_most is None:
        return "-" if at_least is None else f"at least {duration(at_least)}"
    if at_least is None:
        return f"up to {duration(at_most)}"
    if at_least == at_most:
        return duration(at_most)
    return f"{duration(at_least)} to {duration(at_most)}"


def _near_ties(ties: Sequence[NearTie], console: Console) -> None:
    _title("Other plans within 1 %", console)
    if not ties:
        _indented("none was found on the way", console)
        return
    rows = [(exact_seconds(tie.time_us), _differences(tie.differences)) for tie in ties]
    _table((">iteration", "differs in"), rows[:MOST_TIES], console)
    if len(rows) > MOST_TIES:
        _indented(f"and {len(rows) - MOST_TIES} more", console)


def _differences(differences: dict[str, tuple[Any, Any]]) -> str:
    """The fields that differ with their values; those of parts by name alone."""
    words = []
    for name, (_, here) in differences.items():
        if isinstance(here, list) and all(isinstance(entry, int) for entry in here):
            value = run_lengths(here)
        elif isinstance(here, list):
            words.append(name)
            continue
        else:
            value = str(here).lower() if isinstance(here, bool) else str(here)
        words.append(f"{name} {value}" if len(value) <= LONGEST else name)
    return ", ".join(words)


def _signed(us: int) -> str:
    """A difference of times with its sign."""
    return f"+{duration(us)}" if us > 0 else duration(us).replace("-", "−")


def _title(text: str, console: Console) -> None:
    console.print()
    console.print(text, style="bold")


def _indented(text: str, console: Console) -> None:
    console.print(Padding(text, (0, 0, 0, 2)))


def _rest(number: int, what: str, console: Console) -> None:
    if number > MOST_ROWS:
        _indented(f"and {number - MOST_ROWS} rows {what}", console)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], console: Console) -> None:
    """Print a table.

    ``>`` before the name of a column puts its text to the right; ``|`` keeps it on one line.
    """
    table = Table(
        box=None,
        padding=(0, 2, 0, 0),
        header_style="",
        show_header=any(h.strip(">|") for h in header),
    )
    for name in header:
        table.add_column(
            name.lstrip(">|"),
            justify="right" if name.startswith(">") else "left",
            overflow="fold",
            no_wrap=name.startswith((">", "|")),
        )
    for row in rows:
        table.add_row(*row)
    console.print(Padding(table, (0, 0, 0, 2)))
