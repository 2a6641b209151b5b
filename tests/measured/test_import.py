"""Imported measurements: formats of several versions, fits, fragments that instances accept."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import planner
from planner.cli import main
from planner.cost.collectives import DOMAIN_STEP_S, LAUNCH_S, flat_time
from planner.instance.errors import InputError
from planner.instance.load import load_instance
from planner.instance.measured import CurvePiece, MeasuredCurve
from planner.measured import import_measurements
from planner.measured import nccl_tests as nccl
from planner.measured.fit import curve_seconds, fit_curve
from planner.measured.samples import CollectiveRun, Sample
from planner.problem import Problem
from planner.report.network import describe_links
from planner.report.units import four_digits

DATA = Path(__file__).resolve().parents[1] / "data" / "measured"
MIB = 1 << 20
VTRAIN = (
    "nccl-tests-2.10-all_reduce_perf-2gpu.txt",
    "nccl-tests-2.13-all_reduce_perf-4gpu.txt",
    "nccl-tests-2.17.6-8gpu.txt",
)


def logs(*names: str) -> list[Path]:
    return [DATA / name for name in names]


def runs(name: str) -> list[CollectiveRun]:
    return nccl.read((DATA / name).read_text(encoding="utf-8"), name, None)


@pytest.mark.parametrize(
    ("name", "collective", "tier", "ranks", "times", "first", "tool"),
    [
        ("nccl-tests-2.9-all_gather_perf-8gpu.txt", "all_gather", "scale_up", 8, 22, 35.38, ""),
        (VTRAIN[0], "all_reduce", "scale_up", 2, 34, 44.21, "nccl-tests"),
        (VTRAIN[1], "all_reduce", "scale_up", 4, 34, 51.4, "nccl-tests"),
        (VTRAIN[2], "all_reduce", "scale_up", 8, 34, 92.79, "nccl-tests version 2.17.6"),
        (
            "nccl-tests-2.18.2-2nodes.txt",
            *("all_reduce", "network", 2, 16, 339.61),
            "nccl-tests version 2.18.2",
        ),
        (
            "nccl-tests-2.19-8gpu.json",
            *("all_reduce", "scale_up", 8, 34, 92.79),
            "nccl-tests JSON 2, NCCL 22907",
        ),
    ],
)
def test_every_version_of_nccl_tests_reads(
    name: str, collective: str, tier: str, ranks: int, times: int, first: float, tool: str
) -> None:
    (run,) = runs(name)
    assert (run.collective, run.tier, run.ranks) == (collective, tier, ranks)
    assert len(run.samples) == times
    assert run.samples[0].seconds == pytest.approx(first * 1e-6)
    assert run.tool == (tool or "nccl-tests")


def test_text_and_json_of_one_run_fit_alike() -> None:
    text, other = (
        import_measurements("nccl-tests", logs(name)).fits[0].curve
        for name in (VTRAIN[2], "nccl-tests-2.19-8gpu.json")
    )
    assert text.launch_s == pytest.approx(other.launch_s, rel=1e-3)
    assert text.pieces[0].bytes_per_s == pytest.approx(other.pieces[0].bytes_per_s, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "bandwidth"), [(VTRAIN[0], 194e9), (VTRAIN[1], 220e9), (VTRAIN[2], 228e9)]
)
def test_a100_all_reduces_fit_within_15_percent(name: str, bandwidth: float) -> None:
    """Reference cost model 4.1: 194, 220 and 228 GB/s for 2, 4 and 8 GPUs."""
    (fit,) = import_measurements("nccl-tests", logs(name)).fits
    assert fit.worst_error < 0.15
    assert fit.mean_error < 0.06
    assert not fit.outliers
    assert fit.curve.pieces[-1].bytes_per_s == pytest.approx(bandwidth, rel=0.04)
    (run,) = runs(name)
    for size, seconds in run.samples:
        assert curve_seconds(fit.curve, run, size) == pytest.approx(seconds, rel=0.15)


def test_a100_all_reduces_of_three_sizes_fit_together() -> None:
    """Reference cost model 4.1: about 46 us and 3.2 us a step."""
    (fit,) = import_measurements("nccl-tests", logs(*VTRAIN)).fits
    assert fit.ranks == (2, 4, 8)
    assert fit.worst_error < 0.15
    assert 25e-6 < fit.curve.launch_s < 50e-6
    assert 2e-6 < fit.curve.pieces[0].step_s < 4e-6
    assert 194e9 < fit.curve.pieces[0].bytes_per_s < 228e9


@pytest.mark.parametrize(
    ("name", "worst"),
    [("nccl-tests-2.9-all_gather_perf-8gpu.txt", 0.05), ("nccl-tests-2.18.2-2nodes.txt", 0.10)],
)
def test_small_and_large_messages_both_fit(name: str, worst: float) -> None:
    (fit,) = import_measurements("nccl-tests", logs(name)).fits
    assert fit.worst_error < worst


def sweep(
    seconds: Callable[[int], float], *, ranks: int = 8, noise: float = 0.0, seed: int = 0
) -> CollectiveRun:
    rng = np.random.default_rng(seed)
    sizes = [2**k for k in range(13, 31) for _ in range(2)]
    return CollectiveRun(
        "all_reduce",
        "scale_up",
        ranks,
        ranks,
        tuple(Sample(s, seconds(s) * float(rng.normal(1, noise))) for s in sizes),
        "test",
        "log",
    )


def ring(ranks: int, launch: float, step: float, rate: float) -> Callable[[int], float]:
    return lambda size: launch + flat_time("all_reduce", ranks, size, rate, step)


def test_the_fit_finds_what_made_the_times() -> None:
    made = [sweep(ring(n, 25e-6, 4e-6, 300e9), ranks=n, noise=0.02, seed=n) for n in (2, 4, 8)]
    fit = fit_curve(made, "")
    assert fit.curve.launch_s == pytest.approx(25e-6, rel=0.1)
    assert fit.curve.pieces[-1].step_s == pytest.approx(4e-6, rel=0.1)
    assert fit.curve.pieces[-1].bytes_per_s == pytest.approx(300e9, rel=0.05)
    assert fit.mean_error < 0.03


def test_one_number_of_ranks_shares_its_latency_as_nccl_does() -> None:
    curve = fit_curve([sweep(ring(8, 30e-6, 5e-6, 300e9))], "").curve
    assert curve.launch_s + 14 * curve.pieces[0].step_s == pytest.approx(100e-6, rel=0.01)
    assert curve.launch_s / curve.pieces[0].step_s == pytest.approx(LAUNCH_S / DOMAIN_STEP_S)


def test_warm_up_does_not_move_the_fit() -> None:
    clean = sweep(ring(8, 25e-6, 4e-6, 300e9), noise=0.01)
    samples = list(clean.samples)
    for k, factor in ((0, 60), (3, 4), (20, 2)):
        samples[k] = Sample(samples[k].size_bytes, samples[k].seconds * factor)
    spoilt = CollectiveRun("all_reduce", "scale_up", 8, 8, tuple(samples), "test", "log")
    fit, reference = fit_curve([spoilt], ""), fit_curve([clean], "")
    assert fit.outliers == tuple(sorted({samples[k].size_bytes for k in (0, 3, 20)}))
    for size in (2**14, 2**20, 2**26, 2**30):
        one, other = (curve_seconds(f.curve, clean, size) for f in (fit, reference))
        assert one == pytest.approx(other, rel=0.03)


@pytest.mark.parametrize("combine", ["max", "min"])
def test_a_bend_becomes_a_piece(combine: str) -> None:
    low, high = ring(8, 20e-6, 2e-6, 100e9), ring(8, 20e-6, 12e-6, 300e9)
    pick = {"max": max, "min": min}[combine]
    run = sweep(lambda size: pick(low(size), high(size)))
    fit = fit_curve([run], "")
    assert fit.curve.combine == combine
    assert len(fit.curve.pieces) == 2
    assert fit.worst_error < 0.02


def test_wire_bytes_follow_the_tier() -> None:
    """Two hosts of four GPUs: every GPU exchanges a quarter with one peer."""
    curve = MeasuredCurve(
        tier="network",
        collective="all_reduce",
        launch_s=0.0,
        pieces=(CurvePiece(step_s=1e-6, bytes_per_s=1e9),),
    )
    run = CollectiveRun("all_reduce", "network", 8, 4, (), "", "")
    assert curve_seconds(curve, run, 4 * 10**9) == pytest.approx(2e-6 + 2 * 0.5 * 1.0)


def in_instance(target: str, fragment: dict[str, Any]) -> dict[str, Any]:
    site = {"name": "a", "gpu": "A100-80", "num_gpus": 64}
    link: dict[str, Any] = {"from": "a", "to": "b", "bandwidth_gbps": 100, "distance_km": 50}
    if target == "link":
        link |= fragment
        if "rtt_s" in fragment:
            del link["distance_km"]
    else:
        site |= fragment
    return {
        "model": "llama3-8b",
        "training": {"global_batch_size": 64, "sequence_length": 4096},
        "cluster": {"sites": [site, {**site, "name": "b"}], "links": [link]},
    }


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("nccl-tests", VTRAIN),
        ("nccl-tests", ("nccl-tests-2.19-8gpu.json", "nccl-tests-2.18.2-2nodes.txt")),
        ("iperf3", ("iperf-3.6-tcp.json",)),
        ("iperf3", ("iperf-3.16-tcp.json", "iperf-3.14-udp-reverse.json")),
        ("perftest", ("perftest-5-ib_write_bw.txt", "perftest-5-ib_write_lat.txt")),
        ("perftest", ("perftest-4-ib_write_lat.txt",)),
    ],
)
def test_an_instance_accepts_the_fragment(kind: str, names: tuple[str, ...]) -> None:
    imported = import_measurements(kind, logs(*names))
    fragment = json.loads(json.dumps(imported.fragment))
    instance = load_instance(in_instance(imported.target, fragment))
    if kind == "nccl-tests":
        assert Problem(instance).classes[0].curves.find("scale_up", "all_gather") is not None
        for curve in fragment["measured"]:
            assert curve["mean_error"] <= curve["worst_error"] < 0.15
            assert "nccl-tests" in curve["source"]


def test_iperf3_gives_a_link_its_round_trip_and_the_rate_of_its_protocol() -> None:
    imported = import_measurements("iperf3", logs("iperf-3.6-tcp.json"))
    assert imported.fragment == {
        "rtt_s": 0.035571,
        "loss": 0.0,
        "measured": [
            {
                "protocol": "tcp_cubic",
                "bandwidth_gbps": 0.587207,
                "source": "iperf 3.6: iperf-3.6-tcp.json",
            }
        ],
        "provenance": "iperf 3.6: iperf-3.6-tcp.json",
    }
    instance = load_instance(in_instance("link", imported.fragment))
    (there, _) = describe_links(instance)["links"]
    (row,) = [row for row in there["protocols"] if row["protocol"] == "tcp_cubic"]
    assert row["reason"] == "measured"
    assert row["bandwidth_gbps"] == pytest.approx(0.587207)


def test_datagrams_give_loss_and_jitter() -> None:
    fragment = import_measurements("iperf3", logs("iperf-3.14-udp-reverse.json")).fragment
    assert fragment["loss"] == pytest.approx(1 / 30421, rel=1e-4)
    assert fragment["jitter_s"] == pytest.approx(68.2927e-6, rel=1e-4)
    assert "measured" not in fragment


def test_both_directions_of_iperf3(tmp_path: Path) -> None:
    document = json.loads((DATA / "iperf-3.16-tcp.json").read_text(encoding="utf-8"))
    document["start"]["test_start"]["reverse"] = 1
    received = document["end"]["sum_received"]
    received["bits_per_second"], received["bytes"] = 2e10, 2.5e9 * received["seconds"]
    document["end"]["sum_sent"]["retransmits"] = 100
    back = tmp_path / "back.json"
    back.write_text(json.dumps(document), encoding="utf-8")
    fragment = import_measurements("iperf3", [DATA / "iperf-3.16-tcp.json", back]).fragment
    (rate,) = fragment["measured"]
    assert (rate["bandwidth_gbps"], rate["reverse_bandwidth_gbps"]) == (69.3814, 20.0)
    segments = 86734274560 / 32768
    assert fragment["loss"] == pytest.approx(100 / segments / 2, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "gbps"),
    [
        ("perftest-4-ib_write_bw-gbits.txt", 25.16),
        ("perftest-5-ib_write_bw.txt", 23317.65 * 2**20 * 8e-9),
        ("perftest-6-ib_write_bw-mib.txt", 11030.45 * 2**20 * 8e-9),
    ],
)
def test_perftest_units(name: str, gbps: float) -> None:
    """The message rate says that MB/sec are 2^20 bytes: 0.002915 million of 8 MiB."""
    fragment = import_measurements("perftest", logs(name)).fragment
    assert fragment["nic_gbps"] == pytest.approx(gbps, rel=1e-4)
    if "5-" in name:
        assert fragment["nic_gbps"] == pytest.approx(0.002915e6 * 2**23 * 8e-9, rel=1e-3)


@pytest.mark.parametrize("version", ["4", "5"])
def test_perftest_latencies_fit(version: str) -> None:
    (fit,) = import_measurements("perftest", logs(f"perftest-{version}-ib_write_lat.txt")).fits
    assert fit.worst_error < 0.06
    assert fit.curve.collective == "p2p"
    least = fit.curve.launch_s + fit.curve.pieces[0].step_s
    assert least == pytest.approx({"4": 0.93e-6, "5": 1.87e-6}[version], rel=0.06)


HEADER = """# Collective test starting: all_reduce_perf
# Using devices
#  Rank  0 Group  0 Pid 1 on a device  0 [0x07] GPU
#  Rank  1 Group  0 Pid 1 on a device  1 [0x0b] GPU
#       size         count      type   redop    root     time   algbw   busbw #wrong
"""
ROW = "     1048576        262144     float     sum      -1    44.21   23.72   23.72      0\n"


@pytest.mark.parametrize(
    ("kind", "text", "error"),
    [
        ("nccl-tests", "", "log: the file is empty"),
        ("nccl-tests", "hello\n", "log: no output of nccl-tests: no line '# Using devices'"),
        ("nccl-tests", HEADER, "log:2: no row of results follows: the run did not finish"),
        ("nccl-tests", HEADER + ROW, "log: a curve needs at least 3 sizes: run with -b and -e"),
        (
            "nccl-tests",
            HEADER + ROW + ROW[:60] + "\n",
            "log:7: 6 columns, the header has 9: the line is cut off",
        ),
        ("nccl-tests", HEADER + ROW.replace(" 0\n", " 7\n"), "log:6: 7 wrong results: this run"),
        ("nccl-tests", HEADER + ROW.replace("44.21", "4x.21"), "log:6: text '4x.21' is no number"),
        (
            "nccl-tests",
            HEADER.replace("Rank  1", "Rank  0") + ROW,
            "log:4: rank 0 is there twice: every process ran alone; build nccl-tests with MPI=1",
        ),
        (
            "nccl-tests",
            HEADER.replace("all_reduce", "broadcast") + ROW,
            "log:2: the planner has no traffic like broadcast_perf; it reads all_reduce_perf",
        ),
        (
            "nccl-tests",
            HEADER.replace("time", "cputime") + ROW,
            "log:5: CPU times, not GPU times: run without -C",
        ),
        (
            "nccl-tests",
            HEADER.replace("# Collective test starting: all_reduce_perf", "#") + ROW,
            "log:2: the log does not name its collective; name the file after the program",
        ),
        ("nccl-tests", '{"results": 1}', "log: no JSON output of nccl-tests: no list 'results'"),
        ("nccl-tests", '{"results": []}', "log: no list 'config.devices' tells the number"),
        ("iperf3", "{", "log: not JSON"),
        ("iperf3", "{}", "log: no report of iperf3 --json: neither 'start' nor 'end'"),
        (
            "iperf3",
            '{"start": {}, "end": {}, "error": "unable to connect"}',
            "log: iperf3 failed: unable to connect",
        ),
        (
            "iperf3",
            '{"start": {"test_start": {"protocol": "TCP"}}, "end": {}}',
            "log: no object end.sum_received: the test did not finish",
        ),
        (
            "iperf3",
            '{"start": {"test_start": {"protocol": "TCP"}}, '
            '"end": {"sum_received": {"seconds": 0.1, "bits_per_second": 5}}}',
            "log: 0.1 s are too short to leave slow start",
        ),
        ("iperf3", '{"start": {"test_start": {"bidir": 1}}, "end": {}}', "log: both directions"),
        ("perftest", "hello\n", "log: no output of perftest"),
        (
            "perftest",
            "                    RDMA_Write Bidirectional BW Test\n",
            "log:1: the figures sum both directions: run without -b",
        ),
        (
            "perftest",
            " #bytes #iterations BW peak[kB/sec] BW average[kB/sec]\n",
            "log:1: the unit text 'kB/sec' is not gb/sec, mb/sec, mib/sec",
        ),
        (
            "perftest",
            " #bytes #iterations BW peak[Gb/sec] BW average[Gb/sec]\n 65536 5000 51.05\n",
            "log:2: 3 columns, the header has 4: the line is cut off",
        ),
        (
            "perftest",
            " #bytes #iterations BW peak[Gb/sec] BW average[Gb/sec]\n 65536 5000 51.05 0.00\n",
            "log:2: BW average is 0.00: nothing was measured",
        ),
    ],
)
def test_faulty_files_are_refused_with_their_line(
    kind: str, text: str, error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    log.write_text(text, encoding="utf-8")
    assert main(["import", kind, str(log)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith(f"error: {tmp_path}/{error}")


def test_unknown_kinds_and_missing_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "nccltests", "x"]) == 2
    assert "did you mean 'nccl-tests'?" in capsys.readouterr().err
    assert main(["import", "iperf3", "/nowhere/x.json"]) == 2
    assert capsys.readouterr().err == "error: /nowhere/x.json: no such file\n"
    with pytest.raises(InputError, match="no file was given"):
        import_measurements("iperf3", [])


def test_a_measurement_counts_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, other = str(logs(*VTRAIN)[0]), tmp_path / "copy.txt"
    assert main(["import", "nccl-tests", log, log]) == 2
    error = f"error: {log}: is given twice; give each measurement once\n"
    assert capsys.readouterr().err == error
    other.write_bytes(Path(log).read_bytes())
    with pytest.raises(InputError, match=r"copy.txt: holds the same as .*; give each"):
        import_measurements("nccl-tests", [log, other])


def test_the_command_prints_and_writes_one_fragment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "site.json"
    files = [str(path) for path in logs(*VTRAIN)]
    assert main(["import", "nccl-tests", *files, "-o", str(out), "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == f"written: {out}\n"
    assert json.loads(printed.out) == json.loads(out.read_text(encoding="utf-8"))
    assert main(["import", "nccl-tests", *files]) == 0
    report = capsys.readouterr().out
    assert "all_reduce on tier scale_up, 2, 4, 8 ranks" in report
    assert "mean 6.96 %, worst 14.56 %" in report
    assert main(["import", "nccl-tests", files[0], "-o", files[0]]) == 2
    assert main(["import", "nccl-tests", files[0], "--tier", "network", "--json"]) == 0
    assert '"tier": "network"' in capsys.readouterr().out


def test_the_package_exports_the_import() -> None:
    assert planner.import_measurements is import_measurements


def test_links_show_why_a_protocol_is_no_choice(capsys: pytest.CaptureFixture[str]) -> None:
    document = describe_links(load_instance("nemotron-340b-1000km"))
    there = document["links"][0]
    rows = {row["protocol"]: row for row in there["protocols"]}
    assert not rows["ib_ar"]["available"]
    assert "lossless up to 1 km" in rows["ib_ar"]["reason"]
    assert rows["dedicated"]["bandwidth_gbps"] == pytest.approx(0.97 * there["capacity_gbps"])
    assert document["routes"] == [
        {"from": "site-a", "to": "site-b", "links": ["site-a--site-b"]},
        {"from": "site-b", "to": "site-a", "links": ["site-a--site-b"]},
    ]
    assert main(["links", "nemotron-340b-1000km"]) == 0
    assert "'ib_ar' is lossless up to 1 km" in capsys.readouterr().out
    assert main(["links", "nemotron-340b-1000km", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == document


def test_wide_links_are_printed_without_exponent(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["links", "moe-400b-5-buildings"]) == 0
    out = capsys.readouterr().out
    assert "e+0" not in out
    assert [four_digits(v) for v in (102_400, 3102.4, 0.97, 5_100, 123_456.7)] == [
        "102,400",
        "3,102",
        "0.97",
        "5,100",
        "123,500",
    ]
