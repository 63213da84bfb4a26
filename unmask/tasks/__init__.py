"""Tasks of an encoder: text in, typed result out. Free of torch."""

from unmask.tasks.progress import Progress

__all__ = ["Progress"]
