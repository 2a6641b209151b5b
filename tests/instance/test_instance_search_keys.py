"""The keys ``gpus_used`` and ``protocols`` of ``search``: loading, fixing, enforcing, counting."""

from __future__ import annotations

import pytest

from planner.check import check_plan
from planner.instance import load_instance
from planner.instance.errors import InputError
from planner.instance.fixes import with_fixes
from planner.layout import to_plan
from planner.problem import Problem
from tests.brute_force import count_layouts, enumerate_layouts
from tests.random_instances import random_instance


def test_both_can_be_fixed_by_name() -> None:
    instance = with_fixes(load_instance("tiny"), ("gpus_used=8", "protocols=rdma_spray"))
    assert instance.search.gpus_used == (8,)
    assert instance.search.protocols == ("rdma_spray",)
    assert instance.search.restrictions() == {"gpus_used": (8,)}
    problem = Problem(instance)
    assert set(problem.protocols) == {("rdma_spray",)}
    assert problem.routes


@pytest.mark.parametrize(
    ("fix", "place", "reason"),
    [
        ("gpus_used=17", "--fix gpus_used", "17 is more than the 16 GPUs"),
        ("gpus_used=0", "--fix gpus_used", "from 1 to"),
        ("protocols=rdma_spry", "--fix protocols", "unknown protocol"),
    ],
)
def test_values_that_no_plan_can_take_are_refused(fix: str, place: str, reason: str) -> None:
    with pytest.raises(InputError) as caught:
        with_fixes(load_instance("tiny"), (fix,))
    assert caught.value.path == place
    assert reason in caught.value.reason


def test_a_link_without_an_allowed_protocol_is_no_route() -> None:
    tiny = load_instance("tiny")
    link = tiny.cluster.links[0].model_copy(update={"protocols": ("tcp_bbr",)})
    cluster = tiny.cluster.model_copy(update={"links": (link,)})
    tiny = tiny.model_copy(update={"cluster": cluster})
    assert Problem(tiny).routes
    assert not Problem(with_fixes(tiny, ("protocols=rdma_spray",))).routes
    assert Problem(with_fixes(tiny, ("protocols=tcp_bbr",))).routes


@pytest.mark.parametrize("seed", [0, 6])
def test_the_checker_and_the_count_agree(seed: int) -> None:
    """What remains of the space are the plans that the checker accepts of the whole one."""
    instance = random_instance(seed)
    problem = Problem(instance)
    layouts = list(enumerate_layouts(instance))
    sizes = sorted({layout.degrees.gpus for layout in layouts})
    names = sorted(
        {name for layout in layouts for pair in layout.protocols.values() for name in pair}
    )
    narrowed = with_fixes(instance, (f"gpus_used={sizes[-1]}", f"protocols={names[0]}"))
    rest = [
        layout
        for layout in layouts
        if layout.degrees.gpus == sizes[-1]
        and all(set(pair) <= {names[0], ""} for pair in layout.protocols.values())
    ]
    assert rest
    assert count_layouts(narrowed) == len(rest)
    for layout in layouts[:: max(1, len(layouts) // 60)]:
        report = check_plan(narrowed, to_plan(problem, layout))
        rules = {violation.rule for violation in report.violations}
        used = {choice.protocol for choice in to_plan(problem, layout).protocols}
        assert ("search.gpus_used" in rules) == (layout.degrees.gpus != sizes[-1])
        assert ("search.protocols" in rules) == bool(used - {names[0]})
