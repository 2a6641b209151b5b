"""Proves the best training plan of a large model over several datacenters.

The names below are imported from their modules when they are first used, so that
``import planner`` is quick and loads no solver::

    from planner import check_plan, load_instance, solve

    instance = load_instance("tiny")
    result = solve(instance)
    assert result.plan is not None
    assert check_plan(instance, result.plan).feasible
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.check import check_plan
    from planner.explanation.document import Explanation
    from planner.explanation.explain import explain
    from planner.instance import InputError, Instance, load_instance
    from planner.measured import import_measurements
    from planner.plan import Plan, parse_plan
    from planner.search.result import SolveResult
    from planner.search.solve import solve
    from planner.simulation.measures import Simulation
    from planner.simulation.simulate import simulate
    from planner.sweeps.run import SweepResult, sweep
    from planner.validation.validate import Validation, validate_runs
    from planner.verification.verify import Verification, verify

__version__ = "0.1.0"

__all__ = [
    "Explanation",
    "InputError",
    "Instance",
    "Plan",
    "Simulation",
    "SolveResult",
    "SweepResult",
    "Validation",
    "Verification",
    "__version__",
    "check_plan",
    "explain",
    "import_measurements",
    "load_instance",
    "parse_plan",
    "simulate",
    "solve",
    "sweep",
    "validate_runs",
    "verify",
]

_HOMES = {
    "Explanation": "planner.explanation.document",
    "InputError": "planner.instance",
    "Instance": "planner.instance",
    "Plan": "planner.plan",
    "Simulation": "planner.simulation.measures",
    "SolveResult": "planner.search.result",
    "SweepResult": "planner.sweeps.run",
    "Validation": "planner.validation.validate",
    "Verification": "planner.verification.verify",
    "check_plan": "planner.check",
    "explain": "planner.explanation.explain",
    "import_measurements": "planner.measured",
    "load_instance": "planner.instance",
    "parse_plan": "planner.plan",
    "simulate": "planner.simulation.simulate",
    "solve": "planner.search.solve",
    "sweep": "planner.sweeps.run",
    "validate_runs": "planner.validation.validate",
    "verify": "planner.verification.verify",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
