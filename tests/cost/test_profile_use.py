"""How many products of a plan were measured, and which fell back to the constants."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from planner.check import check_plan
from planner.instance import Instance, load_instance
from planner.plan import Plan, parse_plan
from planner.report.text import render_check, render_solve
from planner.search.solve import solve
from tests.fake_search import tiny_plan

LAYER = (
    (1024, 1536, 512),
    (1024, 512, 512),
    (1024, 4096, 512),
    (1024, 512, 2048),
    (1024, 8, 512),
)
"""Products of both kinds of layer of ``tiny`` with one sequence per microbatch, m × n × k.

QKV of 24 heads of 64, the output, both products of the dense block, and the router.
"""
EXPERTS = ((1024 * 2 // 8, 4096, 512, 8), (1024 * 2 // 8, 512, 2048, 8))
"""Products of eight experts: each gets two copies of a token in eight."""
HEAD = (1024, 32000, 512)


def measured(*products: tuple[int, ...], site: int = 1, precision: str = "bf16") -> Instance:
    """The tiny instance with measured products at a site."""
    document = load_instance("tiny").model_dump(mode="json", by_alias=True)
    document["cluster"]["sites"][site]["gpu"]["profile"] = {
        "products": [
            {
                "precision": precision,
                **dict(zip(("m", "n", "k", "groups"), shape, strict=False)),
                "time_s": 1e-3,
            }
            for shape in products
        ]
    }
    return load_instance(document)


def uses(instance: Instance, plan: Plan) -> Any:
    """What the report on a plan says of profiles."""
    return check_plan(instance, plan).to_json().get("profile")


def shape(entry: dict[str, Any]) -> tuple[float, ...]:
    """A listed shape."""
    return entry["m"], entry["n"], entry["k"], entry["groups"]


def test_nothing_is_said_without_measured_products() -> None:
    assert uses(load_instance("tiny"), tiny_plan()) is None
    assert uses(measured(), tiny_plan()) is None


def test_a_profile_of_a_site_that_the_plan_leaves_out_says_nothing() -> None:
    assert uses(measured(LAYER[0], site=0), tiny_plan()) is None


def test_products_are_counted_and_the_others_listed() -> None:
    plan = tiny_plan()
    assert (plan.tp, plan.cp, plan.ep, plan.micro_batch_size) == (1, 1, 1, 1)
    every = {(*s, 1) for s in (*LAYER, HEAD)} | set(EXPERTS)
    held = LAYER[0], EXPERTS[1], (7, 7, 7)
    (entry,) = uses(measured(*held), plan)
    assert (entry["gpu"], entry["sites"]) == ("H100", ["h100-node"])
    assert (entry["products"], entry["measured"]) == (len(every), 2)
    left = sorted(every - {(*LAYER[0], 1), EXPERTS[1]})
    assert [shape(p) for p in entry["defaults"]] == left[:5]
    assert {p["precision"] for p in entry["defaults"]} == {"bf16"}


def test_a_wholly_measured_plan_and_one_of_another_precision() -> None:
    (entry,) = uses(measured(*LAYER, HEAD, *EXPERTS), tiny_plan())
    assert (entry["products"], entry["measured"], entry["defaults"]) == (8, 8, [])
    (entry,) = uses(measured(*LAYER, HEAD, *EXPERTS, precision="fp16"), tiny_plan())
    assert entry["measured"] == 0


def test_a_site_counts_what_its_stages_run() -> None:
    """The head runs on the last stage alone."""
    plan = tiny_plan()
    assert plan.pp == 2
    halves = [
        {"site": "h100-node", "first_stage": 0, "last_stage": 0, "replicas": plan.dp},
        {"site": "a100-node", "first_stage": 1, "last_stage": 1, "replicas": plan.dp},
    ]
    ends = "h100-node", "a100-node"
    document = plan.to_json() | {
        "placement": halves,
        "placement_kind": "pp-out",
        "flows": [{"boundary": 0, "from": ends[0], "to": ends[1], "replicas": plan.dp}],
        "protocols": [
            {
                "link": "a100-node--h100-node",
                "from": source,
                "to": target,
                "class": "all",
                "protocol": "rdma_ecmp",
            }
            for source, target in (ends, ends[::-1])
        ],
    }
    split = parse_plan(document)
    assert check_plan(load_instance("tiny"), split).feasible
    (first,) = uses(measured(HEAD, site=1), split)
    assert (first["gpu"], first["products"], first["measured"]) == ("H100", 7, 0)
    (last,) = uses(measured(HEAD, site=0), split)
    assert (last["gpu"], last["products"], last["measured"]) == ("A100-40", 8, 1)


def test_the_time_follows_the_measurement() -> None:
    plan = tiny_plan()
    before = check_plan(load_instance("tiny"), plan).time_us
    after = check_plan(measured(HEAD), plan).time_us
    assert before is not None
    assert after is not None
    # The head's product, a millisecond in place of a few µs, runs in every microbatch.
    assert after > before + 2500 * plan.num_microbatches


def rendered(render: Any, *arguments: Any) -> str:
    console = Console(file=io.StringIO(), width=80, markup=False, highlight=False)
    render(*arguments, console)
    assert isinstance(console.file, io.StringIO)
    return " ".join(console.file.getvalue().split())


def test_the_report_tells_what_fell_back() -> None:
    plan = tiny_plan()
    text = rendered(render_check, check_plan(measured(*LAYER[1:], *EXPERTS[1:]), plan))
    assert "H100 at h100-node 5 of 8 matrix products measured; by the constants:" in text
    assert "bf16 8 of 256 × 4096 × 512" in text
    assert "more" not in text.partition("by the constants")[2]
    text = rendered(render_check, check_plan(measured(LAYER[0]), plan))
    assert "1 of 8 matrix products measured" in text
    assert "and 2 more" in text
    text = rendered(render_check, check_plan(load_instance("tiny"), plan))
    assert "matrix products" not in text


@pytest.mark.parametrize("held", [(), (HEAD, *LAYER, *EXPERTS)])
def test_the_solve_document_tells_it_too(held: tuple[tuple[int, ...], ...]) -> None:
    document = measured((5, 5, 5), *held).model_dump(mode="json", by_alias=True)
    document["search"] = {"tp": 1, "cp": 1, "ep": 1, "pp": 1, "dp": 8, "micro_batch_size": 1}
    document["search"] |= {"schedule": "1f1b", "placement_kind": "single-site"}
    document["cluster"]["sites"][0]["num_gpus"] = 4
    document["cluster"]["sites"][0]["gpus_per_node"] = 4
    instance = load_instance(document)
    result = solve(instance, workers=1)
    assert result.plan is not None
    said = result.to_json()["provenance"]["profile"]
    assert said == check_plan(instance, result.plan).to_json()["profile"]
    assert [(entry["sites"], entry["measured"]) for entry in said] == [
        (["h100-node"], len(held)),
    ]
    assert "matrix products measured" in rendered(render_solve, result)
