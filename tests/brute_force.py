"""The whole plan space of a small instance, plan by plan, and its best plan.

An oracle for the planner: every combination that ``docs/plan_space.md`` allows is enumerated by
nested loops and priced by :mod:`planner.check`.  Nothing is shared with the search, the
formulations or the ranges that they use.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product
from math import gcd, lcm
from typing import NamedTuple, TypeVar, get_args

from planner.check import check_plan, memory_of_layout, time_below, time_of_layout
from planner.cost.coefficients import Option, case_coefficients
from planner.instance.schema import Instance
from planner.layout import Flows, Layout, to_plan
from planner.pipeline.schedules import Op, device_orders
from planner.plan import (
    Degrees,
    Flow,
    Hosting,
    PlacementKind,
    Plan,
    ProtocolChoice,
    Recompute,
    Sharding,
    Sync,
)
from planner.problem import Problem

T = TypeVar("T")

Row = tuple[int, ...]
"""Replicas of one stage at every site."""

Grid = tuple[Row, ...]
"""Replicas of every stage at every site."""

_PIPELINE_DEGREES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_CHUNKS: dict[str, tuple[int, ...]] = {
    "gpipe": (1,),
    "1f1b": (1,),
    "interleaved": tuple(range(2, 9)),
    "zb_h1": (1,),
    "zb_h2": (1,),
    "zbv": (2,),
    "dualpipe_v": (2,),
    "dora": tuple(range(2, 9)),
}
_RUNS = ("interleaved", "dora")
_EXTRA = ("1f1b", "zb_h1")


@dataclass(frozen=True)
class BruteForceResult:
    """The best plan of an instance.

    Attributes
    ----------
    best_time_us
        The smallest Z of a plan that is legal and fits, None where there is none.
    plan
        Of the plans with that Z the first one in the documented order of ties.
    plans
        Number of legal plans.
    feasible
        Number of legal plans that fit into memory.
    layout
        The plan in index form.
    """

    best_time_us: int | None
    plan: Plan | None
    plans: int
    feasible: int
    layout: Layout | None = None


def best_plan(
    instance: Instance, *, samples: int = 12, broken: int = 4, seed: int = 0
) -> BruteForceResult:
    """The best of all plans, and a test of the checker on the way.

    Parameters
    ----------
    instance
        A small instance.
    samples
        So many plans drawn at random go through the whole checker besides those that improve on
        all before them.
    broken
        So many of the drawn plans are broken in every way known, and the checker has to refuse
        each by the right rule.
    seed
        Of the draw.

    Raises
    ------
    AssertionError
        If the checker disagrees with the enumeration.
    """
    problem, pricer = Problem(instance), Pricer(instance)
    rng = random.Random(seed)
    drawn: list[tuple[Layout, bool]] = []
    best: tuple[tuple[int, int, int, Degrees], Layout] | None = None
    plans = feasible = 0
    for layout in enumerate_layouts(instance):
        plans += 1
        fits = pricer.fits(layout)
        if len(drawn) < samples:
            drawn.append((layout, fits))
        elif samples and (place := rng.randrange(plans)) < samples:
            drawn[place] = (layout, fits)
        if not fits:
            continue
        feasible += 1
        time_us = pricer.time_up_to(layout, None if best is None else best[0][0])
        if time_us is None:
            continue
        key = (time_us, layout.crossings, layout.degrees.gpus, layout.degrees)
        if best is None or key < best[0]:
            best = key, layout
            assert_accepted(instance, problem, layout, time_us)
    for number, (layout, fits) in enumerate(drawn):
        if fits:
            assert_accepted(instance, problem, layout, pricer.time_us(layout))
        else:
            assert_too_big(instance, problem, layout, pricer.time_us(layout))
        if number < broken:
            assert_refusals(instance, to_plan(problem, layout), rng)
    if best is None:
        return BruteForceResult(None, None, plans, feasible)
    layout = best[1]
    return BruteForceResult(
        pricer.time_us(layout), to_plan(problem, layout), plans, feasible, layout
    )


class Pricer:
    """Z and memory of layouts by the checker's own functions, each distinct one once."""

    def __init__(self, instance: Instance) -> None:
        self.problem = Problem(instance)
        self._fits: dict[tuple[object, ...], bool] = {}
        self._times: dict[tuple[object, ...], int] = {}
        self._above: set[tuple[object, ...]] = set()
        self._first: dict[tuple[object, ...], dict[tuple[tuple[Op, ...], ...], Row]] = {}
        self._canonical: dict[tuple[object, ...], Row] = {}

    def fits(self, layout: Layout) -> bool:
        """Whether every stage at every site is within its memory limit."""
        hosts = tuple(layout.hosts(s) for s in range(layout.degrees.pp))
        key = (*self._key(layout), hosts)
        found = self._fits.get(key)
        if found is None:
            co = case_coefficients(self.problem, layout.degrees)
            rows = memory_of_layout(self.problem, co, layout)
            found = all(row.peak_mib <= row.limit_mib for row in rows)
            self._fits[key] = found
        return found

    def time_up_to(self, layout: Layout, most_us: int | None) -> int | None:
        """Z; None where it is above a limit that only falls from call to call."""
        key = self._time_key(layout)
        found = self._times.get(key)
        if found is None and key not in self._above:
            co = case_coefficients(self.problem, layout.degrees)
            limit = None if most_us is None else most_us + 1
            found = time_below(self.problem, co, layout, limit)
            if found is None:
                self._above.add(key)
            else:
                self._times[key] = found
        return None if found is None or (most_us is not None and found > most_us) else found

    def time_us(self, layout: Layout) -> int:
        """Z."""
        key = self._time_key(layout)
        found = self._times.get(key)
        if found is None:
            co = case_coefficients(self.problem, layout.degrees)
            found = time_of_layout(self.problem, co, layout)
            self._times[key] = found
        return found

    def _time_key(self, layout: Layout) -> tuple[object, ...]:
        used = tuple(sorted(layout.protocols.items()))
        return (*self._key(layout), layout.sync, layout.replicas, layout.flows, used)

    def _key(self, layout: Layout) -> tuple[object, ...]:
        """All but placement and sync; of the extra warm-ups with equal op orders the first."""
        extra = layout.extra_warmup
        if any(extra):
            case = (layout.degrees, layout.schedule)
            same = self._canonical.get((*case, extra))
            if same is None:
                m = self.problem.num_microbatches(layout.degrees)
                none = (0,) * len(extra)
                first = self._first.get(case)
                if first is None:
                    template = layout._replace(extra_warmup=none).template(m)
                    first = self._first[case] = {device_orders(template): none}
                same = first.setdefault(device_orders(layout.template(m)), extra)
                self._canonical[*case, extra] = same
            extra = same
        degrees, schedule, run, _, option, _, layers, *_ = layout
        return degrees, schedule, run, extra, option, layers


