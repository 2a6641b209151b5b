"""The strong formulation against the plain one: ``python bench/formulations.py``.

Draws degrees cases of shipped instances with a fixed seed.  Each is solved by both formulations
with the same engine (CP-SAT), the same plan to start from and its Z as cut-off; the time is that of
building and solving all models.  Writes ``bench/results/formulations.md``.
"""

from __future__ import annotations

import argparse
import platform
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from planner.backends import EnginePool
from planner.choices import CaseChoices
from planner.cost.coefficients import case_coefficients
from planner.instance.load import load_instance
from planner.layout import Layout
from planner.plan import Degrees
from planner.problem import Problem
from planner.search.bounds import Bounds, CaseBounds
from planner.search.case_solver import CaseOutcome
from planner.search.case_solvers import CASE_SOLVERS, FEW_CHUNKS
from planner.search.heuristic import case_plans
from planner.search.tree import Box, Closed, Tree
from planner.versions import versions

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results" / "formulations.md"
SEED = 6
INSTANCES = ("dense-17b-2-buildings", "llama-405b-4-buildings", "moe-400b-5-buildings")
CASES = 8
"""Cases of an instance."""
MOST_OPS = 1_500
"""Ops of the templates of a case."""
PLANS_S = 10.0
"""Time to look for a plan to start from."""
FORMULATIONS = ("plain", "strong")
FASTER = 30
"""What the strong formulation is meant to be faster by, in the median."""


@dataclass(frozen=True)
class Run:
    """A case, its plan to start from, and what both formulations say."""

    instance: str
    degrees: Degrees
    start_us: int
    outcomes: dict[str, CaseOutcome]

    @property
    def ratio(self) -> float:
        """Plain over strong."""
        return self.outcomes["plain"].wall_time_s / self.outcomes["strong"].wall_time_s

    def proven(self, formulation: str) -> bool:
        """Whether a formulation closed the case."""
        return self.outcomes[formulation].bound_us >= (
            self.outcomes[formulation].time_us or self.start_us
        )


def drawn_cases(problem: Problem, rng: random.Random) -> list[Degrees]:
    """Cases with several stages, of moderate size, in an order that the seed decides."""
    tree = Tree(problem, Bounds(problem))

    def cells(box: Box) -> Iterator[Box]:
        for child, verdict in tree.children(box):
            if isinstance(verdict, Closed):
                continue
            if child.cell:
                yield child
            else:
                yield from cells(child)

    found = []
    shapes = [box for box in tree.shapes() if not isinstance(tree.examine(box), Closed)]
    for shape in shapes:
        for cell in cells(shape):
            batch = problem.training.global_batch_size
            m = batch // (cell.dp[0] * cell.shape.micro_batch_size)
            chunks = cell.pp[0] * cell.virtual_stages[0]
            if (
                2 <= cell.pp[0] <= 8
                and chunks > FEW_CHUNKS
                and 2 * m * chunks <= MOST_OPS
                and m >= cell.pp[0]
            ):
                found += [
                    cell._replace(dp_shard=(shard,)).case for shard in tree.legal_shards(cell)
                ]
    rng.shuffle(found)
    return found


def first_plan(choices: CaseChoices) -> tuple[int, Layout] | None:
    """The best plan that construction finds."""
    bounds = CaseBounds(Bounds(choices.problem), choices)
    values = {pair: bounds.choice(*pair) for pair in choices.pairs}
    best = None
    began = time.monotonic()
    for found in case_plans(choices, values, None):
        best = found or best
        if time.monotonic() - began > PLANS_S:
            break
    return best


def runs_of(name: str, limit_s: float, workers: int, cases: int) -> Iterator[Run]:
    """Solve the drawn cases of an instance."""
    problem = Problem(load_instance(name))
    done = 0
    for degrees in drawn_cases(problem, random.Random(f"{SEED} {name}")):
        choices = CaseChoices(problem, case_coefficients(problem, degrees))
        if choices.empty or not choices.possible_kinds:
            continue
        start = first_plan(choices)
        if start is None:
            continue
        outcomes = {}
        for formulation in FORMULATIONS:
            solver = CASE_SOLVERS[formulation]
            with EnginePool() as engines:
                outcomes[formulation] = solver(
                    problem, engines.engine("cp-sat"), workers=workers, seed=0
                ).solve(
                    choices,
                    start[0],
                    deadline=time.monotonic() + limit_s,
                    start=start[1],
                )
        run = Run(name, degrees, start[0], outcomes)
        assert_agree(run)
        yield run
        done += 1
        if done == cases:
            return


