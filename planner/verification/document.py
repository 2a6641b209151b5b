"""The parts of a solve document that are verified, as typed objects.

Types and names are checked here; whether what they say is true is checked by
:mod:`planner.verification.verify`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from planner.instance.errors import InputError, first_input_error

Values = Annotated[tuple[int, ...], Field(min_length=1)]
LARGEST_TEXT = 1 << 20
"""Most numbers of one text."""


def _rows(value: object) -> list[list[int]]:
    """Rows of whole numbers from text."""
    if not isinstance(value, str):
        raise ValueError("expected text of whole numbers")
    return [[int(number) for number in row.split()] for row in value.split(",") if row.strip()]


def _numbers(value: object) -> list[int]:
    """Whole numbers from text; ``7x3`` is 7 7 7."""
    if not isinstance(value, str):
        raise ValueError("expected text of whole numbers")
    result: list[int] = []
    for part in value.split():
        number, _, count = part.partition("x")
        times = int(count or 1)
        if not 0 < times <= LARGEST_TEXT - len(result):
            raise ValueError("expected counts above 0, and fewer numbers")
        result += [int(number)] * times
    return result


Weights = Annotated[tuple[tuple[int, int], ...], BeforeValidator(_rows)]
"""Places (memory rows or chunks) and their weights."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Box(_Part):
    """Lists of degrees; the box is their product, ``dp_shard`` null = every allowed divisor."""

    tp: Values
    cp: Values
    ep: Values
    etp: Values
    pp: Values
    virtual_stages: Values
    micro_batch_size: Values
    dp: Values
    dp_shard: Values | None


class Second(_Part):
    """What a second engine said about a case."""

    engine: str
    status: str
    agrees: bool


class Entry(_Part):
    """A box with its verdict."""

    box: Box
    cases: int
    verdict: Literal["infeasible", "bounded", "solved", "open"]
    rule: str
    bound_us: int | None = None
    value_us: int | None = None
    engine: str | None = None
    trusted: bool | None = None
    rounds: int | None = None
    second: Second | None = None


class PathWitness(_Part):
    """How a path is found again; one of the three forms.

    ``slow_stage``: longest where the ops of that stage take 2,400, all others 2,000 and transfers
    nothing (null: no slow stage).  ``durations``: longest for these, in the order of the event
    graph's variables.  ``common``: a path of all extra warm-ups of ``stage``.
    """

    slow_stage: int | None = None
    durations: Annotated[tuple[int, ...], BeforeValidator(_numbers)] | None = None
    common: Literal["own", "there", "there and back"] | None = None
    stage: int | None = None


class Multipliers(_Part):
    """Weights of paths (number, whole start, whole end, weight), memory rows and chunks."""

    rows: Annotated[tuple[tuple[int, int, int, int], ...], BeforeValidator(_rows)]
    memory: Weights
    least: Weights


class Shortage(_Part):
    """Weights of memory rows that no split meets together."""

    memory: Weights
    least: Weights


class TemplateTable(_Part):
    """Paths and multipliers of one template."""

    schedule: str
    pp: int
    virtual_stages: int
    num_microbatches: int
    run_length: int | None
    any_warmup: bool
    paths: tuple[PathWitness, ...]
    multipliers: tuple[Multipliers, ...]
    shortages: tuple[Shortage, ...]


class Certificate(_Part):
    """Boxes with verdicts, and what the bounds by paths rest on."""

    cases: tuple[Entry, ...]
    cases_total: int
    grade: str
    templates: tuple[TemplateTable, ...] = ()


class Provenance(BaseModel):
    """The instance that was solved, and contradictions that the search met."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    instance: dict[str, Any]
    errors: tuple[Any, ...] = ()


class Document(BaseModel):
    """A solve document; other fields are not verified."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    status: str
    iteration_time_s: float | None
    lower_bound_s: float | None
    gap: float | None
    tokens_per_s: float | None
    mfu: float | None
    plan: dict[str, Any] | None
    breakdown: dict[str, float] | None
    memory: tuple[dict[str, Any], ...] | None
    certificate: Certificate
    provenance: Provenance


def parse_document(document: object) -> Document:
    """Read a solve document.

    Raises
    ------
    InputError
        If it is none, or a field that is verified is missing or of the wrong type.
    """
    if not isinstance(document, Mapping):
        raise InputError("document", "a JSON object is needed")
    if "certificate" not in document:
        raise InputError("certificate", "missing; a solve document with its certificate is needed")
    try:
        return Document.model_validate(document)
    except ValidationError as error:
        raise first_input_error(error, Document) from None
