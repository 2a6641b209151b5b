"""Spoilt logs: every fault is one line, and what is accepted an instance accepts too."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from planner.cli import main
from planner.instance.cluster import Link, Site
from planner.instance.errors import InputError
from planner.measured import import_measurements
from planner.measured.imports import Imported

DATA = Path(__file__).resolve().parents[1] / "data" / "measured"
HEADER = """# Collective test starting: all_reduce_perf
# Using devices
#  Rank  0 Group  0 Pid 1 on a device  0 [0x07] GPU
#  Rank  1 Group  0 Pid 1 on a device  1 [0x0b] GPU
#       size         count      type   redop    root     time   algbw   busbw #wrong
"""
TIMES = ((1048576, 44.21), (8388608, 86.90), (67108864, 404.70), (268435456, 1455.80))


def row(size: object, time: object, rate: float, bus: float) -> str:
    return f"{size} 4 float sum -1 {time} {rate:.2f} {bus:.2f} 0\n"


def rows(times: Sequence[tuple[int, float]] = TIMES, *, unit: float = 1e-3) -> str:
    """Rows of two ranks, whose bus bandwidth is the algorithm bandwidth."""
    return "".join(row(size, time, *[unit * size / time] * 2) for size, time in times)


LATENCY = (DATA / "perftest-5-ib_write_lat.txt").read_text(encoding="utf-8")
BANDWIDTH = (DATA / "perftest-6-ib_write_bw-mib.txt").read_text(encoding="utf-8")
TCP = (DATA / "iperf-3.16-tcp.json").read_text(encoding="utf-8")
UDP = (DATA / "iperf-3.14-udp-reverse.json").read_text(encoding="utf-8")
JSON = (DATA / "nccl-tests-2.19-8gpu.json").read_text(encoding="utf-8")


def changed(text: str, *path: str | int, to: Any) -> str:
    document = json.loads(text)
    here = document
    for part in path[:-1]:
        here = here[part]
    here[path[-1]] = to
    return json.dumps(document)


def refusal(kind: str, text: str, directory: Path, capsys: pytest.CaptureFixture[str]) -> str:
    log = directory / "log"
    log.write_text(text, encoding="utf-8")
    assert main(["import", kind, str(log), "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err.removeprefix("error: ").replace(f"{directory}/", "")


def test_sound_rows_are_accepted(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(HEADER + rows(), encoding="utf-8")
    assert import_measurements("nccl-tests", [log]).fits[0].samples == len(TIMES)


@pytest.mark.parametrize(
    ("kind", "text", "error"),
    [
        *(
            ("nccl-tests", HEADER + row(4096, time, 0, 0), f"log:6: {reason}")
            for time, reason in (
                ("nan", "text 'nan' is no number"),
                ("inf", "text 'inf' is no number"),
                ("1_000", "text '1_000' is no number"),
                ("1e400", "text '1e400' is no number"),
                ("1e300", "a time of 1e+294 s for 4,096 bytes"),
                ("1e-300", "a time of 1e-306 s for 4,096 bytes"),
                ("-5", "a time of -5e-06 s for 4,096 bytes"),
                ("0", "a time of 0 s for 4,096 bytes"),
            )
        ),
        ("nccl-tests", HEADER + row("²", 50, 0, 0), "log:6: size text '²' is no whole number"),
        ("nccl-tests", HEADER + row("9" * 400, 50, 0, 0), "log:6: size text '999"),
        ("nccl-tests", HEADER + row(10**17, 50, 0, 0), "log:6: a message of 1e+17 bytes"),
        ("nccl-tests", HEADER.replace("Rank  1", "Rank  2") + rows(), "log:2: a line '# Rank"),
        ("nccl-tests", HEADER.replace("Rank  1", "Rank " + "9" * 5000), "log:4: rank text '999"),
        (
            "nccl-tests",
            HEADER + rows(unit=1e-6),
            "log:6: algbw does not agree with time, which makes it 23.72, not 0.02: swapped",
        ),
        (
            "nccl-tests",
            HEADER + "".join(row(s, f"{1e-3 * s / t:.2f}", t, 1e-3 * s / t) for s, t in TIMES),
            "log:2: busbw over algbw is 0.473, that of all_reduce with 2 ranks is 1: swapped",
        ),
        (
            "nccl-tests",
            HEADER.replace("all_reduce", "all_gather") + rows(),
            "log:2: busbw over algbw is 1, that of all_gather with 2 ranks is 0.5: swapped",
        ),
        (
            "nccl-tests",
            HEADER + rows() + "a: Test NCCL failure common.cu:303 'unhandled cuda error'\n",
            'log:10: the run failed: text "a: Test NCCL failure',
        ),
        (
            "nccl-tests",
            HEADER + rows() + "# Out of bounds values : 3 FAILED\n",
            "log:10: the run failed",
        ),
        (
            "nccl-tests",
            HEADER + rows([(8, 50), (64, 50), (512, 50)]),
            "log: the times do not grow with the size, so they tell no bandwidth",
        ),
        ("nccl-tests", changed(JSON, "results", 0, "size", to=10**200), "log: results[0]: a mess"),
        (
            "nccl-tests",
            changed(JSON, "results", 0, "in_place", "time", to=0.09215),
            "log: results[0]: algbw does not agree with time",
        ),
        (
            "nccl-tests",
            changed(JSON, "config", "devices", 0, "rank", to=None),
            "log: a device of 'config.devices' has no whole number 'rank'",
        ),
        ("perftest", BANDWIDTH.replace("11030.45", "nan"), "log:14: text 'nan' is no number"),
        ("perftest", BANDWIDTH.replace(" 65536 ", " 0 "), "log:14: BW average does not agree"),
        ("perftest", BANDWIDTH.replace(" 65536 ", " ² "), "log:14: #bytes text '²' is no whole"),
        (
            "perftest",
            BANDWIDTH.replace("MiB/sec", "Gb/sec"),
            "log:14: BW average does not agree with MsgRate, which makes it 92.53, not 1.103e+04",
        ),
        (
            "perftest",
            BANDWIDTH + " Completion with error at client\n",
            "log:16: the run failed: text 'Completion with error",
        ),
        (
            "perftest",
            LATENCY.replace("RDMA_Write", "RDMA_Read"),
            "log:15: reads and atomics take a request more than a message",
        ),
        (
            "iperf3",
            changed(TCP, "end", "streams", 0, "sender", "min_rtt", to=1e12),
            "iperf3: rtt_s: expected a time in s",
        ),
        (
            "iperf3",
            changed(TCP, "end", "sum_received", "bits_per_second", to=1e300),
            "log: bits_per_second does not agree with bytes, which makes it",
        ),
        ("nccl-tests", HEADER + rows() + HEADER + rows(), "log: a run of nccl-tests"),
        (
            "perftest",
            LATENCY.replace("t_max", "t_x")
            .replace("t_typical", "t_max")
            .replace("t_x", "t_typical"),
            "log:18: t_typical is 5.41, t_max 1.87: swapped columns",
        ),
        (
            "perftest",
            BANDWIDTH.replace("11030.78 ", "9030.78 "),
            "log:14: BW average is 11030.5, BW peak 9030.78: swapped columns",
        ),
        ("iperf3", changed(TCP, "end", "sum_sent", "retransmits", to=-5), "log: end.sum_sent: re"),
        (
            "iperf3",
            changed(TCP, "start", "test_start", "num_streams", to=1e300),
            "log: start.test_start: num_streams is 1e+300",
        ),
        (
            "iperf3",
            changed(UDP, "end", "sum_received", "lost_packets", to=30421),
            "log: 30421 of 30421 packets were lost",
        ),
        (
            "iperf3",
            changed(UDP, "end", "sum_received", "jitter_ms", to=1e9),
            "iperf3: jitter_s: expected a time in s",
        ),
    ],
)
def test_impossible_figures_are_refused(
    kind: str, text: str, error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refusal(kind, text, tmp_path, capsys).startswith(error)


def test_a_stream_without_figures_of_its_sender_has_no_round_trip(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(changed(TCP, "end", "streams", 0, "sender", to=3.0), encoding="utf-8")
    assert "rtt_s" not in import_measurements("iperf3", [log]).fragment


ODD = ("nan", "inf", "-1", "0", "1e300", "1e-300", "9" * 400, "N/A", "", "²", "x")


def spoilt(text: str, rng: random.Random) -> str:
    """A log with one fault: cut off, a line lost or doubled, words swapped, an odd figure."""
    kind = rng.randrange(5)
    lines, words = text.split("\n"), text.split(" ")
    if kind == 0:
        return text[: rng.randrange(1, len(text))]
    if kind == 1:
        del lines[rng.randrange(len(lines))]
        return "\n".join(lines)
    if kind == 2:
        lines.insert(rng.randrange(len(lines)), rng.choice(lines))
        return "\n".join(lines)
    if kind == 3:
        i, j = rng.randrange(len(words)), rng.randrange(len(words))
        words[i], words[j] = words[j], words[i]
        return " ".join(words)
    figure = rng.choice(list(re.finditer(r"\d+(\.\d+)?", text)))
    return text[: figure.start()] + rng.choice(ODD) + text[figure.end() :]


def fragment_is_accepted(imported: Imported) -> None:
    model = Site if imported.target == "site" else Link
    for key, value in json.loads(json.dumps(imported.fragment, allow_nan=False)).items():
        TypeAdapter(model.model_fields[key].rebuild_annotation()).validate_python(value)


@pytest.mark.parametrize(
    "name", [path.name for path in sorted(DATA.iterdir()) if path.suffix in (".txt", ".json")]
)
def test_a_spoilt_log_is_refused_or_fits_an_instance(name: str, tmp_path: Path) -> None:
    rng = random.Random(f"spoilt {name}")
    text = (DATA / name).read_text(encoding="utf-8")
    log = tmp_path / name
    kind = {"n": "nccl-tests", "i": "iperf3", "p": "perftest"}[name[0]]
    for _ in range(6):
        log.write_text(spoilt(text, rng), encoding="utf-8")
        with suppress(InputError):
            fragment_is_accepted(import_measurements(kind, [log]))
