"""The sweep file: values of axes, what is refused and with which words."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from fake_points import small

from planner.instance.errors import InputError
from planner.sweeps.load import load_sweep, shipped_sweeps
from planner.sweeps.points import expand
from planner.sweeps.schema import Axis

ROOT = Path(__file__).resolve().parents[2]


def axis(**keys: Any) -> Axis:
    return Axis.model_validate({"name": "a", "fix": "pp", **keys})


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"values": [3, "x", True]}, (3, "x", True)),
        ({"range": {"start": 1, "stop": 2, "step": 0.25}}, (1, 1.25, 1.5, 1.75, 2)),
        ({"range": {"start": 0, "stop": 1, "step": 0.1}}, (0, *(i / 10 for i in range(1, 10)), 1)),
        ({"range": {"start": 8, "stop": 2, "step": -3}}, (8, 5, 2)),
        ({"range": {"start": 1, "stop": 10, "step": 4}}, (1, 5, 9)),
        ({"range": {"start": 2, "stop": 4, "num": 3}}, (2, 3, 4)),
        ({"range": {"start": 2, "stop": 4, "num": 1}}, (2,)),
        ({"log": {"start": 1, "stop": 16, "num": 5}}, (1, 2, 4, 8, 16)),
        ({"log": {"start": 1, "stop": 10, "num": 3}}, (1, 3.16228, 10)),
        ({"log": {"start": 1, "stop": 8, "num": 8, "integer": True}}, (1, 2, 3, 4, 6, 8)),
        ({"log": {"start": 5, "stop": 9, "num": 1}}, (5,)),
    ],
)
def test_values_of_an_axis(values: dict[str, Any], expected: tuple[Any, ...]) -> None:
    found = axis(**values).points
    assert found == expected
    assert [type(value) for value in found] == [type(value) for value in expected]


def refused(change: dict[str, Any] | None = None, **top: Any) -> str:
    document = small(**top)
    if change is not None:
        document["axes"][0].update(change)
    with pytest.raises(InputError) as error:
        expand(load_sweep(document))
    return str(error.value)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"valeus": [1]}, "axes[0].valeus: unknown key (did you mean 'values'?)"),
        ({"name": "a b"}, "axes[0].name: expected a name of 1 to 60 letters, digits, _ and -"),
        ({"values": []}, "axes[0].values: expected at least 1 entry, got 0"),
        ({"values": [1, 1]}, "axes[0].values[1]: 1 is given twice"),
        ({"values": [[1]]}, "axes[0].values[0]: a list needs labels"),
        ({"labels": ["x"]}, "axes[0].labels: 1 labels for 4 values"),
        ({"log": {"start": 1, "stop": 2, "num": 2}}, "axes[0]: give exactly one of values, range"),
        ({"values": None}, "axes[0]: give exactly one of values, range, log; got none"),
        ({"set": None}, "axes[0]: give set (paths) or fix (plan choices)"),
        ({"fix": "schedul"}, "axes[0].fix[0]: no choice of a plan has this name (did you mean"),
        ({"zip": []}, "axes[0].zip: expected at least 2 entry, got 0"),
        (
            {"values": None, "range": {"start": 1, "stop": 2, "step": -1}},
            "axes[0].range.step: steps of -1 never lead to stop",
        ),
        (
            {"values": None, "log": {"start": 0, "stop": 2, "num": 2}},
            "axes[0].log.start: expected a number above 0",
        ),
        (
            {"set": "cluster.links[*].bandwith_gbps"},
            "cluster.links[0].bandwith_gbps: unknown key (did you mean 'bandwidth_gbps'?)",
        ),
        (
            {"set": "clutser.links[*].loss"},
            "clutser.links[*].loss: an instance has no such field (did you mean 'cluster'?)",
        ),
        (
            {"set": "cluster.links[a100-node--h100-nod].loss"},
            "cluster.links has no entry 'a100-node--h100-nod' (did you mean 'a100-node--h100-node'",
        ),
        ({"set": "cluster.links[1].loss"}, "cluster.links has 1 entries, counted from 0"),
        ({"set": "cluster..links"}, "expected a path such as cluster.links[*].bandwidth_gbps"),
        (
            {"values": [50, -1]},
            "axes[0] bandwidth = -1: cluster.links[0].bandwidth_gbps: ",
        ),
    ],
)
def test_a_wrong_axis_is_one_clear_line(change: dict[str, Any], line: str) -> None:
    assert line in refused(change)


@pytest.mark.parametrize(
    ("top", "line"),
    [
        ({"axis": []}, "axis: unknown key (did you mean 'axes'?)"),
        ({"instance": "tinny"}, "instance (tinny): no such file"),
        ({"variants": {}}, "variants: expected at least one variant"),
        ({"variants": {"a": {"fix": {"p": 1}}}}, "variants.a.fix.p: no choice of a plan"),
        (
            {"variants": {"good": {}, "bad": {"fix": {"pp": 5}}}},
            "variants.bad: search.pp[0]: 5 is not among the pipeline degrees",
        ),
        ({"limits": {"memory_bytes": "1 MiB"}}, "limits.memory_bytes: "),
        ({"limits": {"wall_time_s": 0}}, "limits.wall_time_s: expected a number above 0"),
        ({"set": {"cluster.links[*].los": 1}}, "cluster.links[0].los: unknown key (did you mean"),
        ({"axes": [{"range": 1}]}, "axes[0].range: "),
    ],
)
def test_a_wrong_sweep_is_one_clear_line(top: dict[str, Any], line: str) -> None:
    assert line in refused(**top)


def test_a_zip_needs_equal_lengths_and_own_names() -> None:
    one = {"name": "a", "fix": "pp", "values": [1, 2]}
    other = {"name": "b", "fix": "dp", "values": [1]}
    assert "axes[0].zip[1]: has 1 values, zip[0] has 2" in refused(axes=[{"zip": [one, other]}])
    twice = copy.deepcopy(one)
    assert "axes[1].name: the name 'a' is taken by axes[0]" in refused(axes=[one, twice])


def test_paths_are_relative_to_the_sweep_file(tmp_path: Path) -> None:
    job = json.loads((ROOT / "instances" / "tiny.json").read_text(encoding="utf-8"))
    (tmp_path / "job.json").write_text(json.dumps(job), encoding="utf-8")
    (tmp_path / "sweep.json").write_text(json.dumps(small(instance="job.json")), encoding="utf-8")
    assert len(expand(load_sweep(tmp_path / "sweep.json"))) == 8
    with pytest.raises(InputError, match="no such file and no shipped sweep"):
        load_sweep(tmp_path / "swep.json")


def test_the_shipped_sweeps_are_those_of_the_documentation() -> None:
    assert set(shipped_sweeps()) == {
        "dense-17b-full-space",
        "dense-17b-oversubscription",
        "ecmp-spraying-loss-distance",
        "moe-experts-oversubscription",
        "schedules-oversubscription-delay",
    }


@pytest.mark.parametrize("name", shipped_sweeps())
def test_shipped_sweeps_expand(name: str) -> None:
    points = expand(load_sweep(name))
    assert len({point.key for point in points}) == len(points) >= 150
    assert not [point.refusal for point in points if point.refusal]
    readme = (ROOT / "instances" / "README.md").read_text(encoding="utf-8")
    assert f"`{name}`" in readme
