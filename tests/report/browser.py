"""A real headless browser, and what it says about a page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium-headless-shell", "chromium", "google-chrome", "chromium-browser")


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Chromium; without one the test is skipped."""
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"none of {', '.join(NAMES)} is installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Opened:
    """A page that is shown, and everything that it did which it must not."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    @property
    def overflow(self) -> int:
        """Pixels by which the page is wider than the window."""
        width: int = self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        return width

    def unreadable(self, ratio: float = 4.5) -> list[str]:
        """Texts of HTML elements whose colour is too close to what lies behind them."""
        found: list[str] = self.page.evaluate(CONTRAST, ratio)
        return found


@contextmanager
def shown(
    browser: Browser, path: Path, width: int, scheme: Literal["light", "dark"]
) -> Iterator[Opened]:
    """Open a file in a window of this width, with a reader who prefers this scheme."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    opened = Opened(page)
    page.on("request", lambda request: opened.requests.append(request.url))
    page.on("console", lambda message: opened.complaints.append(message.text))
    page.on("pageerror", lambda error: opened.complaints.append(str(error)))
    page.on("dialog", lambda dialog: (opened.complaints.append("dialog"), dialog.dismiss()))
    page.goto(path.as_uri())
    try:
        yield opened
    finally:
        context.close()


CONTRAST = """(least) => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = parse(getComputedStyle(e).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const bad = [];
  for (const element of document.querySelectorAll("body *:not(svg *):not(script):not(option)")) {
    const own = [...element.childNodes].filter((n) => n.nodeType === 3 && n.data.trim());
    if (!own.length || !element.getClientRects().length) continue;
    const [a, b] = [parse(getComputedStyle(element).color), behind(element)].map(light);
    if ((Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < least)
      bad.push(own.map((n) => n.data.trim()).join(" "));
  }
  return bad;
}"""
