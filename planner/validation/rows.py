"""Rows of measured runs, as in ``published_runs.json``: one training configuration each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from planner.instance.errors import InputError, describe
from planner.instance.text import read_json

_Positive = Annotated[float, Field(gt=1e-9, le=1e15, allow_inf_nan=False)]
_Duration = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
_Stages = Annotated[int, Field(ge=1, le=4096)]
_Chunks = Annotated[int, Field(ge=1, le=1024)]
_Count = Annotated[int, Field(ge=1, le=10**9)]
_CountOrZero = Annotated[int, Field(ge=0, le=10**9)]


OVERALL = "overall"
"""Key of the summary over all sources."""


class _Record(BaseModel):
    """Unknown keys are kept out of the way: rows may say more than the model can use."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class MlaWidths(_Record):
    """Ranks and head widths of multi-head latent attention."""

    q_lora: _CountOrZero | None = None
    kv_lora: _Count
    qk_nope: _Count
    qk_rope: _Count
    v: _Count


class RunModel(_Record):
    """Dimensions of the model; ``seq`` in tokens, ``shared_ffn`` over all shared experts."""

    name: str | None = None
    layers: _Count | None = None
    hidden: _Count | None = None
    heads: _Count | None = None
    kv_heads: _Count | None = None
    head_dim: _Count | None = None
    ffn: _CountOrZero | None = None
    gated: bool | None = None
    vocab: _Count | None = None
    seq: _Count | None = None
    experts: _CountOrZero | None = None
    topk: _CountOrZero | None = None
    moe_ffn: _CountOrZero | None = None
    shared_ffn: _CountOrZero | None = None
    dense_layers: _CountOrZero | None = None
    mla: MlaWidths | None = None


class RunHardware(_Record):
    """GPUs and network; bandwidths as the source words them."""

    gpu: str | None = None
    gpus: _Count | None = None
    nodes: _Count | None = None
    inter_bw: str | float | None = None
    intra_bw: str | float | None = None


class RunParallel(_Record):
    """Degrees, batch (``gbs``, ``mbs`` in sequences, ``ga`` microbatches) and techniques."""

    tp: _Count | None = None
    cp: _Count | None = None
    ep: _Count | None = None
    etp: _Count | None = None
    pp: _Stages | None = None
    dp: _Count | None = None
    vp: _Chunks | None = None
    mbs: _Count | None = None
    gbs: _Count | None = None
    ga: _Count | None = None
    sp: bool | None = None
    precision: str | None = None
    recompute: str | None = None
    schedule: str | None = None
    zero: str | None = None


class RunMeasured(_Record):
    """What was measured; GB are powers of ten unless the source means otherwise, GiB of two."""

    iter_time_s: _Positive | None = None
    tokens_per_s_per_gpu: _Positive | None = None
    samples_per_s_per_gpu: _Positive | None = None
    tflops_per_gpu: _Positive | None = None
    mfu: _Positive | None = None
    mem_gb: _Positive | None = None
    mem_gib: _Positive | None = None


class StageProfile(_Record):
    """Measured durations of a pipeline in place of the compute model, in seconds.

    ``slow_boundaries`` lists ``i`` for a slow link between the stages ``i`` and ``i + 1``.
    """

    stages: _Stages
    microbatches: _Count
    F_s: _Duration
    BW_s: _Duration | None = None
    B_s: _Duration | None = None
    W_s: _Duration | None = None
    latency_s: _Duration = 0.0
    serialization_s: _Duration = 0.0
    slow_boundaries: tuple[_CountOrZero, ...] = ()
    blocking_sends: bool = True


class Run(_Record):
    """One measured run."""

    id: str | int | None = None
    source: str | None = None
    source_url: str | None = None
    stack: str | None = None
    table: str | None = None
    note: str | None = None
    flops_convention: str | None = None
    excluded: str | None = None
    """Why the measurement is thought faulty; such rows are predicted but not fitted."""
    model: RunModel = RunModel()
    hardware: RunHardware = RunHardware()
    parallel: RunParallel = RunParallel()
    measured: RunMeasured = RunMeasured()
    stage_profile: StageProfile | None = None

    @property
    def family(self) -> str:
        """What rows are summarised by: their source."""
        return "unknown" if self.source is None else self.source

    @property
    def remarks(self) -> str:
        """Everything that the source says in words about the software, in small letters."""
        return f"{self.table or ''} {self.note or ''}".casefold()


def read_runs(source: str | Path | Sequence[Mapping[str, Any]]) -> tuple[Run, ...]:
    """Read rows from a JSON file or from parsed objects.

    The file holds a list of rows, or an object with such a list under ``runs`` or ``rows``.

    Raises
    ------
    InputError
        If the file cannot be read or has both lists, or a row has a field of the wrong type;
        names the field.
    """
    if isinstance(source, str | Path):
        where, document = str(source), read_json(Path(source))
    else:
        where, document = "runs", list(source)
    if isinstance(document, dict):
        lists = [key for key in ("runs", "rows") if key in document]
        if len(lists) > 1:
            raise InputError(where, "has both 'runs' and 'rows'; give one list of runs")
        document = document[lists[0]] if lists else document
    if not isinstance(document, list):
        raise InputError(where, f"expected a list of runs, got {describe(document)}")
    return tuple(_run(i, row) for i, row in enumerate(document))


def _run(index: int, row: Any) -> Run:
    if not isinstance(row, Mapping):
        raise InputError(f"[{index}]", f"expected an object, got {describe(row)}")
    present = {key: value for key, value in row.items() if value is not None}
    try:
        run = Run.model_validate_json(json.dumps(present))
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            raise InputError(f"[{index}]", "holds text that is not valid Unicode") from None
        if first["type"] == "missing":
            raise InputError(f"[{index}].{'.'.join(map(str, first['loc']))}", "missing") from None
        path = ".".join(str(part) for part in first["loc"] if part not in ("str", "int", "float"))
        reason = str(first["msg"]).removeprefix("Input should be ")
        got = describe(first["input"])
        raise InputError(f"[{index}].{path}", f"expected {reason}, got {got}") from None
    if run.source == OVERALL:
        raise InputError(f"[{index}].source", f"'{OVERALL}' is the name of the whole summary")
    return run
