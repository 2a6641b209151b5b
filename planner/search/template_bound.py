"""Bound of one schedule and option: the linear relaxation of the layer split.

How many layers of each kind a chunk takes is continuous; the longest paths of the template with
the synchronisation of the stages at their ends, and the memory rows of its live microbatches, are
kept.  Paths are added while the split that the relaxation chooses has a longer one.

The multipliers of a solved relaxation are kept: they give a bound for any other costs of the same
template without solving anything.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from importlib import metadata
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from planner.cost.least import SplitCosts
from planner.pipeline.event_graph import Duration, event_graph
from planner.pipeline.memory import live_counts
from planner.pipeline.ops import OpKind
from planner.pipeline.schedules import Template, chunk_devices, device_orders
from planner.search.quiet import stdout_to_stderr
from planner.search.split_search import FoundSplit, SplitSearch

MAX_OPS = 60_000
"""Templates with more ops are not looked at."""
MAX_ROUNDS = 12
TOLERANCE = 1e-4
"""Relative violation below which no further path is looked for."""
SAFETY = 1e-7
"""Relative allowance for floating-point error."""
SCALE = 1024
"""Fractions of a µs in which a fractional split is priced."""
COARSE = 20_000
"""Parts of the longest op in which a longest path is looked for: few digits, short witnesses."""
SPLITS = 48
"""Whole-layer splits that are priced before a case is bounded with whole layers."""
MAX_WITNESSES = 24
"""Multipliers kept per template."""

INTEGRALITY = 1e-4
"""A point with whole layers may be off by so much; the solver's own tolerance is 1e-6."""

ROUNDING = 1e-6
"""A bound may be above the length of a split by so much, relatively, and 1 µs."""

FloatArray = npt.NDArray[np.float64]


class WholeLayersError(Exception):
    """What the engine behind whole layers said cannot be true.  Remedy: believe none of it."""


class Row(NamedTuple):
    """One path of a template and which of the two bounds of its start and end it uses."""

    counts: FloatArray
    """How often each op is on the path, shape (3, chunks): F, B, W."""
    delays: int
    occupancies: int
    first: int
    """Device that the path begins on."""
    last: int
    """Device that the path ends on."""
    whole_start: bool
    """Whole gather less what is hidden; False: the tail."""
    whole_end: bool
    """Whole reduction less what is hidden; False: the tail."""
    witness: dict[str, Any]
    """How anyone finds the path again; see :mod:`planner.search.certificate`."""
    path: dict[Duration, int]
    """The path itself: how often each duration is on it."""


class _Costs:
    """Costs of one split as arrays, layers of each kind and the two ends apart."""

    def __init__(self, costs: SplitCosts, width: int) -> None:
        self.costs = costs
        self.width = width
        times = np.array([costs.forward, costs.backward, costs.weight], dtype=np.float64)
        self.layer = times[:, :width]
        self.embedding = times[:, width]
        self.head = times[:, width + 1]
        self.least_layer = self.layer.min(axis=1)
        sync = costs.sync
        self.gather = np.array(sync.gather, dtype=np.float64)
        self.reduce = np.array(sync.reduce, dtype=np.float64)
        self.optimizer = np.array(sync.optimizer, dtype=np.float64)


class Multipliers(NamedTuple):
    """Non-negative weights of rows, summed up; every choice of them gives a bound.

    ``counts``, ``delays`` and ``occupancies`` are the weighted sums over the rows, whose weights
    add up to 1; ``start_whole`` to ``end_tail`` are the weights of the rows by device that they
    begin or end on; ``memory`` those of the memory rows; ``least`` those of "a chunk has a layer".
    """

    counts: FloatArray
    delays: float
    occupancies: float
    start_whole: FloatArray
    start_tail: FloatArray
    end_whole: FloatArray
    end_tail: FloatArray
    memory: FloatArray
    least: FloatArray
    rows: tuple[tuple[Row, float], ...]


class Shortage(NamedTuple):
    """Weights of memory rows and of "a chunk has a layer" that no split meets together."""

    memory: FloatArray
    least: FloatArray


