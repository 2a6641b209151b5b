"""Path cuts: the event graph of a template as linear inequalities.

Every path of the event graph bounds the iteration time from below, so a cut is valid for all values
of the durations.  The cuts that matter are found by pricing plans and adding their longest paths;
a model with a subset of them is a relaxation whose optimum is exact as soon as the checker agrees.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from planner.pipeline.event_graph import Duration, event_graph
from planner.pipeline.link_orders import Sharing, Way, link_orders
from planner.pipeline.schedules import Template, chunk_devices


class PathCut(NamedTuple):
    """``Z >= fixed + sum(coefficient * duration)`` for plans that follow ``template``.

    A path with ``ways`` goes over links that several device edges share.  It is one of plans whose
    links have one of the ``orders``, whose replicas pass so many links at each boundary
    (``hops``), and some of which go these ways.
    """

    template: Template
    coefficients: tuple[tuple[Duration, int], ...]
    orders: tuple[int, ...] = ()
    hops: tuple[int, ...] = ()
    ways: tuple[Way, ...] = ()


class CutPool:
    """The path cuts found so far, without repetition, in the order in which they were found."""

    def __init__(self) -> None:
        self._cuts: dict[PathCut, None] = {}

    def __iter__(self) -> Iterator[PathCut]:
        return iter(self._cuts)

    def __len__(self) -> int:
        return len(self._cuts)

    def add(self, template: Template, path: Mapping[Duration, int]) -> bool:
        """Add a path; returns False where it is known already."""
        return self._add(PathCut(template, _sorted(path)))

    def add_ordered(
        self, template: Template, sharing: Sharing, durations: Mapping[Duration, int]
    ) -> None:
        """Add the longest path of every order of a template whose transfers share links."""
        for path in link_orders(template, sharing).critical_paths(durations):
            coefficients = _sorted(path.coefficients)
            if path.ways:
                ways = tuple(sorted(path.ways))
                self._add(PathCut(template, coefficients, path.orders, sharing.hops, ways))
            else:
                self._add(PathCut(template, coefficients))

    def _add(self, cut: PathCut) -> bool:
        if cut in self._cuts:
            return False
        self._cuts[cut] = None
        return True

    def add_critical(self, template: Template, durations: Mapping[Duration, int]) -> bool:
        """Add the longest path of a template under given durations."""
        _, path = event_graph(template).critical_path(durations)
        return self.add(template, path)

    def seed(self, template: Template, durations: Mapping[Duration, int]) -> None:
        """Add the paths that bind when one stage, one transfer or nothing is slow."""
        devices = chunk_devices(template.schedule, template.pp, template.v)
        batch: list[Mapping[Duration, int]] = [durations]
        for stage in range(template.pp):
            batch.append(
                {
                    key: value * 4 + 1
                    if key.kind in ("F", "B", "W") and devices[int(key.index)] == stage  # type: ignore[arg-type]
                    else value
                    for key, value in durations.items()
                }
            )
        for _, path in event_graph(template).critical_paths(batch):
            self.add(template, path)


def _sorted(path: Mapping[Duration, int]) -> tuple[tuple[Duration, int], ...]:
    return tuple(sorted(path.items(), key=lambda item: str(item[0])))
