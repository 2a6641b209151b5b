"""Least squares for the constants of the cost model, on measured runs.

The residual of a row is ``log(predicted / measured)``.  Predictions come from the checker's own
arithmetic: the iteration time is the longest path of the row's event graph, and between two updates
of the paths it is the sum of the durations on the path, so that a derivative needs no graph.
Constants move on a log scale, shares on a logit scale, each towards a stated prior with a stated
width (ridge); the loss turns from squares to absolute values at :data:`ROBUST`, so that a measured
outlier counts little.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.check import durations_of_layout
from planner.cost.coefficients import case_coefficients
from planner.instance.profile import EfficiencySpec, GpuProfile
from planner.pipeline.event_graph import event_graph
from planner.problem import Problem
from planner.validation.measured import measured_time_s
from planner.validation.rows import Run, read_runs
from planner.validation.setup import Setup, SkippedRunError, setup_run

Key = tuple[str, str]
"""Role of a constant, and the GPU, GPU and precision, or stack that it belongs to."""

Vector = npt.NDArray[np.float64]

ROBUST = 0.06
"""Residual at which the loss turns from squares to absolute values."""

NOISE = 0.05
"""Assumed standard deviation of one residual; weighs the data against the priors."""

REFIT_STEPS = 10
"""Reweightings of the linear fit without some rows."""

STEP = 0.03
"""Step of the numerical derivative on the scale of the constant."""


@dataclass(frozen=True)
class Prior:
    """Where a constant is drawn to, how wide (log or logit), and its bounds."""

    value: float
    width: float
    low: float
    high: float


PRIORS = {
    "gemm": Prior(0.70, 0.25, 0.1, 0.95),
    "grouped": Prior(0.70, 0.15, 0.3, 1.0),
    "attention": Prior(0.48, 0.25, 0.1, 0.95),
    "memory": Prior(0.75, 0.12, 0.4, 0.95),
    "m0": Prior(100.0, 0.8, 1.0, 2000.0),
    "n0": Prior(200.0, 0.8, 1.0, 2000.0),
    "s0": Prior(500.0, 0.7, 1.0, 4000.0),
    "launch": Prior(4.5e-6, 0.3, 1e-6, 2e-5),
    "tp_exposed": Prior(0.5, 1.0, 0.02, 0.98),
    "ep_exposed": Prior(0.7, 1.0, 0.02, 0.98),
    "fsdp_exposed": Prior(0.5, 1.0, 0.02, 0.98),
    "routing_factor": Prior(1.5, 0.4, 0.5, 8.0),
    "host_floor_s": Prior(2e-4, 0.3, 5e-5, 5e-3),
    "fixed_s": Prior(0.01, 0.5, 1e-3, 0.1),
}
"""Priors by role.

