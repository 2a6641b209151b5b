"""Share of equal paths that hashed flows use (ECMP)."""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from math import comb, floor, log2

NEGLIGIBLE = 1e-9
"""Chance below which the rest of a series does not count."""

_LOADS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 1024.0)

_ECMP = {
    2: (0.665, 0.729, 0.784, 0.836, 0.877, 0.910, 0.934, 0.953, 0.966, 0.983),
    4: (0.471, 0.564, 0.652, 0.727, 0.792, 0.844, 0.885, 0.916, 0.939, 0.969),
    8: (0.386, 0.477, 0.568, 0.653, 0.730, 0.795, 0.846, 0.887, 0.918, 0.957),
    16: (0.325, 0.415, 0.508, 0.599, 0.683, 0.755, 0.815, 0.863, 0.900, 0.947),
    32: (0.283, 0.369, 0.462, 0.557, 0.645, 0.722, 0.789, 0.842, 0.884, 0.939),
    64: (0.253, 0.336, 0.427, 0.521, 0.613, 0.696, 0.766, 0.824, 0.870, 0.931),
    128: (0.228, 0.308, 0.397, 0.493, 0.586, 0.672, 0.746, 0.808, 0.858, 0.924),
    256: (0.210, 0.286, 0.374, 0.468, 0.563, 0.652, 0.729, 0.794, 0.846, 0.918),
}
"""``λ/E[largest load]`` of ``λ·n`` flows thrown on ``n`` paths, by ``n`` and for each λ of
``_LOADS``: Monte Carlo of 4,000 to 20,000 throws (reference cost model 5.3)."""


def ecmp_balance(flows: float, paths: int) -> float:
    """Share of ``paths`` that hashed flows use when all must finish together.

    ``λ/E[largest load]`` with ``λ = flows/paths``: from a table interpolated in log λ and log paths
    with at least one flow a path, exact with fewer (see :func:`_mean_largest_load`).  Beyond the
    table its edge holds; fewer flows than paths on more than 256 paths balance as on 256 at the
    same λ.

    Raises
    ------
    ValueError
        If there is no flow or no path.

    Source: reference cost model 5.3; balls into bins.
    """
    if flows <= 0 or paths < 1:
        raise ValueError(f"need at least one flow and one path, not {flows} and {paths}")
    if paths == 1:
        return 1.0
    load = flows / paths
    if load >= 1:
        return _table_balance(load, paths)
    size = min(paths, max(_ECMP))
    few = load * size
    if few <= 1:
        return load
    low, high = floor(few), min(floor(few) + 1, size)
    below, above = (_few_balance(flows, size) for flows in (low, high))
    between = below + (few - low) * (above - below)
    return min(between, _table_balance(1.0, paths))


def _few_balance(flows: int, paths: int) -> float:
    """``flows/(paths·E[largest load])`` of whole flows, at most one a path."""
    return flows / (paths * _mean_largest_load(flows, paths))


@lru_cache(maxsize=4096)
def _mean_largest_load(flows: int, paths: int) -> float:
    """Mean largest load of ``F`` flows thrown on ``n`` paths, for ``F ≤ n``.

    ``E = Σ_{b≥0} (1 − P_b)``, where ``P_b = F!/n^F · [x^F] (Σ_{j≤b} x^j/j!)^n`` is the chance that
    no path gets more than ``b``.  The power follows by Euler's recurrence, here for
    ``q_k = k!/n^k · [x^k]``: ``q_k = Σ_{j=1..b} (n·j − k + j)·C(k, j)/(k·n^j)·q_{k−j}``.  Its terms
    are positive for ``k ≤ n``.

    Source: Flajolet and Sedgewick, Analytic Combinatorics, II.3; Knuth, TAOCP 2, 4.7.
    """
    total = 1.0
    for bound in range(1, flows):
        chance = [1.0]
        for k in range(1, flows + 1):
            terms = (
                (paths * j - k + j) * comb(k, j) / (k * paths**j) * chance[k - j]
                for j in range(1, min(bound, k) + 1)
            )
            chance.append(sum(terms))
        total += 1 - min(1.0, chance[flows])
        if 1 - chance[flows] < NEGLIGIBLE:
            break
    return total


def _table_balance(load: float, paths: int) -> float:
    sizes = tuple(_ECMP)
    high = min(bisect_right(sizes, paths), len(sizes) - 1)
    low = max(high - 1, 0)
    weight = min(1.0, log2(paths / sizes[low]) / log2(sizes[high] / sizes[low]))
    below, above = _row_balance(load, sizes[low]), _row_balance(load, sizes[high])
    return below + weight * (above - below)


def _row_balance(load: float, size: int) -> float:
    row = _ECMP[size]
    high = min(bisect_right(_LOADS, load), len(_LOADS) - 1)
    weight = min(1.0, log2(load / _LOADS[high - 1]) / log2(_LOADS[high] / _LOADS[high - 1]))
    return row[high - 1] + weight * (row[high] - row[high - 1])
