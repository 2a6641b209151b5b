"""The event graph against a plain longest-path computation on an explicit graph."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from graphlib import TopologicalSorter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.pipeline.event_graph import Duration, EventGraph, event_graph
from planner.pipeline.schedules import (
    Op,
    Template,
    chunk_devices,
    device_orders,
)
from tests.pipeline.pipelines import templates

Values = Mapping[Duration, int]


def drawn_values(data: st.DataObject, graph: EventGraph, most: int = 9) -> dict[Duration, int]:
    numbers = st.lists(
        st.integers(0, most), min_size=len(graph.variables), max_size=len(graph.variables)
    )
    return dict(zip(graph.variables, data.draw(numbers), strict=True))


def ops_before(op: Op, chunks: int) -> list[Op]:
    kind, k, n = op
    if kind == "F":
        return [Op("F", k - 1, n)] if k > 0 else []
    if kind == "W":
        return [Op("B", k, n)]
    return [Op("F", k, n)] + ([Op("B", k + 1, n)] if k + 1 < chunks else [])


def explicit_longest_path(template: Template, values: Values) -> tuple[int, dict[Op, int]]:
    """Longest path over op and transfer nodes, straight from the rules of the time model.

    Returns the length and the end of every op.
    """
    devices = chunk_devices(template.schedule, template.pp, template.v)
    orders = device_orders(template)
    chunks = len(devices)
    # node -> list of (node before, time from its value to the value of this node)
    before: dict[tuple[str, Op], list[tuple[tuple[str, Op], int]]] = defaultdict(list)
    base: dict[tuple[str, Op], int] = {}
    for device, order in enumerate(orders):
        last_transfer: dict[tuple[int, int], Op] = {}
        for i, op in enumerate(order):
            kind, k, _ = op
            node = ("end", op)
            duration = values[Duration(kind, k)]
            base[node] = values[Duration("start", device)] + duration if i == 0 else 0
            if i > 0:
                before[node].append((("end", order[i - 1]), duration))
            for producer in ops_before(op, chunks):
                edge = (devices[producer.chunk], device)
                if edge[0] == device:
                    before[node].append((("end", producer), duration))
                else:
                    delay = values[Duration("delay", edge)]
                    before[node].append((("begin", producer), delay + duration))
            target = k + 1 if kind == "F" else k - 1
            if kind != "W" and 0 <= target < chunks and devices[target] != device:
                edge = (device, devices[target])
                begin = ("begin", op)
                base[begin] = 0
                before[begin].append((node, 0))
                if edge in last_transfer:
                    queue = ("begin", last_transfer[edge])
                    before[begin].append((queue, values[Duration("occupancy", edge)]))
                last_transfer[edge] = op
    value: dict[tuple[str, Op], int] = {}
    graph = {node: [other for other, _ in before[node]] for node in base}
    for node in TopologicalSorter(graph).static_order():
        value[node] = max([base[node]] + [value[other] + time for other, time in before[node]])
    ends = {op: time for (part, op), time in value.items() if part == "end"}
    return (
        max(
            ends[order[-1]] + values[Duration("end", device)] for device, order in enumerate(orders)
        ),
        ends,
    )


@settings(max_examples=300, deadline=None)
@given(templates(), st.data())
def test_longest_path_equals_the_explicit_graph(template: Template, data: st.DataObject) -> None:
    graph = event_graph(template)
    values = drawn_values(data, graph)
    longest, ends = explicit_longest_path(template, values)
    assert graph.evaluate(values) == longest
    assert {entry.op: entry.end for entry in graph.timeline(values)} == ends


@settings(max_examples=200, deadline=None)
@given(templates(), st.data())
def test_path_coefficients_are_lower_bounds(template: Template, data: st.DataObject) -> None:
    graph = event_graph(template)
    values = drawn_values(data, graph)
    longest, coefficients = graph.critical_path(values)
    assert longest == graph.evaluate(values)
    assert longest == sum(count * values[variable] for variable, count in coefficients.items())
    assert all(count > 0 for count in coefficients.values())
    assert sum(count for (kind, _), count in coefficients.items() if kind == "start") == 1
    assert sum(count for (kind, _), count in coefficients.items() if kind == "end") == 1
    for _ in range(3):
        other = drawn_values(data, graph, most=30)
        bound = sum(count * other[variable] for variable, count in coefficients.items())
        assert bound <= graph.evaluate(other)


@settings(max_examples=200, deadline=None)
@given(templates(), st.data())
def test_more_time_never_shortens_the_iteration(template: Template, data: st.DataObject) -> None:
    graph = event_graph(template)
    values = drawn_values(data, graph)
    variable = data.draw(st.sampled_from(graph.variables))
    longer = {**values, variable: values[variable] + data.draw(st.integers(1, 9))}
    assert graph.evaluate(longer) >= graph.evaluate(values)


@settings(max_examples=60, deadline=None)
@given(templates(), st.data())
def test_batch_equals_one_by_one(template: Template, data: st.DataObject) -> None:
    graph = event_graph(template)
    batch = [drawn_values(data, graph, most=4) for _ in range(data.draw(st.integers(12, 20)))]
    assert graph.critical_paths(batch) == [graph.critical_path(values) for values in batch]


def test_batch_of_values_beyond_64_bits_is_exact() -> None:
    graph = event_graph(Template("zbv", 3, 2, 6, None, (0, 0, 0)))
    batch = [dict.fromkeys(graph.variables, 10**18 + i) for i in range(20)]
    assert graph.critical_paths(batch) == [graph.critical_path(values) for values in batch]


def test_batch_is_cut_into_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.pipeline.event_graph._BATCH_CELLS", 200)
    graph = event_graph(Template("dora", 3, 2, 6, 3, (0, 0, 0)))
    batch = [
        {variable: (7 * i + 3 * j) % 11 for j, variable in enumerate(graph.variables)}
        for i in range(17)
    ]
    assert graph.critical_paths(batch) == [graph.critical_path(values) for values in batch]


def test_variables_are_those_that_occur() -> None:
    graph = event_graph(Template("zbv", 2, 2, 3, None, (0, 0)))
    expected = {Duration(kind, k) for kind in ("F", "B", "W") for k in range(4)}
    expected |= {
        Duration(kind, edge) for kind in ("delay", "occupancy") for edge in ((0, 1), (1, 0))
    }
    expected |= {Duration(kind, s) for kind in ("start", "end") for s in range(2)}
    assert set(graph.variables) == expected
    assert len(graph.variables) == len(expected)
    single = event_graph(Template("1f1b", 2, 1, 1, None, (0, 0)))
    assert not any(variable.kind == "occupancy" for variable in single.variables)
    one_device = event_graph(Template("interleaved", 1, 3, 2, 1, (0,)))
    assert not any(variable.kind == "delay" for variable in one_device.variables)


def test_ties_are_broken_towards_the_device_and_the_producer() -> None:
    graph = event_graph(Template("gpipe", 2, 1, 2, None, (0, 0)))
    longest, coefficients = graph.critical_path(dict.fromkeys(graph.variables, 0))
    assert longest == 0
    assert coefficients == {
        Duration("start", 0): 1,
        Duration("F", 0): 2,
        Duration("B", 0): 2,
        Duration("end", 0): 1,
    }


def test_values_are_checked() -> None:
    graph = event_graph(Template("gpipe", 2, 1, 2, None, (0, 0)))
    values = dict.fromkeys(graph.variables, 1)
    negative = {**values, Duration("B", 1): -1}
    with pytest.raises(ValueError, match=r"negative value for .*'B', index=1"):
        graph.evaluate(negative)
    with pytest.raises(ValueError, match="negative"):
        graph.critical_paths([negative] * 10)
    del values[Duration("F", 1)]
    with pytest.raises(ValueError, match=r"no value for .*'F', index=1"):
        graph.critical_path(values)


@pytest.mark.parametrize(
    ("orders", "message"),
    [
        ("F0.0 F0.1 B0.1 B0.0|F1.0 B1.0 F1.1 B1.1", None),
        ("F0.0 B0.0 F0.1 B0.1|F1.0 F1.1 B1.0 B1.1", "deadlock"),
        ("F0.0 F0.1 B0.0 B0.1|B1.0 F1.0 F1.1 B1.1", "before its F"),
    ],
)
def test_orders_that_cannot_run_are_refused(
    monkeypatch: pytest.MonkeyPatch, orders: str, message: str | None
) -> None:
    def ops(text: str) -> tuple[Op, ...]:
        return tuple(
            Op(word[0], *map(int, word[1:].split(".")))  # type: ignore[arg-type]
            for word in text.split()
        )

    made = tuple(map(ops, orders.split("|")))
    monkeypatch.setattr("planner.pipeline.event_graph.device_orders", lambda _: made)
    template = Template("1f1b", 2, 1, 2, None, (0, 0))
    if message is None:
        EventGraph(template)
    else:
        with pytest.raises(ValueError, match=message):
            EventGraph(template)


def test_graphs_are_shared() -> None:
    template = Template("1f1b", 2, 1, 2, None, (0, 0))
    assert event_graph(template) is event_graph(Template("1f1b", 2, 1, 2, None, (0, 0)))
