"""The bound of op tables against enumeration, and the values that it has to reach."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from planner.pipeline.schedule_bound import one_machine_bound, schedule_bound
from tests.pipeline.schedule_problems import least_makespan, pipeline, random_problem

SHAPES = [
    ((0, 1), 2, True),
    ((0, 1), 3, True),
    ((0, 1, 2), 2, True),
    ((0, 1, 2), 3, False),
    ((0, 0), 2, True),
    ((0, 1, 1, 0), 1, True),
    ((0, 1, 1, 0), 2, False),
    ((0, 1, 0, 1), 2, False),
    ((0,), 3, True),
]


@pytest.mark.parametrize(("devices", "m", "split"), SHAPES)
def test_no_table_is_below_the_bound(devices: tuple[int, ...], m: int, split: bool) -> None:
    rng = random.Random(len(devices) * 10 + m)
    tight = 0
    for _ in range(12):
        problem = random_problem(rng, devices, m, split=split)
        least = least_makespan(problem)
        bound = schedule_bound(problem).value
        assert least is not None and bound <= least
        tight += bound == least
    assert tight >= 4


@pytest.mark.parametrize("split", [True, False])
def test_the_order_of_the_microbatches_is_no_loss(split: bool) -> None:
    rng = random.Random(7)
    for _ in range(6):
        problem = random_problem(rng, (0, 1), 2, split=split)
        assert least_makespan(problem) == least_makespan(problem, in_order=False)


@pytest.mark.parametrize(
    ("stages", "m", "latency", "occupancy", "live", "value"),
    [
        (4, 8, 20, 5, 4, 640),
        (4, 8, 100, 20, 4, 1020),
        (4, 8, 100, 20, 8, 700),
        (8, 16, 20, 5, 8, 1200),
        (8, 16, 100, 20, 8, 1580),
    ],
)
def test_the_optimum_is_reached_where_memory_and_latency_bind(
    stages: int, m: int, latency: int, occupancy: int, live: int, value: int
) -> None:
    """The optima of reference schedules (F = B = W = 20, one slow boundary in the middle)."""
    problem = pipeline(stages, m, slow={stages // 2 - 1: (latency, occupancy)}, live=live)
    assert schedule_bound(problem).value == value


def test_jackson_is_the_largest_subset_bound() -> None:
    rng = random.Random(3)
    for _ in range(200):
        jobs = [
            (rng.randint(0, 20), rng.randint(0, 6), rng.randint(-3, 20))
            for _ in range(rng.randint(1, 7))
        ]
        expected = max(
            min(r for r, _, _ in some) + sum(p for _, p, _ in some) + min(q for _, _, q in some)
            for size in range(1, len(jobs) + 1)
            for some in combinations(jobs, size)
        )
        assert one_machine_bound(jobs) == expected


def test_less_memory_and_more_delay_never_lower_the_bound() -> None:
    values = [schedule_bound(pipeline(4, 12, live=live)).value for live in range(1, 9)]
    assert values == sorted(values, reverse=True) and values[0] > values[-1]
    values = [
        schedule_bound(pipeline(4, 12, slow={1: (latency, 5)})).value
        for latency in range(0, 200, 20)
    ]
    assert values == sorted(values) and values[0] < values[-1]


def test_a_busy_link_is_a_bottleneck() -> None:
    """Ten transfers of 500 µs each way: 20 + 10 · 500, F and B there, 500 back, B and W."""
    problem = pipeline(2, 10, slow={0: (0, 500)}, live=10)
    assert schedule_bound(problem).value == 20 + 10 * 500 + 20 + 20 + 500 + 20 + 20
