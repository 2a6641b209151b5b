"""Where the optimizer step is the peak of memory, search, models and explanation know it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from fractions import Fraction

import pytest

from planner.backends import Engine, EnginePool
from planner.backends import SolveStatus as EngineStatus
from planner.check import memory_of_layout
from planner.choices import CaseChoices
from planner.cost.coefficients import case_coefficients
from planner.instance.schema import Instance
from planner.layout import Layout
from planner.problem import MIB, Problem
from planner.search.bounds import Bounds
from planner.search.case_solver import CaseSolver
from planner.search.least_memory import least_memory
from planner.search.result import SolveStatus
from planner.search.solve import solve
from planner.search.tree import Tree
from tests.brute_force import best_plan, enumerate_layouts
from tests.layouts import one_cluster

MODELS = {
    "dense": {
        "num_layers": 7, "hidden_size": 2048, "num_heads": 8, "num_kv_heads": 4,
        "ffn_hidden_size": 8192, "vocab_size": 32000,
    },
    "moe": {
        "num_layers": 4, "hidden_size": 1024, "num_heads": 8, "num_kv_heads": 4,
        "ffn_hidden_size": 4096, "vocab_size": 16000, "num_experts": 8, "experts_per_token": 2,
        "expert_ffn_hidden_size": 4096, "first_k_dense": 1,
    },
}  # fmt: skip


def job(model: str, limit_mib: int | None = None) -> Instance:
    """Short sequences, so that activations are small, and an optimizer with temporaries."""
    return one_cluster(
        MODELS[model],
        8,
        training={"global_batch_size": 8, "sequence_length": 256},
        stack={"preset": "megatron-core", "optimizer_kernel": "foreach"},
        search={
            "tp": [1, 2], "pp": [1, 2, 4], "micro_batch_size": [1, 2], "virtual_stages": [1, 2],
            "schedule": ["1f1b", "interleaved", "zbv"], "dp": [1, 2, 4],
            "ep": [1] if model == "dense" else [1, 2],
            "recompute": ["none", "full"], "overlap": [True], "sync": ["hierarchical"],
        },
        site={} if limit_mib is None else {"memory_limit_bytes": limit_mib * MIB},
    )  # fmt: skip


def needs(instance: Instance) -> list[tuple[int, int, Layout]]:
    """MiB of the fullest stage with and without its optimizer step, of every legal plan."""
    problem, result = Problem(instance), []
    for layout in enumerate_layouts(instance):
        rows = memory_of_layout(problem, case_coefficients(problem, layout.degrees), layout)
        without = max(row.state_mib + row.activations_mib + row.working_mib for row in rows)
        result.append((max(row.peak_mib for row in rows), without, layout))
    return result


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with EnginePool() as pool:
        yield pool.engine("cp-sat")


@pytest.mark.parametrize("model", list(MODELS))
def test_enumeration_search_and_model_agree(model: str, engine: Engine) -> None:
    """Limits between the needs of plans with and without the step: some plans fit but for it.

    The best plan of all, the optimum of the search and that of a model of its case are the same.
    """
    every = needs(job(model))
    peaks = sorted({peak for peak, _, _ in every})
    limits = [peaks[len(peaks) * share // 8] for share in (0, 2, 5)]
    binding = 0
    for limit in (peaks[0] - 1, *limits):
        instance = job(model, limit)
        binding += sum(without <= limit < peak for peak, without, _ in every)
        result, expected = solve(instance), best_plan(instance)
        assert result.time_us == expected.best_time_us
        if limit < peaks[0]:
            assert result.status is SolveStatus.INFEASIBLE
            continue
        assert result.status is SolveStatus.OPTIMAL
        assert result.plan is not None
        problem = Problem(instance)
        choices = CaseChoices(problem, case_coefficients(problem, result.plan.degrees))
        solver = CaseSolver(problem, engine)
        outcome = solver.solve(choices, result.time_us, deadline=time.monotonic() + 60)
        assert outcome.status is EngineStatus.OPTIMAL
        assert outcome.time_us == outcome.bound_us == result.time_us
    assert binding > 0


@pytest.mark.parametrize("model", list(MODELS))
def test_least_memory_is_that_of_enumeration(model: str) -> None:
    instance = job(model)
    found = least_memory(Problem(instance), Tree(Problem(instance), Bounds(Problem(instance))))
    assert found is not None
    assert found.proven
    limit = found.worst.limit_mib
    assert found.ratio == Fraction(min(peak for peak, _, _ in needs(instance)), limit)
