"""Optimisers, schedules, averages of weights, and the clipping of gradients."""

from unmask.learn.optim.build import Optimiser, build_optimiser
from unmask.learn.optim.clip import clip_gradients
from unmask.learn.optim.ema import Ema
from unmask.learn.optim.schedules import ScheduleSpec, factor
from unmask.learn.optim.spec import OptimiserSpec

__all__ = [
    "Ema",
    "Optimiser",
    "OptimiserSpec",
    "ScheduleSpec",
    "build_optimiser",
    "clip_gradients",
    "factor",
]
