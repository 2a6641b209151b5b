"""Published and derived closed forms of the iteration time.

Section numbers are those of cost_model.md.
"""

from __future__ import annotations

from math import ceil

import pytest

from planner.pipeline.event_graph import Duration, EventGraph, event_graph
from planner.pipeline.schedules import Template


def graph_of(
    schedule: str,
    pp: int,
    m: int,
    v: int = 1,
    run: int | None = None,
    extra: tuple[int, ...] | None = None,
) -> EventGraph:
    return event_graph(Template(schedule, pp, v, m, run, extra or (0,) * pp))


def values(
    graph: EventGraph,
    forward: int,
    backward: int,
    weight: int = 0,
    delay: dict[int, int] | None = None,
    occupancy: dict[int, int] | None = None,
) -> dict[Duration, int]:
    """Equal op times; ``delay`` and ``occupancy`` per boundary i|i+1, both directions."""
    kinds = {"F": forward, "B": backward, "W": weight, "start": 0, "end": 0}
    result = {}
    for variable in graph.variables:
        if isinstance(variable.index, tuple):
            boundary = min(variable.index)
            per_boundary = delay if variable.kind == "delay" else occupancy
            result[variable] = (per_boundary or {}).get(boundary, 0)
        else:
            result[variable] = kinds[variable.kind]
    return result


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("forward", "backward"), [(1, 2), (3, 5), (4, 4), (7, 2)])
def test_gpipe_and_1f1b(schedule: str, forward: int, backward: int) -> None:
    """Section 3.1."""
    for pp in range(1, 9):
        for m in (1, 2, pp, 2 * pp, 3 * pp + 1):
            graph = graph_of(schedule, pp, m)
            expected = (m + pp - 1) * (forward + backward)
            assert graph.evaluate(values(graph, forward, backward)) == expected


def test_imbalanced_1f1b() -> None:
    """Section 6 is an upper estimate; the slowest stage with the way to it and back a bound."""
    graph = graph_of("1f1b", 4, 12)
    chosen = values(graph, 3, 5)
    chosen[Duration("F", 2)] = 5
    chosen[Duration("B", 2)] = 9
    measured = graph.evaluate(chosen)
    assert 12 * 14 + 2 * 8 <= measured <= 3 * 8 + 14 + 11 * 14


@pytest.mark.parametrize("pp", range(2, 9))
def test_one_slow_boundary_of_1f1b(pp: int) -> None:
    """Section 3.3, item 1."""
    for boundary in range(pp - 1):
        for m in (pp, 2 * pp, 3 * pp + 1):
            graph = graph_of("1f1b", pp, m)
            for delay in (0, 1, 2, 3, 10, 40):
                measured = graph.evaluate(values(graph, 1, 2, delay={boundary: delay}))
                turns = ceil((m - (pp - 2 - boundary)) / 2)
                assert measured == (m + pp - 1) * 3 + delay * 2 * turns


@pytest.mark.parametrize("pp", [4, 8])
@pytest.mark.parametrize("delay", [1, 3, 4, 7, 12, 30])
def test_extra_warm_up_hides_a_slow_boundary(pp: int, delay: int) -> None:
    """Section 3.3, item 2: from ceil(2 delay / (F + B)) on only 2 delays are left."""
    m = 12 * pp
    threshold = ceil(2 * delay / 3)
    for boundary in range(pp - 1):
        for more in (threshold - 1, threshold, threshold + 2):
            extra = (more,) * (boundary + 1) + (0,) * (pp - boundary - 1)
            graph = graph_of("1f1b", pp, m, extra=extra)
            measured = graph.evaluate(values(graph, 1, 2, delay={boundary: delay}))
            hidden = (m + pp - 1) * 3 + 2 * delay
            assert (measured == hidden) == (more >= threshold)
            assert measured >= hidden


@pytest.mark.parametrize(
    ("slow", "twice_period"), [((3,), 12), ((3, 4), 14), ((2, 3, 4), 15), ((1, 5), 12)]
)
def test_period_with_several_slow_boundaries(slow: tuple[int, ...], twice_period: int) -> None:
    """Section 3.3, item 6, with t = delay = 3: the worst interval of stages sets the period."""

    def measured(m: int) -> int:
        graph = graph_of("1f1b", 8, m)
        return graph.evaluate(values(graph, 1, 2, delay=dict.fromkeys(slow, 3)))

    more = 120
    assert 2 * (measured(200 + more) - measured(200)) == twice_period * more


def test_gpipe_over_a_slow_boundary() -> None:
    """Section 3.3, item 4: two delays, and what the occupancy exceeds the op."""
    for occupancy in (0, 2, 3, 5, 9):
        graph = graph_of("gpipe", 4, 10)
        chosen = values(graph, 3, 3, delay={1: 7}, occupancy={1: occupancy})
        assert graph.evaluate(chosen) == 13 * 6 + 2 * 7 + 2 * 9 * max(0, occupancy - 3)


