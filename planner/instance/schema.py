"""The instance: one training job, the cluster it may use and the plans allowed."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from planner.instance._base import BatchCount, Count, Flag, Frozen, Name, number, problem
from planner.instance._preset import Preset, expand
from planner.instance.checks import check_search
from planner.instance.cluster import (
    Cluster,
    GpuSpec,
    Hub,
    Link,
    ProtocolSpec,
    Site,
)
from planner.instance.model import LayerKind, ModelSpec
from planner.instance.profile import Precision
from planner.instance.search_space import Search
from planner.instance.stack import StackSpec
from planner.instance.units import BytesOrZero

__all__ = [
    "Cluster",
    "GpuSpec",
    "Hub",
    "Instance",
    "LayerKind",
    "Link",
    "ModelSpec",
    "Precision",
    "ProtocolSpec",
    "Search",
    "Site",
    "StackSpec",
    "Training",
    "json_schema",
]


class Training(Frozen):
    """Batch, precision and optimizer."""

    global_batch_size: BatchCount
    """Sequences per iteration."""
    sequence_length: Count
    """Tokens."""
    precision: Precision = "bf16"
    optimizer: Literal["adam"] = "adam"
    gradient_bytes: Literal[4, 2] = 4
    """Bytes per gradient element, in memory and on the wire."""
    optimizer_bytes: Literal[12, 8, 4] = 12
    """Bytes of master copy and moments per parameter: single precision each (12), two moments
    without a master copy or half-precision moments (8), two half-precision moments alone (4)."""
    causal: Flag = True
    routing_imbalance: Annotated[float, number(1, 1000)] = 1.0
    """Largest over mean number of tokens per expert-parallel rank."""
    tokens_per_expert: (
        Annotated[
            tuple[Annotated[float, number(0, 1e18)], ...], Field(min_length=1, max_length=100_000)
        ]
        | None
    ) = None
    """Measured tokens (or shares) of each routed expert of a layer, in order; the imbalance of
    every ``ep`` follows from it, in place of ``routing_imbalance``."""

    @model_validator(mode="after")
    def _one_imbalance(self) -> Self:
        if self.tokens_per_expert is None:
            return self
        if self.routing_imbalance != 1.0:
            raise problem("routing_imbalance is given too; give one", at=("tokens_per_expert",))
        if not any(self.tokens_per_expert):
            raise problem("no expert has a token", at=("tokens_per_expert",))
        return self


class Instance(Frozen):
    """One planning problem."""

    schema_: str | None = Field(default=None, alias="$schema")
    name: Name = "unnamed"
    description: str = ""
    model: Annotated[
        ModelSpec,
        BeforeValidator(
            lambda value: expand("models", "model", value),
            json_schema_input_type=ModelSpec | Preset | str,
        ),
    ]
    training: Training
    memory_reserve: BytesOrZero = 0
    """Bytes per GPU kept free of the plan, where a site gives no limit of its own."""
    tight_share: Annotated[float, number(0, 1, below=True)] = 0.05
    """A plan that leaves less than this share of a memory limit is called tight."""
    cluster: Cluster
    search: Search = Search()
    stack: Annotated[
        StackSpec,
        BeforeValidator(
            lambda value: expand("stacks", "stack", value),
            json_schema_input_type=StackSpec | Preset | str,
        ),
    ] = Field(default="megatron-core", validate_default=True)
    """The training software."""

    @field_validator("cluster")
    @classmethod
    def _keep_reserve(cls, cluster: Cluster, info: ValidationInfo) -> Cluster:
        reserve = info.data.get("memory_reserve", 0)
        if not reserve:
            return cluster
        return cluster.model_copy(
            update={"sites": tuple(_reserved(i, s, reserve) for i, s in enumerate(cluster.sites))}
        )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for i, site in enumerate(self.cluster.sites):
            if not site.gpu.runs(self.training.precision):
                has = ", ".join(site.gpu.peak_flops)
                raise problem(
                    f"GPU {site.gpu.name} has no {self.training.precision} peak, only {has}",
                    at=("cluster", "sites", i, "gpu"),
                )
        tokens = self.training.tokens_per_expert
        if tokens is not None and len(tokens) != self.model.num_experts:
            raise problem(
                f"has {len(tokens)} experts, the model {self.model.num_experts or 'none'}",
                at=("training", "tokens_per_expert"),
            )
        check_search(self)
        return self


def _reserved(index: int, site: Site, reserve: int) -> Site:
    if "memory_limit_bytes" in site.model_fields_set:
        return site
    left = site.memory_limit_bytes - reserve
    if left <= 0:
        raise problem(
            f"memory_reserve of {reserve} bytes leaves nothing of {site.memory_limit_bytes}",
            at=("sites", index),
        )
    return site.model_copy(update={"memory_limit_bytes": left})


def json_schema() -> dict[str, Any]:
    """The JSON schema of an instance file, for editors."""
    schema = Instance.model_json_schema(by_alias=True, mode="validation")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
