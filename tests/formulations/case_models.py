"""Degrees cases as plain models for tests: all paths that bind, and what a relaxed model says."""

from __future__ import annotations

from formulations.cuts import CutPool
from formulations.plain import PlainModel, build_plain
from planner.backends import Engine, EngineOptions, SolveStatus
from planner.check import check_plan, price_layout
from planner.choices import CaseChoices
from planner.cost.coefficients import case_coefficients
from planner.instance.load import load_instance
from planner.instance.schema import Instance
from planner.layout import Layout, to_plan
from planner.plan import Degrees
from planner.problem import Problem

MOST_ROUNDS = 60
TIME_LIMIT_S = 60.0


def choices_of(instance: Instance, degrees: tuple[int, ...]) -> CaseChoices:
    """What a degrees case of an instance leaves open."""
    problem = Problem(instance)
    return CaseChoices(problem, case_coefficients(problem, Degrees(*degrees)))


class Converged:
    """A model with all paths that its optimum needs, and this optimum."""

    def __init__(self, engine: Engine, choices: CaseChoices, upper_us: int) -> None:
        self.engine = engine
        self.choices = choices
        self.upper_us = upper_us
        pool = CutPool()
        self.built = build_plain(choices, pool, upper_us)
        for _ in range(MOST_ROUNDS):
            result = engine.solve(self.built.model, self.options)
            assert result.status is SolveStatus.OPTIMAL, (result.status, result.message)
            assert result.values is not None and result.objective is not None
            self.layout = self.built.layout(result.values)
            price = price_layout(choices.problem, choices.co, self.layout)
            assert price.time_us >= result.objective, "a path cut is not valid"
            if price.time_us == result.objective:
                break
            template = self.layout.template(choices.co.num_microbatches)
            known = len(pool)
            if price.orders is None:
                pool.add_critical(template, price.durations)
            else:
                pool.add_ordered(template, price.orders.sharing, price.durations)
            assert len(pool) > known, "no path is missing"
            self.built.add_cuts(list(pool)[known:])
        else:
            raise AssertionError("paths are still missing")
        self.time_us = result.objective

    @property
    def options(self) -> EngineOptions:
        """Options of every solve."""
        return EngineOptions(objective_upper=self.upper_us, time_limit_s=TIME_LIMIT_S)

    def fault_without(self, family: str) -> str:
        """What goes wrong without a constraint family; empty where nothing does.

        ``value``: another optimum; ``undecodable``: the assignment is no plan; ``rule ...``: the
        checker refuses the plan; ``price``: the checker prices the plan differently.
        """
        relaxed = self.built.model.without(family)
        result = self.engine.solve(relaxed, self.options)
        assert result.status is SolveStatus.OPTIMAL, (result.status, result.message)
        assert result.values is not None and result.objective is not None
        assert result.objective <= self.time_us, "a relaxed model has a larger optimum"
        if result.objective < self.time_us:
            return "value"
        try:
            layout = PlainModel(relaxed, self.built.variables).layout(result.values)
        except StopIteration:
            return "undecodable"
        return self.fault_of(layout, result.objective)

    def fault_of(self, layout: Layout, time_us: int) -> str:
        """What the checker says against a plan that a model prices at ``time_us``."""
        problem = self.choices.problem
        report = check_plan(problem.instance, to_plan(problem, layout))
        if not report.feasible:
            return f"rule {report.violations[0].rule}"
        return "" if report.time_us == time_us else "price"


GPU = {
    "name": "micro",
    "peak_flops": {"bf16": 50e12},
    "memory_bytes": "64 GiB",
    "memory_bandwidth_bytes_per_s": 1e12,
    "scale_up_bytes_per_s": 300e9,
    "scale_up_domain": 1,
    "gpus_per_node": 1,
    "nic_gbps": 400,
}


def two_sites(
    gpus: tuple[int, int],
    *,
    layers: int = 4,
    batch: int = 4,
    gbps: float = 10,
    delay_s: float = 1e-3,
    memory_limit: int | str = "32 GiB",
    **search: object,
) -> Instance:
    """A small dense job on two linked sites of the micro GPU."""
    return load_instance(
        {
            "model": {
                "num_layers": layers,
                "hidden_size": 512,
                "num_heads": 4,
                "ffn_hidden_size": 2048,
                "vocab_size": 1000,
            },
            "training": {"global_batch_size": batch, "sequence_length": 512},
            "cluster": {
                "sites": [
                    {
                        "name": name,
                        "gpu": GPU,
                        "num_gpus": count,
                        "memory_limit_bytes": memory_limit,
                    }
                    for name, count in zip("ab", gpus, strict=True)
                ],
                "links": [
                    {
                        "from": "a",
                        "to": "b",
                        "bandwidth_gbps": gbps,
                        "delay_s": delay_s,
                        "protocols": ["rdma_spray", "tcp_bbr"],
                    }
                ],
            },
            "search": search,
        }
    )
