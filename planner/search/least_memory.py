"""The plan of a problem whose largest need for memory, as a share of the limit, is smallest.

Best-first over cases, schedules and options: bounds from the state alone first, exact minima where
these do not decide.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import count
from math import floor
from typing import NamedTuple

from planner import space
from planner.check import StageMemory, memory_of_layout
from planner.choices import CaseChoices, ScheduleChoice
from planner.cost.coefficients import Option, case_coefficients
from planner.layout import Layout
from planner.plan import Degrees
from planner.problem import Problem
from planner.search.legal_places import LegalPlaces, Place, reachable_groups
from planner.search.memory_need import SplitNeeds, quick_need
from planner.search.tree import Tree


@dataclass(frozen=True)
class LeastMemory:
    """A legal plan with the memory of its stages.

    Attributes
    ----------
    proven
        Whether no legal plan has a smaller largest (need ÷ limit).
    """

    layout: Layout
    memory: tuple[StageMemory, ...]
    proven: bool

    @property
    def worst(self) -> StageMemory:
        """The stage and site with the largest need ÷ limit, the first of them."""
        return max(self.memory, key=lambda row: (Fraction(row.peak_mib, row.limit_mib), -row.stage))

    @property
    def ratio(self) -> Fraction:
        """The largest need ÷ limit."""
        return Fraction(self.worst.peak_mib, self.worst.limit_mib)


class _Item(NamedTuple):
    """Plans whose largest need ÷ limit is at least ``bound``."""

    bound: Fraction
    case: Degrees
    option: Option
    choice: ScheduleChoice | None = None
    refined: bool = False


def legal_cases(problem: Problem, tree: Tree) -> Iterator[Degrees]:
    """The cases of the search that satisfy the rules of the degrees, one number of chunks each.

    Cases that differ in their chunks alone come as the one with the fewest.
    """
    gpus = problem.search.gpus_used
    for box in tree.shapes():
        shape = box.shape
        if not (space.tp_legal(problem, shape.tp) and space.cp_legal(problem, shape.cp)):
            continue
        cells = sum(problem.cells(d, shape.tp, shape.cp) for d in range(len(problem.sites)))
        least_chunks = min(box.virtual_stages)
        for pp in box.pp:
            if pp * least_chunks > problem.model.num_layers:
                continue
            for dp in box.dp:
                if dp * pp > cells:
                    break
                if gpus is not None and shape.tp * shape.cp * pp * dp not in gpus:
                    continue
                for shard in tree.dp_shard(dp):
                    case = shape.case(pp, least_chunks, dp, shard)
                    if space.expert_groups_legal(case, problem.model.num_experts):
                        yield case


def least_memory(
    problem: Problem, tree: Tree, enough: Fraction | None = None
) -> LeastMemory | None:
    """The legal plan whose largest need ÷ limit is smallest; None where no plan is legal.

    Parameters
    ----------
    tree
        The cases of the search.
    enough
        The first plan found with at most this ratio will do; if there is none, the result has a
        larger one or is None.
    """
    return _Search(problem, tree, enough).run()


@dataclass
class _Search:
    """State of one search."""

    problem: Problem
    tree: Tree
    enough: Fraction | None
    best: LeastMemory | None = None
    best_ratio: Fraction | None = None
    doubt: Fraction | None = None
    """Least bound of what could not be settled."""
    heap: list[tuple[float, int, _Item]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.serial = count()
        self.groups = reachable_groups(self.problem)
        self.placeless: set[tuple[Degrees, bool]] = set()
        self.all_places: dict[tuple[Degrees, bool], list[Place] | None] = {}

    def run(self) -> LeastMemory | None:
        for case in legal_cases(self.problem, self.tree):
            self._enter(case)
        while self.heap:
            item = heapq.heappop(self.heap)[2]
            if self.best_ratio is not None and item.bound >= self.best_ratio:
                break
            if item.choice is None:
                self._expand(item)
            elif not item.refined:
                self._refine(item)
            else:
                self._build(item)
            if (
                self.enough is not None
                and self.best_ratio is not None
                and self.best_ratio <= self.enough
            ):
                break
        if self.best is None:
            return None
        sure = self.doubt is None or self.best_ratio is None or self.doubt >= self.best_ratio
        return LeastMemory(self.best.layout, self.best.memory, sure)

    def _push(self, item: _Item) -> None:
        beyond = self.best_ratio is not None and item.bound >= self.best_ratio
        hopeless = self.enough is not None and item.bound > self.enough
        if not (beyond or hopeless):
            heapq.heappush(self.heap, (float(item.bound) * (1 - 1e-12), next(self.serial), item))

    def _enter(self, case: Degrees) -> None:
        """All options of a case, bounded by the state and one microbatch alone."""
        choices = CaseChoices(self.problem, case_coefficients(self.problem, case))
        co = choices.co
        limit = self._roomiest(choices)
        if not limit:
            return
        options = {(o.sharding, o.recompute): o for o in reversed(choices.options)}
        for option in options.values() or self._options_without_schedule(choices):
            self._push(_Item(Fraction(quick_need(co, co.memory(option)), limit), case, option))

    def _options_without_schedule(self, choices: CaseChoices) -> tuple[Option, ...]:
        """Options of a case whose fewest chunks no schedule of the search runs."""
        allowed = self.problem.search.restrictions()
        return tuple(
            option
            for option in choices.co.options()
            if not option.spanning
            and all(
                getattr(option, name) in allowed.get(name, (getattr(option, name),))
                for name in ("sharding", "overlap", "recompute")
            )
        )

    def _expand(self, item: _Item) -> None:
        """Every number of chunks and every schedule."""
        layers, pp = self.problem.model.num_layers, item.case.pp
        for v in self.tree.virtual_stages:
            if pp * v > layers:
                continue
            case = item.case._replace(virtual_stages=v)
            choices = CaseChoices(self.problem, case_coefficients(self.problem, case))
            if choices.empty:
                continue
            limit = self._roomiest(choices)
            for choice in choices.schedules:
                need = quick_need(choices.co, choices.co.memory(item.option), v, choice.run_length)
                self._push(_Item(Fraction(need, limit), case, item.option, choice))

    def _roomiest(self, choices: CaseChoices) -> int:
        co = choices.co
        return max((co.limit_mib[d] for d, cells in enumerate(co.cells) if cells), default=0)

    def _tools(self, item: _Item) -> tuple[SplitNeeds, LegalPlaces]:
        assert item.choice is not None
        choices = CaseChoices(self.problem, case_coefficients(self.problem, item.case))
        return (
            SplitNeeds(choices.co, item.choice, item.option),
            LegalPlaces(choices, item.choice, self.groups),
        )

    def _refine(self, item: _Item) -> None:
        """The least ratio of any split, at the roomiest sites that hold the stages."""
        if self._shape_of(item) in self.placeless:
            return
        needs, places = self._tools(item)
        if self.enough is not None:
            if any(self._may_suffice(needs, places, group) for group in self.groups):
                self._push(item._replace(refined=True))
            return
        bounds = []
        for group in self.groups:
            levels = places.levels(group)
            if len(levels) == 1:
                bounds.append(needs.least((levels[0].limit,) * item.case.pp).bound)
            elif levels:
                bounds.append(needs.least_over_levels(levels)[0])
        if bounds:
            self._push(item._replace(bound=max(item.bound, min(bounds)), refined=True))

    def _may_suffice(self, needs: SplitNeeds, places: LegalPlaces, group: tuple[int, ...]) -> bool:
        """Whether the stages fit where all of them have the roomiest sites of the group."""
        levels = places.levels(group)
        if not levels or self.enough is None:
            return False
        room = floor(self.enough * levels[0].limit)
        return needs.fill((room,) * needs.pp).possible

    def _build(self, item: _Item) -> None:
        """A plan whose ratio is the bound, or else the best of all placements."""
        key = self._shape_of(item)
        if key in self.placeless:
            return
        needs, places = self._tools(item)
        for group in self.groups:
            levels = places.levels(group)
            if not levels:
                continue
            limits: tuple[int, ...] = (levels[0].limit,) * item.case.pp
            if len(levels) > 1:
                limits = needs.least_over_levels(levels)[1]
            place = places.with_limits(item.option, group, limits)
            if place is not None:
                ratio = self._offer(needs, place)
                if ratio <= (item.bound if self.enough is None else self.enough):
                    return
        if key not in self.all_places:
            self.all_places[key] = places.every(item.option)
        every = self.all_places[key]
        if every is None:
            self.doubt = item.bound if self.doubt is None else min(self.doubt, item.bound)
            return
        if not every:
            self.placeless.add(key)
        for place in every:
            self._offer(needs, place)

    @staticmethod
    def _shape_of(item: _Item) -> tuple[Degrees, bool]:
        """What the placements of an item depend on."""
        wraps = item.choice is not None and item.choice.wraps
        return item.case._replace(virtual_stages=1), wraps

    def _offer(self, needs: SplitNeeds, place: Place) -> Fraction:
        """Price the best split at a placement by the checker's arithmetic; its ratio."""
        least = needs.least(place.limits)
        assert least.split is not None
        spanning = place.layout.option.spanning
        layout = place.layout._replace(
            layers=least.split,
            schedule=needs.choice.schedule,
            run_length=needs.choice.run_length,
            option=needs.option._replace(spanning=spanning),
        )
        found = LeastMemory(layout, memory_of_layout(self.problem, needs.co, layout), True)
        if found.ratio > least.bound:
            self.doubt = least.bound if self.doubt is None else min(self.doubt, least.bound)
        if self.best_ratio is None or found.ratio < self.best_ratio:
            self.best, self.best_ratio = found, found.ratio
        return found.ratio


__all__ = ["LeastMemory", "least_memory", "legal_cases"]
