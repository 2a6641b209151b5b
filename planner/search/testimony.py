"""Verdicts that rest on the word of an engine, and what holds without it.

An engine that is caught with a false word is not believed any more: all that rests on it is open
again, with the bounds that follow from the instance alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from planner.choices import ScheduleChoice
from planner.layout import Layout
from planner.plan import Degrees
from planner.search.bounds import ChoiceBound
from planner.search.cells import OpenCase, Pair


@dataclass
class Word:
    """An entry of the certificate that rests on engines.

    Attributes
    ----------
    entry
        The entry; :meth:`Testimony.withdraw` changes it.
    case
        The case, with the pairs that were open without an engine.
    cutoff_us
        Z up to which plans were wanted, in µs.
    engines
        Names and versions of all engines behind it.
    without
        The bound that follows from the instance alone, and its rule.
    """

    entry: dict[str, Any]
    case: OpenCase
    cutoff_us: int
    engines: tuple[str, ...]
    without: ChoiceBound

    @property
    def pairs(self) -> list[Pair]:
        """The pairs that are not closed without an engine."""
        return [p for p, b in self.case.values.items() if b.value_us <= self.cutoff_us]


class Testimony:
    """What engines said in one search, held against every plan that was priced.

    Attributes
    ----------
    words
        Those that stand.
    distrusted
        Engines that were caught with a false word.
    """

    def __init__(self) -> None:
        self.words: list[Word] = []
        self.distrusted: set[str] = set()
        self._priced: dict[tuple[Degrees, Pair], int] = {}

    def price(self, layout: Layout, time_us: int) -> list[Word]:
        """Take a priced plan; the words that it shows to be false."""
        degrees = layout.degrees
        pair = ScheduleChoice(layout.schedule, layout.run_length), layout.option
        known = self._priced.get((degrees, pair))
        self._priced[degrees, pair] = time_us if known is None else min(known, time_us)
        return [
            word
            for word in self.words
            if word.case.bounds.co.degrees == degrees and time_us < word.entry["bound_us"]
        ]

    def known_us(self, degrees: Degrees, pairs: Iterable[Pair]) -> int | None:
        """Least Z of the plans priced so far that have one of these pairs, in µs."""
        found = (self._priced.get((degrees, pair)) for pair in pairs)
        return min((time_us for time_us in found if time_us is not None), default=None)

    def rests_on(self, engine: str) -> bool:
        """Whether a word of an engine stands."""
        return any(engine in word.engines for word in self.words)

    def withdraw(self, engines: Collection[str]) -> int | None:
        """Believe some engines no more; the least bound of the entries that are open now."""
        self.distrusted.update(engines)
        false = [word for word in self.words if not self.distrusted.isdisjoint(word.engines)]
        self.words = [word for word in self.words if self.distrusted.isdisjoint(word.engines)]
        for word in false:
            box, cases = word.entry["box"], word.entry["cases"]
            word.entry.clear()
            word.entry.update(
                box=box,
                cases=cases,
                verdict="open",
                rule=word.without.rule,
                bound_us=word.without.value_us,
            )
        return min((word.without.value_us for word in false), default=None)

    def summary(self) -> str:
        """Whose word how many cases rest on; empty where there are none."""
        counts: Counter[str] = Counter()
        for word in self.words:
            name, second = word.entry["engine"], word.entry.get("second", {})
            agrees = f"{name}, {second.get('engine')} agrees"
            counts[agrees if second.get("agrees") else f"{name} alone"] += 1
        return "; ".join(
            f"{number:,} {'case rests' if number == 1 else 'cases rest'} on the word of {name}"
            for name, number in counts.most_common()
        )
