"""How long work says where it is, and how it is stopped."""

from collections.abc import Callable

Watch = Callable[[str, int, int], None]
"""``watch(what, done, total)``, called after each layer of a forward pass and each block of rows.

``what`` is ``"reading"`` (done and total count layers) or ``"measuring"`` (they count cells of attention),
or what another analysis says of itself. It may raise `unmask.errors.Cancelled`, which stops the work and
leaves what is finished, and it may take its time: a server answers other requests in it.
"""


def unwatched(what: str, done: int, total: int) -> None:
    """A `Watch` that does nothing."""
