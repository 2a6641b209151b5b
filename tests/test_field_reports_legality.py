"""What people found wrong with the legality checks of other planners, each with the right value.

Every docstring gives the address of the report and what it demands.
"""

from __future__ import annotations

from collections import Counter

import pytest

from planner.check import check_plan
from planner.instance.errors import InputError
from planner.pipeline.schedules import SCHEDULES, Template, device_orders, legal_run_lengths
from planner.search.result import SolveStatus
from planner.search.solve import solve
from tests.layouts import one_cluster, one_site_plan, rules

SMALL = {
    "num_layers": 16, "hidden_size": 2048, "num_heads": 16, "num_kv_heads": 2,
    "ffn_hidden_size": 8192, "vocab_size": 32000,
}  # fmt: skip


def orders(schedule: str, pp: int, v: int, m: int) -> list[list[tuple[str, int, int]]]:
    """Ops of every device."""
    run_length = (
        (legal_run_lengths(pp, m) or (m,))[0] if SCHEDULES[schedule].has_run_length else None
    )
    template = Template(schedule, pp, v, m, run_length, (0,) * pp)
    return [
        [(op.kind, op.chunk, op.microbatch) for op in order] for order in device_orders(template)
    ]


@pytest.mark.parametrize("m", [1, 2, 3])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb_h1", "zb_h2"])
def test_fewer_microbatches_than_stages(schedule: str, m: int) -> None:
    """https://github.com/pytorch/torchtitan/issues/775

    Pipelines with fewer microbatches than stages run and never hang: every op is done once.
    """
    instance = one_cluster(SMALL, 8, training={"global_batch_size": m})
    report = check_plan(instance, one_site_plan(instance, pp=4, schedule=schedule))
    assert report.feasible, report.violations
    assert report.time_us is not None
    for order in orders(schedule, 4, 1, m):
        kinds = Counter(kind for kind, _, _ in order)
        assert set(kinds.values()) == {m}
        assert len(set(order)) == len(order)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_fewer_microbatches_than_stages_pay_the_full_bubble(schedule: str) -> None:
    """https://github.com/pytorch/torchtitan/issues/775

    ``m`` microbatches take as long as the first and ``m − 1`` times the slowest stage more; the
    first passes all four stages, so the iteration is never shorter than that.
    """
    times = []
    for m in (1, 2, 3):
        instance = one_cluster(SMALL, 8, training={"global_batch_size": m})
        time_us = check_plan(instance, one_site_plan(instance, pp=4, schedule=schedule)).time_us
        assert time_us is not None
        times.append(time_us)
    slowest = times[1] - times[0]
    assert times[2] - times[1] == slowest
    assert times[0] > 3 * slowest


def test_interleaving_with_microbatches_that_are_no_multiple_of_the_stages() -> None:
    """https://github.com/pytorch/pytorch/pull/129597

    4 stages, 2 chunks each. 10 microbatches run in two groups of 5 (or one of 10): every device has
    exactly ``m · v`` = 20 forwards and 20 backwards. 3 microbatches leave no legal group and are
    refused.
    """
    assert legal_run_lengths(4, 10) == (5, 10)
    for order in orders("interleaved", 4, 2, 10):
        assert Counter(kind for kind, _, _ in order) == {"F": 20, "B": 20}
        assert len(set(order)) == 40
    instance = one_cluster(SMALL, 8, training={"global_batch_size": 10})
    plan = one_site_plan(instance, pp=4, virtual_stages=2, schedule="interleaved")
    assert rules(instance, plan) == set()
    assert rules(instance, plan.model_copy(update={"run_length": 4})) == {"run_length"}
    assert legal_run_lengths(4, 3) == ()
    few = one_cluster(SMALL, 8, training={"global_batch_size": 3})
    plan = one_site_plan(few, pp=4, virtual_stages=2, schedule="interleaved")
    assert "run_length" in rules(few, plan)


def test_a_batch_that_interleaving_cannot_run_is_refused() -> None:
    """https://github.com/NVIDIA-BioNeMo/bionemo-recipes/issues/286

    Virtual stages restrict the number of microbatches: with 4 stages a global batch of 3 sequences
    has no interleaved plan, one of 8 has.
    """
    search = {
        "tp": 1, "cp": 1, "pp": 4, "virtual_stages": 2, "schedule": "interleaved", "dp": 1,
        "micro_batch_size": 1,
    }  # fmt: skip
    bad = solve(one_cluster(SMALL, 8, training={"global_batch_size": 3}, search=search))
    assert bad.status is SolveStatus.INFEASIBLE
    good = solve(one_cluster(SMALL, 8, training={"global_batch_size": 8}, search=search))
    assert good.status is SolveStatus.OPTIMAL
    assert good.plan is not None
    assert good.plan.num_microbatches % (good.plan.run_length or 0) == 0


