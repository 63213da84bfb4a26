"""Distances to neighbors, and intrinsic dimension as pure functions of those distances.

Each of these takes r_MK, the positive distances of M points to their K nearest neighbors, nearest first.

Axes: K neighbors; J neighbors closer than the last; Q candidate neighbors; G blocks of points, each left out
once.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unmask.interpret.geometry.values import BLOCKS, FloatArray, blocks_of

KEPT = 0.9
"""The share of ratios that TwoNN fits; the largest tenth deviates most from a local Poisson process."""


def two_nn(r_MK: FloatArray) -> float:
    """TwoNN by maximum likelihood (Facco et al. 2017, https://doi.org/10.1038/s41598-017-11873-y).

    log(r_2 / r_1) is exponential with rate d. The largest tenth of the ratios is censored, not discarded:
    each is known to be at least as large as the largest kept ratio. d = (k - 1) / (sum of the k kept logs +
    (M - k) times the largest of them), which is unbiased; without censoring it is (M - 1) / sum.
    The paper fits a slope instead; see `two_nn_slope`.
    """
    log_M = np.sort(np.log(r_MK[:, 1] / r_MK[:, 0]))
    count = int(len(log_M) * KEPT)
    return float((count - 1) / (log_M[:count].sum() + (len(log_M) - count) * log_M[count - 1]))


def two_nn_slope(r_MK: FloatArray) -> float:
    """TwoNN as published: the slope through 0 of -log(1 - F) on log(r_2 / r_1), largest tenth left out.

    F is the rank of a ratio divided by M (Facco et al. 2017).
    """
    log_M = np.sort(np.log(r_MK[:, 1] / r_MK[:, 0]))
    count = int(len(log_M) * KEPT)
    height = -np.log1p(-np.arange(1, count + 1) / len(log_M))
    return float(log_M[:count] @ height / (log_M[:count] @ log_M[:count]))


def gride(r_MK: FloatArray, k: int) -> float:
    """The dimension at the scale of the k-th to 2k-th neighbor (Denti et al. 2022, GRIDE).

    https://doi.org/10.1038/s41598-022-20991-1. The ratio mu = r_2k / r_k has density proportional to
    d (mu^d - 1)^(k-1) / mu^((2k-1) d + 1), and d is the root of the score of M ratios, with M - 1
    in place of M as in the authors' program, so that k = 1 is TwoNN without censoring.
    Tied neighbors (mu = 1) carry no information and are left out.
    """
    log_M = np.log(r_MK[:, 2 * k - 1] / r_MK[:, k - 1])
    log_M = log_M[log_M > 0]
    count, total = len(log_M) - 1, float(log_M.sum())
    d = count / (k * total)
    # The score is decreasing and convex and the start is left of its root, so Newton's steps never overshoot.
    for _ in range(60):
        shrunk_M = -np.expm1(-d * log_M)
        score = count / d + (k - 1) * (log_M / shrunk_M).sum() - (2 * k - 1) * total
        slope = -count / d**2 - (k - 1) * (log_M**2 * (1 - shrunk_M) / shrunk_M**2).sum()
        step = -score / slope
        d += step
        if abs(step) <= 1e-12 * d:
            break
    return float(d)


def levina_bickel(r_MK: FloatArray, k: int) -> float:
    """The maximum-likelihood dimension from k neighbors (Levina and Bickel 2004).

    The inverse estimates of points are averaged, not the estimates (MacKay and Ghahramani 2005), which
    removes most of the bias at small k: d = M (k - 1) / sum over points and j < k of log(r_k / r_j).
    """
    logs_MJ = np.log(r_MK[:, k - 1 : k] / r_MK[:, : k - 1])
    return float(1.0 / logs_MJ.mean())


def levina_bickel_band(r_MK: FloatArray, first: int, last: int) -> FloatArray:
    """`levina_bickel` for every k from ``first`` to ``last``."""
    return np.array([levina_bickel(r_MK, k) for k in range(first, last + 1)])


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
        return np.asarray(self.r_GMK[block][self.blocks_M != block])


def distinct(x_ND: FloatArray, tick: Callable[[], None] = nothing) -> NDArray[np.int64]:
    """Indices of the points without duplicates, ascending; ``tick`` is called for every block."""
    scale = EQUAL * _scale(x_ND)
    # Compare bytes first: in an embedding without positions, all occurrences of a word are the same row.
    rows = np.ascontiguousarray(x_ND).view(np.dtype((np.void, x_ND.shape[1] * x_ND.itemsize)))
    unique = np.sort(np.unique(rows.ravel(), return_index=True)[1])
    y_MD = x_ND[unique] - x_ND.mean(0)
    square_M = (y_MD**2).sum(1)
    first = np.ones(len(unique), dtype=bool)
    for start in range(0, len(unique), ROWS_AT_ONCE):
        rows_R = np.arange(start, min(start + ROWS_AT_ONCE, len(unique)))
        tick()
        near_RM = _squares(y_MD, square_M, rows_R, rows_R[-1] + 1) <= scale
        near_RM &= np.arange(near_RM.shape[1]) < rows_R[:, None]
        first[rows_R] = ~near_RM.any(1)
    return unique[first]


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
        nearest_RQ = np.take_along_axis(square_RM, near_RQ, 1)
        r_MK[rows_R] = np.sqrt(np.maximum(nearest_RQ[:, :k], 0))
        for g in range(parts):
            assert blocks_M is not None
            left_RK = _nearest_remaining(square_RM, near_RQ, nearest_RQ, blocks_M == g, k)
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


def _nearest_remaining(
    square_RM: FloatArray,
    near_RQ: NDArray[np.int64],
    nearest_RQ: FloatArray,
    gone_M: NDArray[np.bool_],
    k: int,
) -> FloatArray:
    """The ``k`` smallest squared distances of each row to the remaining points."""
    gone_RQ = gone_M[near_RQ]
    order_RQ = np.argsort(gone_RQ, axis=1, kind="stable")[:, :k]
    left_RK: FloatArray = np.take_along_axis(nearest_RQ, order_RQ, 1)
    short_R = (~gone_RQ).sum(1) < k
    if short_R.any():
        whole_SM = np.where(gone_M, np.inf, square_RM[short_R])
        left_RK[short_R] = np.sort(np.partition(whole_SM, k - 1, axis=1)[:, :k], axis=1)
    return left_RK
