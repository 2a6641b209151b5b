"""What the parsers give to the fit, and how they refuse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from planner.instance.errors import InputError
from planner.instance.measured import MeasuredCollective, Tier


class Sample(NamedTuple):
    """One measured time."""

    size_bytes: int
    """Size of the collective as nccl-tests counts it: the whole array."""
    seconds: float


@dataclass(frozen=True)
class CollectiveRun:
    """One sweep of a collective over sizes.

    Attributes
    ----------
    ranks
        GPUs that took part.
    ranks_per_host
        How many of them share a host.
    tool
        Tool and version, as the log states them.
    """

    collective: MeasuredCollective
    tier: Tier
    ranks: int
    ranks_per_host: int
    samples: tuple[Sample, ...]
    tool: str
    file: str


@dataclass(frozen=True)
class StreamRun:
    """One transfer between two hosts.

    Attributes
    ----------
    protocol
        Protocol of the planner that the transfer ran, or None where it shows no rate of one.
    bytes_per_s
        What arrived.
    reverse
        True where it went from the server to the client.
    loss
        Share of packets lost or sent again; None where the log does not say.
    """

    protocol: str | None
    bytes_per_s: float
    reverse: bool
    streams: int
    round_trip_s: float | None
    loss: float | None
    jitter_s: float | None
    tool: str
    file: str


@dataclass(frozen=True)
class MessageRun:
    """Times of single messages, or bandwidths of many in flight, between two NICs."""

    what: str
    """``latency`` or ``bandwidth``."""
    samples: tuple[Sample, ...]
    tool: str
    file: str


def refused(file: str, line: int | None, reason: str) -> InputError:
    """The error of a faulty file: file, line, reason."""
    return InputError(file if line is None else f"{file}:{line}", reason)