class TemplateBound:
    """Relaxations of the layer split for one template, or for all extra warm-ups of a schedule.

    Parameters
    ----------
    template
        The op orders.
    layer_units
        Unit of each layer; the units after the last kind are embedding and head.
    any_warmup
        Only paths that the schedule has with every extra warm-up count; no others are looked for.
    """

    def __init__(
        self, template: Template, layer_units: tuple[int, ...], *, any_warmup: bool
    ) -> None:
        self.template = template
        self.any_warmup = any_warmup
        self.layer_units = layer_units
        self.kinds = sorted(set(layer_units))
        self.width = len(self.kinds)
        self.layers = np.array([layer_units.count(u) for u in self.kinds], dtype=np.float64)
        self.chunks = template.chunks
        self.devices = chunk_devices(template.schedule, template.pp, template.v)
        self.split = template.rules.split_backward
        orders = device_orders(template)
        self.first_chunk = [order[0].chunk for order in orders]
        self.last_op: list[tuple[OpKind, int]] = [(o[-1].kind, o[-1].chunk) for o in orders]
        self.rows: dict[tuple[object, ...], Row] = {}
        self.solved: list[Multipliers] = []
        self.unfit: list[Shortage] = []
        self.used: dict[int, Multipliers] = {}
        """Those that gave a value, by identity."""
        self.used_unfit: dict[int, Shortage] = {}
        for path, witness in self._seed_paths():
            self._add(path, False, False, witness)
            self._add(path, True, True, witness)

    # -- rows ------------------------------------------------------------------------------

    def _seed_paths(self) -> Iterator[tuple[dict[Duration, int], dict[str, Any]]]:
        """Paths that bind when one device is slow."""
        if self.any_warmup:
            yield from self._common_paths()
            return
        graph = event_graph(self.template)
        base = {key: 2000 if key.kind in ("F", "B", "W") else 0 for key in graph.variables}
        batch = [base] + [
            {
                key: value + 400
                if key.kind in ("F", "B", "W") and self.devices[key.index] == stage  # type: ignore[index]
                else value
                for key, value in base.items()
            }
            for stage in range(self.template.pp)
        ]
        slow = [None, *range(self.template.pp)]
        for stage, (_, path) in zip(slow, graph.critical_paths(batch), strict=True):
            yield path, {"slow_stage": stage}

    def _common_paths(self) -> Iterator[tuple[dict[Duration, int], dict[str, Any]]]:
        """Paths of every extra warm-up (one chunk a stage).

        To stage ``s``, all its ops, and on; and, where the backward is not split, back to stage 0:

            start_0 + Σ_{k<s} F_k + m (F_s + B_s + W_s) [+ Σ_{k<s} B_k] + end.
        """
        m = self.template.m
        kinds: tuple[OpKind, ...] = ("F", "B", "W") if self.split else ("F", "B")
        for s in range(self.template.pp):
            work = {Duration(kind, s): m for kind in kinds}
            reach = {Duration("F", k): 1 for k in range(s)}
            reach |= {Duration("delay", (k, k + 1)): 1 for k in range(s)}
            own = {Duration("start", s): 1, **work, Duration("end", s): 1}
            yield own, {"common": "own", "stage": s}
            there = {Duration("start", 0): 1, **reach, **work, Duration("end", s): 1}
            yield there, {"common": "there", "stage": s}
            if not self.split:
                back = {Duration("B", k): 1 for k in range(s)}
                back |= {Duration("delay", (k + 1, k)): 1 for k in range(s)}
                both = {Duration("start", 0): 1, **reach, **work, **back, Duration("end", 0): 1}
                yield both, {"common": "there and back", "stage": s}

    def _add(
        self,
        path: dict[Duration, int],
        whole_start: bool,
        whole_end: bool,
        witness: dict[str, Any],
    ) -> bool:
        """Add a row; False if it is there already."""
        counts = np.zeros((3, self.chunks))
        transfers = {"delay": 0, "occupancy": 0}
        ends = {"start": 0, "end": 0}
        for duration, a in path.items():
            if duration.kind in transfers:
                transfers[duration.kind] += a
            elif duration.kind in ends:
                ends[duration.kind] = duration.index  # type: ignore[assignment]
            else:
                counts["FBW".index(duration.kind), duration.index] = a
        row = Row(
            counts,
            transfers["delay"],
            transfers["occupancy"],
            ends["start"],
            ends["end"],
            whole_start,
            whole_end,
            witness,
            path,
        )
        key = (counts.tobytes(), *row[1:-2])
        if key in self.rows:
            return False
        self.rows[key] = row
        return True

    @cached_property
    def _memory_counts(self) -> tuple[npt.NDArray[np.int64], FloatArray, FloatArray]:
        """Device, and full and held counts per chunk (0 elsewhere), of every memory row."""
        hosts, full_rows, held_rows = [], [], []
        for s, vectors in enumerate(live_counts(self.template)):
            local = [k for k, device in enumerate(self.devices) if device == s]
            for full, held in vectors:
                full_row, held_row = np.zeros(self.chunks), np.zeros(self.chunks)
                full_row[local], held_row[local] = full, held
                hosts.append(s)
                full_rows.append(full_row)
                held_rows.append(held_row)
        return np.array(hosts), np.array(full_rows), np.array(held_rows)

    def _memory(self, costs: SplitCosts) -> tuple[FloatArray, FloatArray]:
        """MiB per layer, shape (rows, chunks, kinds), and room of every memory row."""
        hosts, full, held = self._memory_counts
        width = self.width
        state = np.array(costs.state, dtype=np.float64)
        activation = np.array(costs.activation, dtype=np.float64)
        kept = np.array(costs.held, dtype=np.float64)
        mine = hosts[:, None] == np.array(self.devices)[None, :]
        need = mine[:, :, None] * state + full[:, :, None] * activation + held[:, :, None] * kept
        last = hosts == self.devices[-1]
        room = np.where(last, costs.head_room, costs.room).astype(np.float64)
        room -= need[:, 0, width] + need[:, -1, width + 1]
        return need[:, :, :width], room + np.abs(room) * SAFETY

    # -- evaluation ------------------------------------------------------------------------

    def _combined(self, rows: Sequence[Row], weights: FloatArray) -> Multipliers:
        """Sum rows up; the memory and least weights are left empty."""
        pp = self.template.pp
        places = np.zeros((4, pp))
        for row, weight in zip(rows, weights, strict=True):
            places[0 if row.whole_start else 1, row.first] += weight
            places[2 if row.whole_end else 3, row.last] += weight
        return Multipliers(
            counts=np.tensordot(weights, np.array([row.counts for row in rows]), 1),
            delays=float(weights @ np.array([row.delays for row in rows])),
            occupancies=float(weights @ np.array([row.occupancies for row in rows])),
            start_whole=places[0],
            start_tail=places[1],
            end_whole=places[2],
            end_tail=places[3],
            memory=np.zeros(0),
            least=np.zeros(self.chunks),
            rows=tuple(zip(rows, weights.tolist(), strict=True)),
        )

    def _linear(self, y: Multipliers, c: _Costs) -> tuple[FloatArray, float]:
        """Coefficient of every layer, shape (chunks, kinds), and constant of a sum of rows."""
        costs, sync, width = c.costs, c.costs.sync, c.width
        place = np.array(self.devices)
        per_layer = y.counts.T @ c.layer
        constant = float(y.counts[:, 0] @ c.embedding + y.counts[:, -1] @ c.head)
        constant += y.delays * costs.delay + y.occupancies * costs.occupancy
        last = self.devices[-1]
        # start
        per_layer += y.start_whole[place][:, None] * c.gather[:width]
        constant += y.start_whole[0] * c.gather[width] + y.start_whole[last] * c.gather[width + 1]
        constant += y.start_whole.sum() * sync.gather_us + y.start_tail.sum() * sync.gather_tail
        constant += y.start_tail[0] * sync.gather_first
        # end
        end = y.end_whole + y.end_tail
        per_layer += y.end_whole[place][:, None] * c.reduce[:width]
        per_layer += end[place][:, None] * c.optimizer[:width]
        constant += y.end_whole[0] * c.reduce[width] + y.end_whole[last] * c.reduce[width + 1]
        constant += end[0] * c.optimizer[width] + end[last] * c.optimizer[width + 1]
        constant += y.end_whole.sum() * sync.reduce_us + y.end_tail.sum() * sync.reduce_tail
        constant += y.end_tail[0] * sync.reduce_first
        if sync.hides:
            for device in np.flatnonzero(y.start_whole + y.end_whole):
                ops: tuple[tuple[OpKind, int, float], ...] = (
                    ("F", self.first_chunk[device], y.start_whole[device]),
                    (*self.last_op[device], y.end_whole[device]),
                )
                for kind, chunk, weight in ops:
                    if weight:
                        op = "FBW".index(kind)
                        per_layer[chunk] -= weight * c.layer[op]
                        constant += weight * c.least_layer[op]
                        constant -= weight * c.embedding[op] if chunk == 0 else 0
                        constant -= weight * c.head[op] if chunk == self.chunks - 1 else 0
        return per_layer, constant

    def _value(self, y: Multipliers, c: _Costs, need: FloatArray, room: FloatArray) -> float:
        """Weak duality: no split that fits has a shorter path.

        T ≥ constant − Σ μ room + Σ ν + Σ_u L_u min_k (coefficient_k,u + Σ μ need − ν_k)
        """
        per_layer, constant = self._linear(y, c)
        per_layer = per_layer + np.tensordot(y.memory, need, 1) - y.least[:, None]
        return float(
            constant - y.memory @ room + y.least.sum() + self.layers @ per_layer.min(axis=0)
        )

    def known(self, costs: SplitCosts, beyond_us: float) -> tuple[float, Multipliers | None]:
        """Largest bound that the multipliers kept so far give, µs, and those; 0 if there are none.

        Where some that are used already give more than ``beyond_us``, the bound is theirs, so that
        a certificate needs few.
        """
        if not self.solved:
            return 0.0, None
        c = _Costs(costs, self.width)
        need, room = self._memory(costs)
        values = [self._value(y, c, need, room) * (1 - SAFETY) for y in self.solved]
        best = max(range(len(values)), key=values.__getitem__)
        for i, y in enumerate(self.solved):
            if values[i] >= beyond_us + 1 and id(y) in self.used:
                best = i
                break
        return values[best], self.solved[best]

    def known_unfit(self, costs: SplitCosts) -> bool:
        """Whether kept multipliers of the memory rows show that no split fits."""
        if not self.unfit:
            return False
        need, room = self._memory(costs)
        for found in self.unfit:
            if self._shortage(*found, need, room) > 0:
                self.used_unfit[id(found)] = found
                return True
        return False

    def _shortage(
        self, y: FloatArray, least: FloatArray, need: FloatArray, room: FloatArray
    ) -> float:
        """MiB, weighted, that are missing however the layers are spread; above 0 nothing fits."""
        per_layer = np.tensordot(y, need, 1) - least[:, None]
        return float(least.sum() + self.layers @ per_layer.min(axis=0) - y @ room)

    # -- relaxation ------------------------------------------------------------------------

    def value(self, costs: SplitCosts, beyond_us: float) -> int | None:
        """Least longest path over all splits that fit the memory, in µs.

        With ``n_{k,u} ≥ 0`` layers of kind ``u`` in chunk ``k``,

            min T:  T ≥ start + Σ_k Σ_u n_{k,u} (a^F_k f_u + a^B_k b_u + a^W_k w_u) + end
                    for every path,
                    Σ_{k on s} Σ_u n_{k,u} (state_u + full_k act_u + held_k held_u) ≤ room_s,
                    Σ_k n_{k,u} = L_u,  Σ_u n_{k,u} ≥ 1,

        embedding and head added to the first and last chunk, the least transfer times to every
        path; ``start`` and ``end`` as in :class:`StageSync`.

        Parameters
        ----------
        costs
            Times and memory per unit.
        beyond_us
            A larger bound is not looked for.

        Returns
        -------
        int | None
            The bound; None where no split fits.
        """
        if self.known_unfit(costs):
            return None
        value, strongest = self.known(costs, beyond_us)
        if value <= beyond_us:
            need, room = self._memory(costs)
            if not self._fits(need, room):
                return None
            better, found = self._solve(costs, need, room, beyond_us)
            if better > value:
                value, strongest = better, found
        if strongest is not None:
            self.used[id(strongest)] = strongest
        return int(value)

    def search_splits(
        self, costs: SplitCosts, evaluations: int, beyond_us: float
    ) -> FoundSplit | None:
        """Look for good splits with whole layers, which adds their longest paths.

        Templates whose paths must hold for every extra warm-up take no others.

        Parameters
        ----------
        costs
            Times and memory per unit.
        evaluations
            Most splits that are priced.
        beyond_us
            Longer splits are of no interest.
        """
        if self.any_warmup or self.chunks < 2 or not self._may_fit(costs):
            return None
        return SplitSearch(self, costs).run(evaluations, beyond_us)

    def even_split(self, costs: SplitCosts) -> float | None:
        """Longest path of the even split, µs; None where no split fits."""
        if self.any_warmup or not self._may_fit(costs):
            return None
        return SplitSearch(self, costs).even()

    def paths(self) -> Iterator[dict[Duration, int]]:
        """The paths found so far, each once."""
        seen: set[frozenset[tuple[Duration, int]]] = set()
        for row in self.rows.values():
            key = frozenset(row.path.items())
            if key not in seen:
                seen.add(key)
                yield row.path

    def _may_fit(self, costs: SplitCosts) -> bool:
        return not self.known_unfit(costs) and self._fits(*self._memory(costs))

    def priced(self, costs: SplitCosts) -> PricedRows:
        """The rows of the template as numbers."""
        return PricedRows(self, costs)

    def _base_rows(self, need: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Memory rows, "a chunk has a layer", "all layers of a kind", with a last column."""
        size = self.chunks * self.width + 1
        memory = np.zeros((len(need), size))
        memory[:, :-1] = need.reshape(len(need), -1)
        ones = np.zeros((self.chunks, size))
        totals = np.zeros((self.width, size))
        for k in range(self.chunks):
            ones[k, k * self.width : (k + 1) * self.width] = -1.0
        for u in range(self.width):
            totals[u, u : size - 1 : self.width] = 1.0
        return memory, ones, totals

    def _fits(self, need: FloatArray, room: FloatArray) -> bool:
        """Whether a fractional split fits; if not its multipliers are kept."""
        from scipy.optimize import linprog

        memory, ones, totals = self._base_rows(need)
        memory[:, -1] = -1.0
        objective = np.zeros(memory.shape[1])
        objective[-1] = 1.0
        found = linprog(
            objective,
            A_ub=np.vstack([memory, ones]),
            b_ub=np.concatenate([room, -np.ones(self.chunks)]),
            A_eq=totals,
            b_eq=self.layers,
            bounds=[(0, None)] * (len(objective) - 1) + [(None, None)],
            method="highs",
        )
        if found.status != 0:
            return True
        y = np.maximum(-found.ineqlin.marginals, 0.0)
        weights, least = y[: len(room)], y[len(room) :]
        if self._shortage(weights, least, need, room) > SAFETY * max(1.0, float(weights @ room)):
            self.unfit.append(Shortage(weights, least))
            self.used_unfit[id(self.unfit[-1])] = self.unfit[-1]
            del self.unfit[:-MAX_WITNESSES]
            return False
        return True

    def _solve(
        self, costs: SplitCosts, need: FloatArray, room: FloatArray, beyond_us: float
    ) -> tuple[float, Multipliers | None]:
        """The relaxation, with paths added while the split that it chooses has a longer one."""
        from scipy.optimize import linprog

        c = _Costs(costs, self.width)
        memory, ones, totals = self._base_rows(need)
        objective = np.zeros(memory.shape[1])
        objective[-1] = 1.0
        best, strongest = 0.0, None
        paths = np.zeros((0, memory.shape[1]))
        limits = np.zeros(0)
        for _ in range(MAX_ROUNDS):
            paths, limits = self._path_rows(c, paths, limits)
            found = linprog(
                objective,
                A_ub=np.vstack([paths, memory, ones]),
                b_ub=np.concatenate([limits, room, -np.ones(self.chunks)]),
                A_eq=totals,
                b_eq=self.layers,
                method="highs",
            )
            if found.status != 0:
                break
            value = self._keep(found, list(self.rows.values()), c, need, room)
            if value > best:
                best, strongest = value, self.solved[-1]
            if self.any_warmup or best > beyond_us or not self._lengthen(found.x[:-1], c, best):
                break
        return best, strongest

    def whole_layers(
        self, costs: SplitCosts, beyond_us: int, time_limit_s: float
    ) -> tuple[int, tuple[int, ...] | None]:
        """The relaxation with whole layers: its bound, and the layers per chunk that reach it.

        Paths are added as in :meth:`value`.  Kinds of layers may still be mixed out of order.

        Parameters
        ----------
        costs
            Times and memory per unit.
        beyond_us
            A larger bound is not looked for.
        time_limit_s
            The bound is what holds by then.

        Returns
        -------
        tuple
            The bound in µs, above ``beyond_us`` where no split is as good; and the best split found
            (None where there is none).

        Raises
        ------
        WholeLayersError
            If the engine contradicts itself: its point is not whole or breaks a row, its bound is
            above the length of its own point, or it finds no point although one is known.
        """
        from scipy.optimize import Bounds, LinearConstraint, milp

        c = _Costs(costs, self.width)
        need, room = self._memory(costs)
        memory, ones, totals = self._base_rows(need)
        size = memory.shape[1]
        objective = np.zeros(size)
        objective[-1] = 1.0
        integral = np.ones(size)
        integral[-1] = 0.0
        upper = np.append(np.tile(self.layers, self.chunks), beyond_us + 1.0)
        fixed = [
            LinearConstraint(memory, -np.inf, room),
            LinearConstraint(ones, -np.inf, -1.0),
            LinearConstraint(totals, self.layers, self.layers),
        ]
        began = time.monotonic()
        paths = np.zeros((0, size))
        limits = np.zeros(0)
        best, split = 0.0, None
        fitting: FloatArray | None = None
        known = self.search_splits(costs, SPLITS, beyond_us)
        if known is not None and known.length_us <= beyond_us:
            split, fitting = known.layers, known.units.reshape(-1)
            upper[-1] = min(upper[-1], known.length_us * (1 + ROUNDING) + 1)
        for _ in range(MAX_ROUNDS):
            paths, limits = self._path_rows(c, paths, limits)
            shortest = _longest_known(fitting, paths, limits)
            left = time_limit_s - (time.monotonic() - began)
            if left <= 0:
                break
            try:
                with stdout_to_stderr():
                    found = milp(
                        objective,
                        integrality=integral,
                        bounds=Bounds(np.zeros(size), upper),
                        constraints=[LinearConstraint(paths, -np.inf, limits), *fixed],
                        options={"time_limit": left, "mip_rel_gap": 1e-6},
                    )
            except (ValueError, ArithmeticError, RuntimeError) as error:
                raise WholeLayersError(f"failed: {error}") from error
            if found.status == 2:
                if shortest <= beyond_us:
                    raise WholeLayersError(
                        f"says that no split has paths up to {beyond_us} µs; one has "
                        f"{shortest:.0f} µs"
                    )
                return beyond_us + 1, split
            if found.mip_dual_bound is not None and np.isfinite(found.mip_dual_bound):
                best = max(best, float(found.mip_dual_bound) * (1 - SAFETY) - 1e-6)
            layers = None if found.x is None else self._whole(found.x)
            if layers is not None and (memory[:, :-1] @ layers <= room).all():
                fitting = layers
                shortest = min(shortest, _longest_known(fitting, paths, limits))
            if best > shortest * (1 + ROUNDING) + 1:
                raise WholeLayersError(
                    f"says that no split has paths below {best:.0f} µs; one has {shortest:.0f} µs"
                )
            best = min(best, shortest)
            if layers is None:
                break
            split = tuple(int(n) for n in layers.reshape(self.chunks, self.width).sum(axis=1))
            if self.any_warmup or best > beyond_us or not self._lengthen(layers, c, best):
                break
        return int(best), split

    def _whole(self, point: FloatArray) -> FloatArray:
        """Layers of each kind per chunk as the engine gives them, whole."""
        if np.shape(point) != (self.chunks * self.width + 1,):
            raise WholeLayersError("gives no split")
        layers = np.rint(point[:-1])
        counts = layers.reshape(self.chunks, self.width)
        if not (
            np.abs(point[:-1] - layers).max() <= INTEGRALITY
            and (counts >= 0).all()
            and (counts.sum(axis=1) >= 1).all()
            and (counts.sum(axis=0) == self.layers).all()
        ):
            raise WholeLayersError("gives a split that is not whole, or not of all layers")
        return layers

    def _path_rows(
        self, c: _Costs, paths: FloatArray, limits: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Rows of the linear program for all paths, given those of the first ones."""
        rows = list(self.rows.values())[len(paths) :]
        fresh = [self._linear(self._combined([row], np.ones(1)), c) for row in rows]
        if not fresh:
            return paths, limits
        added = np.array([per_layer.reshape(-1) for per_layer, _ in fresh])
        paths = np.vstack([paths, np.hstack([added, -np.ones((len(fresh), 1))])])
        return paths, np.concatenate([limits, [-constant for _, constant in fresh]])

    def _keep(
        self, found: object, rows: Sequence[Row], c: _Costs, need: FloatArray, room: FloatArray
    ) -> float:
        """Keep the multipliers of a solved relaxation; their bound."""
        y = np.maximum(-found.ineqlin.marginals, 0.0)  # type: ignore[attr-defined]
        weights = y[: len(rows)]
        chosen = np.flatnonzero(weights > 1e-12)
        if not len(chosen):
            return 0.0
        total = weights[chosen].sum()
        multipliers = self._combined(
            [rows[int(i)] for i in chosen], weights[chosen] / total
        )._replace(
            memory=y[len(rows) : len(rows) + len(room)] / total,
            least=y[len(rows) + len(room) :] / total,
        )
        self.solved.append(multipliers)
        del self.solved[:-MAX_WITNESSES]
        return self._value(multipliers, c, need, room) * (1 - SAFETY)

    def _lengthen(self, split: FloatArray, c: _Costs, value: float) -> bool:
        """Add the longest path of a fractional split; False if it is not longer or known."""
        length, path, whole, witness = self._longest(split.reshape(self.chunks, self.width), c)
        if length <= value * (1 + TOLERANCE):
            return False
        return self._add_found(path, whole, witness)

    def _longest(
        self, split: FloatArray, c: _Costs
    ) -> tuple[float, dict[Duration, int], dict[tuple[str, object], bool], dict[str, Any]]:
        """Length in µs of the longest path of a split, the path, its ends and its witness."""
        graph = event_graph(self.template)
        durations, whole = self._durations(split, c)
        unit = max(1, max(v for key, v in durations.items() if key.kind in "FBW") // COARSE)
        values = {key: durations[key] // unit for key in graph.variables}
        _, path = graph.critical_path(values)
        length = sum(times * durations[key] for key, times in path.items()) / SCALE
        return length, path, whole, {"durations": list(values.values())}

    def _add_found(
        self,
        path: dict[Duration, int],
        whole: dict[tuple[str, object], bool],
        witness: dict[str, Any],
    ) -> bool:
        """Add a longest path with the ends that bind; False if it is known."""
        first = next(key.index for key in path if key.kind == "start")
        last = next(key.index for key in path if key.kind == "end")
        return self._add(path, whole["start", first], whole["end", last], witness)

    def _durations(
        self, split: FloatArray, c: _Costs
    ) -> tuple[dict[Duration, int], dict[tuple[str, object], bool]]:
        """Durations of a fractional split in ``1/SCALE`` µs; which starts and ends are whole."""
        costs, width, pp = c.costs, c.width, self.template.pp
        times = c.layer @ split.T
        times[:, 0] += c.embedding
        times[:, -1] += c.head
        values: dict[Duration, float] = {}
        for op, kind in enumerate("FBW"):
            for k in range(self.chunks):
                values[Duration(kind, k)] = times[op, k]  # type: ignore[arg-type]
        whole: dict[tuple[str, object], bool] = {}
        for device in range(pp):
            units = np.zeros(width + 2)
            for k, host in enumerate(self.devices):
                if host == device:
                    units[:width] += split[k]
            units[width] += self.devices[0] == device
            units[width + 1] += self.devices[-1] == device
            start, end = _least_ends(c, units, device == 0)
            if costs.sync.hides:
                kind, chunk = self.last_op[device]
                op = "FBW".index(kind)
                start[1] -= times[0, self.first_chunk[device]] - c.least_layer[0]
                end[1] -= times[op, chunk] - c.least_layer[op]
            values[Duration("start", device)] = max(start)
            values[Duration("end", device)] = max(end)
            whole["start", device] = start[1] > start[0]
            whole["end", device] = end[1] > end[0]
        scaled = {key: int(max(value, 0.0) * SCALE) for key, value in values.items()}
        for i, j in {tuple(pair) for pair in _edges(self.devices)}:
            scaled[Duration("delay", (i, j))] = costs.delay * SCALE
            scaled[Duration("occupancy", (i, j))] = costs.occupancy * SCALE
        return scaled, whole


class PricedRows:
    """Rows of a template with the costs of one pair, for whole-layer splits."""

    def __init__(self, bound: TemplateBound, costs: SplitCosts) -> None:
        self._bound = bound
        self._c = _Costs(costs, bound.width)
        self.need, self.room = bound._memory(costs)
        """MiB per layer, shape (rows, chunks, kinds), and the room of every memory row."""
        self._paths = np.zeros((0, bound.chunks * bound.width + 1))
        self._limits = np.zeros(0)

    def paths(self) -> tuple[FloatArray, FloatArray]:
        """Coefficients of all known paths, shape (paths, chunks, kinds), and limits.

        A split has the length ``coefficients · layers − limit`` on each, in µs.
        """
        self._paths, self._limits = self._bound._path_rows(self._c, self._paths, self._limits)
        return self._paths[:, :-1].reshape(-1, self._bound.chunks, self._bound.width), self._limits

    def lengthen(self, split: FloatArray) -> float:
        """Length of the longest path of a split of shape (chunks, kinds), µs; the path is kept."""
        length, path, whole, witness = self._bound._longest(split, self._c)
        self._bound._add_found(path, whole, witness)
        return length


def whole_layers_engine() -> str:
    """Engine and version behind :meth:`TemplateBound.whole_layers`."""
    return f"highs (scipy {metadata.version('scipy')})"


def _longest_known(layers: FloatArray | None, paths: FloatArray, limits: FloatArray) -> float:
    """Longest of the paths for a split, in µs; infinite without a split."""
    if layers is None:
        return float("inf")
    return float((paths[:, :-1] @ layers - limits).max(initial=0.0))


def _least_ends(c: _Costs, units: FloatArray, first: bool) -> tuple[list[float], list[float]]:
    """Tail and whole time before the first and after the last op, nothing hidden."""
    sync = c.costs.sync
    optimizer = float(units @ c.optimizer)
    start = [
        sync.gather_tail + first * sync.gather_first,
        float(units @ c.gather) + sync.gather_us,
    ]
    end = [
        sync.reduce_tail + first * sync.reduce_first + optimizer,
        float(units @ c.reduce) + sync.reduce_us + optimizer,
    ]
    return start, end


def _edges(devices: Sequence[int]) -> Iterable[tuple[int, int]]:
    for i, j in product(sorted(set(devices)), repeat=2):
        if i != j:
            yield i, j
