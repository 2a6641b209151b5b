"""Constraint families that say what a plan is: choices, layers, placement, flows."""

from __future__ import annotations

from formulations.algebra import Expression, Variable, linear_sum
from formulations.plain.variables import PlainVariables
from planner import space
from planner.pipeline.schedules import SCHEDULES


def choose_once(v: PlainVariables) -> None:
    """Exactly one schedule, one option, one way to synchronise, one protocol per link and class.

    .. math:: \\sum_i z_i = 1 \\quad\\text{for each choice}
    """
    model, choices = v.model, v.choices
    v.schedule = {
        c: model.boolean(f"schedule_{c.schedule}_{c.run_length}") for c in choices.schedules
    }
    v.option = {
        o: model.boolean(f"option_{o.sharding}_{o.overlap}_{o.recompute}_{o.spanning}")
        for o in choices.options
    }
    v.sync = {s: model.boolean(f"sync_{s}") for s in choices.syncs}
    for table in (v.schedule, v.option, v.sync):
        model.exactly_one(table.values(), family="choose_once")
    kept = set(choices.pairs)
    for choice, schedule in v.schedule.items():
        for option, literal in v.option.items():
            if (choice, option) not in kept:
                model.at_most_one([schedule, literal], family="choose_once")
    for index, link in enumerate(v.problem.links):
        names = v.problem.protocols[index]
        of_link = {name: model.boolean(f"protocol_{index}_{name}") for name in names}
        v.pp_protocol.append(of_link)
        if link.per_class:
            of_link = {name: model.boolean(f"dp_protocol_{index}_{name}") for name in names}
        v.dp_protocol.append(of_link)
        for chosen in {id(t): t for t in (v.pp_protocol[-1], v.dp_protocol[-1])}.values():
            if chosen:
                model.exactly_one(chosen.values(), family="choose_once")


def split_layers(v: PlainVariables) -> None:
    """Chunk ``k`` takes the layers from ``e_{k-1}`` to ``e_k``; at least one each.

    With one kind of layer the counts :math:`l_k` are integers with :math:`\\sum_k l_k = L`.  With
    several kinds the end of chunk ``k`` is a one-hot :math:`p_{k,j}` (ends after layer ``j``) and
    the units of kind ``u`` are differences of prefix counts :math:`P_u`:

    .. math:: n_{k,u} = \\sum_j P_u(j) (p_{k,j} - p_{k-1,j})
    """
    model, total, chunks = v.model, len(v.co.layer_units), v.num_chunks
    fixed = v.choices.fixed_layers
    kinds = sorted(set(v.co.layer_units))
    units: list[list[Expression]] = []
    if len(kinds) == 1:
        for k in range(chunks):
            low, high = (1, total - chunks + 1) if fixed is None else (fixed[k], fixed[k])
            count = linear_sum([model.integer(f"layers_{k}", low, high)])
            v.layers.append(count)
            row = [linear_sum([0])] * len(v.co.units)
            row[kinds[0]] = count
            units.append(row)
        model.add(linear_sum(v.layers) == total, family="layers")
    else:
        prefix = [[0] * len(v.co.units)]
        for unit in v.co.layer_units:
            prefix.append([c + (u == unit) for u, c in enumerate(prefix[-1])])
        ends: list[list[tuple[int, Variable | None]]] = [[(0, None)]]
        for k in range(chunks):
            if k == chunks - 1:
                ends.append([(total, None)])
                continue
            places: list[int] = list(range(k + 1, total - (chunks - 1 - k) + 1))
            if fixed is not None:
                places = [sum(fixed[: k + 1])]
            column = [(j, model.boolean(f"end_{k}_{j}")) for j in places]
            model.exactly_one([literal for _, literal in column], family="layers")
            ends.append(list(column))

        def position(column: list[tuple[int, Variable | None]], values: list[int]) -> Expression:
            return linear_sum(
                values[j] if literal is None else values[j] * literal for j, literal in column
            )

        identity = list(range(total + 1))
        for k in range(chunks):
            count = position(ends[k + 1], identity) - position(ends[k], identity)
            v.layers.append(count)
            if isinstance(count, Expression) and count.terms:
                model.add(count >= 1, family="layers")
            units.append(
                [
                    position(ends[k + 1], [p[u] for p in prefix])
                    - position(ends[k], [p[u] for p in prefix])
                    for u in range(len(v.co.units))
                ]
            )
    units[0][v.co.units.index("embedding")] = linear_sum([1])
    units[-1][v.co.units.index("head")] = linear_sum([1])
    v.units = [tuple(row) for row in units]


