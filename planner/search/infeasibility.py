"""Why no plan is feasible: the rule that no plan can meet, its numbers, and the smallest change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.check import check_plan
from planner.layout import to_plan
from planner.problem import MIB, Problem
from planner.search.bounds import Bounds
from planner.search.contradiction import explain_contradiction
from planner.search.least_memory import LeastMemory, least_memory
from planner.search.relief import describe, fewest_gpus, more_gpus, with_limits
from planner.search.tree import Tree

GIB_IN_MIB = 1024


def explain_infeasibility(
    problem: Problem, tree: Tree, bounds: Bounds
) -> tuple[str, dict[str, Any]]:
    """Name the rule that no plan can meet and the smallest change that would make one feasible.

    Parameters
    ----------
    problem, tree, bounds
        The problem, proven infeasible, with the cases of its search.

    Returns
    -------
    tuple
        One sentence or two, and the evidence: ``rule``, the numbers of the rule, and ``changes``,
        each with the plan that fits after it.  Rule ``none`` = a feasible plan was found, so the
        proof of infeasibility is wrong.
    """
    least = least_memory(problem, tree)
    if least is None:
        return explain_contradiction(problem)
    if least.ratio <= 1:
        plan = to_plan(problem, least.layout).to_json()
        return "a feasible plan exists after all", {"rule": "none", "plan": plan, "changes": []}
    worst = least.worst
    changes = [_raised_limit(problem, least)]
    raised = _limit_words(changes[0], len(problem.sites))
    message = (
        f"memory of stage {worst.stage}: the smallest need "
        f"{'' if least.proven else 'found '}is {_gib(worst.peak_mib)}, the limit "
        f"{_gib(worst.limit_mib, up=False)} ({describe(least)}). {raised}"
    )
    enlarged = fewest_gpus(problem.instance)
    if enlarged is None:
        message += "; more GPUs of this kind do not help"
    else:
        changes.append(more_gpus(enlarged))
        message += (
            f", or {enlarged.gpus:,} GPUs instead of {problem.total_gpus:,} "
            f"({describe(enlarged.plan)})"
        )
    evidence = {
        "rule": "memory",
        "stage": worst.stage,
        "site": worst.site,
        "need_bytes": worst.peak_mib * MIB,
        "limit_bytes": worst.limit_mib * MIB,
        "state_bytes": worst.state_mib * MIB,
        "proven_smallest": least.proven,
        "degrees": least.layout.degrees._asdict(),
        "changes": changes,
    }
    return message, evidence


def _raised_limit(problem: Problem, least: LeastMemory) -> dict[str, Any]:
    """The memory limits with which the plan fits, where they must be raised."""
    needs: dict[str, int] = {}
    for row in least.memory:
        if row.peak_mib > row.limit_mib:
            needs[row.site] = max(needs.get(row.site, 0), row.peak_mib)
    if len({site.limit_mib for site in problem.sites}) == 1:
        needs = dict.fromkeys((site.name for site in problem.sites), max(needs.values()))
    instance = with_limits(problem.instance, needs)
    plan = to_plan(problem, least.layout)
    report = check_plan(instance, plan)
    assert report.feasible, report.violations
    hardware = {site.name: int(site.gpu.memory_bytes) for site in problem.instance.cluster.sites}
    return {
        "change": "memory_limit",
        "memory_limit_bytes": {site: need * MIB for site, need in needs.items()},
        "beyond_gpu_memory": [s for s, need in needs.items() if need * MIB > hardware[s]],
        "plan": plan.to_json(),
    }


def _limit_words(change: Mapping[str, Any], num_sites: int) -> str:
    limits, beyond = change["memory_limit_bytes"], change["beyond_gpu_memory"]
    rounded = {site: -(-value // MIB) for site, value in limits.items()}
    if len(set(rounded.values())) == 1 and len(rounded) == num_sites:
        words = f"Feasible with {_gib(next(iter(rounded.values())))} a GPU"
    else:
        listed = (f"{_gib(value)} a GPU at '{site}'" for site, value in rounded.items())
        words = f"Feasible with {' and '.join(listed)}"
    return f"{words} (more than the GPU has)" if beyond else words


def _gib(mib: int, *, up: bool = True) -> str:
    """GiB with two decimals: needs rounded up, limits down, so that the numbers shown suffice."""
    hundredths = -(-mib * 100 // GIB_IN_MIB) if up else mib * 100 // GIB_IN_MIB
    return f"{hundredths / 100:.2f} GiB"
