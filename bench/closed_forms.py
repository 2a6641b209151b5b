"""The closed form of one slow boundary on its whole grid: ``python bench/closed_forms.py``.

Stock 1F1B, asynchronous sends: T = (m + p - 1)(F + B) + 2 d ceil((m - (p - 2 - i)) / 2) for
p = 2..16, every boundary i, m = p..8 p and delays d of 0 to 10 stage times.  Writes
``bench/results/closed_forms.md``.
"""

from __future__ import annotations

import sys
import time
from math import ceil
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from planner.pipeline.event_graph import Duration, event_graph
from planner.pipeline.schedules import Template, device_orders
from planner.pipeline.simulator import Cell, Hop, Scenario, Send, simulate_scenario
from planner.versions import versions

RESULTS = Path(__file__).parent / "results" / "closed_forms.md"
FORWARD, BACKWARD = 1, 2
DELAYS = tuple(range(0, 31, 3))
"""0 to 10 stage times of 3, in steps of one."""


def scenarios(template: Template, boundary: int) -> list[Scenario]:
    """One scenario for each delay."""
    orders = device_orders(template)
    made = []
    for delay in DELAYS:
        cells = []
        for s in range(template.pp):
            sends = {}
            for kind, target in (("F", s + 1), ("B", s - 1)):
                if 0 <= target < template.pp:
                    slow = min(s, target) == boundary
                    hops = (Hop(int(kind == "B"), 0, delay),) if slow else ()
                    sends[kind, s] = Send(target, hops)
            cells.append(Cell(s, {("F", s): FORWARD, ("B", s): BACKWARD}, sends))
        made.append(Scenario(orders, cells, 2))
    return made


def main() -> None:
    """Run the grid and write the page."""
    began = time.perf_counter()
    lines = ["| stages | cases | simulation ≠ closed form | longest path ≠ closed form |"]
    lines.append("|---|---|---|---|")
    total = wrong = 0
    for pp in range(2, 17):
        cases = misses = graph_misses = 0
        for m in range(pp, 8 * pp + 1):
            template = Template("1f1b", pp, 1, m, None, (0,) * pp)
            graph = event_graph(template)
            for boundary in range(pp - 1):
                turns = ceil((m - (pp - 2 - boundary)) / 2)
                for delay, scenario in zip(DELAYS, scenarios(template, boundary), strict=True):
                    expected = (m + pp - 1) * (FORWARD + BACKWARD) + 2 * delay * turns
                    cases += 1
                    misses += simulate_scenario(scenario).end != expected
                    if delay in (3, 30):
                        fixed = {"F": FORWARD, "B": BACKWARD}
                        values = {
                            v: fixed.get(v.kind, 0)
                            if not isinstance(v.index, tuple)
                            else delay * (v.kind == "delay" and min(v.index) == boundary)
                            for v in graph.variables
                        }
                        assert Duration("F", 0) in values
                        graph_misses += graph.evaluate(values) != expected
        lines.append(f"| {pp} | {cases:,} | {misses} | {graph_misses} |")
        print(lines[-1], file=sys.stderr)
        total, wrong = total + cases, wrong + misses
    found = versions()
    page = [
        "# One slow boundary of stock 1F1B",
        "",
        "T = (m + p − 1)(F + B) + 2 δ ⌈(m − (p − 2 − i)) / 2⌉ for every boundary i, m = p … 8p, "
        "δ = 0 … 10 stage times (the longest path at 1 and 10 of them).",
        "",
        f"{total:,} cases, {wrong} differ; {time.perf_counter() - began:.0f} s.",
        "",
        *lines,
        "",
        f"Versions: {', '.join(f'{name} {version}' for name, version in found.items())}.",
    ]
    RESULTS.write_text("\n".join(page) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
