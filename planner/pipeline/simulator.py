"""An event simulation of one training iteration: devices, directed links, collectives.

Nothing here is a longest path: things happen one after the other in time, and a link serves what
comes to it first or, where it has turns, transfers in their turns.  All durations are whole ticks
of whatever length the caller chooses.

**Cells.**  A cell runs the ops of one stage in the order of the schedule, one at a time; an op
starts when the op before it has ended and its input has arrived.  Replicas that behave alike are
one cell, whose transfers carry the load of all of them.

**Links.**  A transfer goes through the hops of its route cut-through.  Its head comes to hop ``h``
at ``a_h``, is served from ``s_h = max(a_h, free_h)`` on, occupies the link for ``service_h`` and
comes to the next hop at ``s_h + latency_h``.  The transfer has arrived when the slowest hop has let
it through: ``max over h of (s_h + service_h + sum of latency_j for j >= h)``.  Heads that come at
the same time are served in the order of the cells that sent them.  A link with turns serves a head
only when everything whose turn is earlier has come and been given its time; the heads of one turn,
sent by several cells of a stage, in the order in which they come.

**Sends.**  Asynchronous: the sender goes on at once.  Blocking: it waits until the transfer has
arrived, as a pipeline does that posts its sends and receives in pairs and waits for both.

**Collectives.**  A bucket is what the teams of a stage (its cells at one site) synchronise at once.
A team's part of it begins when all cells of the team are ready: a task on the network of the team,
first come first served, and exchanges with other teams over the links, after that task
(``sequential``) or beside it.  An exchange goes out in pieces, the next one when the first hop has
served the one before, so that several senders take turns on a link.

**Priorities.**  Transfers of the pipeline never wait for exchanges: a link suspends a piece that it
serves while transfers pass, packet by packet, and goes on with it afterwards.  Among the pieces
that wait for a link it serves those of the least ``rank`` first, of equal rank first come first
served; it does not suspend a piece for another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from typing import NamedTuple

from planner.pipeline.link_orders import Turn
from planner.pipeline.ops import Op, OpKind


class Hop(NamedTuple):
    """One link of a route: its number, ticks that it is occupied, ticks of propagation."""

    link: int
    service: int
    latency: int


Route = tuple[Hop, ...]
"""The links of a transfer in order; empty where it takes no time."""


class Send(NamedTuple):
    """Where the result of an op goes: number of the receiving cell, and the way to it."""

    cell: int
    route: Route


class Step(NamedTuple):
    """A part of an op that needs, or completes, a bucket: bucket number and ticks of work."""

    bucket: int
    ticks: int


@dataclass(frozen=True)
class Cell:
    """What one cell runs.

    Attributes
    ----------
    stage
        Number of its op order.
    ticks
        Length of an op by kind and chunk.
    sends
        Where the results of ``F`` and ``B`` of a chunk go, for those that leave the cell.
    waits
        By position in the op order: steps that the op consists of, each of which begins when its
        bucket is there (parameters that are gathered).
    readies
        By position in the op order: steps that the op consists of, each of which makes its bucket
        ready when it ends (gradients that are reduced).
    last
        Buckets that the cell waits for after its last op.
    tail
        Ticks of work after that.
    """

    stage: int
    ticks: Mapping[tuple[OpKind, int], int]
    sends: Mapping[tuple[OpKind, int], Send] = field(default_factory=dict)
    waits: Mapping[int, tuple[Step, ...]] = field(default_factory=dict)
    readies: Mapping[int, tuple[Step, ...]] = field(default_factory=dict)
    last: tuple[int, ...] = ()
    tail: int = 0


class Exchange(NamedTuple):
    """A transfer from one team to another: the whole route, and in how many pieces it goes."""

    route: Route
    pieces: int


class Part(NamedTuple):
    """What one team does for a bucket.

    ``network`` ticks of its network, ``latency`` after which the result is there, and the
    exchanges, which a flat ring begins ``scatter`` ticks after the network.  ``ready`` is the
    number of cells of the team that must be ready, 0 for a bucket that begins with the iteration.
    """

    team: int
    ready: int
    network: int
    latency: int
    exchanges: tuple[Exchange, ...]
    scatter: int = 0


class Bucket(NamedTuple):
    """A collective of one stage; it is there when all parts are done.

    Links serve the exchanges of a smaller ``rank`` first.
    """

    parts: tuple[Part, ...]
    sequential: bool
    rank: int = 0


@dataclass(frozen=True)
class Scenario:
    """Everything that one iteration consists of.

    Attributes
    ----------
    orders
        Ops of every stage in running order.
    cells
        The cells; transfers between them are those of a pipeline in which a microbatch visits the
        chunks in ascending order.
    links
        Number of directed links.
    buckets
        Collectives; those with no cell to wait for begin at time 0, in this order.
    team_of
        Team of each cell.
    blocking
        Whether senders wait for their transfers.
    turns
        For links that serve transfers in a fixed order: all transfers that pass them, in this
        order.  ``device`` is the number of the op order of the sending cells, hop 0 the first of
        their routes.
    """

    orders: Sequence[Sequence[Op]]
    cells: Sequence[Cell]
    links: int
    buckets: Sequence[Bucket] = ()
    team_of: Sequence[int] = ()
    blocking: bool = False
    turns: Mapping[int, Sequence[Turn]] = field(default_factory=dict)


class Occupation(NamedTuple):
    """A link served something: of a cell's op (by position), or of a bucket where ``cell`` < 0."""

    link: int
    begin: int
    end: int
    cell: int
    number: int


