"""Every precision can be planned: plan, Z and MFU, borrowed peaks included."""

from __future__ import annotations

from typing import get_args

import pytest

from planner.check import check_plan
from planner.instance.load import load_instance
from planner.instance.profile import PEAK_OF, Precision
from planner.search.result import SolveStatus
from planner.search.solve import solve

PEAKS = {"bf16": 1e15, "fp16": 1e15, "fp8": 2e15, "mxfp8": 2e15, "nvfp4": 4e15}


@pytest.mark.parametrize("precision", get_args(Precision))
@pytest.mark.parametrize("heuristic", [False, True])
def test_a_job_of_every_precision_is_planned(precision: Precision, heuristic: bool) -> None:
    gpu = {"preset": "H100", "peak_flops": PEAKS}
    instance = load_instance(
        {
            "model": "llama3-8b",
            "training": {
                "global_batch_size": 16,
                "sequence_length": 4096,
                "precision": precision,
            },
            "cluster": {"sites": [{"name": "a", "gpu": gpu, "num_gpus": 8}]},
            "search": {
                "tp": 2,
                "pp": [1, 2],
                "micro_batch_size": 1,
                "virtual_stages": 1,
                "schedule": "1f1b",
            },
        }
    )
    result = solve(instance, heuristic=heuristic)
    assert heuristic or result.status is SolveStatus.OPTIMAL
    assert result.plan is not None and result.time_us is not None
    assert check_plan(instance, result.plan).time_us == result.time_us
    flops_per_token = 3 * 2 * 7.5e9  # weights without the embedding; attention comes on top
    peak = 8 * PEAKS[PEAK_OF.get(precision, precision)]
    mfu = flops_per_token * 16 * 4096 / (result.time_us / 1e6) / peak
    assert result.plan.gpus_used == 8
    assert result.mfu == pytest.approx(mfu, rel=0.15)
