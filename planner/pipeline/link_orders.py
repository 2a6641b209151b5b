"""Directed links that several device edges share: who is served when, and the longest paths.

A link that several directed device edges use serves their transfers one after the other in a fixed
**order**.  There are a few orders, one for each of :data:`ORDERS`: the order in which the heads of
the transfers come to the link in a nominal iteration, in which all forwards take equally long, and
so on, and every link between sites takes a given multiple of the time of a stage.  So an order
follows from the template and from which boundaries change site, never from real durations.  With
an order the iteration is the longest path of a larger event graph, and Z is that of the best
order: a minimum of maxima of sums, none of which grows when a duration shrinks.
``docs/time_model.md``, section 4, defines all this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from operator import index as exact_integer
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from planner.pipeline.event_graph import Duration, event_graph
from planner.pipeline.schedules import Template

Edge = tuple[int, int]


class NominalHop(NamedTuple):
    """What transfers between sites take in a nominal iteration.

    The head needs ``quarters`` quarters of the time of a stage from link to link; a transfer begins
    ``tenths`` tenths of that after the one before it on its device edge, or later.
    """

    quarters: int
    tenths: int


ORDERS = (
    NominalHop(1, 12),
    NominalHop(2, 12),
    NominalHop(4, 3),
    NominalHop(12, 0),
    NominalHop(12, 20),
    NominalHop(24, 0),
    NominalHop(24, 12),
    NominalHop(40, 3),
    NominalHop(40, 6),
    NominalHop(0, 0),
)
"""The nominal iterations whose orders a plan may use."""

_OP_TICKS = 40
"""Length of a nominal forward: a quarter of a stage and a tenth of this are whole numbers."""


class Way(NamedTuple):
    """What goes over links on a directed device edge: a pair of sites and the links between."""

    edge: Edge
    sites: tuple[int, int]
    links: tuple[int, ...]


class Sharing(NamedTuple):
    """Where transfers of several device edges meet.

    ``hops`` is the most links that a replica passes at each boundary, one way, 0 where all stay;
    ``ways`` are those that pass a link that several edges use, sorted.
    """

    hops: tuple[int, ...]
    ways: tuple[Way, ...]


class OrderedPath(NamedTuple):
    """A longest path where links serve transfers in an order.

    Attributes
    ----------
    length
        In µs.
    coefficients
        How often each duration occurs on it.
    orders
        Numbers of the orders that it is a path of.
    ways
        The ways that it takes from link to link; a path without any is one of every order, and of
        plans that share no link.
    """

    length: int
    coefficients: dict[Duration, int]
    orders: tuple[int, ...]
    ways: frozenset[Way]


class Turn(NamedTuple):
    """A transfer at a link: device and position of the op that sends it, and which hop it is."""

    device: int
    position: int
    hop: int


_Hop = tuple[int, int, int, int]
"""Resource; µs that it is occupied, until the head leaves, and from the head until all is there."""

_Rows = tuple[npt.NDArray[np.int32], ...]
"""Ops and hops of transfers in turn, five columns.