class TeamTask(NamedTuple):
    """A team's network worked on a bucket."""

    team: int
    begin: int
    end: int
    bucket: int


@dataclass(frozen=True)
class Run:
    """What happened, in ticks from the start of the iteration.

    Attributes
    ----------
    end
        When the last cell was done.
    starts, ends
        By cell and position in its order: when the op began and ended.
    sent, arrived
        By cell and position: when the op's input had been produced and when it had come, -1 for an
        op whose input does not come from another cell.
    done
        By cell: when it had done everything.
    buckets
        When each bucket was there.
    transfer_busy, exchange_busy
        By link: ticks that it served transfers of the pipeline, and exchanges.
    occupations, team_tasks
        Every service of a link and of a team's network, where they are recorded.
    """

    end: int
    starts: list[list[int]]
    ends: list[list[int]]
    sent: list[list[int]]
    arrived: list[list[int]]
    done: list[int]
    buckets: list[int]
    transfer_busy: list[int]
    exchange_busy: list[int]
    occupations: list[Occupation]
    team_tasks: list[TeamTask]


def simulate_scenario(scenario: Scenario, *, record: bool = False) -> Run:
    """Let one iteration happen.

    Parameters
    ----------
    scenario
        What happens.
    record
        Whether to keep every service of a link.

    Returns
    -------
    Run
        The times of everything.

    Raises
    ------
    ValueError
        If an order runs an op before one of the same cell that it depends on, or the orders
        deadlock.
    """
    return _Simulator(scenario, record).run()


@dataclass(eq=False, slots=True)
class _Piece:
    """A piece of an exchange on its way.

    ``open_hops`` hops have not served it yet; ``arrival`` is the latest arrival that the others
    allow; ``follow`` sends the next piece, None for the last one of its exchange.
    """

    bucket: int
    route: Route
    open_hops: int
    follow: Callable[[int], object] | None
    arrival: int = 0


