"""Fits the time of a collective to measured times.

The model is the one that the planner computes with (:mod:`planner.cost.collectives`):
``t = launch + max or min over pieces of ( steps·step + wire/B )`` with ``steps`` and ``wire`` of a
ring.  It is fitted to times, never to bandwidths.  First ``Σ |model − t|/t`` is minimised: small
and large messages weigh the same, and single outliers (warm-up, a busy host) hardly move it.  Times
far above that curve are set aside, and the rest is fitted for the mean and the largest relative
error together.

Source: least absolute and minimax deviations as linear programs (Charnes, Cooper and Ferguson
1955); piecewise affine functions fitted by partition (Magnani and Boyd, "Convex piecewise-linear
fitting", 2009); NCCL's choice ``min(latency + S/bandwidth)`` over protocols (``tuning.cc``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import ValidationError

from planner.cost.collectives import DOMAIN_STEP_S, LAUNCH_S, NETWORK_STEP_S
from planner.instance.errors import first_input_error
from planner.instance.measured import CurvePiece, MeasuredCurve, Tier
from planner.measured.samples import CollectiveRun, refused

Array = np.ndarray[Any, np.dtype[np.float64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]

MOST_PIECES = 3
FEWEST_SAMPLES = 3
MOST_SPLITS = 24
"""Sizes at which a piece is tried to be split."""

WORTH = 0.75
"""One piece more is worth it where it leaves less than this share of the mean error."""

GOOD = 0.005
"""A curve with no more error than this needs no further piece."""

FASTEST = 1e-3
"""Least ms/GB of a piece: an absurd bandwidth, but a finite one."""

OUTLIER = 0.25
"""A time so far above the curve, and six times the median error, may be set aside..."""

MOST_OUTLIERS = 0.1
"""...but no more than this share of the samples."""


@dataclass(frozen=True)
class Fit:
    """A fitted curve and how well it fits.

    Attributes
    ----------
    outliers
        Sizes whose times were set aside as outliers, in bytes; they count in no error.
    """

    curve: MeasuredCurve
    ranks: tuple[int, ...]
    samples: int
    mean_error: float
    worst_error: float
    outliers: tuple[int, ...]


def fit_curve(runs: Sequence[CollectiveRun], source: str) -> Fit:
    """One curve for runs of one collective on one tier.

    Where all runs have equally many ranks, launch and steps cannot be told apart; the latency is
    then shared between them as NCCL's constants share it.

    Raises
    ------
    InputError
        If there are fewer than three different sizes, or the times tell no bandwidth.
    """
    first = runs[0]
    features = [(*_features(run, s.size_bytes), s.seconds) for run in runs for s in run.samples]
    sizes = np.array([s.size_bytes for run in runs for s in run.samples])
    if len(set(sizes.tolist())) < FEWEST_SAMPLES:
        raise refused(
            first.file, None, f"a curve needs at least {FEWEST_SAMPLES} sizes: run with -b and -e"
        )
    steps, wire, times = np.array(features).T
    data = _Data(steps, wire, times)
    try:
        aside = _outliers(_best(data, first.tier).seconds(data), times)
        kept = data.where(~aside)
        shape = _best(kept, first.tier, worst=1.0)
    except _NoFit:
        raise refused(first.file, None, "no curve fits these times: they differ too much") from None
    if shape.unbounded:
        raise refused(
            first.file,
            None,
            "the times do not grow with the size, so they tell no bandwidth: measure larger sizes",
        )
    errors = np.abs(shape.seconds(kept) - kept.times) / kept.times
    mean, worst = float(errors.mean()), float(errors.max())
    try:
        curve = MeasuredCurve(
            tier=first.tier,
            collective=first.collective,
            launch_s=_rounded(shape.launch),
            pieces=tuple(
                CurvePiece(step_s=_rounded(step), bytes_per_s=_rounded(1 / inverse))
                for step, inverse in shape.pieces
            ),
            combine=shape.combine,
            mean_error=_rounded(mean),
            worst_error=_rounded(worst),
            source=source,
        )
    except ValidationError as error:
        raise first_input_error(error, MeasuredCurve, f"{first.file}: fitted curve") from None
    return Fit(
        curve=curve,
        ranks=tuple(sorted({run.ranks for run in runs})),
        samples=len(times),
        mean_error=mean,
        worst_error=worst,
        outliers=tuple(sorted(set(sizes[aside].tolist()))),
    )


def curve_seconds(curve: MeasuredCurve, run: CollectiveRun, size_bytes: int) -> float:
    """Time of a run's collective by a curve."""
    steps, wire = _features(run, size_bytes)
    pick = max if curve.combine == "max" else min
    return curve.launch_s + pick(p.step_s * steps + wire / p.bytes_per_s for p in curve.pieces)


def _features(run: CollectiveRun, size_bytes: int) -> tuple[float, float]:
    """Steps, and bytes that one GPU puts on the wire of the tier.

    On the network a group of several GPUs a host works in levels: each GPU exchanges its shard
    with its peers on the other hosts.
    """
    ranks, near = run.ranks, 1
    if run.tier == "network":
        near = run.ranks_per_host if run.ranks_per_host < run.ranks else 1
    if run.collective == "p2p":
        return 1.0, float(size_bytes)
    if run.collective == "all_to_all":
        return float(ranks - near), (ranks - near) / ranks * size_bytes
    members, shard = ranks // near, size_bytes / near
    times = 2 if run.collective == "all_reduce" else 1
    return float(times * (members - 1)), times * (members - 1) / members * shard


class _NoFit(ArithmeticError):
    """The linear program of a line has no solution in floating point."""


