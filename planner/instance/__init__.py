"""The instance: schema, units, catalog, Hugging Face configs and loading. Imports no solver."""

from planner.instance.errors import InputError
from planner.instance.load import load_instance, narrowed, shipped_names
from planner.instance.schema import Instance, json_schema

__all__ = ["InputError", "Instance", "json_schema", "load_instance", "narrowed", "shipped_names"]
