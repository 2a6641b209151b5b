"""What a schedule and option of a case cost at least, whatever is decided about the rest."""

from __future__ import annotations

from typing import NamedTuple

from planner.cost.coefficients import Units

Times = tuple[float, ...]
"""One number per unit."""


class StageSync(NamedTuple):
    """Least time of a stage before its first and after its last op, µs.

    With the units ``n`` of the stage, the first and last op of length ``F`` and ``L``,

        start ≥ Σ n gather + gather_us − hides (F − layer),   start ≥ gather_tail,
        end ≥ Σ n (reduce + optimizer) + reduce_us − hides (L − layer),
        end ≥ reduce_tail + Σ n optimizer;

    ``gather_first`` and ``reduce_first`` are added to the tails at stage 0.
    """

    gather: Times
    gather_us: float
    gather_tail: float
    gather_first: float
    reduce: Times
    reduce_us: float
    reduce_tail: float
    reduce_first: float
    optimizer: Times
    hides: bool


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
    sync: StageSync


class PairCosts(NamedTuple):
    """Least costs of a pair, and what every plan of it has at least.

    ``hosts`` is the fewest sites that host a stage, ``crossings`` the fewest crossings of a plan;
    ``crossing_delay_us`` the least delay of a transfer between two sites, None where every replica
    runs at one site.
    """

    times: SplitCosts
    hosts: int
    crossings: int
    crossing_delay_us: int | None
