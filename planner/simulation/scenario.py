"""A plan as a scenario of the event simulation.

The integers are those of :mod:`planner.cost.coefficients`, in ticks of 1/100,000 µs, in which the
time of every load on a link is a whole number (:data:`TICKS_PER_US`).  How they are put together is
independent of the time model:

- Every cell has the op times of its own GPU class, where the time model takes the slowest.
- A transfer leaves through the port of its cell and, between sites, passes the links of its route;
  it carries the load of the replicas of its own strand, and shares links with whatever else comes.
- Where several device edges share a link, it serves their transfers in the order of the plan.
- Every layer is a bucket of the synchronisation where it is overlapped, the whole stage is one
  where it is not.  Buckets of all stages share the links with each other and with the transfers.
- Transfers have priority over the synchronisation.  Of the exchanges those of the stages that need
  their parameters first, and whose gradients are complete first, go first: stage 0 first with
  parameters, the last stage first with gradients.
- With overlap the parameters are gathered in the order of the chunks, and a layer of the first
  forward waits for its own; the gradients of a layer are reduced when its last backward has run.
- Where shard groups span sites, ``zero2`` and ``zero3`` exchange in every microbatch; as in the
  time model all of that is one exchange at the ends of the iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from planner.check import chunk_units, dot, durations_of_layout, orders_of_layout, stage_units
from planner.cost.coefficients import (
    LINK_DIGITS,
    CaseCoefficients,
    ExchangeCosts,
    LinkTime,
    OpCosts,
    SyncCosts,
    Units,
)
from planner.layout import Layout, sync_pairs
from planner.pipeline.link_orders import Turn
from planner.pipeline.ops import Op, OpKind
from planner.pipeline.schedules import SCHEDULES, chunk_devices, device_orders
from planner.pipeline.simulator import (
    Bucket,
    Cell,
    Exchange,
    Hop,
    Part,
    Route,
    Scenario,
    Send,
    Step,
)
from planner.problem import Problem
from planner.simulation.strands import Strand, strands

TICKS_PER_US = LINK_DIGITS
"""Ticks of one µs: the least number in which all link times are whole."""

PIECES_PER_LAYER = 8
"""Pieces in which the exchange of one layer goes out, so that transfers get their turn."""


def link_ticks(time: LinkTime, load: int) -> int:
    """Ticks of ``load`` units on a link, exact."""
    return load * time.numerator * (TICKS_PER_US // time.scale)


@dataclass(frozen=True, eq=False)
class PlanScenario:
    """The scenario of one layout, with what its numbers stand for.

    Cell ``strand * pp + stage``; link numbers are those of the problem, then come the ports of the
    cells, then the ports of the teams.  A team is a stage at a site.
    """

    problem: Problem
    co: CaseCoefficients
    layout: Layout

    @cached_property
    def strands(self) -> tuple[Strand, ...]:
        """Replicas that behave alike."""
        return strands(self.layout.flows, self.layout.replicas[0], self.pp)

    @property
    def pp(self) -> int:
        """Number of stages."""
        return self.layout.degrees.pp

    @cached_property
    def orders(self) -> tuple[tuple[Op, ...], ...]:
        """Op order of every stage."""
        return device_orders(self.layout.template(self.co.num_microbatches))

    @cached_property
    def devices(self) -> tuple[int, ...]:
        """Stage of every chunk."""
        return chunk_devices(self.layout.schedule, self.pp, self.layout.degrees.virtual_stages)

    @cached_property
    def counts(self) -> tuple[Units, ...]:
        """Units of every chunk."""
        return chunk_units(self.co, self.layout.layers)

    @cached_property
    def stage_counts(self) -> tuple[Units, ...]:
        """Units of every stage."""
        return stage_units(self.counts, self.devices, self.pp)

    @cached_property
    def teams(self) -> tuple[tuple[int, int], ...]:
        """Stage and site of every team."""
        return tuple((s, d) for s in range(self.pp) for d in self.layout.hosts(s))

    @cached_property
    def team_number(self) -> dict[tuple[int, int], int]:
        """Number of a team."""
        return {team: i for i, team in enumerate(self.teams)}

    @property
    def split(self) -> bool:
        """Whether the weight gradients are ops of their own."""
        return SCHEDULES[self.layout.schedule].split_backward

    @property
    def num_ports(self) -> int:
        """Ports of cells."""
        return len(self.strands) * self.pp

    @property
    def estimated_events(self) -> int:
        """About how many things happen, before anything is built: ops, transfers, exchanges."""
        layout, pp = self.layout, self.pp
        ops = len(self.strands) * self.co.num_microbatches * len(self.devices) * 3
        exchanges = 0
        for s in range(pp):
            pairs = sync_pairs(layout.hosts(s), layout.sync)
            hops = sum(1 + len(self.problem.routes[pair]) for pair in pairs)
            exchanges += hops * PIECES_PER_LAYER * sum(self.stage_counts[s])
        return 2 * ops + exchanges

    def site_of(self, cell: int) -> int:
        """Site of a cell."""
        return self.strands[cell // self.pp].sites[cell % self.pp]

    def gpu_class(self, site: int) -> int:
        """GPU class of a site."""
        return self.problem.sites[site].gpu_class

    def op_costs(self, cell: int) -> OpCosts:
        """Durations of ops per unit, in µs."""
        return self.co.ops(self.gpu_class(self.site_of(cell)), self.layout.option)

    def op_units(self, cell: int, kind: OpKind) -> Units:
        """µs per unit of an op of this kind."""
        costs = self.op_costs(cell)
        if kind == "F":
            return costs.forward
        if kind == "W":
            return costs.weight_gradient
        return costs.input_gradient if self.split else costs.backward

    def scenario(self) -> Scenario:
        """Build the scenario."""
        sync = _Synchronisation(self)
        cells = []
        for number in range(self.num_ports):
            s = number % self.pp
            cells.append(
                Cell(
                    stage=s,
                    ticks=self._ticks(number),
                    sends=self.sends(number),
                    waits=sync.waits(number),
                    readies=sync.readies(number),
                    last=tuple(sync.reductions[s]),
                    tail=self.optimizer_us(number) * TICKS_PER_US,
                )
            )
        return Scenario(
            orders=self.orders,
            cells=cells,
            links=len(self.problem.links) + self.num_ports + len(self.teams),
            buckets=sync.buckets,
            team_of=[self.team_number[c % self.pp, self.site_of(c)] for c in range(self.num_ports)],
            turns=self.turns,
        )

    @cached_property
    def turns(self) -> dict[int, list[Turn]]:
        """The order of transfers at every link that several boundaries or directions share."""
        orders = orders_of_layout(self.problem, self.co, self.layout)
        if orders is None:
            return {}
        _, number = orders.best(durations_of_layout(self.problem, self.co, self.layout))
        return orders.turns(number)

    def optimizer_us(self, cell: int) -> int:
        """Optimizer step of a cell, µs."""
        gpu_class = self.gpu_class(self.site_of(cell))
        units = self.stage_counts[cell % self.pp]
        return dot(units, self.co.optimizer(gpu_class, self.layout.option))

    def _ticks(self, cell: int) -> dict[tuple[OpKind, int], int]:
        kinds: tuple[OpKind, ...] = ("F", "B", "W") if self.split else ("F", "B")
        return {
            (kind, k): dot(self.counts[k], self.op_units(cell, kind)) * TICKS_PER_US
            for k, device in enumerate(self.devices)
            if device == cell % self.pp
            for kind in kinds
        }

    @cached_property
    def _before(self) -> dict[int, int]:
        """The strand that goes on into each strand."""
        return {strand.after: i for i, strand in enumerate(self.strands)}

    def sends(self, cell: int) -> dict[tuple[OpKind, int], Send]:
        """Where the results of a cell's ops go, by kind and chunk."""
        own, s = divmod(cell, self.pp)
        result: dict[tuple[OpKind, int], Send] = {}
        for k, device in enumerate(self.devices):
            if device != s:
                continue
            ways: tuple[tuple[OpKind, int], ...] = (("F", k + 1), ("B", k - 1))
            for kind, target in ways:
                if not 0 <= target < len(self.devices) or self.devices[target] == s:
                    continue
                strand = own
                if self._loops and s == (self.pp - 1 if kind == "F" else 0):
                    strand = self.strands[own].after if kind == "F" else self._before[own]
                receiver = strand * self.pp + self.devices[target]
                result[kind, k] = Send(receiver, self._route(cell, receiver))
        return result

    @property
    def _loops(self) -> bool:
        return SCHEDULES[self.layout.schedule].chunk_map == "loop"

    def _route(self, sender: int, receiver: int) -> Route:
        """The way of one microbatch's activations or gradients from one cell to another."""
        port = len(self.problem.links) + sender
        source, target = self.site_of(sender), self.site_of(receiver)
        if source == target:
            delay, occupancy = self.co.inside(self.gpu_class(source))
            service = occupancy * TICKS_PER_US
            return (Hop(port, service, delay * TICKS_PER_US - service),)
        replicas = self.strands[sender // self.pp].replicas
        hops = [Hop(port, self.co.cell(source, target) * TICKS_PER_US, 0)]
        for link in self.problem.routes[source, target]:
            protocol = self.layout.protocols[link][0]
            service = link_ticks(self.co.crossing(link, protocol), replicas)
            hops.append(Hop(link, service, self.co.latency(link, protocol) * TICKS_PER_US))
        return tuple(hops)


class _Synchronisation:
    """Buckets of a plan: the gathers of all stages first, then the reductions."""

    def __init__(self, plan: PlanScenario) -> None:
        self.plan = plan
        self.buckets: list[Bucket] = []
        self.gathers: list[list[int]] = []
        self.reductions: list[list[int]] = []
        self._units: dict[int, tuple[int, int]] = {}
        for s in range(plan.pp):
            self.gathers.append(self._stage(s, gradient=False))
        for s in range(plan.pp):
            self.reductions.append(self._stage(s, gradient=True))

    def waits(self, cell: int) -> dict[int, tuple[Step, ...]]:
        """Steps of the ops that wait for parameters, by position."""
        s = cell % self.plan.pp
        buckets = self.gathers[s]
        if not buckets:
            return {}
        order = self.plan.orders[s]
        if not self.plan.layout.option.overlap:
            return {0: (Step(buckets[0], self._length(cell, order[0])),)}
        found = {}
        for k in self._chunks(s):
            position = next(i for i, op in enumerate(order) if op[:2] == ("F", k))
            found[position] = self._steps(cell, "F", k, buckets)
        return found

    def readies(self, cell: int) -> dict[int, tuple[Step, ...]]:
        """Steps of the ops that complete gradients, by position."""
        s = cell % self.plan.pp
        buckets = self.reductions[s]
        if not buckets:
            return {}
        order = self.plan.orders[s]
        end = len(order) - 1
        if not self.plan.layout.option.overlap:
            return {end: (Step(buckets[0], self._length(cell, order[end])),)}
        kind: OpKind = "W" if self.plan.split else "B"
        found = {}
        for k in self._chunks(s):
            position = max(i for i, op in enumerate(order) if op[:2] == (kind, k))
            found[position] = self._steps(cell, kind, k, buckets)[::-1]
        return found

    def _length(self, cell: int, op: Op) -> int:
        units = self.plan.op_units(cell, op.kind)
        return dot(self.plan.counts[op.chunk], units) * TICKS_PER_US

    def _steps(self, cell: int, kind: OpKind, chunk: int, buckets: list[int]) -> tuple[Step, ...]:
        units = self.plan.op_units(cell, kind)
        return tuple(
            Step(bucket, units[unit] * TICKS_PER_US)
            for bucket in buckets
            for k, unit in (self._units[bucket],)
            if k == chunk
        )

    def _chunks(self, stage: int) -> list[int]:
        return [k for k, device in enumerate(self.plan.devices) if device == stage]

    def _stage(self, stage: int, *, gradient: bool) -> list[int]:
        """Number the buckets of one stage, in the order of its layers; none if nothing is to do."""
        plan = self.plan
        hosts = plan.layout.hosts(stage)
        sync = [
            plan.co.sync(plan.gpu_class(d), plan.layout.option, plan.layout.sync, len(hosts))
            for d in hosts
        ]
        costs = plan.co.exchange(plan.layout.option, plan.layout.sync, len(hosts))
        loads: list[tuple[int, int, Units]] = []
        if plan.layout.option.overlap:
            for k in self._chunks(stage):
                for unit in self._layers(k):
                    one = tuple(int(u == unit) for u in range(len(plan.co.units)))
                    loads.append((k, unit, one))
        else:
            loads.append((-1, -1, plan.stage_counts[stage]))
        numbers = []
        buckets = [self._bucket(stage, load, sync, costs, gradient) for _, _, load in loads]
        if not any(
            part.network or part.latency or part.exchanges
            for bucket in buckets
            for part in bucket.parts
        ):
            return []
        for (k, unit, _), bucket in zip(loads, buckets, strict=True):
            self._units[len(self.buckets)] = (k, unit)
            numbers.append(len(self.buckets))
            self.buckets.append(bucket)
        return numbers

    def _layers(self, chunk: int) -> list[int]:
        """Units of a chunk in the order of the forward."""
        co, layers = self.plan.co, self.plan.layout.layers
        first = sum(layers[:chunk])
        units = list(co.layer_units[first : first + layers[chunk]])
        if chunk == 0:
            units.insert(0, co.units.index("embedding"))
        if chunk == len(layers) - 1:
            units.append(co.units.index("head"))
        return units

    def _bucket(
        self,
        stage: int,
        load: Units,
        sync: Sequence[SyncCosts],
        costs: ExchangeCosts,
        gradient: bool,
    ) -> Bucket:
        plan = self.plan
        hosts = plan.layout.hosts(stage)
        pairs = sync_pairs(hosts, plan.layout.sync)
        parts = []
        for d, c in zip(hosts, sync, strict=True):
            network = dot(load, c.reduce if gradient else c.gather)
            latency = c.reduce_latency if gradient else c.gather_latency
            scatter = dot(load, c.scatter) + c.scatter_latency if gradient else 0
            nic = dot(load, c.reduce_nic if gradient else c.gather_nic) * TICKS_PER_US
            mib = dot(load, costs.gradient if gradient else costs.parameter)
            times = costs.gradient_latencies if gradient else costs.parameter_latencies
            own = [pair for pair in pairs if pair[0] == d]
            exchanges = tuple(
                self._exchange(stage, pair, nic // len(own), mib, times, sum(load))
                for pair in own
                if mib or times
            )
            ready = 0
            if gradient:
                ready = sum(strand.sites[stage] == d for strand in plan.strands)
            parts.append(
                Part(
                    plan.team_number[stage, d],
                    ready,
                    network * TICKS_PER_US,
                    latency * TICKS_PER_US,
                    exchanges,
                    scatter * TICKS_PER_US,
                )
            )
        rank = plan.pp - 1 - stage if gradient else stage
        return Bucket(tuple(parts), sync[0].sequential, rank)

    def _exchange(
        self, stage: int, pair: tuple[int, int], nic: int, mib: int, times: int, layers: int
    ) -> Exchange:
        plan = self.plan
        port = len(plan.problem.links) + plan.num_ports + plan.team_number[stage, pair[0]]
        hops = [Hop(port, nic, 0)]
        for link in plan.problem.routes[pair]:
            protocol = plan.layout.protocols[link][1]
            latency = times * plan.co.latency(link, protocol) * TICKS_PER_US
            hops.append(Hop(link, link_ticks(plan.co.mib(link, protocol), mib), latency))
        return Exchange(tuple(hops), PIECES_PER_LAYER * layers)
