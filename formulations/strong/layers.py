"""The layer split of one schedule and option by itself: placement only by what it costs at least.

A relaxation of the strong formulation with few variables: whole layers per chunk, the memory of the
roomiest site, the least times, and, where replicas have to change site, boundaries of which some
are slow.  Most pairs are closed by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import floor

from formulations.algebra import Model, Variable, linear_sum
from formulations.cuts import PathCut
from formulations.plain import decisions, timing
from formulations.plain.variables import PlainVariables
from formulations.strong import rows
from planner.check import first_chunks, last_ops
from planner.choices import CaseChoices
from planner.cost.least import PairCosts
from planner.layout import num_boundaries
from planner.pipeline.event_graph import Duration
from planner.pipeline.memory import live_counts
from planner.pipeline.schedules import Template


@dataclass(eq=False)
class LayersModel:
    """A built model, its template and the least costs behind it."""

    model: Model
    variables: PlainVariables
    template: Template
    least: PairCosts
    slow: tuple[Variable, ...]
    """Per boundary: literal "some replica changes site here"; none where all stay."""

    def add_cuts(self, cuts: Iterable[PathCut]) -> None:
        """Add paths of the event graph that were found after the model was built."""
        timing.path_cuts(self.variables, cuts)

    def layers(self, values: Sequence[int]) -> tuple[int, ...]:
        """Layers per chunk of an assignment, one integer per variable in index order."""
        return tuple(
            count.constant + sum(a * values[i] for i, a in count.terms.items())
            for count in self.variables.layers
        )

    def durations(self, values: Sequence[int]) -> dict[Duration, int]:
        """Least durations of the split of an assignment, in µs."""
        v, times = self.variables, self.least.times
        units = [
            [e.constant + sum(a * values[i] for i, a in e.terms.items()) for e in row]
            for row in v.units
        ]
        found: dict[Duration, int] = {}
        for kind, weights in (("F", times.forward), ("B", times.backward), ("W", times.weight)):
            for k, row in enumerate(units):
                total = sum(n * w for n, w in zip(row, weights, strict=True))
                found[Duration(kind, k)] = total  # type: ignore[arg-type]
        for key in v.duration:
            if key.kind == "delay":
                found[key] = times.delay
            elif key.kind == "occupancy":
                found[key] = times.occupancy
        for b, literal in enumerate(self.slow):
            if values[literal.index]:
                after = (b + 1) % v.pp
                for edge in ((b, after), (after, b)):
                    key = Duration("delay", edge)
                    found[key] = max(found[key], self.least.crossing_delay_us or 0)
        return found | self._ends(units, found)

    def _ends(self, units: list[list[int]], ops: dict[Duration, int]) -> dict[Duration, int]:
        """``start`` and ``end`` of every stage, as the rows of the model have them."""
        v, sync = self.variables, self.least.times.sync
        width = len(v.co.kinds)
        devices = v.devices(next(iter(v.schedule)))
        firsts, lasts = first_chunks(self.template), last_ops(self.template)
        times = {
            "F": self.least.times.forward,
            "B": self.least.times.backward,
            "W": self.least.times.weight,
        }
        found = {}

        def weighed(s: int, weights: tuple[float, ...]) -> int:
            mine = [row for k, row in enumerate(units) if devices[k] == s]
            return sum(n * floor(w) for row in mine for n, w in zip(row, weights, strict=True))

        for s in range(v.pp):
            optimizer = weighed(s, sync.optimizer)
            for kind, tail, first, whole, after, op in (
                (
                    "start",
                    sync.gather_tail,
                    sync.gather_first,
                    weighed(s, sync.gather) + floor(sync.gather_us),
                    0,
                    ("F", firsts[s]),
                ),
                (
                    "end",
                    sync.reduce_tail,
                    sync.reduce_first,
                    weighed(s, sync.reduce) + floor(sync.reduce_us),
                    optimizer,
                    lasts[s],
                ),
            ):
                hidden = 0
                if sync.hides:
                    hidden = ops[Duration(*op)] - min(times[op[0]][:width])  # type: ignore[arg-type]
                unhidden = floor(tail + (first if s == 0 else 0))
                found[Duration(kind, s)] = after + max(0, unhidden, whole - hidden)  # type: ignore[arg-type]
        return found


def build_layers(
    choices: CaseChoices,
    template: Template,
    cuts: Iterable[PathCut],
    upper: int,
    least: PairCosts,
) -> LayersModel:
    """Build the model of the layer split of one pair.

    Parameters
    ----------
    choices
        The alternatives of the case, narrowed to one pair of schedule and option.
    template
        The pair's op orders without extra warm-up.
    cuts
        Paths of the event graph to use; any subset gives a valid lower bound.
    upper
        Only plans with ``Z <= upper`` (µs) are wanted.
    least
        What the pair costs at least; ``crossing_delay_us`` where replicas change site.

    Raises
    ------
    ValueError
        If there is more than one pair.
    """
    if len(choices.pairs) != 1:
        raise ValueError(f"a model is of one schedule and option, not of {len(choices.pairs)}")
    model = Model()
    v = PlainVariables(choices.problem, choices.co, choices, model, upper)
    choice, option = choices.pairs[0]
    chosen = model.boolean("pair")
    model.exactly_one([chosen], family="choose_once")
    v.schedule, v.option = {choice: chosen}, {option: chosen}
    v.warmup = [{0: chosen}] * (v.pp - 1)
    decisions.split_layers(v)
    _durations(v, template)
    rows.least_ops(v, least)
    rows.least_transfers(v, least)
    rows.least_synchronisation(v, least)
    slow = _slow_boundaries(v, least)
    _memory(v, template, least)
    v.time = model.integer("time", 0, upper)
    timing.device_paths(v)
    timing.path_cuts(v, cuts)
    model.minimize(v.time)
    return LayersModel(model, v, template, least, slow)


def _durations(v: PlainVariables, template: Template) -> None:
    """One variable per duration of the event graph."""
    kinds = ("F", "B", "W") if template.rules.split_backward else ("F", "B")
    for k in range(v.num_chunks):
        for kind in kinds:
            v.duration[Duration(kind, k)] = v.model.integer(f"{kind}_{k}", 0, v.op_limit)  # type: ignore[arg-type]
    for s in range(v.pp):
        for kind in ("start", "end"):
            v.duration[Duration(kind, s)] = v.model.integer(f"{kind}_{s}", 0, v.end_limit)  # type: ignore[arg-type]
    for b in range(v.boundaries if v.pp > 1 else 0):
        after = (b + 1) % v.pp
        for i, j in ((b, after), (after, b)):
            for kind in ("delay", "occupancy"):
                key = Duration(kind, (i, j))  # type: ignore[arg-type]
                if key not in v.duration:
                    v.duration[key] = v.model.integer(f"{kind}_{i}_{j}", 0, v.transfer_limit)


def _slow_boundaries(v: PlainVariables, least: PairCosts) -> tuple[Variable, ...]:
    """Where replicas change site, some boundary is slow; in a loop what leaves also comes back.

    .. math:: \\sum_b c_b \\ge 1 \\quad (2 \\text{ in a loop}), \\qquad
        [c_b] \\; \\text{delay}_{b \\to b+1} \\ge \\min \\text{delay between sites}
    """
    if least.crossing_delay_us is None:
        return ()
    model, choice = v.model, next(iter(v.schedule))
    boundaries = num_boundaries(choice.schedule, v.pp, v.co.degrees.virtual_stages)
    slow = tuple(model.boolean(f"slow_{b}") for b in range(boundaries))
    around = boundaries == v.pp
    model.add(linear_sum(slow) >= 1 + around, family="slow_boundaries")
    for b, literal in enumerate(slow):
        after = (b + 1) % v.pp
        for edge in ((b, after), (after, b)):
            delay = v.duration[Duration("delay", edge)]
            model.add(delay >= least.crossing_delay_us, [literal], family="slow_boundaries")
    return slow


def _memory(v: PlainVariables, template: Template, least: PairCosts) -> None:
    """A stage fits into the memory of the roomiest site, with the least extra warm-up.

    .. math:: \\sum_u n_{s,u} \\text{state}_u + \\sum_{k \\in s} \\sum_u n_{k,u}
        (\\text{full}_k \\text{act}_u + \\text{held}_k \\text{held}_u) \\le \\text{room}_s
    """
    times = least.times
    devices = v.devices(next(iter(v.schedule)))
    for s, vectors in enumerate(live_counts(template)):
        chunks = [k for k, device in enumerate(devices) if device == s]
        state = timing.weighted(timing.stage_units(v, devices, s), times.state)
        room = times.head_room if devices[-1] == s else times.room
        for full, held in vectors:
            live = linear_sum(
                timing.weighted(
                    v.units[k],
                    tuple(
                        full[i] * a + held[i] * h
                        for a, h in zip(times.activation, times.held, strict=True)
                    ),
                )
                for i, k in enumerate(chunks)
            )
            v.model.add(state + live <= room, family="memory")
