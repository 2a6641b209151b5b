"""The sweep file."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from planner.instance._base import Count, Flag, Frozen, number, problem
from planner.instance.errors import describe, nearest
from planner.instance.fixes import FIX_KEYS
from planner.instance.units import Bytes

LARGEST_AXIS = 100_000
DIGITS = 12
"""Significant digits of the values of a range; they hide the rounding of binary fractions."""
LOG_DIGITS = 6
"""The same for a logarithmic axis, whose values are no round numbers anyway."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,60}")


def _name(value: object) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise problem(f"expected a name of 1 to 60 letters, digits, _ and -, got {describe(value)}")
    return value


def _known_choices(value: Any) -> Any:
    """``fix`` with known keys."""
    if not isinstance(value, dict):
        raise problem(f"expected an object of plan choices, got {describe(value)}")
    for key in value:
        _known_choice(key, at=(str(key),))
    return value


def _known_choice(key: object, at: tuple[str | int, ...] = ()) -> None:
    if key not in FIX_KEYS:
        close = nearest(str(key), FIX_KEYS)
        listed = "" if close else f"; known choices: {', '.join(FIX_KEYS)}"
        raise problem(f"no choice of a plan has this name{listed}", at=at, suggestion=close)


def _list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Name = Annotated[str, BeforeValidator(_name)]
Fixes = Annotated[Mapping[str, Any], BeforeValidator(_known_choices)]
Settings = Mapping[str, Any]
Finite = Annotated[float, number(-1e18, 1e18)]
Positive = Annotated[float, number(0, 1e18, above=True)]
Steps = Annotated[Count, Field(le=LARGEST_AXIS)]


def rounded(value: float, digits: int) -> int | float:
    """A number with so many significant digits; a whole one as an int."""
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() and abs(short) < 2**53 else short


class Range(Frozen):
    """Equal steps from ``start`` to ``stop``, which is included."""

    start: Finite
    stop: Finite
    step: Finite | None = None
    num: Steps | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.step is None) == (self.num is None):
            raise problem("give exactly one of step, num")
        if self.step is not None and (self.step == 0 or (self.stop - self.start) / self.step < 0):
            raise problem(f"steps of {self.step:g} never lead to stop", at=("step",))
        if self.step is not None and (self.stop - self.start) / self.step > LARGEST_AXIS:
            raise problem(f"gives more than {LARGEST_AXIS} values", at=("step",))
        return self

    def values(self) -> tuple[int | float, ...]:
        """The values in order."""
        if self.step is not None:
            steps = math.floor((self.stop - self.start) / self.step * (1 + 1e-12) + 1e-12)
            found = [self.start + i * self.step for i in range(steps + 1)]
        else:
            num = self.num or 1
            width = (self.stop - self.start) / max(1, num - 1)
            found = [self.start + i * width for i in range(num)]
        return tuple(rounded(value, DIGITS) for value in found)


class Log(Frozen):
    """``num`` values in equal ratios from ``start`` to ``stop``, both included."""

    start: Positive
    stop: Positive
    num: Steps
    integer: Flag = False
    """Round to whole numbers; equal ones count once."""

    def values(self) -> tuple[int | float, ...]:
        """The values in order."""
        low, high = math.log(self.start), math.log(self.stop)
        width = (high - low) / max(1, self.num - 1)
        inner = [math.exp(low + i * width) for i in range(1, self.num - 1)]
        ends = [self.start, self.stop][: self.num]
        found = [ends[0], *inner, *ends[1:]]
        if self.integer:
            return tuple(dict.fromkeys(max(1, round(value)) for value in found))
        return tuple(rounded(value, LOG_DIGITS) for value in found)


