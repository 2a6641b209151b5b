"""What the parsers give to the fit, and how they refuse."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import inf, isclose, isfinite
from typing import NamedTuple

from planner.instance.errors import InputError, describe
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


LARGEST_BYTES = 2**50
"""Larger messages are faults of a log."""

LONGEST_S = 3600.0
"""Longer times are faults of a log, as are times of less than :data:`SHORTEST_S`."""

SHORTEST_S = 1e-9

_WHOLE = re.compile(r"\d{1,18}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d{1,30}(\.\d{0,30})?|\.\d{1,30})([eE][+-]?\d{1,3})?", re.ASCII)


def whole(text: str, file: str, line: int, what: str) -> int:
    """The whole number that a column holds.

    Raises
    ------
    InputError
        If the text is no whole number, or one of more than 18 digits.
    """
    if _WHOLE.fullmatch(text) is None:
        raise refused(file, line, f"{what} {describe(text)} is no whole number that can be right")
    return int(text)


def decimal(text: str, file: str, line: int) -> float:
    """The finite number that a column holds.

    Raises
    ------
    InputError
        If the text is no number, or is infinite.
    """
    value = float(text) if _NUMBER.fullmatch(text) else inf
    if not isfinite(value):
        raise refused(file, line, f"{describe(text)} is no number")
    return value


def sample(size_bytes: int, seconds: float, file: str, line: int | None) -> Sample:
    """A measured time.

    Raises
    ------
    InputError
        If the size or the time is one that no machine shows.
    """
    if not 1 <= size_bytes <= LARGEST_BYTES:
        raise refused(file, line, f"a message of {size_bytes:.6g} bytes")
    if not SHORTEST_S <= seconds <= LONGEST_S:
        raise refused(file, line, f"a time of {seconds:.6g} s for {size_bytes:,} bytes")
    return Sample(size_bytes, seconds)


def check_agreement(
    given: float, computed: float, what: tuple[str, str], file: str, line: int | None
) -> None:
    """Refuse a row that tells one figure in two ways that differ by more than their rounding.

    Swapped columns and wrong units show here.

    Parameters
    ----------
    what
        Names of the figure that is given and of the one from which the other was computed.

    Raises
    ------
    InputError
        If they differ by more than 3 %.
    """
    if not isclose(given, computed, rel_tol=0.03):
        raise refused(
            file,
            line,
            f"{what[0]} does not agree with {what[1]}, which makes it {computed:.4g}, not "
            f"{given:.4g}: swapped columns or another unit",
        )
