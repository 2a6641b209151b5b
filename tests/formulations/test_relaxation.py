"""The linear relaxation of the plain model on fixed cases: golden values, below the optimum."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from formulations.cuts import CutPool
from formulations.plain import build_plain
from planner.backends import EngineOptions, EnginePool, SolveStatus
from planner.instance.load import load_instance
from planner.instance.schema import Instance
from tests.formulations.case_models import Converged, choices_of
from tests.random_instances import random_instance


class Golden(NamedTuple):
    """One schedule and option of a degrees case, its optimum and the value of its relaxation, µs.

    ``pair`` is their number among those of the case; ``root`` is the relaxation without paths,
    ``tight`` the one with all paths that the optimum needs, with the cutoff 10 % above the optimum.
    """

    seed: int
    degrees: tuple[int, ...]
    pair: int
    optimum: int
    root: float
    tight: float


CASES = (
    Golden(0, (1, 1, 2, 1, 2, 1, 1, 2, 2), 10, 96955, 44958.78654, 44958.78654),
    Golden(1, (1, 1, 1, 1, 2, 1, 1, 2, 2), 0, 1324493, 1257496.521, 1257496.521),
    Golden(2, (2, 1, 4, 1, 2, 1, 1, 2, 2), 8, 46064, 21953.51923, 21953.51923),
    Golden(3, (2, 1, 2, 1, 2, 1, 1, 1, 1), 3, 34782, 32017.0, 32017.0),
    Golden(5, (1, 1, 1, 1, 1, 1, 1, 6, 3), 5, 164410, 74418.85558, 74418.85558),
    Golden(6, (1, 1, 1, 1, 2, 1, 2, 2, 1), 0, 82392, 14172.40187, 14172.40187),
    Golden(8, (2, 1, 2, 1, 3, 1, 1, 1, 1), 3, 133711, 92264.80656, 92264.80656),
    Golden(37, (1, 1, 1, 1, 2, 1, 1, 4, 4), 13, 24818, 14902.37897, 14902.37897),
)

CONSTANTS = {
    "gemm": 0.7,
    "grouped_gemm": 0.5,
    "attention": 0.5,
    "memory": 0.8,
    "m0": 128,
    "n0": 128,
    "s0": 512,
    "launch_s": 5e-6,
}
STACK = {
    "tp_exposed": 0.5,
    "ep_exposed": 0.7,
    "fsdp_exposed": 0.5,
    "routing_factor": 1.5,
    "host_floor_s": 2e-4,
    "fixed_s": 0.01,
}


def fixed(instance: Instance) -> Instance:
    """The instance with constants of its own, so that golden values outlive a new fit."""
    document = instance.model_dump(mode="json", by_alias=True)
    for site in document["cluster"]["sites"]:
        site["gpu"]["profile"] = {"efficiency": dict.fromkeys(site["gpu"]["peak_flops"], CONSTANTS)}
    return load_instance({**document, "stack": STACK})


@pytest.fixture(scope="module")
def pool() -> Iterator[EnginePool]:
    """CP-SAT for the optimum, CBC for the relaxation."""
    with EnginePool() as engines:
        yield engines


def relaxation(pool: EnginePool, case: Golden, converged: Converged) -> tuple[float, float]:
    """Values of the relaxation without and with paths."""
    values = []
    root = build_plain(converged.choices, CutPool(), converged.upper_us)
    for model in (root.model, converged.built.model):
        result = pool.engine("cbc").solve(model, EngineOptions(relaxation=True))
        assert result.status is not SolveStatus.ERROR, result.message
        assert result.relaxation_value is not None
        assert result.bound is not None and result.bound <= case.optimum
        values.append(result.relaxation_value)
    return values[0], values[1]


def solved(pool: EnginePool, case: Golden) -> Converged:
    """The case as a model with the paths that it needs."""
    choices = choices_of(fixed(random_instance(case.seed)), case.degrees)
    choices = choices.only([choices.pairs[case.pair]])
    return Converged(pool.engine("cp-sat"), choices, case.optimum * 11 // 10)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"seed{case.seed}")
def test_golden_values(pool: EnginePool, case: Golden) -> None:
    """Optimum and relaxations are as recorded, and each relaxation is at most the optimum."""
    converged = solved(pool, case)
    assert converged.time_us == case.optimum
    root, tight = relaxation(pool, case, converged)
    assert root == pytest.approx(case.root, rel=1e-6)
    assert tight == pytest.approx(case.tight, rel=1e-6)
    assert root <= tight * (1 + 1e-9)
    assert tight <= case.optimum * (1 + 1e-9)
