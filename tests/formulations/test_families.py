"""Every constraint family of the plain model is needed, and says what it should."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import pytest

from formulations.algebra import linear_sum
from formulations.cuts import CutPool
from formulations.plain import PlainModel, build_plain
from planner.backends import Engine, EnginePool, SolveStatus
from planner.check import durations_of_layout, memory_of_layout
from planner.choices import CaseChoices
from planner.instance.schema import Instance
from planner.layout import Layout
from planner.pipeline.event_graph import Duration
from planner.search.longest import longest_us
from tests.formulations.case_models import Converged, choices_of, two_sites
from tests.random_instances import random_instance

Case = tuple[int, tuple[int, ...]]
"""Seed of a random instance, and a degrees case."""

LIMITED: Case = (0, (1, 1, 2, 1, 2, 1, 1, 2, 2))
UNEQUAL: Case = (1, (1, 1, 1, 1, 2, 1, 1, 2, 2))
LONG_PATHS: Case = (4, (1, 2, 1, 1, 2, 1, 1, 2, 1))
MIXED: Case = (6, (1, 1, 1, 1, 2, 1, 2, 2, 1))
SPANNING: Case = (17, (1, 1, 1, 1, 2, 1, 1, 4, 4))
WARMED: Case = (37, (1, 1, 1, 1, 2, 1, 1, 4, 4))

SHOWN_BY: dict[str, Case] = {
    "choose_once": UNEQUAL,
    "layers": UNEQUAL,
    "hosts": UNEQUAL,
    "placement": SPANNING,
    "capacity": LIMITED,
    "spanning": SPANNING,
    "flow_links": LIMITED,
    "flows": LIMITED,
    "pairs": MIXED,
    "warmup": WARMED,
    "placement_kind": MIXED,
    "unions": UNEQUAL,
    "op_durations": UNEQUAL,
    "transfers": LIMITED,
    "link_sharing": LIMITED,
    "sync_sharing": MIXED,
    "exchange": MIXED,
    "optimizer": UNEQUAL,
    "inside_sync": UNEQUAL,
    "exposed": UNEQUAL,
    "hidden": MIXED,
    "memory": LIMITED,
    "pipeline": UNEQUAL,
    "paths": LONG_PATHS,
}
"""For every family a case whose optimum is another one without it."""


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """One warm CP-SAT."""
    with EnginePool() as pool:
        yield pool.engine("cp-sat")


@lru_cache
def choices_of_case(case: Case) -> CaseChoices:
    """What a case leaves open."""
    seed, degrees = case
    return choices_of(random_instance(seed), degrees)


@pytest.fixture(scope="module")
def converged(engine: Engine) -> dict[Case, Converged]:
    """The cases that have been solved."""
    return {}


@pytest.mark.parametrize("family", SHOWN_BY)
def test_the_optimum_needs_every_family(
    family: str, engine: Engine, converged: dict[Case, Converged]
) -> None:
    """Without a family the same case has another optimum."""
    case = SHOWN_BY[family]
    if case not in converged:
        choices = choices_of_case(case)
        rough = Converged(engine, choices, longest_us(choices))
        converged[case] = Converged(engine, choices, rough.time_us * 11 // 10)
    assert converged[case].fault_without(family) == "value"


def test_every_family_is_covered() -> None:
    """The families of the models are those that the table names."""
    families: set[str] = set()
    for case in dict.fromkeys(SHOWN_BY.values()):
        choices = choices_of_case(case)
        families |= set(build_plain(choices, CutPool(), longest_us(choices)).model.families())
    assert families | {"paths"} == set(SHOWN_BY)


def solved(engine: Engine, instance: Instance, degrees: tuple[int, ...]) -> Layout:
    """The best plan of a case of a hand-made instance."""
    choices = choices_of(instance, degrees)
    found = Converged(engine, choices, longest_us(choices))
    assert found.fault_of(found.layout, found.time_us) == ""
    return found.layout


def built(instance: Instance, degrees: tuple[int, ...]) -> PlainModel:
    """The model of a case of a hand-made instance, without paths."""
    choices = choices_of(instance, degrees)
    return build_plain(choices, CutPool(), longest_us(choices))


def least(engine: Engine, model: PlainModel, duration: Duration) -> int:
    """The smallest value that a model allows for a duration."""
    model.model.minimize(model.variables.duration[duration])
    result = engine.solve(model.model)
    assert result.status is SolveStatus.OPTIMAL and result.objective is not None
    return result.objective


@pytest.mark.parametrize("pp", [1, 2, 3, 4])
def test_layers_sum_to_the_model(engine: Engine, pp: int) -> None:
    """Every stage has a layer, and all layers have a stage."""
    layout = solved(engine, two_sites((4, 4), layers=5), (1, 1, 1, 1, pp, 1, 1, 1, 1))
    assert min(layout.layers) >= 1
    assert sum(layout.layers) == 5


@pytest.mark.parametrize("kind", ["single-site", "dp-out", "pp-out", "mixed"])
def test_only_the_allowed_kind_of_placement(engine: Engine, kind: str) -> None:
    """The plan is of the one kind that is allowed, and replicas flow from where they are."""
    instance = two_sites((4, 4), placement_kind=kind, schedule="1f1b", recompute="none")
    layout = solved(engine, instance, (1, 1, 1, 1, 2, 1, 1, 2, 1))
    assert layout.placement_kind == kind
    for boundary, flow in enumerate(layout.flows):
        for d in range(2):
            assert sum(r for a, _, r in flow if a == d) == layout.replicas[boundary][d]
            assert sum(r for _, e, r in flow if e == d) == layout.replicas[boundary + 1][d]


def test_no_site_is_overfull(engine: Engine) -> None:
    """Three cells here and five there hold two stages of four replicas only together."""
    layout = solved(engine, two_sites((3, 5)), (1, 1, 1, 1, 2, 1, 1, 4, 1))
    assert [sum(row[d] for row in layout.replicas) for d in range(2)] == [3, 5]
    choices = choices_of(two_sites((3, 4)), (1, 1, 1, 1, 2, 1, 1, 4, 1))
    model = build_plain(choices, CutPool(), longest_us(choices)).model
    assert engine.solve(model).status is SolveStatus.INFEASIBLE


def test_whole_shard_groups_at_a_site(engine: Engine) -> None:
    """Shard groups of two do not fit into sites of one and three cells, replicas do."""
    for shard, feasible in ((1, True), (2, False)):
        model = built(two_sites((1, 3)), (1, 1, 1, 1, 1, 1, 1, 4, shard)).model
        status = engine.solve(model).status
        assert status is (SolveStatus.OPTIMAL if feasible else SolveStatus.INFEASIBLE)


def test_extra_warmup_only_where_a_replica_changes_site(engine: Engine) -> None:
    """Over a slow boundary 1F1B runs ahead; at one site it cannot."""
    search = {"schedule": "1f1b", "recompute": "none"}
    degrees = (1, 1, 1, 1, 2, 1, 1, 1, 1)
    far = {"layers": 4, "batch": 16, "gbps": 400, "delay_s": 5e-3}
    ahead = solved(engine, two_sites((1, 1), **far, **search), degrees)
    assert ahead.placement_kind == "pp-out"
    assert ahead.extra_warmup[0] > 0 == ahead.extra_warmup[1]
    home = solved(engine, two_sites((2, 1), **far, **search), degrees)
    assert home.placement_kind == "single-site"
    assert home.extra_warmup == (0, 0)
    model = built(two_sites((2, 2), placement_kind="single-site", **far, **search), degrees)
    runs_ahead = [literal for step, literal in model.variables.warmup[0].items() if step]
    model.model.add(runs_ahead[0] >= 1, family="test")
    assert engine.solve(model.model).status is SolveStatus.INFEASIBLE


def test_replicas_share_a_link(engine: Engine) -> None:
    """Two replicas that cross a link need twice the slot of one."""
    slots = []
    for dp in (1, 2, 4):
        instance = two_sites((dp, dp), batch=4, gbps=1, placement_kind="pp-out")
        model = built(instance, (1, 1, 1, 1, 2, 1, 1, dp, 1))
        co = model.variables.co
        unit = min(
            (co.crossing(0, p) for p in model.variables.problem.protocols[0]),
            key=lambda rate: rate.us(1000),
        )
        slot = least(engine, model, Duration("occupancy", (0, 1)))
        assert slot == max(unit.us(dp), co.cell(0, 1))
        slots.append(slot)
    assert slots[1] == pytest.approx(2 * slots[0], abs=2)
    assert slots[2] == pytest.approx(4 * slots[0], abs=4)


@pytest.mark.parametrize("sync", ["hierarchical", "flat"])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("gbps", [1, 300, 1500])
def test_exchanges_of_the_stages_queue_as_in_the_checker(
    sync: str, overlap: bool, gbps: float, engine: Engine
) -> None:
    """One plan: the least times of every stage are those that the checker computes."""
    instance = two_sites(
        (3, 3),
        gbps=gbps,
        placement_kind="dp-out",
        schedule="1f1b",
        sync=sync,
        overlap=overlap,
        recompute="none",
        sharding="ddp",
        extra_warmup=0,
        protocols="tcp_bbr",
        fixed_layers_per_stage=[1, 2, 1],
    )
    degrees = (1, 1, 1, 1, 3, 1, 1, 2, 1)
    model, layout = built(instance, degrees), solved(engine, instance, degrees)
    v = model.variables
    durations = durations_of_layout(v.problem, v.co, layout)
    ops = [Duration(kind, k) for kind in ("F", "B") for k in range(3)]
    ends = [Duration(kind, s) for kind in ("start", "end") for s in range(3)]
    model.model.minimize(
        linear_sum([2 * v.duration[key] for key in ops] + [v.duration[key] for key in ends])
    )
    result = engine.solve(model.model)
    assert result.status is SolveStatus.OPTIMAL and result.values is not None
    for key in ops + ends:
        assert result.values[v.duration[key].index] == durations[key], key
    if gbps == 1:
        queue = [durations[Duration("end", s)] for s in range(3)]
        assert queue[2] > queue[1] > queue[0]


def test_memory_is_exact_to_the_mebibyte(engine: Engine) -> None:
    """The case is feasible at the least need of a plan, and not with one MiB less."""
    degrees = (1, 1, 1, 1, 2, 1, 1, 1, 1)
    search = {"schedule": "1f1b", "recompute": "full", "fixed_layers_per_stage": [2, 2]}
    roomy = two_sites((2, 1), **search)
    choices = choices_of(roomy, degrees)
    layout = solved(engine, roomy, degrees)._replace(extra_warmup=(0, 0))
    need = max(row.peak_mib for row in memory_of_layout(choices.problem, choices.co, layout))
    for limit, status in ((need, SolveStatus.OPTIMAL), (need - 1, SolveStatus.INFEASIBLE)):
        tight = two_sites((2, 1), memory_limit=limit << 20, **search)
        assert engine.solve(built(tight, degrees).model).status is status