Sources: shares of the peak from the reference study of fidelity and SimuMax's measured sweep on
B200; ``launch`` from CUDA launch latencies; exposed shares in the middle of their range; 40 kernel
launches of 5 µs as the floor of a layer.
"""

SPECIAL: dict[Key, tuple[float, float]] = {
    ("gemm", "A100 bf16"): (0.85, 0.25),
    ("gemm", "H100 bf16"): (0.80, 0.25),
    ("gemm", "B200 bf16"): (0.47, 0.25),
    ("gemm", "GB200 bf16"): (0.60, 0.25),
    ("gemm", "H100-96 bf16"): (0.60, 0.25),
    ("gemm", "H100-96 fp8"): (0.50, 0.25),
    ("gemm", "H100-96 fp8_rowwise"): (0.30, 0.25),
    ("attention", "A100"): (0.75, 0.25),
    ("host_floor_s", "megatron-2021"): (8.3e-4, 0.3),
    ("tp_exposed", "megatron-2021"): (0.95, 1.0),
}
"""Value and width of priors that differ from those of the role (reference study of fidelity)."""

GPU_ROLES = ("grouped", "attention", "memory")
SHAPE_ROLES = ("m0", "n0", "s0", "launch")
STACK_ROLES = (
    "tp_exposed",
    "ep_exposed",
    "fsdp_exposed",
    "routing_factor",
    "host_floor_s",
    "fixed_s",
)
_SHARES = {"tp_exposed", "ep_exposed", "fsdp_exposed"}
_SAME_DIE = {"H200": "H100"}


def prior(key: Key) -> Prior:
    """The prior of one constant."""
    base = PRIORS[key[0]]
    value, width = SPECIAL.get(key, (base.value, base.width))
    return Prior(value, width, base.low, base.high)


def to_scale(role: str, value: float) -> float:
    """The constant on the scale on which it is fitted."""
    return math.log(value / (1 - value)) if role in _SHARES else math.log(value)


def from_scale(role: str, value: float) -> float:
    """Inverse of :func:`to_scale`."""
    return 1 / (1 + math.exp(-value)) if role in _SHARES else math.exp(value)


@dataclass
class FitRow:
    """A predicted row: its set-up, its measured time and the constants it depends on."""

    run: Run
    setup: Setup
    measured_s: float
    weight: float = 1.0
    keys: dict[str, Key] = field(default_factory=dict)
    half: Key = ("", "")
    path: dict[Any, int] = field(default_factory=dict)

    @property
    def configuration(self) -> str:
        """Equal for rows that differ in nothing that a prediction sees."""
        return self.setup.problem.instance.model_dump_json() + repr(self.setup.layout)

    @property
    def gpu(self) -> str:
        """GPU type."""
        return gpu_type(self.setup.problem.instance.cluster.sites[0].gpu.name)


def gpu_type(name: str) -> str:
    """GPUs that share all constants."""
    return name if name == "H100-96" else name.split("-")[0]


def fit_rows(path: Path) -> list[FitRow]:
    """All rows with a prediction and a trusted measured time; repeats share one weight."""
    rows = []
    for run in read_runs(path):
        if run.stage_profile is not None or run.excluded is not None:
            continue
        try:
            setup = setup_run(run)
        except SkippedRunError:
            continue
        instance, layout = setup.problem.instance, setup.layout
        measured = measured_time_s(run, instance, layout.degrees.gpus)
        if measured is None:
            continue
        row = FitRow(run, setup, measured)
        precision = {"fp16": "bf16"}.get(instance.training.precision, instance.training.precision)
        die = _SAME_DIE.get(row.gpu, row.gpu)
        row.keys = {"gemm": ("gemm", f"{row.gpu} {precision}")}
        row.keys |= {role: (role, die) for role in GPU_ROLES}
        row.keys |= {role: (role, "all") for role in SHAPE_ROLES}
        row.keys |= {role: (role, instance.stack.name) for role in STACK_ROLES}
        row.half = ("gemm", f"{row.gpu} bf16")
        rows.append(row)
    repeats = Counter(row.configuration for row in rows)
    for row in rows:
        row.weight = 1 / math.sqrt(repeats[row.configuration])
    return rows


class Model:
    """Predictions of rows as functions of the vector of constants."""

    def __init__(self, rows: Sequence[FitRow]) -> None:
        self.rows = rows
        used = {key for row in rows for key in (*row.keys.values(), row.half)}
        self.keys = sorted(used)
        self.index = {key: i for i, key in enumerate(self.keys)}
        self.priors = [prior(key) for key in self.keys]
        self.center = np.array(
            [to_scale(k[0], p.value) for k, p in zip(self.keys, self.priors, strict=True)]
        )
        self.width = np.array([p.width for p in self.priors])
        self.low = np.array(
            [to_scale(k[0], p.low) for k, p in zip(self.keys, self.priors, strict=True)]
        )
        self.high = np.array(
            [to_scale(k[0], p.high) for k, p in zip(self.keys, self.priors, strict=True)]
        )
        self.log_measured = np.log([row.measured_s for row in rows])
        self.weights = np.array([row.weight for row in rows])

    def value(self, x: Vector, key: Key) -> float:
        """One constant."""
        return from_scale(key[0], float(x[self.index[key]]))

    def start(self) -> Vector:
        """All constants at their priors."""
        return self.center.copy()

    def problem(self, row: FitRow, x: Vector) -> Problem:
        """The problem of a row under the constants."""
        instance = row.setup.problem.instance
        site = instance.cluster.sites[0]

        def constants(gemm: Key) -> EfficiencySpec:
            share = self.value(x, gemm)
            shape = {role: self.value(x, row.keys[role]) for role in (*GPU_ROLES, *SHAPE_ROLES)}
            return EfficiencySpec.model_construct(
                gemm=share,
                grouped_gemm=share * shape["grouped"],
                attention=shape["attention"],
                memory=shape["memory"],
                m0=shape["m0"],
                n0=shape["n0"],
                s0=shape["s0"],
                launch_s=shape["launch"],
            )

        precision = row.keys["gemm"][1].split()[-1]
        profile = GpuProfile.model_construct(
            source="fit",
            efficiency={precision: constants(row.keys["gemm"]), "bf16": constants(row.half)},
            products=(),
        )
        gpu = site.gpu.model_copy(update={"profile": profile})
        cluster = instance.cluster.model_copy(
            update={"sites": (site.model_copy(update={"gpu": gpu}),)}
        )
        stack = instance.stack.model_copy(
            update={role: self.value(x, row.keys[role]) for role in STACK_ROLES}
        )
        return Problem(instance.model_copy(update={"cluster": cluster, "stack": stack}))

    def predict(
        self, x: Vector, *, refresh: bool = False, rows: Sequence[int] | None = None
    ) -> Vector:
        """Seconds per iteration of the chosen rows, all by default.

        ``refresh`` looks for the longest paths anew.
        """
        seen: dict[str, tuple[float, dict[Any, int]]] = {}
        chosen = self.rows if rows is None else [self.rows[i] for i in rows]
        result = np.empty(len(chosen))
        for i, row in enumerate(chosen):
            name = row.configuration
            if name not in seen:
                problem = self.problem(row, x)
                co = case_coefficients(problem, row.setup.layout.degrees)
                durations = durations_of_layout(problem, co, row.setup.layout)
                if refresh or not row.path:
                    template = row.setup.layout.template(co.num_microbatches)
                    row.path = event_graph(template).critical_path(durations)[1]
                us = co.fixed_us + sum(n * durations[d] for d, n in row.path.items())
                seen[name] = (us / 1e6, row.path)
            result[i], row.path = seen[name]
        return result

    def jacobian(self, x: Vector, base: Vector) -> npt.NDArray[np.float64]:
        """Derivative of ``log(predicted)``, shape (rows, constants).

        A row depends on one constant of each role, so all constants of a role move at once.
        """
        jacobian = np.zeros((len(self.rows), len(self.keys)))
        for role in dict.fromkeys(key[0] for key in self.keys):
            moved = x.copy()
            for key, i in self.index.items():
                if key[0] == role:
                    moved[i] += STEP
            change = (np.log(self.predict(moved)) - np.log(base)) / STEP
            for r, row in enumerate(self.rows):
                jacobian[r, self.index[row.keys[role]]] += change[r]
        return jacobian


@dataclass
class Fit:
    """Fitted constants on their scales, predictions of all rows, and the information matrix."""

    x: Vector
    predicted_s: Vector
    jacobian: npt.NDArray[np.float64]
    information: npt.NDArray[np.float64]

    @property
    def deviations(self) -> Vector:
        """Posterior standard deviation of every constant on its scale."""
        result: Vector = np.sqrt(np.diag(np.linalg.inv(self.information)))
        return result


def fit(model: Model, start: Vector, steps: int, rows: npt.NDArray[np.bool_] | None = None) -> Fit:
    """Damped Gauss-Newton from ``start`` on the chosen rows (all by default).

    The first step uses plain squares: a robust loss from a bad start abandons whole configurations.
    """
    chosen = np.ones(len(model.rows), dtype=bool) if rows is None else rows
    x, robust = start.copy(), not np.array_equal(start, model.center)
    for _ in range(steps):
        predicted = model.predict(x, refresh=True)
        jacobian = model.jacobian(x, predicted)
        information, gradient = _normal_equations(model, x, predicted, jacobian, chosen, robust)
        damped = information + 0.01 * np.diag(np.diag(information))
        x = np.clip(
            x + np.clip(np.linalg.solve(damped, gradient), -0.7, 0.7), model.low, model.high
        )
        robust = True
    predicted = model.predict(x, refresh=True)
    jacobian = model.jacobian(x, predicted)
    information, _ = _normal_equations(model, x, predicted, jacobian, chosen, robust)
    return Fit(x, predicted, jacobian, information)


def refit(model: Model, result: Fit, rows: npt.NDArray[np.bool_]) -> Vector:
    """Constants fitted to the chosen rows alone, by the derivatives at a fit to all rows.

    The residuals are taken as linear in the constants, which is good near the fit and costs no
    prediction.
    """
    x = result.x.copy()
    for _ in range(REFIT_STEPS):
        log_predicted = np.log(result.predicted_s) + result.jacobian @ (x - result.x)
        information, gradient = _normal_equations(
            model, x, np.exp(log_predicted), result.jacobian, rows, True
        )
        x = np.clip(x + np.linalg.solve(information, gradient), model.low, model.high)
    return x


def _normal_equations(
    model: Model,
    x: Vector,
    predicted: Vector,
    jacobian: npt.NDArray[np.float64],
    chosen: npt.NDArray[np.bool_],
    robust: bool,
) -> tuple[npt.NDArray[np.float64], Vector]:
    residual = np.log(predicted) - model.log_measured
    weight = model.weights * chosen / NOISE
    if robust:
        weight = weight / (1 + (residual / ROBUST) ** 2) ** 0.25
    design = jacobian * weight[:, None]
    ridge = 1 / model.width
    information = design.T @ design + np.diag(ridge**2)
    gradient = -design.T @ (residual * weight) - (x - model.center) * ridge**2
    return information, gradient
