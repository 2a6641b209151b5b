"""Throughput of schedules relative to 1F1B in the rows of Zero Bubble (arXiv 2401.10241, table 4).

1F1B and 1F1B-I are those of Megatron-LM, which waits for every send; the plan space sends
asynchronously, so interleaved rows are compared with the event simulation with blocking sends.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from planner.check import time_of_layout
from planner.cost.coefficients import CaseCoefficients, case_coefficients
from planner.layout import Layout
from planner.pipeline.simulator import simulate_scenario
from planner.problem import Problem
from planner.simulation.scenario import TICKS_PER_US, PlanScenario
from planner.validation.measured import measured_time_s
from planner.validation.rows import read_runs
from planner.validation.setup import setup_run


class Row(NamedTuple):
    id: str
    wording: str
    problem: Problem
    co: CaseCoefficients
    layout: Layout
    measured_s: float

    @property
    def plan_space_s(self) -> float:
        """The prediction of ``planner validate``."""
        return time_of_layout(self.problem, self.co, self.layout) / 1e6

    @property
    def blocking_s(self) -> float:
        """The event simulation, in which senders wait for their transfers."""
        scenario = PlanScenario(self.problem, self.co, self.layout).scenario()
        end = simulate_scenario(replace(scenario, blocking=True)).end
        return (self.co.fixed_us + end / TICKS_PER_US) / 1e6


@pytest.fixture(scope="module")
def pairs(raw_runs: list[dict[str, Any]]) -> list[tuple[Row, Row]]:
    """Every row of table 4 with the 1F1B row of the same model, GPUs and microbatches."""
    rows: dict[tuple[Any, ...], list[Row]] = {}
    for run in read_runs(raw_runs):
        if not (run.source or "").startswith("Zero Bubble") or run.table != "Table 4":
            continue
        problem, layout, _ = setup_run(run)
        co = case_coefficients(problem, layout.degrees)
        measured = measured_time_s(run, problem.instance, layout.degrees.gpus)
        assert measured is not None
        row = Row(str(run.id), run.parallel.schedule or "", problem, co, layout, measured)
        key = (run.model.layers, run.model.hidden, layout.degrees.pp, co.num_microbatches)
        rows.setdefault(key, []).append(row)
    found = []
    for group in rows.values():
        stock = [row for row in group if row.wording == "1F1B"]
        found += [(row, one) for one in stock for row in group if row is not one]
    return found


def relative_errors(pairs: list[tuple[Row, Row]], wording: str, how: str) -> dict[str, float]:
    """Error of the throughput relative to 1F1B, by row."""
    errors = {}
    for row, one in pairs:
        if row.wording == wording:
            base = one.blocking_s if how == "blocking_s" else one.plan_space_s
            predicted = base / getattr(row, how)
            errors[row.id] = predicted / (one.measured_s / row.measured_s) - 1
    return errors


WITHIN = 0.05
TOO_SLOW_ZB_2P = {"r0562": -0.080, "r0563": -0.067}
"""14.6B on 16 GPUs.  A likely reason: the model's input gradient takes 13.0 ms, the paper's profile
(table 9) says 11.2 ms, so the first backward reaches stage 0 late."""


def test_zb_1p_and_zb_2p(pairs: list[tuple[Row, Row]]) -> None:
    errors = {
        row: error
        for wording in ("ZB-1p", "ZB-2p")
        for row, error in relative_errors(pairs, wording, "plan_space_s").items()
    }
    assert len(errors) == 8
    assert {row for row, error in errors.items() if abs(error) > WITHIN} == set(TOO_SLOW_ZB_2P)
    for row, error in TOO_SLOW_ZB_2P.items():
        assert errors[row] == pytest.approx(error, abs=0.01)


def test_interleaved_with_blocking_sends(pairs: list[tuple[Row, Row]]) -> None:
    asynchronous = relative_errors(pairs, "1F1B-I", "plan_space_s")
    blocking = relative_errors(pairs, "1F1B-I", "blocking_s")
    assert len(blocking) == 5
    assert max(asynchronous.values()) > WITHIN
    assert max(map(abs, blocking.values())) <= WITHIN, blocking
