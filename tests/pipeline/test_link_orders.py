"""Links in turns: against the event simulation, by hand, and what must hold for all durations."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planner.pipeline.event_graph import Duration, event_graph
from planner.pipeline.link_orders import ORDERS, LinkOrders, Sharing, Way, link_orders
from planner.pipeline.ops import OpKind
from planner.pipeline.schedules import Template, chunk_devices, device_orders
from planner.pipeline.simulator import Cell, Hop, Scenario, Send, simulate_scenario
from tests.pipeline.pipelines import Edge, templates

Route = tuple[int, ...]


def chain_route(source: int, target: int) -> Route:
    """Sites in a row: link ``2 i`` leads from site ``i`` to ``i + 1``, ``2 i + 1`` back."""
    step = 1 if source < target else -1
    sites = range(source, target + step, step)
    return tuple(2 * min(a, b) + (a > b) for a, b in pairwise(sites))


def hub_route(source: int, target: int) -> Route:
    """Sites around a hub: link ``2 i`` leads from site ``i`` to it, ``2 i + 1`` back."""
    return 2 * source, 2 * target + 1


class Drawn:
    """A template with its stages on sites, and all durations."""

    def __init__(self, template: Template, sites: list[int], route: object, data: st.DataObject):
        self.template, self.sites = template, sites
        self.devices = chunk_devices(template.schedule, template.pp, template.v)
        self.edges = event_graph(template).edges
        route_of = hub_route if route == "hub" else chain_route
        self.routes = {
            (i, j): route_of(sites[i], sites[j]) for i, j in self.edges if sites[i] != sites[j]
        }
        users: dict[int, set[Edge]] = {}
        for edge, links in self.routes.items():
            for link in links:
                users.setdefault(link, set()).add(edge)
        shared = {link for link, edges in users.items() if len(edges) > 1}
        ways = [
            Way(edge, (sites[edge[0]], sites[edge[1]]), links)
            for edge, links in self.routes.items()
            if shared & set(links)
        ]
        boundaries = template.pp if (template.pp - 1, 0) in self.edges else template.pp - 1
        hops = tuple(
            len(self.routes.get((b, (b + 1) % template.pp), ())) for b in range(boundaries)
        )
        self.sharing = Sharing(hops, tuple(sorted(ways)))
        self.values = self._values(data)

    def _values(self, data: st.DataObject) -> dict[Duration, int]:
        numbers = st.integers(0, 9)
        links = range(2 * max(self.sites) + 2)
        service = [data.draw(numbers) for _ in links]
        latency = [data.draw(st.integers(0, 30)) for _ in links]
        values = {}
        for key in event_graph(self.template).variables:
            values[key] = 0 if key.kind in ("start", "end") else data.draw(numbers)
        for edge in self.edges:
            route = self.routes.get(edge)
            if route is None:
                values.setdefault(Duration("occupancy", edge), values[Duration("delay", edge)])
                values[Duration("delay", edge)] += values[Duration("occupancy", edge)]
                continue
            port = data.draw(numbers)
            pair = (self.sites[edge[0]], self.sites[edge[1]])
            values[Duration("port", (*edge, *pair))] = port
            for link in route:
                values[Duration("service", (*edge, link))] = service[link]
                values[Duration("latency", (*edge, link))] = latency[link]
            most = max(port, *(service[link] for link in route))
            values[Duration("occupancy", edge)] = most
            values[Duration("delay", edge)] = most + sum(latency[link] for link in route)
        return values

    def route(self, edge: Edge) -> tuple[Hop, ...]:
        """The hops of a transfer; port numbers come behind the links."""
        ports = 2 * max(self.sites) + 2
        port = ports + self.edges.index(edge)
        value = self.values
        if edge not in self.routes:
            busy = value[Duration("occupancy", edge)]
            return (Hop(port, busy, value[Duration("delay", edge)] - busy),)
        pair = (self.sites[edge[0]], self.sites[edge[1]])
        return (
            Hop(port, value[Duration("port", (*edge, *pair))], 0),
            *(
                Hop(
                    link,
                    value[Duration("service", (*edge, link))],
                    value[Duration("latency", (*edge, link))],
                )
                for link in self.routes[edge]
            ),
        )

    def simulated(self, orders: LinkOrders, number: int) -> int:
        """End of the simulation in which links with turns keep to them."""
        cells = []
        split = self.template.rules.split_backward
        kinds: tuple[OpKind, ...] = ("F", "B", "W") if split else ("F", "B")
        for s in range(self.template.pp):
            own = [k for k, device in enumerate(self.devices) if device == s]
            ticks = {(kind, k): self.values[Duration(kind, k)] for k in own for kind in kinds}
            sends: dict[tuple[OpKind, int], Send] = {}
            ways: tuple[tuple[OpKind, int], ...] = (("F", 1), ("B", -1))
            for k in own:
                for kind, step in ways:
                    if 0 <= k + step < len(self.devices) and self.devices[k + step] != s:
                        target = self.devices[k + step]
                        sends[kind, k] = Send(target, self.route((s, target)))
            cells.append(Cell(s, ticks, sends))
        links = 2 * max(self.sites) + 2 + len(self.edges)
        turns = orders.turns(number)
        return simulate_scenario(
            Scenario(device_orders(self.template), cells, links, turns=turns)
        ).end


@st.composite
def placed(draw: st.DrawFn) -> tuple[Template, list[int], str]:
    template = draw(templates())
    sites = draw(st.lists(st.integers(0, 3), min_size=template.pp, max_size=template.pp))
    return template, sites, draw(st.sampled_from(("hub", "chain")))


@settings(max_examples=120, deadline=None)
@given(placed(), st.data())
def test_the_simulation_in_turns_takes_as_long(
    case: tuple[Template, list[int], str], data: st.DataObject
) -> None:
    """Every order: events in time and a longest path, computed apart, end at the same moment."""
    drawn = Drawn(*case, data)
    assume(drawn.sharing.ways)
    orders = link_orders(drawn.template, drawn.sharing)
    paths = orders.critical_paths(drawn.values)
    for path in paths:
        assert path.length == sum(a * drawn.values[key] for key, a in path.coefficients.items())
    simulated = [drawn.simulated(orders, number) for number in range(len(ORDERS))]
    assert {path.length for path in paths} == set(simulated)
    length, number = orders.best(drawn.values)
    assert length == orders.evaluate(drawn.values) == min(simulated) == simulated[number]
    assert length >= event_graph(drawn.template).evaluate(drawn.values)


@settings(max_examples=120, deadline=None)
@given(placed(), st.data())
def test_more_time_never_shortens_an_iteration(
    case: tuple[Template, list[int], str], data: st.DataObject
) -> None:
    drawn = Drawn(*case, data)
    assume(drawn.sharing.ways)
    orders = link_orders(drawn.template, drawn.sharing)
    before = orders.evaluate(drawn.values)
    grown = {key: value + data.draw(st.integers(0, 5)) for key, value in drawn.values.items()}
    assert orders.evaluate(grown) >= before


@settings(max_examples=150, deadline=None)
@given(placed(), st.data())
def test_a_path_bounds_every_iteration_in_its_orders(
    case: tuple[Template, list[int], str], data: st.DataObject
) -> None:
    """The cuts of the formulations: a path for some durations is one for all others."""
    drawn = Drawn(*case, data)
    assume(drawn.sharing.ways)
    orders = link_orders(drawn.template, drawn.sharing)
    other = Drawn(*case, data)
    for path in orders.critical_paths(drawn.values):
        length = sum(a * other.values[key] for key, a in path.coefficients.items())
        for number in path.orders:
            assert length <= other.simulated(orders, number)


BACK_AND_FORTH = (
    Way((0, 1), (0, 1), (0,)),
    Way((1, 0), (1, 0), (1,)),
    Way((1, 2), (1, 0), (1,)),
    Way((2, 1), (0, 1), (0,)),
)


SEVERAL_WAYS = (
    Way((0, 1), (0, 1), (0, 3)),
    Way((0, 1), (0, 2), (0, 5)),
    Way((1, 0), (1, 0), (2, 1)),
    Way((1, 0), (2, 0), (4, 1)),
    Way((1, 2), (1, 2), (2, 5)),
    Way((1, 2), (2, 0), (4, 1)),
    Way((2, 1), (0, 2), (0, 5)),
    Way((2, 1), (2, 1), (4, 3)),
)
"""Three sites around a hub; stage 0 on site 0, stage 1 on 1 and 2, stage 2 on 2 and 0."""


def relaxed(orders: LinkOrders, number: int, values: dict[Duration, int]) -> int:
    """The longest path by raising every time as long as a rule of the time model asks for it."""
    graph = orders.graph
    lists, turns = graph.lists, orders.turns(number)
    count = len(graph.ops)
    position, seen = {}, [0] * len(lists.last)
    for op, device in enumerate(lists.device):
        position[device, seen[device]] = op
        seen[device] += 1
    by_edge = [[way for way in orders.sharing.ways if way.edge == edge] for edge in graph.edges]
    end, sent, came = [0] * count, [0] * count, [0] * count
    head: dict[tuple[int, Way, int], int] = {}
    changed = True
    while changed:
        before = (list(end), list(sent), list(came), dict(head))
        for op in range(count):
            start = values[Duration("start", lists.device[op])]
            ready = end[lists.previous[op]] if lists.previous[op] >= 0 else start
            if lists.source[op] >= 0:
                ready = max(ready, came[lists.source[op]])
            end[op] = ready + values[graph.variables[lists.length[op]]]
            e = lists.edge[op]
            if e < 0:
                continue
            edge = graph.edges[e]
            behind = lists.previous_transfer[op]
            sent[op] = end[op]
            if behind >= 0:
                sent[op] = max(end[op], sent[behind] + values[Duration("occupancy", edge)])
            came[op] = max(came[op], sent[op] + values[Duration("delay", edge)])
            for way in by_edge[e]:
                port = values[Duration("port", (*edge, *way.sites))]
                first = end[op]
                if behind >= 0:
                    first = max(first, head[behind, way, 0] + port)
                head[op, way, 0] = max(head.get((op, way, 0), 0), first)
                on_all = sum(values[Duration("latency", (*edge, link))] for link in way.links)
                came[op] = max(came[op], head[op, way, 0] + port + on_all)
                for hop, link in enumerate(way.links, 1):
                    on = values[Duration("latency", (*edge, way.links[hop - 2]))] if hop > 1 else 0
                    head[op, way, hop] = max(
                        head.get((op, way, hop), 0), head[op, way, hop - 1] + on
                    )
                    rest = [values[Duration("latency", (*edge, x))] for x in way.links[hop - 1 :]]
                    through = values[Duration("service", (*edge, link))] + sum(rest)
                    came[op] = max(came[op], head[op, way, hop] + through)
        for link, line in turns.items():
            for last, turn in pairwise(line):
                frees = 0
                op = position[last.device, last.position]
                for way in by_edge[lists.edge[op]]:
                    if way.links[last.hop - 1 : last.hop] == (link,):
                        service = values[Duration("service", (*way.edge, link))]
                        frees = max(frees, head[op, way, last.hop] + service)
                op = position[turn.device, turn.position]
                for way in by_edge[lists.edge[op]]:
                    if way.links[turn.hop - 1 : turn.hop] == (link,):
                        head[op, way, turn.hop] = max(head[op, way, turn.hop], frees)
        changed = before != (end, sent, came, head)
    return max(end[op] + values[Duration("end", device)] for device, op in enumerate(lists.last))


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(("gpipe", "1f1b", "zb_h1")), st.integers(1, 4), st.randoms())
def test_several_ways_of_one_transfer(schedule: str, m: int, rng: random.Random) -> None:
    """Replicas that part: two ways over one link at the same hop are served at once."""
    template = Template(schedule, 3, 1, m, None, (0, 0, 0))
    orders = link_orders(template, Sharing((2, 2), SEVERAL_WAYS))
    graph = event_graph(template)
    keys = (*graph.variables, *(Duration("occupancy", edge) for edge in graph.edges))
    values = {key: rng.randint(0, 9) for key in (*keys, *orders.variables)}
    paths = orders.critical_paths(values)
    assert {path.length for path in paths} == {
        relaxed(orders, number, values) for number in range(len(ORDERS))
    }
    assert orders.evaluate(values) == min(path.length for path in paths)
    for path in paths:
        assert path.length == sum(a * values[key] for key, a in path.coefficients.items())


def test_by_hand() -> None:
    """1F1B on sites A, B, A; every op takes 10, every link 30 for a transfer, and no latency.

    Link A-B serves F(0, 0) from 10, F(0, 1) from 40, F(0, 2) from 70, B(2, 0) from 100, B(2, 1)
    from 130; stage 1 ends F(1, 2) at 150, and link B-A, which serves B(1, 0) from 140 to 170, then
    takes it and after it B(1, 1), ready at 170, from 200.  F(2, 2) ends at 210, B(2, 2) at 220,
    B(1, 2) at 260, and B(0, 2), its input here at 290, at 300.
    """
    template = Template("1f1b", 3, 1, 3, None, (0, 0, 0))
    orders = link_orders(template, Sharing((1, 1), BACK_AND_FORTH))
    values = dict.fromkeys(event_graph(template).variables, 10)
    for edge in event_graph(template).edges:
        values[Duration("delay", edge)] = values[Duration("occupancy", edge)] = 30
    for stage in range(3):
        values[Duration("start", stage)] = values[Duration("end", stage)] = 0
    for way in BACK_AND_FORTH:
        values[Duration("port", (*way.edge, *way.sites))] = 0
        for link in way.links:
            values[Duration("service", (*way.edge, link))] = 30
            values[Duration("latency", (*way.edge, link))] = 0
    assert orders.evaluate(values) == 300
    assert event_graph(template).evaluate(values) == 280


@pytest.mark.parametrize("schedule", ["interleaved", "dora"])
def test_orders_differ_and_keep_every_transfer(schedule: str) -> None:
    """A loop over two sites: every transfer has one turn at each of its links, in every order."""
    template = Template(schedule, 4, 2, 8, 4, (0,) * 4)
    ways = (
        Way((0, 3), (0, 1), (0,)),
        Way((1, 2), (0, 1), (0,)),
        Way((2, 1), (1, 0), (1,)),
        Way((3, 0), (1, 0), (1,)),
    )
    orders = link_orders(template, Sharing((0, 1, 0, 1), ways))
    found = [orders.turns(number) for number in range(len(ORDERS))]
    assert len({str(turns) for turns in found}) > 1
    for turns in found:
        assert sorted(turns) == [0, 1]
        for line in turns.values():
            assert len(set(line)) == len(line) == 8 * 3
            by_device = {d: [t.position for t in line if t.device == d] for d in range(4)}
            assert all(positions == sorted(positions) for positions in by_device.values())


def test_durations_are_checked() -> None:
    template = Template("1f1b", 3, 1, 2, None, (0, 0, 0))
    orders = link_orders(template, Sharing((1, 1), BACK_AND_FORTH))
    values = dict.fromkeys((*event_graph(template).variables, *orders.variables), 1)
    missing = {key: value for key, value in values.items() if key != orders.variables[0]}
    with pytest.raises(ValueError, match="no value for"):
        orders.evaluate(missing)
    with pytest.raises(ValueError, match="negative value for"):
        orders.evaluate(values | {orders.variables[-1]: -1})
