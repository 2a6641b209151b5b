"""The page of a sweep in a real browser: pictures, values on hover, the table."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page

from planner.cli import main
from planner.report.sweeps.table import read_sweep
from planner.report.sweeps.winners import winners
from tests.report.browser import shown
from tests.report.documents import OVERSUBSCRIPTION, VARIANTS, campus, write_sweep


def write_page(folder: Path) -> Path:
    path = folder.parent / "report.html"
    assert main(["report", str(folder), "-o", str(path)]) == 0
    return path


def column(page: Page, name: str) -> list[str]:
    heads = [text.rstrip(" ▲▼") for text in page.locator("#table th").all_inner_texts()]
    nth = heads.index(name) + 1
    return page.locator(f"#table tbody td:nth-child({nth})").all_inner_texts()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_is_whole_offline_and_readable(
    browser: Browser, tmp_path: Path, width: int, scheme: Literal["light", "dark"]
) -> None:
    path = write_page(campus(tmp_path / "sweep"))
    with shown(browser, path, width, scheme) as opened:
        assert [url for url in opened.requests if not url.startswith("data:")] == [path.as_uri()]
        assert opened.complaints == []
        assert opened.overflow == 0
        assert opened.unreadable() == []
        for section in ("phase", "curves", "pareto", "table"):
            assert opened.page.locator(f"#{section}").is_visible()
        widths = opened.page.evaluate(
            "[...document.querySelectorAll('svg.chart')].map((s) => s.clientWidth)"
        )
        assert len(widths) == 3
        assert max(widths) <= width


def test_the_phase_diagram_shows_winners_margins_and_doubts(
    browser: Browser, tmp_path: Path
) -> None:
    folder = campus(tmp_path / "sweep")
    expected = {w.place: w for w in winners(read_sweep(folder), "variant")}
    with shown(browser, write_page(folder), 1280, "light") as opened:
        page = opened.page
        cells = page.locator("#phase .cell")
        drawn = cells.evaluate_all("all => all.map((c) => c.dataset.label)")
        # Cells are drawn column by column, each from below.
        assert drawn == [expected[i, j].label for i in range(3) for j in range(2)]
        labels = page.locator("#phase .in").all_text_contents()
        assert labels == [
            "A",
            "20 %",
            "A",
            "10 %",
            "A?",
            "5.0 %",
            "A",
            "tie",
            "B",
            "50 %",
            "B?",
            "",
        ]
        assert "A dp-out (4 of 6)" in page.inner_text("#phase .legend")
        tip = page.locator("#tip")
        assert tip.is_hidden()
        cells.nth(2).hover()
        told = tip.inner_text()
        for words in (
            "pp-out takes 5.00 % longer",
            "not proven",
            "oversubscription (n:1): 4",
            "1.050 s",
        ):
            assert words in told
        cells.nth(5).focus()
        assert "TIMEOUT" in tip.inner_text()
        page.keyboard.press("Escape")
        assert tip.is_hidden()
        page.locator("#phase select").first.select_option(label="schedule")
        assert "zb_h1" in page.inner_text("#phase .legend")
        page.locator("#phase select").nth(1).select_option(label="microbatches")
        assert page.locator("#phase .cell").count() == 6
        assert opened.complaints == []


def test_curves_have_gap_bars_and_the_front_its_line(browser: Browser, tmp_path: Path) -> None:
    with shown(browser, write_page(campus(tmp_path / "sweep")), 1280, "light") as opened:
        page = opened.page
        assert page.locator("#curves svg.chart .point").count() == 9
        # The one row with a gap among those of 2 microbatches.
        assert page.locator("#curves svg.chart > path[stroke]").count() == 1
        assert "iteration time (s)" in (page.locator("#curves svg.chart").text_content() or "")
        page.locator("#curves svg.chart .point").nth(5).hover()
        assert "lower bound" in page.inner_text("#tip")
        page.locator("#curves select").nth(1).select_option(label="8")
        assert page.locator("#curves svg.chart .point").count() == 8
        assert page.locator("#pareto .front").count() == 1
        assert page.locator("#pareto svg.chart .point").count() == 17
        page.locator("#pareto select").first.select_option(label="16")
        assert page.locator("#pareto svg.chart .point").count() == 5


def test_the_front_compares_iterations_of_as_many_tokens(browser: Browser, tmp_path: Path) -> None:
    axis = {"name": "batch", "values": [8, 16]}
    times = {(i,): {"dp-out": 1.0 + i, "pp-out": 1.5 + i} for i in (0, 1)}
    plans = {
        ((i,), variant): {"tokens_per_s": 4096 * (1 + i) / time_s, "plan_gpus_used": gpus}
        for i in (0, 1)
        for (variant, time_s), gpus in zip(times[i,].items(), (64, 32), strict=True)
    }
    folder = write_sweep(tmp_path / "sweep", [axis], VARIANTS, times, plans=plans)
    with shown(browser, write_page(folder), 1280, "light") as opened:
        assert opened.page.locator("#pareto option").all_inner_texts() == ["8", "16"]
        assert opened.page.locator("#pareto svg.chart .point").count() == 2


def test_the_table_sorts_and_filters(browser: Browser, tmp_path: Path) -> None:
    with shown(browser, write_page(campus(tmp_path / "sweep")), 400, "dark") as opened:
        page = opened.page
        button = page.locator("#table th button", has_text="iteration")
        button.click()
        rising = column(page, "iteration")
        assert rising[:-1] == sorted(rising[:-1])
        assert (len(rising), rising[-1]) == (18, "")
        button.click()
        assert column(page, "iteration")[:-1] == rising[:-1][::-1]
        assert (
            page.locator('#table th[aria-sort="descending"]').inner_text().startswith("iteration")
        )
        page.fill("#table input", "timeout")
        assert column(page, "status") == ["TIMEOUT"]
        assert column(page, "reason") == ["killed after 90 s"]
        assert page.inner_text("#table .count") == "1 of 18 rows"
        assert opened.overflow == 0


def test_a_long_table_is_shown_in_parts(browser: Browser, tmp_path: Path) -> None:
    axis = {"name": "x", "values": list(range(1, 101))}
    times = {(i,): {"free": 1.0 + i / 7, "dp-out": 2.0, "pp-out": 3.0} for i in range(100)}
    folder = write_sweep(tmp_path / "sweep", [axis], VARIANTS, times)
    with shown(browser, write_page(folder), 1280, "light") as opened:
        page = opened.page
        assert page.locator("#table tbody tr").count() == 50
        page.click("#table .more")
        assert page.locator("#table tbody tr").count() == 300
        assert page.locator("#table .more").is_hidden()
        assert page.locator("#phase .cell").count() == 100
        assert opened.overflow == 0


def test_names_with_markup_are_text(browser: Browser, tmp_path: Path) -> None:
    evil = "</script><img src=x onerror=alert(1)>"
    axis = OVERSUBSCRIPTION | {"label": evil, "labels": [f"{evil}{i}" for i in range(3)]}
    variants = {evil: {"fix": {"pp": 2}}, "<b>b</b>": {"fix": {"pp": 4}}}
    times = {(i,): {evil: 1.0 + i, "<b>b</b>": 2.5} for i in range(3)}
    folder = write_sweep(tmp_path / "sweep", [axis], variants, times, name=evil, description=evil)
    with shown(browser, write_page(folder), 1280, "light") as opened:
        page = opened.page
        page.locator("#phase .cell").first.hover()
        assert evil in page.inner_text("#tip")
        page.wait_for_timeout(100)
        assert opened.complaints == []
        assert page.locator("img, [onerror], main b b").count() == 0
        assert page.inner_text("h1") == evil
        assert evil in page.inner_text("#table tbody")
        assert "<b>b</b>" in page.inner_text("#curves .legend")


def test_a_sweep_without_axes_is_its_table(browser: Browser, tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "sweep", [], VARIANTS, {(): {"free": 1.0, "dp-out": 2.0}})
    with shown(browser, write_page(folder), 400, "light") as opened:
        assert opened.complaints == []
        assert opened.page.locator("#table tbody tr").count() == 2
        assert opened.page.locator("#phase").is_hidden()
        assert "1 still to be solved" in opened.page.inner_text("header")
