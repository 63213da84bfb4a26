"""The progress callback of long tasks."""

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called as ``progress(done, total)`` after each part of the work."""
