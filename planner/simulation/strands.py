"""Which cell hands its microbatches to which: the replica counts of a plan as strands.

A plan says how many replicas move from one site to another between two stages, not which ones; any
matching is runnable.  One is fixed here: replicas stay together and at their site as far as the
counts allow.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.layout import Flows

_Path = tuple[tuple[int, ...], int]
"""Sites of the stages, and how many replicas go that way."""


@dataclass(frozen=True)
class Strand:
    """Replicas that run every stage at the same site as each other.

    Attributes
    ----------
    sites
        Site of every stage, shape (pp,).
    replicas
        How many they are.
    after
        Number of the strand whose stage 0 takes their microbatches after the last stage, where the
        schedule goes round several times.
    """

    sites: tuple[int, ...]
    replicas: int
    after: int


def strands(flows: Flows, first: tuple[int, ...], pp: int) -> tuple[Strand, ...]:
    """Split the replicas of a plan into strands.

    Parameters
    ----------
    flows
        Moves per boundary; the boundary ``pp - 1``, if there is one, is the way back to stage 0.
    first
        Replicas of stage 0 at every site, shape (num_sites,).
    pp
        Number of stages.

    Returns
    -------
    tuple
        The strands; their replicas add up to ``sum(first)``.  Along ``after`` they form cycles of
        equal numbers of replicas, so that each cell has one predecessor.
    """
    paths: list[_Path] = [((d,), count) for d, count in enumerate(first) if count]
    for moves in flows[: pp - 1]:
        left = {(d, e): count for d, e, count in moves}
        longer: list[_Path] = []
        for sites, count in paths:
            here = sites[-1]
            targets = sorted((e for d, e in left if d == here), key=lambda e: (e != here, e))
            for target in targets:
                taken = min(count, left[here, target])
                if taken:
                    left[here, target] -= taken
                    count -= taken
                    longer.append(((*sites, target), taken))
        paths = longer
    if len(flows) < pp:
        return tuple(Strand(sites, count, i) for i, (sites, count) in enumerate(paths))
    return _cycles(paths, _ways_back(paths, flows[pp - 1]))


def _ways_back(
    paths: list[_Path], moves: tuple[tuple[int, int, int], ...]
) -> dict[tuple[int, int], int]:
    """Replicas that go back from the end of one path to the start of another, the same first."""
    leaving = [count for _, count in paths]
    coming = [count for _, count in paths]
    left = {(d, e): count for d, e, count in moves}
    arcs: dict[tuple[int, int], int] = {}

    def take(i: int, j: int) -> None:
        move = (paths[i][0][-1], paths[j][0][0])
        count = min(leaving[i], coming[j], left.get(move, 0))
        if count:
            arcs[i, j] = count
            leaving[i] -= count
            coming[j] -= count
            left[move] -= count

    for i in range(len(paths)):
        take(i, i)
    for i in range(len(paths)):
        for j in range(len(paths)):
            if i != j:
                take(i, j)
    return arcs


def _cycles(paths: list[_Path], arcs: dict[tuple[int, int], int]) -> tuple[Strand, ...]:
    """Split the circulation of replicas on the paths into cycles, one strand for each visit."""
    found: list[Strand] = []
    while arcs:
        walk = [min(i for i, _ in arcs)]
        while walk[-1] not in walk[:-1]:
            walk.append(min(j for i, j in arcs if i == walk[-1]))
        cycle = walk[walk.index(walk[-1]) : -1]
        steps = list(zip(cycle, cycle[1:] + cycle[:1], strict=True))
        count = min(arcs[step] for step in steps)
        base = len(found)
        for number, step in enumerate(steps):
            after = base + (number + 1) % len(cycle)
            found.append(Strand(paths[step[0]][0], count, after))
            arcs[step] -= count
            if not arcs[step]:
                del arcs[step]
    return tuple(found)
