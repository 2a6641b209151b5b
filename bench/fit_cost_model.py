"""Fit the constants of the cost model to measured runs, and say how well the runs identify them.

    python bench/fit_cost_model.py fit RUNS.json        # writes efficiency.json and stacks.json
    python bench/fit_cost_model.py cross-validate RUNS.json

Predictions come from the checker's own arithmetic: a row's iteration time is the longest path of its
event graph, and between two updates of the paths it is the sum of the durations on the path, so
that a derivative costs no graph.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from planner.check import Duration, _durations, chunk_units
from planner.cost.coefficients import case_coefficients
from planner.instance.profile import EfficiencySpec, GpuProfile
from planner.layout import Layout
from planner.pipeline.event_graph import event_graph
from planner.problem import Problem
from planner.validation.measured import measured_time_s
from planner.validation.rows import read_runs
from planner.validation.setup import SkippedRunError, setup_run

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "planner/cost/efficiency.json"
STACKS = ROOT / "planner/instance/catalog/stacks.json"

# role: (lower, upper, prior, width of the prior as a factor or in logits)
ROLES = {
    "gemm": (0.05, 1.2, {}, 0.4),
    "grouped": (0.2, 1.5, 0.9, 0.2),
    "attention": (0.05, 1.2, {"A100": 0.75, "H100": 0.48, "H100-96": 0.48, "H200": 0.48}, 0.3),
    "memory": (0.2, 1.0, 0.75, 0.15),
    "m0": (1.0, 3000.0, 100.0, 1.0),
    "n0": (1.0, 3000.0, 200.0, 1.0),
    "s0": (1.0, 6000.0, 500.0, 1.0),
    "launch": (1e-6, 2e-5, 4.5e-6, 0.3),
    "tp_exposed": (0.02, 0.98, 0.5, 1.0),
    "ep_exposed": (0.02, 0.98, 0.7, 1.0),
    "fsdp_exposed": (0.02, 0.98, 0.5, 1.0),
    "attention_factor": (0.5, 4.0, 1.0, 0.05),
    "host_floor": (1e-5, 5e-3, 3e-4, 0.7),
    "fixed": (1e-3, 0.2, 0.01, 0.7),
}
