"""Where a path over shared links is one: which order the links have, and who crosses which."""

from __future__ import annotations

from formulations.algebra import BooleanLiteral, Expression, Linear, Variable, linear_sum
from formulations.cuts import PathCut
from formulations.plain.variables import PlainVariables
from planner.layout import boundary_edges
from planner.pipeline.event_graph import Duration
from planner.pipeline.link_orders import ORDERS, Way


def path_literals(v: PlainVariables, cut: PathCut) -> list[BooleanLiteral]:
    """``when`` literals of a path: order of the links, hops at the boundaries, ways.

    Nothing for a path without shared links, which every plan of its template has.
    """
    if not cut.ways:
        return []
    found: list[BooleanLiteral] = [_crosses_as(v, cut.hops)]
    if len(cut.orders) < len(ORDERS):
        orders = _orders(v)
        found.append(v.any_of([orders[number] for number in cut.orders]))
    return found + [_used(v, way) for way in cut.ways]


def duration_terms(v: PlainVariables, key: Duration) -> Linear | int:
    """A duration of a path: a variable, or what follows from choices alone."""
    if key.kind == "port":
        _, _, source, target = key.index  # type: ignore[misc]
        return v.co.cell(source, target)
    if key.kind == "latency":
        return v.latency(key.index[2])  # type: ignore[index]
    return v.duration[key]


def _orders(v: PlainVariables) -> list[Variable]:
    """Literal of each order; the plan uses one.

    .. math:: \\sum_q o_q = 1
    """
    if not v.orders:
        v.orders = [v.model.boolean(f"order_{number}") for number in range(len(ORDERS))]
        v.model.exactly_one(v.orders, family="orders")
    return v.orders


def _hops(v: PlainVariables, boundary: int) -> list[Variable]:
    """Literals "a replica passes more than ``h`` links at a boundary, one way", ``h`` from 0.

    .. math:: g_{b,h} \\ge c_{b,d,e}, \\qquad g_{b,h} \\le \\sum c_{b,d,e} \\quad
        \\text{over pairs with more than } h \\text{ links}
    """
    if boundary not in v.hops:
        lengths = {
            literal: max(len(v.problem.routes[d, e]), len(v.problem.routes[e, d]))
            for (d, e), literal in v.moves[boundary].items()
            if d != e
        }
        row = []
        for h in range(max(lengths.values(), default=0)):
            longer = [literal for literal, length in lengths.items() if length > h]
            literal = v.model.boolean(f"hops_{boundary}_{h}")
            for move in longer:
                v.model.implication(move, literal, family="orders")
            v.model.add(linear_sum(longer) >= literal, family="orders")
            row.append(literal)
        v.hops[boundary] = row
    return v.hops[boundary]


def _crosses_as(v: PlainVariables, hops: tuple[int, ...]) -> Variable:
    """A literal that is true where replicas pass so many links at the boundaries.

    It may be true elsewhere, which no optimum needs.
    """
    if hops not in v.patterns:
        differences: list[Expression] = []
        for b, count in enumerate(hops):
            row = _hops(v, b)
            if count:
                differences.append(1 - row[count - 1])
            if count < len(row):
                differences.append(row[count] + 0)
        literal = v.model.boolean(f"pattern_{len(v.patterns)}")
        v.model.add(literal + linear_sum([0, *differences]) >= 1, family="orders")
        v.patterns[hops] = literal
    return v.patterns[hops]


def _used(v: PlainVariables, way: Way) -> Variable:
    """A literal that is true where a device edge uses a way."""
    source, target = way.sites
    found = []
    for b, moves in enumerate(v.moves):
        there, back = boundary_edges(b, v.pp)
        if way.edge == there and way.sites in moves:
            found.append(moves[way.sites])
        if way.edge == back and (target, source) in moves:
            found.append(moves[target, source])
    if len(found) == 1:
        return found[0]
    if way not in v.ways:
        v.ways[way] = v.model.boolean(f"way_{len(v.ways)}")
        for move in found:
            v.model.implication(move, v.ways[way], family="orders")
    return v.ways[way]
