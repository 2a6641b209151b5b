"""What a plan sends over every link, for the picture of the cluster and its table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from planner.layout import Layout, used_links
from planner.problem import Problem
from planner.simulation.measures import LinkUse, Simulation

GBPS = 8e-9
"""Gb/s of one byte/s."""


class Direction(NamedTuple):
    """One direction of a link.

    ``protocols`` are empty where nothing is sent; bytes and utilisation are those of one simulated
    iteration and None where it was not simulated.
    """

    source: str
    target: str
    capacity_gbps: float
    protocols: tuple[str, ...]
    pipeline: bool
    synchronisation: bool
    pipeline_bytes: float | None
    synchronisation_bytes: float | None
    utilisation: float | None


@dataclass(frozen=True)
class LinkTraffic:
    """A link in both directions; ``number`` counts from 1 in the order of the instance."""

    number: int
    name: str
    source: str
    target: str
    delay_us: float
    distance_km: float
    directions: tuple[Direction, Direction]

    @property
    def pipeline(self) -> bool:
        """Whether activations or their gradients pass in some direction."""
        return any(d.pipeline for d in self.directions)

    @property
    def synchronisation(self) -> bool:
        """Whether gradients or parameters pass in some direction."""
        return any(d.synchronisation for d in self.directions)

    @property
    def utilisation(self) -> float | None:
        """Share of the iteration in which the busier direction sends."""
        known = [d.utilisation for d in self.directions if d.utilisation is not None]
        return max(known, default=None)

    @property
    def sent_bytes(self) -> float | None:
        """Bytes in both directions together."""
        parts = [
            part
            for d in self.directions
            for part in (d.pipeline_bytes, d.synchronisation_bytes)
            if part is not None
        ]
        return sum(parts) if parts else None


def link_traffic(
    problem: Problem, layout: Layout | None, simulation: Simulation | None
) -> tuple[LinkTraffic, ...]:
    """Return every link of the instance with what the plan sends over it.

    Parameters
    ----------
    problem
        The instance.
    layout
        The plan; None = nothing is sent.
    simulation
        One iteration of it; None = how much is sent is not known. What a link sends is the time in
        which it served a class of traffic × the rate of the protocol.
    """
    pipeline: frozenset[int] = frozenset()
    data: frozenset[int] = frozenset()
    if layout is not None:
        pipeline, data = used_links(problem, layout.replicas, layout.flows, layout.sync)
    served = {}
    if simulation is not None:
        served = {(use.link, use.source, use.target): use for use in simulation.links}
    found = []
    for index in range(0, len(problem.links), 2):
        there = problem.links[index]
        directions = [
            _direction(problem, layout, i, i in pipeline, i in data, served, simulation is not None)
            for i in (index, index + 1)
        ]
        found.append(
            LinkTraffic(
                index // 2 + 1,
                there.name,
                there.source,
                there.target,
                there.delay_s * 1e6,
                there.distance_km,
                (directions[0], directions[1]),
            )
        )
    return tuple(found)


def _direction(
    problem: Problem,
    layout: Layout | None,
    index: int,
    pipeline: bool,
    data: bool,
    served: dict[tuple[str, str, str], LinkUse],
    simulated: bool,
) -> Direction:
    link = problem.links[index]
    chosen = layout.protocols[index] if layout is not None and (pipeline or data) else ("", "")
    rates = [problem.transports[index][p].bytes_per_s if p else 0.0 for p in chosen]
    use = served.get((link.name, link.source, link.target))
    seconds: Sequence[float] = (use.pipeline_s, use.synchronisation_s) if use else (0.0, 0.0)
    named = [p for p, carries in zip(chosen, (pipeline, data), strict=True) if carries]
    return Direction(
        source=link.source,
        target=link.target,
        capacity_gbps=link.capacity_bytes_per_s * GBPS,
        protocols=tuple(dict.fromkeys(named)),
        pipeline=pipeline,
        synchronisation=data,
        pipeline_bytes=seconds[0] * rates[0] if simulated else None,
        synchronisation_bytes=seconds[1] * rates[1] if simulated else None,
        utilisation=(use.utilisation if use else 0.0) if simulated else None,
    )
