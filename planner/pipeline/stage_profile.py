"""Iteration time of a pipeline whose op times have been measured.

A stage profile is what a study of pipelines over slow links publishes: seconds of forward and
backward of one stage, latency and serialization of a slow boundary, and which boundaries are slow.
All other transfers take no time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from planner.pipeline.ops import Op, OpKind
from planner.pipeline.schedules import SCHEDULES, Template, chunk_devices, device_orders
from planner.pipeline.simulator import Cell, Hop, Route, Scenario, Send, simulate_scenario

TICKS_PER_S = 10**9
"""Times are rounded to whole ns."""


@dataclass(frozen=True)
class StageProfile:
    """Measured times of one stage, which all stages share.

    Attributes
    ----------
    stages, microbatches
        Size of the pipeline.
    forward_s
        Forward of one microbatch through all layers of a stage.
    backward_s
        Backward; only the input gradient where ``weight_s`` is given.
    weight_s
        Weight gradient, where it was measured by itself.
    latency_s, serialization_s
        One-way propagation of a slow boundary, and how long one transfer occupies it.
    slow_boundaries
        Numbers ``i`` of the boundaries between stages ``i`` and ``i + 1`` that are slow.
    blocking_sends
        Whether a stage waits until what it sends has arrived.

    Raises
    ------
    ValueError
        If a number is negative, not finite, or a boundary does not exist.
    """

    stages: int
    microbatches: int
    forward_s: float
    backward_s: float
    weight_s: float | None = None
    latency_s: float = 0.0
    serialization_s: float = 0.0
    slow_boundaries: Sequence[int] = ()
    blocking_sends: bool = True

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name in ("forward_s", "backward_s", "weight_s", "latency_s", "serialization_s"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"{name} must be a number of seconds from 0 on, not {value}")
        if self.stages < 1 or self.microbatches < 1:
            raise ValueError(
                f"stages and microbatches must be at least 1, not {self.stages} and "
                f"{self.microbatches}"
            )
        for boundary in self.slow_boundaries:
            if not 0 <= boundary < self.stages - 1:
                raise ValueError(
                    f"slow boundary {boundary} is not one of the {self.stages - 1} boundaries"
                )


def stage_profile_time_s(
    profile: StageProfile,
    schedule: str,
    *,
    virtual_stages: int | None = None,
    run_length: int | None = None,
    extra_warmup: Sequence[int] | None = None,
) -> float:
    """Simulate one iteration of a measured pipeline.

    Stock Megatron pipelines post sends and receives in pairs and wait for both: with blocking sends
    the simulation meets the 1F1B and ZB-H1 rows of CrossPipe (arXiv 2507.00217, table 5) within
    2.3 %.  Schedulers with an engine of their own for transfers send asynchronously.

    Parameters
    ----------
    profile
        Op times and links.
    schedule
        A key of :data:`~planner.pipeline.schedules.SCHEDULES`.  One that splits the backward needs
        ``weight_s``; one that does not runs ``backward_s + weight_s`` at once.
    virtual_stages
        Chunks of a stage, each with an equal part of its times; the least that the schedule allows
        if not given.
    run_length
        Consecutive microbatches of a chunk; the number of stages if not given, for the schedules
        that have one.
    extra_warmup
        Microbatches added to the warm-up of every stage.

    Returns
    -------
    float
        Seconds from the start of the first op to the end of the last one.

    Raises
    ------
    ValueError
        If the schedule is unknown or does not run with these numbers.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"unknown schedule {schedule!r}; known: {', '.join(SCHEDULES)}")
    rules = SCHEDULES[schedule]
    if rules.split_backward and profile.weight_s is None:
        raise ValueError(f"{schedule} splits the backward: the profile needs weight_s")
    v = rules.min_chunks if virtual_stages is None else virtual_stages
    if run_length is None and rules.has_run_length:
        run_length = profile.stages
    extra = (0,) * profile.stages if extra_warmup is None else tuple(extra_warmup)
    template = Template(schedule, profile.stages, v, profile.microbatches, run_length, extra)
    return _simulated(profile, template, device_orders(template))


def _simulated(profile: StageProfile, template: Template, orders: Sequence[Sequence[Op]]) -> float:
    stages, v = profile.stages, template.v
    devices = chunk_devices(template.schedule, stages, v)
    ticks = _op_ticks(profile, split=template.rules.split_backward, chunks=v)
    cells = []
    for s in range(stages):
        sends: dict[tuple[OpKind, int], Send] = {}
        own = [k for k, device in enumerate(devices) if device == s]
        for k in own:
            ways: tuple[tuple[OpKind, int], ...] = (("F", k + 1), ("B", k - 1))
            for kind, target in ways:
                if 0 <= target < len(devices) and devices[target] != s:
                    sends[kind, k] = Send(devices[target], _route(profile, s, devices[target]))
        times = {(kind, k): t for kind, t in ticks.items() for k in own}
        cells.append(Cell(s, times, sends))
    scenario = Scenario(orders, cells, 2 * stages, blocking=profile.blocking_sends)
    return simulate_scenario(scenario).end / TICKS_PER_S


def _op_ticks(profile: StageProfile, *, split: bool, chunks: int) -> dict[OpKind, int]:
    weight = profile.weight_s or 0.0
    backward = profile.backward_s if split else profile.backward_s + weight
    times: dict[OpKind, float] = {"F": profile.forward_s, "B": backward}
    if split:
        times["W"] = weight
    return {kind: round(time * TICKS_PER_S / chunks) for kind, time in times.items()}


def _route(profile: StageProfile, source: int, target: int) -> Route:
    """The links between two stages: on the way of the chunks round, all slow boundaries between.

    Link ``2 i`` leads down over boundary ``i``, link ``2 i + 1`` up.
    """
    step = 1 if target > source else -1
    passed = range(source, target) if step > 0 else range(source - 1, target - 1, -1)
    service = round(profile.serialization_s * TICKS_PER_S)
    latency = round(profile.latency_s * TICKS_PER_S)
    return tuple(
        Hop(2 * boundary + (step < 0), service, latency)
        for boundary in passed
        if boundary in profile.slow_boundaries
    )
