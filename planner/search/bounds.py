"""Lower bounds on Z that need no model.

Every bound holds for all plans of what it is given: a shape, a shape with ``pp`` and ``dp``, or one
(schedule, option) of a degrees case.  ``docs/bounds.md`` has the proofs.  No solver and no
formulation is imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, TypeVar

from planner import space
from planner.choices import CaseChoices, ScheduleChoice
from planner.cost.coefficients import (
    CaseCoefficients,
    LinkTime,
    MemoryCosts,
    Option,
    Units,
    case_coefficients,
)
from planner.cost.least import PairCosts, SplitCosts, StageSync, Times
from planner.pipeline.event_graph import Duration
from planner.pipeline.schedules import SCHEDULES, Template
from planner.plan import Degrees, Sync
from planner.problem import Problem
from planner.search.mixed_classes import (
    ROUNDING,
    ClassTimes,
    Mixture,
    equalised_ramp,
    mixtures,
    one_f_one_b_turns,
    slowest_stage,
    weighted_wait,
)
from planner.search.template_bound import (
    MAX_OPS,
    SAFETY,
    TemplateBound,
)
from planner.search.whole_stages import Pipeline, Row, StageClass, least_time, within

T = TypeVar("T", int, float)

MOVING = frozenset(("pp-out", "mixed"))
"""Placements in which replicas change site."""
LONGEST_US = 1 << 40
"""Where no plan is known stages are not bounded beyond this."""
INFEASIBLE = 1 << 62
"""Stands for "no plan at all" where bounds are compared."""


class Shape(NamedTuple):
    """What the durations of a layer depend on, sharding aside."""

    tp: int
    cp: int
    ep: int
    etp: int
    micro_batch_size: int

    def case(self, pp: int, virtual_stages: int, dp: int, dp_shard: int) -> Degrees:
        """A degrees case of this shape."""
        return Degrees(
            self.tp,
            self.cp,
            self.ep,
            self.etp,
            pp,
            virtual_stages,
            self.micro_batch_size,
            dp,
            dp_shard,
        )


class ShapeWork(NamedTuple):
    """Least time per unit and microbatch, by GPU class, of any option of a shape.

    ``total`` is Σ over units of the smallest over classes.
    """

    units: Units
    counts: Units
    total: int
    classes: tuple[ClassTimes, ...]

    @property
    def cells(self) -> int:
        """Cells of all sites."""
        return sum(each.cells for each in self.classes)


def ceil_div(a: int, b: int) -> int:
    """Integer quotient, rounded up."""
    return -(-a // b)


class Bounds:
    """Bounds of one problem, with their caches."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.shape_work = lru_cache(None)(self._shape_work)
        self.least_times = lru_cache(None)(self._least_times)
        self.stage = lru_cache(None)(self._stage)
        self.cells = lru_cache(None)(self._cells)
        self.layer_counts = self._layer_counts()
        self.unit_times: dict[tuple[object, ...], tuple[Units, Units, Units]] = {}
        self.link = lru_cache(None)(self._link)
        self.route_rate = lru_cache(None)(self._route_rate)
        self.transfers: dict[tuple[Shape, tuple[int, ...]], tuple[int, int]] = {}
        self._templates: dict[tuple[Template, bool], TemplateBound] = {}

    def _link(self, link: int) -> tuple[int, LinkTime]:
        """Least latency in µs and least time per MiB of a directed link over its protocols."""
        co = case_coefficients(self.problem, Degrees(1, 1, 1, 1, 1, 1, 1, 1, 1))
        names = self.problem.protocols[link]
        if not names:
            return INFEASIBLE, LinkTime(INFEASIBLE, 1)
        latency = min(co.latency(link, name) for name in names)
        rates = [co.mib(link, name) for name in names]
        return latency, min(rates, key=lambda rate: rate.numerator / rate.scale)

    @cached_property
    def exits(self) -> frozenset[int]:
        """Links that begin all routes of the site that they leave."""
        first: dict[int, set[int]] = {}
        for (d, _), route in self.problem.routes.items():
            first.setdefault(d, set()).add(route[0])
        return frozenset(link for links in first.values() if len(links) == 1 for link in links)

    @cached_property
    def least_route_latency(self) -> int:
        """Least latency of a route between two sites, µs."""
        return min(
            (sum(self.link(link)[0] for link in route) for route in self.problem.routes.values()),
            default=0,
        )

    @cached_property
    def class_routes(self) -> dict[tuple[int, int], tuple[int, int, int]]:
        """By GPU classes of two sites the least latency of a route, µs, and such a pair of sites.

        How long a cell's NICs need for a transfer depends on the classes alone.
        """
        sites = self.problem.sites
        found: dict[tuple[int, int], tuple[int, int, int]] = {}
        for (d, e), route in self.problem.routes.items():
            latency = sum(self.link(link)[0] for link in route)
            classes = sites[d].gpu_class, sites[e].gpu_class
            found[classes] = min(found.get(classes, (latency, d, e)), (latency, d, e))
        return found

    def _route_rate(self, partners: int) -> float:
        """Least µs of a route per MiB that a site sends each of so many others.

        Where all routes of a site begin with one link, the shares of all partners go over it.
        """

        def us(link: int) -> float:
            rate = self.link(link)[1]
            return rate.numerator / rate.scale

        return min(
            (
                max(
                    us(link) * (partners if i == 0 and link in self.exits else 1)
                    for i, link in enumerate(route)
                )
                for route in self.problem.routes.values()
            ),
            default=0.0,
        )

    def _layer_counts(self) -> dict[str, int]:
        kinds = self.problem.model.layer_kinds
        return {kind: kinds.count(kind) for kind in set(kinds)}

    def unit_counts(self, co: CaseCoefficients) -> Units:
        """Units of the whole model."""
        return tuple(self.layer_counts.get(unit, 1) for unit in co.units)

    def _shape_work(self, shape: Shape) -> ShapeWork:
        case = shape.case(1, 1, 1, 1)
        co = CaseCoefficients(self.problem, case)
        option = Option("ddp", True, "none", False)
        per_class = {}
        cells: dict[int, int] = {}
        for d, site in enumerate(self.problem.sites):
            room = co.cells[d]
            if room:
                cells[site.gpu_class] = cells.get(site.gpu_class, 0) + room
        for g in cells:
            ops = co.ops(g, option)
            per_class[g] = tuple(f + b for f, b in zip(ops.forward, ops.backward, strict=True))
        counts = self.unit_counts(co)
        if not per_class:
            return ShapeWork((0,) * len(counts), counts, 0, ())
        least = tuple(min(column) for column in zip(*per_class.values(), strict=True))
        total = sum(n * t for n, t in zip(counts, least, strict=True))
        classes = tuple(ClassTimes(cells[g], (units,)) for g, units in per_class.items())
        return ShapeWork(least, counts, total, classes)

    @cached_property
    def fixed_us(self) -> int:
        """µs per iteration that depend on nothing."""
        co = case_coefficients(self.problem, Degrees(1, 1, 1, 1, 1, 1, 1, 1, 1))
        return co.fixed_us

    def shape(self, shape: Shape) -> int:
        """All cells busy all the time: batch in microbatches × work ÷ cells, per class."""
        work = self.shape_work(shape)
        if not work.classes:
            return INFEASIBLE
        speed = 0.0
        for each in work.classes:
            ratios = [a / b for a, b in zip(each.units, work.units, strict=True) if b]
            speed += each.cells / min(ratios, default=1.0)
        batch = self.problem.training.global_batch_size // shape.micro_batch_size
        return self.fixed_us + int(batch * work.total / speed * ROUNDING)

    def _cells(self, tp: int, cp: int) -> tuple[int, ...]:
        """Cells of every site."""
        return tuple(self.problem.cells(d, tp, cp) for d in range(len(self.problem.sites)))

    @cached_property
    def may_move(self) -> bool:
        """Whether the user lets replicas change site."""
        allowed = self.problem.search.restrictions().get("placement_kind")
        return allowed is None or bool(MOVING & set(allowed))

    def least_hosts(self, degrees: Degrees, *, moves: bool) -> int:
        """Fewest sites that can hold all replicas of a stage (0: they do not fit).

        Where no replica moves, they run all other stages there too.
        """
        stages = 1 if moves else degrees.pp
        unit = space.granularity(degrees, spanning=self.problem.search.shard_across_sites)
        cells = self.cells(degrees.tp, degrees.cp)
        total = 0
        for n, room in enumerate(sorted(cells, reverse=True), start=1):
            total += min(room // stages, degrees.dp) // unit * unit
            if total >= degrees.dp:
                return n
        return 0

    def _stage(self, shape: Shape, pp: int, dp: int) -> int:
        """Least time of the slowest stage per microbatch, in µs.

        The work is spread evenly at best, or by the speed of unequal GPUs.
        """
        work = self.shape_work(shape)
        layers = sum(self.layer_counts.values())
        kinds = len(self.layer_counts)
        best = max(ceil_div(work.total, pp), ceil_div(layers, pp) * min(work.units[:kinds]))
        for mixture in mixtures(work.classes, work.counts, pp, dp):
            best = max(best, slowest_stage(mixture, work.counts, kinds))
        return best

    def pipeline_degree(self, shape: Shape, pp: int, dp: Sequence[int]) -> int:
        """``m`` microbatches through the slowest stage, the least over several dp.

        On equal GPUs more replicas mean fewer microbatches and nothing else; on unequal ones they
        may also drive stages onto slower GPUs, so every dp is looked at.
        """
        batch = self.problem.training.global_batch_size // shape.micro_batch_size
        looked_at = dp if len(self.shape_work(shape).classes) > 1 else (max(dp),)
        return self.fixed_us + min(
            batch // degree * self.stage(shape, pp, degree) for degree in looked_at
        )

    def template(
        self, choice: ScheduleChoice, co: CaseCoefficients, *, any_warmup: bool
    ) -> TemplateBound | None:
        """Relaxations of the layer split for a schedule; None where it is too long to build.

        Parameters
        ----------
        any_warmup
            Whether the plans may have extra warm-up; bounds then rest on what all of these
            templates have in common.  "No split fits" holds for all of them anyway.
        """
        degrees = co.degrees
        template = Template(
            choice.schedule,
            degrees.pp,
            degrees.virtual_stages,
            co.num_microbatches,
            choice.run_length,
            (0,) * degrees.pp,
        )
        if template.m * template.chunks * 3 > MAX_OPS:
            return None
        key = template, any_warmup
        if key not in self._templates:
            self._templates[key] = TemplateBound(template, co.layer_units, any_warmup=any_warmup)
        return self._templates[key]

    @property
    def template_bounds(self) -> tuple[TemplateBound, ...]:
        """The relaxations that were looked at so far."""
        return tuple(self._templates.values())

    @cached_property
    def _splits(self) -> dict[int, tuple[bool, ...]]:
        """By number of chunks, whether the allowed schedules split the backward."""
        allowed = self.problem.search.restrictions().get("schedule")
        return {
            v: tuple(
                sorted(
                    {
                        SCHEDULES[name].split_backward
                        for name in space.schedules_for(v)
                        if allowed is None or name in allowed
                    }
                )
            )
            for v in space.VIRTUAL_STAGES
        }

    def _least_times(self, shape: Shape, split: bool) -> tuple[int, int]:
        """Work of a microbatch, and what a layer adds to the wait of every later stage."""
        co = CaseCoefficients(self.problem, shape.case(1, 1, 1, 1))
        classes = {site.gpu_class for d, site in enumerate(self.problem.sites) if co.cells[d]}
        ops = [co.ops(g, Option("ddp", True, "none", False)) for g in classes]
        forward = _least_units(op.forward for op in ops)
        parts = [forward]
        if split:
            parts.append(_least_units(op.input_gradient for op in ops))
            parts.append(_least_units(op.weight_gradient for op in ops))
        else:
            parts.append(_least_units(op.backward for op in ops))
        counts = self.unit_counts(co)
        work = sum(n * t for part in parts for n, t in zip(counts, part, strict=True))
        waits = parts[:1] if split else parts
        return work, sum(min(part[: len(co.kinds)]) for part in waits)

    def cell(self, shape: Shape, pp: int, virtual_stages: int, dp: int) -> int:
        """All shard degrees of one (pp, v, dp): the work of a stage after the mean wait for it."""
        m = self.problem.training.global_batch_size // (shape.micro_batch_size * dp)
        ramps = []
        for split in self._splits[virtual_stages]:
            work, wait = self.least_times(shape, split)
            ramps.append(ceil_div(2 * m * work + wait * pp * (pp - 1), 2 * pp))
        if not ramps:
            return INFEASIBLE
        return max(self.fixed_us + min(ramps), self.pipeline_degree(shape, pp, (dp,)))


class ChoiceBound(NamedTuple):
    """Bound of one (schedule, option) of a case and the rule that gives it."""

    value_us: int
    rule: str


class _SyncWay(NamedTuple):
    """Least times of synchronisation, µs.

    ``reduce``, ``gather`` and ``optimizer`` are per unit; latencies, ``start``, ``end`` (what no
    overlap hides) and the layers are of one stage; ``first_start`` and ``first_end`` come on top at
    stage 0, for the embedding.
    """

    reduce: Times
    reduce_latency: int
    gather: Times
    gather_latency: int
    end: int
    start: int
    first_end: int
    first_start: int
    optimizer: Units
    layer_optimizer: int

    @classmethod
    def nothing(cls, units: int) -> _SyncWay:
        """No synchronisation and no optimizer."""
        zeros = (0,) * units
        return cls(zeros, 0, zeros, 0, 0, 0, 0, 0, zeros, 0)


def _least_of(ways: tuple[_SyncWay, ...]) -> _SyncWay:
    """Component by component: stages may be synchronised in different ways."""
    columns: Iterable[tuple[Any, ...]] = zip(*ways, strict=True)
    least: list[Any] = [_least_units(c) if isinstance(c[0], tuple) else min(c) for c in columns]
    return _SyncWay(*least)


def _least_units(rows: Iterable[tuple[T, ...]]) -> tuple[T, ...]:
    """Unit by unit the smallest value."""
    return tuple(min(column) for column in zip(*rows, strict=True))


def _least_share(part: Units, others: tuple[Units, ...]) -> float:
    """Least share of a part of the work of a unit, over the units that have work."""
    wholes = [sum(column) for column in zip(part, *others, strict=True)]
    return min(p / float(whole) for p, whole in zip(part, wholes, strict=True) if whole)


class CaseBounds:
    """Bounds of one degrees case."""

    def __init__(self, bounds: Bounds, choices: CaseChoices) -> None:
        self.bounds = bounds
        self.choices = choices
        self.co = choices.co
        self.problem = choices.problem
        self.counts = bounds.unit_counts(self.co)
        self.layers = sum(bounds.layer_counts.values())
        self._ways: dict[tuple[object, ...], tuple[_SyncWay, ...]] = {}
        self._choices: dict[tuple[str, Option], ChoiceBound] = {}
        self._stage_times: dict[tuple[object, ...], int] = {}
        self._stage_pipelines: dict[tuple[object, ...], tuple[list[Pipeline], int]] = {}
        self._ramps: dict[tuple[object, ...], ChoiceBound] = {}
        self._fits: dict[tuple[object, ...], bool] = {}
        self._mixtures: dict[tuple[object, ...], tuple[Mixture, ...]] = {}

    @cached_property
    def classes(self) -> tuple[int, ...]:
        """GPU classes with room for a cell."""
        return tuple(
            sorted(
                {site.gpu_class for d, site in enumerate(self.problem.sites) if self.co.cells[d]}
            )
        )

    @cached_property
    def least_hosts(self) -> int:
        """Fewest sites that can hold all replicas of a stage (0: they do not fit)."""
        return self.bounds.least_hosts(self.co.degrees, moves=self._moves)

    @property
    def least_crossings(self) -> int:
        """Fewest crossings of any plan: hosts beyond the first of every stage, or one move."""
        degrees = self.co.degrees
        return max(degrees.pp * (self.least_hosts - 1), int(not self.fits_one_site))

    @cached_property
    def fits_one_site(self) -> bool:
        """Whether one site can hold the whole job."""
        return self.co.degrees.pp * self.co.degrees.dp <= max(self.co.cells)

    def _least(self, option: Option, name: str) -> Units:
        return _least_units(getattr(self.co.ops(g, option), name) for g in self.classes)

    def unit_times(self, option: Option, split: bool) -> tuple[Units, Units, Units]:
        """Least forward, backward and weight-gradient time per unit over the GPU classes."""
        key = (split, *(self.co.ops_key(g, option) for g in self.classes))
        found = self.bounds.unit_times.get(key)
        if found is None:
            found = self._unit_times(option, split)
            self.bounds.unit_times[key] = found
        return found

    def _unit_times(self, option: Option, split: bool) -> tuple[Units, Units, Units]:
        forward = self._least(option, "forward")
        if split:
            return (
                forward,
                self._least(option, "input_gradient"),
                self._least(option, "weight_gradient"),
            )
        return forward, self._least(option, "backward"), (0,) * len(forward)

    def _mixed(self, option: Option, split: bool) -> tuple[Mixture, ...]:
        """What unequal GPUs cost at least."""
        if len(self.classes) < 2:
            return ()
        key = (split, *(self.co.ops_key(g, option) for g in self.classes))
        found = self._mixtures.get(key)
        if found is None:
            cells, limits = dict.fromkeys(self.classes, 0), dict.fromkeys(self.classes, 0)
            for d, site in enumerate(self.problem.sites):
                if self.co.cells[d]:
                    g = site.gpu_class
                    cells[g] += self.co.cells[d]
                    limits[g] = max(limits[g], self.co.limit_mib[d])
            classes = []
            for g, room in cells.items():
                ops = self.co.ops(g, option)
                parts = (
                    (ops.forward, ops.input_gradient, ops.weight_gradient)
                    if split
                    else (ops.forward, ops.backward)
                )
                classes.append(ClassTimes(room, parts, limits[g]))
            degrees = self.co.degrees
            found = mixtures(classes, self.counts, degrees.pp, degrees.dp)
            self._mixtures[key] = found
        return found

    def _total(self, units: tuple[T, ...]) -> T:
        return sum(n * t for n, t in zip(self.counts, units, strict=True))

    def _layer_min(self, units: Units) -> int:
        return min(units[: len(self.co.kinds)])

    def quick(self, choice: ScheduleChoice, option: Option) -> ChoiceBound:
        """Bound of one schedule and option from memory and work alone.

        Where the replicas or the model cannot be placed the value is :data:`INFEASIBLE`.
        """
        return self._unless_unfit(choice, option, lambda: self._work(choice, option))

    def work(self, choice: ScheduleChoice, option: Option) -> ChoiceBound:
        """:meth:`quick` for every shard degree of which this case needs the least memory.

        What sharded state exposes of its collectives depends on the shard degree and is left out.
        """
        return self._unless_unfit(choice, option, lambda: self._work(choice, _unsharded(option)))

    def ramp(self, choice: ScheduleChoice, option: Option) -> ChoiceBound:
        """:meth:`work` with the ramp of the pipeline; never above any :meth:`choice` it covers."""
        return self._unless_unfit(choice, option, lambda: self._ramp(choice, _unsharded(option)))

    def own_ramp(self, choice: ScheduleChoice, option: Option) -> ChoiceBound:
        """:meth:`choice` without synchronisation before the first and after the last op."""
        return self._unless_unfit(choice, option, lambda: self._ramp(choice, option))

    def _ramp(self, choice: ScheduleChoice, option: Option) -> ChoiceBound:
        key = (_kind(choice), *(self.co.ops_key(g, option) for g in self.classes))
        found = self._ramps.get(key)
        if found is None:
            nothing = _SyncWay.nothing(len(self.co.units))
            length = self._length(choice, option, nothing)
            found = self._ramps[key] = ChoiceBound(self.co.fixed_us + length, "time")
        return found

    def _unless_unfit(
        self, choice: ScheduleChoice, option: Option, bound: Callable[[], ChoiceBound]
    ) -> ChoiceBound:
        if self.least_hosts == 0:
            return ChoiceBound(INFEASIBLE, "placement")
        if not self._memory_fits(choice, option):
            return ChoiceBound(INFEASIBLE, "memory")
        return bound()

    def _work(self, choice: ScheduleChoice, option: Option) -> ChoiceBound:
        split = SCHEDULES[choice.schedule].split_backward
        forward, backward, weight = self.unit_times(option, split)
        work = self._total(forward) + self._total(backward) + self._total(weight)
        slowest = ceil_div(work, self.co.degrees.pp)
        return ChoiceBound(self.co.fixed_us + self.co.num_microbatches * slowest, "work")

    def choice(self, choice: ScheduleChoice, option: Option) -> ChoiceBound:
        """Bound of all plans of the case with this schedule and option."""
        return self._unless_unfit(choice, option, lambda: self._choice(choice, option))

    def _choice(self, choice: ScheduleChoice, option: Option) -> ChoiceBound:
        key = (_kind(choice), option)
        found = self._choices.get(key)
        if found is None:
            found = self._choices[key] = self._synchronised(choice, option)
        return found

    def _synchronised(self, choice: ScheduleChoice, option: Option) -> ChoiceBound:
        ways = self._sync_ways(option)
        if self.co.degrees.pp > 1:
            ways = (_least_of(ways),)
        best = min(self._length(choice, option, way) for way in ways)
        return ChoiceBound(self.co.fixed_us + best, "time")

    def _length(self, choice: ScheduleChoice, option: Option, way: _SyncWay) -> int:
        """Least longest path for given least times of synchronisation."""
        split = SCHEDULES[choice.schedule].split_backward
        forward, backward, weight = self.unit_times(option, split)
        f, b, w = self._total(forward), self._total(backward), self._total(weight)
        pp, m = self.co.degrees.pp, self.co.num_microbatches
        work = f + b + w
        starts = int(self._total(way.gather)) + pp * way.gather_latency
        ends = int(self._total(way.reduce)) + pp * way.reduce_latency
        if option.overlap:
            last = w if split else b
            unhidden = pp * (self.co.degrees.virtual_stages - 1)
            last -= unhidden * self._layer_min(weight if split else backward)
            f_hidden = f - unhidden * self._layer_min(forward)
            starts = max(
                pp * way.start + way.first_start,
                starts - f_hidden + pp * self._layer_min(forward),
            )
            ends = max(
                pp * way.end + way.first_end,
                ends - last + pp * self._layer_min(weight if split else backward),
            )
        # Every stage is reached from stage 0, whose start waits for the embedding too; a backward
        # that is not split returns to stage 0, whose end reduces the embedding too.
        start = way.start + way.first_start
        least_end = way.end + way.layer_optimizer
        if pp == 1 or not split:
            least_end += way.first_end
        optimizer: int = self._total(way.optimizer)
        mixed = self._mixed(option, split)
        devices = ceil_div(m * work + starts + ends + optimizer, pp)
        for mixture in mixed:
            around = (starts + ends + optimizer) / mixture.ratio
            devices = max(devices, int((m * work + around) / mixture.speed * ROUNDING))
        reached = self._layer_min(forward) * pp * (pp - 1) // 2
        devices = max(devices, start + ceil_div(m * work + reached + ends + optimizer, pp))
        slowest = self._slowest_stage(forward, backward, weight)
        kinds = len(self.co.kinds)
        for mixture in mixed:
            slowest = max(slowest, slowest_stage(mixture, self.counts, kinds))
        best = max(devices, start + m * slowest + least_end)
        if pp == 1:
            return max(best, start + f + b + least_end)
        delay = 2 * (pp - 1) * self._least_transfer[0]
        chain = start + f + b + delay + way.end + way.first_end + way.layer_optimizer
        best = max(best, chain)
        first = self._layer_min(forward) + (0 if split else self._layer_min(backward))
        ramp = ceil_div(m * work, pp) + first * (pp - 1) // 2
        for mixture in mixed:
            waited = first * weighted_wait(mixture)
            ramp = max(ramp, int((m * work + waited) / mixture.speed * ROUNDING))
        if self.co.degrees.virtual_stages == 1:
            share = 1.0 if not split else _least_share(forward, (backward, weight))
            ramp = max(ramp, int(work * share / (1 - (1 - share / m) ** pp) * ROUNDING))
            for mixture in mixed:
                share = mixture.least_share(0) if split else 1.0
                ramp = max(ramp, equalised_ramp(mixture, work, share, m))
        best = max(best, ramp + start + least_end)
        if choice.schedule == "gpipe":
            flush = work + (m - 1) * slowest
            best = max(best, start + flush + least_end)
        if choice.schedule == "1f1b":
            turns = self._one_f_one_b(forward, backward, work, mixed)
            best = max(best, start + turns + least_end)
        return best

    def stages(
        self,
        choice: ScheduleChoice,
        option: Option,
        found: ChoiceBound,
        beyond_us: int,
        *,
        synchronised: bool,
    ) -> ChoiceBound:
        """A bound that is known, raised by whole layers on the stages.

        Parameters
        ----------
        found
            :meth:`ramp` or :meth:`choice`.
        beyond_us
            Values above this need not be told apart.
        synchronised
            Whether synchronisation counts; without it the bound holds for what :meth:`ramp` does.
        """
        if found.value_us > beyond_us or self.co.degrees.pp == 1:
            return found
        kinds = _kind(choice), _live_kind(choice)
        key = (*kinds, option, synchronised, found.value_us, beyond_us)
        if key not in self._stage_times:

            def fits(limit_us: int) -> bool:
                return not self.stages_exceed(choice, option, limit_us, synchronised=synchronised)

            high = min(beyond_us, LONGEST_US)
            self._stage_times[key] = least_time(fits, found.value_us, high)
        return max(found, ChoiceBound(self._stage_times[key], "time"))

    def stages_exceed(
        self, choice: ScheduleChoice, option: Option, limit_us: int, *, synchronised: bool
    ) -> bool:
        """Whether no stages of whole layers take the model with ``Z <= limit_us``."""
        pipelines, around = self._pipelines(choice, option, synchronised=synchronised)
        left = limit_us - self.co.fixed_us - around
        return any(not within(pipeline, left) for pipeline in pipelines)

    def _pipelines(
        self, choice: ScheduleChoice, option: Option, *, synchronised: bool
    ) -> tuple[list[Pipeline], int]:
        """Relaxed stages of a pair, and µs before and after them."""
        timed = option if synchronised else _unsharded(option)
        key = (_kind(choice), _live_kind(choice), option, synchronised)
        found = self._stage_pipelines.get(key)
        if found is None:
            around = 0
            if synchronised:
                way = _least_of(self._sync_ways(option))
                around = way.start + way.first_start + way.end + way.layer_optimizer
            found = self._all_pipelines(choice, option, timed), around
            self._stage_pipelines[key] = found
        return found

    def _all_pipelines(
        self, choice: ScheduleChoice, option: Option, timed: Option
    ) -> list[Pipeline]:
        """One for each way to call some GPUs fast and each set of the dearer kinds of layers."""
        pp, m = self.co.degrees.pp, self.co.num_microbatches
        split = SCHEDULES[choice.schedule].split_backward
        least = self.unit_times(timed, split)[: 3 if split else 2]
        largest = self._largest_limit
        ways = [
            Mixture(0, pp, 1.0, least, least, largest, largest),
            *self._mixed(timed, split),
        ]
        whole = tuple(map(sum, zip(*least, strict=True)))
        work, kinds = self._total(whole), len(self.co.kinds)
        waits = least[0] if split else whole
        pipelines = []
        for floor in set(whole[:kinds]):
            some = [u for u in range(kinds) if whole[u] >= floor]
            chunks = self.co.degrees.virtual_stages
            wait = min(waits[u] for u in (some if chunks == 1 else range(kinds)))
            for mixture in ways:
                rows = [Row(0, wait, (float(m),) * pp)]
                if choice.schedule == "gpipe":
                    rows.append(Row(work, 0, (float(m - 1),) * pp))
                if choice.schedule == "1f1b":
                    own = self._turns(mixture.least_share(0), mixture.least_share(1))
                    rows += [] if own is None else [Row(work, 0, tuple(own))]
                pipelines.append(
                    Pipeline(
                        sum(self.counts[u] for u in some),
                        chunks if len(some) == kinds else 0,
                        chunks == 1,
                        mixture.fast,
                        pp - 1 if SCHEDULES[choice.schedule].chunk_map == "loop" else 0,
                        (
                            self._stage_class(
                                choice, option, some, mixture.fast_parts, mixture.fast_limit_mib
                            ),
                            self._stage_class(
                                choice, option, some, mixture.slow_parts, mixture.slow_limit_mib
                            ),
                        ),
                        tuple(rows),
                    )
                )
        return pipelines

    def _stage_class(
        self,
        choice: ScheduleChoice,
        option: Option,
        kinds: list[int],
        parts: tuple[Units, ...],
        limit_mib: int,
    ) -> StageClass:
        """What a layer of some kinds costs a stage with given times and memory."""
        costs, pp = self.co.memory(option), self.co.degrees.pp
        activation = (
            costs.split_activation
            if SCHEDULES[choice.schedule].split_backward
            else costs.activation
        )
        embedding, head = len(self.co.kinds), len(self.co.kinds) + 1
        last = pp - 1 if SCHEDULES[choice.schedule].chunk_map == "loop" else 0
        most = []
        for s in range(pp):
            live = least_live(choice, pp, s, self.co.num_microbatches)
            room = limit_mib - (costs.head_working if s == last else costs.working)
            if s == 0:
                room -= costs.state[embedding] + live * activation[embedding]
            if s == last:
                room -= costs.state[head] + activation[head]
            layer = min(costs.state[u] + live * activation[u] for u in kinds)
            most.append(max(-1, room // layer) if layer else self.layers)
        units = tuple(map(sum, zip(*parts, strict=True)))
        return StageClass(min(units[u] for u in kinds), units[embedding], units[head], tuple(most))

    def template(
        self, choice: ScheduleChoice, option: Option, beyond_us: int = INFEASIBLE
    ) -> ChoiceBound:
        """Bound of one schedule and option from its own op orders.

        Parameters
        ----------
        beyond_us
            Values above this need not be told apart.
        """
        found = self.stages(
            choice, option, self.choice(choice, option), beyond_us, synchronised=True
        )
        if found.value_us > beyond_us or self.co.degrees.pp == 1:
            return found
        template, costs = self._template_costs(choice, option)
        if template is None:
            return found
        length = template.value(costs, beyond_us - self.co.fixed_us)
        if length is None:
            return ChoiceBound(INFEASIBLE, "memory")
        return max(found, ChoiceBound(self.co.fixed_us + length, "paths"))

    def whole_layers(
        self, choice: ScheduleChoice, option: Option, beyond_us: int, time_limit_s: float
    ) -> tuple[ChoiceBound, tuple[int, ...] | None]:
        """Bound of one schedule and option with whole layers per chunk, and the split found.

        Parameters
        ----------
        beyond_us
            Values above this need not be told apart.
        time_limit_s
            The bound is what holds by then.
        """
        found = self.choice(choice, option)
        if found.value_us > beyond_us or self.co.degrees.pp == 1:
            return found, None
        template, costs = self._template_costs(choice, option)
        if template is None:
            return found, None
        fixed = self.co.fixed_us
        length, split = template.whole_layers(costs, beyond_us - fixed, time_limit_s)
        return max(found, ChoiceBound(fixed + length, "layers")), split

    def even_split(self, choice: ScheduleChoice, option: Option) -> float | None:
        """Longest path with least times and even layers, µs; None where no split fits the memory.

        An estimate of what a pair is good for, no bound.
        """
        template, costs = self._template_costs(choice, option)
        return None if template is None else template.even_split(costs)

    def search_split(
        self, choice: ScheduleChoice, option: Option, evaluations: int, beyond_us: int
    ) -> tuple[int, ...] | None:
        """A good split with whole layers that fits the memory, by local search; None = none found.

        Parameters
        ----------
        evaluations
            Most splits that are priced.
        beyond_us
            Splits with a larger Z are of no interest.
        """
        template, costs = self._template_costs(choice, option)
        if template is None or self.choices.fixed_layers is not None:
            return None
        found = template.search_splits(costs, evaluations, beyond_us - self.co.fixed_us)
        return None if found is None else found.layers

    def known_paths(
        self, choice: ScheduleChoice, option: Option, evaluations: int, beyond_us: int
    ) -> tuple[Template, list[dict[Duration, int]]] | None:
        """Paths of a pair's op orders that bind for good splits; None where there are none.

        The parameters are those of :meth:`search_split`, which looks for them.
        """
        self.search_split(choice, option, evaluations, beyond_us)
        template, _ = self._template_costs(choice, option)
        if template is None or template.any_warmup:
            return None
        return template.template, list(template.paths())

    def _template_costs(
        self, choice: ScheduleChoice, option: Option
    ) -> tuple[TemplateBound | None, SplitCosts]:
        """The relaxations of a pair's op orders and what they are priced by."""
        any_warmup = self.any_warmup(choice)
        template = self.bounds.template(choice, self.co, any_warmup=any_warmup)
        return template, self.split_costs(choice, option)

    def base_template(self, choice: ScheduleChoice) -> Template | None:
        """Op orders of a schedule without extra warm-up; None where they are too long."""
        found = self.bounds.template(choice, self.co, any_warmup=self.any_warmup(choice))
        return None if found is None else found.template

    def any_warmup(self, choice: ScheduleChoice) -> bool:
        """Whether plans with this schedule may have extra warm-up."""
        return SCHEDULES[choice.schedule].has_extra_warmup and self._may_warm_up

    def split_costs(self, choice: ScheduleChoice, option: Option) -> SplitCosts:
        """What the layer split of a pair is priced by, at least."""
        split = SCHEDULES[choice.schedule].split_backward
        memory = self.co.memory(option)
        way = _least_of(self._sync_ways(option))
        return SplitCosts(
            *self.unit_times(option, split),
            state=memory.state,
            activation=memory.split_activation if split else memory.activation,
            held=memory.held,
            room=self._largest_limit - memory.working,
            head_room=self._largest_limit - memory.head_working,
            delay=self._least_transfer[0],
            occupancy=self._least_transfer[1],
            sync=_stage_sync(way, hides=option.overlap),
        )

    def pair_costs(self, choice: ScheduleChoice, option: Option) -> PairCosts:
        """What every plan of a pair costs and has at least."""
        staying = {"single-site", "dp-out"} & set(self.choices.possible_kinds)
        return PairCosts(
            self.split_costs(choice, option),
            self.least_hosts,
            self.least_crossings,
            None if staying else self._least_crossing_delay,
        )

    @cached_property
    def _least_transfer(self) -> tuple[int, int]:
        """Least delay and occupancy of a pipeline transfer, inside a site or between two."""
        d = self.co.degrees
        key = Shape(d.tp, d.cp, d.ep, d.etp, d.micro_batch_size), self.classes
        if key not in self.bounds.transfers:
            self.bounds.transfers[key] = self._find_least_transfer()
        return self.bounds.transfers[key]

    @cached_property
    def _least_crossing_delay(self) -> int:
        """Least delay of a transfer between two sites, µs."""
        return min(
            (
                self.co.cell(d, e) + latency
                for (g, h), (latency, d, e) in self.bounds.class_routes.items()
                if g in self.classes and h in self.classes
            ),
            default=0,
        )

    def _find_least_transfer(self) -> tuple[int, int]:
        inside = [self.co.inside(g) for g in self.classes]
        delay, occupancy = min(d for d, _ in inside), min(o for _, o in inside)
        for (g, h), (latency, d, e) in self.bounds.class_routes.items():
            if g in self.classes and h in self.classes:
                cell = self.co.cell(d, e)
                delay, occupancy = min(delay, cell + latency), min(occupancy, cell)
        return delay, occupancy

    @cached_property
    def _largest_limit(self) -> int:
        return max(self.co.limit_mib[d] for d, cells in enumerate(self.co.cells) if cells)

    @cached_property
    def _may_warm_up(self) -> bool:
        return len(self.problem.sites) > 1 and self._moves

    @cached_property
    def _moves(self) -> bool:
        """Whether replicas may change site."""
        return bool(MOVING & set(self.choices.placement_kinds))

    def _one_f_one_b(
        self, forward: Units, backward: Units, work: int, mixed: tuple[Mixture, ...]
    ) -> int:
        """1F1B: each stage turns round ``m`` times.

        Stage ``s`` starts its first backward after all stages' forwards and the later stages'
        backwards, with ``min(m, pp − s)`` forwards done (any number where there may be extra
        warm-up, but never on the last stage); so ``T ≥ Σ t + (m−1) B_s + (m − w_s) F_s`` for every
        ``s``.  Weighted over the stages by the inverse of the coefficient ``c_s`` of their work:
        ``T ≥ W + W ÷ Σ 1/c_s``.
        """
        share, rest = _least_share(forward, (backward,)), _least_share(backward, (forward,))
        own = self._turns(share, rest)
        if own is None:
            return work
        best = work + int(work / sum(1 / c for c in own) * ROUNDING)
        for mixture in mixed:
            own = self._turns(mixture.least_share(0), mixture.least_share(1))
            if own is not None:
                best = max(best, one_f_one_b_turns(mixture, work, own))
        return best

    def _turns(self, share: float, rest: float) -> list[float] | None:
        """Work that a stage does by itself in 1F1B, in microbatches; None where some do nothing.

        ``share`` and ``rest`` are the least shares of forward and backward in a stage's work.
        """
        pp, m = self.co.degrees.pp, self.co.num_microbatches
        result = []
        for s in range(pp):
            done = m if self._may_warm_up and s < pp - 1 else min(m, pp - s)
            own = (m - 1) * rest + (m - done) * share
            if own <= 0:
                return None
            result.append(own)
        return result

    def _slowest_stage(self, forward: Units, backward: Units, weight: Units) -> int:
        times = tuple(a + b + c for a, b, c in zip(forward, backward, weight, strict=True))
        degrees = self.co.degrees
        if degrees.virtual_stages == 1:
            return least_largest_part(self._unit_row(times), degrees.pp)
        whole = ceil_div(self._total(times), degrees.pp)
        return max(whole, ceil_div(self.layers, degrees.pp) * self._layer_min(times))

    def _unit_row(self, times: Units) -> tuple[int, ...]:
        """Time of each layer in order; the ends ride on the first and last one."""
        row = [times[u] for u in self.co.layer_units]
        row[0] += times[self.co.units.index("embedding")]
        row[-1] += times[self.co.units.index("head")]
        return tuple(row)

    def _sync_ways(self, option: Option) -> tuple[_SyncWay, ...]:
        """Least times of synchronisation for every way and number of hosting sites."""
        key = (option.sharding, option.overlap, option.spanning)
        found = self._ways.get(key)
        if found is None:
            found = self._ways[key] = self._all_sync_ways(option)
        return found

    def _all_sync_ways(self, option: Option) -> tuple[_SyncWay, ...]:
        unit = space.granularity(self.co.degrees, spanning=option.spanning)
        most = min(len(self.problem.sites), self.co.degrees.dp // unit)
        return tuple(
            self._sync_way(option, sync, hosts)
            for sync in self.choices.syncs
            for hosts in range(self.least_hosts, max(self.least_hosts, most) + 1)
        )

    def _sync_way(self, option: Option, sync: Sync, hosts: int) -> _SyncWay:
        costs = [self.co.sync(g, option, sync, hosts) for g in self.classes]
        optimizer = [self.co.optimizer(g, option) for g in self.classes]
        (
            (reduce, reduce_latency, reduce_tail, reduce_first),
            (gather, gather_latency, gather_tail, gather_first),
        ) = self._between(option, sync, hosts)
        inside_reduce = _least_units(c.reduce for c in costs)
        inside_gather = _least_units(c.gather for c in costs)
        least_reduce_latency = min(c.reduce_latency for c in costs)
        least_gather_latency = min(c.gather_latency for c in costs)
        end = min(c.reduce_tail for c in costs)
        start = min(c.gather_tail for c in costs)
        embedding = self.co.units.index("embedding")
        first_end = min(c.reduce[embedding] for c in costs)
        first_start = min(c.gather[embedding] for c in costs)
        if sync == "hierarchical":
            reduce = tuple(map(sum, zip(inside_reduce, reduce, strict=True)))
            gather = tuple(map(sum, zip(inside_gather, gather, strict=True)))
            reduce_latency += least_reduce_latency
            gather_latency += least_gather_latency
            first_end += reduce_first - reduce_tail
            first_start += gather_first - gather_tail
            end, start = end + reduce_tail, start + gather_tail
        else:
            scatter = _least_units(c.scatter for c in costs)
            scatter_latency = min(c.scatter_latency for c in costs)
            reduce, reduce_latency = self._longer(
                (inside_reduce, least_reduce_latency),
                (
                    tuple(map(sum, zip(scatter, reduce, strict=True))),
                    scatter_latency + reduce_latency,
                ),
            )
            reduce_tail += min(c.scatter_tail for c in costs)
            reduce_first += min(c.scatter_tail + c.scatter[embedding] for c in costs)
            gather, gather_latency = self._longer(
                (inside_gather, least_gather_latency), (gather, gather_latency)
            )
            first_end = max(end + first_end, reduce_first) - max(end, reduce_tail)
            first_start = max(start + first_start, gather_first) - max(start, gather_tail)
            end, start = max(end, reduce_tail), max(start, gather_tail)
        if not option.overlap:
            end = start = first_end = first_start = 0
        return _SyncWay(
            reduce=reduce,
            reduce_latency=reduce_latency,
            gather=gather,
            gather_latency=gather_latency,
            end=end,
            start=start,
            first_end=first_end,
            first_start=first_start,
            optimizer=_least_units(optimizer),
            layer_optimizer=min(self._layer_min(units) for units in optimizer),
        )

    def _longer(self, inside: tuple[Times, int], between: tuple[Times, int]) -> tuple[Times, int]:
        """Of two times that run side by side the one with the larger sum over the stages."""
        pp = self.co.degrees.pp
        return max(inside, between, key=lambda time: self._total(time[0]) + pp * time[1])

    def _between(
        self, option: Option, sync: Sync, hosts: int
    ) -> tuple[tuple[Times, int, int, int], tuple[Times, int, int, int]]:
        """Least exchange between sites of gradients and of parameters.

        Each as (per unit without latency, latency of a stage, one layer with latency, one layer and
        the embedding with latency).  A pair of hosting sites moves at least its own share over the
        fastest link; where all routes of a site leave by one link, the shares of all its
        ``hosts - 1`` partners go over it.
        """
        nothing = (0.0,) * len(self.co.units)
        if hosts == 1:
            return (nothing, 0, 0, 0), (nothing, 0, 0, 0)
        costs = self.co.exchange(option, sync, hosts)
        result = []
        embedding = self.co.units.index("embedding")
        for units, tail, count in (
            (costs.gradient, costs.gradient_tail, costs.gradient_latencies),
            (costs.parameter, costs.parameter_tail, costs.parameter_latencies),
        ):
            delay = count * self.bounds.least_route_latency
            one = self.bounds.route_rate(1) * (1 - SAFETY)
            rate = self.bounds.route_rate(hosts - 1 if sync == "hierarchical" else 1)
            whole = tuple(mib * rate * (1 - SAFETY) for mib in units)
            first = tail + units[embedding]
            result.append((whole, delay, delay + int(one * tail), delay + int(one * first)))
        return result[0], result[1]

    @cached_property
    def hopeless(self) -> bool:
        """Whether no schedule fits even with the least state and activations of all options."""
        costs = [self.co.memory(option) for option in self.choices.options]
        least = MemoryCosts(
            state=_least_units(c.state for c in costs),
            activation=_least_units(c.activation for c in costs),
            split_activation=_least_units(c.activation for c in costs),
            held=_least_units(c.held for c in costs),
            working=min(c.working for c in costs),
            head_working=min(c.head_working for c in costs),
            step=costs[0].step,
            step_working=0,
        )
        kinds = {_live_kind(choice): choice for choice in self.choices.schedules}
        return not any(self._capacity_suffices(choice, least) for choice in kinds.values())

    def _memory_fits(self, choice: ScheduleChoice, option: Option) -> bool:
        """Whether the stages' capacities in layers can sum to the model.

        Stage ``s`` keeps at least :func:`least_live` microbatches of each of its layers; it holds
        no more layers than the roomiest site's limit allows.
        """
        split = SCHEDULES[choice.schedule].split_backward
        key = (_live_kind(choice), split, option.sharding, option.recompute)
        found = self._fits.get(key)
        if found is None:
            found = self._fits[key] = self._capacity_suffices(choice, self.co.memory(option))
        return found

    def _capacity_suffices(self, choice: ScheduleChoice, costs: MemoryCosts) -> bool:
        limit = self._largest_limit
        degrees = self.co.degrees
        split = SCHEDULES[choice.schedule].split_backward
        activation = costs.split_activation if split else costs.activation
        kinds = range(len(self.co.kinds))
        embedding, head = len(kinds), len(kinds) + 1
        last = degrees.pp - 1 if SCHEDULES[choice.schedule].chunk_map == "loop" else 0
        total = 0
        for live, stages in self._live_stages(choice):
            per_layer = min(costs.state[u] + live * activation[u] for u in kinds)
            ends = {s for s in (0, last) if s in stages}
            for s, count in [*((s, 1) for s in ends), (None, len(stages) - len(ends))]:
                if not count:
                    continue
                room = limit - (costs.head_working if s == last else costs.working)
                if s == 0:
                    room -= costs.state[embedding] + live * activation[embedding]
                if s == last:
                    room -= costs.state[head] + activation[head]
                layers = room // per_layer if per_layer else self.layers
                if layers < degrees.virtual_stages:
                    return False
                total += count * layers
        return total >= self.layers

    def _live_stages(self, choice: ScheduleChoice) -> list[tuple[int, range]]:
        """Stages with as many microbatches alive at the least, and how many these are."""
        pp, m = self.co.degrees.pp, self.co.num_microbatches
        first = least_live(choice, pp, 0, m)
        if least_live(choice, pp, pp - 1, m) == first:
            return [(first, range(pp))]
        return [(least_live(choice, pp, s, m), range(s, s + 1)) for s in range(pp)]


def _unsharded(option: Option) -> Option:
    """The option without what sharded state adds to the ops."""
    return option._replace(sharding="ddp")


def _stage_sync(way: _SyncWay, *, hides: bool) -> StageSync:
    """Least synchronisation of one stage, as the relaxation of the layer split wants it."""
    return StageSync(
        gather=way.gather,
        gather_us=way.gather_latency,
        gather_tail=way.start,
        gather_first=way.first_start,
        reduce=way.reduce,
        reduce_us=way.reduce_latency,
        reduce_tail=way.end,
        reduce_first=way.first_end,
        optimizer=way.optimizer,
        hides=hides,
    )


def _kind(choice: ScheduleChoice) -> str:
    """What the closed forms tell apart of schedules with equal numbers of chunks."""
    if choice.schedule in ("gpipe", "1f1b"):
        return choice.schedule
    return "split" if SCHEDULES[choice.schedule].split_backward else "whole"


def _live_kind(choice: ScheduleChoice) -> tuple[str, str]:
    """What :func:`least_live` and the place of the head depend on."""
    one_chunk = choice.schedule in ("1f1b", "zb_h1", "zb_h2")
    live = "1f1b" if one_chunk else "gpipe" if choice.schedule == "gpipe" else "other"
    return live, SCHEDULES[choice.schedule].chunk_map


def least_live(choice: ScheduleChoice, pp: int, stage: int, m: int) -> int:
    """Microbatches of every layer that a stage holds at its peak, at least (cost model 2.5)."""
    if choice.schedule == "gpipe":
        return m
    if choice.schedule in ("1f1b", "zb_h1", "zb_h2"):
        return min(m, pp - stage)
    return 1


@lru_cache(maxsize=65536)
def least_largest_part(row: tuple[int, ...], parts: int) -> int:
    """The smallest possible largest sum when a row is cut into ``parts`` non-empty pieces.

    Bisection over the answer with a greedy test; exact.
    """
    low, high = max(max(row), ceil_div(sum(row), parts)), sum(row)
    while low < high:
        middle = (low + high) // 2
        pieces, total = 1, 0
        for value in row:
            if total + value > middle:
                pieces, total = pieces + 1, 0
            total += value
        if pieces <= parts:
            high = middle
        else:
            low = middle + 1
    return low
