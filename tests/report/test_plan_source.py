"""What a plan report reads: the instance in the document, mistakes, bare plans, points."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from planner.cli import main
from planner.instance.errors import InputError
from planner.instance.fixes import with_fixes
from planner.instance.load import load_instance
from planner.legality import RefusedPlanError
from planner.report.html import plan_report as plan_report_module
from planner.report.html.explanation import explanation_tables
from planner.report.html.plan_report import plan_report
from planner.report.html.plan_source import plan_source
from planner.simulation import simulate as simulate_module
from tests.report.documents import campus, infeasible, renamed, solved
from tests.simulation.plans import job, plan

PLAN = plan([{"a": 4}, {"b": 4}])


def test_the_document_carries_its_instance_whole() -> None:
    reserved = load_instance(
        job().model_dump(mode="json", by_alias=True, exclude_unset=True)
        | {"memory_reserve": "2 GiB", "$schema": "x.json", "tight_share": 0.1}
    )
    fixed = with_fixes(reserved, ("pp=2", "recompute=full", "recompute=none"))
    source = plan_source(solved(fixed, PLAN))
    assert source.instance == fixed
    page = plan_report(source)
    assert "plans narrowed to</dt><dd>pp 2; recompute full or none</dd>" in page
    assert source.instance.cluster.sites[0].memory_limit_bytes == (
        job().cluster.sites[0].memory_limit_bytes - 2 * 2**30
    )


@pytest.mark.parametrize("name", ["llama-405b-4-buildings", "mixtral-8x7b-mixed-gpus"])
def test_shipped_instances_are_carried_whole(name: str) -> None:
    assert plan_source(infeasible(load_instance(name))).instance == load_instance(name)


def test_a_point_of_a_sweep_and_a_bare_plan_are_plans() -> None:
    point = {"key": "k", "status": "OPTIMAL", "solve": solved(job(), PLAN), "run": {}}
    assert plan_source(point).plan == PLAN
    bare = plan_source(PLAN.to_json(), job())
    assert (bare.plan, bare.document) == (PLAN, None)
    assert "a plan given by hand" in plan_report(bare)


def changed(path: str, value: Any) -> dict[str, Any]:
    document = solved(job(), PLAN)
    *parents, last = path.split(".")
    part = document
    for name in parents:
        part = part[name]
    part[last] = value
    return document


@pytest.mark.parametrize(
    ("document", "told"),
    [
        (changed("iteration_time_s", 0.5), "iteration_time_s: the document says 500,000 µs"),
        (changed("provenance", {}), "--instance: needed, since the file holds a document without"),
        (PLAN.to_json(), "--instance: needed, since the file holds a bare plan"),
        (changed("provenance.instance.training", 3), "provenance.instance.training: "),
        (changed("certificate.cases", [{"verdict": "open"}]), "certificate.cases[0].cases: "),
        (changed("plan.tp", "two"), "plan.tp: "),
        ([1], "plan: a JSON object is needed"),
    ],
)
def test_a_wrong_document_is_one_clear_line(document: Any, told: str) -> None:
    with pytest.raises(InputError) as caught:
        plan_source(document)
    assert str(caught.value).startswith(told)


def test_a_plan_of_another_instance_is_refused() -> None:
    with pytest.raises(RefusedPlanError, match="no site 'a'"):
        plan_source(solved(job(), PLAN), renamed(job(), {"a": "c"}))


def test_an_explanation_must_be_of_the_same_plan() -> None:
    other = plan([{"a": 8}, {"b": 8}])
    with pytest.raises(InputError, match=r"explanation\.plan: is another plan"):
        explanation_tables({"plan_status": "optimal", "plan": other.to_json()}, PLAN)
    with pytest.raises(InputError, match=r"explanation\.plan_status"):
        explanation_tables({"plan": PLAN.to_json()}, PLAN)


def test_open_prices_are_told_as_ranges() -> None:
    row = {"choice": "sync", "value": "flat", "chosen": False, "status": "bounded"}
    prices = [(0.25, 0.25), (0.125, 0.25), (0.125, None), (None, 0.25), (None, None), (0.0, 0.0)]
    tables = explanation_tables(
        {
            "plan_status": "optimal",
            "plan": PLAN.to_json(),
            "alternatives": [
                row | {"price_at_least_s": low, "price_s": high} for low, high in prices
            ],
        },
        PLAN,
    )
    assert [row.price for row in tables.alternatives] == [
        "+250.000 ms",
        "+125.000 ms to +250.000 ms",
        "at least +125.000 ms",
        "at most +250.000 ms",
        "",
        "0 µs",
    ]


def test_what_is_too_long_to_simulate_or_draw_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    source = plan_source(solved(job(), PLAN))
    monkeypatch.setattr(plan_report_module, "LARGEST_TIMELINE", 100)
    page = plan_report(source)
    assert "planner simulate --svg" in page
    assert "Sent and busy: in one simulated iteration." in page
    monkeypatch.setattr(simulate_module, "MOST_EVENTS", 10)
    page = plan_report(source)
    assert "Too many events to simulate here" in page
    assert "so what the links send is not known" in page


def test_only_the_busiest_of_many_links_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = job("abc")
    found = plan([{"b": 4}, {"c": 4}], links="bc")
    monkeypatch.setattr(plan_report_module, "MOST_LINKS", 1)
    page = plan_report(plan_source(solved(instance, found)))
    assert "b to c" in page
    assert '<td class="name">a to b</td>' not in page
    assert "and 1 links that send less" in page


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nothing.json"], "nothing.json: no such file"),
        (["empty"], "empty: is no sweep folder: it has no sweep.json"),
        (["sweep", "--instance", "tiny"], "--instance: goes with a plan, and sweep is a folder"),
        (["sweep", "--explanation", "x.json"], "--explanation: goes with a plan"),
        (["plan.json", "--figures", "x"], "--figures: goes with the folder of a sweep"),
        (["plan.json", "--instance", "tinny"], "tinny: no such file and no shipped instance"),
        (["plan.json", "--explanation", "plan.json"], "explanation.plan_status: "),
        (["sweep", "--figures", "plan.json"], "plan.json: is a file, not a folder"),
    ],
)
def test_misuse_is_one_line_and_exit_code_2(
    arguments: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    campus(tmp_path / "sweep")
    (tmp_path / "plan.json").write_text(json.dumps(solved(job(), PLAN)), encoding="utf-8")
    assert main(["report", *arguments, "-o", "report.html"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"error: {told}")
    assert printed.err.count("\n") == 1
    assert not (tmp_path / "report.html").exists()


def test_nothing_that_is_read_is_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "plan.json"
    source.write_text(json.dumps(solved(job(), PLAN)), encoding="utf-8")
    before = source.read_bytes()
    assert main(["report", str(source), "-o", str(source)]) == 2
    assert "is a file that is read" in capsys.readouterr().err
    assert source.read_bytes() == before


def test_figures_are_written_beside_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, pictures = tmp_path / "report.html", tmp_path / "pictures"
    arguments = ["report", str(campus(tmp_path / "sweep")), "-o", str(page)]
    assert main([*arguments, "--figures", str(pictures)]) == 0
    names = ("phase-variant", "phase-placement", "phase-schedule", "curves", "pareto")
    expected = {f"{name}.{form}" for name in names for form in ("png", "svg")}
    assert {path.name for path in pictures.iterdir()} == expected
    assert capsys.readouterr().err.count("written: ") == len(expected) + 1


def test_without_matplotlib_only_the_figures_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [n for n in sys.modules if n.startswith("planner.report.figures.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    arguments = ["report", str(campus(tmp_path / "sweep")), "-o", str(tmp_path / "report.html")]
    assert main(arguments) == 0
    capsys.readouterr()
    assert main([*arguments, "--figures", str(tmp_path / "pictures")]) == 2
    assert "--figures: needs matplotlib" in capsys.readouterr().err
