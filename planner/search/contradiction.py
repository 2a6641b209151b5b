"""Why no plan is even legal: the keys of ``search`` that contradict each other or the cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from planner import space
from planner.choices import CaseChoices
from planner.cost.coefficients import case_coefficients
from planner.instance.schema import Instance
from planner.layout import to_plan
from planner.pipeline.schedules import SCHEDULES
from planner.plan import Degrees, Plan
from planner.problem import Problem
from planner.search.bounds import Bounds
from planner.search.legal_places import LegalPlaces, reachable_groups
from planner.search.relief import describe, fewest_gpus, fitting_plan, legal_plan, more_gpus
from planner.search.tree import Tree

ANY = Fraction(10**9)
"""A need ÷ limit that says nothing."""

CLUSTER_RULES = ("gpus", "placement.capacity", "placement.groups", "placement_kind")
"""Rules that a larger cluster may satisfy."""


class Obstacle(NamedTuple):
    """The rule that a case breaks; of two cases the later one gets further."""

    step: int
    gpus: int
    rule: str
    message: str
    numbers: dict[str, int]


def explain_contradiction(problem: Problem) -> tuple[str, dict[str, Any]]:
    """Name the rule, its numbers, the keys to blame and the changes after which a plan fits."""
    instance = problem.instance
    keys = to_blame(instance)
    obstacle = furthest(Problem(only(instance, keys)))
    changes = [change for key in keys if (change := _without(instance, key)) is not None]
    words = [_search_words(change) for change in changes]
    if obstacle.rule in CLUSTER_RULES:
        enlarged = fewest_gpus(instance)
        if enlarged is not None:
            changes.append(more_gpus(enlarged))
            words.append(f"{enlarged.gpus:,} GPUs ({describe(enlarged.plan)})")
    named = " and ".join(f"search.{key}" for key in keys)
    message = f"{obstacle.rule}: {obstacle.message}, with {named}"
    message += f". Feasible with {', or '.join(words)}" if words else ""
    evidence = {
        "rule": obstacle.rule,
        "keys": list(keys),
        **obstacle.numbers,
        "changes": changes,
    }
    return message, evidence


def restricted(instance: Instance) -> tuple[str, ...]:
    """The keys of ``search`` that restrict something."""
    return tuple(
        key
        for key in type(instance.search).model_fields
        if key != "shard_across_sites" and getattr(instance.search, key) is not None
    )


def only(instance: Instance, keys: Sequence[str]) -> Instance:
    """The instance without the restrictions of all other keys."""
    dropped = {key: None for key in restricted(instance) if key not in keys}
    return instance.model_copy(update={"search": instance.search.model_copy(update=dropped)})


def to_blame(instance: Instance) -> tuple[str, ...]:
    """Keys that together leave no legal plan; without any one of them there is a legal plan."""
    keys = restricted(instance)
    for key in keys:
        fewer = tuple(k for k in keys if k != key)
        if legal_plan(only(instance, fewer), ANY) is None:
            keys = fewer
    return keys


def _without(instance: Instance, key: str) -> dict[str, Any] | None:
    """A plan that fits once a key is dropped, with its value of that key."""
    wider = only(instance, [k for k in restricted(instance) if k != key])
    found = fitting_plan(wider)
    if found is None:
        return None
    plan = to_plan(Problem(wider), found.layout)
    return {"change": "search", "key": key, "value": _value(plan, key), "plan": plan.to_json()}


def _value(plan: Plan, key: str) -> object:
    if key == "protocols":
        return sorted({choice.protocol for choice in plan.protocols})
    value = getattr(plan, key.removeprefix("fixed_"))
    return list(value) if isinstance(value, tuple) else value


def _search_words(change: dict[str, Any]) -> str:
    value = change["value"]
    shown = ",".join(map(str, value)) if isinstance(value, list) else value
    return f"{change['key']} = {shown}"


def furthest(problem: Problem) -> Obstacle:
    """Of all cases the obstacle of the one that satisfies the most rules, with the fewest GPUs."""
    obstacles = _obstacles(problem)
    best = next(obstacles, None)
    if best is None:
        batch = problem.training.global_batch_size
        return Obstacle(
            0,
            0,
            "batch",
            f"no dp * micro_batch_size * num_microbatches gives the global batch of {batch}",
            {"global_batch_size": batch},
        )
    for other in obstacles:
        if (-other.step, other.gpus) < (-best.step, best.gpus):
            best = other
    return best


def _obstacles(problem: Problem) -> Iterator[Obstacle]:
    tree, groups = Tree(problem, Bounds(problem)), reachable_groups(problem)
    for box in tree.shapes():
        for pp in box.pp:
            for v in box.virtual_stages:
                for dp in box.dp:
                    for shard in tree.dp_shard(dp):
                        case = box.shape.case(pp, v, dp, shard)
                        yield Obstacle(*_obstacle(problem, groups, case))


def _obstacle(
    problem: Problem, groups: tuple[tuple[int, ...], ...], case: Degrees
) -> tuple[int, int, str, str, dict[str, int]]:
    """The first rule that a case breaks, in the order in which they are looked at."""
    model, gpus = problem.model, case.gpus
    if not space.tp_legal(problem, case.tp):
        return 0, gpus, "tp.divides", f"tp = {case.tp} does not divide the model", {"tp": case.tp}
    if not space.cp_legal(problem, case.cp):
        return (
            0,
            gpus,
            "cp.divides",
            f"cp = {case.cp} does not divide the sequence",
            {"cp": case.cp},
        )
    chunks = case.pp * case.virtual_stages
    if chunks > model.num_layers:
        message = (
            f"pp * virtual_stages is at least {chunks}, the model has {model.num_layers} layers"
        )
        numbers = {"chunks": chunks, "layers": model.num_layers}
        return 1, chunks, "virtual_stages.layers", message, numbers
    if not space.expert_groups_legal(case, model.num_experts):
        message = (
            f"ep = {case.ep} does not go with dp * tp * cp = {case.dp * case.cell_gpus} and "
            f"dp_shard = {case.dp_shard}"
        )
        return 2, gpus, "ep.groups", message, {"ep": case.ep, "ranks": case.dp * case.cell_gpus}
    choices = CaseChoices(problem, case_coefficients(problem, case))
    if choices.empty:
        step, rule, message, numbers = _no_choice(problem, choices)
        return step, gpus, rule, message, numbers
    allowed = problem.search.gpus_used
    if allowed is not None and gpus not in allowed:
        wanted = " or ".join(map(str, allowed))
        message = f"tp * cp * pp * dp is {gpus} and not {wanted}"
        return 5, gpus, "gpus_used", message, {"gpus_needed": gpus}
    if gpus > problem.total_gpus:
        message = f"at least {gpus:,} GPUs are needed, there are {problem.total_gpus:,}"
        return 6, gpus, "gpus", message, {"gpus_needed": gpus, "gpus": problem.total_gpus}
    cells, needed = sum(choices.co.cells), case.pp * case.dp
    if needed > cells:
        message = (
            f"{needed} cells of {case.cell_gpus} GPUs are needed, whole nodes of the sites hold "
            f"{cells}"
        )
        numbers = {"cells_needed": needed, "cells": cells, "cell_gpus": case.cell_gpus}
        return 7, gpus, "placement.capacity", message, numbers
    return _no_place(problem, groups, choices)


def _no_choice(problem: Problem, choices: CaseChoices) -> tuple[int, str, str, dict[str, int]]:
    """Why the schedules or options of a case are empty, with the step of the rule."""
    case, m = choices.co.degrees, choices.co.num_microbatches
    chunks = case.pp * case.virtual_stages
    numbers = {"pp": case.pp, "virtual_stages": case.virtual_stages, "num_microbatches": m}
    fixed = choices.fixed_layers
    if fixed is not None and len(fixed) != chunks:
        message = f"{len(fixed)} chunks are fixed, pp * virtual_stages is {chunks}"
        return 3, "layers.length", message, {**numbers, "chunks": len(fixed)}
    if choices._all_options:
        allowed = problem.search.schedule
        names = [
            name
            for name in space.schedules_for(case.virtual_stages)
            if allowed is None or name in allowed
        ]
        if not any(SCHEDULES[name].has_run_length for name in names):
            message = (
                f"no schedule that is allowed runs with virtual_stages = {case.virtual_stages}"
            )
            return 3, "schedule", message, numbers
        message = (
            f"no allowed run length divides the {m} microbatches and is at least pp = {case.pp}"
        )
        return 4, "run_length", message, numbers
    message = f"no sharding that is allowed goes with dp_shard = {case.dp_shard} and cp = {case.cp}"
    return 3, "sharding.group", message, {**numbers, "dp_shard": case.dp_shard, "cp": case.cp}


def _no_place(
    problem: Problem, groups: tuple[tuple[int, ...], ...], choices: CaseChoices
) -> tuple[int, int, str, str, dict[str, int]]:
    """Why a case that has enough cells finds no place for its stages."""
    case = choices.co.degrees
    places = LegalPlaces(choices, choices.schedules[0], groups)
    numbers = {"replicas": case.dp, "stages": case.pp, "multiple_of": places.unit}
    everywhere = range(len(problem.sites))
    if not places.levels(everywhere):
        message = (
            f"the sites do not hold {case.pp} stages of {case.dp} replicas, a site's part of a "
            f"stage being a multiple of {places.unit}"
        )
        return 8, case.gpus, "placement.groups", message, numbers
    if not any(places.levels(group) for group in groups):
        message = (
            f"no link joins the sites that together hold {case.pp} stages of {case.dp} replicas"
        )
        return 9, case.gpus, "routes", message, numbers
    kinds = " or ".join(choices.placement_kinds)
    message = f"no placement of {case.pp} stages of {case.dp} replicas is {kinds}"
    return 10, case.gpus, "placement_kind", message, numbers
