"""The specification: whether a plan is legal and feasible, and how long its iteration is.

Everything is recomputed in exact integers from the instance and the plan.  No solver, no
formulation and no search is involved; every plan from anywhere passes through here.  The rules are
those of ``docs/plan_space.md``, the arithmetic that of ``docs/time_model.md``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from planner.cost.coefficients import (
    PARTS,
    CaseCoefficients,
    OpCosts,
    Option,
    SyncCosts,
    Units,
    case_coefficients,
)
from planner.cost.profile_use import ProfileUse, profile_uses, profile_uses_to_json
from planner.instance.schema import Instance
from planner.layout import Layout, boundary_edges, sharing_of, sync_pairs
from planner.legality import Violation, layout_violations
from planner.pipeline.event_graph import Duration, event_graph
from planner.pipeline.link_orders import LinkOrders, link_orders
from planner.pipeline.memory import live_counts
from planner.pipeline.ops import OpKind
from planner.pipeline.schedules import SCHEDULES, Template, chunk_devices, device_orders
from planner.plan import Plan
from planner.problem import Problem


class StageMemory(NamedTuple):
    """Peak memory of a GPU that runs ``stage`` at ``site``, MiB."""

    stage: int
    site: str
    state_mib: int
    activations_mib: int
    working_mib: int
    step_mib: int
    """What the optimizer step allocates; then no activations are alive."""
    limit_mib: int

    @property
    def peak_mib(self) -> int:
        """State, and the larger of activations with working set and the optimizer step."""
        return self.state_mib + max(self.activations_mib + self.working_mib, self.step_mib)

    def is_tight(self, share: float) -> bool:
        """Whether less than ``share`` of the limit is left."""
        return self.limit_mib - self.peak_mib < share * self.limit_mib


@dataclass(frozen=True)
class Price:
    """What a layout costs: ``time_us`` = Z, its parts, and the memory of every stage and site.

    ``orders`` are the event graphs with the links that transfers share; None where they share none.
    """

    time_us: int
    breakdown_us: dict[str, int]
    memory: tuple[StageMemory, ...]
    critical_path: dict[Duration, int]
    durations: dict[Duration, int]
    orders: LinkOrders | None


@dataclass(frozen=True)
class CheckReport:
    """Verdict on one plan.

    ``time_us`` is Z where the plan is complete enough to be priced, whether or not every rule
    holds; ``feasible`` says that none is violated. Stages that leave less than ``tight_share`` of
    their memory limit are called tight; ``profiles`` says how far measured GPUs carry Z.
    """

    feasible: bool
    violations: tuple[Violation, ...]
    time_us: int | None
    breakdown_us: dict[str, int]
    memory: tuple[StageMemory, ...]
    tight_share: float
    profiles: tuple[ProfileUse, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The report as one JSON object, times in seconds."""
        return {
            "accepted": self.feasible,
            "violations": [v._asdict() for v in self.violations],
            "iteration_time_s": None if self.time_us is None else self.time_us / 1e6,
            "iteration_time_us": self.time_us,
            "breakdown": {name: us / 1e6 for name, us in self.breakdown_us.items()},
            "memory": memory_to_json(self.memory, self.tight_share),
            "memory_tight": any(row.is_tight(self.tight_share) for row in self.memory),
            **({"profile": profile_uses_to_json(self.profiles)} if self.profiles else {}),
        }


def memory_to_json(rows: Iterable[StageMemory], tight_share: float) -> list[dict[str, Any]]:
    """Memory rows with bytes in place of MiB; tight are those that leave less than the share."""
    return [
        {
            "stage": row.stage,
            "site": row.site,
            "state_bytes": row.state_mib << 20,
            "activation_bytes": row.activations_mib << 20,
            "working_bytes": row.working_mib << 20,
            "optimizer_step_bytes": row.step_mib << 20,
            "peak_bytes": row.peak_mib << 20,
            "limit_bytes": row.limit_mib << 20,
            "tight": row.is_tight(tight_share),
        }
        for row in rows
    ]


