"""Curves of collectives on the tiers of a site: measured ones, and the assumed ones in their place.

A tier is the scale-up domain or the network; a curve is ``launch + max or min over its pieces of
( latency + bytes over bandwidth )``, see :class:`planner.instance.measured.MeasuredCurve`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Tier = Literal["scale_up", "network"]

STAND_INS: Mapping[str, tuple[str, ...]] = {
    "all_reduce": ("all_reduce", "all_gather", "reduce_scatter"),
    "tree_all_reduce": ("all_reduce", "all_gather", "reduce_scatter"),
    "all_gather": ("all_gather", "reduce_scatter", "all_reduce"),
    "reduce_scatter": ("reduce_scatter", "all_gather", "all_reduce"),
    "all_to_all": ("all_to_all",),
    "p2p": ("p2p",),
}
"""Whose measured curve a collective takes: its own, else that of another ring on the same tier,
whose bus bandwidth is within a tenth (SimuMax B200: .742, .674, .673 of nominal)."""


class Piece(NamedTuple):
    """Latency of a step, and bytes/s of one port."""

    step_s: float
    bytes_per_s: float


class Curve(NamedTuple):
    """A curve.

    ``fastest`` says that the pieces are alternatives and no bottlenecks; ``any_algorithm`` that an
    all-reduce already is the library's choice of ring or tree.
    """

    launch_s: float
    pieces: tuple[Piece, ...]
    fastest: bool = False
    any_algorithm: bool = False

    def seconds(self, steps: float, wire_bytes: float) -> float:
        """Seconds of so many steps and bytes on the wire, without the launch."""
        times = [p.step_s * steps + wire_bytes / p.bytes_per_s for p in self.pieces]
        return min(times) if self.fastest else max(times)

    def slowed(self, share: float) -> Curve:
        """The curve where only a share of the bandwidth is there."""
        pieces = tuple(Piece(p.step_s, p.bytes_per_s * share) for p in self.pieces)
        return self._replace(pieces=pieces)


@dataclass(frozen=True)
class Curves:
    """Measured curves of a site by tier and collective.

    ``nic_bytes_per_s`` is the NIC rate that the network curves belong to, ``reducing`` names the
    tiers that reduce in their switches, ``chunks`` is the most chunks of a collective of levels.
    """

    measured: Mapping[tuple[Tier, str], Curve] = field(default_factory=dict)
    nic_bytes_per_s: float = 1.0
    reducing: frozenset[Tier] = frozenset()
    chunks: int = 1

    def find(self, tier: Tier, op: str) -> Curve | None:
        """The curve of a collective on a tier, or None where nothing was measured."""
        for name in STAND_INS[op]:
            found = self.measured.get((tier, name))
            if found is not None:
                return found
        return None

    def scale_up(self, op: str, assumed: Curve) -> Curve:
        """The curve inside the scale-up domain."""
        return self.find("scale_up", op) or assumed

    def network(self, op: str, assumed: Curve) -> Curve:
        """The curve over the network, where ``assumed`` has the NIC rate that the group gets."""
        found = self.find("network", op)
        if found is None:
            return assumed
        return found.slowed(min(1.0, assumed.pieces[0].bytes_per_s / self.nic_bytes_per_s))


ASSUMED = Curves()
"""Nothing was measured."""
