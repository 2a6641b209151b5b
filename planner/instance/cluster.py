"""GPUs, sites, hubs, links and protocols. Rates of links are per direction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from planner.instance import catalog
from planner.instance._base import (
    Count,
    Flag,
    Frozen,
    FrozenDict,
    GpuCount,
    Name,
    Oversubscription,
    number,
    once_each,
    problem,
    whole,
)
from planner.instance._preset import Preset, expand
from planner.instance.errors import describe, nearest
from planner.instance.measured import MeasuredCurve, MeasuredRate, Tier
from planner.instance.profile import PEAK_OF, GpuProfile, Precision
from planner.instance.route import Route, RouteError, route_links
from planner.instance.units import (
    Bytes,
    BytesPerSecond,
    FlopPerSecond,
    Gbps,
    Kilometres,
    Seconds,
)

LossRule = Literal["gbn", "selective_repeat", "lossless", "cubic", "bbr", "erasure", "none"]

MEMORY_SHARE = 0.94
"""Usable share of HBM: the rest is CUDA context, NCCL buffers and fragmentation (SimuMax)."""
FIBRE_S_PER_KM = 5.05e-6
"""One-way delay of fibre: half of the 10.1 us/km round trip of the Juniper/HPE RoCE tests."""
LARGEST_LOSS = 0.99
"""Largest share of lost packets; a link that loses more carries nothing."""
SMALLEST_SHARE = 1e-6
"""Smallest share of a link's capacity that a protocol may leave."""
SWITCH_S = 5e-6
"""One-way delay that switches and NICs add to a link given by its distance."""


class GpuSpec(Frozen):
    """One kind of GPU by its data sheet: dense peaks, ``scale_up`` = NVLink or the like."""

    name: Name
    peak_flops: Annotated[Mapping[Precision, FlopPerSecond], AfterValidator(FrozenDict)]
    memory_bytes: Bytes
    memory_bandwidth_bytes_per_s: BytesPerSecond
    scale_up_bytes_per_s: BytesPerSecond
    """Per GPU and direction."""
    scale_up_domain: GpuCount
    """GPUs that reach each other over scale-up links."""
    gpus_per_node: GpuCount
    nic_gbps: Gbps
    """Scale-out rate per GPU and direction; one NIC per GPU."""
    profile: GpuProfile | None = None
    """The user's own measurements in place of the shipped efficiency table."""
    sources: Annotated[Mapping[str, str], AfterValidator(FrozenDict)] = Field(
        default_factory=FrozenDict
    )

    def runs(self, precision: Precision) -> bool:
        """Whether the GPU states a peak for a precision."""
        return PEAK_OF.get(precision, precision) in self.peak_flops

    @model_validator(mode="after")
    def _has_a_peak(self) -> Self:
        if not self.peak_flops:
            raise problem("expected at least one precision", at=("peak_flops",))
        for precision in self.peak_flops:
            if precision in PEAK_OF:
                raise problem(
                    f"runs at the peak of {PEAK_OF[precision]}; give that one",
                    at=("peak_flops", precision),
                )
        return self

    @model_validator(mode="after")
    def _profile_of_what_runs(self) -> Self:
        if self.profile is None:
            return self
        measured: list[tuple[Precision, tuple[str | int, ...]]] = [
            (precision, ("efficiency", precision)) for precision in self.profile.efficiency
        ]
        measured += [
            (product.precision, ("products", i, "precision"))
            for i, product in enumerate(self.profile.products)
        ]
        for precision, at in measured:
            if not self.runs(precision):
                has = ", ".join(self.peak_flops)
                raise problem(
                    f"GPU {self.name} has no {precision} peak, only {has}", at=("profile", *at)
                )
        return self


