"""Bound of one schedule and option: the linear relaxation of the layer split.

How many layers of each kind a chunk takes is continuous; the longest path of the template and the
memory rows of its live microbatches are kept.  Paths are added while the split that the relaxation
chooses has a longer one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from planner.cost.coefficients import Units
from planner.pipeline.event_graph import Duration, event_graph
from planner.pipeline.memory import live_counts
from planner.pipeline.schedules import Template, chunk_devices

MAX_OPS = 60_000
"""Templates with more ops are not looked at."""
MAX_ROUNDS = 12
TOLERANCE = 1e-3
"""Relative violation below which no further path is looked for."""
SAFETY = 1e-7
"""Relative allowance for the floating-point error of the linear program."""
SCALE = 1024
"""Fractions of a µs in which a fractional split is priced."""

FloatArray = npt.NDArray[np.float64]


class SplitCosts(NamedTuple):
    """What a split is priced by.

    Times are µs per unit and microbatch, memory MiB per unit; ``room`` and ``head_room`` are what
    the limit leaves beside the working set, of a stage without and with the head.
    """

    forward: Units
    backward: Units
    weight: Units
    state: Units
    activation: Units
    held: Units
    room: int
    head_room: int
    delay: int
    """Least delay of any transfer, µs."""
    occupancy: int
    """Least occupancy of any transfer, µs."""


class _Path(NamedTuple):
    """Coefficients of one path: op kinds × chunks, delays and occupancies."""

    counts: FloatArray
    delays: int
    occupancies: int


_PathKey = tuple[bytes, int, int]


@lru_cache(maxsize=4096)
def _path_pool(template: Template) -> dict[_PathKey, _Path]:
    """Paths of a template found so far, to start with those that bind when one device is slow."""
    devices = chunk_devices(template.schedule, template.pp, template.v)
    graph = event_graph(template)
    base = {key: 2000 if key.kind in ("F", "B", "W") else 0 for key in graph.variables}
    batch = [base] + [
        {
            key: value + 400
            if key.kind in ("F", "B", "W") and devices[key.index] == stage  # type: ignore[index]
            else value
            for key, value in base.items()
        }
        for stage in range(template.pp)
    ]
    pool: dict[_PathKey, _Path] = {}
    for _, path in graph.critical_paths(batch):
        _add(pool, template, path)
    return pool


def _add(
    pool: dict[_PathKey, _Path],
    template: Template,
    path: dict[Duration, int],
) -> bool:
    counts = np.zeros((3, template.chunks))
    transfers = {"delay": 0, "occupancy": 0}
    for duration, a in path.items():
        if duration.kind in transfers:
            transfers[duration.kind] += a
        elif duration.kind in ("F", "B", "W"):
            counts["FBW".index(duration.kind), duration.index] = a
    key = (counts.tobytes(), transfers["delay"], transfers["occupancy"])
    if key in pool:
        return False
    pool[key] = _Path(counts, transfers["delay"], transfers["occupancy"])
    return True


def split_bound(
    template: Template, layer_units: Sequence[int], costs: SplitCosts, beyond_us: float
) -> int | None:
    """Least longest path of a template over all splits that fit the memory, in µs.

    With ``n_{k,u} ≥ 0`` layers of kind ``u`` in chunk ``k``,

        min T:  T ≥ Σ_k Σ_u n_{k,u} (a^F_k f_u + a^B_k b_u + a^W_k w_u)  for every path,
                Σ_{k on s} Σ_u n_{k,u} (state_u + full_k act_u + held_k held_u) ≤ room_s,
                Σ_k n_{k,u} = L_u,  Σ_u n_{k,u} ≥ 1,

    embedding and head added to the first and last chunk, the least transfer times to every path.

    Parameters
    ----------
    template
        The op orders.
    layer_units
        Unit of each layer; the units after the last kind are embedding and head.
    costs
        Times and memory per unit.
    beyond_us
        A larger bound is not looked for.

    Returns
    -------
    int | None
        The bound without start and end; None where no split fits.
    """
    from scipy.optimize import linprog

    kinds = sorted(set(layer_units))
    chunks, width = template.chunks, len(kinds)
    embedding, head = len(kinds), len(kinds) + 1
    size = chunks * width + 1
    times = np.array([costs.forward, costs.backward, costs.weight], dtype=np.float64)
    pool = _path_pool(template)
    memory_rows, memory_limits = _memory_rows(template, costs, width, size)
    ones = np.zeros((chunks, size))
    for k in range(chunks):
        ones[k, k * width : (k + 1) * width] = -1.0
    totals = np.zeros((width, size))
    for u in range(width):
        totals[u, u : chunks * width : width] = 1.0
    wanted = np.array([layer_units.count(u) for u in kinds], dtype=np.float64)
    objective = np.zeros(size)
    objective[-1] = 1.0
    graph = event_graph(template)
    value = 0.0
    for _ in range(MAX_ROUNDS):
        rows = np.zeros((len(pool), size))
        limits = np.zeros(len(pool))
        for i, path in enumerate(pool.values()):
            per_unit = path.counts.T @ times
            rows[i, :-1] = per_unit[:, :width].reshape(-1)
            rows[i, -1] = -1.0
            limits[i] = -(
                per_unit[0, embedding]
                + per_unit[-1, head]
                + path.delays * costs.delay
                + path.occupancies * costs.occupancy
            )
        result = linprog(
            objective,
            A_ub=np.vstack([rows, memory_rows, ones]),
            b_ub=np.concatenate([limits, memory_limits, -np.ones(chunks)]),
            A_eq=totals,
            b_eq=wanted,
            method="highs",
        )
        if result.status == 2:
            return None
        if result.status != 0:
            break
        value = float(result.fun)
        if value > beyond_us:
            break
        split = result.x[:-1].reshape(chunks, width)
        found, path_coefficients = graph.critical_path(
            _durations(template, split, costs, graph.variables)
        )
        if found / SCALE <= value * (1 + TOLERANCE) or not _add(pool, template, path_coefficients):
            break
    return int(value * (1 - SAFETY))


def _memory_rows(
    template: Template, costs: SplitCosts, width: int, size: int
) -> tuple[FloatArray, FloatArray]:
    devices = chunk_devices(template.schedule, template.pp, template.v)
    embedding, head = width, width + 1
    rows, limits = [], []
    for s, vectors in enumerate(live_counts(template)):
        chunks = [k for k, device in enumerate(devices) if device == s]
        is_last = devices[-1] == s
        for full, held in vectors:
            row = np.zeros(size)
            room = costs.head_room if is_last else costs.room
            for i, k in enumerate(chunks):
                need = [
                    costs.state[u] + full[i] * costs.activation[u] + held[i] * costs.held[u]
                    for u in range(width + 2)
                ]
                row[k * width : (k + 1) * width] = need[:width]
                room -= need[embedding] if k == 0 else 0
                room -= need[head] if k == template.chunks - 1 else 0
            rows.append(row)
            limits.append(room + abs(room) * SAFETY)
    return np.array(rows), np.array(limits, dtype=np.float64)


def _durations(
    template: Template, split: FloatArray, costs: SplitCosts, variables: Sequence[Duration]
) -> dict[Duration, int]:
    """Durations of a fractional split, in ``1/SCALE`` µs, rounded down."""
    width = split.shape[1]
    by_kind = {}
    for kind, units in zip("FBW", (costs.forward, costs.backward, costs.weight), strict=True):
        row = split @ np.array(units[:width], dtype=np.float64)
        row[0] += units[width]
        row[-1] += units[width + 1]
        by_kind[kind] = np.maximum(row * SCALE, 0.0).astype(np.int64)
    transfer = {"delay": costs.delay * SCALE, "occupancy": costs.occupancy * SCALE}
    return {
        key: int(by_kind[key.kind][key.index]) if key.kind in by_kind else transfer.get(key.kind, 0)
        for key in variables
    }
