"""How long things take: constraint families of ops, transfers, synchronisation, pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import NamedTuple

from formulations.algebra import BooleanLiteral, Expression, Linear, Variable, linear_sum
from formulations.cuts import PathCut
from formulations.plain.turns import duration_terms, path_literals
from formulations.plain.variables import PlainVariables, latency_of
from planner.check import first_chunks, last_ops
from planner.choices import ScheduleChoice
from planner.cost.coefficients import ExchangeCosts, OpCosts, Option, Units
from planner.layout import boundary_edges
from planner.pipeline.event_graph import Duration
from planner.pipeline.schedules import SCHEDULES, Template
from planner.plan import Sync


def weighted(counts: Iterable[Expression], weights: Units) -> Expression:
    """Sum of unit counts times integer weights."""
    return linear_sum(w * count for count, w in zip(counts, weights, strict=True) if w)


def stage_units(v: PlainVariables, devices: tuple[int, ...], stage: int) -> list[Expression]:
    """Units of a stage: the sum over its chunks."""
    chunks = [k for k, device in enumerate(devices) if device == stage]
    return [linear_sum(v.units[k][u] for k in chunks) for u in range(len(v.co.units))]


def _smallest(v: PlainVariables, per_unit: Units) -> int:
    return min(per_unit[u] for u in set(v.co.layer_units))


def op_durations(v: PlainVariables) -> None:
    """An op takes as long as on the slowest GPU class that runs its stage.

    .. math:: F_k \\ge \\sum_u n_{k,u}\\,\\text{forward}_{g,o,u} \\quad
        \\text{where } o \\text{ is chosen and a site of class } g \\text{ runs device}(k)

    and so for ``B`` (whole backward, or input gradient where it is split) and ``W``.
    """
    splits = {SCHEDULES[c.schedule].split_backward for c in v.schedule}
    for k in range(v.num_chunks):
        for kind in ("F", "B", "W") if True in splits else ("F", "B"):
            v.duration[Duration(kind, k)] = v.model.integer(f"{kind}_{k}", 0, v.op_limit)
    for members in v.chunk_maps().values():
        devices = v.devices(members[0])
        for split in (False, True):
            chosen = [c for c in members if SCHEDULES[c.schedule].split_backward == split]
            if not chosen:
                continue
            for k in range(v.num_chunks):
                for g, class_host in v.class_host[devices[k]].items():
                    when = [class_host] if len(v.class_host[devices[k]]) > 1 else []
                    _op_rows(v, k, g, split, when + v.schedule_literal(chosen))


def _op_rows(v: PlainVariables, k: int, g: int, split: bool, when: list[Variable]) -> None:
    kinds = [("F", "forward")]
    if split:
        kinds += [("B", "input_gradient"), ("W", "weight_gradient")]
    else:
        kinds.append(("B", "backward"))
    for kind, name in kinds:

        def costs(option: Option, name: str = name) -> Units:
            units: Units = getattr(v.co.ops(g, option), name)
            return units

        for units, options in v.option_groups(costs):
            v.model.add(
                v.duration[Duration(kind, k)] >= weighted(v.units[k], units),  # type: ignore[arg-type]
                when + options,
                family="op_durations",
            )


def transfers(v: PlainVariables) -> None:
    """Durations of pipeline transfers; all replicas of a boundary that cross a link share it.

    .. math:: \\text{service}_{i\\to j,\\ell} \\ge c_{\\ell,p} \\sum f_{b,d,e}
        \\text{ over crossings of the boundary by } \\ell
        \\quad\\text{where } p \\text{ drives } \\ell

    .. math:: \\text{delay}_{b\\to b+1} \\ge \\sum_\\ell \\text{latency}_\\ell +
        \\max(\\text{cell}_{d,e}, \\text{service}_{b\\to b+1,\\ell}) \\quad
        \\text{where a replica goes from } d \\text{ to } e
    """
    if v.pp == 1:
        return
    _services(v)
    latencies = [v.latency(i) for i in range(len(v.problem.links))]
    for b, moves in enumerate(v.moves):
        for edge, forward in zip(boundary_edges(b, v.pp), (True, False), strict=True):
            delay = _edge(v, "delay", edge)
            occupancy = _edge(v, "occupancy", edge)
            for (d, e), literal in moves.items():
                when = [literal]
                if d == e:
                    inside_delay, inside_occupancy = v.co.inside(v.problem.sites[d].gpu_class)
                    v.model.add(delay >= inside_delay, when, family="transfers")
                    v.model.add(occupancy >= inside_occupancy, when, family="transfers")
                    continue
                pair = (d, e) if forward else (e, d)
                route = v.problem.routes[pair]
                latency = linear_sum(latencies[link] for link in route)
                busy: list[Linear | int] = [
                    v.duration[Duration("service", (*edge, link))] for link in route
                ]
                for time in [v.co.cell(*pair), *busy]:
                    v.model.add(delay >= latency + time, when, family="transfers")
                    v.model.add(occupancy >= time, when, family="transfers")


def _edge(v: PlainVariables, kind: str, edge: tuple[int, int]) -> Variable:
    key = Duration(kind, edge)  # type: ignore[arg-type]
    if key not in v.duration:
        v.duration[key] = v.model.integer(f"{kind}_{edge[0]}_{edge[1]}", 0, v.transfer_limit)
    return v.duration[key]


def _services(v: PlainVariables) -> None:
    """Time of every link for one transfer of all replicas of a directed device edge."""
    for b, flow in enumerate(v.flow):
        there, back = boundary_edges(b, v.pp)
        crossing: dict[Duration, list[Variable]] = {}
        for (d, e), f in flow.items():
            if d != e:
                for edge, pair in ((there, (d, e)), (back, (e, d))):
                    for link in v.problem.routes[pair]:
                        crossing.setdefault(Duration("service", (*edge, link)), []).append(f)
        for key, flows in crossing.items():
            i, j, link = key.index  # type: ignore[misc]
            if key not in v.duration:
                name = f"service_{i}_{j}_{link}"
                v.duration[key] = v.model.integer(name, 0, v.transfer_limit)
            for protocol, literal in v.pp_protocol[link].items():
                unit = v.co.crossing(link, protocol)
                v.model.add(
                    unit.scale * v.duration[key] >= unit.numerator * linear_sum(flows),
                    v.literal(v.pp_protocol[link], protocol) and [literal],
                    family="link_sharing",
                )


def synchronisation(v: PlainVariables) -> None:
    """Time before the first and after the last op of every stage.

    Inside a site the coefficients depend on GPU class, option, way and number of hosting sites;
    between sites every ordered pair of hosts loads the links of its route.  Links serve stages in a
    fixed order: gradients of the last stage, parameters of stage 0 first.

    .. math:: \\text{sync}_{\\ell,s} \\ge r_{\\ell,p} \\sum_{s' \\le s}
        \\sum_{(d,e) \\ni \\ell} \\text{pair}_{s',d,e}, \\qquad \\text{end}_s \\ge
        \\text{inside}_s + \\text{between}_s - \\text{hidden}_s + \\text{optimizer}_s

    Without overlap nothing is hidden; with overlap the synchronisation of one layer, and at stage
    0 of the embedding, never is.
    """
    for quantity in ("gradient", "parameter"):
        if quantity == "parameter" and not _gathers(v):
            between: list[Variable | None] = [None] * v.pp
            tails: list[Variable | None] = [None] * v.pp
        else:
            between, tails = _exchange(v, quantity)
        steps = _optimizer_steps(v) if quantity == "gradient" else None
        for s in range(v.pp):
            _stage_sync(v, s, quantity, between[s], tails[s], 0 if steps is None else steps[s])


def _gathers(v: PlainVariables) -> bool:
    return any(option.spanning for option in v.option)


def _exchange(
    v: PlainVariables, quantity: str
) -> tuple[list[Variable | None], list[Variable | None]]:
    """Time between sites of every stage, whole and for one layer; None where it cannot be."""
    model = v.model
    if v.num_sites == 1:
        return [None] * v.pp, [None] * v.pp
    amounts: dict[tuple[int, int, int], Variable] = {}
    largest = max(
        sum(getattr(v.co.exchange(o, sync, n), quantity))
        for o in v.option
        for sync in v.sync
        for n in range(2, v.num_sites + 1)
    ) * len(v.co.layer_units)
    for s in range(v.pp):
        for pair in sorted({pair for rows in v.pair.values() for pair in rows[s]}):
            amounts[s, pair[0], pair[1]] = model.integer(
                f"{quantity}_mib_{s}_{pair[0]}_{pair[1]}", 0, largest
            )
    times = _queues(v, quantity, amounts, largest)
    between: list[Variable | None] = []
    tails: list[Variable | None] = []
    latencies = [
        latency_of(v.dp_protocol[i], partial(v.co.latency, i)) for i in range(len(v.problem.links))
    ]
    for s in range(v.pp):
        whole = model.integer(f"{quantity}_between_{s}", 0, v.sync_limit)
        tail = model.integer(f"{quantity}_between_tail_{s}", 0, v.sync_limit)
        nic = model.integer(f"{quantity}_nic_{s}", 0, v.sync_limit)
        between.append(whole)
        tails.append(tail)
        _nic_rows(v, s, quantity, nic)
        for sync, rows in v.pair.items():
            for pair, literal in rows[s].items():
                when = [literal, *v.literal(v.sync, sync)]
                latency = linear_sum(latencies[link] for link in v.problem.routes[pair])
                amount = amounts[s, pair[0], pair[1]]
                for n in range(2, v.num_sites + 1):
                    number = [] if v.num_sites == 2 else [v.hosts[s][n]]
                    case = _Exchange(v, s, quantity, sync, n, latency, when + number)
                    case.amount_rows(amount)
                    queues = {link: times[link, s] for link in v.problem.routes[pair]}
                    case.time_rows(whole, tail, nic, queues)
    return between, tails


class _Queue(NamedTuple):
    """Time of a link for the exchange of a stage and of the stages before it, µs.

    ``twice_after_half`` is twice the time from when half of the own exchange is through.
    """

    whole: Variable
    twice_after_half: Variable


def _queues(
    v: PlainVariables, quantity: str, amounts: dict[tuple[int, int, int], Variable], largest: int
) -> dict[tuple[int, int], _Queue]:
    """Queues by link and stage."""
    own: dict[tuple[int, int], list[Variable]] = {}
    for (s, d, e), amount in sorted(amounts.items()):
        for link in v.problem.routes[d, e]:
            own.setdefault((link, s), []).append(amount)
    queues = {}
    before: dict[int, Linear] = {}
    for (link, s), items in own.items():
        load = linear_sum(items)
        name = f"{link}_{s}"
        up_to: Linear = load
        twice_after_half = load
        if link in before:
            up_to = v.model.integer(
                f"{quantity}_mib_up_to_{name}", 0, largest * len(v.problem.routes) * v.pp
            )
            v.model.add(up_to >= before[link] + load, family="sync_sharing")
            twice_after_half = load + 2 * before[link]
        before[link] = up_to
        queue = _Queue(
            v.model.integer(f"{quantity}_sync_{name}", 0, v.sync_limit),
            v.model.integer(f"{quantity}_sync_half_{name}", 0, 2 * v.sync_limit),
        )
        queues[link, s] = queue
        for protocol, literal in v.dp_protocol[link].items():
            unit = v.co.mib(link, protocol)
            when = v.literal(v.dp_protocol[link], protocol) and [literal]
            for time, mib in zip(queue, (up_to, twice_after_half), strict=True):
                v.model.add(unit.scale * time >= unit.numerator * mib, when, family="sync_sharing")
    return queues


@dataclass(frozen=True)
class _Exchange:
    """What one ordered pair of sites exchanges for stage ``s`` that ``hosts`` sites run."""

    v: PlainVariables
    s: int
    quantity: str
    sync: Sync
    hosts: int
    latency: Expression
    when: list[Variable]

    def _costs(self, option: Option) -> ExchangeCosts:
        return self.v.co.exchange(option, self.sync, self.hosts)

    def amount_rows(self, amount: Variable) -> None:
        """``amount`` (MiB) covers the stage's share."""
        v = self.v
        for units, options in v.option_groups(lambda o: getattr(self._costs(o), self.quantity)):
            if any(units):
                for members in v.chunk_maps().values():
                    counts = stage_units(v, v.devices(members[0]), self.s)
                    when = self.when + options + v.schedule_literal(members)
                    v.model.add(amount >= weighted(counts, units), when, family="exchange")

    def time_rows(
        self, whole: Variable, tail: Variable, nic: Variable, queues: dict[int, _Queue]
    ) -> None:
        """The exchange, and what overlap never hides of it, take as long as on the slowest link.

        Nor less than the NICs need; half of it comes to the links when they have sent the other.
        """
        v = self.v
        embedding = v.co.units.index("embedding")

        def tail_mib(costs: ExchangeCosts) -> int:
            layer: int = getattr(costs, f"{self.quantity}_tail")
            units: Units = getattr(costs, self.quantity)
            return layer + (self.s == 0) * units[embedding]

        for (count, mib), options in v.option_groups(
            lambda o: (
                getattr(self._costs(o), f"{self.quantity}_latencies"),
                tail_mib(self._costs(o)),
            )
        ):
            when = self.when + options
            latency = count * self.latency
            v.model.add(whole >= latency + nic, when, family="exchange")
            for link, queue in queues.items():
                halves = nic + queue.twice_after_half
                v.model.add(whole >= latency + queue.whole, when, family="exchange")
                v.model.add(2 * whole >= 2 * latency + halves, when, family="exchange")
                for protocol in v.dp_protocol[link]:
                    v.model.add(
                        tail >= latency + v.co.mib(link, protocol).us(mib),
                        when + v.literal(v.dp_protocol[link], protocol),
                        family="exchange",
                    )


def _nic_rows(v: PlainVariables, s: int, quantity: str, nic: Variable) -> None:
    """The NICs of a hosting site send what the stage exchanges."""
    name = "reduce_nic" if quantity == "gradient" else "gather_nic"
    for sync, n in product(v.sync, range(2, v.num_sites + 1)):
        case = [v.hosts[s][n], *v.literal(v.sync, sync)]
        for g, class_host in v.class_host[s].items():
            for units, options in v.option_groups(
                lambda o, g=g, sync=sync, n=n: getattr(v.co.sync(g, o, sync, n), name)  # type: ignore[misc]
            ):
                for members in v.chunk_maps().values() if any(units) else ():
                    counts = stage_units(v, v.devices(members[0]), s)
                    when = [*case, class_host, *options, *v.schedule_literal(members)]
                    v.model.add(nic >= weighted(counts, units), when, family="exchange")


def _stage_sync(
    v: PlainVariables,
    s: int,
    quantity: str,
    between: Variable | None,
    tail: Variable | None,
    optimizer: Linear | int,
) -> None:
    """``start`` (parameters) or ``end`` (gradients, then ``optimizer``) of one stage."""
    model = v.model
    gradient = quantity == "gradient"
    key = Duration("end" if gradient else "start", s)
    v.duration[key] = model.integer(f"{key.kind}_{s}", 0, v.end_limit)
    time = v.duration[key]
    inside = model.integer(f"{quantity}_inside_{s}", 0, v.sync_limit)
    inside_tail = model.integer(f"{quantity}_inside_tail_{s}", 0, v.sync_limit)
    exposed = model.integer(f"{quantity}_exposed_{s}", 0, v.sync_limit)
    exposed_tail = model.integer(f"{quantity}_exposed_tail_{s}", 0, v.sync_limit)
    _inside_rows(v, s, "reduce" if gradient else "gather", list(v.sync), inside, inside_tail)
    scatter: Linear | int = 0
    scatter_tail: Linear | int = 0
    if gradient and between is not None and _scatters(v, s):
        scatter = model.integer(f"scatter_{s}", 0, v.sync_limit)
        scatter_tail = model.integer(f"scatter_tail_{s}", 0, v.sync_limit)
        _inside_rows(v, s, "scatter", ["flat"], scatter, scatter_tail)
    for sync in v.sync:
        sequential = sync == "hierarchical"
        when = v.literal(v.sync, sync)
        for total, part, first, other in (
            (exposed, inside, scatter, between),
            (exposed_tail, inside_tail, scatter_tail, tail),
        ):
            model.add(total >= part, when, family="exposed")
            if other is not None:
                before = part if sequential else first
                model.add(total >= linear_sum([other]) + before, when, family="exposed")
    plain = [o for o in v.option if not o.overlap]
    hiding = [o for o in v.option if o.overlap]
    if plain:
        model.add(time >= exposed + optimizer, _when(v, plain), family="exposed")
    if hiding:
        model.add(time >= exposed_tail + optimizer, _when(v, hiding), family="exposed")
        _hidden_rows(v, s, gradient, time - optimizer - exposed, hiding)


def _scatters(v: PlainVariables, s: int) -> bool:
    """Whether a reduce-scatter inside the site may precede a flat ring of a stage."""
    return "flat" in v.sync and any(
        any(costs.scatter) or costs.scatter_latency
        for n in v.hosts[s]
        for g in v.class_host[s]
        for costs in (v.co.sync(g, option, "flat", n) for option in v.option)
    )


def _when(v: PlainVariables, options: list[Option]) -> list[Variable]:
    return [] if len(options) == len(v.option) else [v.any_of([v.option[o] for o in options])]


def _optimizer_steps(v: PlainVariables) -> list[Variable]:
    """Optimizer step after the reductions of every stage.

    Where several sites host a stage, stages before it exchange after it, so theirs count too.
    """
    steps: list[Variable] = []
    longest: Variable | None = None
    for s in range(v.pp):
        step = v.model.integer(f"optimizer_{s}", 0, v.sync_limit)
        steps.append(step)
        _optimizer_rows(v, s, step)
        spread = [literal for n, literal in v.hosts[s].items() if n > 1]
        if not spread:
            continue
        before, longest = longest, v.model.integer(f"optimizer_up_to_{s}", 0, v.sync_limit)
        v.model.add(longest >= step, family="optimizer")
        if before is not None:
            v.model.add(longest >= before, family="optimizer")
            v.model.add(step >= before, [v.any_of(spread)], family="optimizer")
    return steps


def _optimizer_rows(v: PlainVariables, s: int, optimizer: Variable) -> None:
    for members in v.chunk_maps().values():
        counts = stage_units(v, v.devices(members[0]), s)
        for g, class_host in v.class_host[s].items():
            for units, options in v.option_groups(lambda o, g=g: v.co.optimizer(g, o)):  # type: ignore[misc]
                v.model.add(
                    optimizer >= weighted(counts, units),
                    [class_host, *options, *v.schedule_literal(members)],
                    family="optimizer",
                )


def _inside_rows(
    v: PlainVariables,
    s: int,
    name: str,
    syncs: Sequence[Sync],
    inside: Variable,
    inside_tail: Variable,
) -> None:
    embedding = v.co.units.index("embedding")
    for sync in syncs:
        for n, number in v.hosts[s].items():
            for g, class_host in v.class_host[s].items():
                when = [class_host, *v.literal(v.sync, sync)]
                when += [number] if len(v.hosts[s]) > 1 else []
                for (units, latency, one_layer), options in v.option_groups(
                    lambda o, n=n, g=g, sync=sync: tuple(  # type: ignore[misc]
                        getattr(v.co.sync(g, o, sync, n), name + part)
                        for part in ("", "_latency", "_tail")
                    )
                ):
                    unhidden = one_layer + (s == 0) * units[embedding]
                    v.model.add(inside_tail >= unhidden, when + options, family="inside_sync")
                    for members in v.chunk_maps().values():
                        counts = stage_units(v, v.devices(members[0]), s)
                        v.model.add(
                            inside >= weighted(counts, units) + latency,
                            when + options + v.schedule_literal(members),
                            family="inside_sync",
                        )


def _hidden_rows(
    v: PlainVariables, s: int, gradient: bool, needed: Expression, hiding: list[Option]
) -> None:
    """``needed >= layer - op``: what the last (first) op hides, less its first layer."""
    for choice, literal in v.schedule.items():
        template = base_template(v, choice)
        if gradient:
            kind, chunk = last_ops(template)[s]
        else:
            kind, chunk = "F", first_chunks(template)[s]
        op = v.duration[Duration(kind, chunk)]
        for g, class_host in v.class_host[s].items():
            for layer, options in v.option_groups(
                lambda o, g=g, kind=kind: _smallest(v, _op_units(v.co.ops(g, o), kind)),  # type: ignore[misc]
                hiding,
            ):
                v.model.add(
                    needed + op >= layer,
                    [class_host, *options, *([literal] if len(v.schedule) > 1 else [])],
                    family="hidden",
                )


def _op_units(costs: OpCosts, kind: str) -> Units:
    return {"F": costs.forward, "B": costs.backward, "W": costs.weight_gradient}[kind]


def base_template(v: PlainVariables, choice: ScheduleChoice) -> Template:
    """The template of a schedule without extra warm-up."""
    degrees = v.co.degrees
    return Template(
        schedule=choice.schedule,
        pp=degrees.pp,
        v=degrees.virtual_stages,
        m=v.co.num_microbatches,
        run_length=choice.run_length,
        extra_warmup=(0,) * degrees.pp,
    )


def device_paths(v: PlainVariables) -> None:
    """Paths that every template has, whatever its extra warm-up.

    Reach stage ``s``, do all its work there and (where the backward is not split) return to stage
    0; or start at ``s`` itself.

    .. math:: Z \\ge \\text{fixed} + \\text{start}_0 + \\sum_{k<s} (F_k +
        \\text{delay}_{k \\to k+1}) + m \\sum_{k \\in s} (F_k + B_k + W_k) +
        \\sum_{k<s} (B_k + \\text{delay}_{k+1 \\to k}) + \\text{end}_0
    """
    model, m = v.model, v.co.num_microbatches
    assert v.time is not None
    time = v.time - v.co.fixed_us
    for members in v.chunk_maps().values():
        devices = v.devices(members[0])
        for split in (False, True):
            chosen = [c for c in members if SCHEDULES[c.schedule].split_backward == split]
            if not chosen:
                continue
            for s in range(v.pp):
                chunks = [k for k, device in enumerate(devices) if device == s]
                kinds = ("F", "B", "W") if split else ("F", "B")
                work = [m * v.duration[Duration(kind, k)] for k in chunks for kind in kinds]  # type: ignore[arg-type]
                start = v.duration[Duration("start", 0)]
                reach: list[Linear] = [start]
                back: list[Linear] = []
                for k in range(s):
                    reach.append(v.duration[Duration("F", k)])
                    reach.append(v.duration[Duration("delay", (k, k + 1))])
                    if not split:
                        back.append(v.duration[Duration("B", k)])
                        back.append(v.duration[Duration("delay", (k + 1, k))])
                when = v.schedule_literal(chosen)
                own_end = v.duration[Duration("end", s)]
                model.add(time >= linear_sum([*reach, *work, own_end]), when, family="pipeline")
                if not split and s:
                    end = v.duration[Duration("end", 0)]
                    model.add(
                        time >= linear_sum([*reach, *work, *back, end]), when, family="pipeline"
                    )
                if s:
                    own_start = v.duration[Duration("start", s)]
                    model.add(
                        time >= linear_sum([own_start, *work, own_end]), when, family="pipeline"
                    )


def path_cuts(v: PlainVariables, cuts: Iterable[PathCut]) -> None:
    """The iteration is at least as long as the given paths of the event graph.

    .. math:: Z \\ge \\text{fixed} + \\sum_i a_i t_i \\quad
        \\text{where the plan follows the path's template}

    A path over shared links holds for some orders and ways only (:mod:`formulations.plain.turns`).
    """
    assert v.time is not None
    literals = {(c.schedule, c.run_length): literal for c, literal in v.schedule.items()}
    for cut in cuts:
        template = cut.template
        literal = literals.get((template.schedule, template.run_length))
        if literal is None:
            continue
        extra = template.extra_warmup
        steps = [extra[b] - extra[b + 1] for b in range(v.pp - 1)]
        if any(step not in v.warmup[b] for b, step in enumerate(steps)):
            continue
        when: list[BooleanLiteral] = [literal] if len(v.schedule) > 1 else []
        for b, step in enumerate(steps):
            when += v.literal(v.warmup[b], step)
        when += path_literals(v, cut)
        path = linear_sum(a * duration_terms(v, key) for key, a in cut.coefficients)
        v.model.add(v.time >= v.co.fixed_us + path, when, family="paths")