class Site(Frozen):
    """A datacenter: equal GPUs behind one fabric."""

    name: Name
    gpu: Annotated[
        GpuSpec,
        BeforeValidator(
            lambda value: expand("gpus", "GPU", value),
            json_schema_input_type=GpuSpec | Preset | str,
        ),
    ]
    num_gpus: GpuCount
    gpus_per_node: GpuCount = Field(default_factory=lambda data: data["gpu"].gpus_per_node)
    nic_gbps: Gbps = Field(default_factory=lambda data: data["gpu"].nic_gbps)
    memory_limit_bytes: Bytes = Field(
        default_factory=lambda data: int(MEMORY_SHARE * data["gpu"].memory_bytes)
    )
    """What a plan may use of one GPU's memory."""
    fabric_oversubscription: Oversubscription = 1.0
    """NIC rate over what a GPU gets across the fabric, between zones and towards other sites."""
    zone_gpus: GpuCount | None = None
    """GPUs of one rail, pod or zone, inside which every NIC has its full rate; null = the fabric
    is oversubscribed right above the scale-up domain."""
    in_network_reduction: Annotated[
        tuple[Tier, ...], Field(max_length=2), AfterValidator(once_each)
    ] = ()
    """Tiers whose switches add up all-reduces (NVLS, SHARP)."""
    collective_chunks: Annotated[int, whole(1, 64), Field(ge=1, le=64)] = 1
    """Most chunks in which a collective passes its levels; 1 = one level after the other."""
    measured: Annotated[tuple[MeasuredCurve, ...], Field(max_length=20)] = ()
    """Measured times of collectives, in place of the data sheet and the assumed latencies."""
    provenance: str = ""
    """Where the figures come from."""

    @property
    def uplink_gbps(self) -> float:
        """What all NICs of the site can send together, in Gb/s."""
        return self.num_gpus * self.nic_gbps

    @model_validator(mode="after")
    def _whole_nodes(self) -> Self:
        if self.num_gpus % self.gpus_per_node:
            raise problem(
                f"{self.num_gpus} GPUs are not whole nodes of {self.gpus_per_node}",
                at=("num_gpus",),
            )
        if self.memory_limit_bytes > self.gpu.memory_bytes:
            raise problem(
                f"the limit of {self.memory_limit_bytes} bytes is more than the "
                f"{self.gpu.memory_bytes} bytes of GPU {self.gpu.name}",
                at=("memory_limit_bytes",),
            )
        if self.zone_gpus is not None:
            for unit, what in (
                (self.gpus_per_node, "nodes"),
                (self.gpu.scale_up_domain, "scale-up domains"),
            ):
                if self.zone_gpus % unit:
                    raise problem(
                        f"{self.zone_gpus} GPUs are not whole {what} of {unit}", at=("zone_gpus",)
                    )
        seen: dict[tuple[str, str], int] = {}
        for i, curve in enumerate(self.measured):
            first = seen.setdefault((curve.tier, curve.collective), i)
            if first != i:
                raise problem(
                    f"measured[{first}] already gives {curve.collective} on tier {curve.tier}",
                    at=("measured", i),
                )
        return self


class Hub(Frozen):
    """A switch point without GPUs."""

    name: Name


def _balance(value: object) -> object:
    if value == "ecmp":
        return value
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not SMALLEST_SHARE <= value <= 1
    ):
        raise problem(
            f"expected 'ecmp' or a number from {SMALLEST_SHARE:g} to 1, got {describe(value)}"
        )
    return float(value)


class ProtocolSpec(Frozen):
    """How a link is driven: what limits the rate that a collective gets from it."""

    name: Name
    balance: Annotated[Literal["ecmp"] | float, BeforeValidator(_balance)]
    """Share of equal parallel paths that a collective gets; ``ecmp`` = by the flows per path."""
    queue_pairs: Annotated[int, whole(1, 65536), Field(ge=1, le=65536)] = 1
    """Queue pairs over which one flow is spread."""
    loss_rule: LossRule
    overhead: Annotated[float, number(SMALLEST_SHARE, 1)] = 1.0
    """Share of the capacity left by headers and the host."""
    streams: Annotated[int, whole(1, 65536), Field(ge=1, le=65536)] = 1
    """Parallel TCP connections of one flow."""
    window_bytes: Bytes | None = None
    """Most bytes in flight per queue pair or stream; null = no limit."""
    code_rate: Annotated[float, number(SMALLEST_SHARE, 1)] = 1.0
    """Data share of erasure-coded traffic."""
    max_distance_km: Kilometres | None = None
    """Longest link on which it stays lossless."""
    needs_deep_buffer: Flag = False
    reorders: Flag = False
    """Packets of one flow take several paths, so the NICs must accept them out of order."""
    max_paths: Count | None = None
    """Most parallel paths of a link that offers it without naming it."""
    source: str = ""


