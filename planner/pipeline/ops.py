"""The operations that a device runs."""

from __future__ import annotations

from typing import Literal, NamedTuple

OpKind = Literal["F", "B", "W"]


class Op(NamedTuple):
    """One operation on one microbatch.

    ``kind`` is ``F`` (forward), ``B`` (backward; only the input gradient where the schedule splits
    the backward) or ``W`` (weight gradient of a split backward).  ``chunk`` is numbered in the
    order in which a microbatch visits the chunks.
    """

    kind: OpKind
    chunk: int
    microbatch: int
