"""The import rules: what knows which part of the system, and that solvers load only when used."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import planner

ROOT = Path(__file__).resolve().parents[1]
SOLVERS = {"ortools", "pulp", "highspy", "scipy", "cvxpy", "gurobipy", "pyomo", "pandas"}

MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in ("planner", "formulations", "bench")
    for path in sorted((ROOT / package).rglob("*.py"))
}


def under(*packages: str) -> list[str]:
    """The modules that are, or lie in, one of these."""
    return [
        module
        for module in MODULES
        if any(module == p or module.startswith(f"{p}.") for p in packages)
    ]


class Imports(ast.NodeVisitor):
    """Names of the modules that a module imports, anywhere in it, except for type checking."""

    def __init__(self, module: str) -> None:
        self.package = module.split(".")
        if MODULES[module].name != "__init__.py":
            self.package = self.package[:-1]
        self.found: set[str] = set()
        self.visit(ast.parse(MODULES[module].read_text(encoding="utf-8")))

    def visit_If(self, node: ast.If) -> None:
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        self.found.update(alias.name for alias in node.names)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = self.package[: len(self.package) - node.level + 1] if node.level else []
        module = ".".join([*base, *([node.module] if node.module else [])])
        self.found.add(module)
        self.found.update(f"{module}.{alias.name}" for alias in node.names)


def parents(name: str) -> Iterator[str]:
    """The module and every package around it, all of which an import runs."""
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        yield ".".join(parts[:length])


def reached(module: str) -> set[str]:
    """Everything that a module imports, directly or through others of this project."""
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        for name in (part for found in Imports(waiting.pop()).found for part in parents(found)):
            if name not in seen:
                seen.add(name)
                if name in MODULES:
                    waiting.append(name)
    return seen


def tops(names: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


SOLVER_FREE = under(
    "formulations",
    "planner.check",
    "planner.cost",
    "planner.instance",
    "planner.pipeline",
    "planner.simulation",
)


FIT = ("bench.cost_fit", "bench.fit_cost_model")


def test_the_rules_see_modules() -> None:
    assert {"formulations.algebra", "planner.check", "planner.cost.coefficients"} <= set(
        SOLVER_FREE
    )
    assert "ortools" in tops(reached("planner.backends.cp_sat"))
    assert "planner.instance.schema" in reached("planner.check")
    assert set(FIT) <= set(MODULES)
    assert "planner.check" in reached("planner.validation.validate")
    assert "scipy.stats" in reached("planner.validation.ranking")
    assert "scipy.optimize" in reached("planner.search.template_bound")
    assert "bench.cost_fit" in reached("bench.fit_cost_model")


@pytest.mark.parametrize("module", SOLVER_FREE)
def test_no_solver_is_reached(module: str) -> None:
    assert not tops(reached(module)) & SOLVERS


@pytest.mark.parametrize("module", under("planner.check", "planner.cost", "planner.instance"))
def test_the_specification_knows_no_formulation_and_no_search(module: str) -> None:
    names = reached(module)
    assert "formulations" not in tops(names)
    assert not {name for name in names if name.startswith(("planner.search", "planner.backends"))}


@pytest.mark.parametrize("module", under("planner.validation", "planner.report.validation", *FIT))
def test_validation_and_fit_predict_with_the_specification_alone(module: str) -> None:
    """Predictions are those of the checker; ``scipy.stats`` is no solver, ``optimize`` is."""
    names = reached(module)
    assert not tops(names) & (SOLVERS - {"scipy"})
    assert not {name for name in names if name.startswith("scipy.optimize")}
    assert "formulations" not in tops(names)
    assert not {name for name in names if name.startswith(("planner.search", "planner.backends"))}


@pytest.mark.parametrize("module", under("planner.verification", "planner.report.verification"))
def test_verification_knows_no_engine_and_no_formulation(module: str) -> None:
    """Of the search it knows the closed forms; what they load of a solver, they load when used."""
    names = reached(module)
    assert not tops(names) & (SOLVERS - {"scipy"})
    assert "formulations" not in tops(names)
    searching = {"solve", "cells", "tree", "case_solver", "heuristic"}
    assert not names & {f"planner.search.{name}" for name in searching}


@pytest.mark.parametrize("module", under("planner", "formulations"))
def test_the_library_knows_no_benchmark_and_no_test(module: str) -> None:
    assert not tops(Imports(module).found) & {"bench", "tests", "docs"}


@pytest.mark.parametrize("module", under("planner.backends"))
def test_backends_see_no_instance(module: str) -> None:
    known = {name for name in reached(module) if tops({name}) == {"planner"}}
    assert {name for name in known if not name.startswith("planner.backends")} <= {"planner"}


@pytest.mark.parametrize("module", under("formulations"))
def test_formulations_open_no_files(module: str) -> None:
    opening = {"io", "os", "pathlib", "shutil", "tempfile", "subprocess", "socket", "importlib"}
    assert not tops(Imports(module).found) & opening
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    called = {
        node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    }
    assert not called & {"open", "read_text", "read_bytes", "write_text", "write_bytes"}


@pytest.mark.parametrize("module", under("formulations"))
def test_formulations_know_no_backend_and_no_search(module: str) -> None:
    outside = ("planner.backends", "planner.search", "planner.cli", "planner.report")
    assert not {name for name in reached(module) if name.startswith(outside)}


def loaded_after(statement: str) -> set[str]:
    """The names in ``sys.modules`` of a fresh interpreter after a statement."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{statement}\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import planner",
        "import planner.cli",
        "import planner.check, planner.plan",
        "import planner.instance, planner.instance.fixes",
        "import " + ", ".join(SOLVER_FREE),
        "import planner.backends, planner.backends.registry, planner.backends.process",
        "import planner.report.text, planner.report.progress, planner.report.output",
        "import planner.report.html.write, planner.report.figures.drawings",
        "import planner.search.solve, planner.search.result",
        "import planner.validation.validate, planner.report.validation",
        "import planner.verification.verify, planner.report.verification",
        "from planner import *; assert load_instance('tiny').name == 'tiny'",
    ],
)
def test_no_solver_is_loaded(statement: str) -> None:
    assert not tops(loaded_after(statement)) & SOLVERS


def test_importing_the_package_or_the_command_loads_little() -> None:
    heavy = SOLVERS | {"numpy", "pydantic"}
    assert not tops(loaded_after("import planner")) & (heavy | {"click", "rich"})
    assert not tops(loaded_after("import planner.cli")) & (heavy | {"rich"})


def test_the_public_names_are_there() -> None:
    assert sorted(planner.__all__) == dir(planner)
    for name in planner.__all__:
        assert getattr(planner, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'solv'"):
        planner.solv  # noqa: B018
