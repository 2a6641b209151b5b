"""Op orders of the schedules whose chunk ``k`` sits on device ``k mod pp``.

All of them are one pattern: a warm-up of forwards, then one backward and one forward in turn while
forwards are left, then the other backwards.  Where the backward is split, the weight gradients
follow a fixed number of backwards later and what is left of them ends the iteration.  A generator
of one schedule only says what the two sequences, the warm-up and the delay are.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.pipeline.ops import Op, OpKind

Order = tuple[Op, ...]


def _one_forward_one_backward(
    forward: Sequence[Op],
    backward: Sequence[Op],
    warm_up: int,
    weight_delay: int | None = None,
) -> Order:
    """``warm_up`` forwards, then backward and forward in turn, then the backwards left.

    With a ``weight_delay`` of ``d`` the weight gradient of the q-th backward comes right after
    backward ``q + d``.
    """
    order = list(forward[:warm_up])
    weights = [Op("W", op.chunk, op.microbatch) for op in backward]
    for number, op in enumerate(backward):
        order.append(op)
        if weight_delay is not None and number >= weight_delay:
            order.append(weights[number - weight_delay])
        order.extend(forward[warm_up + number : warm_up + number + 1])
    if weight_delay is not None:
        order.extend(weights[max(0, len(weights) - weight_delay) :])
    return tuple(order)


def _microbatches(kind: OpKind, chunk: int, m: int) -> list[Op]:
    return [Op(kind, chunk, n) for n in range(m)]


def gpipe(stage: int, m: int) -> Order:
    """All forwards, then all backwards in the same order of microbatches.

    Source: Huang et al., GPipe, arXiv 1811.06965, figure 2.
    """
    return tuple(_microbatches("F", stage, m) + _microbatches("B", stage, m))


def one_f_one_b(stage: int, pp: int, m: int, extra: int) -> Order:
    """``pp - stage + extra`` forwards before the first backward, then one of each in turn.

    Source: PipeDream-Flush, Narayanan et al., arXiv 2104.04473, section 2.2.1; ``extra`` > 0 is
    eager 1F1B, which pays memory for tolerance of a slow link.
    """
    return _one_forward_one_backward(
        _microbatches("F", stage, m), _microbatches("B", stage, m), pp - stage + extra
    )


def zb_h1(stage: int, pp: int, m: int, extra: int) -> Order:
    """1F1B with a split backward; stage ``s`` delays its weight gradients by ``s`` microbatches.

    With the ``pp - s`` microbatches in flight that makes at most ``pp`` on every stage, the peak of
    1F1B.  ``extra`` is added to the warm-up and to that peak.

    Source: Qi et al., Zero Bubble, arXiv 2401.10241, handcrafted schedule ZB-H1.
    """
    return _one_forward_one_backward(
        _microbatches("F", stage, m),
        _microbatches("B", stage, m),
        pp - stage + extra,
        weight_delay=stage,
    )


def zb_h2(stage: int, pp: int, m: int) -> Order:
    """``2 (pp - s) - 1`` forwards first, weight gradients delayed by ``2 s`` microbatches.

    The warm-up fills the wait for the first backward, and the delayed weight gradients fill the
    drain; at most ``2 pp - 1`` microbatches are held on every stage.

    Source: Qi et al., Zero Bubble, arXiv 2401.10241, handcrafted schedule ZB-H2.
    """
    return _one_forward_one_backward(
        _microbatches("F", stage, m),
        _microbatches("B", stage, m),
        2 * (pp - stage) - 1,
        weight_delay=2 * stage,
    )


def _runs(kind: OpKind, chunks: Sequence[int], m: int, run: int) -> list[Op]:
    """Let groups of ``run`` microbatches visit the ``chunks`` one after the other."""
    return [
        Op(kind, chunk, n)
        for first in range(0, m, run)
        for chunk in chunks
        for n in range(first, first + run)
    ]


def _interleaved_warm_up(stage: int, pp: int, v: int, run: int) -> int:
    return 2 * (pp - stage - 1) + (v - 1) * run + 1


def interleaved(stage: int, pp: int, v: int, m: int, run: int) -> Order:
    """Take ``run`` microbatches a chunk at a time, chunks in reverse in the backward.

    ``2 (pp - s - 1) + (v - 1) run + 1`` forwards come before the first backward: ``(v - 1) run``
    until the first microbatch reaches the last chunk of the stage, one to run it there, and two for
    each later stage, there and back.  ``run = pp`` is Megatron's order, ``run = m`` breadth first.

    The order cannot deadlock for ``run >= pp``: number the forwards and the backwards of a stage
    ``0, 1, ...`` and let forward ``j`` of stage ``s`` happen at time ``2 j + 2 s`` and backward
    ``q`` right after forward ``q + warm_up - 1``; then every dependency goes forward in time, the
    way back from the last stage to stage 0 because ``2 run > 2 (pp - 1)``.

    Source: Narayanan et al., arXiv 2104.04473, section 2.2.2; the number of consecutive
    microbatches as a parameter: Megatron-LM ``microbatch_group_size_per_vp_stage`` and Llama 3,
    arXiv 2407.21783, section 3.3.2.
    """
    chunks = range(stage, pp * v, pp)
    return _one_forward_one_backward(
        _runs("F", chunks, m, run),
        _runs("B", chunks[::-1], m, run),
        _interleaved_warm_up(stage, pp, v, run),
    )


def dora(stage: int, pp: int, v: int, m: int, run: int) -> Order:
    """Interleaved with a split backward; stage ``s`` delays weight gradients by ``2 s`` backwards.

    Every stage then holds at most ``2 (pp - 1) + (v - 1) run + 1`` chunk activations, the peak of
    the interleaved order, and the delayed weight gradients fill the drain: the rule of ``zb_h2``
    applied to the interleaved order.

    Source: no public definition of the name exists (cost_model.md, section 3.1); this order is the
    declared meaning here.
    """
    chunks = range(stage, pp * v, pp)
    return _one_forward_one_backward(
        _runs("F", chunks, m, run),
        _runs("B", chunks[::-1], m, run),
        _interleaved_warm_up(stage, pp, v, run),
        weight_delay=2 * stage,
    )
