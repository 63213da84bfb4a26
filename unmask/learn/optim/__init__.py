"""Optimisers, schedules, averages of weights, and the clipping of gradients."""

from unmask.learn.optim.build import Optimiser, build_optimiser
from unmask.learn.optim.clip import clip_gradients
from unmask.learn.optim.ema import Ema
from unmask.learn.optim.schedules import Ramp, ScheduleSpec, factor, ramp_value
from unmask.learn.optim.spec import OptimiserSpec

__all__ = [
    "Ema",
    "Optimiser",
    "OptimiserSpec",
    "Ramp",
    "ScheduleSpec",
    "build_optimiser",
    "clip_gradients",
    "factor",
    "ramp_value",
]
