"""Bounds on what oneDNN and torch keep for products that they have computed."""

import os

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
