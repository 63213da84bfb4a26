"""Distances of uniform attention, the baseline of a head's mean distance."""

import numpy as np
from numpy.typing import NDArray


def uniform_distance(keys_HN: NDArray[np.int32]) -> NDArray[np.float64]:
    """Mean distance from query to key under uniform attention, in tokens, (H,).

    ``keys_HN`` is the number of keys of each query. They are taken to lie around the query, evenly to both
    sides as far as the text goes: exact for full attention and for windows, too short where single keys far
    away are allowed too.
    """
    length = keys_HN.shape[-1]
    at_N = np.arange(length)
    side = (int(keys_HN.max()) - 1) / 2
    whole_HN = keys_HN == length
    before = np.where(whole_HN, at_N, np.minimum(at_N, side))
    after = np.where(whole_HN, length - 1 - at_N, np.minimum(length - 1 - at_N, side))
    total = before * (before + 1) / 2 + after * (after + 1) / 2
    return np.asarray((total / (before + after + 1)).mean(axis=-1))
