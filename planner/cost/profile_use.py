"""How much of a plan rests on the measurements that users gave of their GPUs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from planner.cost.compute import unmeasured_products
from planner.plan import Degrees

if TYPE_CHECKING:
    from planner.instance.schema import GpuSpec
    from planner.problem import Problem

Product = tuple[str, float, float, float, float]
"""(precision, m, n, k, groups) of the matrix products of one kernel."""

MOST_LISTED = 5
"""Shapes that a document or a report names; of the others only the number."""


class ProfileUse(NamedTuple):
    """Matrix products of a plan on one GPU whose profile has measured ones.

    Attributes
    ----------
    gpu, sites
        Name of the GPU, and the sites of the plan that have it.
    products
        Different shapes that these sites run.
    defaults
        Those that the profile does not hold, sorted: they follow the efficiency constants.
    """

    gpu: str
    sites: tuple[str, ...]
    products: int
    defaults: tuple[Product, ...]

    @property
    def measured(self) -> int:
        """Shapes whose time the profile states."""
        return self.products - len(self.defaults)


def profile_uses(
    problem: Problem, degrees: Degrees, units: Mapping[int, Collection[str]]
) -> tuple[ProfileUse, ...]:
    """What the plan takes from each profile with measured products, in the order of the sites.

    Parameters
    ----------
    units
        Layer kinds and ends of the model that a site runs, by site.

    Raises
    ------
    ValueError
        If a GPU states no peak for the job's precision.
    """
    by_gpu: dict[GpuSpec, list[int]] = {}
    for d in sorted(units):
        gpu = problem.classes[problem.sites[d].gpu_class].gpu
        if gpu.profile is not None and gpu.profile.products:
            by_gpu.setdefault(gpu, []).append(d)
    model, training, stack = problem.model, problem.training, problem.instance.stack

    def shapes(gpu: GpuSpec, sites: Iterable[int]) -> set[Product]:
        run = {unit for d in sites for unit in units[d]} - {"embedding"}
        return {
            shape
            for unit in run
            for shape in unmeasured_products(model, unit, gpu, degrees, training, stack)  # type: ignore[arg-type]
        }

    return tuple(
        ProfileUse(
            gpu.name,
            tuple(problem.sites[d].name for d in sites),
            len(shapes(gpu.model_copy(update={"profile": None}), sites)),
            tuple(sorted(shapes(gpu, sites))),
        )
        for gpu, sites in by_gpu.items()
    )


def profile_uses_to_json(uses: Iterable[ProfileUse]) -> list[dict[str, Any]]:
    """One object per GPU, with the first shapes that fell back to the constants."""
    return [
        {
            "gpu": use.gpu,
            "sites": list(use.sites),
            "products": use.products,
            "measured": use.measured,
            "defaults": [
                dict(zip(("precision", "m", "n", "k", "groups"), shape, strict=True))
                for shape in use.defaults[:MOST_LISTED]
            ],
        }
        for use in uses
    ]
