"""Optimizers, schedules, weight averaging, and gradient clipping."""

from unmask.learn.optim.build import Optimizer, build_optimizer
from unmask.learn.optim.clip import clip_gradients
from unmask.learn.optim.ema import Ema
from unmask.learn.optim.schedules import ScheduleSpec, lr_multiplier
from unmask.learn.optim.spec import OptimizerSpec

__all__ = [
    "Ema",
    "Optimizer",
    "OptimizerSpec",
    "ScheduleSpec",
    "build_optimizer",
    "clip_gradients",
    "lr_multiplier",
]
