"""Which way the collectives of a layer take inside the sites of a plan that have zones."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from planner.cost.state import WEIGHT_BYTES

if TYPE_CHECKING:
    from planner.cost.coefficients import CaseCoefficients, Group
    from planner.cost.collectives import Collective
    from planner.layout import Layout


class CollectiveUse(NamedTuple):
    """A collective over the parameters of one layer, and its fastest way.

    Attributes
    ----------
    sites
        The sites of the plan that work alike.
    layer
        Kind of the layer: ``dense`` or ``moe``.
    op
        ``reduce_scatter`` or ``all_gather`` of a shard group, ``all_reduce`` among shard groups.
    ranks, stride
        Members of the group, and how many GPUs they lie apart.
    block, seconds
        Of a collective of this layer alone: ranks of a block inside a zone, between which a level
        of its own works, None for one ring or tree over all scale-up domains; and its time.
    stage_block
        The block where the layer's part is one of a collective over the whole stage.
    """

    sites: tuple[str, ...]
    layer: str
    op: Collective
    ranks: int
    stride: int
    block: int | None
    seconds: float
    stage_block: int | None


def collective_uses(co: CaseCoefficients, layout: Layout) -> tuple[CollectiveUse, ...]:
    """The collectives of one layer at the sites of a layout that have zones, in file order.

    Those of shard groups where the layout's sharding has them, and the all-reduce among the at most
    ``dp_replicate - N + 1`` shard groups of a site, where ``N`` is the least number of sites that
    host a stage.
    """
    problem, option = co.problem, layout.option
    hosting = sorted({d for s in range(layout.degrees.pp) for d in layout.hosts(s)})
    fewest = min(len(layout.hosts(s)) for s in range(layout.degrees.pp))
    local = layout.degrees.dp_replicate - (0 if layout.sync == "flat" else fewest - 1)
    width = problem.training.gradient_bytes
    wanted: list[tuple[Collective, int]] = []
    if option.sharding != "ddp":
        wanted = [("reduce_scatter", width), ("all_gather", WEIGHT_BYTES)]
    uses = []
    for g, gpu_class in enumerate(problem.classes):
        sites = tuple(problem.sites[d].name for d in hosting if problem.sites[d].gpu_class == g)
        if not sites or gpu_class.zones is None:
            continue
        for kind in co.kinds:
            jobs: list[tuple[Collective, Group, int]] = [
                (op, group, size) for op, size in wanted for group in co.shard_groups(kind)
            ]
            among = co.replica_groups(kind, option, local)
            jobs += [("all_reduce", group, width) for group in among]
            uses += [
                _use(co, g, sites, kind, op, group, size)
                for op, group, size in jobs
                if group.ranks > 1
            ]
    return tuple(uses)


def _use(
    co: CaseCoefficients,
    gpu_class: int,
    sites: tuple[str, ...],
    kind: str,
    op: Collective,
    group: Group,
    width: int,
) -> CollectiveUse:
    """The fastest ways of a collective; of equal ones that of fewest levels, ring before tree."""
    ops: tuple[Collective, ...] = ("all_reduce", "tree_all_reduce") if op == "all_reduce" else (op,)
    arguments = (group.ranks, group.stride, group.parameters * width, gpu_class)
    alone = [way for one in ops for way in co.ways(one, *arguments)]
    shared = [way for one in ops for way in co.stage_ways(one, *arguments)]
    seconds = attrgetter("seconds")
    best = min(alone, key=seconds)
    return CollectiveUse(
        sites,
        kind,
        op,
        group.ranks,
        group.stride,
        best.block,
        best.seconds,
        min(shared, key=seconds).block,
    )


def collective_uses_to_json(uses: Iterable[CollectiveUse]) -> list[dict[str, Any]]:
    """One object per collective; times in seconds."""
    return [
        {
            "sites": list(use.sites),
            "layer": use.layer,
            "collective": use.op,
            "ranks": use.ranks,
            "stride_gpus": use.stride,
            "block_ranks": use.block,
            "time_s": use.seconds,
            "stage_block_ranks": use.stage_block,
        }
        for use in uses
    ]
