"""Nemotron 340B on two sites 1,000 km apart: how it synchronises, and what the distance costs."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest

from bench.scaling_efficiency import WAYS, instance_of, synchronisation
from planner.check import check_plan
from planner.search.result import SolveResult, SolveStatus
from planner.search.solve import solve

BETWEEN_SITES = WAYS[0]
GPUS = 1024


@lru_cache
def best(bandwidth_tbps: float | None, **search: Any) -> SolveResult:
    instance = instance_of(GPUS, bandwidth_tbps, BETWEEN_SITES, **search)
    result = solve(instance)
    assert result.status is SolveStatus.OPTIMAL
    assert result.plan is not None
    assert check_plan(instance, result.plan).time_us == result.time_us == result.bound_us
    return result


def time_us(bandwidth_tbps: float | None, **search: Any) -> int:
    found = best(bandwidth_tbps, **search).time_us
    assert found is not None
    return found


def test_the_best_synchronisation_is_hierarchical() -> None:
    """With one shard group a site the flat ring is the same exchange, so both take as long."""
    result = best(3.2)
    assert synchronisation(result) == "hierarchical"
    assert time_us(3.2, sync="hierarchical") == result.time_us
    assert time_us(3.2, sync="flat") >= result.time_us


def test_a_flat_ring_through_several_groups_of_a_site_is_slower() -> None:
    groups = {"dp_replicate": 4}
    assert time_us(3.2, sync="hierarchical", **groups) < time_us(3.2, sync="flat", **groups)


@pytest.mark.parametrize(("bandwidth_tbps", "efficiency"), [(3.2, 0.915), (6.4, 0.956)])
def test_scaling_efficiency(bandwidth_tbps: float, efficiency: float) -> None:
    """The published 96 % lies at 6.4 Tb/s for 1,024 GPUs."""
    share = time_us(None) / time_us(bandwidth_tbps)
    assert share == pytest.approx(efficiency, abs=0.006)
