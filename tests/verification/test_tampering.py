"""Every kind of tampering with a solve document or its instance is refused, by the right rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from planner.instance import InputError, load_instance
from planner.instance.fixes import with_fixes
from planner.verification.verify import verify
from tests.verification.conftest import FIXES, Solved

Document = dict[str, Any]
Change = Callable[[Document], object]


def entries(document: Document, **wanted: object) -> Iterator[Document]:
    """Entries of the certificate whose fields have these values."""
    for entry in document["certificate"]["cases"]:
        if all(entry.get(name) == value for name, value in wanted.items()):
            yield entry


def first(document: Document, **wanted: object) -> Document:
    """The first of them; there must be one."""
    return next(entries(document, **wanted))


def time_us(document: Document) -> int:
    return round(document["iteration_time_s"] * 1e6)


def entry_set(name: str, value: object, **wanted: object) -> Change:
    return lambda d: first(d, **wanted).update({name: value})


def bound_raised(by_us: int, **wanted: object) -> Change:
    def change(document: Document) -> None:
        entry = first(document, **wanted)
        entry["bound_us"] += by_us

    return change


def plan_set(name: str, value: object) -> Change:
    return lambda d: d["plan"].update({name: value})


def top_set(name: str, value: object) -> Change:
    return lambda d: d.update({name: value})


def instance_set(*path: str | int, value: object) -> Change:
    def change(document: Document) -> None:
        place: Any = document["provenance"]["instance"]
        for part in path[:-1]:
            place = place[part]
        place[path[-1]] = value

    return change


def better_value(document: Document) -> None:
    """A smaller time, consistent in all claims but the breakdown and the plan."""
    document["iteration_time_s"] = document["lower_bound_s"] = (time_us(document) - 1) / 1e6


def bound_below_the_plan(document: Document) -> None:
    first(document, verdict="bounded")["bound_us"] = time_us(document) - 1


def dropped(document: Document) -> None:
    document["certificate"]["cases"].remove(first(document, verdict="solved"))


def dropped_with_its_count(document: Document) -> None:
    gone = first(document, verdict="bounded")
    document["certificate"]["cases"].remove(gone)
    document["certificate"]["cases_total"] -= gone["cases"]


def duplicated(document: Document) -> None:
    document["certificate"]["cases"].append(first(document, verdict="bounded"))


def swapped_for_another(document: Document) -> None:
    """One case dropped and another of the same size twice: the sizes still add up."""
    cases = document["certificate"]["cases"]
    singles = [entry for entry in cases if entry["cases"] == 1]
    singles[0]["box"] = singles[1]["box"]


def value_dropped_from_a_box(document: Document) -> None:
    for entry in entries(document):
        for values in entry["box"].values():
            if values is not None and len(values) > 1:
                values.pop()
                return
    raise AssertionError("no box of several values")


def value_added_to_a_box(name: str, value: int) -> Change:
    return lambda d: first(d)["box"][name].append(value)


def value_doubled(document: Document) -> None:
    box = first(document, verdict="infeasible")["box"]
    box["pp"] = box["pp"] * 2


def every_multiplier(change: Callable[[str], str], field: str) -> Change:
    """Alter the rows of every set of multipliers."""

    def changed(document: Document) -> None:
        for table in document["certificate"]["templates"]:
            for multipliers in table["multipliers"]:
                multipliers[field] = change(multipliers[field])

    return changed


def numbers(text: str) -> list[list[int]]:
    return [[int(number) for number in row.split()] for row in text.split(",")]


def rows_text(rows: list[list[int]]) -> str:
    return ", ".join(" ".join(map(str, row)) for row in rows)


def negative(text: str) -> str:
    return rows_text([[*row[:-1], -row[-1]] for row in numbers(text)])


def one_negative(text: str) -> str:
    """A path that binds is counted more, another less than not at all: the sum stays 1."""
    rows = numbers(text)
    return rows_text([*rows, [*rows[0][:-1], -rows[0][-1] // 2]])


def last_path_everywhere(text: str) -> str:
    return rows_text([[10**6, *row[1:]] for row in numbers(text)])


def no_path(_text: str) -> str:
    return ""


def huge_least(_text: str) -> str:
    return "0 -99999999999999999"


def flags_beyond(text: str) -> str:
    return rows_text([[row[0], 2, *row[2:]] for row in numbers(text)])


def witnesses(change: Callable[[Document], Document]) -> Change:
    def changed(document: Document) -> None:
        for table in document["certificate"]["templates"]:
            table["paths"] = [change(path) for path in table["paths"]]

    return changed


def templates_dropped(document: Document) -> None:
    document["certificate"]["templates"] = []


def of_another_template(document: Document) -> None:
    for table in document["certificate"]["templates"]:
        table["num_microbatches"] *= 2


def first_path_of_many(document: Document) -> None:
    """Every path is taken for one that only a single stage binds."""
    for table in document["certificate"]["templates"]:
        common = table["any_warmup"]
        table["paths"] = [
            {"common": "own", "stage": 0} if common else {"durations": "0x999"}
            for _ in table["paths"]
        ]


def overfull(document: Document) -> None:
    for hosting in document["plan"]["placement"]:
        hosting["site"] = "h100-node"
    document["plan"]["flows"] = []
    document["plan"]["protocols"] = []
    document["plan"]["placement_kind"] = "single-site"


def protocol(document: Document) -> None:
    document["plan"]["protocols"][0]["protocol"] = "carrier_pigeon"


def grade(document: Document) -> None:
    document["certificate"]["grade"] = "re-derived"


def opened(document: Document) -> None:
    """A case without a verdict, and the claim of a proof all the same."""
    entry = first(document, verdict="solved")
    entry.update(verdict="open", bound_us=entry["bound_us"] - 1000)


def unnamed(document: Document) -> None:
    del first(document, verdict="solved")["engine"]


def cbc_alone(document: Document) -> None:
    first(document, verdict="solved").update(engine="cbc 2.10.3", trusted=False)


def cbc_contradicted(document: Document) -> None:
    second = {"engine": "cbc 2.10.3", "status": "OPTIMAL", "agrees": False}
    first(document, verdict="solved")["second"] = second


def infeasible_for(rule: str, **wanted: object) -> Change:
    def change(document: Document) -> None:
        entry = first(document, **wanted)
        box, cases = entry["box"], entry["cases"]
        entry.clear()
        entry.update(box=box, cases=cases, verdict="infeasible", rule=rule)

    return change


def bounded_instead(document: Document) -> None:
    """The winner's case, bounded above the winner."""
    plan = document["plan"]
    names = ("ep", "pp", "virtual_stages", "dp", "dp_shard")
    for entry in entries(document, verdict="solved"):
        if all(entry["box"][name] == [plan[name]] for name in names):
            case = {"box": entry["box"], "cases": 1, "verdict": "bounded", "rule": "time"}
            entry.clear()
            entry.update(case, bound_us=time_us(document) + 1)
            return
    raise AssertionError("the winner's case is not among the solved ones")


