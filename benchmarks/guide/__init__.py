"""Which model for a task, a text length and a device: a ranking of published encoders by recorded figures."""

from benchmarks.guide.figures import DEVICES, TASKS, Device, Figure, Task, read_figures
from benchmarks.guide.ranking import Candidate, Guide, Ranked, guide

__all__ = [
    "DEVICES",
    "TASKS",
    "Candidate",
    "Device",
    "Figure",
    "Guide",
    "Ranked",
    "Task",
    "guide",
    "read_figures",
]
