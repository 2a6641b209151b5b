"""Logs of perftest: ``ib_write_bw``, ``ib_write_lat`` and their siblings.

``Gb/sec`` is 10^9 bit; ``MB/sec`` (up to about 4.5) and ``MiB/sec`` (later) are both 2^20 bytes,
as the message rate beside them shows.  Latencies of writes and sends are half of a round trip.

Source: linux-rdma/perftest ``src/perftest_parameters.c`` (formats), ``src/perftest_resources.c``
(``format_factor = 0x100000``).
"""

from __future__ import annotations

import re

from planner.instance.errors import describe
from planner.measured.samples import (
    MessageRun,
    Sample,
    check_agreement,
    decimal,
    refused,
    sample,
    whole,
)

BYTES_PER_S = {"gb/sec": 1.25e8, "mb/sec": 2.0**20, "mib/sec": 2.0**20}

LEAST_MPPS = 1e-4
"""Message rate from which six decimals are a figure that can be compared."""

ROUNDED = 1.01
"""Figures this near to each other may be equal but for rounding."""

_COLUMN = re.compile(
    r"#bytes|#iterations|BW peak|BW average|MsgRate|t_min|t_max|t_typical|t_avg|t_stdev"
    r"|99% percentile|99\.9% percentile|tps average|mean latency|CPU_Util"
)
_UNIT = re.compile(r"BW average\s*\[([^\]]+)\]")
_TITLE = re.compile(r"^\s*((?:RDMA_Write|RDMA_Read|Send|Write|Read|Atomic)\b.*\bTest)\s*$")
_PAIRS = re.compile(r"Number of qps\s*:\s*(\d+)")
_FAILURE = re.compile(r"Completion with error|Failed status \d")


def read(text: str, file: str) -> list[MessageRun]:
    """The runs in a log.

    Raises
    ------
    InputError
        With file, line and reason, if the log is not one of perftest, sums both directions or is
        cut off.
    """
    runs: list[MessageRun] = []
    columns: list[str] = []
    rows: list[Sample] = []
    title, pairs, what, factor = "perftest", "", "", 1.0

    def finish() -> None:
        if rows:
            runs.append(MessageRun(what, tuple(rows), f"{title}{pairs}", file))
            rows.clear()

    for number, line in enumerate(text.splitlines(), start=1):
        if _FAILURE.search(line):
            raise refused(file, number, f"the run failed: {describe(line.strip())}")
        if found := _TITLE.match(line):
            finish()
            title, columns, pairs = found[1], [], ""
            if "Bidirectional" in title:
                raise refused(file, number, "the figures sum both directions: run without -b")
        elif found := _PAIRS.search(line):
            pairs = f", {found[1]} queue pairs"
        elif "#bytes" in line:
            finish()
            columns = _COLUMN.findall(line)
            what, factor = _meaning(line, columns, file, number)
            if what == "latency" and ("Read" in title or "Atomic" in title):
                raise refused(
                    file,
                    number,
                    "reads and atomics take a request more than a message: measure with "
                    "ib_write_lat or ib_send_lat",
                )
        elif columns and line.split() and line.split()[0].isdigit():
            rows.append(_row(line.split(), columns, what, factor, file, number))
    finish()
    if not runs:
        raise refused(
            file, None, "no output of perftest: no line '#bytes #iterations ...' with rows below"
        )
    return runs


def _meaning(line: str, columns: list[str], file: str, number: int) -> tuple[str, float]:
    """What the rows hold, and the factor to bytes/s."""
    if "t_typical" in columns or "t_avg" in columns:
        return "latency", 1.0
    unit = _UNIT.search(line)
    if unit is None:
        raise refused(file, number, "a header with neither 'BW average[unit]' nor 't_avg[usec]'")
    factor = BYTES_PER_S.get(unit[1].strip().lower())
    if factor is None:
        raise refused(file, number, f"the unit {describe(unit[1])} is not {', '.join(BYTES_PER_S)}")
    return "bandwidth", factor


def _row(
    row: list[str], columns: list[str], what: str, factor: float, file: str, number: int
) -> Sample:
    if len(row) < len(columns):
        raise refused(
            file, number, f"{len(row)} columns, the header has {len(columns)}: the line is cut off"
        )
    name = "BW average"
    if what == "latency":
        name = "t_typical" if "t_typical" in columns else "t_avg"
    text = row[columns.index(name)]
    value = decimal(text, file, number)
    if value <= 0:
        raise refused(file, number, f"{name} is {text}: nothing was measured")
    _check_order(row, columns, name, value, file, number)
    size = whole(row[0], file, number, "#bytes")
    if what == "latency":
        return sample(size, value * 1e-6, file, number)
    if "MsgRate" in columns:
        rate = decimal(row[columns.index("MsgRate")], file, number)
        if rate >= LEAST_MPPS:
            pair = ("BW average", "MsgRate")
            check_agreement(value, rate * 1e6 * size / factor, pair, file, number)
    return sample(size, size / (value * factor), file, number)


def _check_order(
    row: list[str], columns: list[str], name: str, value: float, file: str, number: int
) -> None:
    """Refuse a figure that is above its own peak or outside its own range: swapped columns.

    A peak of 0 was not measured.
    """
    least, most = ("", "BW peak") if name == "BW average" else ("t_min", "t_max")
    for other, beyond in ((least, 1 / ROUNDED), (most, ROUNDED)):
        limit = decimal(row[columns.index(other)], file, number) if other in columns else 0.0
        if limit and (value > beyond * limit if beyond > 1 else value < beyond * limit):
            raise refused(file, number, f"{name} is {value:g}, {other} {limit:g}: swapped columns")