TAMPERINGS: dict[str, tuple[Change, str]] = {
    # what is claimed of the plan
    "better value": (better_value, "iteration_time_s"),
    "worse value": (top_set("iteration_time_s", 1.0), "iteration_time_s"),
    "no value": (top_set("iteration_time_s", None), "iteration_time_s"),
    "breakdown": (lambda d: d["breakdown"].update(compute=0.0), "breakdown"),
    "breakdown dropped": (top_set("breakdown", None), "breakdown"),
    "memory row": (lambda d: d["memory"][0].update(peak_bytes=1), "memory_rows"),
    "memory row dropped": (lambda d: d["memory"].pop(), "memory_rows"),
    "throughput": (top_set("tokens_per_s", 1e12), "tokens_per_s"),
    "MFU": (top_set("mfu", 0.99), "mfu"),
    "bound raised": (top_set("lower_bound_s", 1.0), "lower_bound_s"),
    "bound dropped": (top_set("lower_bound_s", None), "lower_bound_s"),
    "bound lowered under a gap of 0": (top_set("lower_bound_s", 0.001), "gap"),
    "gap": (top_set("gap", 0.5), "gap"),
    "status infeasible": (top_set("status", "INFEASIBLE"), "status"),
    "status unknown": (top_set("status", "PROVEN"), "status"),
    "plan dropped": (top_set("plan", None), "iteration_time_s"),
    "contradiction hidden in OPTIMAL": (
        lambda d: d["provenance"].update(errors=["the engines disagree"]),
        "status",
    ),
    # the plan itself
    "site overfilled": (overfull, "placement.capacity"),
    "replicas": (lambda d: d["plan"]["placement"][0].update(replicas=8), "placement.replicas"),
    "unknown site": (lambda d: d["plan"]["placement"][0].update(site="moon"), "placement.site"),
    "protocol not allowed": (protocol, "protocols.allowed"),
    "protocol dropped": (lambda d: d["plan"]["protocols"].pop(), "protocols.missing"),
    "flow dropped": (plan_set("flows", []), "flows.balance"),
    "layers": (plan_set("layers_per_stage", [1, 1, 1]), "layers.sum"),
    "microbatches": (plan_set("num_microbatches", 5), "batch"),
    "dp_shard": (plan_set("dp_shard", 3), "dp.product"),
    "GPUs used": (plan_set("gpus_used", 1), "gpus_used"),
    "sharding": (plan_set("sharding", "ddp"), "sharding.group"),
    "schedule": (plan_set("schedule", "interleaved"), "virtual_stages.schedule"),
    "placement kind": (plan_set("placement_kind", "dp-out"), "placement_kind"),
    "extra warm-up": (plan_set("extra_warmup", [9, 9, 0]), "extra_warmup"),
    "tp outside the search": (plan_set("tp", 2), "search.tp"),
    # the instance
    "instance: batch": (
        instance_set("training", "global_batch_size", value=16),
        "instance",
    ),
    "instance: GPUs of a site": (
        instance_set("cluster", "sites", 0, "num_gpus", value=16),
        "instance",
    ),
    "instance: bandwidth": (
        instance_set("cluster", "links", 0, "bandwidth_gbps", value=101),
        "instance",
    ),
    "instance: search": (instance_set("search", "pp", value=[2]), "instance"),
    "instance: model": (instance_set("model", "num_layers", value=7), "instance"),
    "instance: broken": (instance_set("model", "num_layers", value=-1), "instance"),
    # the partition
    "case dropped": (dropped, "partition.missing"),
    "case dropped, total with it": (dropped_with_its_count, "cases_total"),
    "box duplicated": (duplicated, "partition.overlap"),
    "case swapped for another": (swapped_for_another, "partition.overlap"),
    "value dropped from a box": (value_dropped_from_a_box, "partition.missing"),
    "pp outside the space": (value_added_to_a_box("pp", 5), "partition.values"),
    "tp outside the space": (value_added_to_a_box("tp", 2), "partition.values"),
    "dp outside the space": (value_added_to_a_box("dp", 3), "partition.values"),
    "value twice in a box": (value_doubled, "partition.values"),
    "size of a box": (entry_set("cases", 10**6, verdict="bounded"), "partition.cases"),
    "cases_total": (lambda d: d["certificate"].update(cases_total=1), "cases_total"),
    # verdicts
    "bound by work raised": (bound_raised(10**6, rule="work"), "bound"),
    "bound by time raised": (bound_raised(10**6, rule="time"), "bound"),
    "bound by paths raised": (bound_raised(10**6, rule="paths"), "bound"),
    "bound below the plan": (bound_below_the_plan, "bound"),
    "bound dropped from a verdict": (entry_set("bound_us", None, verdict="bounded"), "bound"),
    "rule unknown": (entry_set("rule", "luck", verdict="bounded"), "rule"),
    "infeasible by an unknown rule": (entry_set("rule", "luck", verdict="infeasible"), "rule"),
    "infeasible by another rule": (
        entry_set("rule", "tp.divides", rule="virtual_stages.layers"),
        "infeasible",
    ),
    "bounded turned infeasible by memory": (
        infeasible_for("memory", verdict="bounded"),
        "infeasible",
    ),
    "solved turned infeasible by capacity": (
        infeasible_for("placement.capacity", verdict="solved"),
        "infeasible",
    ),
    "solved turned infeasible by groups": (
        infeasible_for("ep.groups", verdict="solved"),
        "infeasible",
    ),
    "infeasible with a bound": (entry_set("bound_us", 1, verdict="infeasible"), "infeasible"),
    "the winner's case bounded away": (bounded_instead, "bound"),
    "solved better than the plan": (entry_set("value_us", 1, verdict="solved"), "solved"),
    "solved with a low bound": (entry_set("bound_us", 1, verdict="solved"), "bound"),
    "solved by a bound": (entry_set("rule", "work", verdict="solved"), "rule"),
    "no verdict": (opened, "status"),
    "engine unnamed": (unnamed, "engine"),
    "engine of whole layers unnamed": (entry_set("engine", "", rule="layers"), "engine"),
    "CBC alone": (cbc_alone, "engine"),
    "CP-SAT not trusted": (entry_set("trusted", False, verdict="solved"), "engine"),
    "second engine disagrees": (cbc_contradicted, "engine"),
    "grade raised": (grade, "grade"),
    "grade unknown": (lambda d: d["certificate"].update(grade="gold"), "grade"),
    # multipliers and paths
    "weights negative": (every_multiplier(negative, "rows"), "multipliers"),
    "one weight negative": (every_multiplier(one_negative, "rows"), "multipliers"),
    "weights dropped": (every_multiplier(no_path, "rows"), "multipliers"),
    "paths that are not there": (every_multiplier(last_path_everywhere, "rows"), "multipliers"),
    "start that is neither": (every_multiplier(flags_beyond, "rows"), "multipliers"),
    "memory weight negative": (every_multiplier(huge_least, "memory"), "multipliers"),
    "least weight negative": (every_multiplier(huge_least, "least"), "multipliers"),
    "memory row that is not there": (
        every_multiplier(lambda _: "999999 1", "memory"),
        "multipliers",
    ),
    "memory weights altered": (every_multiplier(lambda _: "0 99999999999999", "memory"), "bound"),
    "least weights altered": (every_multiplier(lambda _: "0 9999999999999999", "least"), "bound"),
    "witness durations missing": (first_path_of_many, "multipliers"),
    "witness negative": (witnesses(lambda _: {"durations": "-1"}), "multipliers"),
    "witness of extra warm-up": (
        witnesses(lambda _: {"common": "there and back", "stage": 99}),
        "multipliers",
    ),
    "templates dropped": (templates_dropped, "bound"),
    "multipliers of another template": (of_another_template, "bound"),
}


