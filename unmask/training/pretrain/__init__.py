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
        "Callback": "unmask.training.run.callbacks",
        "Result": "unmask.training.pretrain.run",
        "Stopped": "unmask.training.run.trainer",
        "joined": "unmask.training.run.ranks",
        "pretrain": "unmask.training.pretrain.run",
        "train": "unmask.training.pretrain.run",
    },
)
