"""What unequal GPUs cost at least: stages that find no place on the fast ones are slower.

A stage with all its replicas on the fastest classes uses ``dp`` of their cells, so at most
``cells // dp`` stages do; each of the others has a replica on a slower class, and its ops take at
least as long as there.  ``docs/bounds.md`` has the proofs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

Units = tuple[int, ...]

ROUNDING = 1 - 1e-12
"""Floats are lowered by this before they are rounded down."""


class ClassTimes(NamedTuple):
    """Cells of a GPU class and its times per part of the work, unit and microbatch, µs."""

    cells: int
    parts: tuple[Units, ...]
    limit_mib: int = 0
    """The largest memory limit of its sites."""

    @property
    def units(self) -> Units:
        """All parts together."""
        return _sum(self.parts)


class Mixture(NamedTuple):
    """At least ``slow`` of all stages take ``ratio`` times as long as on the fastest GPUs.

    ``fast_parts`` and ``slow_parts`` are the least times of the two kinds of stages, per part of
    the work and unit, µs; ``ratio`` holds for each of them.  The limits are the largest memory of
    a stage of either kind.
    """

    fast: int
    slow: int
    ratio: float
    fast_parts: tuple[Units, ...]
    slow_parts: tuple[Units, ...]
    fast_limit_mib: int = 0
    slow_limit_mib: int = 0

    @property
    def speed(self) -> float:
        """Stages, a slow one counted by its speed."""
        return self.fast + self.slow / self.ratio

    def least_share(self, part: int) -> float:
        """Least share of one part in the work of a unit."""
        return min(
            times[part][u] / whole
            for times in (self.fast_parts, self.slow_parts)
            for u, whole in enumerate(map(sum, zip(*times, strict=True)))
            if whole
        )


def mixtures(classes: Sequence[ClassTimes], counts: Units, pp: int, dp: int) -> tuple[Mixture, ...]:
    """The mixtures that hold for all placements of ``pp`` stages of ``dp`` replicas.

    Parameters
    ----------
    classes
        GPU classes that have room for a cell.
    counts
        Units of the whole model; they decide which class counts as faster.
    pp, dp
        Stages, and replicas of each.
    """
    found: list[Mixture] = []
    if len(classes) < 2:
        return ()
    least = _least(classes)
    ranked = sorted(classes, key=lambda c: sum(n * t for n, t in zip(counts, c.units, strict=True)))
    cells = 0
    for place, faster in enumerate(ranked[:-1], start=1):
        cells += faster.cells
        fast = min(pp, cells // dp)
        if fast == pp:
            break
        slow_parts = _least(ranked[place:])
        ratio = min(
            (
                a / b
                for slow, quick in zip(slow_parts, least, strict=True)
                for a, b in zip(slow, quick, strict=True)
                if b
            ),
            default=1.0,
        )
        limits = [max(c.limit_mib for c in some) for some in (ranked[:place], ranked[place:])]
        found.append(Mixture(fast, pp - fast, ratio, least, slow_parts, *limits))
    return tuple(found)


def slowest_stage(mixture: Mixture, counts: Units, kinds: int) -> int:
    """Least time of the slowest stage per microbatch, µs.

    The larger of two bounds: work spread by the speed of the stages, and whole layers.

    Parameters
    ----------
    mixture
        What the stages take.
    counts
        Units of the whole model: ``kinds`` kinds of layers, embedding, head.
    """
    fast_units = _sum(mixture.fast_parts)
    slow_units = _sum(mixture.slow_parts)
    work = sum(n * t for n, t in zip(counts, fast_units, strict=True))
    best = int(work / mixture.speed * ROUNDING)
    if mixture.fast == 0:
        slow_work = sum(n * t for n, t in zip(counts, slow_units, strict=True))
        best = max(best, -(-slow_work // mixture.slow))
    head = kinds + 1
    for least in set(fast_units[:kinds]):
        some = [u for u in range(kinds) if fast_units[u] >= least]
        best = max(
            best,
            _whole_layers(
                sum(counts[u] for u in some),
                mixture.fast,
                mixture.slow,
                least,
                min(slow_units[u] for u in some),
                fast_units[head],
                slow_units[head],
            ),
        )
    return best


@lru_cache(maxsize=65536)
def _whole_layers(
    layers: int, fast: int, slow: int, fast_us: int, slow_us: int, fast_head: int, slow_head: int
) -> int:
    """Least largest stage that lets all stages together take so many layers, beside one head."""

    def room(limit: int) -> int:
        def loss(layer: int, head: int) -> int:
            return limit // layer - max(0, limit - head) // layer

        losses = [loss(fast_us, fast_head)] * (fast > 0) + [loss(slow_us, slow_head)] * (slow > 0)
        return fast * (limit // fast_us) + slow * (limit // slow_us) - min(losses)

    if not fast_us or not slow_us:
        return 0
    low, high = 0, layers * slow_us + slow_head + fast_head
    while low < high:
        middle = (low + high) // 2
        if room(middle) >= layers:
            high = middle
        else:
            low = middle + 1
    return low


def equalised_ramp(mixture: Mixture, work: int, share: float, m: int) -> int:
    """Least time of ``m`` microbatches where a stage waits for ``share`` of those before it, µs."""
    left = 1 - share / m
    stages = mixture.fast + mixture.slow
    inverse = 1 / mixture.ratio
    waited = inverse * (1 - left**stages) + (1 - inverse) * (1 - left**mixture.fast)
    return int(work * share / waited * ROUNDING)


def one_f_one_b_turns(mixture: Mixture, work: int, coefficients: Sequence[float]) -> int:
    """Least time of 1F1B where stage ``s`` takes all stages' work and ``coefficients[s]`` its own.

    Parameters
    ----------
    work
        Work of a microbatch on the fastest GPUs, µs.
    coefficients
        Positive, one per stage.
    """
    inverse = sorted((1 / c for c in coefficients), reverse=True)
    all_stages, fast = sum(inverse), sum(inverse[: mixture.fast])
    slow_share = 1 / mixture.ratio

    def done(whole: float) -> float:
        """Most work where all stages together take this share of the time."""
        return slow_share * whole + (1 - slow_share) * min(whole, (1 - whole) * fast)

    most = max(done(fast / (1 + fast)), done(all_stages / (1 + all_stages)))
    return int(work / most * ROUNDING)


def weighted_wait(mixture: Mixture) -> float:
    """Stages before each stage, summed over the stages by their speed; slow ones come last."""
    fast, stages = mixture.fast, mixture.fast + mixture.slow
    first = fast * (fast - 1) // 2
    return first + (stages * (stages - 1) // 2 - first) / mixture.ratio


def _least(classes: Sequence[ClassTimes]) -> tuple[Units, ...]:
    """Part by part and unit by unit the smallest value."""
    return tuple(
        tuple(min(column) for column in zip(*rows, strict=True))
        for rows in zip(*(c.parts for c in classes), strict=True)
    )


def _sum(parts: tuple[Units, ...]) -> Units:
    return tuple(map(sum, zip(*parts, strict=True)))
