"""Loading: shipped names, files, malformed input, arbitrary documents."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.huge_instance import huge_instance
from planner.instance import InputError, Instance, load_instance, shipped_names
from planner.instance.schema import json_schema

MALFORMED = Path(__file__).resolve().parents[1] / "malformed"
MANIFEST: dict[str, str] = json.loads((MALFORMED / "manifest.json").read_text(encoding="utf-8"))

SHIPPED = {
    "dense-17b-2-buildings": ("dense-17b", 2048, 8192, [1024] * 2),
    "llama-405b-4-buildings": ("llama3.1-405b", 2048, 8192, [4096] * 4),
    "moe-400b-5-buildings": ("llama4-maverick", 8192, 8192, [20000] * 5),
    "deepseek-v3-3-sites": ("deepseek-v3", 15360, 4096, [768, 768, 512]),
    "llama-405b-4-regions": ("llama3.1-405b", 2048, 8192, [4096] * 4),
    "moe-1t-8-sites": (
        "moe-1t",
        16384,
        8192,
        [32768, 24576, 20480, 16384, 16384, 8192, 8192, 4096],
    ),
    "nemotron-340b-1000km": ("nemotron-4-340b", 2304, 4096, [1536] * 2),
    "mixtral-8x7b-mixed-gpus": ("mixtral-8x7b", 1024, 4096, [64, 128]),
    "tiny": ("tiny-moe", 8, 1024, [8, 8]),
    "infeasible-memory": ("llama3.1-405b", 256, 8192, [16, 16]),
}


def test_shipped_names() -> None:
    assert set(shipped_names()) == {*SHIPPED, "huge-64-sites"}


def test_the_huge_instance_is_what_its_generator_writes() -> None:
    shipped = Path(__file__).resolve().parents[2] / "instances/huge-64-sites.json"
    assert json.loads(shipped.read_text(encoding="utf-8")) == huge_instance()
    instance = load_instance("huge-64-sites")
    sizes = [site.num_gpus for site in instance.cluster.sites]
    assert sum(sizes) == 1_000_000
    assert len(set(sizes)) == 64
    assert len(instance.cluster.hubs) == 4
    assert "search" not in instance.model_fields_set


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_instances(name: str) -> None:
    model, batch, length, gpus = SHIPPED[name]
    instance = load_instance(name)
    assert instance == load_instance(f"{name}.json")
    assert instance.name == name
    assert instance.model.name == model
    assert instance.training.global_batch_size == batch
    assert instance.training.sequence_length == length
    assert [site.num_gpus for site in instance.cluster.sites] == gpus
    assert instance.search.restrictions() == {}
    assert "search" not in instance.model_fields_set


def test_every_malformed_file_is_listed() -> None:
    assert set(MANIFEST) == {path.name for path in MALFORMED.glob("*.json")} - {"manifest.json"}
    assert len(MANIFEST) >= 45


def refusal(source: Any) -> InputError:
    with pytest.raises(InputError) as caught:
        load_instance(source)
    assert "\n" not in str(caught.value)
    str(caught.value).encode()
    return caught.value


@pytest.mark.parametrize("name", MANIFEST)
def test_malformed_files(name: str) -> None:
    assert MANIFEST[name] in str(refusal(MALFORMED / name))


def test_files_that_are_not_read(tmp_path: Path) -> None:
    assert "is a directory" in str(refusal(tmp_path))
    large = tmp_path / "large.json"
    with large.open("wb") as file:
        file.truncate(100 * 10**6)
    assert "larger than 10 MiB" in str(refusal(large))
    assert "no such file" in str(refusal(tmp_path / "absent.json"))
    assert refusal("dense-17b-2-building").suggestion == "dense-17b-2-buildings"
    assert "the path is empty" in str(refusal(""))
    refusal("nul\0byte")
    refusal("x" * 5000)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "not a regular file" in str(refusal(pipe))


@pytest.mark.parametrize("source", [None, 5, [], 1.5, b"tiny"])
def test_sources_of_the_wrong_type(source: Any) -> None:
    refusal(source)


def test_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    text = json.dumps(load_instance("tiny").model_dump(by_alias=True))
    file = tmp_path / "bom.json"
    file.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert load_instance(file) == load_instance("tiny")


def load(document: Any) -> None:
    """Loads, or raises ``InputError`` with one line; nothing else."""
    try:
        loaded: Instance | None = load_instance(document)
        line = ""
    except InputError as error:
        loaded, line = None, str(error)
    assert isinstance(loaded, Instance) != bool(line)
    assert "\n" not in line
    line.encode()


def keys(schema: Any) -> set[str]:
    if isinstance(schema, dict):
        own = set(schema.get("properties", {}))
        return own.union(*(keys(value) for value in schema.values()))
    if isinstance(schema, list):
        return set().union(*(keys(value) for value in schema))
    return set()


KEYS = sorted(keys(json_schema()) | {"preset", "model_type", "architectures", "text_config"})
WORDS = [
    "H100",
    "torchtitan",
    "fp8_rowwise",
    "llama3-8b",
    "a",
    "b",
    "400 Gb/s",
    "3 km",
    "1f1b",
    "ecmp",
    "llama",
    "1:4",
]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(WORDS)
)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), inner, max_size=5)
    ),
    max_leaves=20,
)


@given(JSON)
@settings(max_examples=200, deadline=None)
def test_any_document(document: Any) -> None:
    load(document)


def places(value: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values inside a document."""
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    found = []
    for key, inner in items:
        found += [(*prefix, key), *places(inner, (*prefix, key))]
    return found


VALID: dict[str, Any] = json.loads(
    load_instance("tiny")
    .model_copy(update={"description": "every key"})
    .model_dump_json(by_alias=True)
)
VALID["cluster"]["sites"][0]["gpu"]["profile"] = {
    "source": "measured",
    "efficiency": {
        "bf16": {
            "gemm": 0.7,
            "grouped_gemm": 0.5,
            "attention": 0.4,
            "memory": 0.8,
            "m0": 1,
            "n0": 2,
            "s0": 3,
            "launch_s": 1e-6,
        }
    },
    "products": [
        {"precision": "bf16", "m": 1, "n": 2, "k": 3, "groups": 4, "time_s": 1e-3},
        {"precision": "bf16", "m": 1, "n": 2, "k": 3, "time_s": 1e-3},
    ],
}
PLACES = places(VALID)


@given(st.sampled_from(PLACES), JSON, st.sampled_from(["set", "drop", "add"]), st.text(max_size=6))
@settings(max_examples=400, deadline=None)
def test_any_change_to_a_valid_document(
    place: tuple[Any, ...], value: Any, action: str, key: str
) -> None:
    document = json.loads(json.dumps(VALID))
    parent = document
    for step in place[:-1]:
        parent = parent[step]
    if action == "drop":
        del parent[place[-1]]
    elif action == "add" and isinstance(parent, dict):
        parent[key] = value
    else:
        parent[place[-1]] = value
    load(document)


def test_the_document_that_is_changed_loads() -> None:
    assert load_instance(VALID).cluster.sites[0].gpu.profile is not None


@given(st.binary(max_size=200))
@settings(max_examples=100, deadline=None)
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    file = tmp_path_factory.mktemp("bytes") / "instance.json"
    file.write_bytes(data)
    load(file)
