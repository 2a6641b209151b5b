"""Closed forms of pipelines with slow boundaries, in the event simulation.

Derivations and their errors: ``docs/schedules.md``.  ``bench/closed_forms.py`` runs the whole grid.
"""

from __future__ import annotations

from math import ceil

import pytest

from planner.pipeline.schedules import Template
from tests.pipeline.pipelines import both_ways, pipeline

FORWARD, BACKWARD = 1, 2


def ticks(kind: str, _chunk: int) -> int:
    return FORWARD if kind == "F" else BACKWARD


def simulated(
    pp: int,
    m: int,
    slow: dict[int, tuple[int, int]],
    extra: tuple[int, ...] | None = None,
) -> int:
    template = Template("1f1b", pp, 1, m, None, extra or (0,) * pp)
    return pipeline(template, ticks, both_ways(slow)).end


@pytest.mark.parametrize("pp", [*range(2, 9), 11, 16])
def test_one_slow_boundary(pp: int) -> None:
    """T = (m + p - 1)(F + B) + 2 d ceil((m - (p - 2 - i)) / 2)."""
    for boundary in sorted({0, (pp - 1) // 2, pp - 2}):
        for m in (pp, pp + 1, 3 * pp, 8 * pp):
            for delay in (0, 1, 3, 10 * (FORWARD + BACKWARD)):
                turns = ceil((m - (pp - 2 - boundary)) / 2)
                expected = (m + pp - 1) * (FORWARD + BACKWARD) + 2 * delay * turns
                assert simulated(pp, m, {boundary: (0, delay)}) == expected


@pytest.mark.parametrize("pp", [2, 5, 8])
@pytest.mark.parametrize("delay", [1, 2, 3, 5, 9, 30])
def test_threshold_of_the_warm_up(pp: int, delay: int) -> None:
    """From ceil(2 d / (F + B)) extra microbatches on, 2 d are left of the delay; not before."""
    m = 12 * pp + 20
    threshold = ceil(2 * delay / (FORWARD + BACKWARD))
    hidden = (m + pp - 1) * (FORWARD + BACKWARD) + 2 * delay
    for boundary in sorted({0, pp - 2}):
        for more in (threshold - 1, threshold, threshold + 1):
            extra = (more,) * (boundary + 1) + (0,) * (pp - boundary - 1)
            found = simulated(pp, m, {boundary: (0, delay)}, extra)
            assert (found == hidden) == (more >= threshold)


@pytest.mark.parametrize(
    ("slow", "extra"),
    [
        ((3,), (0,) * 8),
        ((3, 4), (0,) * 8),
        ((2, 3, 4), (0,) * 8),
        ((1, 5), (0,) * 8),
        ((1, 5), (2, 2, 1, 1, 1, 1, 0, 0)),
        ((2, 3), (3, 3, 3, 1, 0, 0, 0, 0)),
        ((0, 2, 4, 6), (0,) * 8),
    ],
)
@pytest.mark.parametrize("delay", [1, 3, 7])
def test_the_worst_interval_sets_the_period(
    slow: tuple[int, ...], extra: tuple[int, ...], delay: int
) -> None:
    """Period = max over a <= b of (sum t + 2 sum d inside) / (b - a + 1 + eps_a - eps_b)."""
    pp, t = 8, FORWARD + BACKWARD
    period = max(
        ((b - a + 1) * t + 2 * delay * sum(a <= i < b for i in slow))
        / (b - a + 1 + extra[a] - extra[b])
        for a in range(pp)
        for b in range(a, pp)
    )
    hops = dict.fromkeys(slow, (0, delay))
    cycle = 840  # a multiple of every number of microbatches that an interval can hold
    found = simulated(pp, 200 + cycle, hops, extra) - simulated(pp, 200, hops, extra)
    assert found == pytest.approx(period * cycle, abs=1e-6)


def test_the_occupancy_is_a_floor_of_the_period() -> None:
    """A link that is busy for longer than the stages sets the pace."""
    pp, service = 4, 5
    extra = (8, 8, 0, 0)
    found = simulated(pp, 200, {1: (service, 2)}, extra) - simulated(
        pp, 100, {1: (service, 2)}, extra
    )
    assert found == 100 * service


def test_one_microbatch_takes_the_sum_of_the_stages() -> None:
    """No period hides anything: m = 1 gives the sum over the stages, not m times the slowest."""
    template = Template("1f1b", 4, 1, 1, None, (0,) * 4)
    run = pipeline(template, lambda kind, k: (k + 1) * (1 if kind == "F" else 2))
    assert run.end == (1 + 2 + 3 + 4) * 3
    assert run.end != 1 * 4 * 3


@pytest.mark.parametrize(
    ("schedule", "pp", "v", "m", "run", "transfers"),
    [
        ("1f1b", 4, 1, 8, None, 2 * 3 * 8),
        ("interleaved", 4, 2, 8, 4, 2 * 7 * 8),
        ("interleaved", 4, 4, 8, 4, 2 * 15 * 8),
        ("dora", 4, 2, 8, 4, 2 * 7 * 8),
        ("zbv", 4, 2, 8, None, 4 * 3 * 8),
        ("dualpipe_v", 4, 2, 8, None, 4 * 3 * 8),
    ],
)
def test_number_of_transfers(
    schedule: str, pp: int, v: int, m: int, run: int | None, transfers: int
) -> None:
    """There and back over every boundary between chunks: 2 (p v - 1) m in a loop, 4 (p - 1) m in a
    V, whose turn stays on its stage."""
    template = Template(schedule, pp, v, m, run, (0,) * pp)
    edges = {(i, j): (1, 0) for i in range(pp) for j in range(pp) if abs(i - j) in (1, pp - 1)}
    found = pipeline(template, lambda kind, k: 1, edges)
    assert sum(found.transfer_busy) == transfers


def test_a_pipeline_lies_between_its_work_and_its_work_in_sequence() -> None:
    """With chunks too: not below the busiest stage, not above everything one after the other."""
    for schedule, v, run in (("1f1b", 1, None), ("interleaved", 2, 4), ("zbv", 2, None)):
        template = Template(schedule, 4, v, 8, run, (0,) * 4)
        edges = {(i, j): (2, 5) for i in range(4) for j in range(4) if abs(i - j) in (1, 3)}
        found = pipeline(template, lambda kind, k: 3 + k % 2, edges)
        busiest = max(
            sum(e - s for s, e in zip(a, b, strict=True))
            for a, b in zip(found.starts, found.ends, strict=True)
        )
        in_sequence = sum(
            e - s
            for a, b in zip(found.starts, found.ends, strict=True)
            for s, e in zip(a, b, strict=True)
        ) + 7 * sum(len(a) for a in found.starts)
        assert busiest <= found.end <= in_sequence


@pytest.mark.parametrize(("m", "legal"), [(10, False), (3, False), (12, True), (4, True)])
def test_interleaved_with_microbatches_that_make_no_whole_runs(m: int, legal: bool) -> None:
    """P = 4 with 10 or 3 microbatches has no run of 4; the right counts of steps with 12 and 4."""
    if not legal:
        with pytest.raises(ValueError, match="needs a run length"):
            Template("interleaved", 4, 2, m, 4, (0,) * 4)
        return
    found = pipeline(Template("interleaved", 4, 2, m, 4, (0,) * 4), lambda kind, k: 1)
    assert [len(starts) for starts in found.starts] == [2 * 2 * m] * 4
    assert found.end == 2 * (2 * m + 3)


def test_ten_microbatches_interleave_in_longer_runs() -> None:
    """A run is a divisor of m that is at least P: 5 or 10 for P = 4, m = 10."""
    for run in (5, 10):
        found = pipeline(Template("interleaved", 4, 2, 10, run, (0,) * 4), lambda kind, k: 1)
        assert found.end == 2 * (2 * 10 + 3)
