"""Whether stages can take all layers in a time: whole layers, in order, on unequal GPUs.

Stage ``s`` waits for the layers before it, runs its own ``m`` times, and holds no more than its
memory does.  ``docs/bounds.md`` has the proof.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

SLACK = 1e-6
"""Added where floats are rounded down to whole layers, so that none is lost."""


class StageClass(NamedTuple):
    """What a layer costs a stage at least.

    ``layer_us`` is its time per microbatch, ``first_us`` that of the embedding, ``last_us`` that of
    the head; ``most`` is the number of layers that the memory of each stage holds.
    """

    layer_us: int
    first_us: int
    last_us: int
    most: tuple[int, ...]


class Row(NamedTuple):
    """``rest_us + wait_us·(layers before) + repeats[s]·(own time) <= T`` for every stage ``s``."""

    rest_us: int
    wait_us: int
    repeats: tuple[float, ...]


class Pipeline(NamedTuple):
    """Stages of a case; at most ``fast`` of them are of the first class, the others of the second.

    Every stage has at least ``least`` of the layers; ``head`` is the stage with the head.  Where
    stages are ``ordered`` all layers of earlier stages come before one, else only one of each.
    """

    layers: int
    least: int
    ordered: bool
    fast: int
    head: int
    classes: tuple[StageClass, StageClass]
    rows: tuple[Row, ...]


def within(pipeline: Pipeline, time_us: int) -> bool:
    """Whether relaxed stages take all layers in a time; if not, no plan does.

    More layers before a stage leave it fewer, but never by more than they are, so of two ways to
    use the same number of fast stages the one with more layers so far is not worse; where it leaves
    the stage too few, the earlier stages take fewer.
    """
    most = [0] + [-1] * pipeline.fast
    for s in range(len(pipeline.classes[0].most)):
        fast, slow = (_Stage(pipeline, each, s, time_us) for each in pipeline.classes)
        found = [slow.most_after(before) for before in most]
        for used, before in enumerate(most[:-1]):
            found[used + 1] = max(found[used + 1], fast.most_after(before))
        most = found
    return max(most) >= pipeline.layers


class _Stage:
    """How many layers a stage takes in a time, after those before it."""

    def __init__(self, pipeline: Pipeline, each: StageClass, s: int, time_us: int) -> None:
        ends = each.first_us * (s == 0) + each.last_us * (s == pipeline.head)
        self.least = pipeline.least
        self.ordered = pipeline.ordered
        self.memory = each.most[s]
        self.rows = [
            (
                time_us - row.rest_us - row.repeats[s] * ends + SLACK,
                row.wait_us,
                row.repeats[s] * each.layer_us,
            )
            for row in pipeline.rows
        ]
        if not self.ordered:
            self.rows = [(left - wait * s, 0, own) for left, wait, own in self.rows]

    def most_after(self, before: int) -> int:
        """Most layers of the stage and those before it, where these are at most so many.

        -1 if there is no way.
        """
        if before < 0 or self.memory < self.least:
            return -1
        for fewer in range(before, -1, -1):
            room = self._room(fewer)
            if room >= self.least:
                return fewer + room
            if not self.ordered:
                break
        return -1

    def _room(self, before: int) -> int:
        """Most layers after so many others; below 0 where there is no time for the ends."""
        room = self.memory
        for time_us, wait, own in self.rows:
            left = time_us - wait * before
            if left < 0:
                return -1
            if own > 0:
                room = min(room, int(left / own + SLACK))
        return room


def least_time(within_us: Callable[[int], bool], low: int, high: int) -> int:
    """A time that no plan is below, ``high + 1`` at most, a part in 4,096 less than the largest.

    Parameters
    ----------
    within_us
        Whether something may be done in a time, µs; once true it stays so.
    low
        A bound that is known, µs.
    high
        Times above this need not be told apart, µs.
    """
    if high < low or within_us(low):
        return low
    if not within_us(high):
        return high + 1
    while high - low > max(1, low >> 12):
        middle = (low + high) // 2
        if within_us(middle):
            high = middle
        else:
            low = middle
    return low + 1
