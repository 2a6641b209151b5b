"""What a row means where it leaves a field open: the defaults of each training software."""

from __future__ import annotations

import re
from typing import NamedTuple

from planner.plan import Recompute, Sharding
from planner.validation.rows import Run


class StackDefaults(NamedTuple):
    """Defaults of one training software for fields that a row leaves null.

    ``tied`` says whether its dense models share embedding and head; ``gradient_bytes`` is the
    width of accumulated gradients.
    """

    sharding: Sharding
    overlap: bool
    tied: bool = False
    precision: str = "BF16"
    gradient_bytes: int = 4


_DEFAULTS = {
    "megatron-2021": StackDefaults("ddp", overlap=False, tied=True, precision="FP16"),
    "megatron-core": StackDefaults("zero1", overlap=True),
    "torchtitan": StackDefaults("zero3", overlap=True),
    "deepspeed-2021": StackDefaults("zero3", overlap=True, tied=True, precision="FP16"),
    "jax": StackDefaults("zero3", overlap=True),
    "fsdp": StackDefaults("zero3", overlap=True, tied=True, gradient_bytes=2),
}
"""By the first stack whose name the row's stack starts with.

Megatron-LM before 2022 reduces full gradients after the last backward, Megatron-Core keeps a
distributed optimizer that overlaps; torchtitan and llm-foundry shard everything (their
configuration files).  GPT and MPT models tie embedding and head.  llm-foundry reduces gradients in
16 bits (``mixed_precision: PURE``).
"""

VOCABULARY = 51_200
"""Padded GPT-2 vocabulary, where a GPT row states none (Narayanan 2021)."""

OUTSIDE = {
    "lora": "LoRA trains adapters only: not in the plan space",
    "without scatter/gather": "transfers without scatter and gather: not in the plan space",
}
"""Remarks of sources on techniques that the plan space does not hold."""

_PRECISIONS = (
    ("nvfp4", "nvfp4"),
    ("fp4", "nvfp4"),
    ("mxfp8", "mxfp8"),
    ("fp8-mx", "mxfp8"),
    ("rowwise", "fp8_rowwise"),
    ("fp8", "fp8"),
    ("bf16", "bf16"),
    ("fp16", "fp16"),
)

_SCHEDULES = (
    ("dualpipe", "dualpipe_v"),
    ("zbv", "zbv"),
    ("zb-v", "zbv"),
    ("zb-2p", "zb_h2"),
    ("zb-h2", "zb_h2"),
    ("zb-1p", "zb_h1"),
    ("zb-h1", "zb_h1"),
    ("gpipe", "gpipe"),
    ("1f1b-i", "interleaved"),
)
"""Schedules by words of their names.  ZB-1p and ZB-2p (Zero Bubble, arXiv 2401.10241) are searched
within the memory of ZB-H1 and ZB-H2 and have about their bubbles."""

_VERSION = re.compile(r"\b(2\d\.\d\d)(?:\.\d\d)?\b.*nemo", re.IGNORECASE)


def defaults_of(stack: str) -> StackDefaults | None:
    """The defaults of a stack or of the software whose version it is; None if unknown."""
    return next((d for name, d in _DEFAULTS.items() if stack.startswith(name)), None)


def stack_of(run: Run) -> str | None:
    """The name of the catalog's stack for a row.

    Its own ``stack``, refined by what the source says of software and version: NeMo containers
    of 2025 and from 26.06 on, MaxText and Paxml (JAX), DeepSpeed ZeRO-3, asynchronous
    tensor parallelism.
    """
    name, said = run.stack, run.remarks
    if name == "megatron-core":
        if "maxtext" in said or "paxml" in said:
            return "jax"
        version = _VERSION.search(run.table or "")
        if version:
            if float(version.group(1)) < 26:
                return "megatron-core-25"
            if float(version.group(1)) >= 26.06:
                return "megatron-core-26.06"
    if name == "megatron-2021" and "deepspeed zero-3" in said:
        return "deepspeed-2021"
    if name == "torchtitan" and re.search(r"async ?tp", said):
        return "torchtitan-async-tp"
    return name


def kernels_of(run: Run) -> dict[str, str]:
    """Fields of the stack that changed with its version, as the row's source is dated.

    torchtitan of 2024 computed the loss eagerly (its ``train.py`` had the compilation of the loss
    turned off) and its optimizer tensor by tensor (``foreach``, the default of PyTorch).
    """
    if run.stack == "torchtitan" and "_2024" in (run.source_url or ""):
        return {"loss_kernel": "eager", "optimizer_kernel": "foreach"}
    return {}


def precision_of(text: str) -> str | None:
    """The precision that a source's wording means, or None."""
    wording = text.casefold()
    return next((name for part, name in _PRECISIONS if part in wording), None)


def recompute_of(text: str) -> Recompute | None:
    """The recompute that a source's wording means, or None."""
    wording = text.casefold()
    if wording.startswith("none"):
        return "none"
    if wording.startswith(("full", "layerwise")):
        return "full"
    return "selective" if wording.startswith("selective") else None


def schedule_of(text: str, virtual_stages: int) -> str | None:
    """The schedule of the plan space that a source's wording means, or None."""
    wording = text.casefold()
    for part, name in _SCHEDULES:
        if part in wording:
            return name
    plain = "no interleaving" in wording
    if virtual_stages > 1 or ("interleaved" in wording and not plain):
        return "interleaved"
    return "1f1b" if wording in ("", "none") or "1f1b" in wording else None


def sharding_of(text: str) -> Sharding | None:
    """The sharding that a source's wording means, or None."""
    wording = text.casefold()
    if "distributed optimizer" in wording or "zero-1" in wording:
        return "zero1"
    if "grad_op" in wording or "zero-2" in wording:
        return "zero2"
    if "fsdp" in wording or "zero-3" in wording:
        return "zero3"
    return "ddp" if wording.startswith("ddp") else None


def shard_group_of(text: str) -> int | None:
    """The size of the shard group that a source's wording states, or None."""
    match = re.search(r"(?:degree |group=|\(=)(\d{1,9})\b", text)
    return int(match.group(1)) if match else None


def nic_gbps_of(text: str, gpus_per_node: int) -> float | None:
    """Network bandwidth per GPU in Gb/s that a source's wording states, or None."""
    match = re.search(r"\b(?:(\d{1,4}) ?x ?)?(\d{1,7}(?:\.\d{1,6})?) ?Gb/s", text)
    if match is None:
        return None
    rate = float(match.group(2)) * int(match.group(1) or 1)
    return rate / gpus_per_node if "per node" in text else rate
