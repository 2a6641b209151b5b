"""Logs of nccl-tests (and rccl-tests): text of all versions, and the JSON of ``-J``.

Columns are found by the names in the header, since their number differs by version: before 2.13
there was no ``root`` and ``error`` stood for ``#wrong``; all-gather logs lacked ``redop``; newer
ones may have per-iteration columns and time stamps.

Source: NVIDIA/nccl-tests ``src/common.cu``, ``src/util.cu`` and ``doc/PERFORMANCE.md``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isclose
from pathlib import PurePath
from statistics import median
from typing import Any

from planner.instance.errors import describe
from planner.instance.measured import MeasuredCollective, Tier
from planner.instance.text import parse_json
from planner.measured.samples import (
    CollectiveRun,
    Sample,
    check_agreement,
    decimal,
    refused,
    sample,
    whole,
)

COLLECTIVES: Mapping[str, MeasuredCollective] = {
    "all_reduce": "all_reduce",
    "reduce_scatter": "reduce_scatter",
    "all_gather": "all_gather",
    "alltoall": "all_to_all",
    "sendrecv": "p2p",
}
"""Programs, without ``_perf``, whose traffic the planner has."""

FACTORS = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1, "all_to_all": 1}
"""Bus over algorithm bandwidth, in units of ``(n − 1)/n`` (``doc/PERFORMANCE.md``)."""

OTHERS = ("broadcast", "reduce", "gather", "scatter", "hypercube", "alltoallv")

LEAST_GB = 1.0
"""GB/s from which two decimals are a figure that can be compared."""

_TAG = re.compile(r"^(?:\[\d+,\d+\]<std\w+>:|\[\d+\]:?|\d+:)\s?(?=[#\s\d])")
_RANK = re.compile(r"#\s+Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device")
_PROGRAM = re.compile(r"\b([a-z_]+)_perf\b")
_VERSION = re.compile(r"#\s*((?:nccl|rccl)-tests\b.*?version\s+\S+)", re.IGNORECASE)
_LIBRARY = re.compile(r"\b([NR]CCL version \S+)")
_FAILURE = re.compile(r"Test (?:NCCL |CUDA |RCCL |HIP )?failure\b|Out of bounds values\b.*\bFAILED")


def read(text: str, file: str, tier: Tier | None) -> list[CollectiveRun]:
    """The runs in a log.

    Parameters
    ----------
    tier
        Tier that was measured; None = ``scale_up`` where all ranks share a host, else ``network``.

    Raises
    ------
    InputError
        With file, line and reason, if the log is not one of nccl-tests, is cut off or holds wrong
        results.
    """
    if text.lstrip().startswith("{"):
        return [_from_json(parse_json(text.encode(), file), file, tier)]
    return [run.finished(file, tier) for run in _runs(text, file)]


@dataclass
class _Run:
    """A run of a text log as far as it was read."""

    line: int
    program: str | None
    tool: str
    hosts: dict[int, Counter[str]] = field(default_factory=dict)
    ranks: set[tuple[int, int]] = field(default_factory=set)
    columns: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    factors: list[float] = field(default_factory=list)
    """Bus bandwidth over algorithm bandwidth."""
    reduces: bool = False

    def finished(self, file: str, tier: Tier | None) -> CollectiveRun:
        if not self.samples:
            raise refused(file, self.line, "no row of results follows: the run did not finish")
        if not self.ranks:
            raise refused(
                file, self.line, "no line '# Rank 0 ... on HOST device' tells the number of GPUs"
            )
        hosts = self.hosts[min(self.hosts)]
        ranks = hosts.total()
        if len(self.hosts) == 1 and max(rank for _, rank in self.ranks) != ranks - 1:
            raise refused(file, self.line, "a line '# Rank ...' is missing: ranks have gaps")
        name = self.program or self._program_by_factor(ranks)
        if name is None:
            raise refused(
                file,
                self.line,
                "the log does not name its collective; name the file after the program, such as "
                "all_gather_perf.txt",
            )
        self._check_factor(name, ranks, file)
        samples = tuple(self.samples)
        return _run(name, ranks, hosts, samples, self.tool, file, self.line, tier)

    def _check_factor(self, name: str, ranks: int, file: str) -> None:
        """Refuse rows whose ratio of bus to algorithm bandwidth is not that of the collective."""
        times = FACTORS.get(COLLECTIVES.get(name.removesuffix("_perf"), ""))
        if times is None or not self.factors or ranks < 2:
            return
        found, right = median(self.factors), times * (ranks - 1) / ranks
        if not isclose(found, right, rel_tol=0.03):
            raise refused(
                file,
                self.line,
                f"busbw over algbw is {found:.3g}, that of {name} with {ranks} ranks is "
                f"{right:.3g}: swapped columns, another program or other ranks",
            )

    def _program_by_factor(self, ranks: int) -> str | None:
        """The collective that the ratio of bus to algorithm bandwidth tells, if it tells one."""
        if not self.factors or ranks < 3:
            return None
        part = (ranks - 1) / ranks
        if isclose(median(self.factors), 2 * part, rel_tol=0.02):
            return "all_reduce"
        if self.reduces and isclose(median(self.factors), part, rel_tol=0.02):
            return "reduce_scatter"
        return None


def _runs(text: str, file: str) -> list[_Run]:
    runs: list[_Run] = []
    program = _named(PurePath(file).name)
    tool = library = ""
    for number, line in enumerate(text.splitlines(), start=1):
        bare = _TAG.sub("", line).strip()
        if _FAILURE.search(bare):
            raise refused(file, number, f"the run failed: {describe(bare)}")
        if found := _VERSION.match(bare):
            tool = found[1]
        elif found := _LIBRARY.search(bare):
            library = found[1]
        if (named := _PROGRAM.search(bare)) and not bare[:1].isdigit():
            program = named[1]
        if bare.startswith("#") and "Using devices" in bare:
            if not runs or runs[-1].columns:
                runs.append(_Run(number, program, ""))
            continue
        if not runs:
            continue
        run = runs[-1]
        run.program, run.tool = program, tool or library or "nccl-tests"
        if found := _RANK.search(bare):
            _add_rank(run, found, file, number)
        elif {"size", "time", "algbw"} <= set(bare.split()) or "cputime" in bare.split():
            run.columns = bare.lstrip("#").split()
            _check_columns(run.columns, file, number)
        elif bare[:1].isdigit() and bare.split()[0].isdigit() and run.columns:
            _add_row(run, bare.split(), file, number)
    if not runs:
        raise refused(file, None, "no output of nccl-tests: no line '# Using devices'")
    return runs


def _add_rank(run: _Run, found: re.Match[str], file: str, number: int) -> None:
    rank, host = whole(found[1], file, number, "rank"), found[3]
    group = whole(found[2] or "0", file, number, "group")
    if (group, rank) in run.ranks:
        raise refused(
            file,
            number,
            f"rank {rank} is there twice: every process ran alone; build nccl-tests with MPI=1",
        )
    run.ranks.add((group, rank))
    run.hosts.setdefault(group, Counter())[host] += 1


def _check_columns(columns: list[str], file: str, number: int) -> None:
    if "cputime" in columns:
        raise refused(file, number, "CPU times, not GPU times: run without -C")
    if columns[0] != "size" or "time" not in columns:
        raise refused(file, number, "a header without the columns size and time")


def _add_row(run: _Run, row: list[str], file: str, number: int) -> None:
    stamped = run.columns[-1] == "timestamp"
    seconds: float | None = None
    if len(row) != len(run.columns) + stamped:
        raise refused(
            file,
            number,
            f"{len(row)} columns, the header has {len(run.columns)}: the line is cut off",
        )
    size, algorithm = whole(row[0], file, number, "size"), 0.0
    for name, text in zip(run.columns, row, strict=False):
        if name == "redop":
            run.reduces |= text != "none"
        elif name in ("#wrong", "error") and _wrong(name, text):
            raise refused(file, number, f"{text} wrong results: this run measured nothing")
        elif name == "time":
            seconds = None if text == "N/A" else decimal(text, file, number) * 1e-6
            if size > 0 and seconds is not None:
                run.samples.append(sample(size, seconds, file, number))
        elif name == "algbw":
            algorithm = 0.0 if text == "N/A" else decimal(text, file, number)
            if size > 0 and seconds is not None:
                _check_rate(algorithm * 1e9, size / seconds, file, number)
        elif name == "busbw" and algorithm >= LEAST_GB:
            run.factors.append(decimal(text, file, number) / algorithm)


def _check_rate(given: float, computed: float, file: str, line: int | None) -> None:
    """Compare bandwidth and time of a row where neither is small enough to be badly rounded."""
    if max(given, computed) >= LEAST_GB * 1e9:
        check_agreement(given * 1e-9, computed * 1e-9, ("algbw", "time"), file, line)


def _wrong(name: str, value: str) -> bool:
    """True where results were wrong; ``error`` is a rounding error up to about 1e-5."""
    if value == "N/A":
        return False
    try:
        amount = float(value)
    except ValueError:
        return True
    return amount > (0 if name == "#wrong" else 1e-2)


def _named(text: str) -> str | None:
    found = _PROGRAM.search(text)
    return None if found is None else found[1]


def _run(
    name: str,
    ranks: int,
    hosts: Counter[str],
    samples: tuple[Sample, ...],
    tool: str,
    file: str,
    line: int | None,
    tier: Tier | None,
) -> CollectiveRun:
    name = name.removesuffix("_perf")
    if name not in COLLECTIVES:
        known = ", ".join(f"{known}_perf" for known in COLLECTIVES)
        raise refused(file, line, f"the planner has no traffic like {name}_perf; it reads {known}")
    if ranks < 2:
        raise refused(file, line, "one GPU alone exchanges nothing")
    if len(set(hosts.values())) > 1:
        raise refused(file, line, "the hosts have unequal numbers of ranks")
    if tier is None:
        tier = "scale_up" if len(hosts) == 1 else "network"
    return CollectiveRun(
        collective=COLLECTIVES[name],
        tier=tier,
        ranks=ranks,
        ranks_per_host=ranks // len(hosts),
        samples=samples,
        tool=tool,
        file=file,
    )


def _from_json(document: Any, file: str, tier: Tier | None) -> CollectiveRun:
    if not isinstance(document, dict) or not isinstance(document.get("results"), list):
        raise refused(file, None, "no JSON output of nccl-tests: no list 'results'")
    config = document.get("config")
    devices = config.get("devices") if isinstance(config, dict) else None
    if not isinstance(devices, list) or not all(isinstance(d, dict) for d in devices):
        raise refused(file, None, "no list 'config.devices' tells the number of GPUs")
    group = devices[0].get("group", 0) if devices else 0
    ranks = [d.get("rank") for d in devices if d.get("group", 0) == group]
    if not all(isinstance(rank, int) for rank in ranks):
        raise refused(file, None, "a device of 'config.devices' has no whole number 'rank'")
    if len(set(ranks)) != len(ranks):
        raise refused(
            file, None, "a rank is there twice: every process ran alone; build with MPI=1"
        )
    hosts = Counter(str(d.get("hostname")) for d in devices if d.get("group", 0) == group)
    name = _json_program(document)
    if name is None:
        raise refused(file, None, "neither 'args' nor the file name tells the collective")
    samples = tuple(
        sample
        for index, row in enumerate(document["results"])
        for sample in _json_samples(row, index, file)
    )
    if not samples:
        raise refused(file, None, "'results' holds no time")
    tool = f"nccl-tests JSON {document.get('version')}, NCCL {document.get('nccl_version')}"
    return _run(name, len(ranks), hosts, samples, tool, file, None, tier)


def _json_program(document: Mapping[str, Any]) -> str | None:
    args = document.get("args")
    if isinstance(args, list) and args and isinstance(args[0], str):
        return _named(PurePath(args[0]).name)
    return None


def _json_samples(row: Any, index: int, file: str) -> Iterator[Sample]:
    where = f"{file}: results[{index}]"
    size = row.get("size") if isinstance(row, dict) else None
    if not isinstance(size, int) or isinstance(size, bool):
        raise refused(where, None, "no whole number 'size'")
    for key in ("out_of_place", "in_place"):
        body = row.get(key)
        if body is None:
            continue
        if not isinstance(body, dict) or "cpu_time" in body:
            raise refused(where, None, f"'{key}' holds no GPU time (run without -C)")
        time, wrong = body.get("time"), body.get("nwrong")
        if isinstance(wrong, int | float) and wrong > 0:
            raise refused(where, None, f"{wrong:g} wrong results: this run measured nothing")
        if not isinstance(time, int | float) or isinstance(time, bool):
            raise refused(where, None, f"'{key}.time' is {describe(time)}, not a number")
        if size == 0:
            continue
        found = sample(size, time * 1e-6, where, None)
        rate = body.get("alg_bw")
        if isinstance(rate, int | float):
            _check_rate(rate * 1e9, size / found.seconds, where, None)
        yield found
