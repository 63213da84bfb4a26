"""How long-running work reports progress and is stopped; and bounds on what oneDNN and torch keep for it."""

import os
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


CAPACITY = "64"
"""Products that each cache keeps. Those of one step repeat, and those of two packed batches rarely do."""

CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""The variables that set it: for oneDNN's cache of compiled products, and for torch's own in front of it."""


def bound_caches() -> None:
    """Set the variables that are not set. It must run before the first product through oneDNN, where they are
    read.

    Each cache has a product for each number of rows, 1,024 of them unless told otherwise. Batches of packed
    texts rarely have the same number twice, so training would take gigabytes and be no faster.
    """
    for name in CACHES:
        os.environ.setdefault(name, CAPACITY)