class Axis(Frozen):
    """What varies: fields or plan choices with their values, or several axes in step."""

    name: Name | None = None
    label: str | None = None
    """For pictures; null = the name."""
    unit: str = ""
    set: Annotated[tuple[str, ...], Field(min_length=1), BeforeValidator(_list)] | None = None
    fix: Annotated[tuple[str, ...], Field(min_length=1), BeforeValidator(_list)] | None = None
    values: Annotated[tuple[Any, ...], Field(min_length=1, max_length=LARGEST_AXIS)] | None = None
    range: Range | None = None
    log: Log | None = None
    labels: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """One per value."""
    zip: Annotated[tuple[Axis, ...], Field(min_length=2, max_length=20)] | None = None
    """Axes that move together."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.zip is not None:
            self._check_zip(self.zip)
            return self
        if self.name is None:
            raise problem("missing", at=("name",))
        if self.set is None and self.fix is None:
            raise problem("give set (paths) or fix (plan choices): what the axis changes")
        for i, key in enumerate(self.fix or ()):
            _known_choice(key, at=("fix", i))
        given = [key for key in ("values", "range", "log") if getattr(self, key) is not None]
        if len(given) != 1:
            found = "none" if not given else " and ".join(given)
            raise problem(f"give exactly one of values, range, log; got {found}")
        values = self.points
        if self.labels is not None:
            if len(self.labels) != len(values):
                raise problem(f"{len(self.labels)} labels for {len(values)} values", at=("labels",))
        else:
            for i, value in enumerate(values):
                if isinstance(value, dict | list) or value is None:
                    raise problem(f"{describe(value)} needs labels", at=("values", i))
        shown = self.shown
        for i, value in enumerate(shown):
            if shown.index(value) != i:
                raise problem(f"{describe(value)} is given twice", at=("values", i))
        return self

    def _check_zip(self, axes: tuple[Axis, ...]) -> None:
        for key in ("name", "set", "fix", "values", "range", "log", "labels"):
            if getattr(self, key) is not None:
                raise problem("belongs into the axes of the zip", at=(key,))
        for i, axis in enumerate(axes):
            if axis.zip is not None:
                raise problem("a zip holds plain axes", at=("zip", i))
            if len(axis.points) != len(axes[0].points):
                raise problem(
                    f"has {len(axis.points)} values, zip[0] has {len(axes[0].points)}",
                    at=("zip", i),
                )

    @property
    def points(self) -> tuple[Any, ...]:
        """The values of a plain axis."""
        for source in (self.range, self.log):
            if source is not None:
                return source.values()
        return self.values or ()

    @property
    def shown(self) -> tuple[Any, ...]:
        """What stands for the values in the table."""
        return self.points if self.labels is None else self.labels

    @property
    def parts(self) -> tuple[Axis, ...]:
        """The plain axes: those of the zip, or this one."""
        return (self,) if self.zip is None else self.zip


class Variant(Frozen):
    """A restriction of the plan, or a change of the instance, to compare with others."""

    set: Settings = Field(default_factory=dict)
    fix: Fixes = Field(default_factory=dict)


class Limits(Frozen):
    """What one point may take."""

    wall_time_s: Annotated[float, number(0, 1e7, above=True)] = 600.0
    grace_s: Annotated[float, number(0, 1e7)] = 30.0
    """Seconds that it may overrun its time limit before it is killed."""
    memory_bytes: Annotated[Bytes, Field(ge=2**28)] | None = None
    """Address space of each process of a point; at least 256 MiB."""


class SolveOptions(Frozen):
    """How each point is solved."""

    gap: Annotated[float, number(0, 1)] = 0.0
    backend: str = "auto"
    seed: Annotated[int, Field(ge=0, lt=2**31 - 1, strict=True)] = 0
    workers: Annotated[Count, Field(le=4096)] = 1
    """Search workers of one solve; with one, equal solves go equal ways."""


def _variants(variants: Mapping[str, Variant]) -> Mapping[str, Variant]:
    if not variants:
        raise problem("expected at least one variant")
    return variants


class Sweep(Frozen):
    """One job over ranges of its fields, for several restrictions of the plan."""

    schema_: str | None = Field(default=None, alias="$schema")
    name: str = "unnamed"
    description: str = ""
    instance: str | Mapping[str, Any]
    """A shipped name, a path relative to the sweep file, or the instance itself."""
    set: Settings = Field(default_factory=dict)
    fix: Fixes = Field(default_factory=dict)
    axes: Annotated[tuple[Axis, ...], Field(max_length=20)] = ()
    variants: Annotated[Mapping[Name, Variant], AfterValidator(_variants)] = Field(
        default_factory=lambda: {"free": Variant()}
    )
    limits: Limits = Limits()
    solve: SolveOptions = SolveOptions()
    reuse_plans: Flag = True
    """Start the search of a point with the plans of its neighbours."""

    @model_validator(mode="after")
    def _names(self) -> Self:
        seen: dict[str, int] = {}
        size = len(self.variants)
        for i, axis in enumerate(self.axes):
            size *= len(axis.parts[0].points)
            for part in axis.parts:
                assert part.name is not None
                if part.name in seen:
                    raise problem(
                        f"the name '{part.name}' is taken by axes[{seen[part.name]}]",
                        at=("axes", i, "name"),
                    )
                seen[part.name] = i
        if size > LARGEST_SWEEP:
            raise problem(f"{size:,} points are more than {LARGEST_SWEEP:,}", at=("axes",))
        return self

    @property
    def plain_axes(self) -> tuple[Axis, ...]:
        """All axes with a column of their own, in order."""
        return tuple(part for axis in self.axes for part in axis.parts)


LARGEST_SWEEP = 1_000_000
"""Points of one sweep."""
