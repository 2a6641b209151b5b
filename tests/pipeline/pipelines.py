"""Scenarios of one pipeline: a cell a stage, a link for each directed pair of stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from planner.pipeline.ops import Op, OpKind
from planner.pipeline.schedules import Template, chunk_devices, device_orders
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