def assert_agree(run: Run) -> None:
    """Raise AssertionError where the two formulations contradict each other."""
    proven = {name for name in run.outcomes if run.proven(name)}
    if len(proven) == 2:
        values = {run.outcomes[name].time_us for name in proven}
        assert len(values - {None}) <= 1, f"{run.degrees}: {values}"


def page(runs: Sequence[Run], limit_s: float, workers: int) -> str:
    """The results page."""
    lines = [
        "# The strong formulation against the plain one",
        "",
        f"Degrees cases drawn with seed {SEED}, CP-SAT with {workers} workers, {limit_s:g} s a "
        "case; the same plan to start from, its Z as cut-off. Times in s: build and solve of all "
        "models. `python bench/formulations.py` repeats it. "
        "[The formulation](../../docs/formulation_strong.md).",
        "",
        f"Versions: python {platform.python_version()}, "
        + ", ".join(f"{k} {v}" for k, v in versions().items())
        + f"; {platform.machine()}, {platform.system()}.",
        "",
        "| case: tp/cp/ep/pp/v/mbs/dp/dp_shard | plain, s | rounds | proven "
        "| strong, s | models | proven | ratio |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(run.instance for run in runs):
        lines.append(f"| **{name}** | | | | | | | |")
        for run in (run for run in runs if run.instance == name):
            d, plain, strong = run.degrees, run.outcomes["plain"], run.outcomes["strong"]
            case = (d.tp, d.cp, d.ep, d.pp, d.virtual_stages, d.micro_batch_size, d.dp, d.dp_shard)
            more = "" if run.proven("plain") else "≥ "
            ratio = f"{more}{run.ratio:.2g}" if run.proven("strong") else ""
            verdicts = [
                "yes" if run.proven(name) else f"no, bound {outcome.bound_us / 1e6:.3f} s"
                for name, outcome in (("plain", plain), ("strong", strong))
            ]
            lines.append(
                f"| {'/'.join(map(str, case))} | {plain.wall_time_s:.2f} | {plain.rounds} "
                f"| {verdicts[0]} | {strong.wall_time_s:.2f} | {strong.size['models']} "
                f"| {verdicts[1]} | {ratio} |"
            )
    both = [run.ratio for run in runs if run.proven("plain") and run.proven("strong")]
    long = [
        run.ratio
        for run in runs
        if run.proven("strong") and run.outcomes["plain"].wall_time_s >= 1.0
    ]
    proven = {name: sum(run.proven(name) for run in runs) for name in FORMULATIONS}
    lines += [
        "",
        f"Proven within the limit: plain {proven['plain']}, strong {proven['strong']} of "
        f"{len(runs)}. "
        + (f"Median ratio where both are: {median(both):.2g} ({len(both)} cases). " if both else "")
        + (
            f"Where the plain one takes a second or more, unfinished ones at the limit: "
            f"{median(long):.2g} ({len(long)} cases). "
            if long
            else ""
        )
        + f"Aim: {FASTER}.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Solve all cases and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds per case")
    parser.add_argument("--cases", type=int, default=CASES, help="cases per instance")
    parser.add_argument("--instances", nargs="+", default=INSTANCES, help="shipped instances")
    parser.add_argument("--workers", type=int, default=2, help="search workers of CP-SAT")
    given = parser.parse_args()
    runs = []
    for name in given.instances:
        for run in runs_of(name, given.limit, given.workers, given.cases):
            runs.append(run)
            print(name, run.degrees, f"{run.ratio:.2f}", file=sys.stderr, flush=True)
    RESULTS.write_text(page(runs, given.limit, given.workers), encoding="utf-8")
    print(RESULTS)


if __name__ == "__main__":
    main()
