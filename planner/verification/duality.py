"""Weak duality of the layer split, in whole numbers.

For non-negative weights ``λ`` of paths with the sum ``Λ``, ``μ`` of memory rows and ``ν`` of "a
chunk has a layer" every split ``n`` that fits, with the longest path ``T``, has

    Λ T ≥ constant − Σ μ room + Σ ν + Σ_u L_u min_k ( coefficient_k,u + Σ μ need_k,u − ν_k ).

Times that are no whole µs are rounded down to 2⁻³⁰ µs first.  Written apart from the search, which
evaluates the same bound in floats: only the op orders, the live counts and the longest path of
given durations are shared.  ``docs/bounds.md`` says why each row holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from planner.pipeline.event_graph import Duration, event_graph
from planner.pipeline.memory import live_counts
from planner.pipeline.ops import OpKind
from planner.pipeline.schedules import Template, chunk_devices, device_orders
from planner.verification.document import Multipliers, PathWitness, Shortage, TemplateTable

if TYPE_CHECKING:
    from planner.cost.least import SplitCosts

UNIT = 1 << 30
"""Whole numbers count in this part of a µs or MiB."""
MAX_OPS = 60_000
KINDS: tuple[OpKind, ...] = ("F", "B", "W")


class WitnessError(Exception):
    """A path or a weight of the certificate is none."""


class _Path(NamedTuple):
    """How often each op is on a path, and where the path begins and ends."""

    counts: dict[tuple[OpKind, int], int]
    delays: int
    occupancies: int
    first: int
    last: int


class _Memory(NamedTuple):
    """Weighted memory rows: per device, and full and held microbatches per chunk."""

    rows: list[int]
    full: list[int]
    held: list[int]


class _Weights(NamedTuple):
    """Weighted sum of paths and memory rows."""

    total: int
    ops: list[list[int]]
    """By kind and chunk."""
    delays: int
    occupancies: int
    start_whole: list[int]
    start_tail: list[int]
    end_whole: list[int]
    end_tail: list[int]
    memory: _Memory
    least: list[int]


class TemplateProof:
    """What a certificate says of one template, checked.

    Parameters
    ----------
    table
        Paths and weights of the certificate.
    layer_counts
        Layers of each kind, in the order of the units; embedding and head follow them.
    any_warmup
        Whether plans with this schedule may have extra warm-up, so that only paths of all of these
        templates count.
    """

    def __init__(
        self, table: TemplateTable, layer_counts: Sequence[int], *, any_warmup: bool
    ) -> None:
        self.table = table
        self.layer_counts = list(layer_counts)
        self.width = len(self.layer_counts)
        self.any_warmup = any_warmup
        self.template = Template(
            table.schedule,
            table.pp,
            table.virtual_stages,
            table.num_microbatches,
            table.run_length,
            (0,) * table.pp,
        )
        if self.template.m * self.template.chunks * 3 > MAX_OPS:
            raise WitnessError("the template has too many ops to be looked at")
        self.devices = chunk_devices(table.schedule, table.pp, table.virtual_stages)
        orders = device_orders(self.template)
        self.first_chunk = [order[0].chunk for order in orders]
        self.last_op = [(order[-1].kind, order[-1].chunk) for order in orders]
        self._paths: dict[int, _Path] = {}
        self._order = list(range(len(table.multipliers)))
        self._weights: dict[int, _Weights] = {}

    # -- paths -----------------------------------------------------------------------------

    def _path(self, number: int) -> _Path:
        if not 0 <= number < len(self.table.paths):
            raise WitnessError(f"there is no path {number}")
        if number not in self._paths:
            witness = self.table.paths[number]
            self._paths[number] = (
                self._common(witness) if self.any_warmup else self._longest(witness)
            )
        return self._paths[number]

    def _common(self, witness: PathWitness) -> _Path:
        """A path that every extra warm-up has: to a stage, all its ops, and back.

        The first op of stage ``s`` is ``F(s, 0)``, reached through ``F(k, 0)`` of the stages before
        it; the last one follows ``B(s, m−1)``, which goes back through ``B(k, m−1)``.
        """
        rules, stage, form = self.template.rules, witness.stage, witness.common
        if form is None or stage is None or not 0 <= stage < self.template.pp:
            raise WitnessError("a path of all extra warm-ups is needed")
        if self.template.v != 1 or (form == "there and back" and rules.split_backward):
            raise WitnessError("extra warm-ups have no such path in common")
        kinds = KINDS if rules.split_backward else KINDS[:2]
        counts = {(kind, stage): self.template.m for kind in kinds}
        if form == "own":
            return _Path(counts, 0, 0, stage, stage)
        counts |= {("F", k): 1 for k in range(stage)}
        if form == "there":
            return _Path(counts, stage, 0, 0, stage)
        counts |= {("B", k): 1 for k in range(stage)}
        return _Path(counts, 2 * stage, 0, 0, 0)

    def _longest(self, witness: PathWitness) -> _Path:
        """The longest path for the durations of a witness."""
        graph = event_graph(self.template)
        if witness.durations is not None:
            if len(witness.durations) != len(graph.variables):
                raise WitnessError("a witness has not one duration for each variable")
            values = dict(zip(graph.variables, witness.durations, strict=True))
        elif witness.common is None:
            values = dict(self._slow(graph.variables, witness.slow_stage))
        else:
            raise WitnessError("durations are needed")
        try:
            _, path = graph.critical_path(values)
        except ValueError as error:
            raise WitnessError(str(error)) from None
        counts: dict[tuple[OpKind, int], int] = {}
        sums = {"delay": 0, "occupancy": 0}
        ends = {"start": 0, "end": 0}
        for duration, times in path.items():
            if duration.kind in sums:
                sums[duration.kind] += times
            elif duration.kind in ends:
                ends[duration.kind] = int(duration.index)  # type: ignore[arg-type]
            else:
                counts[duration.kind, duration.index] = times  # type: ignore[index]
        return _Path(counts, sums["delay"], sums["occupancy"], ends["start"], ends["end"])

    def _slow(
        self, variables: Sequence[Duration], stage: int | None
    ) -> Iterator[tuple[Duration, int]]:
        for variable in variables:
            if variable.kind in KINDS:
                slow = self.devices[variable.index] == stage  # type: ignore[index]
                yield variable, 2400 if slow else 2000
            else:
                yield variable, 0

    # -- weights ---------------------------------------------------------------------------

    @cached_property
    def _memory_rows(self) -> list[tuple[int, list[int], list[int]]]:
        """Device, and full and held microbatches by chunk, of every memory row."""
        rows = []
        for device, vectors in enumerate(live_counts(self.template)):
            local = [k for k, host in enumerate(self.devices) if host == device]
            for vector in vectors:
                full, held = [0] * len(self.devices), [0] * len(self.devices)
                for place, k in enumerate(local):
                    full[k], held[k] = vector.full[place], vector.held[place]
                rows.append((device, full, held))
        return rows

    def _memory(self, weights: Sequence[tuple[int, int]]) -> _Memory:
        chunks = range(len(self.devices))
        found = _Memory([0] * self.template.pp, [0 for _ in chunks], [0 for _ in chunks])
        for row, weight in weights:
            if weight < 0 or not 0 <= row < len(self._memory_rows):
                raise WitnessError(f"memory row {row} has the weight {weight}")
            device, full, held = self._memory_rows[row]
            found.rows[device] += weight
            for k in chunks:
                found.full[k] += weight * full[k]
                found.held[k] += weight * held[k]
        return found

    def _least(self, weights: Sequence[tuple[int, int]]) -> list[int]:
        found = [0] * len(self.devices)
        for chunk, weight in weights:
            if weight < 0 or not 0 <= chunk < len(found):
                raise WitnessError(f"chunk {chunk} has the weight {weight}")
            found[chunk] += weight
        return found

    def _sum(self, y: Multipliers) -> _Weights:
        pp, chunks = self.template.pp, len(self.devices)
        ops = [[0] * chunks for _ in KINDS]
        places = [[0] * pp for _ in range(4)]
        total = delays = occupancies = 0
        for number, whole_start, whole_end, weight in y.rows:
            if weight < 0 or whole_start not in (0, 1) or whole_end not in (0, 1):
                raise WitnessError(f"path {number} has the weight {weight}")
            path = self._path(number)
            total += weight
            for (kind, chunk), times in path.counts.items():
                ops[KINDS.index(kind)][chunk] += weight * times
            delays += weight * path.delays
            occupancies += weight * path.occupancies
            places[1 - whole_start][path.first] += weight
            places[3 - whole_end][path.last] += weight
        if total <= 0:
            raise WitnessError("the weights of the paths are all 0")
        memory, least = self._memory(y.memory), self._least(y.least)
        return _Weights(
            total,
            ops,
            delays,
            occupancies,
            places[0],
            places[1],
            places[2],
            places[3],
            memory,
            least,
        )

    def _checked(self, number: int) -> _Weights:
        if number not in self._weights:
            self._weights[number] = self._sum(self.table.multipliers[number])
        return self._weights[number]

    # -- bounds ----------------------------------------------------------------------------

    def longer(self, costs: SplitCosts, length_us: int) -> bool:
        """Whether some multipliers show that every split has a path of at least ``length_us``.

        As Z is whole, more than ``length_us − 1`` is enough.

        Raises
        ------
        WitnessError
            If a path or a weight is none.
        """
        for place, number in enumerate(self._order):
            y = self._checked(number)
            if self._scaled(y, costs) > (length_us - 1) * y.total * UNIT:
                self._order.insert(0, self._order.pop(place))
                return True
        return False

    def unfit(self, costs: SplitCosts) -> bool:
        """Whether some weights of memory rows show that no split fits.

        Raises
        ------
        WitnessError
            If a weight is none.
        """
        return any(self._short(shortage, costs) for shortage in self.table.shortages)

    def _short(self, shortage: Shortage, costs: SplitCosts) -> bool:
        memory, least = self._memory(shortage.memory), self._least(shortage.least)
        need = self._need(memory, costs)
        missing = sum(least) - self._room(memory, costs)
        for u, layers in enumerate(self.layer_counts):
            missing += layers * min(row[u] - nu for row, nu in zip(need, least, strict=True))
        return missing > 0

    def _need(self, memory: _Memory, costs: SplitCosts) -> list[list[int]]:
        """Weighted MiB of a layer, by chunk and kind."""
        return [
            [
                memory.rows[device] * costs.state[u]
                + memory.full[k] * costs.activation[u]
                + memory.held[k] * costs.held[u]
                for u in range(self.width)
            ]
            for k, device in enumerate(self.devices)
        ]

    def _room(self, memory: _Memory, costs: SplitCosts) -> int:
        """Weighted MiB that embedding, head and working sets leave."""
        room = 0
        for device, weight in enumerate(memory.rows):
            room += weight * (costs.head_room if device == self.devices[-1] else costs.room)
        for chunk, unit in ((0, self.width), (-1, self.width + 1)):
            room -= memory.rows[self.devices[chunk]] * costs.state[unit]
            room -= memory.full[chunk] * costs.activation[unit]
            room -= memory.held[chunk] * costs.held[unit]
        return room

    def _scaled(self, y: _Weights, costs: SplitCosts) -> int:
        """Λ times the bound, in ``1/UNIT`` µs."""
        width, last = self.width, self.devices[-1]
        times = (costs.forward, costs.backward, costs.weight)
        sync = costs.sync
        gather, reduce = [_whole(t) for t in sync.gather], [_whole(t) for t in sync.reduce]
        optimizer = [_whole(t) for t in sync.optimizer]
        ends = [a + b for a, b in zip(y.end_whole, y.end_tail, strict=True)]
        embedding, head = width, width + 1
        constant = UNIT * sum(
            ops[0] * time[embedding] + ops[-1] * time[head]
            for ops, time in zip(y.ops, times, strict=True)
        )
        constant += UNIT * (y.delays * costs.delay + y.occupancies * costs.occupancy)
        for unit, device in ((embedding, 0), (head, last)):
            constant += y.start_whole[device] * gather[unit] + y.end_whole[device] * reduce[unit]
            constant += ends[device] * optimizer[unit]
        constant += sum(y.start_whole) * _whole(sync.gather_us)
        constant += sum(y.end_whole) * _whole(sync.reduce_us)
        constant += sum(y.start_tail) * _whole(sync.gather_tail)
        constant += sum(y.end_tail) * _whole(sync.reduce_tail)
        constant += y.start_tail[0] * _whole(sync.gather_first)
        constant += y.end_tail[0] * _whole(sync.reduce_first)
        ops = [list(row) for row in y.ops]
        if sync.hides:
            constant += UNIT * self._unhide(y, ops, times)
        need = self._need(y.memory, costs)
        value = constant + UNIT * (sum(y.least) - self._room(y.memory, costs))
        for u, layers in enumerate(self.layer_counts):
            value += layers * min(
                UNIT
                * (
                    sum(row[k] * time[u] for row, time in zip(ops, times, strict=True))
                    + need[k][u]
                    - y.least[k]
                )
                + y.start_whole[device] * gather[u]
                + y.end_whole[device] * reduce[u]
                + ends[device] * optimizer[u]
                for k, device in enumerate(self.devices)
            )
        return value

    def _unhide(self, y: _Weights, ops: list[list[int]], times: Sequence[Sequence[int]]) -> int:
        """Take the ops that hide synchronisation off the paths, all but one layer; µs of that.

        Embedding and head are among the counts of the first and last chunk, so they go as well.
        """
        added = 0
        for device in range(self.template.pp):
            hidden: tuple[tuple[OpKind, int, int], ...] = (
                ("F", self.first_chunk[device], y.start_whole[device]),
                (*self.last_op[device], y.end_whole[device]),
            )
            for kind, chunk, weight in hidden:
                row = KINDS.index(kind)
                time = times[row]
                ops[row][chunk] -= weight
                added += weight * min(time[: self.width])
                added -= weight * time[self.width] if chunk == 0 else 0
                added -= weight * time[self.width + 1] if chunk == len(self.devices) - 1 else 0
        return added


def _whole(value: float) -> int:
    """A time in ``1/UNIT`` µs, rounded down exactly."""
    numerator, denominator = value.as_integer_ratio()
    return numerator * UNIT // denominator
