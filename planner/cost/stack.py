"""What the training software makes of computation and communication side by side."""

from __future__ import annotations

import math

SPLIT_BACKWARD_OVERHEAD = 1.03
"""Factor on both parts of the backward where they run as separate ops.

Between 1.03 and 1.04 the times of the Zero Bubble rows (arXiv 2401.10241, tables 4 and 6) come out
best, for split and whole backwards alike.  CrossPipe's profile (arXiv 2507.00217) implies 1.11."""


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
