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
        found = [-1] * len(most)
        for used, before in enumerate(most):
            if before < 0:
                continue
            for slow, each in enumerate(pipeline.classes):
                now = used + 1 - slow
                if now < len(most):
                    found[now] = max(found[now], _most(pipeline, each, s, before, time_us))
        most = found
    return max(most) >= pipeline.layers


def _most(pipeline: Pipeline, each: StageClass, s: int, before: int, time_us: int) -> int:
    """Most layers of a stage and those before it, where these are at most so many; -1 if none."""
    if each.most[s] < pipeline.least:
        return -1
    for fewer in range(before, -1, -1):
        room = _room(pipeline, each, s, fewer, time_us)
        if room >= pipeline.least:
            return fewer + room
        if not pipeline.ordered:
            break
    return -1


def _room(pipeline: Pipeline, each: StageClass, s: int, before: int, time_us: int) -> int:
    """Most layers of a stage after so many others; below 0 where it has no time for its ends."""
    room = each.most[s]
    ends = each.first_us * (s == 0) + each.last_us * (s == pipeline.head)
    waits = before if pipeline.ordered else s
    for row in pipeline.rows:
        repeats = row.repeats[s]
        left = time_us - row.rest_us - row.wait_us * waits - repeats * ends + SLACK
        if left < 0:
            return -1
        if repeats * each.layer_us > 0:
            room = min(room, int(left / (repeats * each.layer_us) + SLACK))
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
