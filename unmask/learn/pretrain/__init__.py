"""A pretraining run: its settings, training loop, checkpoints and log.

Names that need torch are imported when first used, so that a run file is checked without it.
"""

from typing import TYPE_CHECKING

from unmask.lazy import lazy_names
from unmask.learn.pretrain.settings import RunSettings, read_run

if TYPE_CHECKING:
    from unmask.learn.pretrain.callbacks import Callback
    from unmask.learn.pretrain.launch import joined
    from unmask.learn.pretrain.run import Result, pretrain, train
    from unmask.learn.pretrain.stopping import Stopped

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
        "Callback": "unmask.learn.pretrain.callbacks",
        "Result": "unmask.learn.pretrain.run",
        "Stopped": "unmask.learn.pretrain.stopping",
        "joined": "unmask.learn.pretrain.launch",
        "pretrain": "unmask.learn.pretrain.run",
        "train": "unmask.learn.pretrain.run",
    },
)
