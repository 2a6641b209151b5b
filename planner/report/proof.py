"""What a certificate says in all: cases by verdict, and by the rule or bound that gave it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class VerdictCount(NamedTuple):
    """Degrees cases of one verdict; ``rules`` has those of every rule, the most first."""

    verdict: str
    cases: int
    rules: tuple[tuple[str, int], ...]


def verdict_counts(boxes: Iterable[Mapping[str, Any]]) -> list[VerdictCount]:
    """Return the cases in the boxes of a certificate by verdict, the most first."""
    rules: dict[str, Counter[str]] = {}
    for box in boxes:
        rules.setdefault(str(box["verdict"]), Counter())[str(box.get("rule", ""))] += box["cases"]
    ordered = sorted(rules.items(), key=lambda item: -item[1].total())
    return [
        VerdictCount(verdict, counts.total(), tuple(counts.most_common()))
        for verdict, counts in ordered
    ]
