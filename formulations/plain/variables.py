"""Decision variables of the plain formulation and their links to one another."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from formulations.algebra import Expression, Linear, Model, Variable, linear_sum
from planner.choices import CaseChoices, ScheduleChoice
from planner.cost.coefficients import CaseCoefficients, Option
from planner.layout import num_boundaries
from planner.pipeline.event_graph import Duration
from planner.pipeline.link_orders import Way
from planner.pipeline.schedules import SCHEDULES, chunk_devices
from planner.plan import Sync
from planner.problem import Problem

Key = TypeVar("Key", bound=Hashable)


@dataclass(eq=False)
class PlainVariables:
    """All variables of one model, by meaning.

    Shapes: stages ``s < pp``, chunks ``k < pp * v``, sites ``d``, boundaries ``b`` (one more than
    ``pp - 1`` where a looped schedule may wrap round).
    """

    problem: Problem
    co: CaseCoefficients
    choices: CaseChoices
    model: Model
    upper: int
    """Only plans with ``Z`` up to this are wanted, µs."""
    schedule: dict[ScheduleChoice, Variable] = field(default_factory=dict)
    option: dict[Option, Variable] = field(default_factory=dict)
    sync: dict[Sync, Variable] = field(default_factory=dict)
    warmup: list[dict[int, Variable]] = field(default_factory=list)
    """Per boundary before the last stage: literal of each step of extra warm-up."""
    in_flight: list[dict[int, Variable]] = field(default_factory=list)
    """Per stage: literal of each value of its extra warm-up."""
    units: list[tuple[Expression, ...]] = field(default_factory=list)
    """Per chunk and unit: how many."""
    layers: list[Expression] = field(default_factory=list)
    replicas: list[list[Expression]] = field(default_factory=list)
    host: list[list[Variable]] = field(default_factory=list)
    hosts: list[dict[int, Variable]] = field(default_factory=list)
    """Per stage: literal of each number of hosting sites."""
    class_host: list[dict[int, Variable]] = field(default_factory=list)
    """Per stage: literal "some site of GPU class g runs it"."""
    flow: list[dict[tuple[int, int], Variable]] = field(default_factory=list)
    moves: list[dict[tuple[int, int], Variable]] = field(default_factory=list)
    """Per boundary and pair (stays included): literal "at least one replica"."""
    pair: dict[Sync, list[dict[tuple[int, int], Variable]]] = field(default_factory=dict)
    """Per way of synchronising and stage: literal "this ordered pair exchanges"."""
    pp_protocol: list[dict[str, Variable]] = field(default_factory=list)
    dp_protocol: list[dict[str, Variable]] = field(default_factory=list)
    duration: dict[Duration, Variable] = field(default_factory=dict)
    wrap: Variable | None = None
    time: Variable | None = None
    crossings: Expression | None = None
    orders: list[Variable] = field(default_factory=list)
    """Literal of each order of shared links; empty as long as no path needs one."""
    hops: dict[int, list[Variable]] = field(default_factory=dict)
    """Per boundary that a path has asked for: literals of "more than so many links"."""
    patterns: dict[tuple[int, ...], Variable] = field(default_factory=dict)
    ways: dict[Way, Variable] = field(default_factory=dict)
    _any: dict[frozenset[int], Variable] = field(default_factory=dict)

    @cached_property
    def _least_layer(self) -> tuple[int, int, int]:
        """Least forward, backward-on-the-path and whole time of a layer on any class, µs."""
        classes = {site.gpu_class for site in self.problem.sites}
        ops = [self.co.ops(g, option) for g in classes for option in self.choices.options]
        layers = set(self.co.layer_units)
        forward = min(c.forward[u] for c in ops for u in layers)
        backward = min(min(c.input_gradient[u], c.backward[u]) for c in ops for u in layers)
        whole = min(c.forward[u] + c.backward[u] for c in ops for u in layers)
        return forward, backward, whole

    @cached_property
    def length_limit(self) -> int:
        """No path of the event graph is longer than this, µs."""
        return max(0, self.upper - self.co.fixed_us)

    @cached_property
    def op_limit(self) -> int:
        """Each op runs ``m`` times one after the other on its device."""
        return self.length_limit // self.co.num_microbatches

    @cached_property
    def transfer_limit(self) -> int:
        """One transfer beside the way of one microbatch through all layers and back."""
        forward, backward, _ = self._least_layer
        return max(0, self.length_limit - len(self.co.layer_units) * (forward + backward))

    @cached_property
    def end_limit(self) -> int:
        """Time before or after all ops of a stage, which has a layer in each of its chunks."""
        work = self.co.num_microbatches * self.co.degrees.virtual_stages * self._least_layer[2]
        return max(0, self.length_limit - work)

    @cached_property
    def sync_limit(self) -> int:
        """Synchronisation of a stage: what is exposed, and what one op hides."""
        return self.end_limit + self.op_limit

    @property
    def num_sites(self) -> int:
        """Number of sites."""
        return len(self.problem.sites)

    @property
    def pp(self) -> int:
        """Number of stages."""
        return self.co.degrees.pp

    @property
    def num_chunks(self) -> int:
        """Number of chunks."""
        return self.pp * self.co.degrees.virtual_stages

    @property
    def boundaries(self) -> int:
        """Boundaries with flow variables."""
        return max(
            num_boundaries(choice.schedule, self.pp, self.co.degrees.virtual_stages)
            for choice in self.choices.schedules
        )

    def latency(self, link: int) -> Linear | int:
        """Latency of a directed link for the pipeline, µs."""
        return latency_of(self.pp_protocol[link], lambda name: self.co.latency(link, name))

    def devices(self, choice: ScheduleChoice) -> tuple[int, ...]:
        """Stage of every chunk under a schedule."""
        return chunk_devices(choice.schedule, self.pp, self.co.degrees.virtual_stages)

    def chunk_maps(self) -> dict[str, list[ScheduleChoice]]:
        """Schedules by chunk map."""
        result: dict[str, list[ScheduleChoice]] = {}
        for choice in self.choices.schedules:
            result.setdefault(SCHEDULES[choice.schedule].chunk_map, []).append(choice)
        return result

    def any_of(self, literals: Sequence[Variable]) -> Variable:
        """A literal that is true where one of several mutually exclusive literals is."""
        if len(literals) == 1:
            return literals[0]
        key = frozenset(literal.index for literal in literals)
        if key not in self._any:
            union = self.model.boolean(f"any_{len(self._any)}")
            self.model.add(linear_sum(literals) == union, family="unions")
            self._any[key] = union
        return self._any[key]

    def option_groups(
        self, value: Callable[[Option], Key], options: Iterable[Option] | None = None
    ) -> list[tuple[Key, list[Variable]]]:
        """Options with equal coefficients, together: (coefficients, ``when`` literals)."""
        groups: dict[Key, list[Variable]] = {}
        for option in self.option if options is None else options:
            groups.setdefault(value(option), []).append(self.option[option])
        everything = len(self.option)
        return [
            (key, [] if len(members) == everything else [self.any_of(members)])
            for key, members in groups.items()
        ]

    def schedule_literal(self, members: Sequence[ScheduleChoice]) -> list[Variable]:
        """``when`` literals of "one of these schedules"."""
        if len(members) == len(self.schedule):
            return []
        return [self.any_of([self.schedule[choice] for choice in members])]

    def literal(self, table: dict[Key, Variable], key: Key) -> list[Variable]:
        """``when`` literals of one choice of a table; none where the table has one entry."""
        return [] if len(table) == 1 else [table[key]]


def latency_of(table: dict[str, Variable], latency_us: Callable[[str], int]) -> Linear | int:
    """Latency of a link under the protocol that is chosen from a table."""
    values = {protocol: latency_us(protocol) for protocol in table}
    if len(set(values.values())) <= 1:
        return next(iter(values.values()), 0)
    return linear_sum(values[protocol] * literal for protocol, literal in table.items())
