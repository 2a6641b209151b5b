"""Boxes of degrees cases: how the default space is cut up, and how many cases a box holds.

Level by level: shapes (tp, cp, ep, etp, microbatch size), pipeline degrees, ranges of dp, single
cases.  A box that a rule or a bound closes is never opened; the boxes partition the space.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from typing import Any, NamedTuple

from planner import space
from planner.plan import Degrees
from planner.problem import Problem
from planner.search.bounds import INFEASIBLE, Bounds, Shape


class Box(NamedTuple):
    """Degrees cases of one shape: all combinations of pp, v and dp with all shard degrees of dp.

    ``dp_shard`` None stands for every divisor of dp that the search allows.
    """

    shape: Shape
    pp: tuple[int, ...]
    virtual_stages: tuple[int, ...]
    dp: tuple[int, ...]
    dp_shard: tuple[int, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """Lists of values by plan field; ``dp_shard`` null = every divisor of dp."""
        return {
            "tp": [self.shape.tp],
            "cp": [self.shape.cp],
            "ep": [self.shape.ep],
            "etp": [self.shape.etp],
            "pp": list(self.pp),
            "virtual_stages": list(self.virtual_stages),
            "micro_batch_size": [self.shape.micro_batch_size],
            "dp": list(self.dp),
            "dp_shard": None if self.dp_shard is None else list(self.dp_shard),
        }

    @property
    def cell(self) -> bool:
        """Whether only the shard degree is left open."""
        return len(self.pp) == len(self.virtual_stages) == len(self.dp) == 1

    @property
    def single(self) -> bool:
        """Whether the box is one case."""
        return (
            len(self.pp) == len(self.virtual_stages) == len(self.dp) == 1
            and self.dp_shard is not None
            and len(self.dp_shard) == 1
        )

    @property
    def case(self) -> Degrees:
        """The case of a single box."""
        assert self.single
        assert self.dp_shard is not None
        return self.shape.case(self.pp[0], self.virtual_stages[0], self.dp[0], self.dp_shard[0])

    @property
    def first(self) -> tuple[int, Degrees]:
        """Least GPUs, and least degrees, of any case of the box: never later in tie order."""
        dp = min(self.dp)
        shard = 1 if self.dp_shard is None else min(self.dp_shard)
        least = self.shape.case(min(self.pp), min(self.virtual_stages), dp, shard)
        return least.gpus, least


class Closed(NamedTuple):
    """A box with its verdict: ``infeasible`` or ``bounded`` by a rule, with a value in µs."""

    box: Box
    verdict: str
    rule: str
    value_us: int | None


@dataclass(frozen=True, eq=False)
class Tree:
    """The degrees cases of a problem as a tree of boxes."""

    problem: Problem
    bounds: Bounds

    @cached_property
    def _allowed(self) -> dict[str, Sequence[Any]]:
        return self.problem.search.restrictions()

    def _keep(self, name: str, values: Sequence[int]) -> tuple[int, ...]:
        allowed = self._allowed.get(name)
        return tuple(v for v in values if allowed is None or v in allowed)

    @cached_property
    def pp(self) -> tuple[int, ...]:
        """Pipeline degrees of the search."""
        return self._keep("pp", space.pp_range(self.problem))

    @cached_property
    def virtual_stages(self) -> tuple[int, ...]:
        """Chunk counts of the search."""
        return self._keep("virtual_stages", space.VIRTUAL_STAGES)

    @cache  # noqa: B019 - lives as long as the search
    def dp(self, micro_batch_size: int) -> tuple[int, ...]:
        """Data-parallel degrees of the search, ascending."""
        batch = self.problem.training.global_batch_size
        values = self._keep("dp", space.dp_range(self.problem, micro_batch_size))
        counts = self._allowed.get("num_microbatches")
        return tuple(
            dp
            for dp in values
            if (counts is None or batch // (dp * micro_batch_size) in counts) and self.dp_shard(dp)
        )

    @cache  # noqa: B019 - lives as long as the search
    def dp_shard(self, dp: int) -> tuple[int, ...]:
        """Shard degrees of the search for a data-parallel degree."""
        replicates = self._allowed.get("dp_replicate")
        return tuple(
            shard
            for shard in self._keep("dp_shard", space.divisors(dp))
            if replicates is None or dp // shard in replicates
        )

    def cases(self, box: Box) -> int:
        """Number of cases of a box."""
        shards = sum(
            len(self.dp_shard(dp)) if box.dp_shard is None else len(box.dp_shard) for dp in box.dp
        )
        return len(box.pp) * len(box.virtual_stages) * shards

    def shapes(self) -> Iterator[Box]:
        """The whole space, one box per shape."""
        problem = self.problem
        for tp, cp, ep, etp, size in product(
            self._keep("tp", space.tp_range(problem)),
            self._keep("cp", space.cp_range(problem)),
            self._keep("ep", space.ep_range(problem)),
            self._keep("etp", (1,)),
            self._keep("micro_batch_size", space.MICRO_BATCH_SIZES),
        ):
            dp = self.dp(size)
            if dp and self.pp and self.virtual_stages:
                yield Box(Shape(tp, cp, ep, etp, size), self.pp, self.virtual_stages, dp)

    def examine(self, box: Box) -> Closed | int:
        """A rule that closes a shape for good, or its lower bound in µs."""
        shape = box.shape
        if not space.tp_legal(self.problem, shape.tp):
            return Closed(box, "infeasible", "tp.divides", None)
        if not space.cp_legal(self.problem, shape.cp):
            return Closed(box, "infeasible", "cp.divides", None)
        bound = self.bounds.shape(shape)
        if bound >= INFEASIBLE:
            return Closed(box, "infeasible", "placement.capacity", None)
        return bound

    def children(self, box: Box) -> Iterator[tuple[Box, Closed | int]]:
        """The next finer boxes of a box, each with the rule that closes it or its bound."""
        if len(box.pp) > 1 or not self._fits(box):
            yield from self._by_pipeline(box)
        elif not box.cell:
            yield from self._by_cell(box)
        else:
            yield from self._by_case(box)

    def _fits(self, box: Box) -> bool:
        """Whether every case of the box has enough layers and cells."""
        pp = max(box.pp)
        cells = self.bounds.shape_work(box.shape).cells
        enough = pp * max(box.virtual_stages) <= self.problem.model.num_layers
        right = all(self._right_gpus(box.shape, p, dp) for p in box.pp for dp in box.dp)
        return enough and right and pp * max(box.dp) <= cells

    def _right_gpus(self, shape: Shape, pp: int, dp: int) -> bool:
        allowed = self._allowed.get("gpus_used")
        return allowed is None or shape.tp * shape.cp * pp * dp in allowed

    def _by_pipeline(self, box: Box) -> Iterator[tuple[Box, Closed | int]]:
        """One pipeline degree each, cut into what fits and what does not."""
        layers = self.problem.model.num_layers
        cells = self.bounds.shape_work(box.shape).cells
        for pp in box.pp:
            fitting = tuple(v for v in box.virtual_stages if pp * v <= layers)
            surplus = tuple(v for v in box.virtual_stages if pp * v > layers)
            if surplus:
                part = box._replace(pp=(pp,), virtual_stages=surplus)
                yield part, Closed(part, "infeasible", "virtual_stages.layers", None)
            if not fitting:
                continue
            right = tuple(dp for dp in box.dp if self._right_gpus(box.shape, pp, dp))
            wrong = tuple(dp for dp in box.dp if dp not in right)
            if wrong:
                part = box._replace(pp=(pp,), virtual_stages=fitting, dp=wrong)
                yield part, Closed(part, "infeasible", "search.gpus_used", None)
            small = tuple(dp for dp in right if dp * pp <= cells)
            large = tuple(dp for dp in right if dp * pp > cells)
            if large:
                part = box._replace(pp=(pp,), virtual_stages=fitting, dp=large)
                yield part, Closed(part, "infeasible", "placement.capacity", None)
            if small:
                part = box._replace(pp=(pp,), virtual_stages=fitting, dp=small)
                yield part, self.bounds.pipeline_degree(box.shape, pp, small)

    def _by_cell(self, box: Box) -> Iterator[tuple[Box, Closed | int]]:
        """One dp and one number of chunks each."""
        for dp, v in product(box.dp, box.virtual_stages):
            part = box._replace(dp=(dp,), virtual_stages=(v,))
            bound = self.bounds.cell(box.shape, box.pp[0], v, dp)
            if bound >= INFEASIBLE:
                yield part, Closed(part, "infeasible", "virtual_stages.schedule", None)
            else:
                yield part, bound

    def legal_shards(self, box: Box) -> tuple[int, ...]:
        """Shard degrees of a box with one dp that make whole expert groups."""
        experts = self.problem.model.num_experts
        return tuple(
            shard
            for shard in self.dp_shard(box.dp[0])
            if space.expert_groups_legal(
                box.shape.case(box.pp[0], box.virtual_stages[0], box.dp[0], shard), experts
            )
        )

    def _by_case(self, box: Box) -> Iterator[tuple[Box, Closed | int]]:
        """Single cases."""
        legal = set(self.legal_shards(box))
        bound = self.bounds.pipeline_degree(box.shape, box.pp[0], box.dp)
        for shard in self.dp_shard(box.dp[0]):
            part = box._replace(dp_shard=(shard,))
            verdict = Closed(part, "infeasible", "ep.groups", None)
            yield part, bound if shard in legal else verdict
