"""Plans of one cluster by their degrees, as measured runs are described."""

from __future__ import annotations

from typing import Any

from planner.check import StageMemory, check_plan, memory_of_layout
from planner.cost.coefficients import Option, case_coefficients
from planner.instance.load import load_instance
from planner.instance.schema import Instance
from planner.layout import Layout, num_boundaries, to_plan
from planner.pipeline.schedules import SCHEDULES, legal_run_lengths
from planner.plan import Degrees, Plan
from planner.problem import Problem


def one_cluster(model: Any, num_gpus: int, **fields: Any) -> Instance:
    """A job on one site of H100; ``training`` and ``site`` are merged with their defaults."""
    training = {"global_batch_size": 64, "sequence_length": 4096} | fields.pop("training", {})
    site = {"name": "site", "gpu": "H100", "num_gpus": num_gpus} | fields.pop("site", {})
    document = {"model": model, "training": training, "cluster": {"sites": [site]}}
    return load_instance(document | fields)


def one_site_layout(instance: Instance, **choices: Any) -> Layout:
    """A layout with all replicas at the first site; layers as equal as they go."""
    fields = {
        "tp": 1, "cp": 1, "ep": 1, "etp": 1, "pp": 1, "virtual_stages": 1,
        "micro_batch_size": 1, "dp": 1, "dp_shard": 1, "schedule": "1f1b", "run_length": None,
        "sharding": "ddp", "overlap": True, "recompute": "none", "layers": None,
    } | choices  # fmt: skip
    degrees = Degrees(*(fields[name] for name in Degrees._fields))
    schedule, pp, v = fields["schedule"], degrees.pp, degrees.virtual_stages
    m = Problem(instance).num_microbatches(degrees)
    run_length = fields["run_length"]
    if SCHEDULES[schedule].has_run_length and run_length is None:
        run_length = (legal_run_lengths(pp, m) or (m,))[0]
    whole, rest = divmod(instance.model.num_layers, pp * v)
    layers = fields["layers"] or tuple(whole + (k < rest) for k in range(pp * v))
    return Layout(
        degrees=degrees,
        schedule=schedule,
        run_length=run_length,
        extra_warmup=(0,) * pp,
        option=Option(fields["sharding"], fields["overlap"], fields["recompute"], spanning=False),
        sync="hierarchical",
        layers=layers,
        replicas=((degrees.dp,),) * pp,
        flows=(((0, 0, degrees.dp),),) * num_boundaries(schedule, pp, v),
        protocols={},
    )


def one_site_plan(instance: Instance, **choices: Any) -> Plan:
    """The layout as a plan."""
    return to_plan(Problem(instance), one_site_layout(instance, **choices))


def stage_memory(instance: Instance, **choices: Any) -> tuple[StageMemory, ...]:
    """Memory of every stage, by the functions of the checker."""
    problem, layout = Problem(instance), one_site_layout(instance, **choices)
    return memory_of_layout(problem, case_coefficients(problem, layout.degrees), layout)


def rules(instance: Instance, plan: Plan) -> set[str]:
    """The rules that a plan breaks."""
    return {violation.rule for violation in check_plan(instance, plan).violations}
