"""From a row's fields to the plan that it describes."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from planner.validation import defaults
from planner.validation.gpus import gpu_of
from planner.validation.rows import Run
from planner.validation.setup import Setup, SkippedRunError, layer_split, setup_run

ROW: dict[str, Any] = {
    "id": "one",
    "source": "a test",
    "stack": "megatron-core",
    "table": "26.02 NeMo Container",
    "model": {
        "name": "Llama",
        "layers": 32,
        "hidden": 4096,
        "heads": 32,
        "kv_heads": 8,
        "head_dim": 128,
        "ffn": 14336,
        "gated": True,
        "vocab": 128256,
        "seq": 8192,
    },
    "hardware": {"gpu": "H100", "gpus": 64, "inter_bw": "400 Gb/s RDMA per GPU"},
    "parallel": {
        "tp": 2,
        "cp": 1,
        "pp": 4,
        "dp": 8,
        "vp": 2,
        "sp": True,
        "schedule": "interleaved 1F1B",
        "mbs": 1,
        "gbs": 128,
        "precision": "BF16",
        "recompute": "none",
        "zero": "DDP (distributed optimizer per recipe)",
    },
}


def row(**changes: dict[str, Any] | str | None) -> Run:
    fields = copy.deepcopy(ROW)
    for key, value in changes.items():
        if isinstance(value, dict):
            fields[key] = fields.get(key, {}) | value
        else:
            fields[key] = value
    return Run.model_validate(fields)


def setup(**changes: dict[str, Any] | str | None) -> Setup:
    return setup_run(row(**changes))


def test_a_complete_row_assumes_nothing() -> None:
    found = setup()
    layout = found.layout
    assert found.assumed == ()
    assert layout.degrees == (2, 1, 1, 1, 4, 2, 1, 8, 8)
    assert found.problem.num_microbatches(layout.degrees) == 16
    assert layout.schedule == "interleaved"
    assert layout.run_length == 4
    assert layout.option == ("zero1", True, "none", False)
    assert layout.layers == (4,) * 8
    assert found.problem.instance.stack.name == "megatron-core"


def test_what_follows_is_inferred() -> None:
    assert setup(parallel={"dp": None}).layout.degrees.dp == 8
    assert setup(parallel={"pp": None}).layout.degrees.pp == 4
    assert setup(parallel={"gbs": None, "ga": 16}).problem.training.global_batch_size == 128


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"stack": "deepscale"}, "unknown stack 'deepscale'"),
        ({"stack": None}, "names no stack"),
        ({"hardware": {"gpu": "TPUv5"}}, "unknown GPU 'TPUv5'"),
        ({"hardware": {"gpus": 63}}, "but there are 63 GPUs"),
        ({"parallel": {"pp": None, "dp": None}}, "pp is not stated"),
        ({"parallel": {"gbs": 100}}, "no multiple of dp\\*mbs = 8"),
        ({"parallel": {"gbs": None}}, "the global batch is not stated"),
        ({"parallel": {"ep": 8}}, "ep = 8 does not divide 0 experts"),
        ({"parallel": {"recompute": "some"}}, "unknown recompute 'some'"),
        ({"parallel": {"zero": "magic"}}, "unknown sharding 'magic'"),
        ({"parallel": {"precision": "INT4"}}, "unknown precision 'INT4'"),
        ({"parallel": {"schedule": "gpipe"}}, "vp = 2 does not fit schedule 'gpipe'"),
        ({"parallel": {"schedule": "ZBV", "vp": 4}}, "vp = 4 does not fit"),
        ({"model": {"heads": 33, "kv_heads": 33}}, "tp = 2 does not divide the heads 33"),
        ({"model": {"ffn": 14335}}, "tp = 2 does not divide the FFN width 14335"),
        ({"model": {"layers": 5}}, "8 chunks for 5 layers and two ends"),
        ({"parallel": {"cp": 2, "dp": 4}, "model": {"seq": 8190}}, "no multiple of 2\\*cp = 4"),
        ({"parallel": {"etp": 2}}, "etp = 2, but the model has no experts"),
        ({"parallel": {"gbs": 800_000}}, "more than 300000: too large to price"),
        ({"parallel": {"schedule": "Hanayo", "vp": None}}, "'Hanayo' is not in the plan space"),
        ({"model": {"hidden": None}}, "hidden size is not stated"),
        ({"model": {"seq": None}}, "the sequence length is not stated"),
        ({"note": "LoRA Performance"}, "adapters only"),
        ({"parallel": {"precision": "NVFP4"}}, "H100 has no nvfp4 peak"),
    ],
)
def test_rows_that_cannot_be_predicted_say_why(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(SkippedRunError, match=reason):
        setup(**changes)


def test_null_fields_take_the_defaults_of_the_stack() -> None:
    open_fields = {"recompute": None, "zero": None, "cp": None, "precision": None, "sp": None}
    core = setup(parallel=open_fields)
    assert core.layout.option == ("zero1", True, "none", False)
    assert set(core.assumed) == {
        "cp = 1",
        "precision = BF16",
        "recompute = none",
        "sequence parallelism = True",
        "sharding = zero1",
    }
    assert setup(stack="Megatron-Core").problem.instance.stack.name == "megatron-core"
    bare = setup(parallel={"schedule": None, "vp": None}, hardware={"inter_bw": None})
    assert set(bare.assumed) == {
        "Gb/s of network a GPU (data sheet) = 400",
        "schedule = 1f1b",
        "vp = 1",
    }
    old = setup(stack="megatron-2021", hardware={"gpu": "A100"}, parallel=open_fields)
    assert old.layout.option == ("ddp", False, "none", False)
    assert old.layout.degrees.dp_shard == 1
    assert old.problem.training.precision == "fp16"


def test_sequence_parallelism_of_the_row_replaces_that_of_the_stack() -> None:
    assert setup().problem.instance.stack.sequence_parallel
    assert not setup(parallel={"sp": False}).problem.instance.stack.sequence_parallel


def test_torchtitan_splits_the_local_batch_over_the_pipeline() -> None:
    found = setup(
        stack="torchtitan",
        table="Table 5",
        parallel={
            "mbs": 16,
            "gbs": 128,
            "vp": None,
            "schedule": "1F1B",
            "zero": "FSDP2 (ZeRO-3 like) degree 8",
        },
    )
    assert found.layout.degrees.micro_batch_size == 4
    assert found.problem.num_microbatches(found.layout.degrees) == 4
    assert found.layout.option.sharding == "zero1"
    assert any(text.startswith("microbatch size") for text in found.assumed)


@pytest.mark.parametrize(
    ("layers", "chunks", "mtp", "split"),
    [
        (32, 8, 0, (4,) * 8),
        (126, 64, 0, (1, *(2,) * 62, 1)),
        (126, 128, 0, (0, *(1,) * 126, 0)),
        (94, 24, 0, (3, *(4,) * 22, 3)),
        (61, 16, 1, (4, *(4,) * 14, 1)),
        (3, 2, 0, (2, 1)),
        (5, 3, 0, (2, 2, 1)),
    ],
)
def test_layer_splits(layers: int, chunks: int, mtp: int, split: tuple[int, ...]) -> None:
    found = layer_split(layers, chunks, mtp)
    assert found == split
    assert sum(found) == layers


@pytest.mark.parametrize("layers", [1, 2, 3, 7, 61, 94, 126])
@pytest.mark.parametrize("chunks", [1, 2, 3, 8, 16, 64, 128])
@pytest.mark.parametrize("mtp", [0, 1, 2])
def test_layer_splits_place_every_layer(layers: int, chunks: int, mtp: int) -> None:
    split = layer_split(layers, chunks, mtp)
    assert len(split) == chunks
    assert sum(split) == layers
    assert min(split) >= 0


@pytest.mark.parametrize(
    ("text", "name", "gib"),
    [
        ("A100_40GB", "A100-40", 40),
        ("A100-80GB SXM", "A100-80", 80),
        ("A100", "A100-80", 80),
        ("H100_80GB", "H100", 80),
        ("H100-96GB HBM2e 500W (Grand Teton)", "H100-96", 96),
        ("GH200 (Alps, 4 per node)", "GH200", 96),
        ("B200-SXM", "B200", 180),
    ],
)
def test_gpu_wordings(text: str, name: str, gib: int) -> None:
    found = gpu_of(text)
    assert found is not None
    assert found["name"] == name
    assert found["memory_bytes"] == f"{gib} GiB"


@pytest.mark.parametrize(
    ("text", "gbps"),
    [
        ("8x200 Gb/s HDR InfiniBand per node", 200),
        ("4x200 Gb/s HDR = 800 Gb/s per node (vTrain config)", 100),
        ("1600 Gb/s RoCE per node (A100)", 200),
        ("400 Gb/s RDMA per GPU", 400),
        ("RoCE RDMA", None),
    ],
)
def test_network_wordings(text: str, gbps: float | None) -> None:
    assert defaults.nic_gbps_of(text, 8) == gbps


@pytest.mark.parametrize(
    ("changes", "stack"),
    [
        ({"table": "25.11 NeMo Container"}, "megatron-core-25"),
        ({"table": "26.04.01 NeMo Container"}, "megatron-core"),
        ({"table": "26.06.01 NeMo Container"}, "megatron-core-26.06"),
        ({"table": "27.02 NeMo Container"}, "megatron-core-26.06"),
        ({"table": "maxtext/README_70b.md FP8"}, "jax"),
        ({"stack": "torchtitan", "note": "2D + AsyncTP"}, "torchtitan-async-tp"),
        ({"stack": "torchtitan", "note": "vanilla TP"}, "torchtitan"),
        ({"stack": "megatron-2021", "note": "DeepSpeed ZeRO-3 alone"}, "deepspeed-2021"),
    ],
)
def test_software_versions_refine_the_stack(changes: dict[str, Any], stack: str) -> None:
    assert defaults.stack_of(row(**changes)) == stack


@pytest.mark.parametrize(
    ("text", "sharding", "group"),
    [
        ("DDP", "ddp", None),
        ("DDP (distributed optimizer per recipe)", "zero1", None),
        ("ZeRO-1 (distributed optimizer)", "zero1", None),
        ("FSDP SHARD_GRAD_OP (ZeRO-2)", "zero2", None),
        ("FSDP FULL_SHARD (ZeRO-3)", "zero3", None),
        ("FSDP(ZeRO-3) shard group=64", "zero3", 64),
        ("FSDP2 (ZeRO-3 like) degree 32", "zero3", 32),
        ("FSDP over ici 8 x dcn 16 (=128), replicated x16 (HSDP)", "zero3", 128),
    ],
)
def test_sharding_wordings(text: str, sharding: str, group: int | None) -> None:
    assert defaults.sharding_of(text) == sharding
    assert defaults.shard_group_of(text) == group