class _Data(NamedTuple):
    """Samples: steps, bytes on the wire, seconds; each of shape (samples,)."""

    steps: Array
    wire: Array
    times: Array

    def where(self, mask: Mask) -> _Data:
        return _Data(self.steps[mask], self.wire[mask], self.times[mask])


class _Shape(NamedTuple):
    """A fitted curve: launch, and pieces (step, seconds per byte) by growing size."""

    launch: float
    pieces: list[tuple[float, float]]
    combine: Literal["max", "min"]

    def seconds(self, data: _Data) -> Array:
        rows = [step * data.steps + inverse * data.wire for step, inverse in self.pieces]
        pick = np.max if self.combine == "max" else np.min
        result: Array = self.launch + pick(rows, axis=0)
        return result

    @property
    def unbounded(self) -> bool:
        """Whether large messages take no longer than small ones."""
        pick = max if self.combine == "max" else min
        return pick(inverse for _, inverse in self.pieces) < 2 * FASTEST * 1e-12

    def error(self, data: _Data, worst: float) -> float:
        """Mean relative error, plus the largest one times ``worst``."""
        errors = np.abs(self.seconds(data) - data.times) / data.times
        return float(errors.mean() + worst * errors.max())


def _best(data: _Data, tier: Tier, *, worst: float = 0.0) -> _Shape:
    """The curve of as many pieces as are worth it."""
    parts: list[Mask] = [np.ones(len(data.times), dtype=bool)]
    best = _fitted(parts, data, tier, worst)
    while len(parts) < MOST_PIECES and best.error(data, worst) > GOOD:
        finer = [(_fitted(split, data, tier, worst), split) for split in _splits(parts, data.wire)]
        errors = [shape.error(data, worst) for shape, _ in finer]
        if not finer or min(errors) > WORTH * best.error(data, worst):
            break
        best, parts = finer[errors.index(min(errors))]
    return best


def _splits(parts: list[Mask], wire: Array) -> list[list[Mask]]:
    """All ways to cut one part in two between two sizes."""
    result = []
    for i, part in enumerate(parts):
        values = np.unique(wire[part])
        cuts = values[2:-1]
        if len(cuts) > MOST_SPLITS:
            cuts = cuts[np.linspace(0, len(cuts) - 1, MOST_SPLITS).astype(int)]
        for cut in cuts:
            low, high = part & (wire < cut), part & (wire >= cut)
            result.append([*parts[:i], low, high, *parts[i + 1 :]])
    return result


def _fitted(parts: list[Mask], data: _Data, tier: Tier, worst: float) -> _Shape:
    """A piece for every part, with one launch time for all, combined as fits better."""
    launch, pieces = _lines(parts, data, tier, worst)
    shapes = [_Shape(launch, pieces, "max"), _Shape(launch, pieces, "min")]
    return min(shapes, key=lambda shape: shape.error(data, worst))


def _lines(
    parts: list[Mask], data: _Data, tier: Tier, worst: float
) -> tuple[float, list[tuple[float, float]]]:
    """Launch, and a piece (step, seconds per byte) for every part."""
    groups = [data.where(part) for part in parts]
    if len(np.unique(data.steps)) == 1:
        count = float(data.steps[0])
        found = [_line(np.ones((len(g.times), 1)), g, 0.0, worst) for g in groups]
        step = DOMAIN_STEP_S if tier == "scale_up" else NETWORK_STEP_S
        launch = min(float(latency[0]) for latency, _ in found)
        launch *= LAUNCH_S / (LAUNCH_S + count * step)
        pieces = [((float(latency[0]) - launch) / count, inverse) for latency, inverse in found]
        return launch, pieces
    both = [np.column_stack([np.ones(len(g.times)), g.steps]) for g in groups]
    launch = min(
        float(_line(columns, g, 0.0, worst)[0][0]) for columns, g in zip(both, groups, strict=True)
    )
    lines = [_line(g.steps[:, None], g, launch, worst) for g in groups]
    return launch, [(float(latency[0]), inverse) for latency, inverse in lines]


def _line(columns: Array, data: _Data, fixed: float, worst: float) -> tuple[Array, float]:
    """Coefficients, none negative, of ``columns·a + wire·b ≈ times − fixed``.

    They minimise the mean relative error plus the largest one times ``worst``.  The variables are
    ``a`` in µs, ``b`` in ms/GB, the error of each sample and the largest error.
    """
    from scipy.optimize import linprog

    left = np.column_stack([columns * 1e-6, data.wire * 1e-12]) / data.times[:, None]
    right = (data.times - fixed) / data.times
    count, width = left.shape
    eye, none, one = np.eye(count), np.zeros((count, 1)), np.ones((count, 1))
    solved = linprog(
        np.concatenate([np.zeros(width), np.full(count, 1 / count), [worst]]),
        A_ub=np.block(
            [[left, -eye, none], [-left, -eye, none], [np.zeros((count, width)), eye, -one]]
        ),
        b_ub=np.concatenate([right, -right, np.zeros(count)]),
        bounds=[(0, None)] * (width - 1) + [(FASTEST, None)] + [(0, None)] * (count + 1),
        method="highs",
    )
    if solved.x is None:
        raise _NoFit
    values = solved.x[:width]
    return values[:-1] * 1e-6, float(values[-1]) * 1e-12


def _outliers(model: Array, times: Array) -> Mask:
    """Times far above the curve, where they are few."""
    excess = (times - model) / times
    limit = max(OUTLIER, 6 * float(np.median(np.abs(excess))))
    aside: Mask = excess > limit
    if aside.sum() > MOST_OUTLIERS * len(times):
        return np.zeros(len(times), dtype=bool)
    return aside


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
