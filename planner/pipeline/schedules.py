"""Pipeline schedules: what each one allows, and the op order of a template on every device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import Literal

from planner.pipeline import loop_orders, v_orders
from planner.pipeline.ops import Op, OpKind

__all__ = [
    "SCHEDULES",
    "ChunkMap",
    "Op",
    "OpKind",
    "Schedule",
    "Template",
    "chunk_devices",
    "device_orders",
    "legal_run_lengths",
]

ChunkMap = Literal["loop", "v"]


@dataclass(frozen=True)
class Schedule:
    """What a schedule is, apart from its op order.

    Attributes
    ----------
    chunk_map
        ``loop``: chunk k on device ``k mod pp``; ``v``: down the devices and up again.
    split_backward
        Whether the weight gradient is an op of its own.
    min_chunks, max_chunks
        Least and greatest number ``v`` of chunks a device (``None``: no greatest).
    has_run_length
        Whether templates choose how many consecutive microbatches a chunk takes.
    has_extra_warmup
        Whether templates may add forwards to the warm-up.
    """

    name: str
    chunk_map: ChunkMap
    split_backward: bool
    min_chunks: int
    max_chunks: int | None
    has_run_length: bool
    has_extra_warmup: bool

    def allows_chunks(self, v: int) -> bool:
        """Whether ``v`` chunks a device are possible."""
        return v >= self.min_chunks and (self.max_chunks is None or v <= self.max_chunks)


SCHEDULES: Mapping[str, Schedule] = MappingProxyType(
    {
        schedule.name: schedule
        for schedule in (
            Schedule("gpipe", "loop", False, 1, 1, False, False),
            Schedule("1f1b", "loop", False, 1, 1, False, True),
            Schedule("interleaved", "loop", False, 2, None, True, False),
            Schedule("zb_h1", "loop", True, 1, 1, False, True),
            Schedule("zb_h2", "loop", True, 1, 1, False, False),
            Schedule("zbv", "v", True, 2, 2, False, False),
            Schedule("dualpipe_v", "v", True, 2, 2, False, False),
            Schedule("dora", "loop", True, 2, None, True, False),
        )
    }
)


def legal_run_lengths(pp: int, m: int) -> tuple[int, ...]:
    """Return the divisors of ``m`` that are at least ``pp``, ascending.

    A shorter run makes stage 0 wait for the last stage at every change of chunk and can deadlock;
    a run that does not divide ``m`` leaves a ragged group.
    """
    return tuple(run for run in range(pp, m + 1) if m % run == 0)


@dataclass(frozen=True)
class Template:
    """Everything that fixes the op orders.

    Attributes
    ----------
    schedule
        A key of :data:`SCHEDULES`.
    pp, v, m
        Devices, chunks a device, microbatches.
    run_length
        Consecutive microbatches of one chunk; ``None`` for schedules without one.
    extra_warmup
        Per device, forwards added to the warm-up; not increasing along the devices.

    Raises
    ------
    ValueError
        If the schedule does not allow the combination.
    """

    schedule: str
    pp: int
    v: int
    m: int
    run_length: int | None
    extra_warmup: tuple[int, ...]

    def __post_init__(self) -> None:
        """Check the combination."""
        if self.schedule not in SCHEDULES:
            raise ValueError(f"unknown schedule {self.schedule!r}; known: {', '.join(SCHEDULES)}")
        if self.pp < 1 or self.m < 1:
            raise ValueError(f"pp and m must be at least 1, not {self.pp} and {self.m}")
        rules = self.rules
        if not rules.allows_chunks(self.v):
            raise ValueError(f"{self.schedule} does not allow v = {self.v}")
        if rules.has_run_length:
            legal = legal_run_lengths(self.pp, self.m)
            if self.run_length not in legal:
                raise ValueError(
                    f"{self.schedule} with pp = {self.pp} and m = {self.m} needs a run length "
                    f"out of {legal}, not {self.run_length}"
                )
        elif self.run_length is not None:
            raise ValueError(f"{self.schedule} has no run length")
        self._check_extra_warmup()

    def _check_extra_warmup(self) -> None:
        extra = self.extra_warmup
        if len(extra) != self.pp:
            raise ValueError(f"extra_warmup has length {len(extra)}, not pp = {self.pp}")
        if any(extra) and not self.rules.has_extra_warmup:
            raise ValueError(f"{self.schedule} has no extra warm-up")
        if min(extra) < 0 or any(later > earlier for earlier, later in pairwise(extra)):
            raise ValueError(f"extra_warmup {extra} is negative or increases along the devices")

    @property
    def rules(self) -> Schedule:
        """The description of the schedule."""
        return SCHEDULES[self.schedule]

    @property
    def chunks(self) -> int:
        """Number of chunks of the whole pipeline."""
        return self.pp * self.v


def chunk_devices(schedule: str, pp: int, v: int) -> tuple[int, ...]:
    """Return the device of every chunk, in visiting order.

    Raises
    ------
    ValueError
        If the schedule is unknown or does not allow ``v``.
    """
    rules = SCHEDULES.get(schedule)
    if rules is None:
        raise ValueError(f"unknown schedule {schedule!r}; known: {', '.join(SCHEDULES)}")
    if not rules.allows_chunks(v):
        raise ValueError(f"{schedule} does not allow v = {v}")
    if rules.chunk_map == "loop":
        return tuple(range(pp)) * v
    return tuple(range(pp)) + tuple(reversed(range(pp)))


@lru_cache(maxsize=16)
def device_orders(template: Template) -> tuple[tuple[Op, ...], ...]:
    """Return the ops of every device in the order in which it runs them."""
    return tuple(_device_order(template, device) for device in range(template.pp))


def _device_order(template: Template, device: int) -> tuple[Op, ...]:
    pp, v, m = template.pp, template.v, template.m
    run, extra = template.run_length or m, template.extra_warmup[device]
    match template.schedule:
        case "gpipe":
            order = loop_orders.gpipe(device, m)
        case "1f1b":
            order = loop_orders.one_f_one_b(device, pp, m, extra)
        case "interleaved":
            order = loop_orders.interleaved(device, pp, v, m, run)
        case "zb_h1":
            order = loop_orders.zb_h1(device, pp, m, extra)
        case "zb_h2":
            order = loop_orders.zb_h2(device, pp, m)
        case "zbv":
            order = v_orders.zbv(device, pp, m)
        case "dualpipe_v":
            order = v_orders.dualpipe_v(device, pp, m)
        case _:
            order = loop_orders.dora(device, pp, v, m, run)
    return order
