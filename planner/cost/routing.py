"""How unevenly the tokens of a MoE layer fall on the ranks of an expert-parallel group."""

from __future__ import annotations

from collections.abc import Sequence


def routing_imbalance(tokens_per_expert: Sequence[float], ranks: int) -> float:
    """Tokens of the fullest rank over the mean, with so many ranks that hold equal stretches.

    ``max over ranks of Σ tokens of its experts / (Σ all tokens / ranks)``; rank ``r`` of ``e``
    holds the experts ``r·E/e … (r+1)·E/e − 1``, as Megatron-Core places them.  One rank has 1, and
    twice as many ranks never have less.

    Raises
    ------
    ValueError
        If the ranks do not divide the experts, or no expert has a token.

    Source: Megatron-Core ``local_expert_indices`` (MoE token dispatcher); reference cost model 4.3.
    """
    experts, total = len(tokens_per_expert), sum(tokens_per_expert)
    if ranks < 1 or experts % ranks:
        raise ValueError(f"{ranks} ranks cannot share {experts} experts equally")
    if total <= 0:
        raise ValueError("no expert has a token")
    width = experts // ranks
    loads = [sum(tokens_per_expert[r * width : (r + 1) * width]) for r in range(ranks)]
    return max(1.0, max(loads) * ranks / total)
