"""Bounds of unequal GPUs against every placement and layer split of small pipelines."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations, product
from typing import NamedTuple

import pytest

from planner.search.mixed_classes import (
    ClassTimes,
    equalised_ramp,
    mixtures,
    one_f_one_b_turns,
    slowest_stage,
    weighted_wait,
)


class Job(NamedTuple):
    """Layers of one kind, an embedding, a head; parts are forward and backward."""

    layers: int
    pp: int
    dp: int
    m: int
    classes: tuple[ClassTimes, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        return (self.layers, 1, 1)


def job(seed: int) -> Job:
    """A random job on two or three GPU classes that it just fits."""
    rng = random.Random(seed)
    pp, dp = rng.randint(1, 4), rng.randint(1, 3)
    names = rng.randint(2, 3)
    cells = [rng.randint(1, 6) for _ in range(names)]
    cells[0] += max(0, pp * dp - sum(cells))
    classes = []
    for room in cells:
        forward = (rng.randint(5, 30), rng.randint(0, 3), rng.randint(0, 20))
        backward = tuple(rng.randint(1, 3) * f for f in forward)
        classes.append(ClassTimes(room, (forward, backward)))
    return Job(rng.randint(pp, 6), pp, dp, rng.randint(1, 5), tuple(classes))


def placements(given: Job) -> Iterator[tuple[tuple[int, ...], ...]]:
    """The classes that host each stage, over all ways to place the replicas."""
    rows = [
        row
        for row in product(range(given.dp + 1), repeat=len(given.classes))
        if sum(row) == given.dp
    ]
    for choice in product(rows, repeat=given.pp):
        used = [sum(column) for column in zip(*choice, strict=True)]
        if all(n <= c.cells for n, c in zip(used, given.classes, strict=True)):
            yield tuple(tuple(g for g, n in enumerate(row) if n) for row in choice)


def stages(given: Job) -> Iterator[list[tuple[int, int]]]:
    """Forward and backward of every stage, over all placements and layer splits."""
    for hosts in set(placements(given)):
        for cuts in combinations(range(1, given.layers), given.pp - 1):
            edges = (0, *cuts, given.layers)
            result = []
            for s in range(given.pp):
                held = (edges[s + 1] - edges[s], int(s == 0), int(s == given.pp - 1))
                ops = tuple(
                    max(
                        sum(n * t for n, t in zip(held, given.classes[g].parts[op], strict=True))
                        for g in hosts[s]
                    )
                    for op in (0, 1)
                )
                result.append((ops[0], ops[1]))
            yield result


@pytest.mark.parametrize("seed", range(40))
def test_no_bound_of_mixed_classes_exceeds_a_placement(seed: int) -> None:
    """Slowest stage, ramp, mean wait and turns hold for every placement and layer split."""
    given = job(seed)
    found = mixtures(given.classes, given.counts, given.pp, given.dp)
    m = given.m
    for mixture in found:
        slowest = slowest_stage(mixture, given.counts, 1)
        work = sum(
            n * sum(part[u] for part in mixture.fast_parts) for u, n in enumerate(given.counts)
        )
        share, rest = mixture.least_share(0), mixture.least_share(1)
        ramp = equalised_ramp(mixture, work, 1.0, m)
        half_ramp = equalised_ramp(mixture, work, share, m) if share else 0
        own = [(m - 1) * rest + (m - min(m, given.pp - s)) * share for s in range(given.pp)]
        turns = one_f_one_b_turns(mixture, work, own) if all(own) else 0
        wait = sum(part[0] for part in mixture.fast_parts)
        mean = (m * work + wait * weighted_wait(mixture)) / mixture.speed
        for ops in stages(given):
            whole = [f + b for f, b in ops]
            assert slowest <= max(whole)
            reached = [sum(whole[:s]) + m * whole[s] for s in range(given.pp)]
            assert ramp <= max(reached)
            assert mean <= max(reached) * (1 + 1e-9)
            forward = [sum(f for f, _ in ops[:s]) + m * whole[s] for s in range(given.pp)]
            assert half_ramp <= max(forward)
            turned = [
                sum(whole) + (m - 1) * b + (m - min(m, given.pp - s)) * f
                for s, (f, b) in enumerate(ops)
            ]
            assert turns <= max(turned)


def test_some_stages_must_run_on_slow_gpus() -> None:
    """Six layers, a stage of four on the fast class and one of two on the slow one: the optimum."""
    fast = ClassTimes(2, ((10, 0, 0), (20, 0, 0)))
    slow = ClassTimes(9, ((20, 0, 0), (40, 0, 0)))
    (mixture,) = mixtures((slow, fast), (6, 1, 1), 2, 2)
    assert (mixture.fast, mixture.slow, mixture.ratio) == (1, 1, 2.0)
    assert slowest_stage(mixture, (6, 1, 1), 1) == 120
    assert mixtures((slow, fast), (6, 1, 1), 1, 2) == ()


def test_whole_layers_are_not_spread_by_speed() -> None:
    """Five layers, one GPU three times as fast: by speed 3.75 + 1.25, in whole layers 4 + 1."""
    fast = ClassTimes(1, ((10, 0, 0), (0, 0, 0)))
    slow = ClassTimes(9, ((30, 0, 0), (0, 0, 0)))
    (mixture,) = mixtures((slow, fast), (5, 1, 1), 2, 1)
    assert slowest_stage(mixture, (5, 1, 1), 1) == 40
