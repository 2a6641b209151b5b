"""A plan in index form, for arithmetic: sites, links and stages are numbers.

:class:`Layout` is what the checker prices and what the search moves around in; the conversion to
and from the public :class:`~planner.plan.Plan` is exact in both directions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from planner.cost.coefficients import Option
from planner.pipeline.link_orders import Sharing, Way
from planner.pipeline.schedules import SCHEDULES, Template
from planner.plan import Degrees, Flow, Hosting, PlacementKind, Plan, ProtocolChoice, Sync
from planner.problem import Problem

Flows = tuple[tuple[tuple[int, int, int], ...], ...]
"""Per boundary the sorted triples (source site, target site, replicas), stays included."""


class Layout(NamedTuple):
    """One plan of a degrees case.

    ``replicas[s][d]`` is the number of replicas of stage ``s`` at site ``d``;
    ``protocols[l]`` is the pair (pipeline, data-parallel) of protocol names of directed link ``l``,
    for the links that carry traffic.
    """

    degrees: Degrees
    schedule: str
    run_length: int | None
    extra_warmup: tuple[int, ...]
    option: Option
    sync: Sync
    layers: tuple[int, ...]
    replicas: tuple[tuple[int, ...], ...]
    flows: Flows
    protocols: Mapping[int, tuple[str, str]]

    def template(self, num_microbatches: int) -> Template:
        """The op orders of the plan."""
        return Template(
            schedule=self.schedule,
            pp=self.degrees.pp,
            v=self.degrees.virtual_stages,
            m=num_microbatches,
            run_length=self.run_length,
            extra_warmup=self.extra_warmup,
        )

    def hosts(self, stage: int) -> tuple[int, ...]:
        """Sites that run a stage."""
        return tuple(d for d, count in enumerate(self.replicas[stage]) if count)

    @property
    def stage_crossings(self) -> int:
        """Replicas that change site, summed over the boundaries."""
        return sum(r for moves in self.flows for d, e, r in moves if d != e)

    @property
    def crossings(self) -> int:
        """Moves of replicas between sites plus synchronisations between sites."""
        spread = sum(len(self.hosts(s)) - 1 for s in range(self.degrees.pp))
        return self.stage_crossings + spread

    @property
    def placement_kind(self) -> PlacementKind:
        """What crosses sites: nothing, data parallelism, the pipeline, or both."""
        moves = self.stage_crossings > 0
        spreads = any(len(self.hosts(s)) > 1 for s in range(self.degrees.pp))
        if moves:
            return "mixed" if spreads else "pp-out"
        return "dp-out" if spreads else "single-site"


def num_boundaries(schedule: str, pp: int, virtual_stages: int) -> int:
    """Boundaries that carry flows: ``pp - 1``, and one more where a looped schedule wraps round."""
    wraps = SCHEDULES[schedule].chunk_map == "loop" and virtual_stages > 1 and pp > 1
    return pp if wraps else pp - 1


def used_links(
    problem: Problem, replicas: tuple[tuple[int, ...], ...], flows: Flows, sync: Sync
) -> tuple[frozenset[int], frozenset[int]]:
    """Directed links that carry pipeline and data-parallel traffic."""
    pipeline: set[int] = set()
    data: set[int] = set()
    for moves in flows:
        for source, target, _ in moves:
            if source != target:
                pipeline.update(problem.routes.get((source, target), ()))
                pipeline.update(problem.routes.get((target, source), ()))
    for row in replicas:
        for source, target in sync_pairs(tuple(d for d, r in enumerate(row) if r), sync):
            data.update(problem.routes.get((source, target), ()))
    return frozenset(pipeline), frozenset(data)


def boundary_edges(boundary: int, pp: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Directed device edges of a boundary: the way of activations, and that of gradients."""
    after = (boundary + 1) % pp
    return (boundary, after), (after, boundary)


def sharing_of(problem: Problem, flows: Flows, pp: int) -> Sharing | None:
    """Where transfers of several device edges pass the same directed link; None if nowhere.

    Parameters
    ----------
    problem, flows
        Flows of a well-formed layout.
    pp
        Stages.
    """
    ways: dict[Way, None] = {}
    hops = []
    for b, moves in enumerate(flows):
        most = 0
        there, back = boundary_edges(b, pp)
        for source, target, _ in moves:
            if source != target:
                for edge, pair in ((there, (source, target)), (back, (target, source))):
                    route = problem.routes[pair]
                    ways[Way(edge, pair, route)] = None
                    most = max(most, len(route))
        hops.append(most)
    edges: dict[int, set[tuple[int, int]]] = {}
    for way in ways:
        for link in way.links:
            edges.setdefault(link, set()).add(way.edge)
    shared = {link for link, users in edges.items() if len(users) > 1}
    meeting = sorted(way for way in ways if not shared.isdisjoint(way.links))
    return Sharing(tuple(hops), tuple(meeting)) if meeting else None


def sync_pairs(hosts: tuple[int, ...], sync: Sync) -> tuple[tuple[int, int], ...]:
    """Ordered pairs of sites that exchange gradients of a stage.

    Every pair for the hierarchical exchange, the hops of the ring of hosting sites in file order
    for the flat one.
    """
    if len(hosts) < 2:
        return ()
    if sync == "hierarchical":
        return tuple((d, e) for d in hosts for e in hosts if d != e)
    return tuple(zip(hosts, hosts[1:] + hosts[:1], strict=True))


def to_plan(problem: Problem, layout: Layout) -> Plan:
    """The public form of a layout."""
    degrees = layout.degrees
    names = [site.name for site in problem.sites]
    placement = []
    for d, name in enumerate(names):
        first = 0
        for s in range(degrees.pp):
            count = layout.replicas[s][d]
            if s + 1 < degrees.pp and layout.replicas[s + 1][d] == count:
                continue
            if count:
                placement.append(
                    Hosting(site=name, first_stage=first, last_stage=s, replicas=count)
                )
            first = s + 1
    flows = tuple(
        Flow.model_validate({"boundary": b, "from": names[d], "to": names[e], "replicas": r})
        for b, moves in enumerate(layout.flows)
        for d, e, r in moves
        if d != e
    )
    pipeline, data = used_links(problem, layout.replicas, layout.flows, layout.sync)
    protocols = []
    for index in sorted(pipeline | data):
        link = problem.links[index]
        chosen = layout.protocols[index]
        if link.per_class:
            classes = [("pp", chosen[0])] * (index in pipeline) + [("dp", chosen[1])] * (
                index in data
            )
        else:
            classes = [("all", chosen[0])]
        protocols += [
            ProtocolChoice.model_validate(
                {
                    "link": link.name,
                    "from": link.source,
                    "to": link.target,
                    "class": traffic,
                    "protocol": protocol,
                }
            )
            for traffic, protocol in classes
        ]
    return Plan(
        **degrees._asdict(),
        dp_replicate=degrees.dp_replicate,
        num_microbatches=problem.num_microbatches(degrees),
        gpus_used=degrees.gpus,
        schedule=layout.schedule,
        run_length=layout.run_length,
        extra_warmup=layout.extra_warmup,
        sharding=layout.option.sharding,
        sync=layout.sync,
        overlap=layout.option.overlap,
        recompute=layout.option.recompute,
        layers_per_stage=layout.layers,
        placement=tuple(placement),
        flows=flows,
        placement_kind=layout.placement_kind,
        protocols=tuple(protocols),
    )