def check_plan(instance: Instance, plan: Plan) -> CheckReport:
    """Check a plan against every rule of the plan space and recompute its iteration time.

    Parameters
    ----------
    instance
        The training job.
    plan
        The plan; it may come from anywhere.

    Returns
    -------
    CheckReport
        All violated rules with their numbers (rules that need a well-formed plan are looked at only
        where it is one), Z in µs, its breakdown and the memory of every stage at every site.
    """
    problem = Problem(instance)
    violations, layout = layout_violations(problem, plan)
    if layout is None:
        return CheckReport(False, tuple(violations), None, {}, (), instance.tight_share)
    co = case_coefficients(problem, layout.degrees)
    price = price_layout(problem, co, layout)
    violations += memory_violations(price.memory)
    return CheckReport(
        not violations,
        tuple(violations),
        price.time_us,
        price.breakdown_us,
        price.memory,
        instance.tight_share,
        profiles_of_layout(problem, co, layout),
    )


def memory_violations(rows: Iterable[StageMemory]) -> list[Violation]:
    """The memory rule of every stage and site that does not hold."""
    return [
        Violation(
            "memory",
            f"stage {row.stage} at site '{row.site}' needs {row.peak_mib / 1024:.2f} GiB a GPU "
            f"({_memory_parts(row)}), the limit is {row.limit_mib / 1024:.2f}",
        )
        for row in rows
        if row.peak_mib > row.limit_mib
    ]


def _memory_parts(row: StageMemory) -> str:
    """The parts of the peak in GiB."""
    state = f"{row.state_mib / 1024:.2f} state"
    if row.step_mib > row.activations_mib + row.working_mib:
        return f"{state}, {row.step_mib / 1024:.2f} optimizer step"
    return (
        f"{state}, {row.activations_mib / 1024:.2f} activations, "
        f"{row.working_mib / 1024:.2f} working set"
    )


def price_layout(problem: Problem, co: CaseCoefficients, layout: Layout) -> Price:
    """Z, breakdown and memory of a well-formed layout."""
    template = layout.template(co.num_microbatches)
    counts = chunk_units(co, layout.layers)
    durations = layout_durations(problem, co, layout, first_chunks(template), last_ops(template))
    orders = orders_of_layout(problem, co, layout)
    if orders is None:
        length, path = event_graph(template).critical_path(durations)
    else:
        best = min(orders.critical_paths(durations), key=lambda found: found.length)
        length, path = best.length, best.coefficients
    time_us = co.fixed_us + length
    return Price(
        time_us=time_us,
        breakdown_us=_breakdown(problem, co, layout, counts, template, durations, time_us),
        memory=_memory(problem, co, layout, template, counts),
        critical_path=path,
        durations=durations,
        orders=orders,
    )


def time_of_layout(problem: Problem, co: CaseCoefficients, layout: Layout) -> int:
    """Z alone, in µs: the longest path of the event graph in the best order of its links."""
    durations = durations_of_layout(problem, co, layout)
    orders = orders_of_layout(problem, co, layout)
    graph = event_graph(layout.template(co.num_microbatches)) if orders is None else orders
    return co.fixed_us + graph.evaluate(durations)


def time_below(
    problem: Problem, co: CaseCoefficients, layout: Layout, limit_us: int | None
) -> int | None:
    """Z in µs where it is below a limit, else None; faster than Z where it is not."""
    durations = durations_of_layout(problem, co, layout)
    graph = event_graph(layout.template(co.num_microbatches))
    time_us = co.fixed_us + graph.evaluate(durations)
    if limit_us is not None and time_us >= limit_us:
        return None
    orders = orders_of_layout(problem, co, layout)
    if orders is not None:
        time_us = co.fixed_us + orders.evaluate(durations)
    return time_us if limit_us is None or time_us < limit_us else None


