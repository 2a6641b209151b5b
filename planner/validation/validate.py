"""Predict measured runs with the code that ``solve`` uses, and summarise the errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from planner.check import memory_of_layout, time_of_layout
from planner.cost.coefficients import MIB, case_coefficients
from planner.pipeline import stage_profile as pipeline
from planner.validation.measured import (
    measured_memory_bytes,
    measured_time_s,
    measured_without_model_s,
)
from planner.validation.ranking import Ranking, Tried, rank_groups
from planner.validation.rows import OVERALL, Run, StageProfile, read_runs
from planner.validation.setup import (
    MOST_CHUNK_PASSES,
    Setup,
    SkippedRunError,
    named_schedule,
    setup_run,
    too_large,
)

Progress = Callable[[int, int], None]
"""Called with the number of rows done and the number of rows."""


@dataclass(frozen=True)
class Prediction:
    """One row: predicted and measured, or why not.

    ``assumed`` names every field that was taken from the documented defaults of the row's stack.
    """

    id: str | int | None
    source: str | None
    predicted_time_s: float | None
    measured_time_s: float | None
    time_skipped: str | None
    predicted_memory_bytes: int | None
    measured_memory_bytes: float | None
    memory_skipped: str | None
    assumed: tuple[str, ...] = ()
    excluded: str | None = None

    @property
    def family(self) -> str:
        """Key of the summary that the row belongs to."""
        return "unknown" if self.source is None else self.source

    @property
    def time_error(self) -> float | None:
        """Relative error of the time, positive where the prediction is too long."""
        if self.predicted_time_s is None or self.measured_time_s is None:
            return None
        return self.predicted_time_s / self.measured_time_s - 1

    @property
    def memory_error(self) -> float | None:
        """Relative error of the peak memory, positive where the prediction is too large."""
        if self.predicted_memory_bytes is None or self.measured_memory_bytes is None:
            return None
        return self.predicted_memory_bytes / self.measured_memory_bytes - 1

    def to_json(self) -> dict[str, Any]:
        """The row as a JSON object."""
        return {
            "id": self.id,
            "source": self.source,
            "predicted_time_s": self.predicted_time_s,
            "measured_time_s": self.measured_time_s,
            "time_skipped": self.time_skipped,
            "predicted_memory_bytes": self.predicted_memory_bytes,
            "measured_memory_bytes": self.measured_memory_bytes,
            "memory_skipped": self.memory_skipped,
            "assumed": list(self.assumed),
            "excluded": self.excluded,
        }


class Errors(NamedTuple):
    """Absolute percentage errors and bias as fractions; None where there is no row."""

    n: int
    mape: float | None
    median_ape: float | None
    p90_ape: float | None
    bias: float | None


def summarise(errors: Sequence[float]) -> Errors:
    """The summary of relative errors."""
    if not errors:
        return Errors(0, None, None, None, None)
    sizes = np.abs(errors)
    return Errors(
        len(errors),
        float(sizes.mean()),
        float(np.median(sizes)),
        float(np.quantile(sizes, 0.9)),
        float(np.mean(errors)),
    )


@dataclass(frozen=True)
class Validation:
    """Predictions for all rows, in their order, and the ranking inside groups of configurations."""

    rows: tuple[Prediction, ...]
    ranking: Ranking

    @cached_property
    def summary(self) -> dict[str, dict[str, Errors]]:
        """Errors of ``time`` and ``memory`` by source, and ``overall``."""
        sources: dict[str, list[Prediction]] = {}
        for row in self.rows:
            sources.setdefault(row.family, []).append(row)
        return {
            name: {
                "time": summarise([e for r in rows if (e := r.time_error) is not None]),
                "memory": summarise([e for r in rows if (e := r.memory_error) is not None]),
            }
            for name, rows in [*sources.items(), (OVERALL, list(self.rows))]
        }

    def to_json(self) -> dict[str, Any]:
        """The validation document."""
        return {
            "rows": [row.to_json() for row in self.rows],
            "summary": {
                source: {what: errors._asdict() for what, errors in parts.items()}
                for source, parts in self.summary.items()
            },
            "ranking": self.ranking.to_json(),
        }


def validate_runs(
    runs: str | Path | Sequence[Mapping[str, Any]], progress: Progress | None = None
) -> Validation:
    """Predict iteration time and peak memory of measured runs.

    Parameters
    ----------
    runs
        A JSON file of rows, or parsed rows (docs/validation.md describes them).
    progress
        Called after every row.

    Returns
    -------
    Validation
        One prediction per row, in order.  Measured fields are compared with, never read for a
        prediction.

    Raises
    ------
    InputError
        If the rows cannot be read.
    """
    rows = read_runs(runs)
    predictions, tried = [], []
    for done, run in enumerate(rows, start=1):
        prediction, setup = _predict(run)
        predictions.append(prediction)
        if setup is not None and prediction.time_error is not None:
            assert prediction.predicted_time_s is not None
            assert prediction.measured_time_s is not None
            tried.append(Tried(run, setup, prediction.predicted_time_s, prediction.measured_time_s))
        if progress is not None:
            progress(done, len(rows))
    return Validation(tuple(predictions), rank_groups(tried))


def _predict(run: Run) -> tuple[Prediction, Setup | None]:
    if run.stage_profile is not None:
        return _predict_profile(run, run.stage_profile), None
    memory_bytes = measured_memory_bytes(run)
    try:
        setup = setup_run(run)
    except SkippedRunError as skipped:
        reason = str(skipped)
        return (
            Prediction(
                run.id,
                run.source,
                None,
                measured_without_model_s(run),
                reason,
                None,
                memory_bytes,
                reason,
                excluded=run.excluded,
            ),
            None,
        )
    problem, layout, assumed = setup
    co = case_coefficients(problem, layout.degrees)
    measured_s = measured_time_s(run, problem.instance, layout.degrees.gpus)
    peak_mib = max(row.peak_mib for row in memory_of_layout(problem, co, layout))
    return (
        Prediction(
            id=run.id,
            source=run.source,
            predicted_time_s=time_of_layout(problem, co, layout) / 1e6,
            measured_time_s=measured_s,
            time_skipped=None if measured_s is not None else "no time measured",
            predicted_memory_bytes=peak_mib * MIB,
            measured_memory_bytes=memory_bytes,
            memory_skipped=None if memory_bytes is not None else "no memory measured",
            assumed=assumed,
            excluded=run.excluded,
        ),
        setup,
    )


def _predict_profile(run: Run, profile: StageProfile) -> Prediction:
    """A row with measured stage durations: the event simulation in place of the compute model."""
    memory_bytes = measured_memory_bytes(run)
    predicted, reason = None, None
    try:
        schedule = named_schedule(run.parallel)
        backward_s = profile.BW_s if profile.B_s is None else profile.B_s
        if backward_s is None:
            raise SkippedRunError("the stage profile gives no backward time")
        chunks = profile.stages * profile.microbatches * (run.parallel.vp or 1)
        if chunks > MOST_CHUNK_PASSES:
            raise SkippedRunError(too_large(chunks))
        times = pipeline.StageProfile(
            stages=profile.stages,
            microbatches=profile.microbatches,
            forward_s=profile.F_s,
            backward_s=backward_s,
            weight_s=profile.W_s,
            latency_s=profile.latency_s,
            serialization_s=profile.serialization_s,
            slow_boundaries=profile.slow_boundaries,
            blocking_sends=profile.blocking_sends,
        )
        predicted = pipeline.stage_profile_time_s(times, schedule, virtual_stages=run.parallel.vp)
    except (SkippedRunError, ValueError) as error:
        reason = str(error)
    measured_s = run.measured.iter_time_s
    if reason is None and measured_s is None:
        reason = "no time measured"
    return Prediction(
        id=run.id,
        source=run.source,
        predicted_time_s=predicted,
        measured_time_s=measured_s,
        time_skipped=reason,
        predicted_memory_bytes=None,
        measured_memory_bytes=memory_bytes,
        memory_skipped="a stage profile says nothing of memory",
        excluded=run.excluded,
    )
