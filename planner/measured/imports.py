"""From files to a fragment of an instance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from statistics import median
from typing import Any, Literal, get_args

from pydantic import TypeAdapter, ValidationError

from planner.instance.cluster import Link, Site
from planner.instance.errors import InputError, first_input_error, nearest
from planner.instance.measured import Tier
from planner.instance.text import read_text
from planner.measured import iperf3, nccl_tests, perftest
from planner.measured.fit import Fit, fit_curve
from planner.measured.samples import CollectiveRun, MessageRun, StreamRun, refused

Kind = Literal["nccl-tests", "iperf3", "perftest"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""Formats that can be read."""
SAME_ROWS = 3
"""Equal times that two runs do not have by chance."""


@dataclass(frozen=True)
class Imported:
    """What measurements say.

    Attributes
    ----------
    target
        What the fragment is part of: ``site`` or ``link``.
    fragment
        Fields of a site or of a link, as they stand in an instance.
    fits
        The curves behind the fragment.
    notes
        What a reader should know before using it.
    """

    kind: Kind
    target: Literal["site", "link"]
    fragment: dict[str, Any]
    fits: tuple[Fit, ...]
    notes: tuple[str, ...]


def import_measurements(
    kind: str, files: Sequence[str | Path], *, tier: Tier | None = None
) -> Imported:
    """Read logs of one tool and fit what an instance takes from them.

    Parameters
    ----------
    kind
        One of :data:`KINDS`.
    files
        One or more logs; several runs of one thing are fitted together.
    tier
        For nccl-tests: the tier that was measured, where the hosts do not tell it.

    Raises
    ------
    InputError
        One line with file, line number and reason, if a file cannot be read or used, or says the
        same as another one.
    """
    if kind not in KINDS:
        raise InputError(
            "kind", f"cannot read '{kind}'; known: {', '.join(KINDS)}", nearest(kind, KINDS)
        )
    if not files:
        raise InputError(kind, "no file was given")
    readers: dict[str, Callable[[list[tuple[str, str]]], Imported]] = {
        "nccl-tests": lambda texts: _collectives(texts, tier),
        "iperf3": _streams,
        "perftest": _messages,
    }
    texts = [(read_text(Path(file)), str(file)) for file in files]
    _check_distinct(texts)
    imported = readers[kind](texts)
    _check_fragment(imported)
    return imported


def _check_fragment(imported: Imported) -> None:
    """Refuse figures that no instance accepts, such as a round trip of hours."""
    model = Site if imported.target == "site" else Link
    for key, value in imported.fragment.items():
        try:
            TypeAdapter(model.model_fields[key].rebuild_annotation()).validate_python(value)
        except ValidationError as error:
            raise first_input_error(error, model, f"{imported.kind}: {key}") from None


def _check_distinct(texts: list[tuple[str, str]]) -> None:
    """Refuse a measurement that is given twice: it would count twice in a fit or a median."""
    first: dict[str, int] = {}
    for i, (text, file) in enumerate(texts):
        other = texts[first.setdefault(text, i)][1]
        if first[text] != i:
            same = "is given twice" if other == file else f"holds the same as {other}"
            raise refused(file, None, f"{same}; give each measurement once")


def _check_runs(runs: Sequence[CollectiveRun] | Sequence[MessageRun]) -> None:
    """Refuse a run that is there twice: no two runs measure :data:`SAME_ROWS` equal times."""
    first: dict[tuple[object, ...], str] = {}
    for run in runs:
        key = (*(vars(run)[name] for name in vars(run) if name != "file"),)
        if len(run.samples) >= SAME_ROWS and key in first:
            where = "" if first[key] == run.file else f" in {first[key]}"
            raise refused(
                run.file, None, f"a run of {run.tool} is there twice{where}; give each one once"
            )
        first[key] = run.file


def _collectives(texts: list[tuple[str, str]], tier: Tier | None) -> Imported:
    groups: dict[tuple[str, str], list[CollectiveRun]] = {}
    read = [run for text, file in texts for run in nccl_tests.read(text, file, tier)]
    _check_runs(read)
    for run in read:
        groups.setdefault((run.tier, run.collective), []).append(run)
    fits = tuple(fit_curve(runs, _source(runs)) for runs in groups.values())
    notes = [note for runs in groups.values() for note in _collective_notes(runs)]
    measured = [fit.curve.model_dump(mode="json", exclude_none=True) for fit in fits]
    return Imported("nccl-tests", "site", {"measured": measured}, fits, tuple(notes))


