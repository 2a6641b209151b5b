"""Assembly of the strong formulation."""

from __future__ import annotations

from collections.abc import Iterable

from formulations.cuts import PathCut
from formulations.plain import PlainModel, build_plain
from formulations.strong import rows
from planner.choices import CaseChoices
from planner.cost.least import PairCosts


def build_strong(
    choices: CaseChoices, cuts: Iterable[PathCut], upper: int, least: PairCosts
) -> PlainModel:
    """Build the model of one schedule and option of a degrees case.

    Parameters
    ----------
    choices
        The alternatives of the case, narrowed to one pair of schedule and option.
    cuts
        Paths of the event graph to use; any subset gives a valid lower bound.
    upper
        Only plans with ``Z <= upper`` (µs) are wanted; bounds every duration.
    least
        What the pair costs at least, wherever its stages run.

    Raises
    ------
    ValueError
        If there is more than one pair.
    """
    if len(choices.pairs) != 1:
        raise ValueError(f"a model is of one schedule and option, not of {len(choices.pairs)}")
    built = build_plain(choices, cuts, upper)
    v = built.variables
    rows.least_ops(v, least)
    rows.least_transfers(v, least)
    rows.least_synchronisation(v, least)
    rows.least_hosts(v, least)
    rows.least_crossings(v, least)
    return built