class Link(Frozen):
    """A connection between two sites or hubs, both directions."""

    name: Name = ""
    source: Name = Field(alias="from")
    target: Name = Field(alias="to")
    bandwidth_gbps: Gbps | None = None
    """Capacity per direction."""
    reverse_bandwidth_gbps: Gbps | None = None
    """Capacity from ``to`` to ``from`` if it differs."""
    oversubscription: Oversubscription | None = None
    """Capacity = all NICs of the site end (of the smaller one) divided by this."""
    distance_km: Kilometres | None = None
    rtt_s: Seconds | None = None
    delay_s: Seconds | None = None
    """One way."""
    jitter_s: Seconds = 0.0
    """Spread of the one-way delay (RFC 3550); a transfer waits for its late packets, so every
    latency of the link contains it once."""
    loss: Annotated[float, number(0, LARGEST_LOSS)] = 0.0
    """Share of packets lost, at most 0.99."""
    paths: Annotated[int, whole(1, 10**6), Field(ge=1, le=10**6)] = 1
    """Equal parallel paths."""
    flows: Count | None = None
    """Concurrent flows of one traffic class; null = one per NIC of the smaller site end."""
    buffer: Literal["deep", "shallow"] = "deep"
    lossless: Flag = True
    """Priority flow control or credits may be switched on; false = no lossless protocol runs."""
    out_of_order: Flag = True
    """The NICs at both ends accept packets out of order; false = nothing that sprays runs."""
    lossless_distance_km: Kilometres | None = None
    """How far lossless protocols reach here, in place of their own distance."""
    protocols: Annotated[
        Annotated[tuple[Name, ...], Field(min_length=1, max_length=100)] | None,
        AfterValidator(once_each),
    ] = None
    """Allowed protocols; null = all that can run here."""
    protocol_per_class: Flag = False
    """Pipeline and data-parallel traffic may use different protocols."""
    measured: Annotated[tuple[MeasuredRate, ...], Field(max_length=100)] = ()
    """Measured rates of protocols, in place of the transport rules."""
    provenance: str = ""
    """Where the figures come from."""

    @property
    def one_way_delay_s(self) -> float:
        """Propagation and switching, one way, in seconds."""
        if self.delay_s is not None:
            return self.delay_s
        if self.rtt_s is not None:
            return self.rtt_s / 2
        return (self.distance_km or 0.0) * FIBRE_S_PER_KM + SWITCH_S

    @property
    def length_km(self) -> float:
        """The distance given, or the fibre length that the delay stands for."""
        if self.distance_km is not None:
            return self.distance_km
        return max(0.0, self.one_way_delay_s - SWITCH_S) / FIBRE_S_PER_KM

    @model_validator(mode="before")
    @classmethod
    def _default_name(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("name") is None:
            ends = data.get("from"), data.get("to")
            if all(isinstance(end, str) for end in ends):
                return {**data, "name": f"{ends[0]}--{ends[1]}"}
        return data

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        if self.source == self.target:
            raise problem(f"the link joins '{self.source}' to itself", at=("to",))
        _exactly_one(self, ("bandwidth_gbps", "oversubscription"))
        _exactly_one(self, ("distance_km", "rtt_s", "delay_s"))
        if self.reverse_bandwidth_gbps is not None and self.bandwidth_gbps is None:
            raise problem("needs bandwidth_gbps", at=("reverse_bandwidth_gbps",))
        seen: dict[str, int] = {}
        for i, rate in enumerate(self.measured):
            if seen.setdefault(rate.protocol, i) != i:
                raise problem(
                    f"measured[{seen[rate.protocol]}] already gives '{rate.protocol}'",
                    at=("measured", i),
                )
        return self


def _exactly_one(link: Link, keys: tuple[str, ...]) -> None:
    given = [key for key in keys if getattr(link, key) is not None]
    if len(given) != 1:
        found = "none" if not given else " and ".join(given)
        raise problem(f"give exactly one of {', '.join(keys)}; got {found}", at=tuple(given[1:2]))


def usable(protocol: ProtocolSpec, link: Link) -> str | None:
    """Why ``protocol`` cannot run on ``link``, or None if it can."""
    if protocol.needs_deep_buffer and link.buffer != "deep":
        return f"'{protocol.name}' needs deep buffers, the link has shallow ones"
    if protocol.reorders and not link.out_of_order:
        return f"'{protocol.name}' sprays packets, the link's NICs do not reorder them"
    if protocol.loss_rule == "lossless" and not link.lossless:
        return f"'{protocol.name}' needs flow control, the link is not lossless"
    reach = protocol.max_distance_km
    if reach is not None:
        reach = reach if link.lossless_distance_km is None else link.lossless_distance_km
        if link.length_km > reach:
            return (
                f"'{protocol.name}' is lossless up to {reach:g} km, the link is "
                f"{link.length_km:.4g} km; lossless_distance_km raises that"
            )
    return None


def refusal(protocol: ProtocolSpec, link: Link) -> str | None:
    """Why ``protocol`` is no choice on ``link``, or None if it is one.

    A protocol that the link names itself may have more parallel paths than ``max_paths``.
    """
    if link.protocols is not None and protocol.name not in link.protocols:
        return f"'{protocol.name}' is not among the link's protocols"
    reason = usable(protocol, link)
    paths = protocol.max_paths
    if reason is None and link.protocols is None and paths is not None and link.paths > paths:
        return f"'{protocol.name}' runs over {paths} path, the link has {link.paths}"
    return reason


class Cluster(Frozen):
    """All sites with the network between them; ``protocols`` are the user's own."""

    sites: Annotated[tuple[Site, ...], Field(min_length=1, max_length=1000)]
    hubs: Annotated[tuple[Hub, ...], Field(max_length=1000)] = ()
    links: Annotated[tuple[Link, ...], Field(max_length=10000)] = ()
    protocols: Annotated[tuple[ProtocolSpec, ...], Field(max_length=100)] = ()
    routes: Annotated[tuple[Route, ...], Field(max_length=10000)] = ()
    """Given ways between pairs of sites; all others have the fewest links, then the least delay."""

    @property
    def known_protocols(self) -> dict[str, ProtocolSpec]:
        """Catalog protocols in catalog order, then the user's; a user's name replaces."""
        known = {
            name: ProtocolSpec.model_validate(catalog.fields("protocols", name))
            for name in catalog.names("protocols")
        }
        return known | {protocol.name: protocol for protocol in self.protocols}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self._check_names()
        self._check_links()
        self._check_routes()
        return self

    def _check_names(self) -> None:
        places: dict[str, str] = {}
        named = [("sites", i, site.name) for i, site in enumerate(self.sites)]
        named += [("hubs", i, hub.name) for i, hub in enumerate(self.hubs)]
        for kind, i, name in named:
            if name in places:
                raise problem(f"the name '{name}' is taken by {places[name]}", at=(kind, i, "name"))
            places[name] = f"{kind}[{i}]"
        own: set[str] = set()
        for i, protocol in enumerate(self.protocols):
            if protocol.name in own:
                raise problem(
                    f"protocol '{protocol.name}' is given twice", at=("protocols", i, "name")
                )
            own.add(protocol.name)

    def _check_links(self) -> None:
        site_names = {site.name for site in self.sites}
        nodes = site_names | {hub.name for hub in self.hubs}
        known = self.known_protocols
        names: dict[str, int] = {}
        pairs: dict[frozenset[str], int] = {}
        for i, link in enumerate(self.links):
            for key, end in (("from", link.source), ("to", link.target)):
                if end not in nodes:
                    raise problem(
                        f"no site or hub is named '{end}'",
                        at=("links", i, key),
                        suggestion=nearest(end, sorted(nodes)),
                    )
            pair = frozenset((link.source, link.target))
            if pair in pairs:
                raise problem(
                    f"links[{pairs[pair]}] already joins '{link.source}' and '{link.target}'; "
                    "use more bandwidth or paths",
                    at=("links", i),
                )
            if link.name in names:
                raise problem(
                    f"the name '{link.name}' is taken by links[{names[link.name]}]",
                    at=("links", i, "name"),
                )
            pairs[pair] = names[link.name] = i
            if link.oversubscription is not None and not pair & site_names:
                raise problem(
                    "a link between two hubs has no NICs; give bandwidth_gbps",
                    at=("links", i, "oversubscription"),
                )
            for j, name in enumerate(link.protocols or ()):
                at = ("links", i, "protocols", j)
                if name not in known:
                    raise problem(
                        f"unknown protocol '{name}'", at=at, suggestion=nearest(name, known)
                    )
                reason = usable(known[name], link)
                if reason:
                    raise problem(reason, at=at)
            for j, rate in enumerate(link.measured):
                if rate.protocol not in known:
                    raise problem(
                        f"unknown protocol '{rate.protocol}'",
                        at=("links", i, "measured", j, "protocol"),
                        suggestion=nearest(rate.protocol, known),
                    )

    def _check_routes(self) -> None:
        site_names = [site.name for site in self.sites]
        hub_names = [hub.name for hub in self.hubs]
        given: dict[tuple[str, str], int] = {}
        for i, route in enumerate(self.routes):
            try:
                route_links(route, site_names, hub_names, self.links)
            except RouteError as error:
                at = ("routes", i, *error.at)
                raise problem(error.reason, at=at, suggestion=error.suggestion) from None
            pairs = [(route.source, route.target)]
            if route.both_ways:
                pairs.append((route.target, route.source))
            for pair in pairs:
                if pair in given:
                    raise problem(
                        f"routes[{given[pair]}] already joins '{pair[0]}' to '{pair[1]}'",
                        at=("routes", i),
                    )
                given[pair] = i
