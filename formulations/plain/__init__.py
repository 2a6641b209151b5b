"""The plain stage × site flow formulation: the reference (``docs/formulation_plain.md``)."""

from formulations.plain.build import PlainModel, build_plain

__all__ = ["PlainModel", "build_plain"]
