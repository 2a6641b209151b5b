"""No lower bound exceeds the time of a plan that it speaks of: a wrong bound is a wrong proof.

The plans of small random instances are enumerated whole.  Per degrees case, schedule and option the
fastest plan that fits is compared with every bound of its case and of every box that holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import pytest

from planner.choices import CaseChoices, ScheduleChoice
from planner.cost.coefficients import Option, case_coefficients
from planner.instance import load_instance
from planner.instance.schema import Instance
from planner.plan import Degrees
from planner.problem import Problem
from planner.search.bounds import INFEASIBLE, Bounds, CaseBounds, ChoiceBound, Shape
from planner.search.cells import Cell
from planner.search.longest import longest_us
from planner.search.tree import Box, Closed, Tree
from tests.brute_force import Pricer, enumerate_layouts
from tests.random_instances import random_fabric, random_instance

SEEDS = range(400, 460)
FABRIC_SEEDS = range(24)
"""Zones, switches that reduce, collectives in chunks."""

Pair = tuple[ScheduleChoice, Option]


class Survey(NamedTuple):
    """The plans of an instance that fit into memory."""

    problem: Problem
    fastest: Mapping[Degrees, Mapping[Pair, int]]
    """Smallest Z by degrees case, schedule and option."""
    slowest: Mapping[Degrees, int]
    """Largest Z by degrees case, of the options that the case looks at."""

    @property
    def least(self) -> dict[Degrees, int]:
        """Smallest Z by degrees case."""
        return {case: min(pairs.values()) for case, pairs in self.fastest.items()}

    @property
    def best(self) -> int:
        """The optimum."""
        return min(self.least.values(), default=INFEASIBLE)

    def choices(self, case: Degrees) -> CaseChoices:
        """What the case leaves open."""
        return CaseChoices(self.problem, case_coefficients(self.problem, case))


def survey(instance: Instance) -> Survey:
    """Price every plan of an instance."""
    pricer = Pricer(instance)
    overlaps = True in (instance.search.overlap or (True,))
    fastest: dict[Degrees, dict[Pair, int]] = {}
    slowest: dict[Degrees, int] = {}
    for layout in enumerate_layouts(instance):
        if not pricer.fits(layout):
            continue
        case, time_us = layout.degrees, pricer.time_us(layout)
        pairs = fastest.setdefault(case, {})
        pair = ScheduleChoice(layout.schedule, layout.run_length), layout.option
        pairs[pair] = min(time_us, pairs.get(pair, time_us))
        if layout.option.overlap or not overlaps:
            slowest[case] = max(time_us, slowest.get(case, 0))
    return Survey(Problem(instance), fastest, slowest)


def shape_of(case: Degrees) -> Shape:
    """The shape of a degrees case."""
    return Shape(case.tp, case.cp, case.ep, case.etp, case.micro_batch_size)


def beyonds(found: Survey) -> dict[str, Callable[[int], int]]:
    """Values of ``beyond_us`` for a plan of given Z: none, the optimum's, the plan's own, half."""
    return {
        "none": lambda z: INFEASIBLE,
        "optimum": lambda z: found.best,
        "own": lambda z: z,
        "half": lambda z: z // 2,
    }


def wrong_box_bounds(found: Survey) -> Iterator[str]:
    """Bounds of shapes and of pipeline degrees that exceed the best plan of a case."""
    bounds = Bounds(found.problem)
    for case, least in found.least.items():
        shape = shape_of(case)
        for name, value in (
            ("shape", bounds.shape(shape)),
            ("pipeline_degree", bounds.pipeline_degree(shape, case.pp, (case.dp,))),
        ):
            if value > least:
                yield f"{name} {value} > {least}: {case}"


def wrong_cells(found: Survey) -> Iterator[str]:
    """Cells bounded above the best plan in them, and cells that drop it."""
    groups: dict[Degrees, list[Degrees]] = {}
    for case in found.least:
        groups.setdefault(case._replace(dp_shard=1), []).append(case)
    for name, beyond in beyonds(found).items():
        tree = Tree(found.problem, Bounds(found.problem))
        for case, members in groups.items():
            best = min(members, key=lambda member: found.least[member])
            least = found.least[best]
            box = Box(shape_of(case), (case.pp,), (case.virtual_stages,), (case.dp,))
            value = tree.bounds.cell(box.shape, case.pp, case.virtual_stages, case.dp)
            cell = Cell(tree, box, ChoiceBound(value, "work"))
            while True:
                if cell.bound.value_us > least:
                    yield f"cell {cell.bound} > {least}, step {cell.step}: {best}, beyond {name}"
                if cell.finished:
                    break
                cell.refine(beyond(least))
            if beyond(least) >= least and best not in {c.bounds.co.degrees for c in cell.cases}:
                yield f"cell drops a case with {least}: {best}, beyond {name}"


def wrong_choice_bounds(found: Survey) -> Iterator[str]:
    """Bounds of one schedule and option of a case that exceed a plan with these."""
    bounds = Bounds(found.problem)
    for case, pairs in found.fastest.items():
        judged = CaseBounds(bounds, found.choices(case))
        for pair, least in pairs.items():
            for name, bound in (
                ("work", judged.work),
                ("ramp", judged.ramp),
                ("quick", judged.quick),
                ("choice", judged.choice),
            ):
                value = bound(*pair).value_us
                if value > least:
                    yield f"{name} {value} > {least}: {case}, {pair}"


def wrong_template_bounds(found: Survey) -> Iterator[str]:
    """Bounds from the op orders that exceed a plan with this schedule and option."""
    for name, beyond in beyonds(found).items():
        bounds = Bounds(found.problem)
        for case, pairs in found.fastest.items():
            judged = CaseBounds(bounds, found.choices(case))
            for pair, least in pairs.items():
                value = judged.template(*pair, beyond(least))
                if value.value_us > least:
                    yield f"template {value} > {least}: {case}, {pair}, beyond {name}"


def holds(box: Box, case: Degrees) -> bool:
    """Whether a case lies in a box."""
    return (
        box.shape == shape_of(case)
        and case.pp in box.pp
        and case.virtual_stages in box.virtual_stages
        and case.dp in box.dp
        and (box.dp_shard is None or case.dp_shard in box.dp_shard)
    )


def wrong_boxes(found: Survey) -> Iterator[str]:
    """Boxes that are closed or bounded although they hold a better plan; cases not held once."""
    tree = Tree(found.problem, Bounds(found.problem))
    open_boxes = [(box, tree.examine(box)) for box in tree.shapes()]
    held = dict.fromkeys(found.least, 0)
    while open_boxes:
        box, verdict = open_boxes.pop()
        members = [case for case in held if holds(box, case)]
        for case in members:
            if isinstance(verdict, Closed):
                yield f"closed by {verdict.rule}: {case}"
            elif verdict > found.least[case]:
                yield f"box {verdict} > {found.least[case]}: {case} in {box}"
        if isinstance(verdict, Closed) or not members:
            continue
        if box.single:
            held[members[0]] += 1
        else:
            open_boxes += tree.children(box)
    for case, times in held.items():
        if times != 1:
            yield f"in {times} single boxes: {case}"


def wrong_longest(found: Survey) -> Iterator[str]:
    """Cases with a plan that takes longer than the upper limit of their model."""
    for case, slowest in found.slowest.items():
        limit = longest_us(found.choices(case))
        if limit < slowest:
            yield f"longest {limit} < {slowest}: {case}"


def missing_pairs(found: Survey) -> Iterator[str]:
    """Pairs that the case leaves out although nothing that it keeps is as good."""
    for case, pairs in found.fastest.items():
        kept = set(found.choices(case).pairs)
        best = min((z for pair, z in pairs.items() if pair in kept), default=INFEASIBLE)
        if best > found.least[case]:
            yield f"best kept {best} > {found.least[case]}: {case}"


@pytest.mark.parametrize(
    ("draw", "seed"),
    [
        *((random_instance, seed) for seed in SEEDS),
        *((random_fabric, seed) for seed in FABRIC_SEEDS),
    ],
)
def test_no_bound_exceeds_a_plan(draw: Callable[[int], Instance], seed: int) -> None:
    """Every bound of a shape, box, case, schedule and option holds for all plans of it."""
    found = survey(draw(seed))
    wrong = [
        line
        for rule in (
            wrong_box_bounds,
            wrong_cells,
            wrong_choice_bounds,
            wrong_template_bounds,
            wrong_boxes,
            wrong_longest,
            missing_pairs,
        )
        for line in rule(found)
    ]
    assert not wrong, "\n".join(wrong)


def test_work_and_ramp_hold_for_every_smaller_shard_degree() -> None:
    """What a large shard group exposes of its collectives is no bound for a small one."""
    problem = Problem(load_instance("dense-17b-2-buildings"))
    bounds = Bounds(problem)

    def case(dp_shard: int) -> CaseBounds:
        degrees = Shape(2, 1, 1, 1, 1).case(1, 1, 512, dp_shard)
        return CaseBounds(bounds, CaseChoices(problem, case_coefficients(problem, degrees)))

    largest, compared = case(512), 0
    for smaller in (case(8), case(64), largest):
        for pair in smaller.choices.pairs:
            exact = smaller.choice(*pair).value_us
            if exact < INFEASIBLE and pair in largest.choices.pairs:
                assert largest.work(*pair).value_us <= largest.ramp(*pair).value_us <= exact
                compared += pair[1].sharding == "zero3"
    assert compared
    exposed = [pair for pair in largest.choices.pairs if pair[1].sharding == "zero3"]
    assert any(largest.quick(*p).value_us > case(8).quick(*p).value_us for p in exposed)
