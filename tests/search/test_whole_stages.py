"""Whole layers on relaxed stages against every split and every choice of fast stages."""

from __future__ import annotations

import random
from itertools import combinations, product

import pytest

from planner.search.whole_stages import Pipeline, Row, StageClass, least_time, within


def pipeline(seed: int) -> Pipeline:
    """A random pipeline of up to four stages and seven layers."""
    rng = random.Random(seed)
    stages, m = rng.randint(1, 4), rng.randint(1, 4)
    layers = rng.randint(stages, 7)

    def some(slower: int) -> StageClass:
        most = tuple(rng.randint(0, 5) for _ in range(stages))
        return StageClass(rng.randint(6, 12) * slower, rng.randint(0, 4), rng.randint(0, 30), most)

    classes = (some(1), some(rng.randint(1, 3)))
    rows = [Row(0, rng.randint(0, 6), (float(m),) * stages)]
    if rng.random() < 0.5:
        rows.append(Row(rng.randint(0, 60), 0, tuple(rng.uniform(0, 3) for _ in range(stages))))
    return Pipeline(
        layers,
        rng.choice((0, 1)),
        rng.random() < 0.7,
        rng.randint(0, stages),
        rng.choice((0, stages - 1)),
        classes,
        tuple(rows),
    )


def brute_force(given: Pipeline) -> float | None:
    """Least time over all splits and choices of fast stages; None where memory never suffices."""
    stages = len(given.classes[0].most)
    times = []
    for fast in (c for n in range(given.fast + 1) for c in combinations(range(stages), n)):
        classes = [given.classes[s not in fast] for s in range(stages)]
        for split in product(range(given.layers + 1), repeat=stages):
            if sum(split) != given.layers or min(split) < given.least:
                continue
            if any(n > c.most[s] for s, (n, c) in enumerate(zip(split, classes, strict=True))):
                continue
            times.append(
                max(
                    row.rest_us
                    + row.wait_us * (sum(split[:s]) if given.ordered else s)
                    + row.repeats[s]
                    * (
                        split[s] * classes[s].layer_us
                        + classes[s].first_us * (s == 0)
                        + classes[s].last_us * (s == given.head)
                    )
                    for row in given.rows
                    for s in range(stages)
                )
            )
    return min(times, default=None)


@pytest.mark.parametrize("seed", range(300))
def test_nothing_fits_into_less_than_the_least_time(seed: int) -> None:
    given = pipeline(seed)
    best = brute_force(given)
    if best is None:
        return
    assert within(given, int(best) + 1)
    found = least_time(lambda time_us: within(given, time_us), 0, 10_000)
    assert found <= best + 1


def test_the_least_time_is_nearly_always_met() -> None:
    gaps = []
    for given in map(pipeline, range(100)):
        best = brute_force(given)
        if best is not None:
            gaps.append(best - least_time(lambda us, g=given: within(g, us), 0, 10_000))
    assert sum(gap <= 2 for gap in gaps) >= 0.95 * len(gaps)


def test_memory_alone_can_rule_all_splits_out() -> None:
    tight = StageClass(1, 0, 0, (2, 2))
    rows = (Row(0, 0, (1.0, 1.0)),)
    assert not within(Pipeline(5, 1, True, 0, 1, (tight, tight), rows), 10**9)
    roomy = StageClass(1, 0, 0, (3, 3))
    assert within(Pipeline(5, 1, True, 1, 1, (roomy, tight), rows), 10**9)
    assert least_time(lambda us: us >= 40, 50, 100) == 50
    assert least_time(lambda us: us >= 400, 50, 100) == 101
