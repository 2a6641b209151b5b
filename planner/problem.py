"""The instance as index tables: sites, GPU classes, directed links, routes, ranges of the degrees.

Computed once per instance; nothing downstream scans the raw instance again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from planner.cost.curves import ASSUMED, Curve, Curves, Piece
from planner.cost.routing import routing_imbalance
from planner.cost.transport import TransportRate, effective_rate
from planner.cost.zones import Zones
from planner.instance.schema import GpuSpec, Instance, ModelSpec, Search, Site, Training
from planner.instance.topology import DirectedLink, directed_links, routes
from planner.plan import Degrees

MIB = 1 << 20


class GpuClass(NamedTuple):
    """Sites with equal GPUs, nodes and fabric behave alike."""

    gpu: GpuSpec
    gpus_per_node: int
    nic_bytes_per_s: float
    """NIC rate of one GPU across the site's fabric, oversubscription included."""
    oversubscription: float = 1.0
    zone_gpus: int | None = None
    """GPUs inside whose zone every NIC has its full rate; None = one scale-up domain."""
    curves: Curves = ASSUMED
    """What was measured in the site."""

    @property
    def zones(self) -> Zones | None:
        """The zones, or None where the fabric is oversubscribed above the scale-up domain."""
        if self.zone_gpus is None:
            return None
        return Zones(self.zone_gpus, self.oversubscription, self.gpu.scale_up_domain)

    def group_nic_bytes_per_s(self, op: str, ranks: int, stride: int) -> float:
        """NIC rate of one GPU in a group of so many ranks that lie ``stride`` GPUs apart."""
        zones = self.zones
        if zones is None:
            return self.nic_bytes_per_s
        share = zones.share(op, ranks, stride) if ranks > 1 else 1.0
        return self.nic_bytes_per_s * self.oversubscription * share

    def transfer_nic_bytes_per_s(self, stage_gpus: int, stages: int) -> float:
        """NIC rate of one GPU in the transfers of a pipeline inside the site."""
        zones = self.zones
        if zones is None:
            return self.nic_bytes_per_s
        share = zones.transfer_share(stage_gpus, stages)
        return self.nic_bytes_per_s * self.oversubscription * share


class SiteRef(NamedTuple):
    """One site."""

    name: str
    gpu_class: int
    num_gpus: int
    gpus_per_node: int
    limit_mib: int


def measured_curves(site: Site) -> Curves:
    """The curves that were measured in a site, and what its collectives can do."""
    measured = {
        (curve.tier, str(curve.collective)): Curve(
            curve.launch_s,
            tuple(Piece(p.step_s, p.bytes_per_s) for p in curve.pieces),
            fastest=curve.combine == "min",
            any_algorithm=True,
        )
        for curve in site.measured
    }
    rate = site.nic_gbps * 1.25e8 if measured else ASSUMED.nic_bytes_per_s
    return Curves(measured, rate, frozenset(site.in_network_reduction), site.collective_chunks)


@dataclass(frozen=True, eq=False)
class Problem:
    """Index tables of one instance."""

    instance: Instance

    @property
    def model(self) -> ModelSpec:
        """The model."""
        return self.instance.model

    @property
    def training(self) -> Training:
        """Batch, sequence and precision."""
        return self.instance.training

    def training_at(self, ep: int) -> Training:
        """The job with the routing imbalance that ``ep`` expert-parallel ranks see."""
        tokens = self.training.tokens_per_expert
        if tokens is None:
            return self.training
        found: Training | None = self.coefficient_cache.get(("training", ep))
        if found is None:
            update = {"routing_imbalance": routing_imbalance(tokens, ep)}
            found = self.training.model_copy(update=update)
            self.coefficient_cache["training", ep] = found
        return found

    @property
    def search(self) -> Search:
        """What the user narrowed."""
        return self.instance.search

    @cached_property
    def _classes_and_sites(self) -> tuple[tuple[GpuClass, ...], tuple[SiteRef, ...]]:
        classes: list[GpuClass] = []
        sites = []
        for site in self.instance.cluster.sites:
            nic = site.nic_gbps * 1.25e8 / site.fabric_oversubscription
            gpu_class = GpuClass(
                site.gpu,
                site.gpus_per_node,
                nic,
                site.fabric_oversubscription,
                site.zone_gpus,
                measured_curves(site),
            )
            if gpu_class not in classes:
                classes.append(gpu_class)
            limit = int(site.memory_limit_bytes) // MIB
            sites.append(
                SiteRef(
                    site.name,
                    classes.index(gpu_class),
                    site.num_gpus,
                    site.gpus_per_node,
                    limit,
                )
            )
        return tuple(classes), tuple(sites)

    @property
    def classes(self) -> tuple[GpuClass, ...]:
        """Distinct kinds of site."""
        return self._classes_and_sites[0]

    @property
    def sites(self) -> tuple[SiteRef, ...]:
        """The sites in file order."""
        return self._classes_and_sites[1]

    @cached_property
    def site_index(self) -> dict[str, int]:
        """Index of each site by name."""
        return {site.name: d for d, site in enumerate(self.sites)}

    @cached_property
    def links(self) -> tuple[DirectedLink, ...]:
        """Directed links, two per link of the file, in file order."""
        return tuple(directed_links(self.instance.cluster))

    @cached_property
    def routes(self) -> dict[tuple[int, int], tuple[int, ...]]:
        """Directed links between each ordered pair of different sites that can reach each other.

        A pair whose route has a link that no allowed protocol can drive cannot.
        """
        return {
            pair: tuple(route)
            for pair, route in routes(self.instance.cluster).items()
            if pair[0] != pair[1] and all(self.protocols[link] for link in route)
        }

    @cached_property
    def transports(self) -> tuple[dict[str, TransportRate], ...]:
        """Per directed link the allowed protocols with their rates, in the order of the file."""
        return tuple(
            {p.name: effective_rate(link, p) for p in link.protocols} for link in self.links
        )

    @cached_property
    def protocols(self) -> tuple[tuple[str, ...], ...]:
        """Per directed link the names of the protocols that can drive it and may be chosen."""
        allowed = self.search.protocols
        return tuple(
            tuple(
                name
                for name, rate in table.items()
                if rate.available and (allowed is None or name in allowed)
            )
            for table in self.transports
        )

    @cached_property
    def coefficient_cache(self) -> dict[tuple[object, ...], Any]:
        """Coefficients computed so far, by what they depend on."""
        return {}

    @cached_property
    def total_gpus(self) -> int:
        """GPUs of all sites."""
        return sum(site.num_gpus for site in self.sites)

    def cells(self, site: int, tp: int, cp: int) -> int:
        """Cells of ``tp * cp`` GPUs that fit into whole nodes of a site.

        ``tp`` must lie within the scale-up domain; ``tp * cp`` divides the GPUs of a node or is a
        multiple of them; otherwise the site holds none.
        """
        ref = self.sites[site]
        size, node = tp * cp, ref.gpus_per_node
        nodes = ref.num_gpus // node
        if tp > self.classes[ref.gpu_class].gpu.scale_up_domain:
            return 0
        if node % size == 0:
            return nodes * (node // size)
        if size % node == 0:
            return nodes // (size // node)
        return 0

    def num_microbatches(self, degrees: Degrees) -> int:
        """Microbatches per replica and iteration (0 where they do not come out whole)."""
        per_step = degrees.dp * degrees.micro_batch_size
        whole, rest = divmod(self.training.global_batch_size, per_step)
        return 0 if rest else whole
