"""Good plans of one degrees case without a model: partitions × placements × choices, priced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from planner import space
from planner.check import memory_of_layout, memory_violations, time_below
from planner.choices import CaseChoices, ScheduleChoice
from planner.cost.coefficients import CaseCoefficients, Option
from planner.cost.efficiency import peak_flops
from planner.layout import Flows, Layout, num_boundaries, sync_pairs, used_links
from planner.pipeline.memory import live_counts
from planner.pipeline.schedules import SCHEDULES, Template, chunk_devices
from planner.problem import Problem
from planner.search.bounds import INFEASIBLE, ChoiceBound, ceil_div

Placement = tuple[tuple[int, ...], ...]
WARMUPS = (0, 1, 2, 4, 8)
EXACT_CHAIN = 9
"""Most sites whose shortest chain is found exactly."""


def case_plans(
    choices: CaseChoices,
    values: Mapping[tuple[ScheduleChoice, Option], ChoiceBound],
    cutoff_us: int | None,
    max_pairs: int | None = None,
    splits: Sequence[tuple[int, ...]] = (),
) -> Iterator[tuple[int, Layout] | None]:
    """Feasible plans of a case that beat the cut-off, each better than the one before.

    Yields None before every plan that it prices, so that the caller can look at the clock.

    Parameters
    ----------
    choices
        The alternatives of the case.
    values
        Bounds of pairs of schedule and option; those that cannot beat the cut-off are skipped.
    cutoff_us
        Only plans with a smaller Z are of interest; None = any.
    max_pairs
        At most so many pairs, those with the smallest bounds; None = all.
    splits
        Layers per chunk to try; none = balanced ones.
    """
    problem, co = choices.problem, choices.co
    ranked = sorted(
        ((bound.value_us, i, pair) for i, (pair, bound) in enumerate(values.items())),
    )
    best = cutoff_us
    for value, _, (choice, option) in ranked[:max_pairs]:
        if value >= INFEASIBLE or (best is not None and value >= best):
            break
        for layout in _layouts(choices, choice, option, splits):
            yield None
            if memory_violations(memory_of_layout(problem, co, layout)):
                continue
            time_us = time_below(problem, co, layout, best)
            if time_us is not None:
                best = time_us
                yield time_us, layout
                if best <= value:
                    break


def _layouts(
    choices: CaseChoices,
    choice: ScheduleChoice,
    option: Option,
    given: Sequence[tuple[int, ...]],
) -> Iterator[Layout]:
    problem, co = choices.problem, choices.co
    degrees = co.degrees
    splits: dict[tuple[object, ...], Sequence[tuple[int, ...]]] = {}
    for replicas in placements(choices, option):
        flows = direct_flows(problem, choice, co, replicas)
        if flows is None:
            continue
        layout = Layout(
            degrees=degrees,
            schedule=choice.schedule,
            run_length=choice.run_length,
            extra_warmup=(0,) * degrees.pp,
            option=option,
            sync=choices.syncs[0],
            layers=(),
            replicas=replicas,
            flows=flows,
            protocols={},
        )
        if layout.placement_kind not in choices.placement_kinds:
            continue
        for sync in choices.syncs:
            synced = layout._replace(sync=sync)
            protocols = best_protocols(problem, co, synced)
            if protocols is None:
                continue
            synced = synced._replace(protocols=protocols)
            for warmup in _warmups(choices, synced):
                warmed = synced._replace(extra_warmup=warmup)
                key = (stage_limits(co, layout), stage_classes(problem, layout), warmup)
                if given:
                    splits[key] = given
                elif key not in splits:
                    splits[key] = list(layer_splits(choices, warmed))
                for layers in splits[key]:
                    yield warmed._replace(layers=layers)
            if layout.placement_kind in ("single-site", "pp-out"):
                break


def _warmups(choices: CaseChoices, layout: Layout) -> Iterator[tuple[int, ...]]:
    pp = choices.co.degrees.pp
    yield (0,) * pp
    if not SCHEDULES[layout.schedule].has_extra_warmup:
        return
    slow = [b for b in range(pp - 1) if any(d != e for d, e, _ in layout.flows[b])]
    if not slow:
        return
    for step in WARMUPS[1:]:
        steps = {b: step if step in choices.warmup_steps(b) else 0 for b in slow}
        if any(steps.values()):
            yield warmup_of_steps(steps, pp)


def warmup_of_steps(steps: Mapping[int, int], pp: int) -> tuple[int, ...]:
    """Extra warm-up of every stage from its falls over the boundaries."""
    return tuple(sum(n for b, n in steps.items() if b >= s) for s in range(pp))


def layer_splits(choices: CaseChoices, layout: Layout) -> Iterator[tuple[int, ...]]:
    """Layer splits that balance the stages of a plan within the memory of their sites.

    The layers of ``layout`` are not looked at.
    """
    if choices.fixed_layers is not None:
        yield choices.fixed_layers
        return
    co, option = choices.co, layout.option
    choice = ScheduleChoice(layout.schedule, layout.run_length)
    degrees = co.degrees
    limits = stage_limits(co, layout)
    chunks, total = degrees.pp * degrees.virtual_stages, len(co.layer_units)
    if chunks == 1:
        yield (total,)
        return
    classes = stage_classes(choices.problem, layout)
    if degrees.virtual_stages == 1:
        split = balanced_split(co, choice, option, classes, limits, layout.extra_warmup)
        if split is not None:
            yield split
        return
    if len(set(classes)) > 1:
        yield _split_by_speed(
            co, option, classes, chunk_devices(choice.schedule, degrees.pp, degrees.virtual_stages)
        )
    base, extra = divmod(total, chunks)
    row = [base + (k < extra) for k in range(chunks)]
    yield tuple(row)
    for _ in range(2):
        if row[-1] > 1:
            row[-1] -= 1
            row[row.index(min(row[:-1]))] += 1
            yield tuple(row)


def stage_limits(co: CaseCoefficients, layout: Layout) -> tuple[int, ...]:
    """Smallest memory limit of the sites of every stage, MiB."""
    return tuple(min(co.limit_mib[d] for d in layout.hosts(s)) for s in range(co.degrees.pp))


def stage_classes(problem: Problem, layout: Layout) -> tuple[frozenset[int], ...]:
    """GPU classes of the sites of every stage."""
    return tuple(
        frozenset(problem.sites[d].gpu_class for d in layout.hosts(s))
        for s in range(layout.degrees.pp)
    )


def _split_by_speed(
    co: CaseCoefficients,
    option: Option,
    classes: Sequence[frozenset[int]],
    devices: Sequence[int],
) -> tuple[int, ...]:
    """Several chunks a stage: layers in proportion to the speed of the stage, one at least."""

    def seconds(s: int) -> float:
        ops = [co.ops(g, option) for g in classes[s]]
        kinds = range(len(co.kinds))
        return max(sum(o.forward[u] + o.backward[u] for u in kinds) for o in ops)

    speed = [1 / seconds(s) for s in devices]
    total = len(co.layer_units)
    row = [1] * len(devices)
    for _ in range(total - len(devices)):
        k = max(range(len(row)), key=lambda k: (speed[k] / (row[k] + 1), -k))
        row[k] += 1
    return tuple(row)


def balanced_split(
    co: CaseCoefficients,
    choice: ScheduleChoice,
    option: Option,
    classes: Sequence[frozenset[int]],
    limits: Sequence[int],
    warmup: tuple[int, ...],
) -> tuple[int, ...] | None:
    """One chunk a stage: the split with the smallest slowest stage that fits the memory.

    Bisection over the slowest stage; each stage takes as many layers as time and memory allow,
    and leaves at least one for every later stage.
    """
    degrees, total = co.degrees, len(co.layer_units)
    split = SCHEDULES[choice.schedule].split_backward
    template = Template(
        choice.schedule, degrees.pp, 1, co.num_microbatches, choice.run_length, warmup
    )
    vectors = live_counts(template)
    costs = co.memory(option)
    activation = costs.split_activation if split else costs.activation
    embedding, head = co.units.index("embedding"), co.units.index("head")
    times, memory = [], []
    for s in range(degrees.pp):
        ops = [co.ops(g, option) for g in classes[s]]
        times.append(
            [
                max(
                    o.forward[u]
                    + (o.input_gradient[u] + o.weight_gradient[u] if split else o.backward[u])
                    for o in ops
                )
                for u in range(len(co.units))
            ]
        )
        memory.append(
            [
                costs.state[u]
                + max(
                    full[0] * activation[u] + held[0] * costs.held[u] for full, held in vectors[s]
                )
                for u in range(len(co.units))
            ]
        )

    def fill(slowest: int) -> tuple[int, ...] | None:
        row, position = [], 0
        for s in range(degrees.pp):
            last = s == degrees.pp - 1
            time_left = slowest - (times[s][embedding] if s == 0 else 0)
            room = limits[s] - (costs.head_working if last else costs.working)
            room -= memory[s][embedding] if s == 0 else 0
            if last:
                time_left -= times[s][head]
                room -= memory[s][head]
            taken = 0
            while position < total - (degrees.pp - 1 - s):
                unit = co.layer_units[position]
                time_left -= times[s][unit]
                room -= memory[s][unit]
                if time_left < 0 or room < 0:
                    break
                position, taken = position + 1, taken + 1
            if taken == 0:
                return None
            row.append(taken)
        return tuple(row) if position == total else None

    high = sum(max(t[u] for t in times) for u in (*co.layer_units, embedding, head))
    low, found = 0, fill(high)
    if found is None:
        return None
    while low < high:
        middle = (low + high) // 2
        row = fill(middle)
        if row is None:
            low = middle + 1
        else:
            high, found = middle, row
    return found


def placements(choices: CaseChoices, option: Option) -> Iterator[Placement]:
    """Whole pipelines per site, stages site after site, and a mixture that fills sites up."""
    problem, co = choices.problem, choices.co
    degrees = co.degrees
    unit = space.granularity(degrees, spanning=option.spanning)
    seen: set[Placement] = set()
    orders = _site_orders(problem, co)
    for order in orders:
        for candidate in (
            _columns(co, order, unit),
            _even_columns(co, order, unit),
            _stages_in_turn(co, order, unit),
            _fill_up(co, order, unit),
        ):
            if candidate is None or candidate in seen:
                continue
            seen.add(candidate)
            if option.spanning and not ragged(candidate, co):
                continue
            yield candidate


def ragged(candidate: Placement, co: CaseCoefficients) -> bool:
    """Whether some shard group spans sites."""
    whole = space.granularity(co.degrees, spanning=False)
    return any(count % whole for row in candidate for count in row)


def _site_orders(problem: Problem, co: CaseCoefficients) -> list[tuple[int, ...]]:
    """Orders in which sites are filled: fastest and largest first or last, file order, reversed.

    And along the shortest way through all of them.
    """
    usable = [d for d, cells in enumerate(co.cells) if cells]
    precision = problem.training.precision
    speed = {
        d: peak_flops(problem.classes[problem.sites[d].gpu_class].gpu, precision) for d in usable
    }
    first = tuple(sorted(usable, key=lambda d: (-speed[d], -co.cells[d], d)))
    last = tuple(sorted(usable, key=lambda d: (speed[d], co.cells[d], d)))
    return list(
        dict.fromkeys(
            (
                first,
                tuple(usable),
                shortest_chain(problem, tuple(usable)),
                last,
                tuple(reversed(usable)),
            )
        )
    )


def shortest_chain(problem: Problem, sites: tuple[int, ...]) -> tuple[int, ...]:
    """The order of sites in which a pipeline through all of them has the least delay.

    Dynamic programming over sets of sites up to :data:`EXACT_CHAIN` of them, else always the
    nearest site that is left.  Sites without a route lie far apart.
    """
    key = ("shortest chain", sites)
    if key not in problem.coefficient_cache:
        problem.coefficient_cache[key] = _shortest_chain(problem, sites)
    found: tuple[int, ...] = problem.coefficient_cache[key]
    return found


def _shortest_chain(problem: Problem, sites: tuple[int, ...]) -> tuple[int, ...]:
    far = 1.0 + sum(link.delay_s for link in problem.links)

    def delay(d: int, e: int) -> float:
        return _delay(problem, (d, e)) if (d, e) in problem.routes else far

    if len(sites) > EXACT_CHAIN:
        order, left = [sites[0]], set(sites[1:])
        while left:
            order.append(min(left, key=lambda e: (delay(order[-1], e), e)))
            left.remove(order[-1])
        return tuple(order)
    best: dict[tuple[frozenset[int], int], tuple[float, tuple[int, ...]]] = {
        (frozenset((d,)), d): (0.0, (d,)) for d in sites
    }
    for _ in range(len(sites) - 1):
        longer: dict[tuple[frozenset[int], int], tuple[float, tuple[int, ...]]] = {}
        for (visited, last), (length, order_so_far) in best.items():
            for e in sites:
                if e in visited:
                    continue
                found = (length + delay(last, e), (*order_so_far, e))
                key = (visited | {e}, e)
                if key not in longer or found < longer[key]:
                    longer[key] = found
        best = longer
    return min(best.values())[1] if best else ()


def _columns(co: CaseCoefficients, order: tuple[int, ...], unit: int) -> Placement | None:
    """Whole pipelines: as many as fit at each site in turn."""
    degrees, left = co.degrees, co.degrees.dp
    row = [0] * len(co.cells)
    for d in order:
        row[d] = min(left, co.cells[d] // degrees.pp) // unit * unit
        left -= row[d]
    return None if left else (tuple(row),) * degrees.pp


def _even_columns(co: CaseCoefficients, order: tuple[int, ...], unit: int) -> Placement | None:
    """Whole pipelines, spread evenly over all sites that can hold their share."""
    degrees = co.degrees
    share = degrees.dp // len(order)
    row = [0] * len(co.cells)
    for d in order:
        row[d] = min(share, co.cells[d] // degrees.pp) // unit * unit
    left = degrees.dp - sum(row)
    for d in order:
        more = min(left, co.cells[d] // degrees.pp - row[d]) // unit * unit
        row[d] += more
        left -= more
    return None if left else (tuple(row),) * degrees.pp


def _stages_in_turn(co: CaseCoefficients, order: tuple[int, ...], unit: int) -> Placement | None:
    """All replicas of a stage at one site, site after site."""
    degrees = co.degrees
    if degrees.dp % unit:
        return None
    room = [co.cells[d] // degrees.dp for d in order]
    if sum(room) < degrees.pp:
        return None
    shares = _spread(degrees.pp, room)
    rows = []
    for d, stages in zip(order, shares, strict=True):
        row = tuple(degrees.dp if e == d else 0 for e in range(len(co.cells)))
        rows += [row] * stages
    return tuple(rows)


def _spread(total: int, room: Sequence[int]) -> list[int]:
    """Shares of ``total`` in proportion to the room."""
    space_left, shares, left = sum(room), [], total
    for r in room:
        share = min(r, ceil_div(left * r, space_left)) if space_left else 0
        shares.append(share)
        left -= share
        space_left -= r
    return shares


def _fill_up(co: CaseCoefficients, order: tuple[int, ...], unit: int) -> Placement | None:
    """Stage after stage, each site filled before the next one is begun."""
    degrees = co.degrees
    free = {d: co.cells[d] // unit * unit for d in order}
    rows = []
    for _ in range(degrees.pp):
        row, left = [0] * len(co.cells), degrees.dp
        for d in order:
            row[d] = min(left, free[d]) // unit * unit
            free[d] -= row[d]
            left -= row[d]
        if left:
            return None
        rows.append(tuple(row))
    return tuple(rows)


def direct_flows(
    problem: Problem, choice: ScheduleChoice, co: CaseCoefficients, replicas: Placement
) -> Flows | None:
    """Replicas stay where they can; the rest goes over the routes with the least delay first."""
    pp = co.degrees.pp
    result = []
    for b in range(num_boundaries(choice.schedule, pp, co.degrees.virtual_stages)):
        before, after = list(replicas[b]), list(replicas[(b + 1) % pp])
        moves: dict[tuple[int, int], int] = {}
        for d in range(len(before)):
            stay = min(before[d], after[d])
            if stay:
                moves[d, d] = stay
            before[d] -= stay
            after[d] -= stay
        pairs = [
            (d, e)
            for d, e in product(range(len(before)), repeat=2)
            if before[d] and after[e] and {(d, e), (e, d)} <= problem.routes.keys()
        ]
        pairs.sort(key=lambda pair: (_delay(problem, pair), pair))
        for d, e in pairs:
            count = min(before[d], after[e])
            if count:
                moves[d, e] = count
                before[d] -= count
                after[e] -= count
        if any(before):
            return None
        result.append(tuple((d, e, r) for (d, e), r in sorted(moves.items())))
    return tuple(result)


def _delay(problem: Problem, pair: tuple[int, int]) -> float:
    return sum(problem.links[link].delay_s for link in problem.routes[pair])


def best_protocols(
    problem: Problem, co: CaseCoefficients, layout: Layout
) -> dict[int, tuple[str, str]] | None:
    """Per used link the protocol with the highest rate, then the least latency."""
    for s in range(co.degrees.pp):
        if any(p not in problem.routes for p in sync_pairs(layout.hosts(s), layout.sync)):
            return None
    pipeline, data = used_links(problem, layout.replicas, layout.flows, layout.sync)
    chosen = {}
    for link in pipeline | data:
        names = problem.protocols[link]
        if not names:
            return None
        best = min(
            names, key=lambda n: (co.mib(link, n).us(10**6), co.latency(link, n), names.index(n))
        )
        chosen[link] = (best, best)
    return chosen


__all__ = ["best_protocols", "case_plans", "direct_flows", "placements"]
