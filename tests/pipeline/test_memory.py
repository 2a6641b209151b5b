"""Live counts against the table of cost_model.md, section 2.5, and a replay of the orders."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.pipeline.memory import LiveVector, live_counts
from planner.pipeline.schedules import Template, chunk_devices, device_orders
from tests.pipeline.pipelines import templates


def peaks(
    schedule: str,
    pp: int,
    m: int,
    v: int = 1,
    run: int | None = None,
    extra: tuple[int, ...] | None = None,
) -> list[int]:
    """Most full and held chunk activations of every device."""
    template = Template(schedule, pp, v, m, run, extra or (0,) * pp)
    return [
        max(sum(vector.full) + sum(vector.held) for vector in vectors)
        for vectors in live_counts(template)
    ]


@pytest.mark.parametrize("pp", [1, 2, 4, 7])
def test_table_of_live_microbatches(pp: int) -> None:
    stages = range(pp)
    for m in (1, pp, 3 * pp, 4 * pp + 1):
        assert peaks("gpipe", pp, m) == [m] * pp
        assert peaks("1f1b", pp, m) == [min(m, pp - s) for s in stages]
        extra = tuple(2 * (pp - s) for s in stages)
        assert peaks("1f1b", pp, m, extra=extra) == [min(m, pp - s + extra[s]) for s in stages]
        assert peaks("zb_h1", pp, m) == [min(m, pp)] * pp
        assert peaks("zb_h2", pp, m) == [min(m, 2 * pp - 1)] * pp
    for m in (2 * pp, 4 * pp + 1):
        assert peaks("zbv", pp, m, 2) == [2 * pp] * pp
        assert max(peaks("dualpipe_v", pp, m, 2)) == 2 * pp + 1
    for v, m in product((2, 3), (pp, 3 * pp)):
        assert peaks("interleaved", pp, m, v, pp) == [
            min(m * v, 2 * (pp - s - 1) + (v - 1) * pp + 1) for s in stages
        ]
        assert peaks("dora", pp, m, v, pp) == [min(m * v, 2 * (pp - 1) + (v - 1) * pp + 1)] * pp
        assert max(peaks("interleaved", pp, m, v, m)) <= m * v


def test_vectors_of_small_pipelines() -> None:
    assert live_counts(Template("1f1b", 2, 1, 4, None, (1, 0))) == (
        (LiveVector((3,), (0,)),),
        (LiveVector((1,), (0,)),),
    )
    assert live_counts(Template("zb_h1", 2, 1, 4, None, (0, 0))) == (
        (LiveVector((2,), (0,)),),
        (LiveVector((1,), (1,)),),
    )
    assert live_counts(Template("interleaved", 2, 2, 4, 2, (0, 0)))[0] == (
        LiveVector((4, 1), (0, 0)),
        LiveVector((3, 2), (0, 0)),
    )


@settings(max_examples=200, deadline=None)
@given(templates(), st.data())
def test_vectors_give_the_peak_of_a_replay(template: Template, data: st.DataObject) -> None:
    devices = chunk_devices(template.schedule, template.pp, template.v)
    full = [data.draw(st.integers(0, 20)) for _ in devices]
    held = [data.draw(st.integers(0, size)) for size in full]
    split = template.rules.split_backward
    for device, order in enumerate(device_orders(template)):
        used = most = 0
        for kind, chunk, _ in order:
            if kind == "F":
                used += full[chunk]
            elif kind == "W":
                used -= held[chunk]
            else:
                used += (held[chunk] if split else 0) - full[chunk]
            most = max(most, used)
        assert used == 0
        local = [chunk for chunk, host in enumerate(devices) if host == device]
        assert most == max(
            sum(
                vector.full[i] * full[chunk] + vector.held[i] * held[chunk]
                for i, chunk in enumerate(local)
            )
            for vector in live_counts(template)[device]
        )


@settings(max_examples=100, deadline=None)
@given(templates())
def test_no_vector_covers_another(template: Template) -> None:
    for vectors in live_counts(template):
        for one, other in product(vectors, vectors):
            covers = all(a >= b for a, b in zip(one.full, other.full, strict=True)) and all(
                a + c >= b + d
                for a, c, b, d in zip(one.full, one.held, other.full, other.held, strict=True)
            )
            assert one is other or not covers
