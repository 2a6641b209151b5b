"""What a user measured in a site or on a link, in place of the figures that the planner assumes.

``planner import`` writes these objects; ``docs/network.md`` says what they change.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from planner.instance._base import Frozen, Name, number
from planner.instance.units import BytesPerSecond, Gbps, Seconds

Tier = Literal["scale_up", "network"]
MeasuredCollective = Literal["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "p2p"]

_Error = Annotated[float, number(0, 1e6)]


class CurvePiece(Frozen):
    """One straight piece of a curve."""

    step_s: Seconds
    """Latency of one step of the collective."""
    bytes_per_s: BytesPerSecond
    """Bytes that one GPU puts on the wire per second (nccl-tests calls this ``busbw``)."""


class MeasuredCurve(Frozen):
    """Time of a collective of ``n`` GPUs and ``S`` bytes on one tier of a site.

    ``launch_s + max (or min) over the pieces of ( steps(n) * step_s + wire(n, S) / bytes_per_s )``:
    piecewise linear in the size, convex with ``max``, concave with ``min``. ``steps`` and ``wire``
    are those of a ring: 2 (n - 1) and 2 (n - 1)/n * S for an all-reduce, half of it for the others,
    1 and S for ``p2p``. On the network ``n`` counts the scale-up domains and S is the shard of one
    GPU.
    """

    tier: Tier
    collective: MeasuredCollective
    launch_s: Seconds
    pieces: Annotated[tuple[CurvePiece, ...], Field(min_length=1, max_length=8)]
    combine: Literal["max", "min"] = "max"
    """``max`` where one resource after the other fills up; ``min`` where the library takes the
    fastest of several protocols."""
    mean_error: _Error | None = None
    """Mean relative error of the fit."""
    worst_error: _Error | None = None
    """Largest relative error of the fit."""
    source: str = ""
    """Tool, version, files and machine of the measurement."""


class MeasuredRate(Frozen):
    """What a protocol reaches on a link, in place of what the transport rules say."""

    protocol: Name
    bandwidth_gbps: Gbps
    """All flows together, from ``from`` to ``to``."""
    reverse_bandwidth_gbps: Gbps | None = None
    """From ``to`` to ``from`` if it differs."""
    source: str = ""
    """Tool, version, files and machines of the measurement."""
