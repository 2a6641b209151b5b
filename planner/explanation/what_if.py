"""What a little more of one resource would gain, by solving the larger instance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from planner.explanation.questions import Verdict
from planner.explanation.resources import with_bandwidth, with_delay, with_memory, with_node
from planner.instance.schema import Instance

MORE_BANDWIDTH = 1.1
LESS_DELAY = 0.9
MORE_MEMORY_BYTES = 1 << 30

Kind = Literal["gpus", "bandwidth", "memory", "delay"]


@dataclass
class WhatIf:
    """One change of the instance.

    Attributes
    ----------
    kind, name, change
        What grows, where (a site, a link, a GPU), and by how much in words.
    amount
        The change as numbers with units in their names.
    build
        Gives the changed instance.
    same_plan_us
        ``Z`` of the explained plan after the change.
    """

    kind: Kind
    name: str
    change: str
    amount: dict[str, Any]
    build: Callable[[], Instance]
    same_plan_us: int | None = None
    verdict: Verdict = field(default_factory=Verdict)

    def gain_us(self, best_us: int, bound_us: int | None) -> tuple[int | None, int | None]:
        """How much smaller the best ``Z`` gets, at least and at most; None = not known.

        Parameters
        ----------
        best_us, bound_us
            The best plan known without the change, and the lower bound there.
        """
        time_us, least_us = self.verdict.time_us, self.verdict.bound_us
        at_least = None
        if time_us is not None and bound_us is not None:
            at_least = max(0, bound_us - time_us)
        return at_least, None if least_us is None else max(0, best_us - least_us)

    def to_json(self, best_us: int, bound_us: int | None) -> dict[str, Any]:
        """One row of the document."""
        at_least, at_most = self.gain_us(best_us, bound_us)
        return {
            "kind": self.kind,
            "name": self.name,
            "change": self.change,
            "amount": self.amount,
            "same_plan_time_s": None if self.same_plan_us is None else self.same_plan_us / 1e6,
            "gain_at_least_s": None if at_least is None else at_least / 1e6,
            "gain_at_most_s": None if at_most is None else at_most / 1e6,
            **self.verdict.to_json(),
        }


def what_ifs(instance: Instance) -> list[WhatIf]:
    """One more node at each site, 1 GiB more for each kind of GPU, faster and nearer links."""
    found = []
    for d, site in enumerate(instance.cluster.sites):
        node = site.gpus_per_node
        found.append(
            WhatIf(
                "gpus",
                site.name,
                f"one more node of {node} GPUs" if node > 1 else "one more GPU",
                {"gpus": node},
                partial(with_node, instance, d),
            )
        )
    for i, link in enumerate(instance.cluster.links):
        found += [
            WhatIf(
                "bandwidth",
                link.name,
                "10 % more bandwidth",
                {"bandwidth_factor": MORE_BANDWIDTH},
                partial(with_bandwidth, instance, i, MORE_BANDWIDTH),
            ),
            WhatIf(
                "delay",
                link.name,
                "10 % less delay",
                {"delay_factor": LESS_DELAY},
                partial(with_delay, instance, i, LESS_DELAY),
            ),
        ]
    for i, gpu in enumerate(kinds := [site.gpu for site in instance.cluster.sites]):
        if gpu in kinds[:i]:
            continue
        sites = tuple(d for d, s in enumerate(instance.cluster.sites) if s.gpu == gpu)
        found.append(
            WhatIf(
                "memory",
                gpu.name,
                "1 GiB more memory a GPU",
                {
                    "memory_bytes": MORE_MEMORY_BYTES,
                    "sites": [instance.cluster.sites[d].name for d in sites],
                },
                partial(with_memory, instance, sites, MORE_MEMORY_BYTES),
            )
        )
    return found
