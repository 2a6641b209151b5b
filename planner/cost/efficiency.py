"""Efficiency constants by GPU type and precision, read once from ``efficiency.json``."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

from planner.cost.types import Gpu


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Constants of the roofline on one GPU in one precision.

    Attributes
    ----------
    gemm, grouped_gemm, attention
        Share of the peak that large matrix products, grouped ones of experts, and fused attention
        reach.
    memory
        Share of the HBM bandwidth that elementwise kernels reach.
    m0
        Tokens at which a matrix product runs at half its efficiency.
    n0
        Features at which it does.
    s0
        Tokens per context-parallel rank at which attention does.
    launch_s
        Seconds per kernel.
    """

    gemm: float
    grouped_gemm: float
    attention: float
    memory: float
    m0: float
    n0: float
    s0: float
    launch_s: float


_SAME_AS = {"fp16": "bf16"}


def efficiency(gpu: Gpu, precision: str) -> Efficiency:
    """Constants for a GPU and a precision.

    The GPU type is the first word of its name (``H100-SXM-80GB`` is ``H100``).  Without a row of
    its own it takes the default row of the precision, and an unknown precision that of ``bf16``.
    """
    kind = re.split(r"[^A-Za-z0-9]", gpu.name.strip())[0].upper()
    family = _SAME_AS.get(precision, precision)
    rows = _table()
    for key in ((kind, family), ("DEFAULT", family), ("DEFAULT", "bf16")):
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
        return gpu.peak_flops[precision]
    except KeyError:
        known = ", ".join(sorted(gpu.peak_flops))
        raise ValueError(f"GPU {gpu.name} has no peak for {precision!r}; known: {known}") from None


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
