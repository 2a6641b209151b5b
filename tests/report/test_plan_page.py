"""The page of a plan in a real browser: complete, offline, readable, names as text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser

from planner.cli import main
from planner.instance.schema import Instance
from planner.plan import Plan
from tests.report.browser import shown
from tests.report.documents import infeasible, renamed, solved
from tests.simulation.plans import job, plan

HOSTILE = {
    "a": "<img src=x onerror=alert(1)>",
    "b": "</script><script>alert(2)</script>",
    "a--b": '"><svg onload=alert(3)>{{ 7*7 }}',
}
SECTIONS = ("job", "plan", "cluster", "timeline", "breakdown", "memory", "proof", "explanation")


def pipeline_plan(names: dict[str, str]) -> tuple[Instance, Plan]:
    """Two stages, one at each of two sites with these names."""
    found = plan([{"a": 4}, {"b": 4}])
    text = json.dumps(found.to_json())
    document = json.loads(text)
    for part in document["placement"]:
        part["site"] = names.get(part["site"], part["site"])
    for part in (*document["flows"], *document["protocols"]):
        for key in ("from", "to", "link"):
            if key in part:
                part[key] = names.get(part[key], part[key])
    instance = renamed(job(), names, name=names.get("job", "two halls"))
    return instance, Plan.model_validate_json(json.dumps(document))


def explanation(found: Plan) -> dict[str, object]:
    row = {"status": "optimal", "reason": None, "plan": None}
    return {
        "plan_status": "optimal",
        "plan": found.to_json(),
        "alternatives": [
            row
            | {
                "choice": "placement_kind",
                "value": "pp-out",
                "chosen": True,
                "price_s": 0.0,
                "price_at_least_s": 0.0,
            },
            row
            | {
                "choice": "placement_kind",
                "value": "<b>dp-out</b>",
                "chosen": False,
                "price_s": 0.25,
                "price_at_least_s": 0.125,
            },
        ],
        "what_if": [
            row
            | {
                "name": "a--b",
                "change": "10 % more bandwidth",
                "gain_at_least_s": 0.001,
                "gain_at_most_s": 0.001,
            }
        ],
    }


def write_page(folder: Path, names: dict[str, str]) -> Path:
    instance, found = pipeline_plan(names)
    document = solved(instance, found)
    document["reason"] = "<script>alert(4)</script>"
    document["provenance"]["notes"] = ["<b onclick=alert(5)>note</b>"]
    (folder / "plan.json").write_text(json.dumps(document), encoding="utf-8")
    (folder / "why.json").write_text(json.dumps(explanation(found)), encoding="utf-8")
    page = folder / "report.html"
    arguments = [str(folder / "plan.json"), "-o", str(page)]
    assert main(["report", *arguments, "--explanation", str(folder / "why.json")]) == 0
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_is_whole_offline_and_readable(
    browser: Browser, tmp_path: Path, width: int, scheme: Literal["light", "dark"]
) -> None:
    path = write_page(tmp_path, {})
    with shown(browser, path, width, scheme) as opened:
        page = opened.page
        assert opened.requests == [path.as_uri()] + [
            url for url in opened.requests if url.startswith("data:")
        ]
        assert opened.complaints == []
        assert opened.overflow == 0
        assert opened.unreadable() == []
        for section in SECTIONS:
            assert page.locator(f"#{section} h2").is_visible(), section
        told = page.inner_text("main")
        for words in (
            "two halls",
            "OPTIMAL",
            "lower bound",
            "dedicated",
            "tokens/s",
            "+250.000 ms",
            "1,000 in 3 boxes",
        ):
            assert words in told, words
        drawn = page.locator("svg.cluster").text_content() or ""
        assert "stage 0 × 4" in drawn
        assert "100 Gb/s" in drawn
        assert "100 µs one way" in drawn
        size = page.evaluate("[...document.images].map((image) => image.naturalWidth)")
        assert size == [1200]
        dark = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(20, 22, 26)") == dark == (scheme == "dark")


def test_names_with_markup_are_text(browser: Browser, tmp_path: Path) -> None:
    path = write_page(tmp_path, HOSTILE | {"job": "</title><script>alert(0)</script>"})
    with shown(browser, path, 1280, "light") as opened:
        page = opened.page
        page.wait_for_timeout(100)
        assert opened.complaints == []
        assert page.locator("script").count() == 0
        assert page.locator("[onerror], [onload], [onclick]").count() == 0
        assert page.title() == "</title><script>alert(0)</script>"
        assert page.inner_text("h1") == "</title><script>alert(0)</script>"
        told = page.inner_text("main")
        for words in ("<script>alert(4)</script>", "<b onclick=alert(5)>note</b>", "<b>dp-out</b>"):
            assert words in told
        assert f"{HOSTILE['a']} to {HOSTILE['b']}" in told
        titles = page.locator("svg.cluster title").all_text_contents()
        assert any(HOSTILE["a"] in title for title in titles)
        assert any(HOSTILE["a--b"] in title for title in titles)
        page.hover("svg.cluster .c-name >> nth=0")
        page.keyboard.press("Tab")
        assert opened.complaints == []


def test_an_answer_without_a_plan_is_told(browser: Browser, tmp_path: Path) -> None:
    source, path = tmp_path / "plan.json", tmp_path / "report.html"
    source.write_text(json.dumps(infeasible(job())), encoding="utf-8")
    assert main(["report", str(source), "-o", str(path)]) == 0
    with shown(browser, path, 400, "dark") as opened:
        told = opened.page.inner_text("main")
        assert "INFEASIBLE" in told
        assert "the smallest need is 91.2 GiB" in told
        assert "unused" in (opened.page.locator("svg.cluster").text_content() or "")
        assert opened.page.locator("#timeline, #memory, #breakdown, #plan").count() == 0
        assert (opened.overflow, opened.complaints) == (0, [])
