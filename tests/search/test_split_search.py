"""Local search over whole-layer splits: exact prices of moves, optima of small templates."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from planner.cost.least import SplitCosts, StageSync
from planner.pipeline.schedules import Template
from planner.search.split_search import SplitSearch
from planner.search.template_bound import TemplateBound

LIMIT = 10**9
"""Above every length here, µs."""


def costs(*, room: int = 1000, kinds: int = 1) -> SplitCosts:
    """A layer takes 3 ms there and 6 ms back (the second kind twice that); 10 and 5 MiB."""
    layer = tuple(range(1, kinds + 1))
    forward = (*(3000 * n for n in layer), 500, 2000)
    backward = (*(6000 * n for n in layer), 0, 4000)
    nothing = (0.0,) * (kinds + 2)
    sync = StageSync(nothing, 0, 0, 0, nothing, 0, 0, 0, nothing, hides=False)
    return SplitCosts(
        forward=forward,
        backward=backward,
        weight=(0,) * (kinds + 2),
        state=(*(10 * n for n in layer), 3, 3),
        activation=(*(5 * n for n in layer), 0, 0),
        held=(0,) * (kinds + 2),
        room=room,
        head_room=room,
        delay=200,
        occupancy=100,
        sync=sync,
    )


def relaxation(schedule: str, pp: int, v: int, m: int, units: tuple[int, ...]) -> TemplateBound:
    run_length = pp if schedule in ("interleaved", "dora") else None
    template = Template(schedule, pp, v, m, run_length, (0,) * pp)
    return TemplateBound(template, units, any_warmup=False)


def all_splits(layers: int, chunks: int) -> list[tuple[int, ...]]:
    """Every way to give each chunk at least one of the layers."""
    cuts = combinations(range(1, layers), chunks - 1)
    return [tuple(np.diff([0, *cut, layers]).tolist()) for cut in cuts]


@pytest.mark.parametrize("units", [(0,) * 13, (0, 0, 0, 1, 1, 1, 1, 0, 1, 1, 0, 0, 1)])
def test_moves_are_priced_exactly(units: tuple[int, ...]) -> None:
    """Cumulative sums give what pricing every neighbour by itself gives."""
    search = SplitSearch(relaxation("interleaved", 2, 2, 4, units), costs(kinds=len(set(units))))
    layers = np.array([4, 1, 5, 3])
    rows, limits = search.priced.paths()

    def excess(split: np.ndarray) -> float:
        return float((np.tensordot(rows, search._units(split), 2) - limits).max())

    alone = {
        (source, target): excess(search._moved(layers, source, target))
        for source in range(4)
        for target in range(4)
        if source != target and layers[source] > 1
    }
    for floor in (-np.inf, sorted(alone.values())[len(alone) // 2]):
        found, own = search._after_moves(rows, limits, layers, floor)
        assert own == pytest.approx(excess(layers))
        for move, value in alone.items():
            assert found[move] == pytest.approx(max(value, floor))


@pytest.mark.parametrize(
    ("schedule", "v"), [("1f1b", 1), ("interleaved", 2), ("zbv", 2), ("dora", 2)]
)
@pytest.mark.parametrize("room", [1000, 130])
def test_small_templates_are_solved(schedule: str, v: int, room: int) -> None:
    """The best of all splits is found, and no bound of the relaxations exceeds it."""
    bound = relaxation(schedule, 3, v, 6, (0,) * 10)
    priced = bound.priced(costs(room=room))
    search = SplitSearch(bound, costs(room=room))
    fitting = [s for s in all_splits(10, 3 * v) if search._missing(np.array(s)) <= 0]
    lengths = [priced.lengthen(search._units(np.array(split))) for split in fitting]
    fresh = relaxation(schedule, 3, v, 6, (0,) * 10)
    found = SplitSearch(fresh, costs(room=room)).run(60, LIMIT)
    if not fitting:
        assert found is None
        return
    assert found is not None
    assert found.layers in fitting
    assert found.length_us == pytest.approx(min(lengths))
    least, split = fresh.whole_layers(costs(room=room), LIMIT, 20.0)
    assert least <= min(lengths) <= least + 2
    assert split in fitting
    value = fresh.value(costs(room=room), LIMIT)
    assert value is not None and value <= min(lengths)


def test_splits_that_are_too_long_are_left() -> None:
    """Nothing is found, and few paths are looked for, where no split is short enough."""
    bound = relaxation("interleaved", 3, 2, 6, (0,) * 10)
    before = len(bound.rows)
    assert SplitSearch(bound, costs()).run(60, 1.0) is None
    assert len(bound.rows) == before


def test_memory_that_no_split_fits() -> None:
    bound = relaxation("1f1b", 3, 1, 6, (0,) * 10)
    assert bound.search_splits(costs(room=40), 20, LIMIT) is None
