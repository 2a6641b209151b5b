"""The strong formulation: one model per schedule and option, with rows that the relaxation sees."""

from formulations.strong.build import build_strong
from formulations.strong.layers import LayersModel, build_layers

__all__ = ["LayersModel", "build_layers", "build_strong"]
