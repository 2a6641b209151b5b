"""Scenarios of one pipeline: a cell a stage, a link for each directed pair of stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hypothesis import strategies as st

from planner.pipeline.ops import Op, OpKind
from planner.pipeline.schedules import (
    SCHEDULES,
    Template,
    chunk_devices,
    device_orders,
    legal_run_lengths,
)
from planner.pipeline.simulator import Cell, Hop, Run, Scenario, Send, simulate_scenario

Edge = tuple[int, int]
Ticks = Callable[[OpKind, int], int]


def pipeline(
    template: Template,
    ticks: Ticks,
    hops: Mapping[Edge, tuple[int, int]] | None = None,
    *,
    orders: Sequence[Sequence[Op]] | None = None,
    blocking: bool = False,
) -> Run:
    """Simulate a template; ``hops`` are service and latency by directed pair of stages."""
    devices = chunk_devices(template.schedule, template.pp, template.v)
    edges = {edge: i for i, edge in enumerate(sorted(hops or {}))}
    kinds: tuple[OpKind, ...] = ("F", "B", "W") if template.rules.split_backward else ("F", "B")
    cells = []
    for s in range(template.pp):
        own = [k for k, device in enumerate(devices) if device == s]
        sends: dict[tuple[OpKind, int], Send] = {}
        for k in own:
            for kind, target in (("F", k + 1), ("B", k - 1)):
                if 0 <= target < len(devices) and devices[target] != s:
                    edge = (s, devices[target])
                    route = (Hop(edges[edge], *(hops or {})[edge]),) if edge in edges else ()
                    sends[kind, k] = Send(devices[target], route)  # type: ignore[index]
        cells.append(Cell(s, {(kind, k): ticks(kind, k) for kind in kinds for k in own}, sends))
    made = device_orders(template) if orders is None else orders
    return simulate_scenario(Scenario(made, cells, len(edges), blocking=blocking), record=True)


def both_ways(boundaries: Mapping[int, tuple[int, int]]) -> dict[Edge, tuple[int, int]]:
    """Service and latency of boundaries ``i | i + 1``, in both directions."""
    return {edge: hop for i, hop in boundaries.items() for edge in ((i, i + 1), (i + 1, i))}


@st.composite
def templates(draw: st.DrawFn) -> Template:
    """Any template of a few devices and microbatches."""
    rules = SCHEDULES[draw(st.sampled_from(sorted(SCHEDULES)))]
    pp = draw(st.integers(1, 5))
    v = draw(st.integers(rules.min_chunks, rules.max_chunks or 4))
    m = draw(st.integers(pp if rules.has_run_length else 1, 10))
    run = draw(st.sampled_from(legal_run_lengths(pp, m))) if rules.has_run_length else None
    extra = [0] * pp
    if rules.has_extra_warmup:
        extra = sorted(draw(st.lists(st.integers(0, 5), min_size=pp, max_size=pp)), reverse=True)
    return Template(rules.name, pp, v, m, run, tuple(extra))
