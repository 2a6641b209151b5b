"""The event simulation against the longest path, and its rules one by one."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.pipeline.event_graph import Duration, event_graph
from planner.pipeline.ops import Op
from planner.pipeline.schedules import Template
from planner.pipeline.simulator import (
    Bucket,
    Cell,
    Exchange,
    Hop,
    Part,
    Scenario,
    Send,
    Step,
    simulate_scenario,
)
from tests.pipeline.pipelines import both_ways, pipeline, templates


@settings(max_examples=300, deadline=None)
@given(templates(), st.data())
def test_links_of_their_own_give_the_longest_path(template: Template, data: st.DataObject) -> None:
    """Two computations that share no line: events in time, and a longest path."""
    graph = event_graph(template)
    values = {variable: data.draw(st.integers(0, 9)) for variable in graph.variables}
    hops = {}
    for variable in graph.variables:
        if variable.kind == "delay" and isinstance(variable.index, tuple):
            service = values.get(Duration("occupancy", variable.index), 0)
            values[variable] += service
            hops[variable.index] = (service, values[variable] - service)
        elif variable.kind in ("start", "end"):
            values[variable] = 0
    run = pipeline(template, lambda kind, k: values[Duration(kind, k)], hops)
    assert run.end == graph.evaluate(values)
    timeline = graph.timeline(values)
    for s in range(template.pp):
        ops = [entry for entry in timeline if entry.device == s]
        assert [entry.start for entry in ops] == run.starts[s]
        assert [entry.end for entry in ops] == run.ends[s]


@settings(max_examples=150, deadline=None)
@given(templates(), st.data())
def test_devices_and_links_do_one_thing_at_a_time(template: Template, data: st.DataObject) -> None:
    numbers = st.integers(0, 9)
    hops = both_ways({i: (data.draw(numbers), data.draw(numbers)) for i in range(template.pp - 1)})
    hops |= {(template.pp - 1, 0): (2, 3), (0, template.pp - 1): (2, 3)} if template.pp > 2 else {}
    run = pipeline(template, lambda kind, k: 1 + (k + ord(kind)) % 4, hops)
    for starts, ends in zip(run.starts, run.ends, strict=True):
        assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))
    for link in range(len(hops)):
        served = [(o.begin, o.end) for o in run.occupations if o.link == link]
        assert served == sorted(served)
        assert all(a[1] <= b[0] for a, b in pairwise(served))
        assert sum(end - begin for begin, end in served) == run.transfer_busy[link]
    for cell in range(template.pp):
        for start, sent, came in zip(
            run.starts[cell], run.sent[cell], run.arrived[cell], strict=True
        ):
            assert sent <= came <= start


def one_way(routes: list[tuple[Hop, ...]], ticks: int = 1, links: int = 4) -> list[int]:
    """When the forwards of senders arrive at receivers of their own: pairs of two stages."""
    orders = [[Op("F", 0, 0)], [Op("F", 1, 0)]]
    cells = []
    for i, route in enumerate(routes):
        send = {("F", 0): Send(2 * i + 1, route)}
        cells.append(Cell(0, {("F", 0): ticks}, send))  # type: ignore[arg-type]
        cells.append(Cell(1, {("F", 1): 0}))
    run = simulate_scenario(Scenario(orders, cells, links))
    return [run.arrived[2 * i + 1][0] for i in range(len(routes))]


def test_transfers_that_share_a_link_queue_in_the_order_in_which_they_come() -> None:
    assert one_way([(Hop(0, 5, 2),), (Hop(0, 3, 2),)]) == [1 + 5 + 2, 1 + 5 + 3 + 2]
    # The second is on its way over link 1 when the first takes link 0.
    first, second = (Hop(0, 5, 2),), (Hop(1, 1, 1), Hop(0, 3, 2))
    assert one_way([second, first]) == [1 + 5 + 3 + 2, 1 + 5 + 2]


def test_a_route_is_cut_through() -> None:
    """The slowest hop counts once, the latencies add up."""
    assert one_way([(Hop(0, 2, 1), Hop(1, 7, 2), Hop(2, 3, 4))]) == [1 + 7 + 1 + 2 + 4]
    assert one_way([(Hop(0, 9, 1), Hop(1, 7, 2), Hop(2, 3, 4))]) == [1 + 9 + 1 + 2 + 4]
    assert one_way([()]) == [1]


def test_a_blocked_sender_goes_on_when_its_transfer_has_arrived() -> None:
    template = Template("1f1b", 2, 1, 3, None, (0, 0))
    free = pipeline(template, lambda kind, k: 2, both_ways({0: (1, 4)}))
    held = pipeline(template, lambda kind, k: 2, both_ways({0: (1, 4)}), blocking=True)
    assert free.starts[0][:2] == [0, 2]
    assert held.starts[0][:2] == [0, 2 + 5]
    assert held.starts[1][0] == 2 + 5
    assert held.starts[1][1] == 9
    assert held.starts[1][2] == 16
    assert free.starts[1][2] == 11


def test_orders_that_cannot_run_are_refused() -> None:
    template = Template("1f1b", 2, 1, 2, None, (0, 0))

    def ops(text: str) -> list[Op]:
        return [Op(w[0], *map(int, w[1:].split("."))) for w in text.split()]  # type: ignore[arg-type]

    stuck = [ops("F0.0 B0.0 F0.1 B0.1"), ops("F1.0 F1.1 B1.0 B1.1")]
    with pytest.raises(ValueError, match="deadlock"):
        pipeline(template, lambda kind, k: 1, orders=stuck)
    backwards = [ops("F0.0 F0.1 B0.0 B0.1"), ops("B1.0 F1.0 F1.1 B1.1")]
    with pytest.raises(ValueError, match="comes before its"):
        pipeline(template, lambda kind, k: 1, orders=backwards)


def lone_cell(buckets: list[Bucket], **more: object) -> list[int]:
    """Start, end of F and B, and end of everything, of a stage with ops of 6 and 8 ticks."""
    orders = [[Op("F", 0, 0), Op("B", 0, 0)]]
    cell = Cell(0, {("F", 0): 6, ("B", 0): 8}, **more)  # type: ignore[arg-type]
    run = simulate_scenario(Scenario(orders, [cell], 3, buckets, [0]))
    return [run.starts[0][0], run.ends[0][0], run.ends[0][1], run.end]


@pytest.mark.parametrize(("network", "end"), [(1, 1 + 6), (3, 3 * 3 + 2), (5, 3 * 5 + 2)])
def test_a_layer_waits_for_its_own_parameters(network: int, end: int) -> None:
    """Three layers of 2 ticks: the gather or the computation is the bottleneck."""
    gathers = [Bucket((Part(0, 0, network, 0, ()),), True) for _ in range(3)]
    waits = {0: tuple(Step(b, 2) for b in range(3))}
    found = lone_cell(gathers, waits=waits)
    assert found[:2] == [network, end]


@pytest.mark.parametrize(("network", "end"), [(1, 14 + 1), (4, 14 + 4), (6, 6 + 4 + 2 * 6)])
def test_a_layer_is_reduced_when_its_gradient_is_there(network: int, end: int) -> None:
    """Two layers of 4 ticks: the last one alone is exposed, or both follow each other."""
    reductions = [Bucket((Part(0, 1, network, 0, ()),), True) for _ in range(2)]
    readies = {1: (Step(1, 4), Step(0, 4))}
    assert lone_cell(reductions, readies=readies, last=(0, 1)) == [0, 6, 14, end]


def test_latency_and_optimizer_come_last() -> None:
    bucket = Bucket((Part(0, 1, 3, 2, ()),), True)
    assert lone_cell([bucket], readies={1: (Step(0, 8),)}, last=(0,), tail=5)[3] == 14 + 3 + 2 + 5


@pytest.mark.parametrize(("sequential", "end"), [(True, 14 + 3 + 7 + 1), (False, 14 + 7 + 1)])
def test_an_exchange_follows_the_network_or_runs_beside_it(sequential: bool, end: int) -> None:
    exchange = Exchange((Hop(0, 2, 0), Hop(1, 7, 1)), 1)
    bucket = Bucket((Part(0, 1, 3, 0, (exchange,)),), sequential)
    assert lone_cell([bucket], readies={1: (Step(0, 8),)}, last=(0,))[3] == end


def test_exchanges_take_turns_on_a_link() -> None:
    """Two exchanges of 40 ticks from two ports: in one piece one is first, in eight both go on."""
    for pieces, ends in ((1, [40, 80]), (8, [75, 80])):
        parts = [
            Part(0, 0, 0, 0, (Exchange((Hop(i, 40, 0), Hop(2, 40, 0)), pieces),)) for i in range(2)
        ]
        buckets = [Bucket((part,), False) for part in parts]
        orders = [[Op("F", 0, 0)]]
        run = simulate_scenario(
            Scenario(orders, [Cell(0, {("F", 0): 0}, last=(0, 1))], 3, buckets, [0])
        )
        assert run.buckets == ends
        assert run.exchange_busy == [40, 40, 80]


def test_transfers_suspend_an_exchange() -> None:
    """100 ticks of exchange from the start; transfers of 10 ticks pass at once at 30 and 60."""
    orders = [[Op("F", k, n) for n in range(2)] for k in range(2)]
    send = Send(1, (Hop(0, 10, 3),))
    cells = [Cell(0, {("F", 0): 30}, {("F", 0): send}), Cell(1, {("F", 1): 1}, last=(0,))]
    bucket = Bucket((Part(0, 0, 0, 0, (Exchange((Hop(0, 100, 5),), 1),)),), False)
    run = simulate_scenario(Scenario(orders, cells, 1, [bucket], [0, 0]), record=True)
    assert run.arrived[1] == [30 + 10 + 3, 60 + 10 + 3]
    assert run.buckets == [100 + 2 * 10 + 5]
    served = sorted((o.begin, o.end, o.cell) for o in run.occupations)
    assert served == [(0, 30, -1), (30, 40, 0), (40, 60, -1), (60, 70, 0), (70, 120, -1)]
    assert (run.transfer_busy, run.exchange_busy) == ([20], [100])


def test_an_exchange_begins_when_the_transfers_have_passed() -> None:
    """The reduction is ready when its own op's transfer begins; its piece goes after that one."""
    orders = [[Op("F", 0, 0)], [Op("F", 1, 0)]]
    send = Send(1, (Hop(0, 10, 0),))
    bucket = Bucket((Part(0, 1, 0, 0, (Exchange((Hop(0, 7, 1), Hop(1, 9, 0)), 1),)),), False)
    cells = [
        Cell(0, {("F", 0): 30}, {("F", 0): send}, readies={0: (Step(0, 30),)}, last=(0,)),
        Cell(1, {("F", 1): 1}),
    ]
    run = simulate_scenario(Scenario(orders, cells, 2, [bucket], [0, 1]))
    assert run.buckets == [30 + 10 + 1 + 9]


def test_links_serve_the_least_rank_first() -> None:
    """The piece that comes first is served, then those that wait by rank."""
    buckets = [
        Bucket((Part(0, 0, 0, 0, (Exchange((Hop(0, 10, 0),), 1),)),), False, rank)
        for rank in (3, 2, 1, 2)
    ]
    cell = Cell(0, {("F", 0): 0}, last=(0, 1, 2, 3))
    run = simulate_scenario(Scenario([[Op("F", 0, 0)]], [cell], 1, buckets, [0]))
    assert run.buckets == [10, 30, 20, 40]


def test_a_bucket_waits_for_every_cell_of_its_team() -> None:
    orders = [[Op("F", 0, 0), Op("B", 0, 0)]]
    cells = [
        Cell(0, {("F", 0): n, ("B", 0): 1}, readies={1: (Step(0, 1),)}, last=(0,)) for n in (2, 9)
    ]
    bucket = Bucket((Part(0, 2, 5, 0, ()),), True)
    run = simulate_scenario(Scenario(orders, cells, 0, [bucket], [0, 0]))
    assert run.done == [15, 15]
