"""Assembly of the plain formulation, and the way back from values to a plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from formulations.algebra import Expression, Model, Variable
from formulations.cuts import PathCut
from formulations.plain import decisions, memory, timing
from formulations.plain.variables import Key, PlainVariables
from planner import space
from planner.choices import CaseChoices
from planner.cost.coefficients import Option
from planner.layout import Layout


@dataclass(eq=False)
class PlainModel:
    """A built model and the meaning of its variables."""

    model: Model
    variables: PlainVariables

    def add_cuts(self, cuts: Iterable[PathCut]) -> None:
        """Add paths of the event graph that were found after the model was built."""
        timing.path_cuts(self.variables, cuts)

    def layout(self, values: Sequence[int]) -> Layout:
        """The plan that an assignment of the model describes.

        Parameters
        ----------
        values
            One integer per variable, in index order.
        """
        v = self.variables

        def chosen(literal: Variable) -> bool:
            return bool(values[literal.index])

        def pick(table: dict[Key, Variable]) -> Key:
            return next(key for key, literal in table.items() if chosen(literal))

        choice = pick(v.schedule)
        option = pick(v.option)
        replicas = tuple(
            tuple(_value(expression, values) for expression in row) for row in v.replicas
        )
        steps = [pick(table) for table in v.warmup]
        whole = space.granularity(v.co.degrees, spanning=False)
        spanning = any(count % whole for row in replicas for count in row)
        boundaries = len(v.flow) if choice.wraps else min(len(v.flow), v.pp - 1)
        return Layout(
            degrees=v.co.degrees,
            schedule=choice.schedule,
            run_length=choice.run_length,
            extra_warmup=tuple(sum(steps[s:]) for s in range(v.pp)),
            option=Option(option.sharding, option.overlap, option.recompute, spanning),
            sync=pick(v.sync),
            layers=tuple(_value(expression, values) for expression in v.layers),
            replicas=replicas,
            flows=tuple(
                tuple(
                    (d, e, values[f.index])
                    for (d, e), f in sorted(flow.items(), key=lambda item: item[0])
                    if values[f.index]
                )
                for flow in v.flow[:boundaries]
            ),
            protocols={
                link: (pick(v.pp_protocol[link]), pick(v.dp_protocol[link]))
                for link in range(len(v.problem.links))
                if v.pp_protocol[link]
            },
        )


def _value(expression: Expression, values: Sequence[int]) -> int:
    return expression.constant + sum(a * values[i] for i, a in expression.terms.items())


def build_plain(choices: CaseChoices, cuts: Iterable[PathCut], upper: int) -> PlainModel:
    """Build the model of one degrees case.

    Parameters
    ----------
    choices
        The alternatives of the case.
    cuts
        Paths of the event graph to use; any subset gives a valid lower bound.
    upper
        Only plans with ``Z <= upper`` (µs) are wanted; bounds every duration.
    """
    model = Model()
    v = PlainVariables(choices.problem, choices.co, choices, model, upper)
    decisions.choose_once(v)
    decisions.split_layers(v)
    decisions.place_replicas(v)
    decisions.move_replicas(v)
    decisions.exchange_pairs(v)
    decisions.extra_warmup(v)
    decisions.kinds_of_placement(v)
    timing.op_durations(v)
    timing.transfers(v)
    timing.synchronisation(v)
    memory.memory_rows(v)
    v.time = model.integer("time", 0, upper)
    timing.device_paths(v)
    timing.path_cuts(v, cuts)
    model.minimize(v.time)
    return PlainModel(model, v)
