"""Tasks of an encoder: text in, typed result out. Free of torch."""

from unmask.base.progress import Progress

__all__ = ["Progress"]