@pytest.mark.parametrize(("forward", "backward"), [(1, 2), (2, 2), (3, 5)])
def test_interleaved(forward: int, backward: int) -> None:
    """Section 3.1, per-chunk times: m v (F + B) + (p - 1)(F + B)."""
    for pp in range(1, 7):
        for v in (2, 3, 4):
            for m in (pp, 2 * pp, 4 * pp):
                graph = graph_of("interleaved", pp, m, v, run=pp)
                expected = (m * v + pp - 1) * (forward + backward)
                assert graph.evaluate(values(graph, forward, backward)) == expected


@pytest.mark.parametrize(("pp", "run", "m"), [(3, 4, 8), (4, 6, 12), (4, 8, 8), (2, 7, 14)])
def test_longer_runs_cost_nothing_without_delays(pp: int, run: int, m: int) -> None:
    for v in (2, 3):
        graph = graph_of("interleaved", pp, m, v, run=run)
        assert graph.evaluate(values(graph, 1, 2)) == (m * v + pp - 1) * 3


@pytest.mark.parametrize(
    ("forward", "backward", "weight"), [(1, 1, 1), (2, 2, 1), (5, 6, 4), (3, 4, 3)]
)
def test_zb_h1(forward: int, backward: int, weight: int) -> None:
    """Section 3.1."""
    for pp in range(1, 9):
        for m in (pp, 2 * pp, 5 * pp + 1):
            graph = graph_of("zb_h1", pp, m)
            expected = m * (forward + backward + weight)
            expected += (pp - 1) * (forward + backward - weight)
            assert graph.evaluate(values(graph, forward, backward, weight)) == expected


@pytest.mark.parametrize(("forward", "backward", "weight"), [(2, 2, 1), (5, 8, 4), (3, 7, 3)])
def test_zb_h2(forward: int, backward: int, weight: int) -> None:
    """Section 3.1, where B >= 2 W: the drain of stage 0 is last."""
    for pp in range(1, 9):
        for m in (2 * pp, 3 * pp, 5 * pp + 1):
            graph = graph_of("zb_h2", pp, m)
            expected = m * (forward + backward + weight)
            expected += (pp - 1) * (forward + backward - 2 * weight)
            assert graph.evaluate(values(graph, forward, backward, weight)) == expected


@pytest.mark.parametrize(("schedule", "v"), [("zb_h2", 1), ("zbv", 2)])
def test_no_bubble_on_any_device_where_all_ops_are_equal(schedule: str, v: int) -> None:
    """Zero Bubble, arXiv 2401.10241: device s starts s ops late and never waits after that."""
    for pp in range(1, 9):
        for m in (2 * pp, 3 * pp, 5 * pp + 1):
            graph = graph_of(schedule, pp, m, v)
            chosen = values(graph, 1, 1, 1)
            assert graph.evaluate(chosen) == 3 * m * v + pp - 1
            for device in range(pp):
                ops = [entry for entry in graph.timeline(chosen) if entry.device == device]
                assert ops[-1].end - ops[0].start == 3 * m * v


def test_dualpipe_v() -> None:
    """DualPipe README: bubble (PP/2 - 1)(F&B + B - 3 W), B whole, F&B = F + B run in sequence."""
    for pp in range(1, 9):
        for m in (2 * pp, 3 * pp, 5 * pp + 1):
            graph = graph_of("dualpipe_v", pp, m, 2)
            measured = graph.evaluate(values(graph, 1, 1, 1))
            readme = 6 * m + (pp - 1) * ((1 + 2) + 2 - 3)
            assert 6 * m + pp - 1 <= measured <= readme


def test_dora_fills_the_drain_of_the_interleaved_order() -> None:
    """The interleaved order has a bubble of 3 (pp - 1) here, and pp - 1 is the least possible."""
    for pp in range(2, 9):
        for v in (2, 3):
            for m in (2 * pp, 4 * pp):
                graph = graph_of("dora", pp, m, v, run=pp)
                bubble = graph.evaluate(values(graph, 1, 1, 1)) - 3 * m * v
                assert pp - 1 <= bubble <= 2 * (pp - 1)


def test_a_start_and_an_end_are_on_the_path_of_their_device() -> None:
    graph = graph_of("1f1b", 3, 4)
    chosen = values(graph, 1, 2)
    chosen[Duration("start", 0)] = 10
    chosen[Duration("end", 0)] = 5
    chosen[Duration("end", 2)] = 6
    assert graph.evaluate(chosen) == 15 + 6 * 3
    chosen[Duration("end", 2)] = 100
    assert graph.evaluate(chosen) == 10 + 2 * 1 + 4 * 3 + 100


@pytest.mark.parametrize("delay", [1, 3, 8, 20])
def test_extra_warm_up_hides_a_slow_boundary_of_zb_h1(delay: int) -> None:
    """Section 3.3, item 2, holds with a split backward too; without extra it costs far more."""
    pp, m, boundary = 4, 48, 1
    plain = graph_of("zb_h1", pp, m)
    ideal = plain.evaluate(values(plain, 1, 1, 1))
    slow = plain.evaluate(values(plain, 1, 1, 1, delay={boundary: delay}))
    more = ceil(2 * delay / 3)
    eager = graph_of("zb_h1", pp, m, extra=(more, more, 0, 0))
    hidden = eager.evaluate(values(eager, 1, 1, 1, delay={boundary: delay}))
    assert hidden == ideal + 2 * delay
    assert slow > ideal + delay * m / 2
