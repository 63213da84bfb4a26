"""Checkpoint folders: find, read, match tensors, build, and save.

`unmask.model.weights.build` and `unmask.model.weights.save` need torch, so import them from their own
modules; the names exported here do not import torch.
"""

from unmask.model.weights.checkpoint import Checkpoint, read_checkpoint
from unmask.model.weights.find import DEFAULT, find
from unmask.model.weights.source import Source

__all__ = ["DEFAULT", "Checkpoint", "Source", "find", "read_checkpoint"]
