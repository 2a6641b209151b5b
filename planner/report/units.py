"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from itertools import groupby


def duration(us: float) -> str:
    """Return a time given in µs with the unit that suits it."""
    if abs(us) >= 1e6:
        return f"{us / 1e6:,.3f} s"
    if abs(us) >= 1e3:
        return f"{us / 1e3:.3f} ms"
    return f"{us:.0f} µs"


def rough_time(seconds: float) -> str:
    """Return a time to wait in the unit that suits it: ``40 s``, ``12 min``, ``3.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def exact_seconds(us: int) -> str:
    """Return whole µs as seconds with all their digits."""
    return f"{us / 1e6:,.6f} s"


def four_digits(value: float) -> str:
    """Return a number rounded to four digits, thousands separated, never with an exponent."""
    return f"{Decimal(f'{value:.4g}'):,f}"


def percent(fraction: float) -> str:
    """Return a fraction in per cent; only nothing is shown as zero."""
    value = 100 * fraction
    return f"{value:.2f} %" if value == 0 or abs(value) >= 0.01 else f"{value:.2g} %"


def gib(mib: float) -> str:
    """Return a size given in MiB in GiB."""
    return f"{mib / 1024:,.2f}"


def bytes_text(size: float) -> str:
    """Return a number of bytes with the unit that suits it."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:,.1f} {unit}"


def span(first: int, last: int) -> str:
    """Return a range of stages, both ends included."""
    return str(first) if first == last else f"{first}-{last}"


def run_lengths(values: Iterable[int]) -> str:
    """Return a list of numbers with repetitions counted, such as ``6 × 7, 2 × 3``."""
    runs = [(value, len(list(group))) for value, group in groupby(values)]
    return ", ".join(str(value) if n == 1 else f"{n} × {value}" for value, n in runs)


def name_list(names: Sequence[str], most: int = 3) -> str:
    """Return a few names, or the first and last of many with their number."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{names[0]} … {names[-1]} ({len(names)} sites)"