Of an op: its number, the one before it on its device (behind the ops come the starts of the
devices), the op whose transfer it waits for or -1, its duration, its edge or -1.  Of a hop: the
op that sends, a number of the transfer on this way, the hop among those of all ways, whether it is
the first of its way, and ``_HOP`` or, beside another way of the same transfer, ``_JOINT_HOP``.
"""

_HOP, _JOINT_HOP = -2, -3


class _Trace:
    """What a longest path is followed back by."""

    def __init__(self, ops: int) -> None:
        self.waited = bytearray(ops)
        self.queued = bytearray(ops)
        self.behind: dict[tuple[int, int], tuple[int, int]] = {}
        """By op and hop among those of all ways: the same of whom it waited for there."""
        self.through: dict[int, int] = {}
        """By op: the hop that its transfer came last through, where waiting mattered."""


class LinkOrders:
    """The event graphs of one template and sharing; get it from :func:`link_orders`.

    Attributes
    ----------
    graph
        The event graph without shared links.
    variables
        The durations besides those of ``graph``.
    """

    def __init__(self, template: Template, sharing: Sharing) -> None:
        self.graph = event_graph(template)
        self.sharing = sharing
        number = {edge: i for i, edge in enumerate(self.graph.edges)}
        self._ways = [way for way in sharing.ways if way.edge in number]
        self._by_edge: list[list[int]] = [[] for _ in number]
        for w, way in enumerate(self._ways):
            self._by_edge[number[way.edge]].append(w)
        links = sorted({link for way in self._ways for link in way.links})
        self._resource = {link: r for r, link in enumerate(links)}
        self._hops = [
            (
                (len(links) + w, Duration("port", (*way.edge, *way.sites)), None),
                *(
                    (
                        self._resource[link],
                        Duration("service", (*way.edge, link)),
                        Duration("latency", (*way.edge, link)),
                    )
                    for link in way.links
                ),
            )
            for w, way in enumerate(self._ways)
        ]
        self._first_hop = [0]
        for hops in self._hops:
            self._first_hop.append(self._first_hop[-1] + len(hops))
        self._way_of = [w for w, hops in enumerate(self._hops) for _ in hops]
        self.variables = tuple(
            dict.fromkeys(
                key for hops in self._hops for _, *keys in hops for key in keys if key is not None
            )
        )

    def evaluate(self, values: Mapping[Duration, int]) -> int:
        """Return the length of the longest path in the best order, in µs.

        Parameters
        ----------
        values
            A non-negative integer number of µs for each variable, those of the graph included.

        Raises
        ------
        ValueError
            If a duration is missing or negative.
        """
        return self.best(values)[0]

    def best(self, values: Mapping[Duration, int]) -> tuple[int, int]:
        """Return the length of the longest path in the best order, and the order's number.

        Of equally good orders the first.

        Raises
        ------
        ValueError
            If a duration is missing or negative.
        """
        least = self.graph.evaluate(values)
        vector, hops = self.graph.vector(values), self._hop_times(values)
        found: tuple[int, int] | None = None
        for numbers, rows in self._orders:
            length = max(self._ends(vector, hops, rows, None))
            if found is None or length < found[0]:
                found = (length, numbers[0])
            if length == least:
                break
        assert found is not None
        return found

    def critical_paths(self, values: Mapping[Duration, int]) -> list[OrderedPath]:
        """Return a longest path of every order.

        Of several longest paths it is one that waits at no shared link, if there is one.

        Raises
        ------
        ValueError
            If a duration is missing or negative.
        """
        vector, hops = self.graph.vector(values), self._hop_times(values)
        found = []
        for numbers, rows in self._orders:
            trace = _Trace(len(self.graph.ops))
            ends = self._ends(vector, hops, rows, trace)
            coefficients, ways = self._followed(ends.index(max(ends)), trace)
            orders = numbers if ways else tuple(range(len(ORDERS)))
            found.append(OrderedPath(max(ends), coefficients, orders, ways))
        return found

    def turns(self, number: int) -> dict[int, list[Turn]]:
        """Return the order of an iteration's transfers at every link that is in :class:`Sharing`.

        The hop of a link counts from 1, behind the port of the sender.
        """
        op, _, hop, _, kind = next(rows for numbers, rows in self._orders if number in numbers)
        device = self.graph.lists.device
        position, seen = [], [0] * len(self.graph.lists.last)
        for d in device:
            position.append(seen[d])
            seen[d] += 1
        found: dict[int, list[Turn]] = {link: [] for link in self._resource}
        at_links = kind == _HOP
        for i, number in zip(op[at_links].tolist(), hop[at_links].tolist(), strict=True):
            way = self._way_of[number]
            step = number - self._first_hop[way]
            if step:
                turn = Turn(device[i], position[i], step)
                found[self._ways[way].links[step - 1]].append(turn)
        return found

    def _hop_times(self, values: Mapping[Duration, int]) -> list[_Hop]:
        """Hops of all ways in µs, those of a way one after the other."""
        try:
            given = {key: exact_integer(values[key]) for key in self.variables}
        except KeyError as error:
            raise ValueError(f"no value for {error.args[0]}") from error
        for key, value in given.items():
            if value < 0:
                raise ValueError(f"negative value for {key}")
        found = []
        for hops in self._hops:
            rest, times = 0, []
            for resource, service, latency in reversed(hops):
                on = 0 if latency is None else given[latency]
                rest += on
                times.append((resource, given[service], on, given[service] + rest))
            found += times[::-1]
        return found

    def _op_rows(self) -> npt.NDArray[np.int64]:
        lists = self.graph.lists
        count = len(lists.device)
        before = [
            p if p >= 0 else count + d for p, d in zip(lists.previous, lists.device, strict=True)
        ]
        return np.array([range(count), before, lists.source, lists.length, lists.edge]).T

    def _hop_rows(self) -> Iterator[npt.NDArray[np.int64]]:
        edge = np.array(self.graph.lists.edge)
        transfers = 0
        for e, ways in enumerate(self._by_edge):
            sends = np.flatnonzero(edge == e)
            met: set[tuple[int, int]] = set()
            for w in ways:
                for hop, (resource, _, _) in enumerate(self._hops[w]):
                    row = np.empty((len(sends), 5), dtype=np.int64)
                    row[:, 0] = sends
                    row[:, 1] = transfers + np.arange(len(sends))
                    row[:, 2] = self._first_hop[w] + hop
                    row[:, 3] = hop == 0
                    row[:, 4] = _JOINT_HOP if (hop, resource) in met else _HOP
                    met.add((hop, resource))
                    yield row
                transfers += len(sends)

    @cached_property
    def _orders(self) -> list[tuple[tuple[int, ...], _Rows]]:
        """Different orders: their numbers, and ops and hops in turn."""
        rows = np.concatenate([self._op_rows(), *self._hop_rows()])
        op, is_hop = rows[:, 0], rows[:, 4] <= _HOP
        hop = np.where(is_hop, rows[:, 2], 0)
        way = np.array([*self._way_of, 0])[hop]
        step = np.where(is_hop, hop - np.array(self._first_hop)[way], -1)
        resources = [hops[0] for of_way in self._hops for hops in of_way]
        resource = np.where(is_hop, np.array([*resources, 0])[hop], -1)
        known: dict[bytes, int] = {}
        found: list[tuple[tuple[int, ...], _Rows]] = []
        for number, nominal in enumerate(ORDERS):
            finish, begin, pace = self._nominal(nominal)
            time = np.where(is_hop, begin[op] + np.maximum(step - 1, 0) * pace, finish[op])
            turn = np.lexsort((way, step, op, time))
            at = resource[turn]
            key = b"".join(turn[at == r].tobytes() for r in range(len(self._resource)))
            if key in known:
                numbers, same = found[known[key]]
                found[known[key]] = ((*numbers, number), same)
            else:
                known[key] = len(found)
                found.append(((number,), tuple(rows[turn].T.astype(np.int32))))
        return found

    def _nominal(
        self, nominal: NominalHop
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int]:
        """When ops end and transfers begin in a nominal iteration, and from hop to hop."""
        template = self.graph.template
        split = template.rules.split_backward
        hop = nominal.quarters * 3 * template.v * _OP_TICKS // 4
        apart = hop * nominal.tenths // 10
        hops = dict.fromkeys(self.graph.edges, 0)
        for b, count in enumerate(self.sharing.hops):
            after = (b + 1) % template.pp
            for edge in ((b, after), (after, b)):
                if edge in hops:
                    hops[edge] = max(hops[edge], count)
        values = {}
        for key in self.graph.variables:
            time = 0
            if key.kind in ("F", "W") or (key.kind == "B" and split):
                time = _OP_TICKS
            elif key.kind == "B":
                time = 2 * _OP_TICKS
            elif key.kind == "delay" and hops[key.index]:  # type: ignore[index]
                time = hops[key.index] * hop  # type: ignore[index]
            elif key.kind == "occupancy" and hops[key.index]:  # type: ignore[index]
                time = apart
            values[key] = time
        finish, arrival = self.graph.times(values)
        taken = [values[Duration("delay", edge)] for edge in self.graph.edges]
        begin = [
            came - (taken[e] if e >= 0 else 0)
            for came, e in zip(arrival, self.graph.lists.edge, strict=True)
        ]
        return np.array(finish), np.array(begin), hop

    def _ends(
        self, vector: Sequence[int], hops: Sequence[_Hop], rows: _Rows, trace: _Trace | None
    ) -> list[int]:
        """When every device has done everything, ops and transfers as early as they can."""
        lists = self.graph.lists
        delay = [vector[variable] for variable in lists.delay]
        occupancy = [vector[v] if v >= 0 else 0 for v in lists.occupancy]
        edge_free = [0] * len(delay)
        count = len(lists.device)
        finish = [0] * count + [vector[start] for start in lists.start]
        arrival = [0] * (count + 1)
        free = [0] * (len(self._resource) + len(self._ways))
        earlier = [0] * len(free)
        owner: list[tuple[int, int]] = [(-1, -1)] * len(free)
        earlier_owner = list(owner)
        heads = [0] * (count * max(map(len, self._by_edge), default=0))
        for op, second, third, fourth, kind in zip(*(row.tolist() for row in rows), strict=True):
            if kind > _HOP:
                now = finish[second]
                if arrival[third] > now:
                    now = arrival[third]
                    if trace:
                        trace.waited[op] = 1
                now += vector[fourth]
                finish[op] = now
                if kind >= 0:
                    if edge_free[kind] > now:
                        now = edge_free[kind]
                        if trace:
                            trace.queued[op] = 1
                    edge_free[kind] = now + occupancy[kind]
                    arrival[op] = now + delay[kind]
                continue
            resource, service, latency, rest = hops[third]
            if kind == _HOP:
                earlier[resource] = free[resource]
                earlier_owner[resource] = owner[resource]
            begin = finish[op] if fourth else heads[second]
            if earlier[resource] > begin:
                begin = earlier[resource]
                if trace:
                    trace.behind[op, third] = earlier_owner[resource]
            heads[second] = begin + latency
            if begin + rest > arrival[op]:
                arrival[op] = begin + rest
                if trace:
                    trace.through[op] = third
            if begin + service > free[resource]:
                free[resource], owner[resource] = begin + service, (op, third)
        return [
            finish[op if op >= 0 else count + device] + vector[end]
            for device, (op, end) in enumerate(zip(lists.last, lists.end, strict=True))
        ]

    def _followed(self, device: int, trace: _Trace) -> tuple[dict[Duration, int], frozenset[Way]]:
        """Follow a longest path back from the end of ``device`` and count its durations."""
        lists, variables = self.graph.lists, self.graph.variables
        count: dict[Duration, int] = {}
        used: set[Way] = set()

        def add(key: Duration | None) -> None:
            if key is not None:
                count[key] = count.get(key, 0) + 1

        add(variables[lists.end[device]])
        op, first = lists.last[device], device
        while op >= 0:
            first = lists.device[op]
            add(variables[lists.length[op]])
            if not trace.waited[op]:
                op = lists.previous[op]
                continue
            op = lists.source[op]
            edge = lists.edge[op]
            if op not in trace.through:
                add(variables[lists.delay[edge]])
                while trace.queued[op]:
                    add(variables[lists.occupancy[edge]])
                    op = lists.previous_transfer[op]
                continue
            number = trace.through[op]
            way = self._way_of[number]
            hop = number - self._first_hop[way]
            add(self._hops[way][hop][1])
            for _, _, latency in self._hops[way][hop:]:
                add(latency)
            while True:
                used.add(self._ways[way])
                node = trace.behind.get((op, number))
                if node is not None:
                    op, number = node
                    way = self._way_of[number]
                    add(self._hops[way][number - self._first_hop[way]][1])
                elif number > self._first_hop[way]:
                    number -= 1
                    add(self._hops[way][number - self._first_hop[way]][2])
                else:
                    break
        add(variables[lists.start[first]])
        return count, frozenset(used)


@lru_cache(maxsize=64)
def link_orders(template: Template, sharing: Sharing) -> LinkOrders:
    """Return the event graphs of a template whose transfers share links.

    Raises
    ------
    ValueError
        If the op orders deadlock.
    """
    return LinkOrders(template, sharing)
