"""Backends that fail on purpose, named by import path."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time

from formulations.algebra import Model
from planner.backends.base import EngineOptions, Feature, ProgressCallback
from planner.backends.cbc import CbcBackend
from planner.backends.result import Claim


class FakeBackend:
    """Does what its `act` does."""

    name = "fake"
    features = frozenset({Feature.HINT, Feature.PARTIAL_HINT, Feature.PROGRESS})
    exact = True

    def version(self) -> str:
        return "fake 1"

    def missing(self) -> str | None:
        return None

    def prepare(self) -> None:
        return None

    def run(self, model: Model, options: EngineOptions, report: ProgressCallback) -> Claim:
        point = tuple(variable.upper for variable in model.variables)
        return self.act(model, point, report) or Claim()

    def act(self, model: Model, point: tuple[int, ...], report: ProgressCallback) -> Claim | None:
        raise NotImplementedError


class Segfault(FakeBackend):
    """Ends by a signal."""

    def act(self, model, point, report):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), signal.SIGSEGV)


class SegfaultWithPlan(Segfault):
    """Streams a plan, then ends by a signal."""

    def act(self, model, point, report):
        report(model.evaluate(point).objective, -7, point)
        super().act(model, point, report)


class Exit(FakeBackend):
    """Leaves with an exit code."""

    def act(self, model, point, report):
        os._exit(3)


class Raises(FakeBackend):
    """Raises."""

    def act(self, model, point, report):
        raise RuntimeError("something broke")


class Hang(FakeBackend):
    """Starts a long-lived program and ignores the time limit."""

    def act(self, model, point, report):
        with subprocess.Popen(["sleep", "300"]) as program:
            program.wait()


class HangWithPlan(Hang):
    """Streams a plan, then hangs."""

    def act(self, model, point, report):
        report(model.evaluate(point).objective, -7, point)
        super().act(model, point, report)


class HangWithProof(Hang):
    """Streams a plan and the bound that proves it, then hangs."""

    def act(self, model, point, report):
        objective = model.evaluate(point).objective
        report(objective, objective, point)
        super().act(model, point, report)


class Glutton(FakeBackend):
    """Takes memory without end."""

    def act(self, model, point, report):
        hoard = []
        while True:
            hoard.append(bytearray(1 << 24))


class NativeGlutton(FakeBackend):
    """Fails to allocate as C++ code does."""

    def act(self, model, point, report):
        os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n")
        os.abort()


class Broken(FakeBackend):
    """Claims a point that breaks rows."""

    def act(self, model, point, report):
        return Claim(values=point, bound=model.evaluate(point).objective, finished=True)


class HighBound(FakeBackend):
    """Claims a bound above its own plan."""

    def act(self, model, point, report):
        return Claim(values=point, bound=10**6, finished=True)


class SaysInfeasible(FakeBackend):
    """Claims that there is no plan."""

    def act(self, model, point, report):
        return Claim(infeasible=True)


class SlowProgress(FakeBackend):
    """Streams plans for a while."""

    def act(self, model, point, report):
        for step in range(100):
            report(model.evaluate(point).objective, -100 + step, point)
            time.sleep(0.05)


class NoBinary(CbcBackend):
    """CBC at a path where there is none."""

    def __init__(self) -> None:
        super().__init__(path="/nonexistent/cbc")


class FakeBinary(CbcBackend):
    """CBC replaced by a program that does something else."""

    def __init__(self) -> None:
        super().__init__(path="/bin/true")


class DoesNotImport(FakeBackend):
    """Fails at the start of the child."""

    def prepare(self) -> None:
        raise ImportError("no such library")
