"""A pretraining run: its settings, training loop, checkpoints and log."""

from unmask.learn.pretrain.launch import joined
from unmask.learn.pretrain.report import Callback, NullCallback
from unmask.learn.pretrain.run import Result, pretrain, train
from unmask.learn.pretrain.settings import RunSettings, read_run
from unmask.learn.pretrain.stopping import Stopped

__all__ = [
    "Callback",
    "NullCallback",
    "Result",
    "RunSettings",
    "Stopped",
    "joined",
    "pretrain",
    "read_run",
    "train",
]