def place_replicas(v: PlainVariables) -> None:
    """Replicas of every stage at every site, in whole shard and expert groups.

    .. math:: \\sum_d x_{s,d} = R, \\qquad \\sum_s x_{s,d} \\le \\text{cells}_d, \\qquad
        q h_{s,d} \\le x_{s,d} \\le \\text{cap}_d h_{s,d}, \\qquad
        \\sum_n n\\,N_{s,n} = \\sum_d h_{s,d}
    """
    model, degrees = v.model, v.co.degrees
    whole = space.granularity(degrees, spanning=False)
    spans = [option for option in v.option if option.spanning]
    step = space.granularity(degrees, spanning=True) if spans else whole
    ragged: list[Variable] = []
    for s in range(v.pp):
        row: list[Expression] = []
        hosts: list[Variable] = []
        for d in range(v.num_sites):
            cap = min(v.co.cells[d], degrees.dp) // step
            count = model.integer(f"replicas_{s}_{d}", 0, cap)
            host = model.boolean(f"host_{s}_{d}")
            model.add(count >= host, family="hosts")
            model.add(count <= cap * host, family="hosts")
            if spans:
                ragged.append(_whole_groups(v, count, whole // step, f"{s}_{d}"))
            row.append(step * count)
            hosts.append(host)
        model.add(linear_sum(row) == degrees.dp, family="placement")
        v.replicas.append(row)
        v.host.append(hosts)
        numbers = {n: model.boolean(f"hosts_{s}_{n}") for n in range(1, v.num_sites + 1)}
        model.exactly_one(numbers.values(), family="hosts")
        model.add(
            linear_sum(n * literal for n, literal in numbers.items()) == linear_sum(hosts),
            family="hosts",
        )
        v.hosts.append(numbers)
        v.class_host.append(_class_literals(v, s, hosts))
    for d in range(v.num_sites):
        model.add(
            linear_sum(v.replicas[s][d] for s in range(v.pp)) <= v.co.cells[d], family="capacity"
        )
    if spans:
        spanning = v.any_of([v.option[o] for o in spans])
        for literal in ragged:
            model.implication(literal, spanning, family="spanning")
        model.add(linear_sum(ragged) >= spanning, family="spanning")


def _whole_groups(v: PlainVariables, count: Variable, group: int, name: str) -> Variable:
    """Literal "the replicas here are not whole shard groups": ``count = group * q + rest``."""
    quotient = v.model.integer(f"groups_{name}", 0, count.upper // group)
    rest = v.model.integer(f"rest_{name}", 0, group - 1)
    literal = v.model.boolean(f"ragged_{name}")
    v.model.add(count == group * quotient + rest, family="spanning")
    v.model.add(rest >= literal, family="spanning")
    v.model.add(rest <= (group - 1) * literal, family="spanning")
    return literal


def _class_literals(v: PlainVariables, stage: int, hosts: list[Variable]) -> dict[int, Variable]:
    members: dict[int, list[Variable]] = {}
    for d, host in enumerate(hosts):
        members.setdefault(v.problem.sites[d].gpu_class, []).append(host)
    result = {}
    for g, literals in members.items():
        if len(literals) == 1:
            result[g] = literals[0]
            continue
        result[g] = v.model.boolean(f"class_{stage}_{g}")
        for literal in literals:
            v.model.implication(literal, result[g], family="hosts")
        v.model.add(linear_sum(literals) >= result[g], family="hosts")
    return result


def move_replicas(v: PlainVariables) -> None:
    """Replicas flow from stage to stage; a looped schedule with several chunks also wraps round.

    .. math:: \\sum_e f_{b,d,e} = x_{b,d}, \\qquad \\sum_d f_{b,d,e} = x_{b+1,e}, \\qquad
        c_{b,d,e} \\le f_{b,d,e} \\le R\\,c_{b,d,e}
    """
    model, sites = v.model, range(v.num_sites)
    loops = [c for c in v.schedule if c.wraps]
    v.wrap = v.any_of([v.schedule[c] for c in loops]) if loops and v.pp > 1 else None
    for b in range(v.boundaries):
        after = (b + 1) % v.pp
        wraps = b == v.pp - 1
        flow: dict[tuple[int, int], Variable] = {}
        moves: dict[tuple[int, int], Variable] = {}
        for d in sites:
            for e in sites:
                if d != e and not {(d, e), (e, d)} <= v.problem.routes.keys():
                    continue
                cap = min(v.co.cells[d], v.co.cells[e], v.co.degrees.dp)
                flow[d, e] = model.integer(f"flow_{b}_{d}_{e}", 0, cap)
                moves[d, e] = model.boolean(f"moves_{b}_{d}_{e}")
                model.add(flow[d, e] <= cap * moves[d, e], family="flow_links")
                model.add(flow[d, e] >= moves[d, e], family="flow_links")
        when = [v.wrap] if wraps and v.wrap is not None and len(loops) < len(v.schedule) else []
        for d in sites:
            leaving = linear_sum(f for (a, _), f in flow.items() if a == d)
            coming = linear_sum(f for (_, a), f in flow.items() if a == d)
            model.add(leaving == v.replicas[b][d], when, family="flows")
            model.add(coming == v.replicas[after][d], when, family="flows")
        for literal in when:
            for f in flow.values():
                model.add(f == 0, [~literal], family="flows")
        v.flow.append(flow)
        v.moves.append(moves)


def exchange_pairs(v: PlainVariables) -> None:
    """Ordered pairs of sites that exchange gradients of a stage.

    Hierarchical: :math:`h_{s,d} + h_{s,e} - 1 \\le p_{s,d,e}`.  Flat: the same for neighbours on
    the ring of hosting sites, that is minus the hosts in between.  A pair without a route is
    excluded.
    """
    model, sites = v.model, range(v.num_sites)
    for sync in v.sync:
        rows = []
        for s in range(v.pp):
            row: dict[tuple[int, int], Variable] = {}
            for d in sites:
                for e in sites:
                    if d == e:
                        continue
                    both = v.host[s][d] + v.host[s][e] - 1
                    if sync == "flat":
                        both = both - linear_sum(v.host[s][a] for a in _between(d, e, v.num_sites))
                    if (d, e) in v.problem.routes:
                        row[d, e] = model.boolean(f"pair_{sync}_{s}_{d}_{e}")
                        model.add(row[d, e] >= both, family="pairs")
                    else:
                        model.add(both <= 0, v.literal(v.sync, sync), family="pairs")
            rows.append(row)
        v.pair[sync] = rows


def _between(source: int, target: int, sites: int) -> list[int]:
    """Sites strictly between two sites on the ring in file order."""
    result, d = [], (source + 1) % sites
    while d != target:
        result.append(d)
        d = (d + 1) % sites
    return result


def extra_warmup(v: PlainVariables) -> None:
    """Extra warm-up microbatches in front of boundaries where replicas change site.

    .. math:: \\sum_j w_{b,j} = 1, \\qquad w_{b,j>0} \\Rightarrow \\text{1f1b or zb\\_h1
        and a replica changes site at } b, \\qquad
        \\sum_j j\\,q_{s,j} = \\sum_{b \\ge s} \\sum_j j\\,w_{b,j}
    """
    model = v.model
    takers = [c for c in v.schedule if SCHEDULES[c.schedule].has_extra_warmup]
    for b in range(v.pp - 1):
        steps = v.choices.warmup_steps(b) if takers and v.num_sites > 1 else (0,)
        table = {step: model.boolean(f"warmup_{b}_{step}") for step in steps}
        model.exactly_one(table.values(), family="warmup")
        if len(steps) > 1:
            crossing = [c for (d, e), c in v.moves[b].items() if d != e]
            model.add(linear_sum(crossing) >= 1 - table[0], family="warmup")
            if len(takers) < len(v.schedule):
                model.implication(
                    ~table[0], v.any_of([v.schedule[c] for c in takers]), family="warmup"
                )
        v.warmup.append(table)
    for s in range(v.pp):
        reachable = {0}
        for b in range(s, v.pp - 1):
            reachable = {a + step for a in reachable for step in v.warmup[b]}
        total = linear_sum(
            step * literal for b in range(s, v.pp - 1) for step, literal in v.warmup[b].items()
        )
        stage = {value: model.boolean(f"in_flight_{s}_{value}") for value in sorted(reachable)}
        model.exactly_one(stage.values(), family="warmup")
        if len(stage) > 1:
            model.add(
                linear_sum(value * literal for value, literal in stage.items()) == total,
                family="warmup",
            )
        v.in_flight.append(stage)


def kinds_of_placement(v: PlainVariables) -> None:
    """Only the allowed kinds of placement.

    With ``M`` = "some replica changes site" and ``P`` = "some stage runs at several sites":
    single-site is neither, pp-out is ``M`` only, dp-out ``P`` only, mixed both.
    """
    model = v.model
    allowed = set(v.choices.placement_kinds)
    crossing = [c for moves in v.moves for (d, e), c in moves.items() if d != e]
    several = [literal for row in v.hosts for n, literal in row.items() if n > 1]
    v.crossings = linear_sum(
        [f for flow in v.flow for (d, e), f in flow.items() if d != e]
        + [(n - 1) * literal for row in v.hosts for n, literal in row.items() if n > 1]
    )
    if len(allowed) == 4:
        return
    moves, spreads = model.boolean("moves"), model.boolean("spreads")
    for literal, members in ((moves, crossing), (spreads, several)):
        for member in members:
            model.implication(member, literal, family="placement_kind")
        model.add(linear_sum([*members, 0]) >= literal, family="placement_kind")
    for kind, m, p in (
        ("single-site", ~moves, ~spreads),
        ("pp-out", moves, ~spreads),
        ("dp-out", ~moves, spreads),
        ("mixed", moves, spreads),
    ):
        if kind not in allowed:
            model.add(linear_sum([m, p]) <= 1, family="placement_kind")
