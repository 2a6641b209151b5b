"""Bounds by paths, checked in whole numbers, against the relaxation that gave them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import pytest

from planner.choices import CaseChoices
from planner.cost.coefficients import case_coefficients
from planner.cost.least import SplitCosts
from planner.instance import load_instance
from planner.problem import Problem
from planner.search.bounds import Bounds, CaseBounds
from planner.search.certificate import certificate
from planner.search.template_bound import TemplateBound
from planner.search.tree import Tree
from planner.verification.document import TemplateTable
from planner.verification.duality import TemplateProof, WitnessError
from planner.verification.partition import Cover, Space
from tests.random_instances import random_instance

SEEDS = range(700, 724)
BEYOND = 1e15


class Relaxed(NamedTuple):
    """One schedule and option of a case, its relaxation and what verification makes of it."""

    bound: TemplateBound
    costs: SplitCosts
    value: int | None
    proof: TemplateProof


def relaxations(seed: int) -> Iterator[Relaxed]:
    """Some relaxations of a random instance, a few for each pipeline degree."""
    problem = Problem(random_instance(seed))
    bounds = Bounds(problem)
    tree = Tree(problem, bounds)
    seen: dict[tuple[int, str], int] = {}
    for box in tree.shapes():
        for dp in box.dp[:2]:
            for pp in box.pp[1:4]:
                shard = tree.dp_shard(dp)[0]
                degrees = box.shape.case(pp, 1, dp, shard)
                choices = CaseChoices(problem, case_coefficients(problem, degrees))
                case = CaseBounds(bounds, choices)
                if choices.empty or not choices.possible_kinds or not case.least_hosts:
                    continue
                for pair in choices.pairs:
                    count = seen[pp, pair[0].schedule] = seen.get((pp, pair[0].schedule), 0) + 1
                    if count > 2:
                        continue
                    bound = bounds.template(pair[0], case.co, any_warmup=case.any_warmup(pair[0]))
                    assert bound is not None
                    costs = case.split_costs(*pair)
                    value = bound.value(costs, BEYOND)
                    yield Relaxed(bound, costs, value, proof_of(bound, case))


def proof_of(bound: TemplateBound, case: CaseBounds) -> TemplateProof:
    table = certificate([], 0, [bound], None)["templates"][0]
    counts = [case.co.layer_units.count(u) for u in range(len(case.co.kinds))]
    return TemplateProof(TemplateTable.model_validate(table), counts, any_warmup=bound.any_warmup)


@lru_cache(maxsize=1)
def all_relaxations() -> tuple[Relaxed, ...]:
    return tuple(found for seed in SEEDS for found in relaxations(seed))


def test_every_bound_is_found_again_and_no_larger_one() -> None:
    looked_at = 0
    for bound, costs, value, proof in all_relaxations():
        if value is None:
            continue
        looked_at += 1
        assert proof.longer(costs, value), bound.template
        assert not proof.longer(costs, value + 2 + value // 10**6), bound.template
    assert looked_at > 30


def test_splits_that_do_not_fit_are_found_again() -> None:
    looked_at = 0
    for _, costs, value, proof in all_relaxations():
        if value is not None:
            continue
        looked_at += 1
        assert proof.unfit(costs)
        roomy = costs._replace(room=1 << 30, head_room=1 << 30)
        assert not proof.unfit(roomy)
    assert looked_at > 0


def test_paths_of_one_template_are_none_of_another() -> None:
    """Witnesses with extra warm-up allowed name paths in common; no other path counts there."""
    for bound, costs, value, proof in all_relaxations():
        if value is not None and not bound.any_warmup:
            table = proof.table
            strict = TemplateProof(table, proof.layer_counts, any_warmup=True)
            with pytest.raises(WitnessError):
                strict.longer(costs, value)
            return
    raise AssertionError("no template without extra warm-up")


@pytest.mark.parametrize("seed", SEEDS)
def test_the_space_is_that_of_the_search(seed: int) -> None:
    problem = Problem(random_instance(seed))
    tree = Tree(problem, Bounds(problem))
    assert sum(tree.cases(box) for box in tree.shapes()) == Space(problem).size


@pytest.mark.parametrize("name", ["deepseek-v3-3-sites", "moe-400b-5-buildings", "tiny"])
def test_the_space_of_shipped_instances(name: str) -> None:
    problem = Problem(load_instance(name))
    tree = Tree(problem, Bounds(problem))
    space = Space(problem)
    assert sum(tree.cases(box) for box in tree.shapes()) == space.size
    assert Cover(space).missing == space.size
