"""From a row to the problem and the plan that it describes.

Only what the other fields of the row imply is inferred; whatever is taken from the documented
defaults of its stack is listed as assumed.  Nothing here looks at measured fields.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from planner.cost.coefficients import Option
from planner.instance import catalog
from planner.instance.errors import first_input_error, one_line
from planner.instance.schema import Instance
from planner.layout import Layout, num_boundaries
from planner.pipeline.schedules import SCHEDULES, legal_run_lengths
from planner.plan import Degrees, Recompute, Sharding
from planner.problem import Problem
from planner.validation import defaults
from planner.validation.gpus import gpu_of
from planner.validation.rows import Run, RunParallel

T = TypeVar("T")


MOST_CHUNK_PASSES = 300_000
"""Largest ``pp * v * m`` that is priced: its event graph takes some seconds."""


class SkippedRunError(Exception):
    """A row that cannot be predicted; its text says why, in one line."""

    def __init__(self, reason: str) -> None:
        super().__init__(one_line(reason))


def too_large(chunk_passes: int) -> str:
    """Why a pipeline of so many passes of microbatches through chunks is not priced."""
    return f"pp*v*m = {chunk_passes} is more than {MOST_CHUNK_PASSES}: too large to price"


class Setup(NamedTuple):
    """A row as the planner sees it.

    ``assumed`` names each field that the row left open, with the value taken.
    """

    problem: Problem
    layout: Layout
    assumed: tuple[str, ...]


def setup_run(run: Run) -> Setup:
    """The problem and the layout of a row.

    Raises
    ------
    SkippedRunError
        If the row lacks something that does not follow, or describes no possible run.
    """
    return _Reader(run).setup()


def named_schedule(parallel: RunParallel) -> str:
    """The schedule of the plan space that a row's wording and ``vp`` mean.

    Raises
    ------
    SkippedRunError
        If the plan space does not hold it.
    """
    found = defaults.schedule_of(parallel.schedule or "", parallel.vp or 1)
    if found is None:
        raise SkippedRunError(f"schedule '{parallel.schedule}' is not in the plan space")
    return found


class _Reader:
    def __init__(self, run: Run) -> None:
        self.run = run
        self.model, self.parallel, self.hardware = run.model, run.parallel, run.hardware
        self.assumed: list[str] = []
        wording = defaults.stack_of(run)
        if wording is None:
            raise SkippedRunError("the row names no stack")
        stack = catalog.canonical("stacks", wording)
        if stack is None:
            known = ", ".join(catalog.names("stacks"))
            raise SkippedRunError(f"unknown stack '{wording[:60]}'; known: {known}")
        self.stack = stack
        found = defaults.defaults_of(stack)
        assert found is not None, f"stack {stack} has no defaults"
        self.defaults = found

    def setup(self) -> Setup:
        for words, reason in defaults.OUTSIDE.items():
            if words in self.run.remarks:
                raise SkippedRunError(reason)
        model = self.model_fields()
        degrees = self.degrees()
        instance = self.instance(degrees, model)
        self.check(degrees, instance)
        layout = self.layout(degrees, instance)
        return Setup(Problem(instance), layout, tuple(self.assumed))

    def assume(self, field: str, value: T) -> T:
        text = f"{field} = {value}"
        if text not in self.assumed:
            self.assumed.append(text)
        return value

    def or_none(self, field: str, value: int | None) -> int:
        """The value, or assumed zero."""
        return self.assume(field, 0) if value is None else value

    def needed(self, field: str, value: T | None) -> T:
        if value is None:
            raise SkippedRunError(f"{field} is not stated and does not follow")
        return value

    # -- degrees -----------------------------------------------------------------------------

    def degrees(self) -> Degrees:
        p, model = self.parallel, self.model
        text = p.zero or ""
        fully_sharded = defaults.sharding_of(text) == "zero3"
        gpus = self.hardware.gpus
        tp = p.tp or (self.assume("tp", 1) if fully_sharded else self.needed("tp", None))
        cp = p.cp or self.assume("cp", 1)
        pp = p.pp
        if pp is None and gpus and p.dp and gpus % (tp * cp * p.dp) == 0:
            pp = gpus // (tp * cp * p.dp)
        pp = self.needed("pp", pp)
        dp = p.dp
        if dp is None:
            dp, rest = divmod(self.needed("the number of GPUs", gpus), tp * cp * pp)
            if rest:
                raise SkippedRunError(f"tp*cp*pp = {tp * cp * pp} does not divide {gpus} GPUs")
        if gpus is not None and tp * cp * pp * dp != gpus:
            raise SkippedRunError(f"tp*cp*pp*dp = {tp * cp * pp * dp}, but there are {gpus} GPUs")
        ep = p.ep or (self.assume("ep", 1) if model.experts else 1)
        etp = p.etp or (self.assume("etp", 1) if model.experts else 1)
        if ep > 1 and (not model.experts or model.experts % ep):
            raise SkippedRunError(f"ep = {ep} does not divide {model.experts or 0} experts")
        if tp * cp * dp % (ep * etp):
            raise SkippedRunError(f"ep*etp = {ep * etp} does not divide tp*cp*dp = {tp * cp * dp}")
        mbs = p.mbs or self.assume("microbatch size", 1)
        if self.splits_local_batch(pp, dp, mbs):
            mbs = self.assume("microbatch size (local batch over pp microbatches)", mbs // pp)
        shard = 1 if self.sharding(pp) == "ddp" else self.shard_group(dp)
        return Degrees(tp, cp, ep, etp, pp, self.chunks(pp), mbs, dp, shard)

    def shard_group(self, dp: int) -> int:
        """Replicas that share one copy of the state: as stated, otherwise all."""
        stated = defaults.shard_group_of(self.parallel.zero or "")
        return stated if stated and dp % stated == 0 else dp

    def splits_local_batch(self, pp: int, dp: int, mbs: int) -> bool:
        """Whether ``mbs`` is, as torchtitan states it, the batch of one replica."""
        p = self.parallel
        whole = p.gbs is None or p.gbs == dp * mbs
        return self.stack.startswith("torchtitan") and pp > 1 and whole and mbs % pp == 0

    def chunks(self, pp: int) -> int:
        """Chunks per stage that the schedule and ``vp`` say."""
        kind = self.schedule_kind(pp)
        if kind in ("zbv", "dualpipe_v"):
            return 2
        if kind != "interleaved" or pp == 1:
            return 1
        if self.parallel.vp is not None:
            return self.parallel.vp
        if "1F1B-I" in (self.parallel.schedule or ""):
            layers = self.needed("layers", self.model.layers)
            return self.assume("vp (one layer a chunk)", -(-layers // pp))
        return self.assume("vp", 2)

    def schedule_kind(self, pp: int) -> str:
        """The schedule of the plan space; without a pipeline all are alike."""
        if pp == 1:
            return "1f1b"
        return named_schedule(self.parallel)

    def check(self, degrees: Degrees, instance: Instance) -> None:
        """Refuse what no training software runs, and rows that contradict themselves."""
        model, p = instance.model, self.parallel
        tp, chunks = degrees.tp, degrees.pp * degrees.virtual_stages
        widths = {"heads": model.num_heads, "FFN width": model.ffn_hidden_size}
        for name, width in widths.items():
            if width % tp:
                raise SkippedRunError(f"tp = {tp} does not divide the {name} {width}")
        if chunks > model.num_layers + model.num_mtp_layers + 2:
            raise SkippedRunError(f"{chunks} chunks for {model.num_layers} layers and two ends")
        length = instance.training.sequence_length
        if degrees.cp > 1 and length % (2 * degrees.cp):
            raise SkippedRunError(
                f"a sequence of {length} is no multiple of 2*cp = {2 * degrees.cp}"
            )
        if degrees.etp > 1 and not model.num_experts:
            raise SkippedRunError(f"etp = {degrees.etp}, but the model has no experts")
        m = Problem(instance).num_microbatches(degrees)
        stated = p.ga if p.mbs == degrees.micro_batch_size else None
        if stated is not None and stated != m:
            self.assume("microbatches (by gbs, dp and mbs, against ga)", m)
        if degrees.pp > 1 and p.vp not in (None, 1, degrees.virtual_stages):
            raise SkippedRunError(f"vp = {p.vp} does not fit schedule '{p.schedule}'")
        if chunks * m > MOST_CHUNK_PASSES:
            raise SkippedRunError(too_large(chunks * m))

    # -- instance ----------------------------------------------------------------------------

    def instance(self, degrees: Degrees, model: dict[str, Any]) -> Instance:
        gpu = gpu_of(self.needed("the GPU", self.hardware.gpu))
        if gpu is None:
            raise SkippedRunError(f"unknown GPU '{str(self.hardware.gpu)[:60]}'")
        node = min(int(gpu["gpus_per_node"]), degrees.gpus)
        site: dict[str, Any] = {
            "name": "cluster",
            "gpu": gpu,
            "gpus_per_node": node,
            "num_gpus": -(-degrees.gpus // node) * node,
        }
        text = self.hardware.inter_bw
        nic = defaults.nic_gbps_of(text, node) if isinstance(text, str) else None
        if nic is not None:
            site["nic_gbps"] = nic
        elif degrees.gpus > node:
            self.assume("Gb/s of network a GPU (data sheet)", gpu["nic_gbps"])
        document = {
            "name": "run",
            "model": model,
            "training": self.training(degrees),
            "cluster": {"sites": [site]},
            "stack": self.stack_fields(),
        }
        try:
            return Instance.model_validate(document)
        except ValidationError as error:
            raise SkippedRunError(str(first_input_error(error, Instance))) from None

    def stack_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"preset": self.stack, **defaults.kernels_of(self.run)}
        if self.parallel.sp is not None:
            fields["sequence_parallel"] = self.parallel.sp
        elif (self.parallel.tp or 1) > 1:
            own = catalog.fields("stacks", self.stack).get("sequence_parallel", True)
            self.assume("sequence parallelism", own)
        return fields

    def training(self, degrees: Degrees) -> dict[str, Any]:
        p = self.parallel
        batch = p.gbs
        if batch is None and p.ga is not None:
            batch = p.ga * degrees.micro_batch_size * degrees.dp
        if batch is None and self.defaults.sharding == "zero3":
            count = degrees.pp if degrees.pp > 1 else 1
            batch = degrees.dp * degrees.micro_batch_size * count
            self.assume("global batch (no gradient accumulation)", batch)
        batch = self.needed("the global batch", batch)
        if batch % (degrees.dp * degrees.micro_batch_size):
            raise SkippedRunError(
                f"a batch of {batch} is no multiple of dp*mbs = "
                f"{degrees.dp * degrees.micro_batch_size}"
            )
        wording = p.precision or self.assume("precision", self.defaults.precision)
        precision = defaults.precision_of(wording)
        if precision is None:
            raise SkippedRunError(f"unknown precision '{p.precision}'")
        width = self.defaults.gradient_bytes
        if width != 4:
            self.assume("gradient bytes", width)
        return {
            "global_batch_size": batch,
            "sequence_length": self.needed("the sequence length", self.model.seq),
            "precision": precision,
            "gradient_bytes": width,
        }

    def model_fields(self) -> dict[str, Any]:
        model = self.model
        hidden = self.needed("hidden size", model.hidden)
        heads = self.needed("the number of heads", model.heads)
        layers = self.needed("the number of layers", model.layers)
        experts = model.experts or 0
        dense = layers
        if experts:
            dense = min(self.or_none("dense layers", model.dense_layers), layers)
        fields: dict[str, Any] = {
            "num_layers": layers,
            "hidden_size": hidden,
            "num_heads": heads,
            "num_kv_heads": model.kv_heads or heads,
            "vocab_size": model.vocab or self.assume("vocabulary", defaults.VOCABULARY),
            "gated": bool(model.gated),
            "tied_embeddings": self.defaults.tied and not model.gated,
        }
        if model.kv_heads is None and model.mla is None:
            self.assume("KV heads", heads)
        if model.gated is None:
            self.assume("gated", False)
        if model.head_dim is not None:
            fields["head_dim"] = model.head_dim
        if dense:
            fields["ffn_hidden_size"] = model.ffn or self.assume("FFN width", 4 * hidden)
        if model.mla is not None:
            fields |= {
                "attention": "mla",
                "num_kv_heads": heads,
                "q_lora_rank": model.mla.q_lora or None,
                "kv_lora_rank": model.mla.kv_lora,
                "qk_nope_head_dim": model.mla.qk_nope,
                "qk_rope_head_dim": model.mla.qk_rope,
                "v_head_dim": model.mla.v,
            }
            fields.pop("head_dim", None)
        if experts:
            fields |= {
                "num_experts": experts,
                "experts_per_token": self.needed("top-k", model.topk),
                "expert_ffn_hidden_size": self.needed("the experts' width", model.moe_ffn),
                "shared_expert_ffn_hidden_size": self.or_none("shared experts", model.shared_ffn),
                "first_k_dense": dense,
            }
        said = self.run.remarks
        if "mtp" in said and not any(word in said for word in ("w/o mtp", "without mtp", "no mtp")):
            fields["num_mtp_layers"] = self.assume("multi-token prediction layers", 1)
        return fields

    # -- plan --------------------------------------------------------------------------------

    def layout(self, degrees: Degrees, instance: Instance) -> Layout:
        kind = self.schedule_kind(degrees.pp)
        if degrees.pp > 1 and self.parallel.schedule is None:
            self.assume("schedule", kind)
        if degrees.pp > 1 and self.parallel.vp is None and degrees.virtual_stages == 1:
            self.assume("vp", 1)
        m = instance.training.global_batch_size // (degrees.dp * degrees.micro_batch_size)
        run_length = None
        if SCHEDULES[kind].has_run_length:
            legal = legal_run_lengths(degrees.pp, m) or (m,)
            run_length = legal[0]
        chunks = degrees.pp * degrees.virtual_stages
        return Layout(
            degrees=degrees,
            schedule=kind,
            run_length=run_length,
            extra_warmup=(0,) * degrees.pp,
            option=Option(
                self.sharding(degrees.pp), self.defaults.overlap, self.recompute(), spanning=False
            ),
            sync="hierarchical",
            layers=layer_split(instance.model.num_layers, chunks, instance.model.num_mtp_layers),
            replicas=((degrees.dp,),) * degrees.pp,
            flows=(((0, 0, degrees.dp),),)
            * num_boundaries(kind, degrees.pp, degrees.virtual_stages),
            protocols={},
        )

    def sharding(self, pp: int) -> Sharding:
        text = self.parallel.zero
        if text is None:
            sharding = self.assume("sharding", self.defaults.sharding)
        else:
            found = defaults.sharding_of(text)
            if found is None:
                raise SkippedRunError(f"unknown sharding '{text}'")
            sharding = found
        if sharding == "zero3" and pp > 1 and self.stack.startswith("torchtitan"):
            return self.assume("sharding (weights stay gathered under a pipeline)", "zero1")
        return sharding

    def recompute(self) -> Recompute:
        text = self.parallel.recompute
        if text is None:
            return self.assume("recompute", "none")
        found = defaults.recompute_of(text)
        if found is None:
            raise SkippedRunError(f"unknown recompute '{text}'")
        return found


def layer_split(layers: int, chunks: int, mtp_layers: int) -> tuple[int, ...]:
    """Layers per chunk as Megatron and its recipes split them.

    Equal where they divide; otherwise the embedding and the head count as a layer each where that
    divides; otherwise multi-token prediction as a layer and the head as one or two.  If nothing
    divides, equal up to one, the longer chunks first, with the head as a layer.
    """
    if layers % chunks == 0 and not mtp_layers:
        return (layers // chunks,) * chunks
    for first, last in ((1, 1), (0, mtp_layers + 1), (0, mtp_layers + 2), (1, mtp_layers + 1)):
        whole, rest = divmod(layers + first + last, chunks)
        if not rest and whole >= max(first, last) and (first or mtp_layers or last == 1):
            middle = [whole] * chunks
            middle[0] -= first
            middle[-1] -= last
            return tuple(middle)
    whole, rest = divmod(layers + 1, chunks)
    split = [whole + (k < rest) for k in range(chunks)]
    split[-1] = max(0, split[-1] - 1)
    split[0] += layers - sum(split)
    return tuple(split)
