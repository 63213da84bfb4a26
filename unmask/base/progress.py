"""How long-running work reports progress and is stopped, and how its counts are written."""

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called as ``progress(done, total)`` after each part of the work."""

Watch = Callable[[str, int, int], None]
"""``watch(what, done, total)``, called after each layer of a forward pass and each block of rows.

``what`` is ``"reading"`` (done and total count layers) or ``"measuring"`` (they count cells of attention),
or a name given by another analysis. It may raise `unmask.errors.Cancelled`, which stops the work and
keeps what is finished, and it may block: a server answers other requests in it.
"""


def unwatched(what: str, done: int, total: int) -> None:
    """A `Watch` that does nothing."""


def counted(number: int, what: str) -> str:
    """A number with its noun, in the plural unless the number is 1."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")
