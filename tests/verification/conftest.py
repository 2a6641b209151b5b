"""A solved job whose certificate has every kind of evidence; copies of it are tampered with."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from planner import solve
from planner.instance import Instance, load_instance
from planner.instance.fixes import with_fixes

FIXES = (
    *("tp=1", "cp=1", "micro_batch_size=1", "pp=2", "pp=3", "dp=2", "dp=4"),
    *("placement_kind=mixed", "placement_kind=pp-out"),
)
"""Plans that cross sites: their protocols and flows can be tampered with too."""


class Solved(NamedTuple):
    """A job and the text of its solve document."""

    instance: Instance
    text: str

    @property
    def document(self) -> dict[str, Any]:
        """A copy of the document."""
        copy: dict[str, Any] = json.loads(self.text)
        return copy


@pytest.fixture(scope="package")
def solved() -> Solved:
    instance = with_fixes(load_instance("tiny"), FIXES)
    return Solved(instance, json.dumps(solve(instance, workers=1).to_json()))