def orders_of_layout(problem: Problem, co: CaseCoefficients, layout: Layout) -> LinkOrders | None:
    """The event graphs with the links that transfers of a layout share; None if they share none."""
    sharing = sharing_of(problem, layout.flows, layout.degrees.pp)
    return None if sharing is None else link_orders(layout.template(co.num_microbatches), sharing)


def durations_of_layout(
    problem: Problem, co: CaseCoefficients, layout: Layout
) -> dict[Duration, int]:
    """The value in µs of every duration of the event graph."""
    template = layout.template(co.num_microbatches)
    return layout_durations(problem, co, layout, first_chunks(template), last_ops(template))


def memory_of_layout(
    problem: Problem, co: CaseCoefficients, layout: Layout
) -> tuple[StageMemory, ...]:
    """Peak memory of every stage at every site that runs it."""
    template = layout.template(co.num_microbatches)
    return _memory(problem, co, layout, template, chunk_units(co, layout.layers))


def profiles_of_layout(
    problem: Problem, co: CaseCoefficients, layout: Layout
) -> tuple[ProfileUse, ...]:
    """What the layout takes from the measurements of its GPUs."""
    degrees = layout.degrees
    devices = chunk_devices(layout.schedule, degrees.pp, degrees.virtual_stages)
    units: dict[int, set[str]] = {}
    for s, counts in enumerate(stage_units(chunk_units(co, layout.layers), devices, degrees.pp)):
        names = {name for name, count in zip(co.units, counts, strict=True) if count}
        for d in layout.hosts(s):
            units.setdefault(d, set()).update(names)
    return profile_uses(problem, degrees, units)


def chunk_units(co: CaseCoefficients, layers: Sequence[int]) -> tuple[Units, ...]:
    """Units of every chunk: its layers by kind, the embedding first and the head last."""
    result = []
    position = 0
    for k, count in enumerate(layers):
        units = [0] * len(co.units)
        for layer in range(position, position + count):
            units[co.layer_units[layer]] += 1
        position += count
        units[co.units.index("embedding")] += k == 0
        units[co.units.index("head")] += k == len(layers) - 1
        result.append(tuple(units))
    return tuple(result)


def dot(left: Sequence[int], right: Sequence[int]) -> int:
    """Sum of products."""
    return sum(a * b for a, b in zip(left, right, strict=True))


def stage_units(
    counts: Sequence[Units], devices: Sequence[int], num_stages: int
) -> tuple[Units, ...]:
    """Units of every stage: the sum over its chunks."""
    result = [[0] * len(counts[0]) for _ in range(num_stages)]
    for units, device in zip(counts, devices, strict=True):
        for u, count in enumerate(units):
            result[device][u] += count
    return tuple(tuple(row) for row in result)


@lru_cache(maxsize=4096)
def last_ops(template: Template) -> tuple[tuple[OpKind, int], ...]:
    """Kind and chunk of the last op of every device."""
    return tuple((order[-1].kind, order[-1].chunk) for order in device_orders(template))


@lru_cache(maxsize=4096)
def first_chunks(template: Template) -> tuple[int, ...]:
    """Chunk of the first op of every device."""
    return tuple(order[0].chunk for order in device_orders(template))


def layout_durations(
    problem: Problem,
    co: CaseCoefficients,
    layout: Layout,
    first: Sequence[int],
    last: Sequence[tuple[OpKind, int]],
) -> dict[Duration, int]:
    """The value of every duration of the event graph, in µs.

    Parameters
    ----------
    problem, co, layout
        A well-formed layout; of its schedule only the chunk map and the split backward count.
    first, last
        By device, the chunk of its first forward, and kind and chunk of its last op: what
        overlapped synchronisation can hide behind.
    """
    counts = chunk_units(co, layout.layers)
    split = SCHEDULES[layout.schedule].split_backward
    devices = chunk_devices(layout.schedule, layout.degrees.pp, layout.degrees.virtual_stages)
    classes = _host_classes(problem, layout)
    values: dict[Duration, int] = {}
    for k, units in enumerate(counts):
        ops = [co.ops(g, layout.option) for g in classes[devices[k]]]
        values[Duration("F", k)] = max(dot(units, op.forward) for op in ops)
        if split:
            values[Duration("B", k)] = max(dot(units, op.input_gradient) for op in ops)
            values[Duration("W", k)] = max(dot(units, op.weight_gradient) for op in ops)
        else:
            values[Duration("B", k)] = max(dot(units, op.backward) for op in ops)
    values |= _transfer_durations(problem, co, layout)
    values |= _sync_durations(problem, co, layout, counts, values, first, last)
    return values


