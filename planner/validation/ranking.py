"""Whether the model ranks configurations of one job as the measurements do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from planner.validation.rows import Run
from planner.validation.setup import Setup

LEAST_FOR_CORRELATION = 4
"""Configurations that a group needs before a rank correlation says anything."""


class Tried(NamedTuple):
    """One measured configuration."""

    run: Run
    setup: Setup
    predicted_s: float
    measured_s: float

    @property
    def group(self) -> tuple[object, ...]:
        """What the configurations of one comparison share: source, model, cluster and job."""
        instance = self.setup.problem.instance
        return (
            self.run.source,
            self.run.table,
            instance.model,
            instance.cluster.sites[0].gpu.name,
            self.setup.layout.degrees.gpus,
            instance.training.sequence_length,
            instance.training.precision,
        )

    def per_sequence(self, seconds: float) -> float:
        """Seconds per sequence of the batch."""
        return seconds / self.setup.problem.training.global_batch_size


class Group(NamedTuple):
    """Configurations of one model on one cluster.

    ``loss`` is how much slower the predicted best configuration was measured than the measured
    best; ``spearman`` is None for fewer than :data:`LEAST_FOR_CORRELATION` configurations.
    """

    name: str
    configurations: int
    loss: float
    spearman: float | None


class Ranking(NamedTuple):
    """All groups with at least two configurations."""

    groups: tuple[Group, ...]

    @property
    def losses(self) -> list[float]:
        """Measured loss from taking the predicted best, one per group."""
        return [group.loss for group in self.groups]

    def to_json(self) -> dict[str, Any]:
        """Summary and groups."""
        correlations = [g.spearman for g in self.groups if g.spearman is not None]
        return {
            "groups": [group._asdict() for group in self.groups],
            "median_loss": float(np.median(self.losses)) if self.groups else None,
            "mean_loss": float(np.mean(self.losses)) if self.groups else None,
            "median_spearman": float(np.median(correlations)) if correlations else None,
        }


def rank_groups(tried: Sequence[Tried]) -> Ranking:
    """Compare configurations inside groups; repeats of one configuration count as their mean."""
    groups: dict[tuple[object, ...], dict[str, list[Tried]]] = defaultdict(dict)
    for one in tried:
        plan = repr(one.setup.layout) + repr(one.setup.problem.training)
        groups[one.group].setdefault(plan, []).append(one)
    ranked = [_rank(list(plans.values())) for plans in groups.values() if len(plans) > 1]
    return Ranking(tuple(ranked))


def _rank(plans: list[list[Tried]]) -> Group:
    predicted = [float(np.mean([t.per_sequence(t.predicted_s) for t in plan])) for plan in plans]
    measured = [float(np.mean([t.per_sequence(t.measured_s) for t in plan])) for plan in plans]
    first = plans[0][0]
    correlation = None
    if len(plans) >= LEAST_FOR_CORRELATION and len(set(predicted)) > 1 and len(set(measured)) > 1:
        from scipy.stats import spearmanr

        correlation = float(spearmanr(predicted, measured).statistic)
    return Group(
        f"{first.run.family}: {first.run.model.name}, {first.setup.layout.degrees.gpus} "
        f"{first.run.hardware.gpu}, {first.run.model.seq} tokens",
        len(plans),
        measured[int(np.argmin(predicted))] / min(measured) - 1,
        correlation,
    )
