"""The order of the ops of one pipeline as a scheduling model, whole or by windows."""

from formulations.schedule.build import ScheduleModel, build_schedule
from formulations.schedule.window import Window, time_window, whole

__all__ = ["ScheduleModel", "Window", "build_schedule", "time_window", "whole"]
