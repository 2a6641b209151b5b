"""Rows that hold for every plan of a pair without a condition, so that a relaxation sees them.

The rows of the plain formulation hold where a literal says that a GPU class, a number of sites or a
way to synchronise is chosen; relaxed, a plan takes a little of each and pays for none.  Each row
here takes the least over those choices: weaker where a choice is made, valid for all.
"""

from __future__ import annotations

from math import floor

from formulations.algebra import Expression, linear_sum
from formulations.plain.timing import base_template, stage_units, weighted
from formulations.plain.variables import PlainVariables
from planner.check import first_chunks, last_ops
from planner.cost.least import PairCosts, SplitCosts
from planner.pipeline.event_graph import Duration
from planner.pipeline.ops import OpKind


def least_ops(v: PlainVariables, least: PairCosts) -> None:
    """An op takes at least what its units take on the fastest class.

    .. math:: F_k \\ge \\sum_u n_{k,u} \\min_g \\text{forward}_{g,u}

    and so for ``B`` and ``W``.
    """
    kinds: tuple[OpKind, ...] = ("F", "B", "W")
    for kind, units in zip(kinds, _op_times(least.times), strict=True):
        for k in range(v.num_chunks):
            op = v.duration.get(Duration(kind, k))
            if op is not None:
                v.model.add(op >= weighted(v.units[k], units), family="least_ops")


def least_transfers(v: PlainVariables, least: PairCosts) -> None:
    """No transfer is faster than the fastest one, inside a site or between two.

    .. math:: \\text{delay} \\ge \\min \\text{delay}, \\quad \\text{occ} \\ge \\min \\text{occ}
    """
    for key, variable in v.duration.items():
        if key.kind == "delay":
            v.model.add(variable >= least.times.delay, family="least_transfers")
        elif key.kind == "occupancy":
            v.model.add(variable >= least.times.occupancy, family="least_transfers")


def least_synchronisation(v: PlainVariables, least: PairCosts) -> None:
    """Before its first and after its last op a stage needs the tail, and all that no op hides.

    .. math::
        \\text{end}_s &\\ge \\text{tail} + \\sum_u n_{s,u} \\text{optimizer}_u \\\\
        \\text{end}_s + (\\text{last op} - \\text{layer}) &\\ge
            \\sum_u n_{s,u} (\\text{reduce}_u + \\text{optimizer}_u) + \\text{latency}

    and so for ``start`` with the gathered parameters and the first op; without overlap nothing is
    hidden.  Fractions of a µs are rounded down.
    """
    template = base_template(v, next(iter(v.schedule)))
    sync, width = least.times.sync, len(v.co.kinds)
    times = dict(zip(("F", "B", "W"), _op_times(least.times), strict=True))
    firsts, lasts = first_chunks(template), last_ops(template)
    for s in range(v.pp):
        counts = stage_units(v, v.devices(next(iter(v.schedule))), s)
        optimizer = weighted(counts, _whole(sync.optimizer))
        for kind, tail, first, units, latency, after, (op, chunk) in (
            (
                "start",
                sync.gather_tail,
                sync.gather_first,
                sync.gather,
                sync.gather_us,
                linear_sum([]),
                ("F", firsts[s]),
            ),
            (
                "end",
                sync.reduce_tail,
                sync.reduce_first,
                sync.reduce,
                sync.reduce_us,
                optimizer,
                lasts[s],
            ),
        ):
            time = v.duration[Duration(kind, s)]  # type: ignore[arg-type]
            unhidden = floor(tail + (first if s == 0 else 0))
            v.model.add(time >= after + unhidden, family="least_synchronisation")
            hidden: Expression = linear_sum([])
            if sync.hides:
                hidden = v.duration[Duration(op, chunk)] - min(times[op][:width])  # type: ignore[arg-type]
            v.model.add(
                time + hidden >= weighted(counts, _whole(units)) + after + floor(latency),
                family="least_synchronisation",
            )


def least_hosts(v: PlainVariables, least: PairCosts) -> None:
    """A stage has as many hosting sites as its replicas need.

    .. math:: \\sum_i i \\, N_{s,i} \\ge \\min \\text{hosts}
    """
    if least.hosts < 2:
        return
    for numbers in v.hosts:
        v.model.add(
            linear_sum(n * literal for n, literal in numbers.items()) >= least.hosts,
            family="least_hosts",
        )


def least_crossings(v: PlainVariables, least: PairCosts) -> None:
    """A job that no site can hold crosses somewhere.

    .. math:: \\text{crossings} \\ge \\min \\text{crossings}
    """
    if least.crossings and v.crossings is not None:
        v.model.add(v.crossings >= least.crossings, family="least_crossings")


def _op_times(times: SplitCosts) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    return times.forward, times.backward, times.weight


def _whole(units: tuple[float, ...]) -> tuple[int, ...]:
    return tuple(floor(value) for value in units)
