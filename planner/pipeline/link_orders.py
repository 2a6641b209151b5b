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


class _Trace:
    """What a longest path is followed back by."""

    def __init__(self, ops: int) -> None:
        self.waited = bytearray(ops)
        self.queued = bytearray(ops)
        self.behind: dict[tuple[int, int, int], tuple[int, int, int]] = {}
        """By op, way and hop: whom it waited for there."""
        self.through: dict[int, tuple[int, int]] = {}
        """By op: way and hop that its transfer came last through, where waiting mattered."""


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
        self._width = 1 + max((len(hops) for hops in self._hops), default=0)
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
        for numbers, codes in self._orders:
            length = max(self._ends(vector, hops, codes, None))
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
        for numbers, codes in self._orders:
            trace = _Trace(len(self.graph.ops))
            ends = self._ends(vector, hops, codes, trace)
            coefficients, ways = self._followed(ends.index(max(ends)), trace)
            orders = numbers if ways else tuple(range(len(ORDERS)))
            found.append(OrderedPath(max(ends), coefficients, orders, ways))
        return found

    def turns(self, number: int) -> dict[int, list[Turn]]:
        """Return the order of an iteration's transfers at every link that is in :class:`Sharing`.

        The hop of a link counts from 1, behind the port of the sender.
        """
        codes = next(codes for numbers, codes in self._orders if number in numbers)
        lists = self.graph.lists
        position, seen = [], [0] * len(lists.last)
        for device in lists.device:
            position.append(seen[device])
            seen[device] += 1
        found: dict[int, list[Turn]] = {link: [] for link in self._resource}
        for code in codes.tolist():
            op, step = divmod(code, self._width)
            if step < 2:
                continue
            for link in dict.fromkeys(
                self._ways[w].links[step - 2]
                for w in self._by_edge[lists.edge[op]]
                if len(self._ways[w].links) >= step - 1
            ):
                found[link].append(Turn(lists.device[op], position[op], step - 1))
        return found

    def _hop_times(self, values: Mapping[Duration, int]) -> list[list[_Hop]]:
        """By way its hops in µs."""
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
            found.append(times[::-1])
        return found

    @cached_property
    def _orders(self) -> list[tuple[tuple[int, ...], npt.NDArray[np.int64]]]:
        """Different orders: their numbers, and ops and hops in turn.

        Op ``i`` is ``i * width``, hop ``h`` of its transfer ``i * width + 1 + h``.
        """
        edge = np.array(self.graph.lists.edge)
        ops = np.arange(len(edge))
        most = np.array(
            [max((len(self._hops[w]) for w in ways), default=0) for ways in self._by_edge]
        )
        sends = ops[edge >= 0]
        nodes = np.concatenate(
            [ops * self._width]
            + [
                sends[most[edge[sends]] > hop] * self._width + 1 + hop
                for hop in range(self._width - 1)
            ]
        )
        op, step = np.divmod(nodes, self._width)
        known: dict[bytes, int] = {}
        found: list[tuple[tuple[int, ...], npt.NDArray[np.int64]]] = []
        for number, nominal in enumerate(ORDERS):
            finish, begin, pace = self._nominal(nominal)
            time = np.where(step == 0, finish[op], begin[op] + np.maximum(step - 2, 0) * pace)
            codes = nodes[np.lexsort((step, op, time))]
            key = b"|".join(self._at_links(codes))
            if key in known:
                numbers, codes = found[known[key]]
                found[known[key]] = ((*numbers, number), codes)
            else:
                known[key] = len(found)
                found.append(((number,), codes))
        return found

    def _at_links(self, codes: npt.NDArray[np.int64]) -> Iterator[bytes]:
        """What every link serves in turn."""
        edge = np.array(self.graph.lists.edge)
        op, step = np.divmod(codes, self._width)
        for link in self._resource:
            comes = np.zeros((len(self._by_edge) + 1, self._width), dtype=np.bool_)
            for e, ways in enumerate(self._by_edge):
                for w in ways:
                    for hop, passed in enumerate(self._ways[w].links):
                        if passed == link:
                            comes[e, hop + 2] = True
            yield codes[comes[edge[op], step]].tobytes()

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
        self,
        vector: Sequence[int],
        hop_times: Sequence[Sequence[_Hop]],
        codes: npt.NDArray[np.int64],
        trace: _Trace | None,
    ) -> list[int]:
        """When every device has done everything, ops and transfers as early as they can."""
        lists = self.graph.lists
        device, length, source, edge = lists.device, lists.length, lists.source, lists.edge
        previous = lists.previous
        delay = [vector[variable] for variable in lists.delay]
        occupancy = [vector[v] if v >= 0 else 0 for v in lists.occupancy]
        edge_free = [0] * len(delay)
        finish = [0] * len(device)
        arrival = [0] * len(device)
        free = [0] * (len(self._resource) + len(self._ways))
        last: list[tuple[int, int, int] | None] = [None] * len(free)
        heads: dict[int, list[int]] = {}
        width = self._width
        for code in codes.tolist():
            op, step = divmod(code, width)
            if step == 0:
                before = previous[op]
                now = finish[before] if before >= 0 else vector[lists.start[device[op]]]
                sender = source[op]
                if sender >= 0 and arrival[sender] > now:
                    now = arrival[sender]
                    if trace:
                        trace.waited[op] = 1
                now += vector[length[op]]
                finish[op] = now
                way = edge[op]
                if way >= 0:
                    if edge_free[way] > now:
                        now = edge_free[way]
                        if trace:
                            trace.queued[op] = 1
                    edge_free[way] = now + occupancy[way]
                    arrival[op] = now + delay[way]
                continue
            hop = step - 1
            ways = self._by_edge[edge[op]]
            if hop == 0:
                heads[op] = [finish[op]] * len(ways)
            here = heads[op]
            served = []
            for i, w in enumerate(ways):
                if hop >= len(hop_times[w]):
                    continue
                resource, service, latency, rest = hop_times[w][hop]
                begin = here[i]
                if free[resource] > begin:
                    begin = free[resource]
                    if trace:
                        trace.behind[op, w, hop] = last[resource]
                here[i] = begin + latency
                if begin + rest > arrival[op]:
                    arrival[op] = begin + rest
                    if trace:
                        trace.through[op] = (w, hop)
                served.append((resource, begin + service, (op, w, hop)))
            for resource, until, node in served:
                if until > free[resource] or last[resource] is None:
                    free[resource], last[resource] = until, node
        return [
            (finish[op] if op >= 0 else vector[start]) + vector[end]
            for op, start, end in zip(lists.last, lists.start, lists.end, strict=True)
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
            way, hop = trace.through[op]
            add(self._hops[way][hop][1])
            for _, _, latency in self._hops[way][hop:]:
                add(latency)
            while True:
                used.add(self._ways[way])
                node = trace.behind.get((op, way, hop))
                if node is not None:
                    op, way, hop = node
                    add(self._hops[way][hop][1])
                elif hop:
                    hop -= 1
                    add(self._hops[way][hop][2])
                else:
                    break
        add(variables[lists.start[first]])
        return count, frozenset(used)


@lru_cache(maxsize=32)
def link_orders(template: Template, sharing: Sharing) -> LinkOrders:
    """Return the event graphs of a template whose transfers share links.

    Raises
    ------
    ValueError
        If the op orders deadlock.
    """
    return LinkOrders(template, sharing)
