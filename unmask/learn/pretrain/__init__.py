"""A pretraining run: what its file says, its loop, its checkpoints and its log."""

from unmask.learn.pretrain.launch import joined
from unmask.learn.pretrain.report import Silent, Watcher
from unmask.learn.pretrain.run import Result, pretrain, train
from unmask.learn.pretrain.settings import RunSettings, read_run
from unmask.learn.pretrain.stopping import Stopped

__all__ = ["Result", "RunSettings", "Silent", "Stopped", "Watcher", "joined", "pretrain", "read_run", "train"]
