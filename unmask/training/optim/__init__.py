"""Optimizers, schedules, weight averaging, and gradient clipping.

Names that need torch are imported when first used, so that settings are read without it.
"""

from typing import TYPE_CHECKING

from unmask.base.optional import lazy_names
from unmask.training.optim.spec import OptimizerSpec, ScheduleSpec, lr_multiplier

if TYPE_CHECKING:
    from unmask.training.optim.build import Optimizer, build_optimizer, clip_gradients
    from unmask.training.optim.ema import Ema

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
        "unmask.training.optim.ema": ("Ema",),
        "unmask.training.optim.build": ("Optimizer", "build_optimizer", "clip_gradients"),
    },
)
