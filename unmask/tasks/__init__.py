"""Tasks of an encoder: text in, typed result out.

Each task needs torch and has its own module; the names exported here do not import torch.
"""

from unmask.tasks.progress import Progress

__all__ = ["Progress"]
