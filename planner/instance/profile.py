"""A user's own measurements of a GPU, in place of the shipped efficiency table."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from planner.instance._base import Count, Frozen, FrozenDict, number, problem
from planner.instance.units import PositiveSeconds, Seconds

Precision = Literal["bf16", "fp16", "fp8", "fp8_rowwise", "mxfp8", "nvfp4"]
PEAK_OF: Mapping[Precision, Precision] = {"fp8_rowwise": "fp8"}
"""Precisions that run at the peak of another one."""

_Share = Annotated[float, number(1e-3, 2)]
_Extent = Annotated[float, number(0, 1e6)]


class EfficiencySpec(Frozen):
    """Constants of the roofline of one GPU in one precision (docs/cost_model.md)."""

    gemm: _Share
    """Share of the peak that large matrix products reach."""
    grouped_gemm: _Share
    """The same for the products of a group of experts."""
    attention: _Share
    """The same for fused attention."""
    memory: _Share
    """Share of the HBM bandwidth that elementwise kernels reach."""
    m0: _Extent = 0.0
    """Tokens at which a matrix product runs at half its efficiency."""
    n0: _Extent = 0.0
    """Features at which it does."""
    s0: _Extent = 0.0
    """Tokens per context-parallel rank at which attention does."""
    launch_s: Seconds = 0.0
    """Seconds per kernel."""


class MeasuredProduct(Frozen):
    """A measured matrix product of ``m × k`` with ``k × n``, ``groups`` of them in one kernel."""

    precision: Precision
    m: Count
    """Tokens of one product."""
    n: Count
    """Output features."""
    k: Count
    """Input features."""
    groups: Count = 1
    """Products in the kernel: experts of a grouped product."""
    time_s: PositiveSeconds
    """Seconds of the whole kernel."""


class GpuProfile(Frozen):
    """Constants and products measured on the user's own GPUs."""

    source: str = ""
    efficiency: Annotated[Mapping[Precision, EfficiencySpec], AfterValidator(FrozenDict)] = Field(
        default_factory=FrozenDict
    )
    """Constants by precision; other precisions keep the shipped ones."""
    products: Annotated[tuple[MeasuredProduct, ...], Field(max_length=100_000)] = ()
    """Measured matrix products; other shapes follow the constants."""

    @cached_property
    def product_times_s(self) -> dict[tuple[str, float, float, float, float], float]:
        """Seconds by (precision, m, n, k, groups)."""
        return {(p.precision, p.m, p.n, p.k, p.groups): p.time_s for p in self.products}

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        first: dict[tuple[object, ...], int] = {}
        for i, p in enumerate(self.products):
            at = first.setdefault((p.precision, p.m, p.n, p.k, p.groups), i)
            if at != i:
                raise problem(f"products[{at}] is the same product", at=("products", i))
        return self
