"""Constants of training software: what of the communication it exposes, and its fixed costs.

A stack has at most six numeric constants.  They are shared by all models, GPUs and precisions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Stack:
    """Constants of one training software.

    Attributes
    ----------
    name
        Key of the stack.
    tp_exposed, ep_exposed, fsdp_exposed
        Share of the tensor-parallel, expert-parallel and sharded-data-parallel communication that
        no computation hides, in [0, 1].
    attention_factor
        Time of the core attention over that of the best fused kernel of its day.
    host_floor_s
        Seconds in which the host can launch the forward of one layer.
    fixed_s
        Seconds per iteration for the data loader, gradient norm and logging.
    flash_attention
        False where scores are written to memory (software from before 2022).
    """

    name: str
    tp_exposed: float
    ep_exposed: float
    fsdp_exposed: float
    attention_factor: float = 1.0
    host_floor_s: float = 0.2e-3
    fixed_s: float = 0.007
    flash_attention: bool = True
    split_backward_overhead: ClassVar[float] = 1.07
    """Factor on both parts of the backward where they run as separate ops, in every stack."""


STACKS: dict[str, Stack] = {
    stack.name: stack
    for stack in (
        Stack("megatron-2021", 0.95, 1.0, 1.0, host_floor_s=1.05e-3, flash_attention=False),
        Stack("megatron-core", 0.44, 1.0, 0.44),
        Stack("torchtitan", 0.44, 1.0, 0.17),
        Stack("fsdp", 0.44, 1.0, 0.98, attention_factor=2.2),
    )
}
"""Stacks by name.

``megatron-2021`` is the software of Narayanan 2021 and Korthikanti 2022, ``megatron-core`` that of
Megatron-Core, Megatron-Bridge and NeMo, ``fsdp`` plain PyTorch FSDP with the attention kernels of
2023 as in llm-foundry.  Exposed shares, the split overhead and the fixed seconds are those of the
reference study of fidelity; the floor of ``megatron-2021`` (study: 0.83 ms) and the attention
factor of ``fsdp`` are fitted together with ``efficiency.json``.  The expert-parallel share fits
best at its upper end, fully exposed.  No public run identifies the floor of the newer stacks, taken
as 40 kernel launches of 5 µs.
"""

DEFAULT_STACK = "megatron-core"


def get_stack(name: str = DEFAULT_STACK) -> Stack:
    """Look a stack up.

    Raises
    ------
    ValueError
        If no stack has this name.
    """
    try:
        return STACKS[name]
    except KeyError:
        raise ValueError(f"unknown stack {name!r}; known: {', '.join(STACKS)}") from None


def straggler_factor(num_gpus: int) -> float:
    """Factor on the time of an iteration by the number of GPUs: 0.6 % more per doubling.

    Source: reference study of fidelity, "Form that worked".
    """
    return 1 + 0.006 * math.log2(num_gpus)


def with_host_floor(gpu_s: float, floor_s: float) -> float:
    """Soft maximum of the time of the GPU and that of the host, in seconds.

    ``(gpu⁴ + host⁴)^¼``: never below either, 19 % above both where they are equal.

    Source: reference study of fidelity ("soft maximum with GPU time"); the power is ours.
    """
    longest = max(gpu_s, floor_s)
    if longest <= 0:
        return 0.0
    ratio = min(gpu_s, floor_s) / longest
    return longest * math.sqrt(math.sqrt(1 + ratio**4))


def exposed(communication_s: float, compute_s: float, share: float) -> float:
    """Seconds that communication adds to computation which runs beside it.

    ``max(c, w) + share·min(c, w) − c`` for computation ``c`` and communication ``w``: what is
    longer than the computation never hides, of the rest ``share`` does not.

    Source: reference study of fidelity, FSDP row.
    """
    hidden = min(communication_s, compute_s)
    return communication_s - hidden + share * hidden
