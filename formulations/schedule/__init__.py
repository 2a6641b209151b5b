"""The order of the ops of one pipeline as a scheduling model, whole, by windows or periodic."""

from formulations.schedule.build import ScheduleModel, build_schedule
from formulations.schedule.periodic import PeriodicModel, build_periodic
from formulations.schedule.window import Window, time_window, whole

__all__ = [
    "PeriodicModel",
    "ScheduleModel",
    "Window",
    "build_periodic",
    "build_schedule",
    "time_window",
    "whole",
]
