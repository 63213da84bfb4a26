"""Exact distances to the nearest neighbors, for all points and without each block.

Axes: K neighbors; Q candidate neighbors; G blocks of points, each left out once.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unmask.interpret.geometry.intervals import BLOCKS, blocks_of
from unmask.interpret.geometry.values import FloatArray

ROWS_AT_ONCE = 256
"""Rows computed at a time: distances of 256 rows to 4,096 points in float64 take 8 MB."""
SPARE = 96
"""Additional neighbors to keep, so that leaving out a block rarely requires the whole row again."""
EQUAL = 1e-13
"""Squared distance, relative to the mean squared norm, below which two points are equal: states are float32,
so a relative difference of 3e-7 is rounding."""


def nothing() -> None:
    """The default callback between blocks; does nothing."""


@dataclass(frozen=True, eq=False)
class Neighbors:
    """Distances of M distinct points to their K nearest neighbors, nearest first."""

    r_MK: FloatArray
    blocks_M: NDArray[np.int64]
    """The block of each point."""
    r_GMK: FloatArray
    """The same distances without block g, for each g; rows of block g itself have no meaning. Shape (0, M, K)
    if no interval was requested."""

    def without(self, block: int) -> FloatArray:
        """Distances among the points outside ``block``."""
        kept: FloatArray = self.r_GMK[block][self.blocks_M != block]
        return kept


def distinct(x_ND: FloatArray, tick: Callable[[], None] = nothing) -> NDArray[np.int64]:
    """Indices of the points without duplicates, ascending; ``tick`` is called for every block."""
    scale = EQUAL * _scale(x_ND)
    # Compare bytes first: in an embedding without positions, all occurrences of a word are the same row.
    rows = np.ascontiguousarray(x_ND).view(np.dtype((np.void, x_ND.shape[1] * x_ND.itemsize)))
    kept = np.sort(np.unique(rows.ravel(), return_index=True)[1])
    y_MD = x_ND[kept] - x_ND.mean(0)
    square_M = (y_MD**2).sum(1)
    first = np.ones(len(kept), dtype=bool)
    for start in range(0, len(kept), ROWS_AT_ONCE):
        rows_R = np.arange(start, min(start + ROWS_AT_ONCE, len(kept)))
        tick()
        near_RM = _squares(y_MD, square_M, rows_R, rows_R[-1] + 1) <= scale
        near_RM &= np.arange(near_RM.shape[1]) < rows_R[:, None]
        first[rows_R] = ~near_RM.any(1)
    return kept[first]


def neighbors(
    x_MD: FloatArray,
    k: int,
    blocks_M: NDArray[np.int64] | None = None,
    tick: Callable[[], None] = nothing,
) -> Neighbors:
    """Distances of each point to its ``k`` nearest neighbors, (M, k), without an M x M array.

    Args:
        x_MD: distinct points, more than ``k`` of them in any nine of the ten blocks.
        k: number of neighbors.
        blocks_M: the block of each point, to also compute distances without each block; None not to.
        tick: called for every block of rows; it may raise to stop.
    """
    y_MD = x_MD - x_MD.mean(0)
    square_M = (y_MD**2).sum(1)
    count = len(y_MD)
    parts = 0 if blocks_M is None else BLOCKS
    r_MK, r_GMK = np.empty((count, k)), np.empty((parts, count, k))
    for start in range(0, count, ROWS_AT_ONCE):
        rows_R = np.arange(start, min(start + ROWS_AT_ONCE, count))
        tick()
        square_RM = _squares(y_MD, square_M, rows_R, count)
        square_RM[np.arange(len(rows_R)), rows_R] = np.inf
        near_RQ = _nearest(square_RM, min(k + (SPARE if parts else 0), count - 1))
        found_RQ = np.take_along_axis(square_RM, near_RQ, 1)
        r_MK[rows_R] = np.sqrt(np.maximum(found_RQ[:, :k], 0))
        for g in range(parts):
            assert blocks_M is not None
            left_RK = _left(square_RM, near_RQ, found_RQ, blocks_M == g, k)
            r_GMK[g, rows_R] = np.sqrt(np.maximum(left_RK, 0))
    return Neighbors(r_MK, blocks_of(count) if blocks_M is None else blocks_M, r_GMK)


def _scale(x_ND: FloatArray) -> float:
    return float((x_ND**2).sum(1).mean())


def _squares(y_MD: FloatArray, square_M: FloatArray, rows_R: NDArray[np.int64], end: int) -> FloatArray:
    """Squared distances of some rows to the first ``end`` points; rounding may leave them just below 0."""
    product_RM: FloatArray = y_MD[rows_R] @ y_MD[:end].T
    product_RM *= -2
    product_RM += square_M[:end]
    product_RM += square_M[rows_R, None]
    return product_RM


def _nearest(square_RM: FloatArray, count: int) -> NDArray[np.int64]:
    some_RQ = np.argpartition(square_RM, count - 1, axis=1)[:, :count]
    order_RQ = np.argsort(np.take_along_axis(square_RM, some_RQ, 1), axis=1)
    return np.take_along_axis(some_RQ, order_RQ, 1)


def _left(
    square_RM: FloatArray,
    near_RQ: NDArray[np.int64],
    found_RQ: FloatArray,
    gone_M: NDArray[np.bool_],
    k: int,
) -> FloatArray:
    """The ``k`` smallest squared distances of each row to the remaining points."""
    gone_RQ = gone_M[near_RQ]
    order_RQ = np.argsort(gone_RQ, axis=1, kind="stable")[:, :k]
    left_RK: FloatArray = np.take_along_axis(found_RQ, order_RQ, 1)
    short_R = (~gone_RQ).sum(1) < k
    if short_R.any():
        whole_SM = np.where(gone_M, np.inf, square_RM[short_R])
        left_RK[short_R] = np.sort(np.partition(whole_SM, k - 1, axis=1)[:, :k], axis=1)
    return left_RK