def enumerate_layouts(instance: Instance) -> Iterator[Layout]:
    """Every legal plan of an instance, whether or not it fits into memory."""
    problem = Problem(instance)
    for core in _cores(problem):
        layers, options = _layer_splits(problem, core), _options(problem, core.degrees)
        for place in _placed(problem, core):
            spanning = _spans(core.degrees, place.replicas)
            for protocols in _protocol_choices(problem, place):
                for split, (sharding, overlap, recompute) in product(layers, options):
                    yield Layout(
                        core.degrees,
                        core.schedule,
                        core.run_length,
                        place.extra_warmup,
                        Option(sharding, overlap, recompute, spanning),
                        place.sync,
                        split,
                        place.replicas,
                        place.flows,
                        protocols,
                    )


def count_layouts(instance: Instance, limit: int | None = None) -> int:
    """How many plans :func:`enumerate_layouts` yields; stops counting beyond ``limit``."""
    problem, total = Problem(instance), 0
    for core in _cores(problem):
        each = len(_layer_splits(problem, core)) * len(_options(problem, core.degrees))
        for place in _placed(problem, core) if each else ():
            number = 1
            for _, choices in _link_choices(problem, place):
                number *= len(choices)
            total += each * number
            if limit is not None and total > limit:
                return total
    return total


