"""Integer coefficients of one degrees case: here physical quantities become integers.

Durations are whole microseconds, sizes whole MiB, both rounded up; the time of one unit of load on
a link keeps six digits.  The checker
(:mod:`planner.check`) and the formulations combine these numbers independently of each other.
``docs/time_model.md`` states what each of them means.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, floor
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from planner import space
from planner.cost import activations, collectives, compute, memory, state
from planner.cost.model_size import (
    LayerParameters,
    end_parameters,
    layer_parameters,
    layer_parameters_per_gpu,
    mtp_kind,
)
from planner.cost.stack import SPLIT_BACKWARD_OVERHEAD, exposed, with_host_floor
from planner.cost.types import Stack
from planner.plan import RECOMPUTES, SHARDINGS, Degrees, Recompute, Sharding, Sync

if TYPE_CHECKING:
    from planner.problem import Problem

MIB = 1 << 20
LINK_DIGITS = 100_000
"""Least numerator of a link time, and greatest scale."""

T = TypeVar("T")

Units = tuple[int, ...]
"""One integer per unit of :attr:`CaseCoefficients.units`."""


class Option(NamedTuple):
    """How state is kept, synchronised and recomputed."""

    sharding: Sharding
    overlap: bool
    recompute: Recompute
    spanning: bool
    """True where shard groups reach over several sites."""


class OpCosts(NamedTuple):
    """Durations of one microbatch in µs per unit: forward, whole backward, its two parts.

    ``*_parts`` split each duration by cause, in the order of :data:`PARTS`; the parts of a unit sum
    to its duration.
    """

    forward: Units
    backward: Units
    input_gradient: Units
    weight_gradient: Units
    forward_parts: tuple[Units, ...]
    backward_parts: tuple[Units, ...]
    input_gradient_parts: tuple[Units, ...]
    weight_gradient_parts: tuple[Units, ...]


PARTS = ("compute", "tp", "cp", "ep", "dp")
"""Causes of time inside an op."""


class MemoryCosts(NamedTuple):
    """MiB per GPU: state per unit, activations per unit and live microbatch, working sets."""

    state: Units
    activation: Units
    split_activation: Units
    """``activation`` where the backward is split: never less than ``held``."""
    held: Units
    """What a split backward keeps until the weight gradient is done."""
    working: int
    head_working: int
    """Working set of the device that runs the head, in place of ``working``."""
    step: Units
    """What the optimizer step allocates, when no activation is alive."""
    step_working: int
    """Working set of the optimizer step besides ``step``."""


class SyncCosts(NamedTuple):
    """Synchronisation of one stage inside its sites, in µs.

    ``reduce`` and ``gather`` are per unit, latencies come once on top; the tails are for the
    smallest single layer, latency included;
    ``reduce_nic`` and ``gather_nic`` are the time that the NICs of one site need for the exchange
    between sites.
    ``sequential`` says that the exchange between sites follows the one inside (hierarchical) and
    does not run beside it (flat ring).  The flat ring carries shards, so that the part ``scatter``
    of ``reduce``, the shard group's reduce-scatter, precedes it all the same.
    """

    reduce: Units
    gather: Units
    reduce_latency: int
    gather_latency: int
    reduce_tail: int
    gather_tail: int
    reduce_nic: Units
    gather_nic: Units
    sequential: bool
    scatter: Units
    scatter_latency: int
    scatter_tail: int


class ExchangeCosts(NamedTuple):
    """MiB that one ordered pair of sites exchanges for one stage, and how often it pays latency."""

    gradient: Units
    parameter: Units
    gradient_tail: int
    parameter_tail: int
    gradient_latencies: int
    parameter_latencies: int


class Group(NamedTuple):
    """Ranks of a collective inside a site, ``stride`` GPUs apart, and the parameters of each."""

    ranks: int
    stride: int
    parameters: float


class Way(NamedTuple):
    """A way of a collective inside a site."""

    seconds: float
    block: int | None
    """Ranks of a block inside a zone, between which a level works; None = no such level."""
    collectives: int
    """How many are launched one after the other."""


class LinkTime(NamedTuple):
    """Time of one unit of load on a link: ``numerator / scale`` µs.

    Six decimal digits, so that thousands of units on a fast link do not each pay a rounding to
    whole µs and no row of a model has a large coefficient.
    """

    numerator: int
    scale: int

    def us(self, count: int) -> int:
        """µs for ``count`` units, rounded up."""
        return -(-count * self.numerator // self.scale)


def link_time(seconds: float) -> LinkTime:
    """The time of one unit of load, rounded up at the sixth digit."""
    scale = 1
    while seconds * 1e6 * scale < LINK_DIGITS and scale < LINK_DIGITS:
        scale *= 10
    return LinkTime(max(1, ceil(seconds * 1e6 * scale - 1e-6)), scale)


class CaseCoefficients:
    """Everything that the checker and the formulations need to know of one degrees case.

    Attributes
    ----------
    units
        Names of the units: the layer kinds in use, then ``embedding`` and ``head``.
    layer_units
        Unit of each layer, shape (num_layers,).
    cells
        Cells that each site can hold, shape (num_sites,).
    limit_mib
        Memory limit of a GPU at each site in MiB, rounded down, shape (num_sites,).
    fixed_us
        µs per iteration that depend on nothing.
    """

    def __init__(self, problem: Problem, degrees: Degrees) -> None:
        self.problem = problem
        self.degrees = degrees
        self.num_microbatches = problem.num_microbatches(degrees)
        self.stack: Stack = problem.instance.stack
        kinds = tuple(k for k in ("dense", "moe") if k in problem.model.layer_kinds)
        self.kinds = kinds
        self.units = (*kinds, "embedding", "head")
        self.layer_units = tuple(kinds.index(k) for k in problem.model.layer_kinds)
        self.cells = tuple(
            problem.cells(d, degrees.tp, degrees.cp) for d in range(len(problem.sites))
        )
        self.limit_mib = tuple(site.limit_mib for site in problem.sites)
        self.fixed_us = _us(self.stack.fixed_s)
        self._cache = problem.coefficient_cache

    def _cached(self, key: tuple[object, ...], compute: Callable[[], T]) -> T:
        """A value shared by all cases of the problem with an equal key."""
        found = self._cache.get(key)
        if found is None:
            found = compute()
            self._cache[key] = found
        return found

    def ops_key(self, gpu_class: int, option: Option) -> tuple[object, ...]:
        """What the durations of ops depend on; equal keys have equal durations."""
        key: tuple[object, ...] = ("ops", self._shape, gpu_class, option.recompute)
        if option.sharding in ("zero2", "zero3"):
            key += (option.sharding, option.overlap, self.degrees.dp_shard, self.degrees.pp)
        return key

    def ops(self, gpu_class: int, option: Option) -> OpCosts:
        """Durations on a GPU class."""
        return self._cached(self.ops_key(gpu_class, option), lambda: self._ops(gpu_class, option))

    def memory(self, option: Option) -> MemoryCosts:
        """Memory of the degrees case under an option."""
        d = self.degrees
        key = ("memory", self._shape, d.pp, d.dp_shard, option.sharding, option.recompute)
        return self._cached(key, lambda: self._memory(option))

    def optimizer(self, gpu_class: int, option: Option) -> Units:
        """Optimizer step, µs per unit."""
        d = self.degrees
        key = ("optimizer", self._shape, d.pp, d.dp_shard, gpu_class, option.sharding)
        return self._cached(key, lambda: self._optimizer(gpu_class, option))

    def inside(self, gpu_class: int) -> tuple[int, int]:
        """Delay and occupancy in µs of a pipeline transfer inside a site."""
        d = self.degrees
        rate = self.problem.classes[gpu_class].transfer_nic_bytes_per_s(d.dp * d.cell_gpus, d.pp)
        key = ("inside", self._shape, gpu_class, rate)
        return self._cached(key, lambda: self._inside(gpu_class, rate))

    def cell(self, source: int, target: int) -> int:
        """µs that the NICs of one cell need for one transfer between two sites."""
        key = ("cell", self._shape, source, target)
        return self._cached(key, lambda: self._cell(source, target))

    def sync(self, gpu_class: int, option: Option, sync: Sync, hosts: int) -> SyncCosts:
        """Synchronisation inside the sites of a stage that ``hosts`` sites run."""
        d = self.degrees
        key = (
            "sync",
            self._shape,
            d.pp,
            d.dp,
            d.dp_shard,
            gpu_class,
            option.sharding,
            option.spanning,
            sync,
            hosts,
        )
        return self._cached(key, lambda: self._sync(gpu_class, option, sync, hosts))

    def exchange(self, option: Option, sync: Sync, hosts: int) -> ExchangeCosts:
        """Synchronisation between the sites of a stage that ``hosts`` sites run."""
        d = self.degrees
        key = (
            "exchange",
            d.dp,
            d.dp_shard,
            self._shape,
            option.sharding,
            option.spanning,
            sync,
            hosts,
        )
        return self._cached(key, lambda: self._exchange(option, sync, hosts))

    def options(self) -> tuple[Option, ...]:
        """Legal options of the degrees case, in canonical order."""
        spans = (False, True) if self._may_span else (False,)
        return tuple(
            Option(sharding, overlap, recompute, spanning)
            for sharding in SHARDINGS
            if space.sharding_legal(self.degrees, sharding)
            for overlap in (True, False)
            for recompute in RECOMPUTES
            for spanning in spans
        )

    @property
    def _may_span(self) -> bool:
        whole = space.granularity(self.degrees, spanning=False)
        apart = space.granularity(self.degrees, spanning=True)
        return self.problem.search.shard_across_sites and whole != apart

    @property
    def activation_bytes(self) -> int:
        """Bytes of one microbatch's activations between two stages, all GPUs of a cell together.

        ``2 s b h`` in half precision (cost model 3.2).
        """
        training = self.problem.training
        tokens = self.degrees.micro_batch_size * training.sequence_length
        return 2 * tokens * self.problem.model.hidden_size

    def _unit_key(self, unit: str) -> tuple[object, ...]:
        """What the parameters of a unit depend on: tied ends are held twice where pp > 1."""
        return self._shape, unit, 1 if unit in self.kinds else self.degrees.pp

    def _parameters(self, unit: str) -> LayerParameters:
        """Parameters of a unit that one GPU holds."""
        model, degrees = self.problem.model, self.degrees

        def held() -> LayerParameters:
            if unit == "embedding":
                return state.embedding_parameters(model, degrees)
            if unit == "head":
                return state.head_parameters(model, degrees)
            return layer_parameters_per_gpu(model, unit, degrees)  # type: ignore[arg-type]

        return self._cached(("parameters", self._unit_key(unit)), held)

    def _whole_parameters(self, unit: str) -> int:
        """Parameters of a unit, all GPUs of a replica together."""
        model = self.problem.model

        def whole() -> int:
            ends = end_parameters(model)
            if unit == "embedding":
                return ends.embedding
            if unit == "head":
                return ends.total - ends.embedding
            return layer_parameters(model, unit).total  # type: ignore[arg-type]

        return self._cached(("whole parameters", unit), whole)

    def _per_unit(self, value: Callable[[str], int]) -> Units:
        return tuple(value(unit) for unit in self.units)

    def _ops(self, gpu_class: int, option: Option) -> OpCosts:
        parts = [self._op_parts(unit, gpu_class, option) for unit in self.units]
        sums = [tuple(sum(unit[op]) for unit in parts) for op in range(4)]
        split = [
            tuple(tuple(unit[op][part] for unit in parts) for part in range(len(PARTS)))
            for op in range(4)
        ]
        return OpCosts(sums[0], sums[1], sums[2], sums[3], split[0], split[1], split[2], split[3])

    def _unit_times(self, unit: str, gpu_class: int) -> _UnitTimes:
        """Computation and exposed communication of a unit."""
        return self._cached(
            ("unit", self._shape, unit, gpu_class),
            lambda: _unit_times(self.problem, self._shape, unit, gpu_class),
        )

    def _recomputed(self, unit: str, gpu_class: int) -> tuple[_UnitTimes, int]:
        """What recompute runs again of a unit: a layer, and how many of it.

        Frameworks checkpoint layers; of the ends only those of multi-token prediction are some.
        """
        if unit in self.kinds:
            return self._unit_times(unit, gpu_class), 1
        count = self.problem.model.num_mtp_layers if unit == "head" else 0
        kind = mtp_kind(self.problem.model) if count else self.kinds[0]
        return self._unit_times(kind, gpu_class), count

    def _op_parts(self, unit: str, gpu_class: int, option: Option) -> list[tuple[int, ...]]:
        """Forward, backward, input gradient, weight gradient; each split into :data:`PARTS`."""
        gather, scatter = self._microbatch_sync(unit, gpu_class, option)
        stack = self.stack

        def shared(communication: float, work: float) -> float:
            if not option.overlap:
                return communication
            return exposed(communication, work, stack.fsdp_exposed)

        floor = stack.host_floor_s if unit in self.kinds else 0.0

        def paced(work: tuple[float, ...], floor_s: float) -> tuple[float, ...]:
            """The work with the wait for the host added to its computation."""
            wait = with_host_floor(sum(work), floor_s) - sum(work)
            return (work[0] + wait, *work[1:])

        times, tp, cp, ep = self._unit_times(unit, gpu_class)
        full = option.recompute == "full"
        layer, count = self._recomputed(unit, gpu_class)
        again = count * compute.recompute_time(layer.times, option.recompute, stack)
        repeat = tuple(full * count * part.forward for part in (layer.tp, layer.cp, layer.ep))
        back = tuple(
            a + b for a, b in zip((tp.backward, cp.backward, ep.backward), repeat, strict=True)
        )
        overhead = SPLIT_BACKWARD_OVERHEAD
        forward = paced((times.forward, tp.forward, cp.forward, ep.forward), floor)
        whole = paced((times.backward + again, *back), floor * (1 + full))
        first = paced((times.input_gradient * overhead + again, *back), floor * (0.5 + full))
        second = paced((times.weight_gradient * overhead, 0.0, 0.0, 0.0), floor * 0.5)
        return [
            _split_us((*forward, shared(gather, sum(forward)))),
            _split_us((*whole, shared(gather + scatter, sum(whole)))),
            _split_us((*first, shared(gather, sum(first)))),
            _split_us((*second, shared(scatter, sum(second)))),
        ]

    @property
    def _shape(self) -> tuple[int, int, int, int, int]:
        d = self.degrees
        return d.tp, d.cp, d.ep, d.etp, d.micro_batch_size

    def _microbatch_sync(self, unit: str, gpu_class: int, option: Option) -> tuple[float, float]:
        """Seconds per microbatch to gather weights (zero3) and scatter gradients (zero2, zero3)."""
        gather = scatter = 0.0
        if option.sharding in ("zero2", "zero3"):
            width = self.problem.training.gradient_bytes
            scatter = self._shard_time("reduce_scatter", unit, gpu_class, width, alone=True)
        if option.sharding == "zero3":
            gather = self._shard_time("all_gather", unit, gpu_class, state.WEIGHT_BYTES, alone=True)
        return gather, scatter

    def _shard_time(
        self,
        op: collectives.Collective,
        unit: str,
        gpu_class: int,
        width: int,
        *,
        alone: bool = False,
    ) -> float:
        """Seconds of a collective of one unit's parameters over its shard group.

        ``alone``: this unit's collective is one of its own, which takes the fastest way; else it is
        part of one over all layers of a stage.  ``width`` 0 gives the latency.
        """
        dense, experts = state.dense_shard(self.degrees), state.expert_shard(self.degrees)
        key = ("shard", self._unit_key(unit), dense, experts, op, gpu_class, width, alone)
        time_of = self._alone_time if alone else self._stage_time
        return self._cached(
            key,
            lambda: sum(
                time_of(op, group.ranks, group.stride, group.parameters * width, gpu_class)
                for group in self.shard_groups(unit)
            ),
        )

    def shard_groups(self, unit: str) -> list[Group]:
        """Who shares the state of a unit: of its dense parameters, and of its routed experts."""
        degrees, held = self.degrees, self._parameters(unit)
        groups = [Group(state.dense_shard(degrees), degrees.tp, held.dense)]
        if held.experts:
            stride = degrees.ep * degrees.etp
            groups.append(Group(state.expert_shard(degrees), stride, held.experts))
        return groups

    def replica_groups(self, unit: str, option: Option, local: int) -> list[Group]:
        """Who adds up the gradients of a unit among ``local`` shard groups of a site.

        Without sharding the context-parallel ranks take part too.
        """
        degrees, held, whole = self.degrees, self._parameters(unit), option.sharding == "ddp"
        dense = 1 if whole else state.dense_shard(degrees)
        ranks = local * (degrees.cp if whole else 1)
        groups = [Group(ranks, degrees.tp * dense, held.dense / dense)]
        if held.experts:
            experts = 1 if whole else state.expert_shard(degrees)
            stride = degrees.ep * degrees.etp
            ranks = local * degrees.dp_shard * degrees.cell_gpus // (stride * experts)
            groups.append(Group(max(1, ranks), stride * experts, held.experts / experts))
        return groups

    def _group_time(
        self,
        op: collectives.Collective,
        ranks: int,
        stride: int,
        size_bytes: float,
        gpu_class: int,
    ) -> float:
        """Seconds of a collective inside a site whose ranks lie ``stride`` GPUs apart."""
        gpu = self.problem.classes[gpu_class]
        near = max(1, gpu.gpu.scale_up_domain // stride)
        if self.stack.flat_rings and ranks > near:
            near = 1
        nic = gpu.group_nic_bytes_per_s(op, ranks, stride)
        return collectives.group_time(op, ranks, near, size_bytes, gpu.gpu, nic, gpu.curves)

    def ways(
        self,
        op: collectives.Collective,
        ranks: int,
        stride: int,
        size_bytes: float,
        gpu_class: int,
    ) -> list[Way]:
        """The ways of a collective inside a site.

        One ring or tree over all scale-up domains; with zones also one for every size of block that
        fits into them: a reduce-scatter in each block, the collective between blocks over what a
        rank then holds, an all-gather in each block (the one or the other where ``op`` is one).
        Each of them is a collective of its own, with the rate that its ranks get.

        Source: reference cost model 4.2.
        """
        found = [Way(self._group_time(op, ranks, stride, size_bytes, gpu_class), None, 1)]
        zones = self.problem.classes[gpu_class].zones
        if zones is None or self.stack.flat_rings:
            return found
        inner: tuple[collectives.Collective, ...] = ("reduce_scatter", "all_gather")
        if op in inner:
            inner = (op,)
        for block in zones.blocks(ranks, stride):
            part = size_bytes / block
            time = self._group_time(op, ranks // block, stride * block, part, gpu_class)
            time += sum(self._group_time(i, block, stride, size_bytes, gpu_class) for i in inner)
            found.append(Way(time, block, 1 + len(inner)))
        return found

    def stage_ways(
        self,
        op: collectives.Collective,
        ranks: int,
        stride: int,
        size_bytes: float,
        gpu_class: int,
    ) -> list[Way]:
        """The same where one unit is part of a collective over all units of a stage.

        The stage pays the latency of one ring or tree once.  A unit that goes by blocks adds what
        their launches and steps take beyond that, so that no sum of units is below a way's time.
        """
        at = self.ways(op, ranks, stride, size_bytes, gpu_class)
        empty = self.ways(op, ranks, stride, 0.0, gpu_class)
        launch = collectives.network_curve(1.0, op, self.problem.classes[gpu_class].curves).launch_s
        found = at[:1]
        for way, late in zip(at[1:], empty[1:], strict=True):
            launches = (way.collectives - 1) * launch
            steps = max(0.0, late.seconds - launches - empty[0].seconds)
            wire = way.seconds - late.seconds
            found.append(way._replace(seconds=empty[0].seconds + wire + launches + steps))
        return found

    def _alone_time(
        self,
        op: collectives.Collective,
        ranks: int,
        stride: int,
        size_bytes: float,
        gpu_class: int,
    ) -> float:
        """Seconds of a collective by the fastest of its ways."""
        return min(way.seconds for way in self.ways(op, ranks, stride, size_bytes, gpu_class))

    def _stage_time(
        self,
        op: collectives.Collective,
        ranks: int,
        stride: int,
        size_bytes: float,
        gpu_class: int,
    ) -> float:
        """The same for a part of a stage's collective; size 0 gives the latency of the stage."""
        return min(w.seconds for w in self.stage_ways(op, ranks, stride, size_bytes, gpu_class))

    def _memory(self, option: Option) -> MemoryCosts:
        model, degrees = self.problem.model, self.degrees
        training = self.problem.training_at(degrees.ep)
        recompute, sharding = option.recompute, option.sharding

        def activation(unit: str) -> int:
            if unit == "embedding":
                return 0
            if unit == "head":
                return activations.head_activation_bytes(
                    model, degrees, training, recompute, self.stack
                )
            return activations.layer_activation_bytes(
                model,
                unit,  # type: ignore[arg-type]
                degrees,
                training,
                recompute,
                self.stack,
            )

        def held(unit: str) -> int:
            if unit in ("embedding", "head"):
                return activation(unit)
            return activations.layer_held_bytes(
                model,
                unit,  # type: ignore[arg-type]
                degrees,
                training,
                self.stack,
            )

        def kept_state(unit: str) -> int:
            ends = unit in ("embedding", "head")
            size = state.end_state_bytes if ends else state.state_bytes
            held = size(self._parameters(unit), degrees, training, sharding, self.stack)
            return _mib(held.total)

        active = self._per_unit(lambda unit: _mib(activation(unit)))
        kept = self._per_unit(lambda unit: _mib(held(unit)))
        arguments = (degrees, training, sharding, recompute, self.stack)
        return MemoryCosts(
            state=self._per_unit(kept_state),
            activation=active,
            split_activation=tuple(max(pair) for pair in zip(active, kept, strict=True)),
            held=kept,
            working=max(_mib(memory.working_bytes(model, k, *arguments)) for k in self.kinds),
            head_working=max(
                _mib(memory.head_working_bytes(model, k, *arguments)) for k in self.kinds
            ),
            step=self._per_unit(
                lambda unit: _mib(
                    state.optimizer_step_bytes(
                        self._parameters(unit), degrees, training, sharding, self.stack
                    )
                )
            ),
            step_working=_mib(memory.CONSTANT_BYTES),
        )

    def _optimizer(self, gpu_class: int, option: Option) -> Units:
        gpu = self.problem.classes[gpu_class].gpu
        return self._per_unit(
            lambda unit: _us(
                compute.optimizer_time(
                    state.optimizer_parameters(
                        self._parameters(unit), self.degrees, option.sharding
                    ),
                    gpu,
                )
            )
        )

    def _inside(self, gpu_class: int, nic_bytes_per_s: float) -> tuple[int, int]:
        site = self.problem.classes[gpu_class]
        size = self.activation_bytes / self.degrees.cell_gpus
        seconds = size / nic_bytes_per_s
        measured = site.curves.find("network", "p2p")
        if measured is None:
            return _us(seconds + collectives.NETWORK_STEP_S), _us(seconds)
        curve = collectives.network_curve(nic_bytes_per_s, "p2p", site.curves)
        delay = curve.launch_s + curve.seconds(1, size)
        return _us(max(seconds, delay)), _us(seconds)

    def _cell(self, source: int, target: int) -> int:
        classes, sites = self.problem.classes, self.problem.sites
        nic = min(classes[sites[d].gpu_class].nic_bytes_per_s for d in (source, target))
        return _us(self.activation_bytes / (self.degrees.cell_gpus * nic))

    def crossing(self, link: int, protocol: str) -> LinkTime:
        """Time of a directed link for one replica's transfer of one microbatch."""
        rate = self.problem.transports[link][protocol].bytes_per_s
        key = ("crossing", self.degrees.micro_batch_size, link, protocol)
        return self._cached(key, lambda: link_time(self.activation_bytes / rate))

    def mib(self, link: int, protocol: str) -> LinkTime:
        """Time of a directed link for one MiB of synchronisation."""
        rate = self.problem.transports[link][protocol].bytes_per_s
        return self._cached(("mib", link, protocol), lambda: link_time(MIB / rate))

    def latency(self, link: int, protocol: str) -> int:
        """Latency of a directed link in µs."""
        rate = self.problem.transports[link][protocol]
        return self._cached(("latency", link, protocol), lambda: _us(rate.latency_s))

    def _sync(self, gpu_class: int, option: Option, sync: Sync, hosts: int) -> SyncCosts:
        """See :meth:`sync`.

        A site has at most ``dp_replicate - hosts + 1`` shard groups, which all-reduce their shards;
        the flat ring goes through all of them.
        """
        degrees, width = self.degrees, self.problem.training.gradient_bytes
        groups = degrees.dp_replicate
        local = groups if sync == "flat" else groups - hosts + 1
        key = (
            "inside sync",
            self._shape,
            degrees.pp,
            degrees.dp,
            degrees.dp_shard,
            gpu_class,
            option.sharding,
            option.spanning,
            local,
        )
        inside = self._cached(key, lambda: self._sync_inside(gpu_class, option, local))
        factors = self._exchange_factors(option, sync, hosts)
        nic = self.problem.classes[gpu_class].nic_bytes_per_s
        port = degrees.dp / hosts * degrees.cell_gpus * nic
        sent = [0.0 if hosts == 1 else f * (hosts - 1) / port for f in factors[:2]]
        return inside._replace(
            reduce_nic=self._per_unit(lambda u: _us(sent[0] * self._whole_parameters(u) * width)),
            gather_nic=self._per_unit(
                lambda u: _us(sent[1] * self._whole_parameters(u) * state.WEIGHT_BYTES)
            ),
            sequential=sync == "hierarchical",
        )

    def _sync_inside(self, gpu_class: int, option: Option, local: int) -> SyncCosts:
        """Synchronisation inside a site with ``local`` shard groups; nothing leaves it."""
        width = self.problem.training.gradient_bytes
        own_reduce = option.sharding == "zero1"
        own_gather = option.sharding in ("zero1", "zero2")

        def scatter(unit: str, width: int, *, alone: bool = False) -> float:
            if not own_reduce:
                return 0.0
            return self._shard_time("reduce_scatter", unit, gpu_class, width, alone=alone)

        def reduce(unit: str, width: int, *, alone: bool = False) -> float:
            replicas = self._replica_time(unit, gpu_class, option, local, width, alone=alone)
            return scatter(unit, width, alone=alone) + replicas

        def first(unit: str, width: int, *, alone: bool = False) -> float:
            return 0.0 if option.spanning else scatter(unit, width, alone=alone)

        def gather(unit: str, width: int, *, alone: bool = False) -> float:
            if not own_gather:
                return 0.0
            return self._shard_time("all_gather", unit, gpu_class, width, alone=alone)

        def latency(time: Callable[[str, int], float]) -> int:
            return _us(max(time(k, 0) for k in self.kinds))

        def units(time: Callable[[str, int], float], width: int) -> Units:
            return self._per_unit(lambda u: _us(max(0.0, time(u, width) - time(u, 0))))

        weights = state.WEIGHT_BYTES
        nothing = (0,) * len(self.units)
        return SyncCosts(
            reduce=units(reduce, width),
            gather=units(gather, weights),
            reduce_latency=latency(reduce),
            gather_latency=latency(gather),
            reduce_tail=min(_us(reduce(k, width, alone=True)) for k in self.kinds),
            gather_tail=min(_us(gather(k, weights, alone=True)) for k in self.kinds),
            reduce_nic=nothing,
            gather_nic=nothing,
            sequential=False,
            scatter=units(first, width),
            scatter_latency=latency(first),
            scatter_tail=min(_us(first(k, width, alone=True)) for k in self.kinds),
        )

    def _replica_time(
        self,
        unit: str,
        gpu_class: int,
        option: Option,
        local: int,
        width: int,
        *,
        alone: bool,
    ) -> float:
        """Seconds of the all-reduce of one unit's gradients among the shard groups of a site.

        ``alone`` and ``width`` as in :meth:`_shard_time`.
        """
        groups = self.replica_groups(unit, option, local)
        members = tuple((group.ranks, group.stride) for group in groups)
        key = ("replicas", self._unit_key(unit), gpu_class, width, alone, members)
        time_of = self._alone_time if alone else self._stage_time

        def all_reduce(group: Group) -> float:
            """Ring or tree, whichever is faster for the size."""
            size = group.parameters * width
            return min(
                time_of("all_reduce", group.ranks, group.stride, size, gpu_class),
                time_of("tree_all_reduce", group.ranks, group.stride, size, gpu_class),
            )

        return self._cached(key, lambda: sum(all_reduce(group) for group in groups))

    def _exchange_factors(
        self, option: Option, sync: Sync, hosts: int
    ) -> tuple[float, float, int, int]:
        """How often one pair of sites carries the gradients and the parameters of a stage.

        Between ``N`` hosting sites a direct exchange moves ``1/N`` of the gradients per pair for
        the reduce-scatter and as much for the all-gather (cost model 4.2); a flat ring of ``n``
        members moves ``(n - 1)/n`` of them over each hop.  Where shard groups span sites, gradients
        are only reduce-scattered and parameters all-gathered, with zero2 and zero3 once per
        microbatch.

        Returns
        -------
        tuple
            Share of the gradient bytes, share of the parameter bytes, latencies of each.
        """
        if hosts == 1:
            return 0.0, 0.0, 0, 0
        degrees, m = self.degrees, self.num_microbatches
        members = degrees.dp if option.spanning else degrees.dp_replicate
        share = 1 / hosts if sync == "hierarchical" else (members - 1) / members
        steps = 1 if sync == "hierarchical" else members - 1
        if not option.spanning:
            return 2 * share, 0.0, 2 * steps, 0
        reduces = m if option.sharding in ("zero2", "zero3") else 1
        gathers = 2 * m if option.sharding == "zero3" else 1
        return reduces * share, gathers * share, reduces * steps, gathers * steps

    def _exchange(self, option: Option, sync: Sync, hosts: int) -> ExchangeCosts:
        gradients, parameters, reduces, gathers = self._exchange_factors(option, sync, hosts)
        width = self.problem.training.gradient_bytes

        def amount(share: float, size: int) -> Units:
            return self._per_unit(lambda u: _mib(share * size * self._whole_parameters(u)))

        gradient, parameter = amount(gradients, width), amount(parameters, state.WEIGHT_BYTES)
        layers = range(len(self.kinds))
        return ExchangeCosts(
            gradient=gradient,
            parameter=parameter,
            gradient_tail=min(gradient[u] for u in layers),
            parameter_tail=min(parameter[u] for u in layers),
            gradient_latencies=reduces,
            parameter_latencies=gathers,
        )


