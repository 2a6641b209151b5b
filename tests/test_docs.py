"""The documentation: examples that run, instances that load, links that lead somewhere.

A ``python`` or ``console`` code block below a line ``<!-- run -->`` is run; in a console
block, the lines that begin with ``$`` are the commands.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from planner.instance import load_instance
from planner.pipeline.schedules import SCHEDULES
from planner.sweeps.load import load_sweep
from planner.sweeps.points import expand
from tests.fake_search import Status, answer

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "instances" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
BLOCK = re.compile(r"(<!-- run -->\n)?```(\w+)\n(.*?)```", re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")


def blocks(language: str, *, runnable: bool) -> list[tuple[str, str]]:
    """The code blocks of a language by their place."""
    found = []
    for page in PAGES:
        source = page.read_text(encoding="utf-8")
        for match in BLOCK.finditer(source):
            if match[2] == language and bool(match[1]) == runnable:
                line = source.count("\n", 0, match.start(3)) + 1
                found.append((f"{page.name}:{line}", match[3]))
    return found


def environment(folder: Path) -> dict[str, str]:
    """An environment in which ``planner`` is this checkout's command."""
    command = folder / "planner"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m planner "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}


@pytest.mark.parametrize(("place", "code"), blocks("python", runnable=True))
def test_python_examples(place: str, code: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(tmp_path),
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{place}: {done.stderr}"
    assert done.stderr == ""


@pytest.mark.parametrize(("place", "code"), blocks("console", runnable=True))
def test_console_examples(place: str, code: str, tmp_path: Path) -> None:
    for line in code.splitlines():
        if line.startswith("$ "):
            done = subprocess.run(
                ["sh", "-c", line[2:]],
                capture_output=True,
                text=True,
                cwd=tmp_path,
                env=environment(tmp_path),
                timeout=300,
                check=False,
            )
            assert done.returncode == 0, f"{place}: {line}: {done.stderr}"


def test_the_readme_has_an_example_that_runs() -> None:
    assert any(place.startswith("README") for place, _ in blocks("python", runnable=True))


@pytest.mark.parametrize(("place", "code"), blocks("json", runnable=False))
def test_instances_in_the_documentation_load(place: str, code: str) -> None:
    document = json.loads(code)
    if "cluster" in document:
        assert load_instance(document).cluster.sites, place
    if "axes" in document:
        assert expand(load_sweep(document)), place


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def tables(page: Path) -> dict[str, list[str]]:
    """The rows of every table of a page below its head."""
    found: dict[str, list[str]] = {}
    head = ""
    for line in page.read_text(encoding="utf-8").splitlines():
        if not line.startswith("|"):
            head = ""
        elif not head:
            head = line
            found.setdefault(head, [])
        elif not line.startswith("|---"):
            found[head].append(line)
    return found


def test_the_tables_of_the_findings_are_those_of_their_benches() -> None:
    shown = tables(ROOT / "docs" / "findings.md")
    measured: dict[str, list[str]] = {}
    for name in ("findings", "headline"):
        measured |= tables(ROOT / "bench" / "results" / f"{name}.md")
    shared = shown.keys() & measured.keys()
    assert len(shared) >= 12
    for head in shared:
        assert set(shown[head]) <= set(measured[head]), head


def test_the_readme_names_the_command_of_continuous_integration() -> None:
    assert "\n./.ci/run\n" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def drawing() -> ModuleType:
    spec = spec_from_file_location("draw_plan", ROOT / "docs" / "draw_plan.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_shows_sites_and_stages() -> None:
    document = answer(Status.OPTIMAL, gap=0.0).to_json()
    document |= {"instance": "<tiny>", "lower_bound_s": 0.5}
    svg = drawing().draw(document)
    assert svg.startswith("<svg")
    assert "&lt;tiny&gt;" in svg
    assert "h100-node" in svg
    assert "stage 1" in svg


def test_the_picture_groups_many_stages() -> None:
    halves = [
        {"site": "a", "first_stage": 0, "last_stage": 31, "replicas": 4},
        {"site": "b", "first_stage": 32, "last_stage": 63, "replicas": 4},
    ]
    plan = {"pp": 64, "placement": halves}
    assert drawing().stage_rows(plan, drawing().replicas_by_site(plan)) == [(0, 31), (32, 63)]


def test_the_pictures_and_figures_of_the_schedules_are_those_of_the_simulation() -> None:
    spec = spec_from_file_location("draw_schedules", ROOT / "docs" / "draw_schedules.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (ROOT / "docs" / "schedules.md").read_text(encoding="utf-8")
    assert {template.schedule for template in module.TEMPLATES} == set(SCHEDULES)
    for template in module.TEMPLATES:
        name, bubble, memory, transfers = module.figures(template)
        assert f"| `{name}` | {100 * bubble:.1f} % | {memory:g} | {transfers:g} |" in page
        image = ROOT / "docs" / "images" / f"schedule_{name}.svg"
        assert image.read_text(encoding="utf-8") == module.picture(template)
        assert f"(images/{image.name})" in page
