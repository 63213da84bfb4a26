"""Several rankings as one: reciprocal rank fusion (Cormack, Clarke & Büttcher 2009)."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

RANK_CONSTANT = 60
"""k of the paper."""


def reciprocal_rank_fusion(
    rankings: Sequence[NDArray[np.int64]], weights: Sequence[float] | None = None
) -> Mapping[int, float]:
    """The sum over rankings of ``weight / (60 + rank)`` for each passage, ranks counted from 1.

    A passage that a ranking lacks gets nothing from it. Equal weights are 1.
    """
    fused: dict[int, float] = {}
    for ranking, weight in zip(rankings, weights or [1.0] * len(rankings), strict=True):
        for rank, passage in enumerate(ranking.tolist(), start=1):
            fused[passage] = fused.get(passage, 0.0) + weight / (RANK_CONSTANT + rank)
    return fused
