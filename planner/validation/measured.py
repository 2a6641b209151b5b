"""What a row measured, as seconds per iteration and bytes per GPU."""

from __future__ import annotations

import re

from planner.cost.flops import AttentionConvention, layer_flops, model_flops_per_token
from planner.instance.schema import Instance
from planner.validation.rows import Run


def measured_time_s(run: Run, instance: Instance, gpus: int) -> float | None:
    """Seconds of one iteration.

    From the first that the row states: iteration time, tokens/s, samples/s, TFLOP/s per GPU, MFU.
    FLOPs count by the row's own convention.

    Returns
    -------
    float or None
        None if the row measured no time.
    """
    measured, training = run.measured, instance.training
    batch, tokens = training.global_batch_size, training.sequence_length
    if measured.iter_time_s is not None:
        return measured.iter_time_s
    if measured.tokens_per_s_per_gpu is not None:
        return batch * tokens / (measured.tokens_per_s_per_gpu * gpus)
    if measured.samples_per_s_per_gpu is not None:
        return batch / (measured.samples_per_s_per_gpu * gpus)
    per_gpu = measured.tflops_per_gpu
    if per_gpu is None and measured.mfu is not None:
        gpu = instance.cluster.sites[0].gpu
        precision = training.precision if training.precision in gpu.peak_flops else "bf16"
        share = measured.mfu / 100 if measured.mfu > 1.5 else measured.mfu
        per_gpu = share * gpu.peak_flops[precision] / 1e12
    if per_gpu is None:
        return None
    flops = batch * tokens * flops_per_token(run, instance)
    return flops / (per_gpu * 1e12 * gpus)


def measured_without_model_s(run: Run) -> float | None:
    """Seconds of one iteration as far as the row says them without a model."""
    measured, batch, gpus = run.measured, run.parallel.gbs, run.hardware.gpus
    if measured.iter_time_s is not None or batch is None or gpus is None:
        return measured.iter_time_s
    if measured.tokens_per_s_per_gpu is not None:
        tokens = run.model.seq
        return None if tokens is None else batch * tokens / (measured.tokens_per_s_per_gpu * gpus)
    if measured.samples_per_s_per_gpu is not None:
        return batch / (measured.samples_per_s_per_gpu * gpus)
    return None


def flops_per_token(run: Run, instance: Instance) -> float:
    """FLOPs per token of one iteration in the convention of the row's source.

    Narayanan's ``96·l·h²·(1 + s/6h + V/16lh)`` counts full recompute; the others count three
    forward passes, with causal attention at half or in full, Megatron-LM without the router
    (docs/validation.md).
    """
    said = (run.flops_convention or "").casefold()
    model, length = instance.model, instance.training.sequence_length
    if "96*b*s*l*h^2" in said:
        h, layers = model.hidden_size, model.num_layers
        ratio = 1 + length / (6 * h) + model.vocab_size / (16 * layers * h)
        return 96 * layers * h * h * ratio
    halved = "halved" in said and not re.search(r"non-causal-halved|not halved", said)
    convention: AttentionConvention = "causal" if halved else "full"
    flops = model_flops_per_token(model, length, convention)
    if "megatron-lm" in said:
        flops -= 3 * sum(layer_flops(model, k, length, halved).router for k in model.layer_kinds)
    return flops


def measured_memory_bytes(run: Run) -> float | None:
    """Peak bytes per GPU, or None if the row measured none.

    Sources that print GB for readings of ``torch.cuda`` mean GiB (docs/cost_model.md).
    """
    measured = run.measured
    if measured.mem_gib is not None:
        return measured.mem_gib * 2**30
    if measured.mem_gb is None:
        return None
    binary = "zero bubble" in run.family.casefold()
    return measured.mem_gb * (2**30 if binary else 1e9)
