"""Whether the boxes of a certificate cover every degrees case of the space exactly once.

The ranges are those of ``docs/plan_space.md``, written down here a second time: nothing of the
search is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from math import gcd
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.legality import Violation
from planner.problem import Problem
from planner.verification.document import Box, Entry

SHAPE_AXES = ("tp", "cp", "ep", "etp", "micro_batch_size")
GRID_AXES = (*SHAPE_AXES, "pp", "virtual_stages", "dp")
USUAL_PIPELINES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
TOKENS_PER_RANK = 4096
NONE, WHOLE, PART = 0, 1, 2


def _doublings(limit: int) -> tuple[int, ...]:
    values = [1]
    while values[-1] * 2 <= limit:
        values.append(values[-1] * 2)
    return tuple(values)


@lru_cache(maxsize=4096)
def _divisors(number: int) -> tuple[int, ...]:
    return tuple(d for d in range(1, number + 1) if gcd(d, number) == d)


class Space:
    """The degrees cases of a problem: the values of every degree that the search allows."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._allowed = problem.search.restrictions()
        model, training = problem.model, problem.training
        layers = model.num_layers
        self.values: dict[str, tuple[int, ...]] = {
            "tp": _doublings(max(c.gpu.scale_up_domain for c in problem.classes)),
            "cp": _doublings(max(1, training.sequence_length // TOKENS_PER_RANK)),
            "ep": tuple(
                e for e in _doublings(max(1, model.num_experts)) if model.num_experts % e == 0
            ),
            "etp": (1,),
            "micro_batch_size": (1, 2, 4, 8),
            "pp": tuple(
                p for p in range(1, min(64, layers) + 1) if p in USUAL_PIPELINES or layers % p == 0
            ),
            "virtual_stages": tuple(range(1, 9)),
        }
        self.values = {name: self._keep(name, values) for name, values in self.values.items()}
        sizes = self.values["micro_batch_size"]
        self.values["micro_batch_size"] = tuple(size for size in sizes if self.dp(size))
        found = {dp for size in self.values["micro_batch_size"] for dp in self.dp(size)}
        self.values["dp"] = tuple(sorted(found))

    def _keep(self, name: str, values: Sequence[int]) -> tuple[int, ...]:
        allowed: Sequence[Any] | None = self._allowed.get(name)
        return tuple(v for v in values if allowed is None or v in allowed)

    def dp(self, micro_batch_size: int) -> tuple[int, ...]:
        """Data-parallel degrees that give whole microbatches."""
        batch = self.problem.training.global_batch_size
        if batch % micro_batch_size:
            return ()
        counts = self._allowed.get("num_microbatches")
        return tuple(
            dp
            for dp in self._keep("dp", _divisors(batch // micro_batch_size))
            if (counts is None or batch // micro_batch_size // dp in counts) and self.shards(dp)
        )

    def shards(self, dp: int) -> tuple[int, ...]:
        """Shard degrees of a data-parallel degree."""
        replicates = self._allowed.get("dp_replicate")
        return tuple(
            shard
            for shard in self._keep("dp_shard", _divisors(dp))
            if replicates is None or dp // shard in replicates
        )

    @property
    def size(self) -> int:
        """Number of degrees cases."""
        outer = 1
        for name in ("tp", "cp", "ep", "etp", "pp", "virtual_stages"):
            outer *= len(self.values[name])
        return outer * sum(
            len(self.shards(dp)) for size in self.values["micro_batch_size"] for dp in self.dp(size)
        )

    def cases(self, box: Box) -> int:
        """Number of degrees cases of a box of the space."""
        outer = 1
        for name in (*SHAPE_AXES, "pp", "virtual_stages"):
            outer *= len(getattr(box, name))
        return outer * sum(
            len(self.shards(dp)) if box.dp_shard is None else len(box.dp_shard) for dp in box.dp
        )

    def outside(self, box: Box) -> str | None:
        """What of a box is not in the space, or stands in it twice."""
        for name in GRID_AXES:
            values = getattr(box, name)
            wrong = [v for v in values if v not in self.values[name]]
            if wrong:
                return f"{name} {wrong[0]} is not in the space"
            if len(set(values)) < len(values):
                return f"{name} has a value twice"
        for size, dp in product(box.micro_batch_size, box.dp):
            if dp not in self.dp(size):
                return f"dp {dp} is not in the space of micro_batch_size {size}"
        if box.dp_shard is not None:
            if len(set(box.dp_shard)) < len(box.dp_shard):
                return "dp_shard has a value twice"
            for dp, shard in product(box.dp, box.dp_shard):
                if shard not in self.shards(dp):
                    return f"dp_shard {shard} is not in the space of dp {dp}"
        return None


class Cover:
    """Which cases of a space have a verdict."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self._place = {name: {v: i for i, v in enumerate(space.values[name])} for name in GRID_AXES}
        shape = [len(space.values[name]) for name in GRID_AXES]
        self._state: npt.NDArray[np.int8] = np.zeros(shape, dtype=np.int8)
        self._shards: dict[tuple[int, ...], set[int]] = {}

    def add(self, box: Box) -> bool:
        """Add a box of the space; False where it has a case that was there before."""
        places = [[self._place[name][v] for v in getattr(box, name)] for name in GRID_AXES]
        if box.dp_shard is None:
            index = np.ix_(*places)
            free = not self._state[index].any()
            self._state[index] = WHOLE
            return free
        free = True
        for cell in product(*places):
            found = self._shards.setdefault(cell, set())
            free = free and self._state[cell] != WHOLE and not found & set(box.dp_shard)
            self._state[cell] = PART
            found.update(box.dp_shard)
        return free

    @property
    def missing(self) -> int:
        """Cases without a verdict."""
        space, total = self.space, 0
        dps = space.values["dp"]
        for i, size in enumerate(space.values["micro_batch_size"]):
            known = set(space.dp(size))
            for j, dp in enumerate(dps):
                if dp in known:
                    empty = int((self._state[:, :, :, :, i, :, :, j] == NONE).sum())
                    total += empty * len(space.shards(dp))
        return total + sum(
            len(space.shards(dps[cell[-1]])) - len(found) for cell, found in self._shards.items()
        )


def partition_violations(
    space: Space, entries: Sequence[Entry], cases_total: int
) -> Iterator[Violation]:
    """Every way in which the boxes are no partition of the space."""
    cover = Cover(space)
    for number, entry in enumerate(entries):
        where = f"certificate.cases[{number}]"
        outside = space.outside(entry.box)
        if outside is not None:
            yield Violation("partition.values", f"{where}: {outside}")
            continue
        if entry.cases != space.cases(entry.box):
            yield Violation(
                "partition.cases",
                f"{where}: the box has {space.cases(entry.box):,} cases, {entry.cases:,} claimed",
            )
        if not cover.add(entry.box):
            yield Violation("partition.overlap", f"{where}: some cases have a verdict before")
    if cover.missing:
        yield Violation("partition.missing", f"{cover.missing:,} cases have no verdict")
    if cases_total != space.size:
        yield Violation(
            "cases_total", f"the space has {space.size:,} cases, {cases_total:,} claimed"
        )
