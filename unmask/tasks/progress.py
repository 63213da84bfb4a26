"""How long work says how far it is."""

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called as ``progress(done, total)`` after each part of the work."""
