"""Large neighbourhood search around a plan: take a part of it apart, put it together otherwise.

Works on plans of one degrees case, without a model: every candidate is priced by the checker's
arithmetic and kept only if it fits and is faster.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from planner import space
from planner.check import memory_of_layout, memory_violations, time_below
from planner.choices import CaseChoices
from planner.layout import Layout
from planner.pipeline.schedules import SCHEDULES
from planner.search.heuristic import (
    Placement,
    best_protocols,
    direct_flows,
    layer_splits,
    ragged,
    warmup_of_steps,
)

MOST_STAGES = 8
"""Stages that are placed anew at once."""


def improve(
    choices: CaseChoices, start: Layout, time_us: int, *, seed: int, max_fruitless: int
) -> Iterator[tuple[int, Layout] | None]:
    """Faster plans of a case, each better than the one before.

    Yields None before every plan that it prices, so that the caller can look at the clock.

    Parameters
    ----------
    choices
        The alternatives of the case.
    start, time_us
        A plan of the case that fits, and its Z in µs.
    seed
        The same seed gives the same plans.
    max_fruitless
        Ends after so many candidates in a row without a better one.
    """
    around = _Neighbourhood(choices, random.Random(seed))
    problem, co = choices.problem, choices.co
    best, fruitless = start, 0
    seen = {_key(start)}
    while fruitless < max_fruitless:
        fruitless += 1
        candidate = around.neighbour(best)
        if candidate is None or _key(candidate) in seen:
            continue
        seen.add(_key(candidate))
        yield None
        if memory_violations(memory_of_layout(problem, co, candidate)):
            continue
        found_us = time_below(problem, co, candidate, time_us)
        if found_us is not None:
            best, time_us, fruitless = candidate, found_us, 0
            yield time_us, best


def _key(layout: Layout) -> tuple[object, ...]:
    """What tells two plans of a case apart; protocols follow from the rest."""
    return layout._replace(protocols={})[:-1]


class _Neighbourhood:
    """Random neighbours of plans of one case."""

    def __init__(self, choices: CaseChoices, rng: random.Random) -> None:
        self.choices = choices
        self.co = choices.co
        self.rng = rng
        self.usable = [d for d, cells in enumerate(self.co.cells) if cells]
        self.moves = (
            self._place_anew,
            self._swap_stages,
            self._shift_layer,
            self._other_pair,
            self._other_warmup,
            self._other_sync,
        )

    def neighbour(self, layout: Layout) -> Layout | None:
        """A legal plan beside this one; None where the move leads nowhere."""
        return self.rng.choice(self.moves)(layout)

    def _place_anew(self, layout: Layout) -> Layout | None:
        """Place some consecutive stages anew, one site after the other in random order."""
        pp, dp = self.co.degrees.pp, self.co.degrees.dp
        first = self.rng.randrange(pp)
        last = min(pp, first + self.rng.randint(1, MOST_STAGES))
        unit = space.granularity(self.co.degrees, spanning=layout.option.spanning)
        rows = [list(row) for row in layout.replicas]
        free = list(self.co.cells)
        for s, row in enumerate(rows):
            if not first <= s < last:
                free = [room - count for room, count in zip(free, row, strict=True)]
        near = [d for s in (first - 1, last) if 0 <= s < pp for d in layout.hosts(s)]
        order = self.rng.sample(self.usable, len(self.usable))
        if near and self.rng.random() < 0.5:
            order = [*dict.fromkeys((*near, *order))]
        for s in range(first, last):
            left, row = dp, [0] * len(free)
            for d in order:
                row[d] = min(left, free[d]) // unit * unit
                free[d] -= row[d]
                left -= row[d]
            if left:
                return None
            rows[s] = row
        return self._placed(layout, tuple(tuple(row) for row in rows))

    def _swap_stages(self, layout: Layout) -> Layout | None:
        """Let two stages change places."""
        if self.co.degrees.pp == 1:
            return None
        a, b = self.rng.sample(range(self.co.degrees.pp), 2)
        rows = list(layout.replicas)
        rows[a], rows[b] = rows[b], rows[a]
        return self._placed(layout, tuple(rows))

    def _placed(self, layout: Layout, replicas: Placement) -> Layout | None:
        """The plan on another placement, its layers split anew."""
        if layout.option.spanning and not ragged(replicas, self.co):
            return None
        choice = next(
            c
            for c in self.choices.schedules
            if (c.schedule, c.run_length) == (layout.schedule, layout.run_length)
        )
        flows = direct_flows(self.choices.problem, choice, self.co, replicas)
        if flows is None:
            return None
        nothing = (0,) * self.co.degrees.pp
        moved = layout._replace(replicas=replicas, flows=flows, extra_warmup=nothing)
        if moved.placement_kind not in self.choices.placement_kinds:
            return None
        return self._driven(self._split(moved))

    def _split(self, layout: Layout) -> Layout | None:
        """Layers for the memory and the speed of the sites of each stage; now and then the old."""
        if self.rng.random() < 0.25:
            return layout
        splits = list(layer_splits(self.choices, layout))
        return layout._replace(layers=self.rng.choice(splits)) if splits else None

    def _driven(self, layout: Layout | None) -> Layout | None:
        """The plan with the fastest protocol on every link that it uses."""
        if layout is None:
            return None
        protocols = best_protocols(self.choices.problem, self.co, layout)
        return None if protocols is None else layout._replace(protocols=protocols)

    def _shift_layer(self, layout: Layout) -> Layout | None:
        """Move a layer from one chunk to another."""
        givers = [k for k, count in enumerate(layout.layers) if count > 1]
        if not givers or len(layout.layers) == 1 or self.choices.fixed_layers is not None:
            return None
        giver = self.rng.choice(givers)
        taker = self.rng.choice([k for k in range(len(layout.layers)) if k != giver])
        layers = list(layout.layers)
        layers[giver] -= 1
        layers[taker] += 1
        return layout._replace(layers=tuple(layers))

    def _other_pair(self, layout: Layout) -> Layout | None:
        """Another schedule, sharding or recomputation on the same placement."""
        choice, option = self.rng.choice(self.choices.pairs)
        if option.spanning != layout.option.spanning:
            return None
        flows = direct_flows(self.choices.problem, choice, self.co, layout.replicas)
        if flows is None:
            return None
        other = layout._replace(
            schedule=choice.schedule,
            run_length=choice.run_length,
            option=option,
            flows=flows,
            extra_warmup=(0,) * self.co.degrees.pp,
        )
        if other.placement_kind not in self.choices.placement_kinds:
            return None
        return self._driven(self._split(other))

    def _other_warmup(self, layout: Layout) -> Layout | None:
        """Other extra warm-up in front of the boundaries where replicas change site."""
        if not SCHEDULES[layout.schedule].has_extra_warmup:
            return None
        pp = self.co.degrees.pp
        slow = [b for b in range(pp - 1) if any(d != e for d, e, _ in layout.flows[b])]
        if not slow:
            return None
        steps = {b: self.rng.choice(self.choices.warmup_steps(b)) for b in slow}
        warmed = layout._replace(extra_warmup=warmup_of_steps(steps, pp))
        return self._split(warmed)

    def _other_sync(self, layout: Layout) -> Layout | None:
        """The other way to synchronise."""
        return self._driven(layout._replace(sync=self.rng.choice(self.choices.syncs)))
