"""The plan: what the planner decides, as one JSON object.

Every field is named in ``docs/plan_space.md``.  A plan says nothing about time or memory; those are
recomputed from the instance by :mod:`planner.check`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from planner.instance.errors import InputError, first_input_error

PlacementKind = Literal["single-site", "dp-out", "pp-out", "mixed"]
Sharding = Literal["ddp", "zero1", "zero2", "zero3"]
Sync = Literal["flat", "hierarchical"]
Recompute = Literal["none", "selective", "full"]
TrafficClass = Literal["all", "pp", "dp"]

SHARDINGS: tuple[Sharding, ...] = ("ddp", "zero1", "zero2", "zero3")
SYNCS: tuple[Sync, ...] = ("hierarchical", "flat")
RECOMPUTES: tuple[Recompute, ...] = ("none", "selective", "full")
PLACEMENT_KINDS: tuple[PlacementKind, ...] = ("single-site", "dp-out", "pp-out", "mixed")


class Degrees(NamedTuple):
    """One degrees case, in the order in which ties between cases are broken."""

    tp: int
    cp: int
    ep: int
    etp: int
    pp: int
    virtual_stages: int
    micro_batch_size: int
    dp: int
    dp_shard: int

    @property
    def dp_replicate(self) -> int:
        """Number of shard groups."""
        return self.dp // self.dp_shard

    @property
    def cell_gpus(self) -> int:
        """GPUs of one cell (one pipeline stage of one replica)."""
        return self.tp * self.cp

    @property
    def gpus(self) -> int:
        """GPUs that the case uses."""
        return self.tp * self.cp * self.pp * self.dp


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True)


class Hosting(_Part):
    """``replicas`` cells of each stage from ``first_stage`` to ``last_stage`` run at ``site``."""

    site: str
    first_stage: int = Field(ge=0)
    last_stage: int = Field(ge=0)
    replicas: int = Field(ge=1)


class Flow(_Part):
    """``replicas`` that leave site ``from`` after stage ``boundary`` for site ``to``.

    Boundary ``b`` lies between the stages ``b`` and ``b + 1``; boundary ``pp - 1`` is the way back
    to stage 0 of a looped schedule with several chunks.
    """

    boundary: int = Field(ge=0)
    source: str = Field(alias="from")
    target: str = Field(alias="to")
    replicas: int = Field(ge=1)


class ProtocolChoice(_Part):
    """The protocol of one link in one direction for one class of traffic."""

    link: str
    source: str = Field(alias="from")
    target: str = Field(alias="to")
    traffic: TrafficClass = Field(alias="class", default="all")
    protocol: str


class Plan(_Part):
    """A complete plan.  Counts are exact; nothing is implied."""

    tp: int = Field(ge=1)
    cp: int = Field(ge=1)
    ep: int = Field(ge=1)
    etp: int = Field(ge=1)
    pp: int = Field(ge=1, le=4096)
    dp: int = Field(ge=1)
    dp_shard: int = Field(ge=1)
    dp_replicate: int = Field(ge=1)
    virtual_stages: int = Field(ge=1, le=64)
    micro_batch_size: int = Field(ge=1)
    num_microbatches: int = Field(ge=1)
    gpus_used: int = Field(ge=1)
    schedule: str
    run_length: int | None = None
    extra_warmup: tuple[int, ...]
    sharding: Sharding
    sync: Sync
    overlap: bool
    recompute: Recompute
    layers_per_stage: tuple[int, ...]
    placement: tuple[Hosting, ...]
    flows: tuple[Flow, ...]
    placement_kind: PlacementKind
    protocols: tuple[ProtocolChoice, ...]

    @property
    def degrees(self) -> Degrees:
        """The degrees case of the plan."""
        return Degrees(
            self.tp,
            self.cp,
            self.ep,
            self.etp,
            self.pp,
            self.virtual_stages,
            self.micro_batch_size,
            self.dp,
            self.dp_shard,
        )

    def to_json(self) -> dict[str, Any]:
        """The plan as a JSON object with the public field names."""
        return self.model_dump(mode="json", by_alias=True)


def parse_plan(document: Mapping[str, Any]) -> Plan:
    """Read a plan from a solve document or from a bare ``plan`` object.

    Raises
    ------
    InputError
        If the document holds no plan, or a field of it is missing, unknown or of the wrong type.
    """
    if not isinstance(document, Mapping):
        raise InputError("plan", "a JSON object is needed")
    prefix = ""
    body: Any = document
    if "plan" in document:
        body, prefix = document["plan"], "plan"
        if body is None:
            raise InputError("plan", "the document holds no plan")
        if not isinstance(body, Mapping):
            raise InputError("plan", "a JSON object is needed")
    try:
        return Plan.model_validate_json(_dump(body))
    except ValidationError as error:
        raise first_input_error(error, Plan, prefix) from None


def _dump(body: Mapping[str, Any]) -> str:
    import json

    return json.dumps(body)
