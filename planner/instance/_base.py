"""What all models of an instance share: frozen, no unknown keys, plain types checked strictly."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    model_validator,
)
from pydantic_core import PydanticCustomError

from planner.instance.errors import PROBLEM, describe, nearest

K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")


def problem(
    reason: str, *, at: tuple[str | int, ...] = (), suggestion: str | None = None
) -> PydanticCustomError:
    """A validation error with a finished ``reason``; ``at`` extends the path of the field."""
    return PydanticCustomError(
        PROBLEM, "{reason}", {"reason": reason, "at": at, "suggestion": suggestion}
    )


class FrozenDict(dict[K, V]):
    """A mapping that is never changed after validation, so that models holding it hash."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


class Frozen(BaseModel):
    """Base model: immutable, refuses unknown keys and names the nearest right one."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        if isinstance(data, cls):
            return data
        known = [field.alias or name for name, field in cls.model_fields.items()]
        if not isinstance(data, dict):
            raise problem(f"expected an object with {', '.join(known)}; got {describe(data)}")
        for key in data:
            if key not in known:
                close = nearest(key, known) if isinstance(key, str) else None
                listed = "" if close else f"; known keys: {', '.join(known)}"
                raise problem(f"unknown key{listed}", at=(str(key),), suggestion=close)
        return data


def whole(low: int, high: int) -> BeforeValidator:
    def check(value: object) -> int:
        if isinstance(value, float) and math.isfinite(value) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise problem(f"expected a whole number, got {describe(value)}")
        if not low <= value <= high:
            raise problem(f"expected a whole number from {low} to {high}, got {describe(value)}")
        return value

    return BeforeValidator(check)


def once_each(values: tuple[T, ...] | None) -> tuple[T, ...] | None:
    """A list in which nothing is named twice."""
    first: dict[T, int] = {}
    for i, value in enumerate(values or ()):
        if first.setdefault(value, i) != i:
            raise problem(f"'{value}' is given twice", at=(i,))
    return values


def number(low: float, high: float, *, above: bool = False, below: bool = False) -> BeforeValidator:
    """A finite number in [low, high]; ``above`` and ``below`` exclude that end."""

    def check(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise problem(f"expected a number, got {describe(value)}")
        too_low = value <= low if above else value < low
        too_high = value >= high if below else value > high
        if too_low or too_high or not math.isfinite(value):
            left, right = "above" if above else "from", "below" if below else "to"
            raise problem(
                f"expected a number {left} {low:g} {right} {high:g}, got {describe(value)}"
            )
        return float(value)

    return BeforeValidator(check)


_RATIO = re.compile(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*:\s*(\d{1,9}(?:\.\d{1,9})?)\s*")


def _ratio(value: object) -> object:
    match = _RATIO.fullmatch(value) if isinstance(value, str) else None
    if match:
        small, large = sorted(float(part) for part in match.groups())
        return large / small if small else 0.0
    return value


def _name(value: str) -> str:
    if not value.strip() or value != value.strip() or len(value) > 100 or not value.isprintable():
        raise problem("expected a name of 1 to 100 printable characters without outer spaces")
    return value


def _flag(value: object) -> object:
    if not isinstance(value, bool):
        raise problem(f"expected true or false, got {describe(value)}")
    return value


Count = Annotated[int, whole(1, 10**9), Field(ge=1, le=10**9)]
"""A whole number from 1 to 10^9."""
CountOrZero = Annotated[int, whole(0, 10**9), Field(ge=0, le=10**9)]
"""A whole number from 0 to 10^9."""
BatchCount = Annotated[int, whole(1, 10**6), Field(ge=1, le=10**6)]
"""A number of sequences per iteration, at most a million."""
GpuCount = Annotated[int, whole(1, 10**7), Field(ge=1, le=10**7)]
"""A number of GPUs, at most ten million."""
LayerCount = Annotated[int, whole(1, 10**4), Field(ge=1, le=10**4)]
"""A number of layers, at most ten thousand."""
Width = Annotated[int, whole(1, 10**8), Field(ge=1, le=10**8)]
"""A tensor dimension of at least 1."""
WidthOrZero = Annotated[int, whole(0, 10**8), Field(ge=0, le=10**8)]
"""A tensor dimension; 0 = the model has no such tensor."""
Flag = Annotated[StrictBool, BeforeValidator(_flag)]
"""true or false, nothing that merely looks like it."""
Name = Annotated[str, AfterValidator(_name)]
"""A printable name."""
Oversubscription = Annotated[
    float,
    number(1, 10**6),
    BeforeValidator(_ratio, json_schema_input_type=float | str),
]
"""How many times less capacity a tier has than the NICs below it; 4 or "1:4"."""
