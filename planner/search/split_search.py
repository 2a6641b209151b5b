"""Local search over whole-layer splits, guided by the paths that a template's relaxation knows.

The longest path of a split is dear, the longest of the known paths is cheap for all neighbours at
once.  So the search descends on the known paths, looks for the longest path of where it ends, adds
it, and goes on: what seemed better than the best split so far either is, or gets a path that says
why not.  The paths make the relaxation with whole layers strong where fractions are weak.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from planner.cost.least import SplitCosts
    from planner.search.template_bound import TemplateBound

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

MAX_STEPS = 200
"""Steps of one descent."""
KICK_FROM = 30
"""A kick takes one of so many best neighbours."""
KICK_STEPS = (2, 6)
"""Least number of moves of a kick, and one more than the largest."""
HEAVIER, LIGHTER = 1.5, 0.8
"""What happens to the weight of missing memory after a split that does not fit, or fits."""
PATIENCE = 3
"""Descents per longest path that may be looked for."""
DULL = 6
"""Descents in a row that end above the limit, after which the search stops."""
ROWS_AT_ONCE = 8
"""Rows that are looked at together: few enough for the processor's cache."""


class FoundSplit(NamedTuple):
    """A split that fits the memory.

    ``length_us`` is its longest path with least times; ``units`` are its layers of each kind, shape
    (chunks, kinds).
    """

    length_us: float
    layers: tuple[int, ...]
    units: FloatArray


