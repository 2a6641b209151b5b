"""How many microbatches are alive per chunk, from the op order alone."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from planner.pipeline.ops import Op
from planner.pipeline.schedules import Template, chunk_devices, device_orders


class LiveVector(NamedTuple):
    """Microbatches alive at one moment, per chunk of the device in visiting order.

    ``full`` have all their activations (from F on); ``held`` are between a split B and its W and
    keep what the weight gradient needs, which is never more than all activations.
    """

    full: tuple[int, ...]
    held: tuple[int, ...]


@lru_cache(maxsize=4096)
def live_counts(template: Template) -> tuple[tuple[LiveVector, ...], ...]:
    """Return for every device the live vectors that can need the most memory.

    F adds one full microbatch of its chunk; a backward that is not split removes it; a split B
    turns it into a held one, which W removes.  One vector covers another when in every chunk
    neither its full nor its full and held microbatches together are fewer: then it needs at least
    as much memory for every size of the activations.  Covered vectors are left out, and so are
    those midway between the peaks before and after them, since memory is linear in the counts.

    Returns
    -------
    tuple
        Per device, its vectors in descending order.
    """
    devices = chunk_devices(template.schedule, template.pp, template.v)
    split = template.rules.split_backward
    return tuple(
        _maximal(_peaks(order, [k for k, host in enumerate(devices) if host == device], split))
        for device, order in enumerate(device_orders(template))
    )


def _peaks(order: Iterable[Op], chunks: list[int], split: bool) -> list[tuple[int, ...]]:
    """Return the states after the last F of every series of Fs: full counts, then held counts."""
    place = {chunk: i for i, chunk in enumerate(chunks)}
    state = [0] * (2 * len(chunks))
    peaks: list[tuple[int, ...]] = []
    rising = False
    for kind, chunk, _ in order:
        if rising and kind != "F":
            peaks.append(tuple(state))
        rising = kind == "F"
        full, held = place[chunk], place[chunk] + len(chunks)
        if kind == "F":
            state[full] += 1
        elif kind == "W":
            state[held] -= 1
        else:
            state[full] -= 1
            state[held] += split
    return peaks


def _without_midpoints(peaks: list[tuple[int, ...]]) -> set[tuple[int, ...]]:
    """Return the peaks that are not the mean of the one before and the one after."""
    table = np.array(peaks)
    keep = np.ones(len(peaks), dtype=np.bool_)
    keep[1:-1] = (2 * table[1:-1] != table[:-2] + table[2:]).any(axis=1)
    return {peak for peak, kept in zip(peaks, keep, strict=True) if kept}


def _maximal(peaks: list[tuple[int, ...]]) -> tuple[LiveVector, ...]:
    """Return the peaks that no other one covers."""
    candidates = sorted(_without_midpoints(peaks), reverse=True)
    table = np.array(candidates)
    half = table.shape[1] // 2
    table[:, half:] += table[:, :half]
    covered = [
        bool(((table >= row).all(axis=1) & (table > row).any(axis=1)).any()) for row in table
    ]
    return tuple(
        LiveVector(peak[:half], peak[half:])
        for peak, hidden in zip(candidates, covered, strict=True)
        if not hidden
    )