def _host_classes(problem: Problem, layout: Layout) -> list[tuple[int, ...]]:
    """GPU classes of the sites that run each stage."""
    return [
        tuple(sorted({problem.sites[d].gpu_class for d in layout.hosts(s)}))
        for s in range(layout.degrees.pp)
    ]


def link_services(
    problem: Problem, co: CaseCoefficients, layout: Layout
) -> dict[tuple[int, int, int], int]:
    """µs that a directed link needs for one transfer of all replicas of a directed device edge.

    By device edge and link.  Where two boundaries use the same edge the larger number counts.
    """
    pp = layout.degrees.pp
    most: dict[tuple[int, int, int], int] = {}
    for b, moves in enumerate(layout.flows):
        there, back = boundary_edges(b, pp)
        load: dict[tuple[int, int, int], int] = {}
        for source, target, replicas in moves:
            if source != target:
                for edge, pair in ((there, (source, target)), (back, (target, source))):
                    for link in problem.routes[pair]:
                        load[*edge, link] = load.get((*edge, link), 0) + replicas
        for key, count in load.items():
            most[key] = max(most.get(key, 0), count)
    return {
        key: co.crossing(key[2], layout.protocols[key[2]][0]).us(count)
        for key, count in most.items()
    }


def _transfer_durations(
    problem: Problem, co: CaseCoefficients, layout: Layout
) -> dict[Duration, int]:
    """Durations of every directed device edge (docs/time_model.md, section 4).

    Delay and occupancy where nothing else uses its links, and what it needs of each link.
    """
    services = link_services(problem, co, layout)
    values = _unhindered(problem, co, layout, services)
    pp = layout.degrees.pp
    for key, service in services.items():
        values[Duration("service", key)] = service
        values[Duration("latency", key)] = co.latency(key[2], layout.protocols[key[2]][0])
    for b, moves in enumerate(layout.flows):
        there, back = boundary_edges(b, pp)
        for source, target, _ in moves:
            if source != target:
                for edge, pair in ((there, (source, target)), (back, (target, source))):
                    values[Duration("port", (*edge, *pair))] = co.cell(*pair)
    return values


def share_durations(problem: Problem, co: CaseCoefficients, layout: Layout) -> dict[Duration, int]:
    """Delay and occupancy of every directed device edge where links are divided, in µs.

    Every link gives each device edge a share of its capacity in proportion to what the edge sends
    at once, whether or not the others send.  No order is needed, so this is how a link is used
    where the ops have no template.
    """
    load: dict[int, int] = {}
    for moves in layout.flows:
        for source, target, replicas in moves:
            if source != target:
                for pair in ((source, target), (target, source)):
                    for link in problem.routes[pair]:
                        load[link] = load.get(link, 0) + replicas
    services = {
        key: co.crossing(key[2], layout.protocols[key[2]][0]).us(load[key[2]])
        for key in link_services(problem, co, layout)
    }
    return _unhindered(problem, co, layout, services)


