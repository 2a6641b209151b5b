"""What binds a plan: its critical path, the links that it waits for, and the memory that is left.

Everything is priced by the checker.  ``Z`` is the longest path of the event graph, a maximum of
sums with non-negative coefficients.  So along one longest path a duration with coefficient ``c``
that grows by ``x`` µs costs at least ``c·x``, and one that shrinks by ``x`` saves at most ``c·x``,
as long as links that several boundaries share keep the order of the plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from planner.check import (
    Price,
    StageMemory,
    chunk_units,
    dot,
    durations_of_layout,
    memory_to_json,
    price_layout,
)
from planner.cost.coefficients import CaseCoefficients, case_coefficients
from planner.explanation.resources import with_bandwidth, with_delay
from planner.instance.schema import Instance
from planner.layout import Layout, used_links
from planner.pipeline.event_graph import Duration, EventGraph, event_graph
from planner.pipeline.link_orders import LinkOrders
from planner.pipeline.schedules import SCHEDULES, chunk_devices
from planner.problem import Problem

UNLIMITED = 1e6
"""A link of so many times its capacity takes next to no time for what crosses it."""

TRAFFIC = {
    "pp": ("delay", "occupancy", "port", "service", "latency"),
    "dp": ("start", "end"),
}
"""Durations of the event graph by the class of traffic that they wait for."""


class PathTerm(NamedTuple):
    """One duration on the critical path.

    ``kind`` is that of the event graph: ``F``, ``B``, ``W``, ``delay``, ``occupancy``, ``start``,
    ``end``, and where transfers wait for each other on a shared link ``port``, ``service``,
    ``latency``.  ``chunk`` is None for all but ops, ``to_stage`` for all but transfers, ``link``
    for all but ``service`` and ``latency``.
    """

    kind: str
    stage: int
    to_stage: int | None
    chunk: int | None
    link: str | None
    sites: tuple[str, ...]
    """Sites whose GPUs need the whole duration of an op; for the others, all that run the stage."""
    sensitivity: int
    """How often it lies on the path: µs of ``Z`` per µs of the duration."""
    duration_us: int

    @property
    def total_us(self) -> int:
        """What it adds to ``Z``."""
        return self.sensitivity * self.duration_us

    def to_json(self) -> dict[str, Any]:
        """One row of the document."""
        return {
            "kind": self.kind,
            "stage": self.stage,
            "to_stage": self.to_stage,
            "chunk": self.chunk,
            "link": self.link,
            "sites": list(self.sites),
            "sensitivity": self.sensitivity,
            "duration_s": self.duration_us / 1e6,
            "total_s": self.total_us / 1e6,
        }


class LinkUse(NamedTuple):
    """What one class of traffic on one link, both ways, costs this plan."""

    link: str
    source: str
    target: str
    traffic: str
    protocols: tuple[str, ...]
    """There and back, where the link carries the class."""
    without_capacity_limit_us: int
    """``Z`` would be so much smaller if the link had no capacity limit for this class."""
    without_delay_us: int
    """``Z`` would be so much smaller if the link had no delay for this class."""

    def to_json(self) -> dict[str, Any]:
        """One row of the document."""
        return {
            "link": self.link,
            "from": self.source,
            "to": self.target,
            "class": self.traffic,
            "protocols": list(self.protocols),
            "capacity_costs_s": self.without_capacity_limit_us / 1e6,
            "delay_costs_s": self.without_delay_us / 1e6,
        }


@dataclass(frozen=True)
class Binding:
    """Why the iteration of a plan takes as long as it does.

    Attributes
    ----------
    time_us, fixed_us
        ``Z``, and the part of it that no plan changes.
    breakdown_us
        ``Z`` by cause, as the checker gives it.
    path
        The critical path, the largest share first; its sum and ``fixed_us`` make ``Z``.
    stage_us
        µs of ops on the critical path, by stage.
    links
        Links in use by class of traffic, the costliest first.
    memory
        Memory of every stage and site, the fullest first.
    tight_share
        Rows that leave less than this share of their limit are tight.
    """

    time_us: int
    fixed_us: int
    breakdown_us: dict[str, int]
    path: tuple[PathTerm, ...]
    stage_us: dict[int, int]
    links: tuple[LinkUse, ...]
    memory: tuple[StageMemory, ...]
    tight_share: float

    def to_json(self) -> dict[str, Any]:
        """The ``binding`` part of the document."""
        memory = memory_to_json(self.memory, self.tight_share)
        return {
            "breakdown": {name: us / 1e6 for name, us in self.breakdown_us.items()},
            "fixed_s": self.fixed_us / 1e6,
            "critical_path": [term.to_json() for term in self.path],
            "compute_by_stage": [
                {"stage": stage, "time_s": us / 1e6} for stage, us in self.stage_us.items()
            ],
            "links": [use.to_json() for use in self.links],
            "memory": [
                row | {"free_bytes": row["limit_bytes"] - row["peak_bytes"]} for row in memory
            ],
        }


def binding_of(instance: Instance, layout: Layout) -> Binding:
    """What binds a plan that the checker accepts.

    Parameters
    ----------
    instance
        The training job.
    layout
        The plan in index form.
    """
    problem = Problem(instance)
    co = case_coefficients(problem, layout.degrees)
    price = price_layout(problem, co, layout)
    path = _path(problem, co, layout, price)
    stages: dict[int, int] = {}
    for term in path:
        if term.chunk is not None:
            stages[term.stage] = stages.get(term.stage, 0) + term.total_us
    return Binding(
        time_us=price.time_us,
        fixed_us=co.fixed_us,
        breakdown_us=price.breakdown_us,
        path=path,
        stage_us=dict(sorted(stages.items())),
        links=_links(problem, co, layout, price),
        memory=tuple(
            sorted(price.memory, key=lambda row: (row.limit_mib - row.peak_mib, row.stage))
        ),
        tight_share=instance.tight_share,
    )


def _path(
    problem: Problem, co: CaseCoefficients, layout: Layout, price: Price
) -> tuple[PathTerm, ...]:
    degrees = layout.degrees
    devices = chunk_devices(layout.schedule, degrees.pp, degrees.virtual_stages)
    terms = []
    for key, count in price.critical_path.items():
        chunk = to_stage = link = None
        if isinstance(key.index, tuple):
            stage, to_stage = key.index[:2]
            if key.kind in ("service", "latency"):
                link = problem.links[key.index[2]].name
        elif key.kind in ("start", "end"):
            stage = key.index
        else:
            stage, chunk = devices[key.index], key.index
        slowest = chunk is not None
        sites = _slowest(problem, co, layout, key, stage) if slowest else layout.hosts(stage)
        names = tuple(problem.sites[d].name for d in sites)
        duration = price.durations[key]
        terms.append(PathTerm(key.kind, stage, to_stage, chunk, link, names, count, duration))
    return tuple(sorted(terms, key=lambda term: -term.total_us))


def _slowest(
    problem: Problem, co: CaseCoefficients, layout: Layout, key: Duration, stage: int
) -> tuple[int, ...]:
    """Sites of a stage whose GPUs need longest for an op."""
    assert isinstance(key.index, int)
    split = SCHEDULES[layout.schedule].split_backward
    name = {
        "F": "forward",
        "B": "input_gradient" if split else "backward",
        "W": "weight_gradient",
    }[key.kind]
    units = chunk_units(co, layout.layers)[key.index]
    times = {
        d: dot(units, getattr(co.ops(problem.sites[d].gpu_class, layout.option), name))
        for d in layout.hosts(stage)
    }
    return tuple(d for d, time_us in times.items() if time_us == max(times.values()))


def _links(
    problem: Problem, co: CaseCoefficients, layout: Layout, price: Price
) -> tuple[LinkUse, ...]:
    graph = price.orders or event_graph(layout.template(co.num_microbatches))
    length = price.time_us - co.fixed_us
    by_class = dict(
        zip(
            TRAFFIC,
            used_links(problem, layout.replicas, layout.flows, layout.sync),
            strict=True,
        )
    )
    uses = []
    for link in sorted({way // 2 for ways in by_class.values() for way in ways}):
        wide = _durations(with_bandwidth(problem.instance, link, UNLIMITED), layout)
        near = _durations(with_delay(problem.instance, link, 0.0), layout)
        given = problem.instance.cluster.links[link]
        for column, (traffic, ways) in enumerate(by_class.items()):
            used = [way for way in (2 * link, 2 * link + 1) if way in ways]
            if used:
                uses.append(
                    LinkUse(
                        given.name,
                        given.source,
                        given.target,
                        traffic,
                        tuple(dict.fromkeys(layout.protocols[way][column] for way in used)),
                        length - _length(graph, price, wide, traffic),
                        length - _length(graph, price, near, traffic),
                    )
                )
    return tuple(
        sorted(uses, key=lambda use: -max(use.without_capacity_limit_us, use.without_delay_us))
    )


def _durations(instance: Instance, layout: Layout) -> dict[Duration, int]:
    problem = Problem(instance)
    return durations_of_layout(problem, case_coefficients(problem, layout.degrees), layout)


def _length(
    graph: EventGraph | LinkOrders, price: Price, changed: dict[Duration, int], traffic: str
) -> int:
    """The longest path where one class of traffic has other durations."""
    kinds = TRAFFIC[traffic]
    return graph.evaluate(
        {
            key: changed[key] if key.kind in kinds else value
            for key, value in price.durations.items()
        }
    )