class _Core(NamedTuple):
    """What the enumeration fixes first."""

    degrees: Degrees
    schedule: str
    run_length: int | None


class _Place(NamedTuple):
    """Where the replicas run and what that opens."""

    replicas: Grid
    flows: Flows
    extra_warmup: Row
    sync: Sync


def _allowed(narrowed: Sequence[T] | None, values: Iterable[T]) -> list[T]:
    return [value for value in values if narrowed is None or value in narrowed]


def _cores(problem: Problem) -> Iterator[_Core]:
    search = problem.search
    for degrees in _degrees(problem):
        m = problem.training.global_batch_size // (degrees.dp * degrees.micro_batch_size)
        for schedule in _allowed(search.schedule, _CHUNKS):
            if degrees.virtual_stages not in _CHUNKS[schedule]:
                continue
            if schedule not in _RUNS:
                yield _Core(degrees, schedule, None)
                continue
            runs = [run for run in range(1, m + 1) if m % run == 0 and run >= degrees.pp]
            for run in _allowed(search.run_length, runs):
                yield _Core(degrees, schedule, run)


def _degrees(problem: Problem) -> Iterator[Degrees]:
    search, batch = problem.search, problem.training.global_batch_size
    gpus = sum(site.num_gpus for site in problem.instance.cluster.sites)
    ranges = product(
        _allowed(search.tp, _tensor_degrees(problem)),
        _allowed(search.cp, _context_degrees(problem)),
        _allowed(search.ep, _expert_degrees(problem)),
        _allowed(search.etp, (1,)),
        _allowed(search.pp, _pipeline_degrees(problem.model.num_layers)),
        _allowed(search.virtual_stages, range(1, 9)),
        _allowed(search.micro_batch_size, (1, 2, 4, 8)),
        _allowed(search.dp, range(1, min(gpus, batch) + 1)),
    )
    for tp, cp, ep, etp, pp, v, micro, dp in ranges:
        if pp * v > problem.model.num_layers or tp * cp * pp * dp > gpus:
            continue
        if batch % (dp * micro) or (dp * tp * cp) % (ep * etp):
            continue
        if not _allowed(search.gpus_used, [tp * cp * pp * dp]):
            continue
        if batch // (dp * micro) not in _allowed(search.num_microbatches, [batch // (dp * micro)]):
            continue
        for shard in _allowed(search.dp_shard, range(1, dp + 1)):
            if dp % shard or not _allowed(search.dp_replicate, [dp // shard]):
                continue
            inner, outer = sorted((shard * tp * cp, ep * etp))
            if outer % inner == 0:
                yield Degrees(tp, cp, ep, etp, pp, v, micro, dp, shard)


def _powers_of_two(limit: int) -> list[int]:
    return [2**i for i in range(limit.bit_length()) if 2**i <= limit]


def _tensor_degrees(problem: Problem) -> list[int]:
    model = problem.model
    domain = max(site.gpu.scale_up_domain for site in problem.instance.cluster.sites)
    widths = [model.num_heads, model.shared_expert_ffn_hidden_size]
    if "dense" in model.layer_kinds:
        widths.append(model.ffn_hidden_size)
    kv, copies = model.num_kv_heads, problem.instance.stack.replicates_kv_heads
    return [
        tp
        for tp in _powers_of_two(domain)
        if all(width % tp == 0 for width in widths) and (kv % tp == 0 or (copies and tp % kv == 0))
    ]


def _context_degrees(problem: Problem) -> list[int]:
    length = problem.training.sequence_length
    return [
        cp
        for cp in _powers_of_two(length)
        if cp == 1 or (length / cp >= 4096 and length % (2 * cp) == 0)
    ]


def _expert_degrees(problem: Problem) -> list[int]:
    experts = problem.model.num_experts
    return [ep for ep in _powers_of_two(experts) if experts % ep == 0] or [1]


def _pipeline_degrees(layers: int) -> list[int]:
    return [
        pp for pp in range(1, min(layers, 64) + 1) if pp in _PIPELINE_DEGREES or layers % pp == 0
    ]


def _options(problem: Problem, degrees: Degrees) -> list[tuple[Sharding, bool, Recompute]]:
    search = problem.search
    legal = [
        sharding
        for sharding in get_args(Sharding)
        if (degrees.dp_shard == 1 if sharding == "ddp" else degrees.dp_shard * degrees.cp > 1)
    ]
    return list(
        product(
            _allowed(search.sharding, legal),
            _allowed(search.overlap, (True, False)),
            _allowed(search.recompute, get_args(Recompute)),
        )
    )


def _layer_splits(problem: Problem, core: _Core) -> list[Row]:
    chunks = core.degrees.pp * core.degrees.virtual_stages
    fixed = problem.search.fixed_layers_per_stage
    return [
        split
        for split in compositions(problem.model.num_layers, chunks)
        if fixed is None or split == tuple(fixed)
    ]


@lru_cache
def compositions(total: int, parts: int) -> list[Row]:
    """All ways to write ``total`` as an ordered sum of positive parts."""
    if parts == 1:
        return [(total,)] if total > 0 else []
    return [
        (first, *rest)
        for first in range(1, total)
        for rest in compositions(total - first, parts - 1)
    ]


def _placed(problem: Problem, core: _Core) -> Iterator[_Place]:
    """Replicas, flows, extra warm-up and synchronisation; only where links join what exchanges."""
    kinds = problem.search.placement_kind
    for replicas in _grids(problem, core.degrees):
        spread = any(sum(map(bool, row)) > 1 for row in replicas)
        for flows in product(*_boundaries(core, replicas)):
            kind = _placement_kind(spread, flows)
            if kinds is not None and kind not in kinds:
                continue
            for sync in _allowed(problem.search.sync, get_args(Sync)):
                pairs = _pipeline_pairs(flows) | _exchange_pairs(replicas, sync)
                if all(pair in problem.routes for pair in pairs):
                    for extra in _warmups(problem, core, flows):
                        yield _Place(replicas, flows, extra, sync)


def _cells(problem: Problem, degrees: Degrees) -> Row:
    """Cells of every site: whole nodes only, tensor parallelism within the scale-up domain."""
    size, result = degrees.tp * degrees.cp, []
    for site in problem.instance.cluster.sites:
        node, nodes = site.gpus_per_node, site.num_gpus // site.gpus_per_node
        whole = node % size == 0 or size % node == 0
        reaches = degrees.tp <= site.gpu.scale_up_domain
        result.append(nodes * node // size if whole and reaches else 0)
    return tuple(result)


def _grids(problem: Problem, degrees: Degrees) -> Iterator[Grid]:
    experts = degrees.ep * degrees.etp
    unit = experts // gcd(experts, degrees.tp * degrees.cp)
    if not problem.search.shard_across_sites:
        unit = lcm(unit, degrees.dp_shard)
    yield from _stack((), _cells(problem, degrees), degrees, unit)


def _stack(grid: Grid, room: Row, degrees: Degrees, unit: int) -> Iterator[Grid]:
    if len(grid) == degrees.pp:
        yield grid
        return
    for row in _rows(degrees.dp, room, unit):
        left = tuple(free - used for free, used in zip(room, row, strict=True))
        yield from _stack((*grid, row), left, degrees, unit)


def _rows(total: int, room: Row, unit: int) -> Iterator[Row]:
    """All ways to deal ``total`` replicas to sites in multiples of ``unit``."""
    if not room:
        if total == 0:
            yield ()
        return
    for here in range(0, min(total, room[0]) + 1, unit):
        for rest in _rows(total - here, room[1:], unit):
            yield (here, *rest)


def _boundaries(core: _Core, replicas: Grid) -> list[list[tuple[tuple[int, int, int], ...]]]:
    """All matchings of every boundary."""
    ends = list(pairwise(replicas))
    if core.schedule in _RUNS and core.degrees.pp > 1:
        ends.append((replicas[-1], replicas[0]))
    return [_matchings(before, after) for before, after in ends]


@lru_cache(maxsize=4096)
def _matchings(before: Row, after: Row) -> list[tuple[tuple[int, int, int], ...]]:
    """All tables of whole numbers with the row sums ``before`` and the column sums ``after``."""
    tables: list[tuple[Grid, Row]] = [((), after)]
    for total in before:
        tables = [
            ((*rows, row), tuple(a - r for a, r in zip(left, row, strict=True)))
            for rows, left in tables
            for row in _rows(total, left, 1)
        ]
    return [
        tuple((d, e, r) for d, row in enumerate(rows) for e, r in enumerate(row) if r)
        for rows, _ in tables
    ]


def _placement_kind(spread: bool, flows: Flows) -> PlacementKind:
    moves = any(d != e for boundary in flows for d, e, _ in boundary)
    if moves:
        return "mixed" if spread else "pp-out"
    return "dp-out" if spread else "single-site"


def _pipeline_pairs(flows: Flows) -> set[tuple[int, int]]:
    there = {(d, e) for boundary in flows for d, e, _ in boundary if d != e}
    return there | {(e, d) for d, e in there}


def _exchange_pairs(replicas: Grid, sync: Sync) -> set[tuple[int, int]]:
    pairs = set()
    for row in replicas:
        hosts = [d for d, count in enumerate(row) if count]
        if len(hosts) < 2:
            continue
        if sync == "hierarchical":
            pairs |= {(d, e) for d in hosts for e in hosts if d != e}
        else:
            pairs |= set(pairwise([*hosts, hosts[0]]))
    return pairs


def _warmups(problem: Problem, core: _Core, flows: Flows) -> list[Row]:
    """Extra warm-ups, from the steps at the boundaries."""
    pp = core.degrees.pp
    if core.schedule not in _EXTRA:
        return [(0,) * pp]
    steps = []
    for boundary in flows[: pp - 1]:
        crosses = any(d != e for d, e, _ in boundary)
        narrowed = problem.search.extra_warmup
        extra = _allowed(narrowed, range(1, 9)) if crosses else []
        steps.append([0, *extra])
    return [tuple(sum(falls[s:]) for s in range(pp)) for falls in product(*steps)]


def _spans(degrees: Degrees, replicas: Grid) -> bool:
    return any(count % degrees.dp_shard for row in replicas for count in row)


def _traffic(problem: Problem, place: _Place) -> tuple[set[int], set[int]]:
    """Directed links that carry pipeline and data-parallel traffic."""
    pipeline, data = _pipeline_pairs(place.flows), _exchange_pairs(place.replicas, place.sync)
    routes = problem.routes
    return (
        {link for pair in pipeline for link in routes[pair]},
        {link for pair in data for link in routes[pair]},
    )


def _link_choices(problem: Problem, place: _Place) -> list[tuple[int, list[tuple[str, str]]]]:
    """For every directed link in use the pairs (pipeline, data-parallel) of protocols."""
    pipeline, data = _traffic(problem, place)
    result = []
    for link in sorted(pipeline | data):
        names = [
            name
            for name in _allowed(problem.search.protocols, problem.transports[link])
            if problem.transports[link][name].available
        ]
        if problem.links[link].per_class:
            pairs = list(
                product(names if link in pipeline else [""], names if link in data else [""])
            )
        else:
            pairs = [(name, name) for name in names]
        result.append((link, pairs))
    return result


def _protocol_choices(problem: Problem, place: _Place) -> Iterator[Mapping[int, tuple[str, str]]]:
    choices = _link_choices(problem, place)
    links = [link for link, _ in choices]
    for chosen in product(*(pairs for _, pairs in choices)):
        yield dict(zip(links, chosen, strict=True))


def assert_accepted(instance: Instance, problem: Problem, layout: Layout, time_us: int) -> None:
    """The checker must accept a legal plan that fits and recompute its Z."""
    plan = to_plan(problem, layout)
    report = check_plan(instance, plan)
    assert report.feasible, (report.violations, plan)
    assert report.time_us == time_us, (report.time_us, time_us, plan)
    assert sum(report.breakdown_us.values()) == time_us, (report.breakdown_us, plan)


def assert_too_big(instance: Instance, problem: Problem, layout: Layout, time_us: int) -> None:
    """The checker must refuse a plan that does not fit, for that reason alone."""
    plan = to_plan(problem, layout)
    report = check_plan(instance, plan)
    assert not report.feasible, plan
    assert {violation.rule for violation in report.violations} == {"memory"}, (report, plan)
    assert report.time_us == time_us, (report.time_us, time_us, plan)


def assert_refusals(instance: Instance, plan: Plan, rng: random.Random) -> list[str]:
    """The checker must refuse every broken variant of a legal plan, by the right rule.

    Returns
    -------
    list of str
        The rules that were tried.
    """
    tried = []
    for rule, variant in broken_plans(instance, plan, rng):
        report = check_plan(instance, variant)
        rules = {violation.rule for violation in report.violations}
        assert not report.feasible, (rule, variant)
        assert rule in rules, (rule, report.violations, variant)
        tried.append(rule)
    return tried


def broken_plans(instance: Instance, plan: Plan, rng: random.Random) -> Iterator[tuple[str, Plan]]:
    """Variants of a legal plan that break a rule, with the rule."""
    for breakers in (_broken_degrees, _broken_shape, _broken_placement, _broken_protocols):
        for rule, change in breakers(instance, plan, rng):
            yield rule, plan.model_copy(update=change)
    yield from _broken_search(instance, plan)


Change = tuple[str, dict[str, object]]
Breaker = Callable[[Instance, Plan, random.Random], Iterator[Change]]


def _broken_degrees(instance: Instance, plan: Plan, rng: random.Random) -> Iterator[Change]:
    model = instance.model
    gpus = sum(site.num_gpus for site in instance.cluster.sites)
    yield "tp.range", {"tp": rng.choice((3, 6, 4096))}
    yield "cp.range", {"cp": rng.choice((3, instance.training.sequence_length * 2))}
    yield "ep.range", {"ep": rng.choice((3, 2 * max(model.num_experts, 1)))}
    yield "etp.range", {"etp": 2}
    yield "pp.range", {"pp": model.num_layers + 1}
    yield "virtual_stages.range", {"virtual_stages": 9}
    yield "virtual_stages.layers", {"virtual_stages": model.num_layers // plan.pp + 1}
    yield "micro_batch_size.range", {"micro_batch_size": rng.choice((3, 16))}
    yield "batch", {"num_microbatches": plan.num_microbatches + rng.randint(1, 3)}
    yield "dp.product", {"dp_replicate": plan.dp_replicate + rng.randint(1, 3)}
    yield "gpus_used", {"gpus_used": plan.gpus_used + rng.randint(1, 3)}
    yield "gpus", {"dp": gpus + 1}
    groups = plan.dp * plan.tp * plan.cp
    if plan.ep <= groups:
        yield "ep.groups", {"ep": 2 * groups}
    if plan.sharding != "ddp" and plan.dp_shard > 1:
        yield "sharding.group", {"sharding": "ddp"}
    if plan.dp_shard * plan.cp == 1:
        yield "sharding.group", {"sharding": rng.choice(("zero1", "zero2", "zero3"))}


def _broken_shape(instance: Instance, plan: Plan, rng: random.Random) -> Iterator[Change]:
    layers = plan.layers_per_stage
    yield "schedule", {"schedule": "1f1b1f1b"}
    others = [name for name, chunks in _CHUNKS.items() if plan.virtual_stages not in chunks]
    yield "virtual_stages.schedule", {"schedule": rng.choice(others)}
    if plan.run_length is None:
        yield "run_length", {"run_length": plan.num_microbatches}
    else:
        yield "run_length", {"run_length": None}
        yield "run_length", {"run_length": plan.num_microbatches + 1}
        if plan.pp > 1:
            yield "run_length", {"run_length": plan.pp - 1}
    yield "layers.sum", {"layers_per_stage": (layers[0] + 1, *layers[1:])}
    yield "layers.length", {"layers_per_stage": (*layers, 1)}
    yield "layers.positive", {"layers_per_stage": (0, *layers[1:])}
    yield "extra_warmup.length", {"extra_warmup": (*plan.extra_warmup, 0)}
    extra = plan.extra_warmup
    yield "extra_warmup", {"extra_warmup": tuple(value + 1 for value in extra)}
    if plan.pp > 1:
        yield "extra_warmup", {"extra_warmup": (extra[0] + 9, *extra[1:])}
    if plan.pp > 1 and not any(flow.boundary == 0 for flow in plan.flows):
        yield "extra_warmup", {"extra_warmup": (extra[0] + 1, *extra[1:])}


def _broken_placement(instance: Instance, plan: Plan, rng: random.Random) -> Iterator[Change]:
    index = rng.randrange(len(plan.placement))
    hosting = plan.placement[index]
    before, after = plan.placement[:index], plan.placement[index + 1 :]

    def with_hosting(**change: object) -> dict[str, object]:
        return {"placement": (*before, hosting.model_copy(update=change), *after)}

    def with_flow(**fields: object) -> dict[str, object]:
        return {"flows": (*plan.flows, Flow.model_validate({"replicas": 1, **fields}))}

    yield "placement.replicas", with_hosting(replicas=hosting.replicas + 1)
    yield "placement.replicas", {"placement": (*before, *after)}
    yield "placement.site", with_hosting(site="nowhere")
    yield "placement.stages", with_hosting(last_stage=plan.pp)
    if plan.pp > 1:
        yield "placement.stages", with_hosting(first_stage=1, last_stage=0)
    sites = [site.name for site in instance.cluster.sites]
    one, other = sites[0], sites[-1]
    for site in instance.cluster.sites:
        if plan.gpus_used > site.num_gpus:
            whole = Hosting(site=site.name, first_stage=0, last_stage=plan.pp - 1, replicas=plan.dp)
            yield (
                "placement.capacity",
                {"placement": (whole,), "flows": (), "placement_kind": "single-site"},
            )
    boundaries = plan.pp - 1 + (plan.schedule in _RUNS and plan.pp > 1)
    yield "flows.boundary", with_flow(boundary=boundaries, **{"from": one, "to": other})
    if boundaries:
        yield "flows.site", with_flow(boundary=0, **{"from": "nowhere", "to": one})
        yield "flows.move", with_flow(boundary=0, **{"from": one, "to": one})
    if boundaries and one != other:
        yield (
            "flows.balance",
            with_flow(boundary=0, replicas=plan.dp + 1, **{"from": one, "to": other}),
        )
    if plan.flows:
        yield "flows.balance", {"flows": plan.flows[1:]}
        first = plan.flows[0]
        more = first.model_copy(update={"replicas": first.replicas + 1})
        yield "flows.balance", {"flows": (more, *plan.flows[1:])}
    kinds = [kind for kind in get_args(PlacementKind) if kind != plan.placement_kind]
    yield "placement_kind", {"placement_kind": rng.choice(kinds)}
    unit = plan.dp_shard
    spanning = instance.search.shard_across_sites
    if not spanning and unit > 1 and len(plan.placement) == 1 and len(sites) > 1:
        elsewhere = next(name for name in sites if name != hosting.site)
        away = hosting.model_copy(update={"site": elsewhere, "replicas": 1})
        stay = hosting.model_copy(update={"replicas": hosting.replicas - 1})
        yield "placement.groups", {"placement": (stay, away), "placement_kind": "dp-out"}


def _broken_protocols(instance: Instance, plan: Plan, rng: random.Random) -> Iterator[Change]:
    if not plan.protocols:
        return
    index = rng.randrange(len(plan.protocols))
    choice = plan.protocols[index]
    before, after = plan.protocols[:index], plan.protocols[index + 1 :]

    def with_choice(**change: object) -> dict[str, object]:
        return {"protocols": (*before, choice.model_copy(update=change), *after)}

    yield "protocols.missing", {"protocols": (*before, *after)}
    yield "protocols.once", {"protocols": (*plan.protocols, choice)}
    yield "protocols.link", with_choice(link="no such link")
    yield "protocols.link", with_choice(source=choice.target)
    yield "protocols.allowed", with_choice(protocol="carrier pigeon")
    problem = Problem(instance)
    for link in problem.links:
        if (link.name, link.source, link.target) == (choice.link, choice.source, choice.target):
            table = problem.transports[link.index]
            for name in instance.cluster.known_protocols:
                if name not in table or not table[name].available:
                    yield "protocols.allowed", with_choice(protocol=name)
                    break
            if link.per_class:
                yield "protocols.class", with_choice(traffic="all")
            else:
                both = [
                    ProtocolChoice.model_validate(
                        {**choice.model_dump(by_alias=True), "class": traffic}
                    )
                    for traffic in ("pp", "dp")
                ]
                yield "protocols.class", {"protocols": (*before, *both, *after)}


def _protocol_names(instance: Instance) -> list[str]:
    """Names of protocols, one of them unknown to every instance."""
    return [*instance.cluster.known_protocols, "carrier pigeon"]


def _broken_search(instance: Instance, plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Values that the plan space has and the instance's ``search`` does not."""
    search = instance.search
    ranges: dict[str, Iterable[object]] = {
        "tp": (1, 2, 4),
        "cp": (1, 2),
        "ep": (1, 2, 4),
        "pp": _PIPELINE_DEGREES,
        "virtual_stages": range(1, 9),
        "micro_batch_size": (1, 2, 4, 8),
        "dp": range(1, 64),
        "dp_shard": range(1, 64),
        "dp_replicate": range(1, 64),
        "num_microbatches": range(1, 64),
        "gpus_used": range(1, 64),
        "schedule": _CHUNKS,
        "sharding": get_args(Sharding),
        "sync": get_args(Sync),
        "overlap": (True, False),
        "recompute": get_args(Recompute),
    }
    for name, values in ranges.items():
        narrowed = getattr(search, name)
        outside = [v for v in values if narrowed is not None and v not in narrowed]
        if outside:
            yield f"search.{name}", plan.model_copy(update={name: outside[0]})
    kinds = search.placement_kind
    if kinds is not None and len(kinds) < 4:
        other = next(kind for kind in get_args(PlacementKind) if kind not in kinds)
        yield "search.placement_kind", plan.model_copy(update={"placement_kind": other})
    if search.protocols is not None and plan.protocols:
        other_name = next(n for n in _protocol_names(instance) if n not in search.protocols)
        first = plan.protocols[0].model_copy(update={"protocol": other_name})
        chosen = (first, *plan.protocols[1:])
        yield "search.protocols", plan.model_copy(update={"protocols": chosen})
    if search.run_length is not None and plan.run_length is not None:
        beyond = next(run for run in range(1, 1000) if run not in search.run_length)
        yield "search.run_length", plan.model_copy(update={"run_length": beyond})
    if search.extra_warmup is not None and plan.pp > 1:
        step = next((s for s in range(1, 9) if s not in search.extra_warmup), None)
        if step is not None:
            extra = (plan.extra_warmup[1] + step, *plan.extra_warmup[1:])
            yield "search.extra_warmup", plan.model_copy(update={"extra_warmup": extra})
    if search.fixed_layers_per_stage is not None:
        other_split = (*search.fixed_layers_per_stage, 1)
        yield (
            "search.fixed_layers_per_stage",
            plan.model_copy(update={"layers_per_stage": other_split}),
        )


__all__ = [
    "BruteForceResult",
    "Pricer",
    "assert_refusals",
    "best_plan",
    "broken_plans",
    "compositions",
    "count_layouts",
    "enumerate_layouts",
]