def _unhindered(
    problem: Problem,
    co: CaseCoefficients,
    layout: Layout,
    services: Mapping[tuple[int, int, int], int],
) -> dict[Duration, int]:
    """Delay and occupancy of device edges that need so many µs of each link, and wait for none."""
    pp = layout.degrees.pp
    values: dict[Duration, int] = {}
    for b, moves in enumerate(layout.flows):
        for edge, forward in zip(boundary_edges(b, pp), (True, False), strict=True):
            delay = occupancy = 0
            for source, target, _ in moves:
                if source == target:
                    site_delay, site_occupancy = co.inside(problem.sites[source].gpu_class)
                else:
                    pair = (source, target) if forward else (target, source)
                    route = problem.routes[pair]
                    site_occupancy = max(
                        [co.cell(*pair), *(services[*edge, link] for link in route)]
                    )
                    latency = sum(co.latency(link, layout.protocols[link][0]) for link in route)
                    site_delay = latency + site_occupancy
                delay = max(delay, site_delay)
                occupancy = max(occupancy, site_occupancy)
            key = Duration("delay", edge)
            values[key] = max(values.get(key, 0), delay)
            key = Duration("occupancy", edge)
            values[key] = max(values.get(key, 0), occupancy)
    return values


def _sync_durations(
    problem: Problem,
    co: CaseCoefficients,
    layout: Layout,
    counts: Sequence[Units],
    ops: dict[Duration, int],
    first: Sequence[int],
    last: Sequence[tuple[OpKind, int]],
) -> dict[Duration, int]:
    """Time before the first and after the last op of every device (section 5).

    The exchange of a stage goes on until the stages before it have exchanged theirs, whose
    optimizer steps follow.
    """
    pp = layout.degrees.pp
    devices = chunk_devices(layout.schedule, pp, layout.degrees.virtual_stages)
    stages = stage_units(counts, devices, pp)
    classes = _host_classes(problem, layout)
    option = layout.option
    costs = [
        [co.sync(g, option, layout.sync, len(layout.hosts(s))) for g in classes[s]]
        for s in range(pp)
    ]
    gradients = _exchange_times(problem, co, layout, stages, costs, gradient=True)
    parameters = _exchange_times(problem, co, layout, stages, costs, gradient=False)
    values: dict[Duration, int] = {}
    longest_step = 0
    for s in range(pp):
        sync = costs[s]
        reduce = _combined(stages[s], sync, gradients[s], gradient=True)
        gather = _combined(stages[s], sync, parameters[s], gradient=False)
        optimizer = max(dot(stages[s], co.optimizer(g, option)) for g in classes[s])
        longest_step = max(longest_step, optimizer)
        if len(layout.hosts(s)) > 1:
            optimizer = longest_step
        if option.overlap:
            kind, chunk = last[s]
            op_costs = [co.ops(g, option) for g in classes[s]]
            layer = max(_smallest_layer(co, _op_units(c, kind)) for c in op_costs)
            hidden = ops[Duration(kind, chunk)] - layer
            reduce = max(_combined_tail(co, s, sync, gradients[s], gradient=True), reduce - hidden)
            layer = max(_smallest_layer(co, c.forward) for c in op_costs)
            hidden = ops[Duration("F", first[s])] - layer
            gather = max(
                _combined_tail(co, s, sync, parameters[s], gradient=False), gather - hidden
            )
        values[Duration("start", s)] = gather
        values[Duration("end", s)] = reduce + optimizer
    return values


def _op_units(costs: OpCosts, kind: str) -> Units:
    return costs.weight_gradient if kind == "W" else costs.backward


def _smallest_layer(co: CaseCoefficients, per_unit: Units) -> int:
    """The duration of the shortest layer kind of the model."""
    return min(per_unit[u] for u in set(co.layer_units))


class _Exchange(NamedTuple):
    """Exchange between the sites of one stage, µs: all of it, and of one layer."""

    whole: int
    tail: int


def _combined(
    units: Units, costs: Sequence[SyncCosts], exchange: _Exchange, *, gradient: bool
) -> int:
    """Synchronisation inside and between sites, one after the other or side by side.

    A flat ring runs beside the in-site part of the ring, and after the reduce-scatter of the shard
    groups whose shards it carries.
    """
    inside = max(
        dot(units, c.reduce) + c.reduce_latency
        if gradient
        else dot(units, c.gather) + c.gather_latency
        for c in costs
    )
    whole = exchange.whole
    if costs[0].sequential:
        return inside + whole
    scatter = max(dot(units, c.scatter) + c.scatter_latency for c in costs) if gradient else 0
    return max(inside, scatter + whole)


