"""A simulated iteration as a Chrome trace, which Perfetto and ``chrome://tracing`` open.

Format: "Trace Event Format", Google, the JSON object form; ``ts`` and ``dur`` in µs.  One process a
site with a track a stage (one for each group of replicas that behaves alike, if there are several),
one for the network of its synchronisation and a counter of its activations; one process for the
directed links, a track each; one for what is not modelled further.  Arrows go from the op that
sends to the op that receives.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from planner.pipeline.simulator import Run
from planner.simulation.measures import Simulation, activation_steps
from planner.simulation.scenario import TICKS_PER_US, PlanScenario

Event = dict[str, Any]

_NAMES = {"F": "forward", "B": "backward", "W": "weight gradient"}


def chrome_trace(simulation: Simulation) -> dict[str, Any]:
    """Return the trace as one JSON object.

    Parameters
    ----------
    simulation
        A simulation with a recorded run.
    """
    plan, run = simulation.plan, simulation.run
    events = [*_site_names(plan), *_link_names(plan)]
    for cell in range(plan.num_ports):
        events += _op_events(plan, run, cell)
        events += _memory_events(plan, run, cell)
    events += _arrows(plan, run)
    events += _network_events(plan, run)
    events += _fixed_events(plan, run)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "instance": plan.problem.instance.name,
            "schedule": plan.layout.schedule,
            "simulated_time_s": simulation.time_s,
        },
    }


def _us(ticks: int) -> float:
    return ticks / TICKS_PER_US


def _name(kind: str, value: str, pid: int, tid: int = 0) -> Event:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {"name": value}}


def _order(pid: int, tid: int, index: int) -> Event:
    args = {"sort_index": index}
    return {"name": "thread_sort_index", "ph": "M", "pid": pid, "tid": tid, "args": args}


def _slice(name: str, category: str, pid: int, tid: int, begin: int, end: int) -> Event:
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "ts": _us(begin),
        "dur": _us(end - begin),
    }


def _track(plan: PlanScenario, cell: int) -> tuple[int, int]:
    """Process and thread of a cell."""
    strand, stage = divmod(cell, plan.pp)
    return plan.site_of(cell), 1 + stage * (len(plan.strands) + 1) + strand


def _team_track(plan: PlanScenario, team: int) -> tuple[int, int]:
    stage, site = plan.teams[team]
    return site, 1 + stage * (len(plan.strands) + 1) + len(plan.strands)


def _link_process(plan: PlanScenario) -> int:
    return len(plan.problem.sites)


def _site_names(plan: PlanScenario) -> Iterator[Event]:
    for d in sorted({d for _, d in plan.teams}):
        yield _name("process_name", f"site {plan.problem.sites[d].name}", d)
    for cell in range(plan.num_ports):
        strand, stage = divmod(cell, plan.pp)
        pid, tid = _track(plan, cell)
        replicas = plan.strands[strand].replicas
        yield _name("thread_name", f"stage {stage} ({replicas} replicas)", pid, tid)
        yield _order(pid, tid, tid)
    for team, (stage, _) in enumerate(plan.teams):
        pid, tid = _team_track(plan, team)
        yield _name("thread_name", f"stage {stage} network", pid, tid)
        yield _order(pid, tid, tid)


def _link_names(plan: PlanScenario) -> Iterator[Event]:
    pid = _link_process(plan)
    yield _name("process_name", "links", pid)
    for i, link in enumerate(plan.problem.links):
        yield _name("thread_name", f"{link.source} to {link.target}", pid, i)
        yield _order(pid, i, i)
    yield _name("process_name", "iteration", pid + 1)


def _op_events(plan: PlanScenario, run: Run, cell: int) -> Iterator[Event]:
    pid, tid = _track(plan, cell)
    order = plan.orders[cell % plan.pp]
    for op, begin, end in zip(order, run.starts[cell], run.ends[cell], strict=True):
        event = _slice(f"{op.kind}{op.microbatch}", _NAMES[op.kind], pid, tid, begin, end)
        event["args"] = {"chunk": op.chunk, "microbatch": op.microbatch}
        yield event
    tail = plan.optimizer_us(cell) * TICKS_PER_US
    if tail:
        done = run.done[cell]
        yield _slice("optimizer", "optimizer", pid, tid, done - tail, done)


def _memory_events(plan: PlanScenario, run: Run, cell: int) -> Iterator[Event]:
    pid, _ = _track(plan, cell)
    strand, stage = divmod(cell, plan.pp)
    name = f"activations of stage {stage}"
    if len(plan.strands) > 1:
        name += f", group {strand}"
    for tick, mib in activation_steps(plan, run, cell):
        yield {"name": name, "ph": "C", "pid": pid, "ts": _us(tick), "args": {"GiB": mib / 1024}}


def _arrows(plan: PlanScenario, run: Run) -> Iterator[Event]:
    """Two flow events a transfer, at the end of the op that sends and the start of the other."""
    at = [
        {op: i for i, op in enumerate(plan.orders[cell % plan.pp])}
        for cell in range(plan.num_ports)
    ]
    number = 0
    for cell in range(plan.num_ports):
        order = plan.orders[cell % plan.pp]
        for (kind, chunk), (receiver, _) in plan.sends(cell).items():
            target = chunk + (1 if kind == "F" else -1)
            for i, op in enumerate(order):
                if op[:2] != (kind, chunk):
                    continue
                j = at[receiver][op._replace(chunk=target)]
                last = max(run.starts[cell][i], run.ends[cell][i] - 1)
                common = {"name": "transfer", "cat": "transfer", "id": number}
                for phase, where, tick in (
                    ("s", cell, last),
                    ("f", receiver, run.starts[receiver][j]),
                ):
                    pid, tid = _track(plan, where)
                    ends = {"bp": "e"} if phase == "f" else {}
                    yield {
                        **common,
                        "ph": phase,
                        "pid": pid,
                        "tid": tid,
                        "ts": _us(tick),
                        **ends,
                    }
                number += 1


def _network_events(plan: PlanScenario, run: Run) -> Iterator[Event]:
    links = len(plan.problem.links)
    for link, begin, end, cell, number in run.occupations:
        if link >= links or begin == end:
            continue
        if cell >= 0:
            op = plan.orders[cell % plan.pp][number]
            name, category = f"{op.kind}{op.microbatch} of stage {cell % plan.pp}", "pp"
        else:
            name, category = "synchronisation", "dp"
        yield _slice(name, category, _link_process(plan), link, begin, end)
    for team, begin, end, _ in run.team_tasks:
        pid, tid = _team_track(plan, team)
        yield _slice("collective", "dp", pid, tid, begin, end)


def _fixed_events(plan: PlanScenario, run: Run) -> Iterator[Event]:
    fixed = plan.co.fixed_us * TICKS_PER_US
    if fixed:
        pid = _link_process(plan) + 1
        yield _slice("fixed", "fixed", pid, 0, run.end, run.end + fixed)
