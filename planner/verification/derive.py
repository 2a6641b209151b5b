"""Lower bounds on Z of boxes of degrees cases, derived again from the instance.

The closed forms are those of :mod:`planner.search.bounds`, evaluated anew; which of them are needed
for which cases is decided here.  Bounds by paths are checked in whole numbers by
:mod:`planner.verification.duality`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from planner import space
from planner.choices import CaseChoices, ScheduleChoice
from planner.cost.coefficients import Option, case_coefficients
from planner.plan import Degrees
from planner.problem import Problem
from planner.search.bounds import INFEASIBLE, Bounds, CaseBounds, Shape
from planner.verification.document import Box, TemplateTable
from planner.verification.duality import TemplateProof
from planner.verification.partition import Space

TieKey = tuple[int, int, Degrees]
"""Crossings, GPUs and degrees of a plan: the smaller wins where Z is equal."""
TemplateKey = tuple[str, int, int, int, int | None]


class Derivation:
    """Derives what a certificate claims of boxes.

    Parameters
    ----------
    problem
        The instance.
    tables
        Paths and multipliers of the certificate.
    """

    def __init__(self, problem: Problem, tables: Sequence[TemplateTable]) -> None:
        self.problem = problem
        self.space = Space(problem)
        self.bounds = Bounds(problem)
        self._allowed = problem.search.restrictions()
        self._tables: dict[TemplateKey, TemplateTable] = {
            (t.schedule, t.pp, t.virtual_stages, t.num_microbatches, t.run_length): t
            for t in tables
        }
        self._proofs: dict[TemplateKey, TemplateProof] = {}

    # -- rules of the plan space -----------------------------------------------------------

    def breaks(self, rule: str, box: Box) -> bool | None:
        """Whether every case of a box breaks a rule of the degrees; None for other rules."""
        problem = self.problem
        cells = {
            shape: self.bounds.shape_work(shape).cells
            for shape in shapes(box)
            if rule == "placement.capacity"
        }
        if rule == "tp.divides":
            return not any(space.tp_legal(problem, tp) for tp in box.tp)
        if rule == "cp.divides":
            return not any(space.cp_legal(problem, cp) for cp in box.cp)
        if rule == "virtual_stages.layers":
            return min(box.pp) * min(box.virtual_stages) > problem.model.num_layers
        if rule == "placement.capacity":
            return all(min(box.pp) * min(box.dp) > room for room in cells.values())
        if rule == "search.gpus_used":
            return not any(
                self._right_gpus(shape, pp, dp)
                for shape in shapes(box)
                for pp, dp in product(box.pp, box.dp)
            )
        if rule == "ep.groups":
            return not any(self._legal_groups(case) for case in self.cases(box))
        return None

    def _right_gpus(self, shape: Shape, pp: int, dp: int) -> bool:
        allowed = self._allowed.get("gpus_used")
        return allowed is None or shape.tp * shape.cp * pp * dp in allowed

    def _legal_groups(self, case: Degrees) -> bool:
        return space.expert_groups_legal(case, self.problem.model.num_experts)

    def cases(self, box: Box) -> Iterator[Degrees]:
        """The cases of a box."""
        for shape in shapes(box):
            for pp, v, dp in product(box.pp, box.virtual_stages, box.dp):
                for shard in self._shards(box, dp):
                    yield shape.case(pp, v, dp, shard)

    def _shards(self, box: Box, dp: int) -> Sequence[int]:
        return self.space.shards(dp) if box.dp_shard is None else box.dp_shard

    # -- bounds ----------------------------------------------------------------------------

    def at_least(self, box: Box, target_us: int) -> bool:
        """Whether no plan of a box is faster than ``target_us`` (:data:`INFEASIBLE`: none at all).

        Raises
        ------
        WitnessError
            If a path or weight that it rests on is none.
        """
        return all(self._shape(shape, box, target_us) for shape in shapes(box))

    def _shape(self, shape: Shape, box: Box, target_us: int) -> bool:
        problem = self.problem
        if not (space.tp_legal(problem, shape.tp) and space.cp_legal(problem, shape.cp)):
            return True
        if self.bounds.shape(shape) >= target_us:
            return True
        cells = self.bounds.shape_work(shape).cells
        for pp in box.pp:
            chunks = [v for v in box.virtual_stages if pp * v <= problem.model.num_layers]
            replicas = [dp for dp in box.dp if dp * pp <= cells and self._right_gpus(shape, pp, dp)]
            if not chunks or not replicas:
                continue
            if self.bounds.pipeline_degree(shape, pp, replicas) >= target_us:
                continue
            for v, dp in product(chunks, replicas):
                shards = self._shards(box, dp)
                if not self._cell(shape, pp, v, dp, shards, target_us):
                    return False
        return True

    def _cell(
        self, shape: Shape, pp: int, v: int, dp: int, shards: Sequence[int], target_us: int
    ) -> bool:
        """Some shard degrees of one (pp, v, dp)."""
        if self.bounds.cell(shape, pp, v, dp) >= target_us:
            return True
        cases = [
            case
            for shard in sorted(shards, reverse=True)
            if self._legal_groups(shape.case(pp, v, dp, shard))
            and (case := self._case(shape.case(pp, v, dp, shard))) is not None
        ]
        ways = set()
        for case in _representatives(cases):
            if not case.hopeless:
                ways |= {
                    _way(*pair)
                    for pair in case.choices.pairs
                    if case.work(*pair).value_us < target_us
                    and case.ramp(*pair).value_us < target_us
                    and not _stages_exceed(case, pair, target_us, synchronised=False)
                }
        return not ways or all(
            self._pair(case, pair, target_us)
            for case in cases
            for pair in case.choices.pairs
            if _way(*pair) in ways
        )

    def _case(self, degrees: Degrees) -> CaseBounds | None:
        """The bounds of a case; None where no plan of it can be placed."""
        choices = CaseChoices(self.problem, case_coefficients(self.problem, degrees))
        if choices.empty or not choices.possible_kinds:
            return None
        case = CaseBounds(self.bounds, choices)
        return case if case.least_hosts else None

    def _pair(self, case: CaseBounds, pair: tuple[ScheduleChoice, Option], target_us: int) -> bool:
        if case.quick(*pair).value_us >= target_us or case.choice(*pair).value_us >= target_us:
            return True
        choice, _ = pair
        degrees = case.co.degrees
        if degrees.pp == 1:
            return False
        if _stages_exceed(case, pair, target_us, synchronised=True):
            return True
        proof = self._proof(case, choice)
        if proof is None:
            return False
        costs = case.split_costs(*pair)
        if target_us < INFEASIBLE and proof.longer(costs, target_us - case.co.fixed_us):
            return True
        return proof.unfit(costs)

    def _proof(self, case: CaseBounds, choice: ScheduleChoice) -> TemplateProof | None:
        degrees = case.co.degrees
        key = (
            choice.schedule,
            degrees.pp,
            degrees.virtual_stages,
            case.co.num_microbatches,
            choice.run_length,
        )
        table = self._tables.get(key)
        if table is None:
            return None
        if key not in self._proofs:
            counts = [case.co.layer_units.count(u) for u in range(len(case.co.kinds))]
            self._proofs[key] = TemplateProof(table, counts, any_warmup=case.any_warmup(choice))
        return self._proofs[key]

    def comes_later(self, box: Box, time_us: int, key: TieKey) -> bool:
        """Whether every plan of a box with ``Z = time_us`` is no earlier in the order of ties.

        Raises
        ------
        WitnessError
            If a path or weight that it rests on is none.
        """
        for degrees in self.cases(box):
            if (0, degrees.gpus, degrees) >= key:
                continue
            if not self._legal_groups(degrees):
                continue
            single = box.model_copy(
                update={name: (getattr(degrees, name),) for name in Degrees._fields}
            )
            if self.at_least(single, time_us + 1):
                continue
            case = self._case(degrees)
            if case is not None and (case.least_crossings, degrees.gpus, degrees) < key:
                return False
        return True


def shapes(box: Box) -> Iterator[Shape]:
    """The shapes of a box."""
    for values in product(box.tp, box.cp, box.ep, box.etp, box.micro_batch_size):
        yield Shape(*values)


def _representatives(cases: Sequence[CaseBounds]) -> Iterator[CaseBounds]:
    """Of cases by falling shard degree the first and the unsharded one.

    No case needs less memory than the first; unsharded state is legal in the second alone.
    """
    for place, case in enumerate(cases):
        if place == 0 or case.co.degrees.dp_shard == 1:
            yield case


def _stages_exceed(
    case: CaseBounds, pair: tuple[ScheduleChoice, Option], target_us: int, *, synchronised: bool
) -> bool:
    """Whether no stages of whole layers are faster than ``target_us``."""
    if case.co.degrees.pp == 1 or target_us >= INFEASIBLE:
        return False
    return case.stages_exceed(*pair, target_us - 1, synchronised=synchronised)


def _way(choice: ScheduleChoice, option: Option) -> tuple[object, ...]:
    """What work and memory tell apart: ``ddp`` never needs less memory than ``zero1``."""
    sharding = "zero1" if option.sharding == "ddp" else option.sharding
    return choice, option.recompute, sharding, option.overlap
