"""Cells of the space: all shard degrees of one shape, pipeline degree, chunk count and dp.

A cell is bounded in steps, each stronger and dearer than the one before: work and memory per way
to shard and recompute; the ramp of the pipeline; closed forms with the synchronisation of every
shard degree; the relaxation of the layer split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from planner.choices import CaseChoices, ScheduleChoice
from planner.cost.coefficients import Option, case_coefficients
from planner.plan import Degrees
from planner.search.bounds import INFEASIBLE, CaseBounds, ChoiceBound
from planner.search.tree import Box, Tree

Pair = tuple[ScheduleChoice, Option]


class OpenCase(NamedTuple):
    """A case with the pairs of schedule and option that are not closed yet, and their bounds.

    ``values`` follow from the instance; ``layers`` are the bounds that rest on the engine behind
    whole layers.
    """

    bounds: CaseBounds
    values: dict[Pair, ChoiceBound]
    layers: Mapping[Pair, ChoiceBound] = MappingProxyType({})

    @property
    def least(self) -> ChoiceBound:
        """The smallest bound, engine or not."""
        return min(self.standing(pair) for pair in self.values)

    def standing(self, pair: Pair) -> ChoiceBound:
        """The bound of a pair, engine or not."""
        return max(self.values[pair], self.layers.get(pair, self.values[pair]))


class Cell:
    """Bounds of one cell.

    Attributes
    ----------
    bound
        The bound so far and the rule that gave it; :data:`INFEASIBLE` where no plan exists.
    cases
        Cases that may hold a plan that is not worse than those known; after the first two
        steps those that stand for all of them.
    tried
        Whether plans of its most promising cases were looked for.
    """

    STEPS = 4
    RAMP, CLOSED_FORMS = 2, 3
    """Steps done when the ramp, and the closed forms, are known."""

    def __init__(self, tree: Tree, box: Box, bound: ChoiceBound) -> None:
        self.tree = tree
        self.box = box
        self.bound = bound
        self.step = 0
        self.cases: list[OpenCase] = []
        self._dropped = ChoiceBound(INFEASIBLE, "placement")
        self.tried = False

    @property
    def dropped(self) -> ChoiceBound:
        """Least bound of what is not among the cases any more."""
        return self._dropped

    @property
    def finished(self) -> bool:
        """Whether there is no stronger bound."""
        return self.step == self.STEPS or (self.step > 0 and not self.cases)

    def refine(self, beyond_us: int) -> None:
        """Take the next step.

        Parameters
        ----------
        beyond_us
            Pairs whose bound exceeds this are of no interest any more.
        """
        steps: tuple[Callable[[int], Iterator[OpenCase]], ...] = (
            self._work,
            self._ramp,
            self._closed_forms,
            self._paths,
        )
        found = []
        least: list[ChoiceBound] = []
        for case in steps[self.step](beyond_us):
            kept = {p: b for p, b in case.values.items() if b.value_us <= beyond_us}
            dropped = [b for p, b in case.values.items() if p not in kept]
            self._dropped = min([self._dropped, *dropped], key=_by_value)
            if kept:
                found.append(case._replace(values=kept))
                least.append(found[-1].least)
        self.step += 1
        self.cases = found
        self.bound = max(self.bound, min([self._dropped, *least], key=_by_value), key=_by_value)

    def _degrees(self) -> list[Degrees]:
        """Cases that can be placed, the largest shard degree first."""
        box, tree = self.box, self.tree
        cases = [
            box.shape.case(box.pp[0], box.virtual_stages[0], box.dp[0], shard)
            for shard in sorted(tree.legal_shards(box), reverse=True)
        ]
        moves = tree.bounds.may_move
        return [degrees for degrees in cases if tree.bounds.least_hosts(degrees, moves=moves)]

    def _work(self, beyond_us: int) -> Iterator[OpenCase]:
        """Memory and work, state over as many ranks as a site can hold or over none.

        No case that can be placed needs less memory than the first; unsharded state is legal in the
        second alone.
        """
        degrees = self._degrees()
        for first in dict.fromkeys((*degrees[:1], *(d for d in degrees if d.dp_shard == 1))):
            case = self._case(first)
            if case is not None and not case.hopeless:
                yield OpenCase(case, {pair: case.work(*pair) for pair in case.choices.pairs})

    def _ramp(self, beyond_us: int) -> Iterator[OpenCase]:
        """The pipeline of the same cases, without synchronisation."""
        for case, values, _ in self.cases:
            ramps = {
                pair: case.stages(*pair, case.ramp(*pair), beyond_us, synchronised=False)
                for pair in values
            }
            yield OpenCase(case, ramps)

    def _closed_forms(self, beyond_us: int) -> Iterator[OpenCase]:
        """Every shard degree, with the ways to run it that the step before left."""
        ways = {_way(*pair) for case in self.cases for pair in case.values}
        for degrees in self._degrees():
            case = self._case(degrees)
            if case is None:
                continue
            values = {}
            for pair in case.choices.pairs:
                if _way(*pair) in ways:
                    ramp = case.own_ramp(*pair)
                    values[pair] = ramp if ramp.value_us > beyond_us else case.choice(*pair)
            if values:
                yield OpenCase(case, values)

    def _paths(self, beyond_us: int) -> Iterator[OpenCase]:
        """The relaxation of the layer split."""
        for case, values, _ in self.cases:
            yield OpenCase(case, {pair: case.template(*pair, beyond_us) for pair in values})

    def _case(self, degrees: Degrees) -> CaseBounds | None:
        """The bounds of a case, None where the search allows nothing in it."""
        problem = self.tree.problem
        choices = CaseChoices(problem, case_coefficients(problem, degrees))
        if choices.empty or not choices.possible_kinds:
            return None
        return CaseBounds(self.tree.bounds, choices)


def _by_value(bound: ChoiceBound) -> int:
    return bound.value_us


def _way(choice: ScheduleChoice, option: Option) -> tuple[object, ...]:
    """What the first step tells apart: ``ddp`` never needs less memory than ``zero1``."""
    sharding = "zero1" if option.sharding == "ddp" else option.sharding
    return choice, option.recompute, sharding, option.overlap