class _UnitTimes(NamedTuple):
    """Seconds of one unit: computation, and what it exposes of TP, CP and EP communication."""

    times: compute.LayerTimes
    tp: collectives.Communication
    cp: collectives.Communication
    ep: collectives.Communication


def _unit_times(
    problem: Problem, shape: tuple[int, int, int, int, int], unit: str, gpu_class: int
) -> _UnitTimes:
    """Seconds of one unit under (tp, cp, ep, etp, microbatch size) on a GPU class."""
    tp, cp, ep, etp, micro_batch_size = shape
    degrees = Degrees(tp, cp, ep, etp, 1, 1, micro_batch_size, 1, 1)
    model, training = problem.model, problem.training_at(ep)
    ref = problem.classes[gpu_class]
    gpu, nic, curves = ref.gpu, ref.nic_bytes_per_s, ref.curves
    stack: Stack = problem.instance.stack
    silent = collectives.SILENT
    if unit in ("embedding", "head"):
        at_embedding, at_head = collectives.vocabulary_parallel(
            model, gpu, degrees, training, nic, curves
        )
        if unit == "embedding":
            times = compute.embedding_times(model, gpu, degrees, training, stack)
            return _UnitTimes(times, at_embedding, silent, silent)
        times = compute.head_times(model, gpu, degrees, training, stack)
        if not model.num_mtp_layers:
            return _UnitTimes(times, at_head, silent, silent)
        layer = _unit_times(problem, shape, mtp_kind(model), gpu_class)
        return _UnitTimes(
            times,
            at_head + layer.tp.scaled(model.num_mtp_layers),
            layer.cp.scaled(model.num_mtp_layers),
            layer.ep.scaled(model.num_mtp_layers),
        )
    times = compute.layer_times(model, unit, gpu, degrees, training, stack)  # type: ignore[arg-type]

    def part(
        communication: collectives.Communication, share: float, work: tuple[float, float]
    ) -> collectives.Communication:
        return collectives.Communication(
            exposed(communication.forward, work[0], share),
            exposed(communication.backward, work[1], share),
        )

    whole = (times.forward, times.input_gradient)
    core = (times.core_attention, 2 * times.core_attention)
    return _UnitTimes(
        times,
        part(
            collectives.tensor_parallel(
                model,
                unit,  # type: ignore[arg-type]
                gpu,
                degrees,
                training,
                nic,
                stack,
                curves,
            ),
            stack.tp_exposed,
            whole,
        ),
        part(
            collectives.context_parallel(
                model, gpu, degrees, training, ref.group_nic_bytes_per_s("p2p", cp, tp), curves
            ),
            0.0,
            core,
        ),
        part(
            collectives.expert_parallel(
                model,
                unit,  # type: ignore[arg-type]
                gpu,
                degrees,
                training,
                ref.group_nic_bytes_per_s("all_to_all", ep, etp),
                curves,
            ),
            stack.ep_exposed,
            whole,
        ),
    )


def _us(seconds: float) -> int:
    """Whole µs, rounded up; a hair of floating-point dust does not count."""
    return ceil(seconds * 1e6 - 1e-6)


def _mib(size_bytes: float) -> int:
    """Whole MiB, rounded up."""
    return ceil(size_bytes / MIB - 1e-9)


def _split_us(seconds: tuple[float, ...]) -> tuple[int, ...]:
    """Whole µs per cause that sum to the whole, rounded up; the remainder goes to computation."""
    parts = [floor(s * 1e6) for s in seconds]
    parts[0] += _us(sum(seconds)) - sum(parts)
    return tuple(parts)


def case_coefficients(problem: Problem, degrees: Degrees) -> CaseCoefficients:
    """The coefficients of a degrees case, cached with the problem."""
    key = ("case", degrees)
    found = problem.coefficient_cache.get(key)
    if found is None:
        found = CaseCoefficients(problem, degrees)
        problem.coefficient_cache[key] = found
    return found
