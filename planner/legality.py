"""The rules of the plan space, each with a name, checked on one plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from planner import space
from planner.cost.coefficients import Option
from planner.instance.cluster import refusal
from planner.instance.errors import one_line
from planner.layout import Flows, Layout, num_boundaries, sync_pairs, used_links
from planner.pipeline.schedules import SCHEDULES, legal_run_lengths
from planner.plan import Plan
from planner.problem import Problem


class Violation(NamedTuple):
    """One rule that a plan breaks, with its numbers."""

    rule: str
    message: str


class RefusedPlanError(Exception):
    """The checker refuses a plan; ``str()`` is one line that names the rules."""

    def __init__(self, violations: Iterable[Violation]) -> None:
        self.violations = tuple(violations)
        rules = "; ".join(f"{v.rule}: {v.message}" for v in self.violations)
        super().__init__(one_line(f"the plan is refused: {rules}"))


def layout_violations(problem: Problem, plan: Plan) -> tuple[list[Violation], Layout | None]:
    """Every violated rule but memory, and the layout where the plan is complete enough to price."""
    violations = list(_degrees_rules(problem, plan))
    violations += _schedule_rules(problem, plan)
    shape = list(_shape_rules(problem, plan))
    violations += shape
    if shape or violations:
        return violations + list(_search_rules(problem, plan)), None
    replicas, placement_rules = _replicas(problem, plan)
    flows, flow_rules = _flows(problem, plan, replicas)
    violations += placement_rules + flow_rules
    violations += _search_rules(problem, plan)
    if flows is None or any(sum(row) != plan.dp for row in replicas):
        return violations, None
    spanning = any(
        r % space.granularity(plan.degrees, spanning=False) for row in replicas for r in row
    )
    layout = Layout(
        degrees=plan.degrees,
        schedule=plan.schedule,
        run_length=plan.run_length,
        extra_warmup=plan.extra_warmup,
        option=Option(plan.sharding, plan.overlap, plan.recompute, spanning),
        sync=plan.sync,
        layers=plan.layers_per_stage,
        replicas=replicas,
        flows=flows,
        protocols={},
    )
    violations += _group_rules(problem, layout)
    warmup = list(_warmup_rules(layout))
    violations += warmup
    if plan.placement_kind != layout.placement_kind:
        violations.append(
            Violation(
                "placement_kind",
                f"the placement is '{layout.placement_kind}', the plan says "
                f"'{plan.placement_kind}'",
            )
        )
    reach = list(_reach_rules(problem, layout))
    if reach or warmup:
        return violations + reach, None
    protocols, protocol_rules = _protocols(problem, plan, layout)
    violations += protocol_rules
    if protocols is None:
        return violations, None
    return violations, layout._replace(protocols=protocols)


def _degrees_rules(problem: Problem, plan: Plan) -> Iterator[Violation]:
    model, training, degrees = problem.model, problem.training, plan.degrees
    if plan.tp not in space.tp_range(problem):
        yield Violation("tp.range", f"tp = {plan.tp} is not one of {space.tp_range(problem)}")
    elif not space.tp_legal(problem, plan.tp):
        stack = problem.instance.stack
        copies = (
            " or be a multiple of them"
            if stack.replicates_kv_heads
            else f" (stack '{stack.name}' does not replicate them)"
        )
        yield Violation(
            "tp.divides",
            f"tp = {plan.tp} must divide {model.num_heads} heads and the FFN width, and divide "
            f"{model.num_kv_heads} KV heads{copies}",
        )
    if plan.cp not in space.cp_range(problem):
        yield Violation("cp.range", f"cp = {plan.cp} is not one of {space.cp_range(problem)}")
    elif not space.cp_legal(problem, plan.cp):
        yield Violation(
            "cp.divides",
            f"2 * cp = {2 * plan.cp} must divide the sequence of {training.sequence_length}",
        )
    if plan.etp != 1:
        yield Violation("etp.range", f"etp = {plan.etp}, the plan space has etp = 1")
    if plan.ep not in space.ep_range(problem):
        yield Violation("ep.range", f"ep = {plan.ep} is not one of {space.ep_range(problem)}")
    if plan.pp not in space.pp_range(problem):
        yield Violation("pp.range", f"pp = {plan.pp} is not one of {space.pp_range(problem)}")
    if plan.virtual_stages not in space.VIRTUAL_STAGES:
        yield Violation("virtual_stages.range", f"virtual_stages = {plan.virtual_stages} > 8")
    if plan.pp * plan.virtual_stages > model.num_layers:
        yield Violation(
            "virtual_stages.layers",
            f"pp * virtual_stages = {plan.pp * plan.virtual_stages} exceeds "
            f"{model.num_layers} layers",
        )
    if plan.micro_batch_size not in space.MICRO_BATCH_SIZES:
        yield Violation(
            "micro_batch_size.range",
            f"micro_batch_size = {plan.micro_batch_size} is not one of {space.MICRO_BATCH_SIZES}",
        )
    if plan.dp_shard * plan.dp_replicate != plan.dp:
        yield Violation(
            "dp.product",
            f"dp_shard * dp_replicate = {plan.dp_shard * plan.dp_replicate} is not dp = {plan.dp}",
        )
    if problem.num_microbatches(degrees) != plan.num_microbatches:
        yield Violation(
            "batch",
            f"dp * micro_batch_size * num_microbatches = "
            f"{plan.dp * plan.micro_batch_size * plan.num_microbatches} is not the global batch "
            f"of {training.global_batch_size}",
        )
    if plan.gpus_used != degrees.gpus:
        yield Violation(
            "gpus_used",
            f"tp * cp * pp * dp = {degrees.gpus}, the plan says gpus_used = {plan.gpus_used}",
        )
    if degrees.gpus > problem.total_gpus:
        yield Violation("gpus", f"{degrees.gpus} GPUs are needed, there are {problem.total_gpus}")
    if not space.expert_groups_legal(degrees, model.num_experts):
        yield Violation(
            "ep.groups",
            f"ep * etp = {plan.ep * plan.etp} must divide dp * tp * cp = "
            f"{plan.dp * degrees.cell_gpus} and divide, or be a multiple of, "
            f"dp_shard * tp * cp = {plan.dp_shard * degrees.cell_gpus}",
        )
    if not space.sharding_legal(degrees, plan.sharding):
        yield Violation(
            "sharding.group",
            f"sharding '{plan.sharding}' does not go with dp_shard = {plan.dp_shard}, "
            f"cp = {plan.cp}: 'ddp' shards nothing, the others need something to shard over",
        )


def _schedule_rules(problem: Problem, plan: Plan) -> Iterator[Violation]:
    if plan.schedule not in SCHEDULES:
        yield Violation("schedule", f"unknown schedule '{plan.schedule}'")
        return
    schedule = SCHEDULES[plan.schedule]
    if not schedule.allows_chunks(plan.virtual_stages):
        yield Violation(
            "virtual_stages.schedule",
            f"schedule '{plan.schedule}' does not run with virtual_stages = {plan.virtual_stages}",
        )
    if schedule.has_run_length:
        legal = legal_run_lengths(plan.pp, plan.num_microbatches)
        if plan.run_length not in legal:
            yield Violation(
                "run_length",
                f"run_length = {plan.run_length}: with pp = {plan.pp} and "
                f"{plan.num_microbatches} microbatches it is one of {list(legal)}",
            )
    elif plan.run_length is not None:
        yield Violation("run_length", f"schedule '{plan.schedule}' has no run length")
    if len(plan.extra_warmup) != plan.pp:
        yield Violation(
            "extra_warmup.length",
            f"extra_warmup has {len(plan.extra_warmup)} entries for {plan.pp} stages",
        )
    elif any(plan.extra_warmup) and not schedule.has_extra_warmup:
        yield Violation("extra_warmup", f"schedule '{plan.schedule}' takes no extra warm-up")


def _shape_rules(problem: Problem, plan: Plan) -> Iterator[Violation]:
    chunks = plan.pp * plan.virtual_stages
    if len(plan.layers_per_stage) != chunks:
        yield Violation(
            "layers.length",
            f"layers_per_stage has {len(plan.layers_per_stage)} entries, "
            f"pp * virtual_stages = {chunks}",
        )
    if any(count < 1 for count in plan.layers_per_stage):
        yield Violation("layers.positive", "every stage and chunk has at least one layer")
    if sum(plan.layers_per_stage) != problem.model.num_layers:
        yield Violation(
            "layers.sum",
            f"layers_per_stage sums to {sum(plan.layers_per_stage)}, the model has "
            f"{problem.model.num_layers} layers",
        )
    for index, hosting in enumerate(plan.placement):
        if hosting.site not in problem.site_index:
            yield Violation("placement.site", f"placement[{index}]: no site '{hosting.site}'")
        if not hosting.first_stage <= hosting.last_stage < plan.pp:
            yield Violation(
                "placement.stages",
                f"placement[{index}]: stages {hosting.first_stage}..{hosting.last_stage} are not "
                f"within 0..{plan.pp - 1}",
            )
    if plan.schedule in SCHEDULES:
        boundaries = num_boundaries(plan.schedule, plan.pp, plan.virtual_stages)
        for index, flow in enumerate(plan.flows):
            for name in (flow.source, flow.target):
                if name not in problem.site_index:
                    yield Violation("flows.site", f"flows[{index}]: no site '{name}'")
            if flow.boundary >= boundaries:
                yield Violation(
                    "flows.boundary",
                    f"flows[{index}]: boundary {flow.boundary}, the plan has {boundaries}",
                )
            if flow.source == flow.target:
                yield Violation("flows.move", f"flows[{index}] stays at site '{flow.source}'")


def _replicas(problem: Problem, plan: Plan) -> tuple[tuple[tuple[int, ...], ...], list[Violation]]:
    grid = [[0] * len(problem.sites) for _ in range(plan.pp)]
    for hosting in plan.placement:
        for s in range(hosting.first_stage, hosting.last_stage + 1):
            grid[s][problem.site_index[hosting.site]] += hosting.replicas
    violations = [
        Violation("placement.replicas", f"stage {s} has {sum(row)} replicas, dp = {plan.dp}")
        for s, row in enumerate(grid)
        if sum(row) != plan.dp
    ]
    for d, site in enumerate(problem.sites):
        used, room = sum(row[d] for row in grid), problem.cells(d, plan.tp, plan.cp)
        if used > room:
            violations.append(
                Violation(
                    "placement.capacity",
                    f"site '{site.name}' holds {used} cells of {plan.tp * plan.cp} GPUs, "
                    f"it has room for {room}",
                )
            )
    return tuple(tuple(row) for row in grid), violations


def _flows(
    problem: Problem, plan: Plan, replicas: tuple[tuple[int, ...], ...]
) -> tuple[Flows | None, list[Violation]]:
    num_sites, violations = len(problem.sites), []
    result = []
    for b in range(num_boundaries(plan.schedule, plan.pp, plan.virtual_stages)):
        moves: dict[tuple[int, int], int] = {}
        for flow in plan.flows:
            if flow.boundary == b:
                pair = (problem.site_index[flow.source], problem.site_index[flow.target])
                moves[pair] = moves.get(pair, 0) + flow.replicas
        after = (b + 1) % plan.pp
        for d in range(num_sites):
            leaving = sum(r for (source, _), r in moves.items() if source == d)
            coming = sum(r for (_, target), r in moves.items() if target == d)
            stays = replicas[b][d] - leaving
            if stays < 0 or stays + coming != replicas[after][d]:
                violations.append(
                    Violation(
                        "flows.balance",
                        f"boundary {b}, site '{problem.sites[d].name}': {replicas[b][d]} replicas "
                        f"before, {leaving} leave, {coming} come, {replicas[after][d]} after",
                    )
                )
            elif stays:
                moves[d, d] = stays
        result.append(tuple((d, e, r) for (d, e), r in sorted(moves.items())))
    return (None if violations else tuple(result)), violations


def _group_rules(problem: Problem, layout: Layout) -> Iterator[Violation]:
    degrees = layout.degrees
    allowed = problem.search.shard_across_sites
    unit = space.granularity(degrees, spanning=allowed)
    for s, row in enumerate(layout.replicas):
        for d, count in enumerate(row):
            if count % unit:
                yield Violation(
                    "placement.groups",
                    f"stage {s} at site '{problem.sites[d].name}' has {count} replicas, whole "
                    f"shard and expert groups need a multiple of {unit}",
                )


def _warmup_rules(layout: Layout) -> Iterator[Violation]:
    extra = layout.extra_warmup
    if extra[-1] != 0:
        yield Violation("extra_warmup", "the last stage takes no extra warm-up")
    for b, (before, after) in enumerate(pairwise(extra)):
        step = before - after
        crosses = any(d != e for d, e, _ in layout.flows[b])
        if step < 0 or step > max(space.EXTRA_WARMUP) or (step and not crosses):
            yield Violation(
                "extra_warmup",
                f"extra_warmup falls from {before} to {after} at boundary {b}: it may fall by 0 to "
                f"{max(space.EXTRA_WARMUP)}, and only where replicas change site",
            )


def _reach_rules(problem: Problem, layout: Layout) -> Iterator[Violation]:
    pairs = {(d, e) for moves in layout.flows for d, e, _ in moves if d != e}
    pairs |= {(e, d) for d, e in pairs}
    for s in range(layout.degrees.pp):
        pairs |= set(sync_pairs(layout.hosts(s), layout.sync))
    allowed = problem.search.protocols
    how = "" if allowed is None else f" with one of the protocols {list(allowed)}"
    for d, e in sorted(pairs):
        if (d, e) not in problem.routes:
            source, target = problem.sites[d].name, problem.sites[e].name
            yield Violation("routes", f"no link joins '{source}' to '{target}'{how}")


def _protocols(
    problem: Problem, plan: Plan, layout: Layout
) -> tuple[dict[int, tuple[str, str]] | None, list[Violation]]:
    index = {(link.name, link.source, link.target): i for i, link in enumerate(problem.links)}
    violations: list[Violation] = []
    chosen: dict[int, dict[str, str]] = {}
    for n, choice in enumerate(plan.protocols):
        where = f"protocols[{n}]"
        link_index = index.get((choice.link, choice.source, choice.target))
        if link_index is None:
            violations.append(
                Violation(
                    "protocols.link",
                    f"{where}: no link '{choice.link}' from '{choice.source}' to '{choice.target}'",
                )
            )
            continue
        link = problem.links[link_index]
        rate = problem.transports[link_index].get(choice.protocol)
        if rate is None or not rate.available:
            reason = _refusal(problem, link_index, choice.protocol) if rate is None else rate.reason
            violations.append(
                Violation(
                    "protocols.allowed",
                    f"{where}: link '{choice.link}' cannot run '{choice.protocol}': {reason}",
                )
            )
        if (choice.traffic == "all") == link.per_class:
            classes = "'pp' and 'dp' apart" if link.per_class else "class 'all'"
            violations.append(
                Violation("protocols.class", f"{where}: link '{choice.link}' takes {classes}")
            )
        table = chosen.setdefault(link_index, {})
        for traffic in ("pp", "dp") if choice.traffic == "all" else (choice.traffic,):
            if traffic in table:
                violations.append(
                    Violation("protocols.once", f"{where}: '{traffic}' is chosen twice")
                )
            table[traffic] = choice.protocol
    pipeline, data = used_links(problem, layout.replicas, layout.flows, layout.sync)
    for traffic, links in (("pp", pipeline), ("dp", data)):
        for i in sorted(links):
            if traffic not in chosen.get(i, {}):
                link = problem.links[i]
                violations.append(
                    Violation(
                        "protocols.missing",
                        f"link '{link.name}' from '{link.source}' to '{link.target}' carries "
                        f"'{traffic}' traffic and has no protocol",
                    )
                )
    if violations:
        return None, violations
    return {i: (t.get("pp", ""), t.get("dp", "")) for i, t in chosen.items()}, []


def _refusal(problem: Problem, link: int, name: str) -> str:
    """Why a protocol is not among those of a directed link."""
    cluster = problem.instance.cluster
    protocol = cluster.known_protocols.get(name)
    if protocol is None:
        return "no protocol has that name"
    return refusal(protocol, cluster.links[link // 2]) or "it is not allowed there"


def _search_rules(problem: Problem, plan: Plan) -> Iterator[Violation]:
    for name, allowed in problem.search.restrictions().items():
        if name == "extra_warmup":
            steps = [a - b for a, b in zip(plan.extra_warmup, plan.extra_warmup[1:], strict=False)]
            bad = [step for step in steps if step not in (*allowed, 0)]
            value: object = bad[0] if bad else None
            good = not bad
        else:
            value = getattr(plan, name)
            good = value in allowed or (name == "run_length" and value is None)
        if not good:
            yield Violation(
                f"search.{name}", f"{name} = {value} is not among {list(allowed)} of the instance"
            )
    protocols = problem.search.protocols
    for n, choice in enumerate(plan.protocols):
        if protocols is not None and choice.protocol not in protocols:
            yield Violation(
                "search.protocols",
                f"protocols[{n}]: '{choice.protocol}' is not among {list(protocols)} of the "
                "instance",
            )
    fixed = problem.search.fixed_layers_per_stage
    if fixed is not None and tuple(fixed) != plan.layers_per_stage:
        yield Violation("search.fixed_layers_per_stage", f"layers_per_stage must be {list(fixed)}")
