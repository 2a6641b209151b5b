"""Changes that would make an infeasible instance feasible, each verified by a checked plan."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import gcd
from typing import Any, NamedTuple

from planner.check import check_plan
from planner.instance.schema import Instance, Site
from planner.layout import to_plan
from planner.problem import MIB, Problem
from planner.search.bounds import Bounds
from planner.search.least_memory import LeastMemory, least_memory
from planner.search.tree import Tree

MAX_GPUS = 10**7
"""GPUs of a site, at most (as in the instance format)."""


class Enlarged(NamedTuple):
    """A cluster with more nodes, the same factor at every site, and a plan that fits there."""

    instance: Instance
    plan: LeastMemory

    @property
    def gpus(self) -> int:
        """GPUs of all sites."""
        return sum(site.num_gpus for site in self.instance.cluster.sites)


def fitting_plan(instance: Instance) -> LeastMemory | None:
    """A plan of the search that is legal and fits, checked; None = there is none."""
    found = legal_plan(instance, Fraction(1))
    if found is None or found.ratio > 1:
        return None
    report = check_plan(instance, to_plan(Problem(instance), found.layout))
    assert report.feasible, report.violations
    return found


def legal_plan(instance: Instance, enough: Fraction) -> LeastMemory | None:
    """A plan of the search that is legal, with this largest need ÷ limit if there is one."""
    problem = Problem(instance)
    return least_memory(problem, Tree(problem, Bounds(problem)), enough)


def describe(found: LeastMemory) -> str:
    """The degrees and what else decides on the memory of a plan."""
    degrees, layout = found.layout.degrees, found.layout
    names = ("tp", "cp", "ep", "pp", "dp", "dp_shard", "virtual_stages", "micro_batch_size")
    values = [
        f"{name} {getattr(degrees, name)}"
        for name in names
        if getattr(degrees, name) > 1 or name in ("tp", "pp", "dp")
    ]
    option = layout.option
    return ", ".join([*values, layout.schedule, option.sharding, f"recompute {option.recompute}"])


def with_limits(instance: Instance, limits_mib: Mapping[str, int]) -> Instance:
    """The instance with memory limits of some sites replaced, be they more than the GPU has."""
    return _with_sites(
        instance,
        [
            site.model_copy(update={"memory_limit_bytes": limits_mib[site.name] * MIB})
            if site.name in limits_mib
            else site
            for site in instance.cluster.sites
        ],
    )


def fewest_gpus(instance: Instance) -> Enlarged | None:
    """The smallest enlarged cluster on which a plan of the search fits; None = none does.

    Every site gets the same factor of whole nodes.  More nodes never make a plan infeasible, so
    doubling and bisection find the least factor.
    """
    sites = instance.cluster.sites
    shares = [site.num_gpus // site.gpus_per_node for site in sites]
    step = gcd(*shares)
    per_step = [site.num_gpus // step for site in sites]

    def tried(factor: int) -> Enlarged | None:
        enlarged = _with_sites(
            instance,
            [
                site.model_copy(update={"num_gpus": factor * gpus})
                for site, gpus in zip(sites, per_step, strict=True)
            ],
        )
        found = fitting_plan(enlarged)
        return None if found is None else Enlarged(enlarged, found)

    enough = _most_gpus(instance)
    low, high = step, 2 * step
    found = tried(high)
    while found is None:
        if min(per_step) * high >= enough or max(per_step) * 2 * high > MAX_GPUS:
            return None
        low, high = high, 2 * high
        found = tried(high)
    while low + 1 < high:
        middle = (low + high) // 2
        better = tried(middle)
        if better is None:
            low = middle
        else:
            high, found = middle, better
    return found


def _most_gpus(instance: Instance) -> int:
    """No case of the search uses more GPUs."""
    problem = Problem(instance)
    tree = Tree(problem, Bounds(problem))
    boxes = list(tree.shapes())
    return max(
        (box.shape.tp * box.shape.cp * max(box.pp) * max(box.dp) for box in boxes), default=0
    )


def _with_sites(instance: Instance, sites: list[Site]) -> Instance:
    cluster = instance.cluster.model_copy(update={"sites": tuple(sites)})
    return instance.model_copy(update={"cluster": cluster})


def more_gpus(enlarged: Enlarged) -> dict[str, Any]:
    """The change as evidence."""
    return {
        "change": "gpus",
        "gpus": enlarged.gpus,
        "gpus_per_site": {s.name: s.num_gpus for s in enlarged.instance.cluster.sites},
        "degrees": enlarged.plan.layout.degrees._asdict(),
        "plan": to_plan(Problem(enlarged.instance), enlarged.plan.layout).to_json(),
    }
