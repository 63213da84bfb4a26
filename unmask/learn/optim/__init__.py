"""Optimizers, schedules, weight averaging, and gradient clipping.

Names that need torch are imported when first used, so that settings are read without it.
"""

from typing import TYPE_CHECKING

from unmask.lazy import lazy_names
from unmask.learn.optim.schedules import ScheduleSpec, lr_multiplier
from unmask.learn.optim.spec import OptimizerSpec

if TYPE_CHECKING:
    from unmask.learn.optim.build import Optimizer, build_optimizer
    from unmask.learn.optim.clip import clip_gradients
    from unmask.learn.optim.ema import Ema

__all__ = [
    "Ema",
    "Optimizer",
    "OptimizerSpec",
    "ScheduleSpec",
    "build_optimizer",
    "clip_gradients",
    "lr_multiplier",
]

__getattr__ = lazy_names(
    __name__,
    {
        "Ema": "unmask.learn.optim.ema",
        "Optimizer": "unmask.learn.optim.build",
        "build_optimizer": "unmask.learn.optim.build",
        "clip_gradients": "unmask.learn.optim.clip",
    },
)
