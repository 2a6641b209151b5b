"""An upper limit on Z where no plan is known."""

from __future__ import annotations

from itertools import product

from planner.choices import CaseChoices
from planner.cost.coefficients import Units


def longest_us(choices: CaseChoices) -> int:
    """A Z that no plan of a case exceeds: everything one after the other, on the slowest it can be.

    ``m`` times all ops on the slowest class, a transfer of all replicas per op over the longest
    route, each link after the other, and the synchronisation of the whole model by every stage,
    each of its parts on the class that is slowest at it.
    """
    co, problem = choices.co, choices.problem
    degrees = co.degrees
    m, pp = co.num_microbatches, degrees.pp
    classes = range(len(problem.classes))
    counts = [
        problem.model.layer_kinds.count(unit) if unit in problem.model.layer_kinds else 1
        for unit in co.units
    ]

    def total(units: Units) -> int:
        return sum(n * t for n, t in zip(counts, units, strict=True))

    ops = [co.ops(g, o) for g in classes for o in choices.options]

    def slowest(name: str) -> int:
        return total(
            tuple(max(column) for column in zip(*(getattr(c, name) for c in ops), strict=True))
        )

    work = slowest("forward") + max(
        slowest("backward"), slowest("input_gradient") + slowest("weight_gradient")
    )
    delay = max(co.inside(g)[0] for g in classes)
    gradient = parameter = 0
    hosts = range(1, len(problem.sites) + 1)
    exchanges = [
        co.exchange(o, s, n) for o in choices.options for s in choices.syncs for n in hosts
    ]
    for (d, e), route in problem.routes.items():
        used = [(k, p) for k in route for p in problem.protocols[k]]
        latency = sum(
            max((co.latency(k, p) for p in problem.protocols[k]), default=0) for k in route
        )
        load = sum(
            max((co.crossing(k, p).us(degrees.dp) for p in problem.protocols[k]), default=0)
            for k in route
        )
        delay = max(delay, latency + co.cell(d, e) + load)
        pairs = len(problem.routes)
        for c in exchanges:
            rates = [co.mib(k, p) for k, p in used]
            one_way = [r.us(pairs * total(c.gradient)) for r in rates]
            gradient = max(gradient, c.gradient_latencies * latency + max(one_way, default=0))
            one_way = [r.us(pairs * total(c.parameter)) for r in rates]
            parameter = max(parameter, c.parameter_latencies * latency + max(one_way, default=0))
    inside = 0
    for o, s, n in product(choices.options, choices.syncs, hosts):
        sync = [co.sync(g, o, s, n) for g in classes]
        inside = max(
            inside,
            max(c.reduce_latency + c.reduce_tail + total(c.reduce) for c in sync)
            + max(c.gather_latency + c.gather_tail + total(c.gather) for c in sync)
            + max(total(c.reduce_nic) for c in sync)
            + max(total(c.gather_nic) for c in sync)
            + max(total(co.optimizer(g, o)) for g in classes),
        )
    chunks = pp * degrees.virtual_stages
    return co.fixed_us + m * work + 2 * m * chunks * delay + inside + gradient + parameter
