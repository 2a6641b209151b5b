"""Quantities: a number in the unit of the field's name, or text with its own unit.

Units are case-sensitive where it matters: ``Gb`` is 10^9 bits, ``GB`` 10^9 bytes, ``GiB`` 2^30
bytes. Text is converted in decimal arithmetic, so "10.2 ms" is exactly the float 0.0102.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated

from pydantic import BeforeValidator

from planner.instance._base import problem
from planner.instance.errors import describe

if TYPE_CHECKING:
    from collections.abc import Mapping

_TEXT = re.compile(r"\s*([+-]?\d{1,30}(?:\.\d{0,30})?(?:[eE][+-]?\d{1,3})?)\s*(\S.{0,30}?)?\s*")
_DECIMAL = {"": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50}


def _sizes(unit: str, scale: Decimal) -> dict[str, Decimal]:
    """Every prefix of ``unit``; ``scale`` = value of one ``unit``."""
    sizes = {prefix + unit: scale * 10**power for prefix, power in _DECIMAL.items()}
    sizes["K" + unit] = sizes["k" + unit]
    sizes.update({prefix + unit: scale * 2**power for prefix, power in _BINARY.items()})
    return sizes


def _rates(bits_per_second: Decimal) -> dict[str, Decimal]:
    """Data-rate units, given the value of one bit/s."""
    bits = _sizes("b", bits_per_second)
    rates = {unit + "/s": value for unit, value in bits.items()}
    rates |= {unit + "ps": value for unit, value in bits.items()}
    rates |= {unit + "it/s": value for unit, value in bits.items()}
    rates |= {unit + "/s": value for unit, value in _sizes("B", bits_per_second * 8).items()}
    return rates


def _flop_rates() -> dict[str, Decimal]:
    rates: dict[str, Decimal] = {}
    for prefix, power in _DECIMAL.items():
        for name in ("FLOP/s", "FLOPS", "FLOPs", "FLOPs/s", "flop/s"):
            rates[prefix + name] = Decimal(10) ** power
    return rates


_TIMES = {
    "ps": Decimal("1e-12"),
    "ns": Decimal("1e-9"),
    "us": Decimal("1e-6"),
    "µs": Decimal("1e-6"),
    "μs": Decimal("1e-6"),
    "ms": Decimal("1e-3"),
    "s": Decimal(1),
}
_LENGTHS = {"m": Decimal("1e-3"), "km": Decimal(1)}


@dataclass(frozen=True, eq=False)
class _Kind:
    """One kind of quantity: what it is, its unit, and the range that makes sense."""

    what: str
    unit: str
    example: str
    units: Mapping[str, Decimal]
    high: float
    low: float = 0.0
    zero: bool = False
    whole: bool = False

    def __call__(self, value: object) -> float | int:
        expected = (
            f"expected {self.what} in {self.unit} (a number, or text such as '{self.example}')"
        )
        if isinstance(value, str):
            amount = self._from_text(value, expected)
        elif (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not -1e300 < value < 1e300
        ):
            raise problem(f"{expected}, got {describe(value)}")
        else:
            amount = float(value)
        if amount < 0 or (amount == 0 and not self.zero):
            raise problem(
                f"{expected}, {'not negative' if self.zero else 'above 0'}; got {describe(value)}"
            )
        if amount < self.low:
            raise problem(f"{expected}, at least {self.low:g} {self.unit}; got {describe(value)}")
        if not math.isfinite(amount) or amount > self.high:
            raise problem(f"{expected}, at most {self.high:g} {self.unit}; got {describe(value)}")
        if self.whole:
            if round(amount) < 1 and not self.zero:
                raise problem(f"{expected}, at least 1; got {describe(value)}")
            return round(amount)
        return amount

    def _from_text(self, text: str, expected: str) -> float:
        match = _TEXT.fullmatch(text) if len(text) <= 100 else None
        if match is None:
            raise problem(f"{expected}, got {describe(text)}")
        digits, unit = match.groups()
        if unit is None:
            raise problem(f"{expected}, got {describe(text)} without a unit")
        if unit not in self.units:
            alike = [known for known in self.units if known.casefold() == unit.casefold()]
            hint = f"; write {' or '.join(alike)}, capitals matter" if alike else ""
            raise problem(f"{expected}, got the unit {unit!r}{hint}")
        return float(Decimal(digits) * self.units[unit])


_RATE_HIGH, _RATE_LOW = 1e9, 1e-6

Gbps = Annotated[
    float,
    BeforeValidator(
        _Kind("a data rate", "Gb/s", "400 Gb/s", _rates(Decimal("1e-9")), _RATE_HIGH, _RATE_LOW),
        json_schema_input_type=float | str,
    ),
]
"""Data rate in 10^9 bit/s, at least 10^-6 (1 kb/s)."""
BytesPerSecond = Annotated[
    float,
    BeforeValidator(
        _Kind(
            "a data rate",
            "bytes/s",
            "450 GB/s",
            _rates(Decimal("0.125")),
            _RATE_HIGH * 1.25e8,
            _RATE_LOW * 1.25e8,
        ),
        json_schema_input_type=float | str,
    ),
]
"""Data rate in bytes/s, at least 125 (1 kb/s)."""
Bytes = Annotated[
    int,
    BeforeValidator(
        _Kind("a size", "bytes", "80 GiB", _sizes("B", Decimal(1)), 2.0**50, whole=True),
        json_schema_input_type=float | str,
    ),
]
"""Size in bytes, 1 to 2^50."""
BytesOrZero = Annotated[
    int,
    BeforeValidator(
        _Kind("a size", "bytes", "2 GiB", _sizes("B", Decimal(1)), 2.0**50, zero=True, whole=True),
        json_schema_input_type=float | str,
    ),
]
"""Size in bytes, 0 to 2^50."""
Kilometres = Annotated[
    float,
    BeforeValidator(
        _Kind("a distance", "km", "3 km", _LENGTHS, 1e5, zero=True),
        json_schema_input_type=float | str,
    ),
]
"""Length of fibre in km, 0 to 100,000."""
Seconds = Annotated[
    float,
    BeforeValidator(
        _Kind("a time", "s", "10.2 ms", _TIMES, 60.0, zero=True),
        json_schema_input_type=float | str,
    ),
]
"""Delay in seconds, 0 to 60."""
PositiveSeconds = Annotated[
    float,
    BeforeValidator(
        _Kind("a time", "s", "10.2 ms", _TIMES, 60.0),
        json_schema_input_type=float | str,
    ),
]
"""Time in seconds, above 0 to 60."""
FlopPerSecond = Annotated[
    float,
    BeforeValidator(
        _Kind("a compute rate", "FLOP/s", "989 TFLOP/s", _flop_rates(), 1e21, 1.0),
        json_schema_input_type=float | str,
    ),
]
"""Compute rate in FLOP/s (a multiply-add is 2 FLOP), at least 1."""
