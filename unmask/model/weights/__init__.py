"""Checkpoint folders: found, read, claimed tensor by tensor, built, and written back.

Torch is needed by `unmask.model.weights.build` and `unmask.model.weights.save`, so they are named by
their own modules; what is listed here is free of it.
"""

from unmask.model.weights.checkpoint import Checkpoint, read_checkpoint
from unmask.model.weights.find import DEFAULT, find
from unmask.model.weights.source import Source

__all__ = ["DEFAULT", "Checkpoint", "Source", "find", "read_checkpoint"]
