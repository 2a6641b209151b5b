"""Backends that lie about what they found, named by import path; each is CP-SAT but for its lie."""

from __future__ import annotations

import os
import resource
import signal
import time
from dataclasses import replace

from formulations.algebra import Model
from planner.backends.base import EngineOptions, ProgressCallback
from planner.backends.cp_sat import CpSatBackend
from planner.backends.result import Claim, Limit

FAR = 10**12
"""A bound that no plan of a test reaches."""


class Liar(CpSatBackend):
    """Solves the model and says something else."""

    def run(self, model: Model, options: EngineOptions, report: ProgressCallback) -> Claim:
        return self.lie(model, super().run(model, options, report), report)

    def honest(self, model: Model, options: EngineOptions, report: ProgressCallback) -> Claim:
        return super().run(model, options, report)

    def lie(self, model: Model, claim: Claim, report: ProgressCallback) -> Claim:
        raise NotImplementedError


class ValueTooLow(Liar):
    """States a value below that of its plan, and calls it proven."""

    def lie(self, model: Model, claim: Claim, report: ProgressCallback) -> Claim:
        if claim.objective is None:
            return claim
        value = claim.objective - 1000
        return replace(claim, objective=value, bound=value, finished=True)


class BoundTooHigh(Liar):
    """Has the right plan and a bound above it."""

    def lie(self, model: Model, claim: Claim, report: ProgressCallback) -> Claim:
        return replace(claim, bound=FAR)


class FalseBound(Liar):
    """Has no plan, no proof, and a bound above all plans."""

    def lie(self, model: Model, claim: Claim, report: ProgressCallback) -> Claim:
        return Claim(bound=FAR, limit=Limit.TIME, exact=True, engine_version=claim.engine_version)


class FalseInfeasible(Liar):
    """Says that there is no plan."""

    def lie(self, model: Model, claim: Claim, report: ProgressCallback) -> Claim:
        return Claim(infeasible=True, exact=True, engine_version=claim.engine_version)


class FirstInfeasible(Liar):
    """Says of the first model that there is no plan, then tells the truth."""

    told = False

    def lie(self, model: Model, claim: Claim, report: ProgressCallback) -> Claim:
        if self.told:
            return claim
        self.told = True
        return Claim(infeasible=True, exact=True, engine_version=claim.engine_version)


class SecondBest(Liar):
    """Sells a plan that is not the best as the best."""

    def run(self, model: Model, options: EngineOptions, report: ProgressCallback) -> Claim:
        best = self.honest(model, options, report)
        if best.objective is None:
            return best
        other = self.honest(
            model,
            replace(options, objective_lower=best.objective + 1 + best.objective // 50),
            report,
        )
        if other.values is None:
            return replace(other, bound=FAR)
        value = model.evaluate(other.values).objective
        return replace(other, objective=value, bound=value, finished=True)


class Rounded(Liar):
    """Half of every value, rounded: what is left of a fractional point."""

    def lie(self, model: Model, claim: Claim, report: ProgressCallback) -> Claim:
        if claim.values is None:
            return claim
        values = tuple(value - value // 2 for value in claim.values)
        value = model.evaluate(values).objective
        return replace(claim, values=values, objective=value, bound=value, finished=True)


class Nothing(Liar):
    """Says nothing."""

    def lie(self, model: Model, claim: Claim, report: ProgressCallback) -> Claim:
        return Claim()


class Garbage(Liar):
    """Values that are no numbers, and too few of them."""

    def lie(self, model: Model, claim: Claim, report: ProgressCallback) -> Claim:
        return Claim(values=("many", None), bound=FAR, finished=True)  # type: ignore[arg-type]


class Crash(Liar):
    """Streams a bound above all plans, then ends by a signal."""

    def lie(self, model: Model, claim: Claim, report: ProgressCallback) -> Claim:
        report(None, FAR, None)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), signal.SIGSEGV)
        return claim


class Hang(Liar):
    """Streams a bound above all plans, then ignores the time limit."""

    def lie(self, model: Model, claim: Claim, report: ProgressCallback) -> Claim:
        report(None, FAR, None)
        time.sleep(300)
        return claim


class OutOfMemory(Liar):
    """Streams a bound above all plans, then has no memory left."""

    def lie(self, model: Model, claim: Claim, report: ProgressCallback) -> Claim:
        report(None, FAR, None)
        raise MemoryError


class FirstInfeasibleToo(FirstInfeasible):
    """Another engine with the same lie."""
