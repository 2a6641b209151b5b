"""The readable report and progress: complete, within 80 columns, without colour, bounded."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from planner.check import StageMemory, check_plan
from planner.instance import load_instance
from planner.plan import Hosting, Plan
from planner.report import progress as progress_module
from planner.report.placement import print_placement, site_columns, stage_runs
from planner.report.progress import progress_line, reporter
from planner.report.text import plan_pairs, render_check, render_solve
from planner.report.units import (
    bytes_text,
    duration,
    exact_seconds,
    name_list,
    percent,
    run_lengths,
    span,
)
from tests.fake_search import Progress, Status, answer, tiny_plan


def rendered(render: Any, *, width: int = 80, encoding: str = "utf-8") -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict", write_through=True)
    console = Console(file=stream, width=width, markup=False, highlight=False, emoji=False)
    render(console)
    data = stream.buffer.getvalue()  # type: ignore[attr-defined]
    return data.decode(encoding)


def report(status: Status, **changes: Any) -> str:
    result = replace(answer(status, gap=0.0), **changes)
    return rendered(lambda console: render_solve(result, console))


def test_a_proven_plan_is_told_whole() -> None:
    text = report(Status.OPTIMAL)
    checked = check_plan(load_instance("tiny"), tiny_plan())
    assert checked.time_us is not None
    for words in (
        "tiny: OPTIMAL",
        "proven",
        exact_seconds(checked.time_us),
        "tokens/s",
        "MFU",
        "h100-node",
        "4 of 8",
        "unused: a100-node",
        "compute",
        "bubble",
        "lower bound",
        "0.00 %",
        "1,000 in 4 boxes",
        "900 (work 800, stages 100)",
        "1 by cp-sat 9.15",
    ):
        assert words in text
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text


def test_an_infeasible_instance_names_the_rule() -> None:
    text = " ".join(report(Status.INFEASIBLE).split())
    assert "no plan is feasible" in text
    assert "memory of stage 0: the smallest need is 91.20 GiB, the limit 74.40 GiB" in text
    assert "Placement" not in text


@pytest.mark.parametrize("status", Status)
def test_every_status_is_told(status: Status) -> None:
    assert status.value in report(status)


def test_limits_traffic_and_disagreements_are_told() -> None:
    text = report(
        Status.FEASIBLE,
        limit="time",
        provenance={"link_bytes": {"a to b": 3 << 30}, "errors": ["two engines differ"]},
    )
    assert "time limit" in text
    assert "3.0 GiB" in text
    assert "two engines differ" in text
    assert "the user" in report(Status.INTERRUPTED, limit="interrupt")


def test_names_are_taken_literally() -> None:
    instance = load_instance("tiny").model_copy(update={"name": "[red]job[/red]"})
    assert "[red]job[/red]" in report(Status.OPTIMAL, instance=instance)


def spread(sites: int, pp: int) -> Plan:
    """A plan of the given size whose replicas lie evenly on the sites."""
    return tiny_plan().model_copy(
        update={
            "pp": pp,
            "dp": 4 * sites,
            "placement": tuple(
                Hosting(site=f"site-{d:02d}", first_stage=0, last_stage=pp - 1, replicas=4)
                for d in range(sites)
            ),
        }
    )


def test_bars_without_unicode() -> None:
    text = rendered(
        lambda console: print_placement(load_instance("tiny"), tiny_plan(), console),
        encoding="latin-1",
    )
    assert "#### 2" in text


def test_few_sites_stand_side_by_side_and_equal_ones_of_many_together() -> None:
    instance = load_instance("tiny")
    few = rendered(lambda console: print_placement(instance, spread(3, 64), console))
    assert all(f"site-{d:02d}" in few for d in range(3))
    assert "0-63" in few
    many = rendered(lambda console: print_placement(instance, spread(64, 8), console))
    assert "(64 sites)" in many
    assert "4 each" in many
    assert len(many.splitlines()) < 8


def test_many_different_sites_are_drawn_in_blocks() -> None:
    hostings = tuple(
        Hosting(site=f"site-{d:02d}", first_stage=d, last_stage=d, replicas=4) for d in range(12)
    )
    plan = spread(1, 12).model_copy(update={"placement": hostings, "dp": 4})
    text = rendered(lambda console: print_placement(load_instance("tiny"), plan, console))
    assert all(f"site-{d:02d}" in text for d in range(12))
    assert max(map(len, text.splitlines())) <= 80


def test_runs_of_stages() -> None:
    plan = spread(1, 4).model_copy(
        update={
            "placement": (
                Hosting(site="a", first_stage=0, last_stage=1, replicas=4),
                Hosting(site="b", first_stage=2, last_stage=3, replicas=4),
            )
        }
    )
    assert list(stage_runs(site_columns(plan, 4))) == [(0, 1, (4, 0)), (2, 3, (0, 4))]


def test_only_the_fullest_of_many_memory_rows_are_shown() -> None:
    rows = tuple(StageMemory(s, "a", 1000, 100 * s, 10, 0, 70_000) for s in range(64))
    text = report(Status.OPTIMAL, memory=rows)
    assert "and 48 rows with more room" in text
    assert " 63 " in text


def test_tight_stages_and_optimizer_steps_are_told() -> None:
    def text(activations: int, step: int) -> str:
        row = StageMemory(0, "a", 1000, activations, 10, step, 10_000)
        return report(Status.OPTIMAL, memory=(row,))

    assert "tight" not in text(5_000, 0)
    assert "tight: less than 5.00 % of a limit is free" in text(8_600, 0)
    assert "optimizer step" not in text(8_600, 8_000)
    stepping = text(4_000, 8_700)
    assert "the peak of a stage is its optimizer step" in stepping
    assert "tight" in stepping
    assert "3.0 %" in stepping


def test_a_refused_plan_names_its_rules() -> None:
    plan = tiny_plan().model_copy(update={"gpus_used": 5})
    checked = check_plan(load_instance("tiny"), plan)
    text = rendered(lambda console: render_check(checked, console))
    assert text.startswith("refused\n  gpus_used: ")
    assert "not complete enough" in text
    accepted = check_plan(load_instance("tiny"), tiny_plan())
    assert rendered(lambda console: render_check(accepted, console)).startswith("accepted")


def test_choices_that_are_not_the_usual_ones_are_told() -> None:
    plan = tiny_plan().model_copy(
        update={"extra_warmup": (2, 0), "virtual_stages": 2, "run_length": 4}
    )
    pairs = plan_pairs(plan)
    assert pairs["extra warm-up"].startswith("2, 0 ")
    assert pairs["schedule"] == "1f1b, 2 chunks a stage, run length 4"


def test_units() -> None:
    assert duration(1_234_567) == "1.235 s"
    assert duration(1_500) == "1.500 ms"
    assert duration(12) == "12 µs"
    assert exact_seconds(12_345_678) == "12.345678 s"
    assert (percent(0), percent(0.5), percent(1e-7)) == ("0.00 %", "50.00 %", "1e-05 %")
    assert (bytes_text(512), bytes_text(1 << 52)) == ("512.0 B", "4,096.0 TiB")
    assert (span(0, 0), span(2, 5)) == ("0", "2-5")
    assert run_lengths([7, 7, 3]) == "2 × 7, 3"
    assert name_list(["a", "b"]) == "a, b"
    assert name_list(list("abcde")) == "a … e (5 sites)"


def test_a_progress_line_always_has_the_gap() -> None:
    assert progress_line(Progress()) == (
        "models: 10 of 1,000 cases, best 2.000 s, bound 1.500 s, gap 25.00 %"
    )
    assert "best none" in progress_line(Progress(best_us=None))
    assert "gap unknown" in progress_line(Progress(best_us=None))


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_come_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 101.0, 104.9, 105.1])
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: next(clock))
    stream = io.StringIO()
    with reporter(stream) as show:
        for _ in range(4):
            show(Progress())
    assert stream.getvalue().count("\n") == 2


def test_a_stream_that_is_gone_does_not_stop_the_search() -> None:
    for stream in (None, Broken()):
        with reporter(stream) as show:
            show(Progress())


def test_a_terminal_gets_a_live_line_that_disappears(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    with reporter(stream) as show:
        show(Progress())
    assert "gap 25.00 %" in stream.getvalue()
    monkeypatch.setenv("TERM", "dumb")
    plain = Terminal()
    with reporter(plain) as show:
        show(Progress())
    assert "\x1b" not in plain.getvalue()
