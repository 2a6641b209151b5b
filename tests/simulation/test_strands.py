"""Replica counts as strands."""

from __future__ import annotations

import pytest

from planner.layout import Flows
from planner.simulation.strands import Strand, strands


def moved(found: tuple[Strand, ...], pp: int, *, round_trip: bool) -> Flows:
    """The moves that strands make."""
    boundaries = []
    for b in range(pp if round_trip else pp - 1):
        moves: dict[tuple[int, int], int] = {}
        for strand in found:
            after = strand if b < pp - 1 else found[strand.after]
            pair = (strand.sites[b], after.sites[(b + 1) % pp])
            moves[pair] = moves.get(pair, 0) + strand.replicas
        boundaries.append(tuple((d, e, r) for (d, e), r in sorted(moves.items())))
    return tuple(boundaries)


CASES: dict[str, tuple[Flows, tuple[int, ...], int]] = {
    "one site": ((((0, 0, 8),),), (8,), 2),
    "one stage": ((), (3, 5), 1),
    "out and back": ((((0, 1, 4),), ((1, 0, 4),)), (4, 0), 3),
    "part moves": ((((0, 0, 2), (0, 1, 2)), ((0, 0, 2), (1, 1, 2))), (4, 0), 3),
    "two streams meet": ((((0, 2, 3), (1, 2, 1)), ((2, 0, 2), (2, 1, 2))), (3, 1, 0), 3),
    "loop at home": ((((0, 0, 4), (1, 1, 4)), ((0, 0, 4), (1, 1, 4))), (4, 4), 2),
    "loop that crosses over": ((((0, 0, 4), (1, 1, 4)), ((0, 1, 4), (1, 0, 4))), (4, 4), 2),
    "loop in part": (
        (((0, 0, 3), (1, 1, 5)), ((0, 0, 1), (0, 1, 2), (1, 0, 2), (1, 1, 3))),
        (3, 5),
        2,
    ),
    "loop of three": (
        (((0, 0, 2), (1, 1, 2), (2, 2, 2)), ((0, 1, 2), (1, 2, 2), (2, 0, 2))),
        (2, 2, 2),
        2,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_strands_make_the_moves_of_the_plan(name: str) -> None:
    flows, first, pp = CASES[name]
    found = strands(flows, first, pp)
    assert moved(found, pp, round_trip=len(flows) == pp) == flows
    for d, count in enumerate(first):
        assert sum(s.replicas for s in found if s.sites[0] == d) == count
    assert sorted(s.after for s in found) == list(range(len(found)))
    assert all(found[s.after].replicas == s.replicas for s in found)


def test_replicas_stay_where_they_can() -> None:
    flows, first, pp = CASES["loop in part"]
    assert [(s.sites, s.replicas) for s in strands(flows, first, pp) if s.after == 0][:1] == [
        ((0, 0), 1)
    ]
    at_home = strands(*CASES["loop at home"])
    assert [s.after for s in at_home] == [0, 1]
    over = strands(*CASES["loop that crosses over"])
    assert [s.after for s in over] == [1, 0]
