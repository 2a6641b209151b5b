"""Z of the time model against the event simulation: ``python bench/linear_vs_simulated.py``.

Writes ``bench/results/linear_vs_simulated.md``.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.grids import Point, chains, synchronised
from planner.check import time_of_layout
from planner.cost.coefficients import case_coefficients
from planner.pipeline.simulator import Scenario, simulate_scenario
from planner.pipeline.stage_profile import StageProfile, stage_profile_time_s
from planner.simulation.scenario import TICKS_PER_US, PlanScenario
from planner.versions import versions

RESULTS = Path(__file__).parent / "results" / "linear_vs_simulated.md"


Errors = dict[str, list[tuple[float, str]]]
"""(Z - simulated) / simulated with the label of the plan, by group and by part."""


def errors(points: Iterable[Point]) -> tuple[Errors, Errors]:
    """Errors with the plan's order on shared links, and with first come, first served.

    The second ones are those of plans that share links.
    """
    in_turns, first_come = _Collected(), _Collected()
    for point in points:
        co = case_coefficients(point.problem, point.layout.degrees)
        declared = time_of_layout(point.problem, co, point.layout)
        scenario = PlanScenario(point.problem, co, point.layout).scenario()

        def error(happens: Scenario, declared: int = declared, fixed: int = co.fixed_us) -> float:
            simulated = fixed + simulate_scenario(happens).end / TICKS_PER_US
            return (declared - simulated) / simulated

        in_turns.add(point, error(scenario))
        if scenario.turns:
            first_come.add(point, error(replace(scenario, turns={})))
    return in_turns.tables(), first_come.tables()


class _Collected:
    """Errors of the plans of a grid."""

    def __init__(self) -> None:
        self._groups: Errors = {}
        self._parts: Errors = {}

    def add(self, point: Point, error: float) -> None:
        """Keep an error."""
        self._groups.setdefault(point.group, []).append((error, point.label))
        self._parts.setdefault(point.part, []).append((error, point.label))

    def tables(self) -> Errors:
        """By group, by part, and all."""
        return (
            self._groups
            | dict(sorted(self._parts.items(), key=lambda item: (len(item[0]), item[0])))
            | {"**all**": list(chain(*self._groups.values()))}
        )


def row(name: str, values: list[float]) -> str:
    """One line of a table."""
    sizes = [abs(v) for v in values]
    low = max(0.0, -min(values))
    return (
        f"| {name} | {len(values)} | {100 * median(sizes):.3f} % | {100 * max(sizes):.2f} % | "
        f"{100 * low:.3f} % | {sum(v < -0.01 for v in values)} | {sum(s > 0.05 for s in sizes)} |"
    )


def table(title: str, found: Errors) -> list[str]:
    """A table by group, and the plan with the largest error each way."""
    lines = [f"## {title}", ""]
    lines.append(
        "| group | plans | median error | worst error | worst optimistic | "
        "optimistic by > 1 % | error > 5 % |"
    )
    lines.append("|---|---|---|---|---|---|---|")
    for group, pairs in found.items():
        lines.append(row(group, [error for error, _ in pairs]))
    everything = found["**all**"]
    for words, pair in (("Most above", max(everything)), ("Most below", min(everything))):
        lines += ["", f"{words}: {100 * pair[0]:+.2f} %, `{pair[1]}`."]
    return [*lines, ""]


def speed() -> str:
    """Seconds of the largest simulation that is asked for, op orders included; best of three."""
    profile = StageProfile(64, 512, 2e-3, 2e-3, 2e-3, 20e-6, 90e-6, range(63), blocking_sends=False)
    times = []
    for _ in range(3):
        began = time.perf_counter()
        stage_profile_time_s(profile, "zbv")
        times.append(time.perf_counter() - began)
    return f"{min(times):.2f} s"


def main() -> None:
    """Run the grids and write the page."""
    began = time.perf_counter()
    tables = []
    for title, points in (
        ("A link for every slow boundary", chains(shared=False)),
        ("All slow boundaries share one link", chains(shared=True)),
        ("Whole plans: four replicas on two sites", synchronised()),
    ):
        in_turns, first_come = errors(points)
        tables += table(title, in_turns)
        if "replicas" not in title:
            tables += table(f"{title}: shared links serve what comes first", first_come)
        print(title, file=sys.stderr)
    found = versions()
    lines = [
        "# Z against the event simulation",
        "",
        "Error = (Z − simulated) ÷ simulated; above 0 the time model is on the safe side. Grid: "
        "every schedule × 2 to 32 stages × 1 to 4 microbatches a stage × delays of 0 to 10 stage "
        "times × 1 to 4 slow boundaries; equal or unequal stages, positions, extra warm-up and the "
        "share of the serialization are drawn. Links that several boundaries or directions share "
        "serve transfers in the plan's order, in the tables that say so first come, first served "
        "(only plans that share a link are in these). What the errors come from: "
        "[docs/time_model.md](../../docs/time_model.md).",
        "",
        f"64 stages × 512 microbatches × 2 chunks (`zbv`) are simulated in {speed()}. All of this "
        f"page took {time.perf_counter() - began:.0f} s.",
        "",
        f"Versions: {', '.join(f'{name} {version}' for name, version in found.items())}; "
        f"{platform.machine()}, {platform.system()}.",
        "",
        *tables,
    ]
    RESULTS.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