class SplitSearch:
    """Splits of one template, priced by one set of costs.

    Parameters
    ----------
    bound
        The relaxations of the template; the search adds paths to them.
    costs
        Times and memory per unit.
    """

    def __init__(self, bound: TemplateBound, costs: SplitCosts) -> None:
        self.bound = bound
        self.priced = bound.priced(costs)
        kinds = np.array([bound.kinds.index(unit) for unit in bound.layer_units])
        self.kinds = kinds
        counts = np.zeros((len(kinds) + 1, bound.width))
        counts[1:] = np.cumsum(np.eye(bound.width)[kinds], axis=0)
        self.counts = counts
        need, room = self.priced.need, self.priced.room
        scale = np.maximum(1.0, np.abs(room))
        self.memory = need / scale[:, None, None]
        self.memory_limits = room / scale
        self.weight = 1.0

    def run(self, evaluations: int, beyond_us: float, seed: int = 0) -> FoundSplit | None:
        """Look for the split with the shortest longest path.

        Parameters
        ----------
        evaluations
            Most splits whose longest path is looked for.
        beyond_us
            Splits whose known paths are longer are of no interest.
        seed
            Of the kicks.

        Returns
        -------
        FoundSplit | None
            The best split that fits the memory; None where none was found.
        """
        rng = np.random.default_rng(seed)
        layers = self._even()
        best: FoundSplit | None = None
        seen: set[bytes] = set()
        dull = 0
        for _ in range(PATIENCE * evaluations):
            layers, score = self._descend(layers)
            fits = self._missing(layers) <= 0
            self.weight *= LIGHTER if fits else HEAVIER
            dull = dull + 1 if score > beyond_us else 0
            if dull == DULL:
                break
            if dull or layers.tobytes() in seen:
                if best is not None and rng.random() < 0.5:
                    layers = np.array(best.layers)
                layers = self._kick(layers, rng)
                continue
            seen.add(layers.tobytes())
            length = self.priced.lengthen(self._units(layers))
            if fits and (best is None or length < best.length_us):
                best = FoundSplit(length, tuple(int(n) for n in layers), self._units(layers))
            if len(seen) >= evaluations:
                break
        return best

    def even(self) -> float:
        """Longest path of the even split, whether it fits or not, µs."""
        return self.priced.lengthen(self._units(self._even()))

    def _even(self) -> IntArray:
        base, extra = divmod(len(self.kinds), self.bound.chunks)
        return np.array([base + (k < extra) for k in range(self.bound.chunks)])

    def _units(self, layers: IntArray) -> FloatArray:
        """Layers of each kind per chunk, shape (chunks, kinds)."""
        ends = np.concatenate([[0], np.cumsum(layers)])
        units: FloatArray = self.counts[ends[1:]] - self.counts[ends[:-1]]
        return units

    def _missing(self, layers: IntArray) -> float:
        """Largest share of a memory limit that is missing, at most 0 where all fits."""
        need = np.tensordot(self.memory, self._units(layers), 2)
        return float(max(need - self.memory_limits, default=0.0))

    def _descend(self, layers: IntArray) -> tuple[IntArray, float]:
        """Move one layer after the other, each time where it helps most; the score at the end."""
        value = np.inf
        for _ in range(MAX_STEPS):
            scores, here = self._neighbours(layers)
            value = min(value, here)
            source, target = np.unravel_index(int(scores.argmin()), scores.shape)
            if scores[source, target] >= value - 1e-6:
                break
            value = float(scores[source, target])
            layers = self._moved(layers, int(source), int(target))
        return layers, value

    def _kick(self, layers: IntArray, rng: np.random.Generator) -> IntArray:
        """A few good moves at random."""
        for _ in range(rng.integers(*KICK_STEPS)):
            scores, _ = self._neighbours(layers)
            order = np.argsort(scores, axis=None)[:KICK_FROM]
            order = order[np.isfinite(scores.ravel()[order])]
            if not len(order):
                break
            source, target = np.unravel_index(int(rng.choice(order)), scores.shape)
            layers = self._moved(layers, int(source), int(target))
        return layers

    @staticmethod
    def _moved(layers: IntArray, source: int, target: int) -> IntArray:
        """One layer fewer at the source and one more at the target; those between shift."""
        moved = layers.copy()
        moved[source] -= 1
        moved[target] += 1
        return moved

    def _neighbours(self, layers: IntArray) -> tuple[FloatArray, float]:
        """Scores of all moves, shape (source, target), and of the split itself.

        The score is the longest known path, raised by the weighted share of memory that is missing.
        """
        paths, limits = self.priced.paths()
        longest, own = self._after_moves(paths, limits, layers, -np.inf)
        missing, missed = self._after_moves(self.memory, self.memory_limits, layers, 0.0)
        longest *= 1 + self.weight * np.maximum(missing, 0.0)
        own *= 1 + self.weight * max(0.0, missed)
        np.fill_diagonal(longest, np.inf)
        longest[layers <= 1] = np.inf
        scores: FloatArray = longest
        return scores, own

    def _after_moves(
        self, rows: FloatArray, limits: FloatArray, layers: IntArray, floor: float
    ) -> tuple[FloatArray, float]:
        """Largest excess of rows of coefficients over their limits after every move, and before.

        A move from ``i`` to a later ``j`` shifts the boundaries before chunks ``i+1 … j`` down by
        one layer, one to an earlier ``j`` those before ``j+1 … i`` up.  Each boundary that shifts
        hands one layer over, so the changes add up.  Values below ``floor`` may come out as it.
        """
        chunks = len(layers)
        over = np.tensordot(rows, self._units(layers), 2) - limits
        own = float(max(over, default=floor))
        ends = np.cumsum(layers)[:-1]
        step = rows[:, 1:, :] - rows[:, :-1, :]
        inner = np.arange(len(ends))
        later, earlier = np.zeros((2, len(rows), chunks))
        later[:, 1:] = np.cumsum(step[:, inner, self.kinds[ends - 1]], axis=1)
        earlier[:, 1:] = np.cumsum(-step[:, inner, self.kinds[ends]], axis=1)
        gain = np.maximum(np.ptp(later, axis=1), np.ptp(earlier, axis=1))
        matter = np.flatnonzero(over + gain > floor)
        forth, back = np.full((2, chunks, chunks), floor)
        for some in np.array_split(matter, -(-len(matter) // ROWS_AT_ONCE) or 1):
            if len(some):
                base = over[some, None]
                _raise_to(forth, base - later[some], later[some])
                _raise_to(back, base + earlier[some], -earlier[some])
        return np.where(np.tri(chunks, dtype=bool), back, forth), own


def _raise_to(largest: FloatArray, sources: FloatArray, targets: FloatArray) -> None:
    """``largest[i, j] = max(largest[i, j], max over rows of sources[i] + targets[j])``."""
    np.maximum(largest, (sources[:, :, None] + targets[:, None, :]).max(axis=0), out=largest)
