"""A training job from the command line of Megatron-LM's ``pretrain_gpt.py``."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner.instance.errors import InputError, nearest

_MODEL = {
    "--num-layers": "num_layers",
    "--hidden-size": "hidden_size",
    "--num-attention-heads": "num_heads",
    "--num-query-groups": "num_kv_heads",
    "--kv-channels": "head_dim",
    "--ffn-hidden-size": "ffn_hidden_size",
    "--num-experts": "num_experts",
    "--moe-router-topk": "experts_per_token",
    "--moe-ffn-hidden-size": "expert_ffn_hidden_size",
    "--moe-shared-expert-intermediate-size": "shared_expert_ffn_hidden_size",
    "--vocab-size": "vocab_size",
}
_TRAINING = {"--seq-length": "sequence_length", "--global-batch-size": "global_batch_size"}
_PLAN = {
    "--tensor-model-parallel-size": "tp",
    "--pipeline-model-parallel-size": "pp",
    "--context-parallel-size": "cp",
    "--expert-model-parallel-size": "ep",
    "--micro-batch-size": "micro_batch_size",
}
_VARIABLES = {
    "TP_SIZE": "tp",
    "PP_SIZE": "pp",
    "MICRO_BATCH_SIZE": "micro_batch_size",
    "GLOBAL_BATCH_SIZE": "global_batch_size",
    "WORLD_SIZE": "num_gpus",
}
"""Shell variables of Megatron-LM's example scripts, where they precede the flags."""


@dataclass(frozen=True)
class MegatronJob:
    """What a command line says, as fields of an instance and of a plan."""

    model: Mapping[str, Any]
    training: Mapping[str, Any]
    choices: Mapping[str, Any]
    """Fields of the plan: degrees, ``sharding`` and ``recompute``, and ``num_gpus``."""
    stack: Mapping[str, Any]


def from_arguments(text: str, *, vocab_size: int | None = None) -> MegatronJob:
    """Read Megatron-LM flags, with shell variables in front of them if need be.

    Flags that change neither shape nor memory are passed over. Defaults are those of Megatron-LM
    (``megatron/training/arguments.py``): FFN width ``4h``, a gated one two thirds of that in
    multiples of 64; tied embeddings; no sharding; no recomputation.

    Parameters
    ----------
    vocab_size
        Rows of the embedding, where no ``--vocab-size`` gives them (Megatron-LM takes them from the
        tokenizer).

    Raises
    ------
    InputError
        If a value that is needed is missing or no positive integer; names the flag.
    """
    flags, variables = _split(text)
    model: dict[str, Any] = {
        field: _number(flags, flag) for flag, field in _MODEL.items() if flag in flags
    }
    model["gated"] = "--swiglu" in flags
    model["tied_embeddings"] = "--untie-embeddings-and-output-weights" not in flags
    if vocab_size is not None:
        model.setdefault("vocab_size", vocab_size)
    plan: dict[str, Any] = {
        field: _number(flags, flag) for flag, field in _PLAN.items() if flag in flags
    }
    training: dict[str, Any] = {
        field: _number(flags, flag) for flag, field in _TRAINING.items() if flag in flags
    }
    for name, value in variables.items():
        field = _VARIABLES[name]
        target: dict[str, Any] = training if field == "global_batch_size" else plan
        target.setdefault(field, _integer(name, value))
    required = {"--num-layers": model, "--hidden-size": model, "--num-attention-heads": model}
    required |= {"--vocab-size": model, "--seq-length": training, "--global-batch-size": training}
    for flag, found in required.items():
        if (_MODEL | _TRAINING)[flag] not in found:
            close = nearest(flag, list(flags))
            hint = f"; did you mean it by '{close}'?" if close else ""
            raise InputError(flag, f"missing{hint}")
    hidden = model["hidden_size"]
    gated = max(64, hidden * 8 // 3 // 64 * 64)
    model.setdefault("ffn_hidden_size", gated if model["gated"] else 4 * hidden)
    if model.get("num_experts"):
        model.setdefault("expert_ffn_hidden_size", model["ffn_hidden_size"])
        model.setdefault("experts_per_token", 2)
    distributed = {"--distributed-optimizer", "--use-distributed-optimizer"} & flags.keys()
    plan["sharding"] = "zero1" if distributed else "ddp"
    granularity = flags.get("--recompute-granularity")
    selective = "--recompute-activations" in flags
    plan["recompute"] = granularity or ("selective" if selective else "none")
    fused = {"--use-flash-attn", "--transformer-impl"} & flags.keys()
    stack = {
        "preset": "megatron-core" if fused else "megatron-2021",
        "sequence_parallel": "--sequence-parallel" in flags,
    }
    return MegatronJob(model, training, plan, stack)


def _split(text: str) -> tuple[dict[str, str | None], dict[str, str]]:
    """Flags with their values, and the known variables."""
    flags: dict[str, str | None] = {}
    variables: dict[str, str] = {}
    flag: str | None = None
    for word in shlex.split(text.replace("\\\n", " ")):
        name, equals, value = word.partition("=")
        if word.startswith("--"):
            flag = name
            flags[flag] = value if equals else None
        elif flag is not None and flags[flag] is None:
            flags[flag] = word
        elif equals and name in _VARIABLES:
            variables[name] = value
    return flags, variables


def _number(flags: Mapping[str, str | None], flag: str) -> int:
    return _integer(flag, flags[flag])


def _integer(name: str, text: str | None) -> int:
    if text is None or not text.isascii() or not text.isdigit() or int(text) == 0:
        raise InputError(name, f"expected a positive integer, got {text!r}")
    return int(text)
