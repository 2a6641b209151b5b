"""Reports of ``iperf3 --json``.

Rates are those of the receiver.  The round trip is the smallest of any stream, so that the queue
that the test itself builds does not count; sums carry none.  A retransmission stands for a lost
segment; UDP reports its losses and the jitter of RFC 3550 itself.

Source: esnet/iperf ``src/iperf_api.c``; round trips in µs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.instance.errors import describe
from planner.instance.text import parse_json
from planner.measured.samples import StreamRun, check_agreement, refused

PROTOCOLS = {"cubic": "tcp_cubic", "bbr": "tcp_bbr", "bbr2": "tcp_bbr"}
"""Protocols of the planner by the kernel's name of the congestion control."""

MOST_STREAMS = 1024
"""More than iperf3 opens (``MAX_STREAMS`` is 128)."""

SHORTEST_S = 1.0
"""A shorter test is still in slow start."""


def read(text: str, file: str) -> StreamRun:
    """The transfer in a report.

    Raises
    ------
    InputError
        With file and reason, if the report is not one of iperf3, failed, or measured too little.
    """
    document = parse_json(text.encode(), file)
    if not isinstance(document, dict) or not {"start", "end"} & document.keys():
        raise refused(file, None, "no report of iperf3 --json: neither 'start' nor 'end'")
    if document.get("error"):
        raise refused(file, None, f"iperf3 failed: {document['error']}")
    report = _Report(document, file)
    start = report.object("start", "test_start")
    if start.get("bidir"):
        raise refused(file, None, "both directions at once share hosts: run without --bidir")
    udp = start.get("protocol") == "UDP"
    if start.get("protocol") not in ("TCP", "UDP"):
        raise refused(file, None, f"start.test_start.protocol is {describe(start.get('protocol'))}")
    received = report.received(udp=udp)
    seconds = report.number(received, "seconds", "end")
    if seconds < SHORTEST_S:
        raise refused(file, None, f"{seconds:.3g} s are too short to leave slow start")
    rate = report.number(received, "bits_per_second", "end")
    if rate <= 0:
        raise refused(file, None, "nothing was received")
    moved = 8 * report.number(received, "bytes", "end") / seconds
    check_agreement(rate, moved, ("bits_per_second", "bytes"), file, None)
    streams = report.number(start, "num_streams", "start.test_start")
    if not 1 <= streams <= MOST_STREAMS:
        raise refused(file, None, f"start.test_start: num_streams is {streams:g}")
    return StreamRun(
        protocol=None if udp else PROTOCOLS.get(str(report.end.get("sender_tcp_congestion"))),
        bytes_per_s=rate / 8,
        reverse=bool(start.get("reverse")),
        streams=int(streams),
        round_trip_s=None if udp else report.round_trip(),
        loss=report.udp_loss(received) if udp else report.tcp_loss(),
        jitter_s=report.number(received, "jitter_ms", "end") / 1e3 if udp else None,
        tool=str(report.start.get("version", "iperf3")),
        file=file,
    )


class _Report:
    """Access with errors that name the path."""

    def __init__(self, document: Mapping[str, Any], file: str) -> None:
        self.document, self.file = document, file
        self.start, self.end = self.object("start"), self.object("end")

    def object(self, *path: str) -> Mapping[str, Any]:
        here: Any = self.document
        for part in path:
            here = here.get(part) if isinstance(here, dict) else None
        if not isinstance(here, dict):
            raise refused(self.file, None, f"no object {'.'.join(path)}: the test did not finish")
        return here

    def number(self, parent: Mapping[str, Any], key: str, where: str) -> float:
        value = parent.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise refused(self.file, None, f"{where}: {key} is {describe(value)}, not a number")
        return float(value)

    def received(self, *, udp: bool) -> Mapping[str, Any]:
        """The sums of the receiver; older UDP reports have one sum for both sides."""
        if udp and "sum_received" not in self.end:
            return self.object("end", "sum")
        return self.object("end", "sum_received")

    def round_trip(self) -> float | None:
        """Smallest round trip of any stream in seconds, where the sender's kernel reports it."""
        streams = self.end.get("streams")
        senders = [
            stream["sender"]
            for stream in (streams if isinstance(streams, list) else ())
            if isinstance(stream, dict) and isinstance(stream.get("sender"), dict)
        ]
        least = [
            self.number(sender, "min_rtt", "end.streams[].sender")
            for sender in senders
            if sender.get("min_rtt") is not None
        ]
        return min((trip for trip in least if trip > 0), default=0.0) / 1e6 or None

    def tcp_loss(self) -> float | None:
        """Retransmitted over sent segments, where the sender's kernel reports them."""
        sent = self.object("end", "sum_sent")
        key = "tcp_mss_default" if self.start.get("tcp_mss_default") else "tcp_mss"
        if sent.get("retransmits") is None or not self.start.get(key):
            return None
        again = self.number(sent, "retransmits", "end.sum_sent")
        segment = self.number(self.start, key, "start")
        segments = self.number(sent, "bytes", "end.sum_sent") / max(1.0, segment)
        return min(again / segments, 0.5) if segments else None

    def udp_loss(self, received: Mapping[str, Any]) -> float:
        packets = self.number(received, "packets", "end")
        lost = self.number(received, "lost_packets", "end")
        if packets <= 0:
            raise refused(self.file, None, "no packet was counted")
        if lost >= packets:
            raise refused(self.file, None, f"{lost:g} of {packets:g} packets were lost")
        return lost / packets
