"""Enumeration, CP-SAT and CBC give the same optimum, to the integer, on 200 random instances."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from planner.backends import Engine, EnginePool
from planner.backends import SolveStatus as EngineStatus
from planner.instance.schema import StackSpec
from planner.search.solve import solve
from tests.agreement import assert_settled, tie_key, winning_case
from tests.brute_force import best_plan
from tests.random_instances import random_instance

SEEDS = range(200)
SOFTWARE_SEEDS = range(10)
"""Seeds that are also tried with software unlike any of the catalog."""
STRONG_SEEDS = range(1, 200, 5)
"""Seeds on which all cases are solved by the strong formulation."""
CBC_SEEDS = range(3, 200, 10)
"""Seeds on which CBC is the engine of the whole search."""


@pytest.fixture(scope="session")
def cbc() -> Iterator[Engine]:
    """One warm CBC."""
    with EnginePool() as pool:
        yield pool.engine("cbc")


@pytest.mark.parametrize("seed", SEEDS)
def test_enumeration_and_both_engines_agree(seed: int, cbc: Engine) -> None:
    """Best plan of all = optimum of the search by CP-SAT = optimum of the winning case by CBC.

    Of the plans with this Z the search returns one that comes first in the order of ties.
    """
    instance = random_instance(seed)
    brute = best_plan(instance, samples=0)
    result = solve(instance, backend="cp-sat")
    assert_settled(instance, result)
    assert result.time_us == brute.best_time_us
    assert tie_key(result.plan) == tie_key(brute.plan)
    if brute.plan is None or brute.best_time_us is None:
        assert brute.feasible == 0
        return
    outcome = winning_case(instance, brute.plan, brute.best_time_us, cbc)
    assert outcome.status is EngineStatus.OPTIMAL, (outcome.status, outcome.message)
    assert outcome.time_us == outcome.bound_us == brute.best_time_us
    assert "CBC" in outcome.engine


def other_software(seed: int) -> StackSpec:
    """A stack whose numbers and facts lie anywhere in their ranges."""
    rng = random.Random(f"software {seed}")
    shares = ("tp_exposed", "ep_exposed", "fsdp_exposed")
    return StackSpec.model_validate(
        {
            **{name: rng.choice((0, rng.random(), 1)) for name in shares},
            "routing_factor": rng.choice((0, 1, 20)),
            "host_floor_s": rng.choice((0, 1e-4, 1e-2)),
            "fixed_s": rng.choice((0, 0.05)),
            "attention_kernel": rng.choice(("fused", "triton", "unfused")),
            "selective_recompute": rng.choice(("attention", "operators")),
            "sequence_parallel": rng.random() < 0.5,
            "flat_rings": rng.random() < 0.5,
        }
    )


@pytest.mark.parametrize("seed", SOFTWARE_SEEDS)
def test_search_and_enumeration_agree_for_any_software(seed: int) -> None:
    """Bounds and rules hold whatever the host floor and the exposed shares make of durations."""
    instance = random_instance(seed).model_copy(update={"stack": other_software(seed)})
    brute = best_plan(instance)
    result = solve(instance, backend="cp-sat")
    assert_settled(instance, result)
    assert result.time_us == brute.best_time_us
    assert tie_key(result.plan) == tie_key(brute.plan)


@pytest.mark.parametrize("seed", STRONG_SEEDS)
def test_search_with_the_strong_formulation(seed: int) -> None:
    """The search gives the same optimum, proven, with a model per part of every case."""
    instance = random_instance(seed)
    brute = best_plan(instance, samples=0)
    result = solve(instance, backend="cp-sat", formulation="strong")
    assert_settled(instance, result)
    assert result.time_us == brute.best_time_us
    assert tie_key(result.plan) == tie_key(brute.plan)


@pytest.mark.parametrize("seed", CBC_SEEDS)
def test_search_with_cbc_as_engine(seed: int) -> None:
    """The search gives the same optimum, proven, where CBC solves the winning case."""
    instance = random_instance(seed)
    result = solve(instance, backend="cbc")
    assert_settled(instance, result)
    assert not [note for note in result.provenance["notes"] if "confirm" in note]
    assert result.time_us == best_plan(instance, samples=0).best_time_us
    winners = [model for model in result.provenance["models"] if model["winner"]]
    assert all("CBC" in model["engine"] for model in winners)
    assert len(winners) == (result.plan is not None)
