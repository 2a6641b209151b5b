"""``planner verify`` for people: the verdict, what is wrong, and what the proof rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.report.text import render_pairs
from planner.report.units import exact_seconds, percent

if TYPE_CHECKING:
    from rich.console import Console

    from planner.verification.verify import Verification


def render_verification(verification: Verification, console: Console) -> None:
    """Print a verification: accepted or refused, rules, grade and evidence."""
    console.print("accepted" if verification.accepted else "refused", style="bold")
    for violation in verification.violations:
        console.print(f"  {violation.rule}: {violation.message}", markup=False)
    pairs = {"claimed": verification.status, "grade": verification.grade}
    if verification.time_us is not None:
        pairs["iteration"] = exact_seconds(verification.time_us)
    if verification.bound_us is not None:
        pairs["lower bound"] = exact_seconds(verification.bound_us)
    total = verification.cases_total
    pairs["degrees cases"] = f"{total:,}"
    for name, cases in verification.cases_by_evidence.items():
        pairs[f"  {name}"] = f"{cases:,} ({percent(cases / total)})"
    render_pairs(pairs, console)
