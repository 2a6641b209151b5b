"""The table of a sweep folder, who wins where, and the fronts."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.instance.errors import InputError
from planner.report.sweeps.front import front
from planner.report.sweeps.table import SweepRow, read_sweep
from planner.report.sweeps.winners import categories_of, winners
from tests.report.documents import OVERSUBSCRIPTION, VARIANTS, campus, write_sweep


def test_the_table_knows_the_place_of_every_row(tmp_path: Path) -> None:
    table = read_sweep(campus(tmp_path))
    assert [d.title for d in table.dimensions] == ["oversubscription (n:1)", "microbatches"]
    assert table.dimensions[0].labels == ("1", "4", "16")
    assert table.dimensions[0].axes[0].numbers == (1.0, 4.0, 16.0)
    assert (len(table.rows), table.num_points) == (18, 18)
    assert table.unrestricted == {"free"}
    row = table.by_place()[2, 0][1]
    assert (row.variant, row.time_s, row.bound_s, row.gpus) == ("dp-out", 1.5, 1.5, 64)
    assert row.text("plan_schedule") == "1f1b"
    failed = table.by_place()[2, 1][1]
    assert (failed.time_s, failed.gpus, failed.text("status")) == (None, None, "TIMEOUT")


def test_axes_that_move_together_are_one_dimension(tmp_path: Path) -> None:
    axes = [
        {"name": "layers", "values": [8, 16]},
        {"name": "width", "values": [[1], [2]], "labels": ["narrow", "wide"]},
        {"name": "sites", "values": [2, 3]},
    ]
    times = {(i, i, k): {"free": 1.0 + i + k} for i in (0, 1) for k in (0, 1)}
    table = read_sweep(write_sweep(tmp_path, axes, {"free": {}}, times))
    assert [d.title for d in table.dimensions] == ["layers / width", "sites"]
    assert table.dimensions[0].labels == ("8 / narrow", "16 / wide")
    assert [row.place for row in table.rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("iteration_time_s", "time", "results.csv: the column iteration_time_s is missing"),
        ("axis_microbatches", "axis_other", "the column axis_microbatches is missing"),
        ("\n0,free,1,2,", "\n0,free,1,3,", "line 2: '3' is no value of axis microbatches"),
        ("\n0,free,1,2,", "\nzero,free,1,2,", "line 2: point 'zero' is no whole number"),
        ("OPTIMAL,1.0,", "OPTIMAL,soon,", "line 2: iteration_time_s 'soon' is no number"),
        ("\n0,free,1,2,", "\n0,free,1,2,more,", "line 2 has another number of columns"),
    ],
)
def test_a_wrong_table_is_one_clear_line(tmp_path: Path, old: str, new: str, told: str) -> None:
    path = campus(tmp_path) / "results.csv"
    text = path.read_bytes().decode().replace("\r\n", "\n")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(InputError, match=r"results\.csv") as caught:
        read_sweep(tmp_path)
    assert told in str(caught.value)


def test_a_folder_of_something_else_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no sweep folder: it has no sweep\.json"):
        read_sweep(tmp_path)
    (campus(tmp_path) / "sweep.json").write_text('{"axes": [{"name": "a"}]}', encoding="utf-8")
    with pytest.raises(InputError, match=r"sweep\.json\.axes\[0\]\.values"):
        read_sweep(tmp_path)


def test_winners_margins_and_what_is_proven(tmp_path: Path) -> None:
    table = read_sweep(campus(tmp_path))
    found = {winner.place: winner for winner in winners(table, "variant")}
    assert {place: winner.label for place, winner in found.items()} == {
        (0, 0): "dp-out",
        (1, 0): "dp-out",
        (2, 0): "pp-out",
        (0, 1): "dp-out",
        (1, 1): "dp-out",
        (2, 1): "pp-out",
    }
    margins = [found[place].margin for place in ((0, 0), (1, 0), (2, 0), (0, 1), (1, 1))]
    assert margins == pytest.approx([0.2, 0.05, 0.5, 0.1, 0.0])
    assert found[2, 1].margin is None
    # (1, 0): the bound of pp-out lies below the winner; (2, 1): dp-out was not solved.
    assert {place for place, winner in found.items() if not winner.proven} == {(1, 0), (2, 1)}


def test_plans_count_for_what_they_chose_in_every_variant(tmp_path: Path) -> None:
    table = read_sweep(campus(tmp_path))
    assert categories_of(table) == ["variant", "placement", "schedule"]
    found = {winner.place: winner for winner in winners(table, "placement")}
    assert found[2, 0].label == "pp-out"
    assert found[2, 0].rival is not None
    assert (found[2, 0].rival.variant, found[2, 0].margin) == ("dp-out", 0.5)


def test_a_variant_without_restriction_takes_part_against_a_single_other(tmp_path: Path) -> None:
    two = {name: VARIANTS[name] for name in ("free", "pp-out")}
    times = {(i,): {"free": 1.0, "pp-out": 1.25} for i in range(3)}
    table = read_sweep(write_sweep(tmp_path, [OVERSUBSCRIPTION], two, times))
    assert {(w.label, w.margin) for w in winners(table, "variant")} == {("free", 0.25)}


@given(
    st.lists(
        st.tuples(st.integers(1, 6), st.one_of(st.none(), st.integers(1, 6).map(float))),
        max_size=20,
    )
)
def test_the_front_is_what_no_row_beats(points: list[tuple[int, float | None]]) -> None:
    rows = [
        SweepRow(i, (), "free", {"iteration_time_s": time_s, "plan_gpus_used": gpus})
        for i, (gpus, time_s) in enumerate(points)
    ]
    kept = front(rows)
    known = [(g, t) for g, t in points if t is not None]
    best = {
        (g, t)
        for g, t in known
        if not any(h <= g and u <= t and (h, u) != (g, t) for h, u in known)
    }
    assert [(row.gpus, row.time_s) for row in kept] == sorted(best)


def test_axes_that_change_the_work_are_known(tmp_path: Path) -> None:
    axes = [{"name": "batch", "values": [1, 2]}, {"name": "delay", "values": [1, 2]}]
    places = [(i, k) for i in (0, 1) for k in (0, 1)]
    times = {place: {"free": 0.7 + place[0] + place[1] / 3} for place in places}
    plans = {
        (place, "free"): {"tokens_per_s": 4096 * (1 + place[0]) / times[place]["free"]}
        for place in places
    }
    table = read_sweep(write_sweep(tmp_path, axes, {"free": {}}, times, plans=plans))
    assert table.workload_dimensions() == [0]
    assert read_sweep(campus(tmp_path / "other")).workload_dimensions() == []