class _Line:
    """The transfers that a link has still to serve, in their turns."""

    def __init__(self, turns: Sequence[Turn], heads: Mapping[Turn, int]) -> None:
        self._turns = turns
        self._rank = {turn: rank for rank, turn in enumerate(turns)}
        self._heads = heads
        self._next = 0
        self._served = 0
        self._waiting: dict[int, list[Callable[[int], object]]] = {}

    def admits(self, turn: Turn, call: Callable[[int], object]) -> bool:
        """Whether a head may be served now; otherwise ``call`` is kept for its turn."""
        rank = self._rank[turn]
        if rank == self._next:
            return True
        self._waiting.setdefault(rank, []).append(call)
        return False

    def served(self) -> list[Callable[[int], object]]:
        """A head of the present turn has its time; returns those whose turn begins."""
        self._served += 1
        if self._served < self._heads[self._turns[self._next]]:
            return []
        self._next, self._served = self._next + 1, 0
        return self._waiting.pop(self._next, [])


@dataclass(eq=False, slots=True)
class _Service:
    """A piece that a link serves, for the last time from ``since`` on, until ``end``."""

    piece: _Piece
    hop: int
    since: int
    end: int


class _Simulator:
    """State of one simulation."""

    def __init__(self, scenario: Scenario, record: bool) -> None:
        self.scenario = scenario
        self.record = record
        cells = scenario.cells
        self.heap: list[tuple[int, int]] = []
        self.calls: dict[int, Callable[[int], object]] = {}
        self.next_call = len(cells)
        self.free = [0] * scenario.links
        self.serving: list[_Service | None] = [None] * scenario.links
        self.queues: dict[int, list[tuple[int, int, _Piece, int]]] = {}
        self.next_piece = 0
        self.transfer_busy = [0] * scenario.links
        self.exchange_busy = [0] * scenario.links
        self.occupations: list[Occupation] = []
        self.team_tasks: list[TeamTask] = []
        self._compile()
        self.lines = _lines(scenario)
        self.position = [0] * len(cells)
        self.idle_from = [0] * len(cells)
        self.starts: list[list[int]] = [[] for _ in cells]
        self.ends: list[list[int]] = [[] for _ in cells]
        self.waiter = [-1] * len(self.arrived)
        buckets = scenario.buckets
        self.there = [-1] * len(buckets)
        self.missing = [sum(1 + len(p.exchanges) for p in b.parts) for b in buckets]
        self.part_of = [{part.team: part for part in bucket.parts} for bucket in buckets]
        self.unready = [{part.team: part.ready for part in bucket.parts} for bucket in buckets]
        self.parked: dict[int, list[int]] = {}
        self.step: dict[int, tuple[int, int]] = {}
        self.network_free: dict[int, int] = {}

    def _compile(self) -> None:
        """Number the inputs that come from other cells, and resolve every op."""
        cells, orders = self.scenario.cells, self.scenario.orders
        checked = [_checked(order) for order in orders]
        remote: dict[tuple[int, OpKind, int], int] = {}
        size = 0
        counts = [max((op.microbatch for op in order), default=-1) + 1 for order in orders]
        for cell in cells:
            for (kind, chunk), send in cell.sends.items():
                key = (send.cell, kind, chunk + (1 if kind == "F" else -1))
                remote[key] = size
                size += counts[cell.stage]
        self.arrived = [-1] * size
        self.sent = [-1] * size
        self.needs: list[list[int]] = []
        self.ticks: list[list[int]] = []
        self.outs: list[list[tuple[int, Route] | None]] = []
        for c, cell in enumerate(cells):
            base = {key[1:]: number for key, number in remote.items() if key[0] == c}
            targets = {
                (kind, chunk): (
                    remote[send.cell, kind, chunk + (1 if kind == "F" else -1)],
                    send.route,
                )
                for (kind, chunk), send in cell.sends.items()
            }
            needs, ticks, outs = [], [], []
            for kind, chunk, n in checked[cell.stage]:
                first = base.get((kind, chunk), -1)
                needs.append(first if first < 0 else first + n)
                ticks.append(cell.ticks[kind, chunk])
                target = targets.get((kind, chunk))
                outs.append(None if target is None else (target[0] + n, target[1]))
            self.needs.append(needs)
            self.ticks.append(ticks)
            self.outs.append(outs)

    def run(self) -> Run:
        """Handle events in the order of time until nothing is left."""
        cells, blocking = self.scenario.cells, self.scenario.blocking
        for number, bucket in enumerate(self.scenario.buckets):
            for part in bucket.parts:
                if part.ready == 0:
                    self._begin_part(number, part, 0)
        for c in range(len(cells)):
            self._start(c, 0)
        heap, calls, position, ends = self.heap, self.calls, self.position, self.ends
        count = len(cells)
        while heap:
            now, code = heappop(heap)
            if code >= count:
                calls.pop(code)(now)
                continue
            i = position[code]
            ends[code].append(now)
            position[code] = i + 1
            out = self.outs[code][i]
            if out is None:
                self._start(code, now)
                continue
            slot, route = out
            self.sent[slot] = now
            if blocking and route:
                self._transfer(slot, route, code, i, now, code)
            else:
                self._transfer(slot, route, code, i, now, -1)
                self._start(code, now)
        self._check_finished()
        return self._finished()

    def _at(self, time: int, call: Callable[[int], object]) -> None:
        self.calls[self.next_call] = call
        heappush(self.heap, (time, self.next_call))
        self.next_call += 1

    def _start(self, cell: int, now: int) -> None:
        """Begin the next op of a cell that is free from ``now`` on, once its input is there."""
        i = self.position[cell]
        needs = self.needs[cell]
        if i >= len(needs):
            return
        need = needs[i]
        if need >= 0:
            came = self.arrived[need]
            if came < 0:
                self.waiter[need] = cell
                self.idle_from[cell] = now
                return
            if came > now:
                now = came
        row = self.scenario.cells[cell]
        if i in row.waits:
            self.step[cell] = (0, now)
            self._run_steps(cell)
            return
        self.starts[cell].append(now)
        if i in row.readies:
            self._announce(cell, row.readies[i], now)
        heappush(self.heap, (now + self.ticks[cell][i], cell))

    def _run_steps(self, cell: int) -> None:
        """Go on with an op whose steps wait for buckets."""
        index, now = self.step[cell]
        i = self.position[cell]
        row = self.scenario.cells[cell]
        steps = row.waits[i]
        while index < len(steps):
            bucket, ticks = steps[index]
            there = self.there[bucket]
            if there < 0:
                self.step[cell] = (index, now)
                self.parked.setdefault(bucket, []).append(cell)
                return
            now = max(now, there)
            if index == 0:
                self.starts[cell].append(now)
            now += ticks
            index += 1
        if i in row.readies:
            self._announce(cell, row.readies[i], now - sum(s.ticks for s in row.readies[i]))
        heappush(self.heap, (now, cell))

    def _announce(self, cell: int, steps: Sequence[Step], now: int) -> None:
        """Make the buckets of an op's steps ready, one after the other."""
        team = self.scenario.team_of[cell]
        for bucket, ticks in steps:
            now += ticks
            self._at(now, partial(self._ready, bucket, team))

    def _ready(self, bucket: int, team: int, now: int) -> None:
        self.unready[bucket][team] -= 1
        if self.unready[bucket][team] == 0:
            self._begin_part(bucket, self.part_of[bucket][team], now)

    def _begin_part(self, bucket: int, part: Part, now: int) -> None:
        begin = max(now, self.network_free.get(part.team, 0))
        end = begin + part.network
        self.network_free[part.team] = end
        if self.record and part.network:
            self.team_tasks.append(TeamTask(part.team, begin, end, bucket))
        done = end + part.latency
        self._at(done, partial(self._count, bucket))
        sequential = self.scenario.buckets[bucket].sequential
        for exchange in part.exchanges:
            call = partial(self._exchange, bucket, exchange, 0)
            if sequential:
                self._at(done, call)
            else:
                self._at(begin + part.scatter if part.scatter else now, call)

    def _exchange(self, bucket: int, exchange: Exchange, number: int, now: int) -> None:
        """Send one piece; the next follows when the first hop has served this one."""
        pieces = exchange.pieces
        route = tuple(
            Hop(link, service * (number + 1) // pieces - service * number // pieces, latency)
            for link, service, latency in exchange.route
        )
        last = number + 1 == pieces
        follow = None if last else partial(self._exchange, bucket, exchange, number + 1)
        self._queue(_Piece(bucket, route, len(route), follow), 0, now)

    def _queue(self, piece: _Piece, hop: int, now: int) -> None:
        """The head of a piece has come to a hop."""
        link = piece.route[hop].link
        queue = self.queues.setdefault(link, [])
        rank = self.scenario.buckets[piece.bucket].rank
        heappush(queue, (rank, self.next_piece, piece, hop))
        self.next_piece += 1
        if self.serving[link] is None and len(queue) == 1:
            self._serve(link, now)

    def _serve(self, link: int, now: int) -> None:
        """Begin with the piece that is next, once all transfers have passed."""
        if self.free[link] > now:
            self._at(self.free[link], partial(self._serve, link))
            return
        _, _, piece, hop = heappop(self.queues[link])
        _, service, latency = piece.route[hop]
        self.exchange_busy[link] += service
        self.serving[link] = current = _Service(piece, hop, now, now + service)
        self._at(current.end, partial(self._served, link, current))
        if hop + 1 < len(piece.route):
            self._at(now + latency, partial(self._queue, piece, hop + 1))

    def _suspend(self, link: int, current: _Service, service: int, now: int) -> None:
        """Transfers that the link has just taken on go before the piece that it serves."""
        self._record_service(link, current, now)
        current.since = self.free[link]
        current.end += service

    def _record_service(self, link: int, current: _Service, until: int) -> None:
        if self.record and current.since < until:
            bucket = current.piece.bucket
            self.occupations.append(Occupation(link, current.since, until, -1, bucket))

    def _served(self, link: int, current: _Service, now: int) -> None:
        """A link is done with a piece, unless transfers have come in between."""
        if current.end > now:
            self._at(current.end, partial(self._served, link, current))
            return
        self._record_service(link, current, now)
        piece, hop = current.piece, current.hop
        piece.arrival = max(piece.arrival, now + sum(h.latency for h in piece.route[hop:]))
        piece.open_hops -= 1
        if hop == 0 and piece.follow is not None:
            piece.follow(now)
        if piece.open_hops == 0 and piece.follow is None:
            self._at(piece.arrival, partial(self._count, piece.bucket))
        self.serving[link] = None
        if self.queues[link]:
            self._serve(link, now)

    def _count(self, bucket: int, now: int) -> None:
        """One task of a bucket is done; with the last one the bucket is there."""
        self.missing[bucket] -= 1
        if self.missing[bucket]:
            return
        self.there[bucket] = now
        for cell in self.parked.pop(bucket, ()):
            self._run_steps(cell)

    def _transfer(
        self, slot: int, route: Route, cell: int, position: int, now: int, blocked: int
    ) -> None:
        """Send the result of an op; a single hop needs no event of its own."""
        if len(route) == 1 and route[0].link not in self.lines:
            link, service, latency = route[0]
            begin = self.free[link]
            if begin < now:
                begin = now
            end = begin + service
            self.free[link] = end
            self.transfer_busy[link] += service
            current = self.serving[link]
            if current is not None:
                self._suspend(link, current, service, now)
            if self.record:
                self.occupations.append(Occupation(link, begin, end, cell, position))
            self._deliver(slot, blocked, end + latency)
        elif route:
            deliver = partial(self._deliver, slot, blocked)
            self._pass(route, 0, 0, deliver, cell, position, now)
        else:
            self._deliver(slot, blocked, now)

    def _pass(
        self,
        route: Route,
        index: int,
        arrival: int,
        deliver: Callable[[int], None],
        cell: int,
        position: int,
        now: int,
    ) -> None:
        """Let a head at hop ``index`` go on; ``arrival`` is when the hops before allow it."""
        while True:
            link, service, latency = route[index]
            line = self.lines.get(link)
            if line is not None:
                turn = Turn(self.scenario.cells[cell].stage, position, index)
                call = partial(self._pass, route, index, arrival, deliver, cell, position)
                if not line.admits(turn, call):
                    return
                for waiting in line.served():
                    self._at(now, waiting)
            begin = max(now, self.free[link])
            end = begin + service
            self.free[link] = end
            self.transfer_busy[link] += service
            current = self.serving[link]
            if current is not None:
                self._suspend(link, current, service, now)
            if self.record and service:
                self.occupations.append(Occupation(link, begin, end, cell, position))
            arrival = max(arrival, end) + latency
            index += 1
            if index == len(route):
                deliver(arrival)
                return
            head = begin + latency
            if head > now:
                call = partial(self._pass, route, index, arrival, deliver, cell, position)
                self._at(head, call)
                return

    def _deliver(self, slot: int, blocked: int, arrival: int) -> None:
        """Note when an input comes; wake the cell that waits for it and the one that sent it."""
        self.arrived[slot] = arrival
        cell = self.waiter[slot]
        if cell >= 0:
            self._start(cell, self.idle_from[cell])
        if blocked >= 0:
            self._start(blocked, arrival)

    def _check_finished(self) -> None:
        stuck = [
            f"{self.scenario.orders[row.stage][self.position[c]]} of stage {row.stage}"
            for c, row in enumerate(self.scenario.cells)
            if self.position[c] < len(self.needs[c])
        ]
        if stuck:
            raise ValueError(f"the op orders deadlock; waiting: {', '.join(stuck)}")

    def _finished(self) -> Run:
        done = [
            max([ends[-1] if ends else 0, *(self.there[b] for b in row.last)]) + row.tail
            for row, ends in zip(self.scenario.cells, self.ends, strict=True)
        ]

        def by_position(values: list[int]) -> list[list[int]]:
            return [[values[n] if n >= 0 else -1 for n in needs] for needs in self.needs]

        return Run(
            end=max(done),
            starts=self.starts,
            ends=self.ends,
            sent=by_position(self.sent),
            arrived=by_position(self.arrived),
            done=done,
            buckets=self.there,
            transfer_busy=self.transfer_busy,
            exchange_busy=self.exchange_busy,
            occupations=self.occupations,
            team_tasks=self.team_tasks,
        )


def _lines(scenario: Scenario) -> dict[int, _Line]:
    """The links with turns, and how many cells send a head for each turn."""
    senders: dict[tuple[int, int, int, OpKind, int], int] = {}
    for cell in scenario.cells:
        for (kind, chunk), send in cell.sends.items():
            for hop, (link, _, _) in enumerate(send.route):
                key = (link, hop, cell.stage, kind, chunk)
                senders[key] = senders.get(key, 0) + 1
    lines = {}
    for link, turns in scenario.turns.items():
        heads = {}
        for turn in turns:
            kind, chunk, _ = scenario.orders[turn.device][turn.position]
            heads[turn] = senders.get((link, turn.hop, turn.device, kind, chunk), 0)
        lines[link] = _Line([turn for turn in turns if heads[turn]], heads)
    return lines


def _checked(order: Sequence[Op]) -> Sequence[Op]:
    """Return an order in which every op comes after those of its cell that it depends on."""
    seen: set[Op] = set()
    chunks = {op.chunk for op in order}
    for op in order:
        kind, chunk, n = op
        before = {
            "F": [Op("F", chunk - 1, n)] if chunk - 1 in chunks else [],
            "B": [Op("F", chunk, n)] + ([Op("B", chunk + 1, n)] if chunk + 1 in chunks else []),
            "W": [Op("B", chunk, n)],
        }[kind]
        for needed in before:
            if needed not in seen:
                raise ValueError(f"{op} comes before its {needed}")
        seen.add(op)
    return order
