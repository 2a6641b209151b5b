"""Imbalance of experts: of a histogram, and what it does to time and memory."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost.coefficients import Option, case_coefficients
from planner.cost.routing import routing_imbalance
from planner.instance.errors import InputError
from planner.instance.load import load_instance, narrowed
from planner.instance.schema import Instance
from planner.plan import Degrees
from planner.problem import Problem

SKEWED = [40, 10, 10, 20, 5, 5, 5, 5]


@pytest.mark.parametrize(("ranks", "ratio"), [(1, 1.0), (2, 1.6), (4, 2.0), (8, 3.2)])
def test_the_fullest_rank_over_the_mean(ranks: int, ratio: float) -> None:
    """8 experts with 100 tokens: 80 of 50, 50 of 25, 40 of 12.5."""
    assert routing_imbalance(SKEWED, ranks) == pytest.approx(ratio)


def test_even_experts_are_balanced() -> None:
    assert [routing_imbalance([0.125] * 8, ranks) for ranks in (1, 2, 4, 8)] == [1.0] * 4


@pytest.mark.parametrize(("tokens", "ranks"), [([1, 1, 1], 2), ([1, 1], 0), ([0, 0], 1)])
def test_what_has_no_imbalance(tokens: list[float], ranks: int) -> None:
    with pytest.raises(ValueError, match=r"cannot share|no expert"):
        routing_imbalance(tokens, ranks)


@settings(max_examples=200)
@given(st.lists(st.floats(0, 1e6), min_size=16, max_size=16).filter(any))
def test_more_ranks_are_never_more_even(tokens: list[float]) -> None:
    ratios = [routing_imbalance(tokens, ranks) for ranks in (1, 2, 4, 8, 16)]
    assert ratios[0] == 1
    assert all(b >= a * (1 - 1e-12) for a, b in pairwise(ratios))


def job(**training: Any) -> Instance:
    return load_instance(
        {
            "model": {
                "num_layers": 4,
                "hidden_size": 2048,
                "num_heads": 16,
                "ffn_hidden_size": 8192,
                "vocab_size": 32000,
                "num_experts": 8,
                "experts_per_token": 2,
                "expert_ffn_hidden_size": 4096,
            },
            "training": {"global_batch_size": 64, "sequence_length": 4096, **training},
            "cluster": {"sites": [{"name": "a", "gpu": "H100", "num_gpus": 64}]},
        }
    )


def costs(instance: Instance, ep: int) -> tuple[Any, Any]:
    co = case_coefficients(Problem(instance), Degrees(1, 1, ep, 1, 1, 1, 1, 8, 8))
    option = Option("zero1", overlap=True, recompute="none", spanning=False)
    return co.ops(0, option), co.memory(option)


@pytest.mark.parametrize(("ep", "ratio"), [(1, 1.0), (2, 1.6), (8, 3.2)])
def test_a_histogram_costs_what_its_factor_costs(ep: int, ratio: float) -> None:
    measured, factor = job(tokens_per_expert=SKEWED), job(routing_imbalance=ratio)
    assert costs(measured, ep) == costs(factor, ep)
    if ep > 1:
        even = costs(job(), ep)
        assert costs(measured, ep)[0].forward > even[0].forward
        assert costs(measured, ep)[1].activation > even[1].activation


def test_a_histogram_survives_narrowing() -> None:
    instance = narrowed(job(tokens_per_expert=SKEWED), {"pp": 2})
    assert instance.training.tokens_per_expert == tuple(map(float, SKEWED))


@pytest.mark.parametrize(
    ("training", "reason"),
    [
        ({"tokens_per_expert": [1, 2]}, "training.tokens_per_expert: has 2 experts, the model 8"),
        ({"tokens_per_expert": [0] * 8}, "no expert has a token"),
        ({"tokens_per_expert": SKEWED, "routing_imbalance": 2}, "routing_imbalance is given too"),
        ({"tokens_per_expert": [-1] * 8}, r"training.tokens_per_expert\[0\]: expected a number"),
    ],
)
def test_histograms_that_do_not_fit(training: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        job(**training)