def test_zbv_with_layers_that_do_not_split_evenly() -> None:
    """https://github.com/sail-sg/zero-bubble-pipeline-parallelism/issues/9

    46 layers on 16 stages with 2 chunks each: no equal split exists, and a plan that claims one is
    refused. The plan space has uneven splits, so chunks of one and two layers are legal.
    """
    model = SMALL | {"num_layers": 46}
    instance = one_cluster(model, 16, training={"global_batch_size": 32})
    choices = {"pp": 16, "virtual_stages": 2, "schedule": "zbv"}
    equal = one_site_plan(instance, **choices, layers=(1,) * 32)
    assert rules(instance, equal) == {"layers.sum"}
    uneven = one_site_plan(instance, **choices)
    assert sorted(set(uneven.layers_per_stage)) == [1, 2]
    assert rules(instance, uneven) == set()
    with pytest.raises(InputError, match="fixed_layers_per_stage"):
        one_cluster(
            model, 16, training={"global_batch_size": 32},
            search={"fixed_layers_per_stage": [1] * 32},
        )  # fmt: skip


def test_the_ends_count_in_an_uneven_split() -> None:
    """https://github.com/ISEEKYAN/Megatron-LM/pull/44

    3 layers on 2 stages with embedding, head and multi-token prediction: the stage with the head
    and the prediction module gets fewer layers.
    """
    model = SMALL | {"num_layers": 3, "num_mtp_layers": 1, "vocab_size": 128256}
    search = {"pp": 2, "virtual_stages": 1, "tp": 1, "dp": 1, "micro_batch_size": 1}
    result = solve(one_cluster(model, 8, training={"global_batch_size": 8}, search=search))
    assert result.status is SolveStatus.OPTIMAL
    assert result.plan is not None
    assert result.plan.layers_per_stage == (2, 1)
    swapped = result.plan.model_copy(update={"layers_per_stage": (1, 2)})
    slower = check_plan(result.instance, swapped).time_us
    assert slower is not None
    assert result.time_us is not None
    assert slower > result.time_us


@pytest.mark.parametrize(("tp", "legal"), [(1, True), (2, True), (4, False), (8, False)])
def test_tensor_parallelism_over_key_and_value_heads(tp: int, legal: bool) -> None:
    """https://github.com/pytorch/torchtitan/pull/4016

    2 KV heads: TP 4 and 8 are legal only where the stack replicates KV heads. torchtitan does not;
    a stack says so with ``replicates_kv_heads``.
    """
    training = {"global_batch_size": 8}
    split = one_cluster(SMALL, 8, training=training, stack="torchtitan")
    copied = one_cluster(
        SMALL, 8, training=training,
        stack={"preset": "torchtitan", "replicates_kv_heads": True},
    )  # fmt: skip
    plan = one_site_plan(split, tp=tp)
    assert rules(split, plan) == (set() if legal else {"tp.divides"})
    assert rules(copied, plan) == set()
    if not legal:
        with pytest.raises(
            InputError, match=rf"search.tp\[0\].*{tp} does not divide the 2 KV heads"
        ):
            one_cluster(SMALL, 8, training=training, stack="torchtitan", search={"tp": [tp]})


def test_a_saved_plan_is_priced_anew() -> None:
    """https://github.com/microsoft/nnscaler/issues/28

    A plan holds no costs. At another sequence length everything is computed again, as from scratch;
    at another batch the plan no longer fits and is refused.
    """
    training = {"global_batch_size": 8, "sequence_length": 2048}
    before = one_cluster(SMALL, 8, training=training)
    plan = one_site_plan(before, pp=2, dp=2)
    first = check_plan(before, plan)
    longer = one_cluster(SMALL, 8, training=training | {"sequence_length": 8192})
    second = check_plan(longer, plan)
    assert second.feasible
    assert second.to_json() == check_plan(longer, one_site_plan(longer, pp=2, dp=2)).to_json()
    assert second.time_us is not None
    assert first.time_us is not None
    assert second.time_us > 3 * first.time_us
    for row, old in zip(second.memory, first.memory, strict=True):
        assert row.activations_mib == pytest.approx(4 * old.activations_mib, rel=0.02)
        assert row.state_mib == old.state_mib
    bigger = one_cluster(SMALL, 8, training=training | {"global_batch_size": 16})
    assert rules(bigger, plan) == {"batch"}
    assert check_plan(before, plan).to_json() == first.to_json()
