"""Zones (rails, pods) of a site: what an oversubscribed fabric leaves of the NIC rates.

Ranks lie one after the other, tensor parallelism innermost and pipeline stages outermost, so that a
group of ``n`` ranks that lie ``s`` GPUs apart spans ``P = n·s`` GPUs.  Inside a zone of ``Q`` GPUs
every NIC has its full rate; a zone as a whole has ``Q/o`` of its NICs towards the others.
"""

from __future__ import annotations

from typing import NamedTuple

from planner import space


class Zones(NamedTuple):
    """The zones of a site."""

    gpus: int
    """GPUs of one zone, ``Q``: whole scale-up domains."""
    oversubscription: float
    """NICs of a zone over those that its uplink carries, ``o``, at least 1."""
    domain: int
    """GPUs of one scale-up domain, ``d``."""

    def share(self, op: str, ranks: int, stride: int) -> float:
        """Share of its NIC rate that a rank gets in a collective, from ``1/o`` to 1.

        A group lies inside a zone if its span divides the zone.  Others cross:

        - a ring takes hops of ``h = max(s, d)`` GPUs.  Where zones divide the span, ``h`` NICs of a
          zone send out of it; else a zone may hold the ends of two groups, and ``2h`` do.  The ring
          is as fast as its slowest hop: ``Q/(o·min(Q, h or 2h))``, at most 1;
        - of what a NIC sends in an all-to-all, the share ``(n − z)/(n − g)`` leaves the zone, with
          ``z = Q/s`` ranks in a zone and ``g = d/s`` in a domain; where zones do not divide the
          span ``(n − min(z, n)/2)/(n − g)`` of at most ``P`` NICs of a zone.

        Raises
        ------
        ValueError
            If there is no rank or no stride.

        Source: bytes over each uplink of ring and pairwise exchange (Thakur, Rabenseifner and
        Gropp 2005); oversubscribed aggregation above full-bisection pods: Llama 3
        (arXiv 2407.21783), 3.3.1.
        """
        if ranks < 1 or stride < 1:
            raise ValueError(f"need at least one rank and stride, not {ranks} and {stride}")
        span, near = ranks * stride, max(1, self.domain // stride)
        if ranks <= near or self.gpus % span == 0:
            return 1.0
        aligned = span % self.gpus == 0
        if op == "all_to_all":
            inside = max(1.0, self.gpus / stride)
            stays = inside if aligned else min(inside, ranks) / 2
            leaves = (ranks - stays) / (ranks - near) * min(1.0, span / self.gpus)
            return 1 / max(1.0, self.oversubscription * min(1.0, leaves))
        hop = max(stride, self.domain)
        return self._uplink_share(hop if aligned else 2 * hop)

    def transfer_share(self, stage_gpus: int, stages: int) -> float:
        """Share of its NIC rate that a GPU gets to send to the next or to the previous stage.

        A pipeline that fits into a zone has it all.  Else the last ``P`` GPUs of a zone send
        forward and the first ``P`` backward out of it, for stages of ``P`` GPUs.
        """
        if stage_gpus * stages <= self.gpus:
            return 1.0
        return self._uplink_share(2 * stage_gpus)

    def blocks(self, ranks: int, stride: int) -> tuple[int, ...]:
        """In how many ranks a group may be divided so that each block lies inside a zone.

        The blocks are of equal size, whole scale-up domains, more than one domain and less than the
        group; a block of some zone stays one in every zone that is a multiple of it.  A group of
        one rank or none has no blocks.
        """
        if ranks <= 1:
            return ()
        hop = max(stride, self.domain)
        return tuple(
            block
            for block in space.divisors(ranks)
            if hop < block * stride < ranks * stride
            and self.gpus % (block * stride) == 0
            and block * stride % (self.domain if stride < self.domain else stride) == 0
        )

    def _uplink_share(self, senders: int) -> float:
        """Share of their rate that so many NICs of a zone, at most all, get out of it."""
        return min(1.0, self.gpus / (min(self.gpus, senders) * self.oversubscription))