def _collective_notes(runs: list[CollectiveRun]) -> list[str]:
    first, notes = runs[0], []
    what = f"{first.collective} on tier {first.tier}"
    if len({run.ranks for run in runs}) == 1:
        notes.append(
            f"{what}: one number of ranks ({first.ranks}); its latency is shared between launch "
            "and steps as NCCL's constants share it"
        )
    if first.tier == "network" and any(run.ranks_per_host > 1 for run in runs):
        notes.append(
            f"{what}: {first.ranks_per_host} ranks a host, so the time includes the part inside "
            "the host; one rank a host measures the network alone"
        )
    return notes


def _source(runs: Sequence[CollectiveRun | MessageRun | StreamRun]) -> str:
    tools = dict.fromkeys(run.tool for run in runs)
    files = dict.fromkeys(PurePath(run.file).name for run in runs)
    return f"{', '.join(tools)}: {', '.join(files)}"[:500]


def _streams(texts: list[tuple[str, str]]) -> Imported:
    runs = [iperf3.read(text, file) for text, file in texts]
    fragment: dict[str, Any] = {}
    trips = [run.round_trip_s for run in runs if run.round_trip_s is not None]
    if trips:
        fragment["rtt_s"] = float(f"{min(trips):.6g}")
    jitter = [run.jitter_s for run in runs if run.jitter_s is not None]
    if jitter:
        fragment["jitter_s"] = float(f"{median(jitter):.6g}")
    datagrams = [run for run in runs if run.jitter_s is not None]
    losses = [run.loss for run in datagrams or runs if run.loss is not None]
    if losses:
        fragment["loss"] = float(f"{median(losses):.6g}")
    measured, notes = [], []
    for protocol in dict.fromkeys(run.protocol for run in runs if run.protocol is not None):
        mine = [run for run in runs if run.protocol == protocol]
        entry, note = _rate(protocol, mine)
        measured.append(entry)
        notes.append(note)
    if measured:
        fragment["measured"] = measured
    if not fragment:
        raise refused(runs[0].file, None, "neither a round trip, a loss nor a known TCP")
    if trips:
        notes.append("rtt_s takes the place of distance_km or delay_s")
    fragment["provenance"] = _source(runs)
    return Imported("iperf3", "link", fragment, (), tuple(notes))


def _rate(protocol: str, runs: list[StreamRun]) -> tuple[dict[str, Any], str]:
    """The measured rate of a protocol, the median of the runs of each direction."""
    ways = {
        way: [run.bytes_per_s * 8e-9 for run in runs if run.reverse == way] for way in (False, True)
    }
    there, back = (
        float(f"{median(ways[way]):.6g}") if ways[way] else None for way in (False, True)
    )
    entry: dict[str, Any] = {"protocol": protocol, "bandwidth_gbps": there or back}
    if there is not None and back is not None:
        entry["reverse_bandwidth_gbps"] = back
    entry["source"] = _source(runs)
    streams = max(run.streams for run in runs)
    return entry, (
        f"{protocol}: the rate of {streams} stream{'s' * (streams > 1)} stands for all traffic of "
        "the link; measure with as many hosts and streams as the job has"
    )


def _messages(texts: list[tuple[str, str]]) -> Imported:
    runs = [run for text, file in texts for run in perftest.read(text, file)]
    _check_runs(runs)
    latencies = [run for run in runs if run.what == "latency"]
    bandwidths = [run for run in runs if run.what == "bandwidth"]
    fragment: dict[str, Any] = {}
    notes = []
    if bandwidths:
        largest = [max(run.samples).size_bytes for run in bandwidths]
        rates = [max(run.samples).size_bytes / max(run.samples).seconds for run in bandwidths]
        fragment["nic_gbps"] = float(f"{median(rates) * 8e-9:.6g}")
        notes.append(
            f"nic_gbps is the bandwidth at {max(largest):,} bytes, many messages in flight"
        )
    fits: tuple[Fit, ...] = ()
    if latencies:
        pairs = [
            CollectiveRun("p2p", "network", 2, 1, run.samples, run.tool, run.file)
            for run in latencies
        ]
        fits = (fit_curve(pairs, _source(latencies)),)
        fragment["measured"] = [fits[0].curve.model_dump(mode="json", exclude_none=True)]
    fragment["provenance"] = _source(runs)
    return Imported("perftest", "site", fragment, fits, tuple(notes))