def test_there_are_enough() -> None:
    assert len(TAMPERINGS) >= 50


def test_the_document_is_accepted(solved: Solved) -> None:
    found = verify(solved.instance, solved.document)
    assert found.violations == ()
    assert found.accepted
    assert found.time_us == found.bound_us == time_us(solved.document)
    assert sum(found.cases_by_evidence.values()) == found.cases_total


@pytest.mark.parametrize("name", TAMPERINGS)
def test_tampering_is_refused(name: str, solved: Solved) -> None:
    change, rule = TAMPERINGS[name]
    document = solved.document
    change(document)
    assert document != solved.document
    found = verify(solved.instance, document)
    assert not found.accepted
    assert rule in {violation.rule for violation in found.violations}, found.violations


@pytest.mark.parametrize("fixes", [FIXES[:-1], (*FIXES, "pp=1"), FIXES[1:]])
def test_the_document_of_another_search_is_refused(fixes: tuple[str, ...], solved: Solved) -> None:
    instance = with_fixes(load_instance("tiny"), fixes)
    assert verify(instance, solved.document).violations[0].rule == "instance"


def test_less_memory_is_refused(solved: Solved) -> None:
    """Stage memory exceeded: instance and document agree, the plan no longer fits."""
    document = solved.document
    changed = document["provenance"]["instance"]
    for site in changed["cluster"]["sites"]:
        site["memory_limit_bytes"] = 1 << 28
    found = verify(load_instance(changed), document)
    assert {violation.rule for violation in found.violations} == {"memory"}


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda d: d.pop("certificate"), "certificate"),
        (lambda d: d["certificate"].pop("cases"), "certificate.cases"),
        (lambda d: first(d)["box"].pop("tp"), "certificate.cases"),
        (lambda d: first(d).update(verdict="won"), "certificate.cases"),
        (lambda d: first(d).update(extra=1), "certificate.cases"),
        (lambda d: d["provenance"].pop("instance"), "provenance.instance"),
        (lambda d: d["plan"].pop("tp"), "plan.tp"),
        (every_multiplier(lambda _: "a b", "least"), "certificate.templates"),
    ],
)
def test_what_is_no_solve_document_is_bad_input(change: Change, where: str, solved: Solved) -> None:
    document = solved.document
    change(document)
    with pytest.raises(InputError) as refused:
        verify(solved.instance, document)
    assert str(refused.value).startswith(where)
