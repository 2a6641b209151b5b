"""Op orders: complete, free of deadlock, and as their published rules say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from planner.pipeline.event_graph import EventGraph
from planner.pipeline.schedules import (
    SCHEDULES,
    Op,
    Template,
    chunk_devices,
    device_orders,
    legal_run_lengths,
)


def templates(schedule: str, most_pp: int, most_v: int, most_m: int) -> Iterator[Template]:
    rules = SCHEDULES[schedule]
    for pp in range(1, most_pp + 1):
        for v in range(1, most_v + 1):
            if not rules.allows_chunks(v):
                continue
            extras = [(0,) * pp]
            if rules.has_extra_warmup:
                extras += [(2,) * pp, tuple(range(pp))[::-1], (5,) + (0,) * (pp - 1)]
            for m in range(1, most_m + 1):
                runs: tuple[int | None, ...] = (None,)
                if rules.has_run_length:
                    runs = legal_run_lengths(pp, m)
                for run in runs:
                    for extra in extras:
                        yield Template(schedule, pp, v, m, run, extra)


def short(order: tuple[Op, ...]) -> str:
    return " ".join(f"{op.kind}{op.chunk}.{op.microbatch}" for op in order)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_op_once_on_its_device_and_no_deadlock(schedule: str) -> None:
    kinds = "FBW" if SCHEDULES[schedule].split_backward else "FB"
    for template in templates(schedule, 6, 4, 12):
        devices = chunk_devices(schedule, template.pp, template.v)
        orders = device_orders(template)
        assert len(orders) == template.pp
        for device, order in enumerate(orders):
            expected = {
                (kind, chunk, n)
                for kind in kinds
                for chunk, host in enumerate(devices)
                if host == device
                for n in range(template.m)
            }
            assert set(order) == expected
            assert len(order) == len(expected)
        graph = EventGraph(template)
        ones = dict.fromkeys(graph.variables, 1)
        assert len(graph.timeline(ones)) == len(kinds) * template.chunks * template.m


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_microbatches_of_one_kind_and_chunk_run_in_order(schedule: str) -> None:
    for template in templates(schedule, 4, 3, 9):
        for order in device_orders(template):
            seen: Counter[tuple[str, int]] = Counter()
            for kind, chunk, n in order:
                assert seen[kind, chunk] == n
                seen[kind, chunk] += 1


def test_orders_of_small_pipelines() -> None:
    def order(schedule: str, v: int, m: int, run: int | None, device: int) -> str:
        return short(device_orders(Template(schedule, 2, v, m, run, (0, 0)))[device])

    assert order("gpipe", 1, 2, None, 1) == "F1.0 F1.1 B1.0 B1.1"
    assert order("1f1b", 1, 3, None, 0) == "F0.0 F0.1 B0.0 F0.2 B0.1 B0.2"
    assert order("1f1b", 1, 3, None, 1) == "F1.0 B1.0 F1.1 B1.1 F1.2 B1.2"
    assert order("interleaved", 2, 2, 2, 1) == "F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 B1.0 B1.1"
    assert order("zb_h1", 1, 3, None, 1) == "F1.0 B1.0 F1.1 B1.1 W1.0 F1.2 B1.2 W1.1 W1.2"
    assert order("zb_h2", 1, 3, None, 0) == "F0.0 F0.1 F0.2 B0.0 W0.0 B0.1 W0.1 B0.2 W0.2"


def test_megatron_warm_up_of_the_interleaved_order() -> None:
    for pp, v, m, run in ((4, 2, 8, 4), (4, 3, 8, 8), (2, 4, 6, 3)):
        for device, order in enumerate(
            device_orders(Template("interleaved", pp, v, m, run, (0,) * pp))
        ):
            first_backward = next(i for i, op in enumerate(order) if op.kind == "B")
            megatron = 2 * (pp - device - 1) + (v - 1) * run
            assert first_backward == min(m * v, megatron + 1)


def test_chunk_maps() -> None:
    assert chunk_devices("interleaved", 3, 2) == (0, 1, 2, 0, 1, 2)
    assert chunk_devices("zbv", 3, 2) == (0, 1, 2, 2, 1, 0)
    assert chunk_devices("gpipe", 2, 1) == (0, 1)


def test_legal_run_lengths() -> None:
    assert legal_run_lengths(4, 16) == (4, 8, 16)
    assert legal_run_lengths(4, 15) == (5, 15)
    assert legal_run_lengths(4, 3) == ()


@pytest.mark.parametrize(
    ("schedule", "pp", "v", "m", "run", "extra", "message"),
    [
        ("pipedream", 2, 1, 4, None, (0, 0), "unknown schedule"),
        ("1f1b", 0, 1, 4, None, (), "at least 1"),
        ("1f1b", 2, 1, 0, None, (0, 0), "at least 1"),
        ("1f1b", 2, 2, 4, None, (0, 0), "does not allow v"),
        ("zbv", 2, 1, 4, None, (0, 0), "does not allow v"),
        ("interleaved", 2, 1, 4, 2, (0, 0), "does not allow v"),
        ("interleaved", 2, 2, 4, None, (0, 0), "run length"),
        ("interleaved", 2, 2, 4, 3, (0, 0), "run length"),
        ("dora", 4, 2, 4, 2, (0,) * 4, "run length"),
        ("1f1b", 2, 1, 4, 2, (0, 0), "no run length"),
        ("1f1b", 2, 1, 4, None, (0,), "length"),
        ("1f1b", 2, 1, 4, None, (0, 1), "increases"),
        ("zb_h1", 2, 1, 4, None, (0, -1), "negative"),
        ("gpipe", 2, 1, 4, None, (1, 0), "no extra warm-up"),
    ],
)
def test_illegal_templates_are_refused(
    schedule: str,
    pp: int,
    v: int,
    m: int,
    run: int | None,
    extra: tuple[int, ...],
    message: str,
) -> None:
    with pytest.raises(ValueError, match=message):
        Template(schedule, pp, v, m, run, extra)


@pytest.mark.parametrize(("schedule", "v"), [("pipedream", 1), ("zbv", 3)])
def test_chunk_map_of_an_illegal_schedule_is_refused(schedule: str, v: int) -> None:
    with pytest.raises(ValueError, match=schedule):
        chunk_devices(schedule, 2, v)
