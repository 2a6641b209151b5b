"""Op orders of the schedules whose two chunks a device form a V.

Device ``s`` holds chunk ``s`` on the way down and chunk ``2 pp - 1 - s`` on the way up.  Both rules
need a least number of microbatches; with fewer, the order of that least number is built and the
missing microbatches are left out, which cannot add a cycle.
"""

from __future__ import annotations

from planner.pipeline.ops import Op, OpKind

Order = tuple[Op, ...]


class _Recorder:
    """Appends ops of the two local chunks; counts the microbatches of each kind and chunk."""

    def __init__(self, stage: int, pp: int) -> None:
        self._chunks = (stage, 2 * pp - 1 - stage)
        self._next: dict[tuple[OpKind, int], int] = {}
        self._order: list[Op] = []

    def add(self, kind: OpKind, way: int) -> None:
        """Append the next microbatch's op on the chunk of ``way`` 0 (down) or 1 (up)."""
        n = self._next.get((kind, way), 0)
        self._next[kind, way] = n + 1
        self._order.append(Op(kind, self._chunks[way], n))

    def done(self, kind: OpKind, way: int) -> int:
        """Return the number of ops of this kind and way so far."""
        return self._next.get((kind, way), 0)

    def backward(self, way: int) -> None:
        """Input gradient and weight gradient on ``way``."""
        self.add("B", way)
        self.add("W", way)

    def order(self, m: int) -> Order:
        """Return the ops of the first ``m`` microbatches."""
        return tuple(op for op in self._order if op.microbatch < m)


def zbv(stage: int, pp: int, m: int) -> Order:
    """ZB-V: no bubble where F = B = W, at most ``2 pp`` chunk activations on every device.

    ``2 (pp - s) - 1`` forwards down, then ``s`` pairs of a forward up and one down, then forwards
    up each followed by its backward; steadily F down, B W down, F up, B W up; at the end the input
    gradients first, with the weight gradients filling the drain.

    Source: Qi et al., arXiv 2401.10241, schedule ZB-V; the step counts are those
    of ``ScheduleZBVZeroBubble`` in PyTorch ``torch/distributed/pipelining/schedules.py``.
    """
    rounds = max(m, 2 * pp - 1)
    ops = _Recorder(stage, pp)
    for _ in range(2 * (pp - stage) - 1):
        ops.add("F", 0)
    for _ in range(stage):
        ops.add("F", 1)
        ops.add("F", 0)
    for _ in range(pp - stage):
        ops.add("F", 1)
        ops.backward(1)
    while ops.done("F", 1) < rounds:
        if ops.done("F", 0) < rounds:
            ops.add("F", 0)
        ops.backward(0)
        ops.add("F", 1)
        ops.backward(1)
    for _ in range(stage):
        ops.add("B", 0)
        ops.add("B", 1)
    for _ in range(pp - stage):
        ops.add("B", 0)
        ops.add("W", 0)
    for way in (1, 0):
        while ops.done("W", way) < rounds:
            ops.add("W", way)
    return ops.order(m)


def dualpipe_v(stage: int, pp: int, m: int) -> Order:
    """DualPipeV: DualPipe folded in half, forward and backward of opposite ways side by side.

    Eight steps: F down; F down and up; B W F up; steadily F down with B W up and F up with B W
    down; B W up, F up with B W down; backwards of both ways, the weight gradients of the second
    half put off; put-off W and B down; the weight gradients left.  At most ``2 pp + 1`` chunk
    activations (the ``PP + 1`` of the README with ``PP = 2 pp`` chunks).

    Source: deepseek-ai/DualPipe, as transcribed in
    ``ScheduleDualPipeV`` of PyTorch ``torch/distributed/pipelining/schedules.py``; a pair that
    runs overlapped there runs as F, B, W here.
    """
    rounds = max(m, 2 * pp)
    ops = _Recorder(stage, pp)
    later = pp - stage - 1
    for _ in range(2 * later):
        ops.add("F", 0)
    for _ in range(stage + 1):
        ops.add("F", 0)
        ops.add("F", 1)
    for _ in range(later):
        ops.backward(1)
        ops.add("F", 1)
    for _ in range(rounds - 2 * pp + stage + 1):
        ops.add("F", 0)
        ops.backward(1)
        ops.add("F", 1)
        ops.backward(0)
    for _ in range(later):
        ops.backward(1)
        ops.add("F", 1)
        ops.backward(0)
    put_off: list[int] = []
    for number in range(2 * (stage + 1)):
        way = 1 - number % 2
        if number <= stage:
            ops.backward(way)
        else:
            ops.add("B", way)
            put_off.append(way)
    for number in range(later):
        ops.add("W", put_off[number])
        ops.add("B", 0)
        put_off.append(0)
    for way in put_off[later:]:
        ops.add("W", way)
    return ops.order(m)
