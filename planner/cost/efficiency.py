"""Efficiency constants by GPU type and precision, read once from ``efficiency.json``."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

from planner.cost.types import EfficiencyConstants, Gpu


@dataclass(frozen=True, slots=True)
class Efficiency:
    """A row of the table; :class:`~planner.cost.types.EfficiencyConstants` explains the fields."""

    gemm: float
    grouped_gemm: float
    attention: float
    memory: float
    m0: float
    n0: float
    s0: float
    launch_s: float


_SAME_CONSTANTS = {"fp16": "bf16"}
_SAME_PEAK = {"fp8_rowwise": "fp8"}


def efficiency(gpu: Gpu, precision: str) -> EfficiencyConstants:
    """Constants for a GPU and a precision.

    Those of the GPU's own profile where it has some, then the table's row for its name, then that
    for its type, the first word of its name (``H100-SXM-80GB`` is ``H100``), then the default row
    of the precision; an unknown precision takes that of ``bf16``.
    """
    family = _SAME_CONSTANTS.get(precision, precision)
    if gpu.profile is not None:
        own = gpu.profile.efficiency.get(precision) or gpu.profile.efficiency.get(family)
        if own is not None:
            return own
    name = gpu.name.strip().upper()
    kind = re.split(r"[^A-Z0-9]", name)[0]
    rows = _table()
    for key in ((name, family), (kind, family), ("DEFAULT", family), ("DEFAULT", "bf16")):
        if key in rows:
            return rows[key]
    raise AssertionError("efficiency.json has no default row")


def peak_flops(gpu: Gpu, precision: str) -> float:
    """Dense peak of a GPU in FLOP/s.

    Raises
    ------
    ValueError
        If the GPU states no peak for the precision.
    """
    try:
        return gpu.peak_flops[_SAME_PEAK.get(precision, precision)]
    except KeyError:
        known = ", ".join(sorted(gpu.peak_flops))
        raise ValueError(f"GPU {gpu.name} has no peak for {precision!r}; known: {known}") from None


def measured_product_s(
    gpu: Gpu, precision: str, m: float, n: float, k: float, groups: float
) -> float | None:
    """Seconds of matrix products in one kernel as the GPU's profile states them, if it does."""
    if gpu.profile is None:
        return None
    return gpu.profile.product_times_s.get((precision, m, n, k, groups))


def half_precision(gpu: Gpu, precision: str) -> str:
    """Precision of attention, router and head: 16 bits, or the job's where the GPU states none."""
    return next((p for p in ("bf16", "fp16") if p in gpu.peak_flops), precision)


@cache
def _table() -> dict[tuple[str, str], Efficiency]:
    text = resources.files("planner.cost").joinpath("efficiency.json").read_text("utf-8")
    data = json.loads(text)
    shape = {key: data["shape"][key] for key in ("m0", "n0", "s0", "launch_s")}
    return {
        (row["gpu"].upper(), row["precision"]): Efficiency(
            row["gemm"], row["grouped_gemm"], row["attention"], row["memory"], **shape
        )
        for row in data["rows"]
    }
