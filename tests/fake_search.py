"""A stand-in for the search: fixed answers for the tests of the command line and the report.

Run as a script, it behaves like the ``planner`` command with a search that takes its time and owns
a child process, until it is interrupted: ``python fake_search.py PIDFILE ARGUMENT...``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Any

from planner.check import StageMemory, check_plan, memory_to_json
from planner.instance import Instance, load_instance
from planner.plan import Plan, parse_plan


class Status(StrEnum):
    OPTIMAL = "OPTIMAL"
    FEASIBLE = "FEASIBLE"
    INFEASIBLE = "INFEASIBLE"
    NO_SOLUTION = "NO_SOLUTION"
    ERROR = "ERROR"
    INTERRUPTED = "INTERRUPTED"


@dataclass(frozen=True)
class Progress:
    cases_total: int = 1000
    cases_done: int = 10
    best_us: int | None = 2_000_000
    bound_us: int = 1_500_000
    elapsed_s: float = 1.0
    phase: str = "models"
    found_new: bool = False

    @property
    def gap(self) -> float | None:
        return None if self.best_us is None else 1 - self.bound_us / self.best_us


@dataclass(frozen=True)
class Result:
    instance: Instance
    status: Status
    reason: str = ""
    limit: str | None = None
    plan: Plan | None = None
    time_us: int | None = None
    bound_us: int | None = None
    gap: float | None = None
    breakdown_us: dict[str, int] = field(default_factory=dict)
    memory: tuple[StageMemory, ...] = ()
    certificate: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    simulated_us: float | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "status": self.status.value,
            "reason": self.reason,
            "limit": self.limit,
            "iteration_time_s": None if self.time_us is None else self.time_us / 1e6,
            "tokens_per_s": 1234.5,
            "mfu": 0.4,
            "plan": None if self.plan is None else self.plan.to_json(),
            "memory": memory_to_json(self.memory, self.instance.tight_share),
        }


def tiny_plan() -> Plan:
    """Two replicas on one node of the tiny instance."""
    return parse_plan(
        {
            "tp": 1,
            "cp": 1,
            "ep": 1,
            "etp": 1,
            "pp": 2,
            "dp": 2,
            "dp_shard": 1,
            "dp_replicate": 2,
            "virtual_stages": 1,
            "micro_batch_size": 1,
            "num_microbatches": 4,
            "gpus_used": 4,
            "schedule": "1f1b",
            "run_length": None,
            "extra_warmup": [0, 0],
            "sharding": "ddp",
            "sync": "hierarchical",
            "overlap": False,
            "recompute": "none",
            "layers_per_stage": [3, 3],
            "placement": [{"site": "h100-node", "first_stage": 0, "last_stage": 1, "replicas": 2}],
            "flows": [],
            "placement_kind": "single-site",
            "protocols": [],
        }
    )


def answer(status: Status, *, gap: float | None = None, plan: Plan | None = None) -> Result:
    """A result with that status about the tiny instance."""
    instance = load_instance("tiny")
    has_plan = status in (Status.OPTIMAL, Status.FEASIBLE, Status.INTERRUPTED)
    chosen = plan or (tiny_plan() if has_plan else None)
    checked = None if chosen is None else check_plan(instance, chosen)
    time_us = None if checked is None else checked.time_us
    return Result(
        instance=instance,
        status=status,
        reason="memory of stage 0: the smallest need is 91.20 GiB, the limit 74.40 GiB"
        if status is Status.INFEASIBLE
        else "",
        plan=chosen,
        time_us=time_us,
        bound_us=None if time_us is None else int(time_us * (1 - (gap or 0))),
        gap=gap,
        breakdown_us={} if checked is None else checked.breakdown_us,
        memory=() if checked is None else checked.memory,
        certificate={
            "cases": [
                {"verdict": "bounded", "cases": 800, "rule": "work"},
                {"verdict": "bounded", "cases": 100, "rule": "stages"},
                {"verdict": "infeasible", "cases": 99, "rule": "memory"},
                {"verdict": "solved", "cases": 1, "rule": "model"},
            ],
            "cases_total": 1000,
            "grade": "engine",
        },
        provenance={"wall_time_s": 1.25, "models": [{"engine": "cp-sat 9.15"}]},
    )


def install(solve: Callable[..., Any]) -> None:
    """Put ``solve`` in the place of the search."""
    module = ModuleType("planner.search.solve")
    vars(module).update(solve=solve, FORMULATIONS=("plain", "other"))
    sys.modules["planner.search.solve"] = module


def main() -> int:
    pid_file, *arguments = sys.argv[1:]

    def slow(instance: Instance, **options: Any) -> Result:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        try:
            options["progress"](Progress())
            Path(pid_file).write_text(json.dumps(child.pid), encoding="utf-8")
            time.sleep(600)
        except KeyboardInterrupt:
            return answer(Status.INTERRUPTED, gap=0.25)
        finally:
            child.kill()
            child.wait()
        return answer(Status.OPTIMAL, gap=0.0)

    install(slow)
    from planner.cli import main as command

    return command(arguments)


if __name__ == "__main__":
    sys.exit(main())
