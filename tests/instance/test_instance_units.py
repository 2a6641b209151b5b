"""Quantities with units."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from planner.instance.units import (
    Bytes,
    BytesOrZero,
    BytesPerSecond,
    FlopPerSecond,
    Gbps,
    Kilometres,
    Seconds,
)


def read(kind: Any, value: object) -> float:
    result: float = TypeAdapter(kind).validate_python(value)
    return result


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (Gbps, 400, 400.0),
        (Gbps, "400 Gb/s", 400.0),
        (Gbps, "400Gbps", 400.0),
        (Gbps, "0.4 Tbit/s", 400.0),
        (Gbps, "50 GB/s", 400.0),
        (Gbps, "1 GiB/s", 8.589934592),
        (Gbps, "1e3 Mb/s", 1.0),
        (BytesPerSecond, "450 GB/s", 450e9),
        (BytesPerSecond, "400 Gb/s", 50e9),
        (BytesPerSecond, "3.35 TB/s", 3.35e12),
        (Bytes, "80 GiB", 80 * 2**30),
        (Bytes, "80 GB", 80 * 10**9),
        (Bytes, " 64 KB ", 64_000),
        (Bytes, "64 KiB", 65_536),
        (Bytes, 12.0, 12),
        (BytesOrZero, 0, 0),
        (Kilometres, "3 km", 3.0),
        (Kilometres, "250 m", 0.25),
        (Kilometres, 0, 0.0),
        (Seconds, "30 us", 3e-5),
        (Seconds, "30 µs", 3e-5),
        (Seconds, "10.2 ms", 0.0102),
        (Seconds, "500 ns", 5e-7),
        (FlopPerSecond, "989 TFLOP/s", 9.89e14),
        (FlopPerSecond, "2.25 PFLOPS", 2.25e15),
    ],
)
def test_reads(kind: Any, value: object, expected: float) -> None:
    assert read(kind, value) == expected


@pytest.mark.parametrize(
    ("kind", "value", "fragment"),
    [
        (Gbps, "400 km", "the unit 'km'"),
        (Gbps, "400 gb/s", "write Gb/s or GB/s, capitals matter"),
        (Gbps, "400", "without a unit"),
        (Gbps, "fast", "got text 'fast'"),
        (Gbps, "-400 Gb/s", "above 0"),
        (Gbps, True, "got true"),
        (Gbps, None, "got null"),
        (Gbps, [400], "got a list"),
        (Gbps, float("nan"), "got nan"),
        (Gbps, float("inf"), "got inf"),
        (Gbps, 0, "above 0"),
        (Gbps, 1e-300, "at least 1e-06 Gb/s"),
        (Gbps, "1e-300 Gb/s", "at least 1e-06 Gb/s"),
        (BytesPerSecond, 1e-300, "at least 125 bytes/s"),
        (FlopPerSecond, 1e-300, "at least 1 FLOP/s"),
        (Gbps, 10**400, "more than 30 digits"),
        (Gbps, "1e999 Gb/s", "at most 1e+09 Gb/s"),
        (Gbps, "1" * 5000 + " Gb/s", "expected a data rate"),
        (Bytes, "80 Gb", "expected a size in bytes"),
        (Bytes, 0.2, "at least 1"),
        (Bytes, 2.0**60, "at most"),
        (Seconds, "3 km", "expected a time in s"),
        (Seconds, "1 h", "the unit 'h'"),
        (Seconds, 61, "at most 60 s"),
        (Kilometres, "1e6 km", "at most 100000 km"),
        (FlopPerSecond, "989 TOPS", "expected a compute rate in FLOP/s"),
    ],
)
def test_refuses(kind: Any, value: object, fragment: str) -> None:
    with pytest.raises(ValidationError) as caught:
        read(kind, value)
    assert fragment in str(caught.value)