def _combined_tail(
    co: CaseCoefficients,
    stage: int,
    costs: Sequence[SyncCosts],
    exchange: _Exchange,
    *,
    gradient: bool,
) -> int:
    """What overlap never hides: the same for one layer, at stage 0 and for the embedding."""
    unit = co.units.index("embedding")
    inside = max(
        (c.reduce_tail if gradient else c.gather_tail)
        + (stage == 0) * (c.reduce if gradient else c.gather)[unit]
        for c in costs
    )
    tail = exchange.tail
    if costs[0].sequential:
        return inside + tail
    scatter = 0
    if gradient:
        scatter = max(c.scatter_tail + (stage == 0) * c.scatter[unit] for c in costs)
    return max(inside, scatter + tail)


def _exchange_times(
    problem: Problem,
    co: CaseCoefficients,
    layout: Layout,
    stages: Sequence[Units],
    sync: Sequence[Sequence[SyncCosts]],
    *,
    gradient: bool,
) -> list[_Exchange]:
    """Exchange between sites of every stage, with what queues on the links.

    Links serve the gradients of the last stage first and the parameters of stage 0 first.  So a
    stage needs a link for its own gradients and for those of the stages before it, which follow;
    and for its own parameters and those of the stages before it, which go first.  Its second half
    comes to the links when the NICs of a site have sent the first half.
    """
    before: dict[int, int] = {}
    result = []
    embedding = co.units.index("embedding")
    for s, units in enumerate(stages):
        hosts = layout.hosts(s)
        costs = co.exchange(layout.option, layout.sync, len(hosts))
        per_unit = costs.gradient if gradient else costs.parameter
        count = costs.gradient_latencies if gradient else costs.parameter_latencies
        last = costs.gradient_tail if gradient else costs.parameter_tail
        tail_mib = last + (s == 0) * per_unit[embedding]
        nic = max(dot(units, c.reduce_nic if gradient else c.gather_nic) for c in sync[s])
        own: dict[int, int] = {}
        pairs = sync_pairs(hosts, layout.sync)
        for pair in pairs:
            for link in problem.routes[pair]:
                own[link] = own.get(link, 0) + dot(units, per_unit)
        whole = tail = 0
        for pair in pairs:
            route = problem.routes[pair]
            latency = count * sum(co.latency(link, layout.protocols[link][1]) for link in route)
            whole = max(whole, latency + nic)
            for link in route:
                rate = co.mib(link, layout.protocols[link][1])
                queued = before.get(link, 0)
                halves = nic + rate.us(own[link] + 2 * queued)
                whole = max(whole, latency + max(rate.us(own[link] + queued), -(-halves // 2)))
                tail = max(tail, latency + rate.us(tail_mib))
        for link, mib in own.items():
            before[link] = before.get(link, 0) + mib
        result.append(_Exchange(whole, tail))
    return result


def _memory(
    problem: Problem,
    co: CaseCoefficients,
    layout: Layout,
    template: Template,
    counts: Sequence[Units],
) -> tuple[StageMemory, ...]:
    """Peak memory of every stage at every site that runs it (section 6)."""
    costs = co.memory(layout.option)
    split = SCHEDULES[layout.schedule].split_backward
    per_unit = costs.split_activation if split else costs.activation
    devices = chunk_devices(layout.schedule, template.pp, template.v)
    stages = stage_units(counts, devices, template.pp)
    rows = []
    for s, vectors in enumerate(live_counts(template)):
        chunks = [k for k, device in enumerate(devices) if device == s]
        activation = [dot(counts[k], per_unit) for k in chunks]
        held = [dot(counts[k], costs.held) for k in chunks]
        live = max(dot(full, activation) + dot(kept, held) for full, kept in vectors)
        has_head = devices[-1] == s
        working = costs.head_working if has_head else costs.working
        state = dot(stages[s], costs.state)
        step = dot(stages[s], costs.step) + costs.step_working
        rows += [
            StageMemory(s, problem.sites[d].name, state, live, working, step, co.limit_mib[d])
            for d in layout.hosts(s)
        ]
    return tuple(rows)


def _breakdown(
    problem: Problem,
    co: CaseCoefficients,
    layout: Layout,
    counts: Sequence[Units],
    template: Template,
    durations: dict[Duration, int],
    time_us: int,
) -> dict[str, int]:
    """Where the iteration time goes, as seen from the busiest stage; the parts sum to Z.

    The ops of the stage with the most work are split by cause; ``dp`` adds its time before the
    first and after the last op, ``pp`` is what Z would lose if transfers took no time, and
    ``bubble`` is the rest: waiting for other stages.
    """
    m = co.num_microbatches
    devices = chunk_devices(layout.schedule, layout.degrees.pp, layout.degrees.virtual_stages)
    busy = [0] * layout.degrees.pp
    for key, value in durations.items():
        if key.kind in ("F", "B", "W") and isinstance(key.index, int):
            busy[devices[key.index]] += m * value
    without = {k: 0 if k.kind in ("delay", "occupancy") else v for k, v in durations.items()}
    time_without = co.fixed_us + event_graph(template).evaluate(without)
    start = [durations[Duration("start", s)] for s in range(layout.degrees.pp)]
    end = [durations[Duration("end", s)] for s in range(layout.degrees.pp)]
    stage = max(range(len(busy)), key=lambda s: (start[s] + busy[s] + end[s], -s))
    parts = _stage_parts(problem, co, layout, counts, stage)
    scale = busy[stage]
    result = dict.fromkeys(
        ("compute", "bubble", "tp", "cp", "ep", "pp", "dp", "optimizer", "fixed"), 0
    )
    for name, value in zip(PARTS, parts, strict=True):
        result[name] = value
    result["compute"] += scale - sum(parts)
    units = stage_units(counts, devices, layout.degrees.pp)[stage]
    optimizer = max(
        dot(units, co.optimizer(g, layout.option)) for g in _host_classes(problem, layout)[stage]
    )
    result["optimizer"] = optimizer
    result["dp"] += start[stage] + end[stage] - optimizer
    result["fixed"] = co.fixed_us
    result["pp"] = time_us - time_without
    result["bubble"] = time_without - co.fixed_us - start[stage] - scale - end[stage]
    return result


def _stage_parts(
    problem: Problem,
    co: CaseCoefficients,
    layout: Layout,
    counts: Sequence[Units],
    stage: int,
) -> list[int]:
    """µs per cause of all ops of a stage, on the slowest GPU class for each chunk and op."""
    split = SCHEDULES[layout.schedule].split_backward
    devices = chunk_devices(layout.schedule, layout.degrees.pp, layout.degrees.virtual_stages)
    classes = _host_classes(problem, layout)[stage]
    ops: list[OpCosts] = [co.ops(g, layout.option) for g in classes]
    total = [0] * len(PARTS)
    for k, units in enumerate(counts):
        if devices[k] != stage:
            continue
        kinds = [("forward", "forward_parts")]
        if split:
            kinds += [
                ("input_gradient", "input_gradient_parts"),
                ("weight_gradient", "weight_gradient_parts"),
            ]
        else:
            kinds.append(("backward", "backward_parts"))
        for whole, parts in kinds:
            slowest = max(ops, key=lambda op: dot(units, getattr(op, whole)))
            for i, part in enumerate(getattr(slowest, parts)):
                total[i] += co.num_microbatches * dot(units, part)
    return total


__all__ = [
    "CheckReport",
    "Option",
    "Price",
    "StageMemory",
    "check_plan",
    "durations_of_layout",
    "layout_durations",
    "memory_of_layout",
    "memory_violations",
    "orders_of_layout",
    "price_layout",
    "profiles_of_layout",
    "share_durations",
    "time_below",
    "time_of_layout",
]
