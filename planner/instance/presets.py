"""Catalog entries as models."""

from __future__ import annotations

from functools import lru_cache

from planner.instance import catalog
from planner.instance.cluster import GpuSpec, ProtocolSpec
from planner.instance.model import ModelSpec
from planner.instance.stack import StackSpec


@lru_cache
def gpu(name: str) -> GpuSpec:
    """The catalog's GPU of that name."""
    return GpuSpec.model_validate(catalog.fields("gpus", name))


@lru_cache
def model(name: str) -> ModelSpec:
    """The catalog's model of that name."""
    return ModelSpec.model_validate(catalog.fields("models", name))


@lru_cache
def protocol(name: str) -> ProtocolSpec:
    """The catalog's protocol of that name."""
    return ProtocolSpec.model_validate(catalog.fields("protocols", name))


@lru_cache
def stack(name: str) -> StackSpec:
    """The catalog's stack of that name."""
    return StackSpec.model_validate(catalog.fields("stacks", name))
