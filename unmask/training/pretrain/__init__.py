"""A pretraining run: its settings, training loop, checkpoints and log.

Names that need torch are imported when first used, so that a run file is checked without it.
"""

from typing import TYPE_CHECKING

from unmask.base.optional import lazy_names
from unmask.training.run.settings import RunSettings, read_run

if TYPE_CHECKING:
    from unmask.training.pretrain.run import Result, pretrain, train
    from unmask.training.run.callbacks import Callback
    from unmask.training.run.ranks import joined
    from unmask.training.run.trainer import Stopped

__all__ = [
    "Callback",
    "Result",
    "RunSettings",
    "Stopped",
    "joined",
    "pretrain",
    "read_run",
    "train",
]

__getattr__ = lazy_names(
    __name__,
    {
        "unmask.training.run.callbacks": ("Callback",),
        "unmask.training.pretrain.run": ("Result", "pretrain", "train"),
        "unmask.training.run.trainer": ("Stopped",),
        "unmask.training.run.ranks": ("joined",),
    },
)
