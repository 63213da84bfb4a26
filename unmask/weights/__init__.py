"""Checkpoint folders: find, read, match tensors, build, and save.

`unmask.weights.build` and `unmask.weights.write.save` need torch, so import them from their own
modules; the names exported here do not import torch.
"""

from unmask.weights.read.checkpoint import Checkpoint, read_checkpoint
from unmask.weights.read.find import DEFAULT, Source, find

__all__ = ["DEFAULT", "Checkpoint", "Source", "find", "read_checkpoint"]
