"""Intrinsic dimension from distances to neighbors, as pure functions of those distances.

Each function takes r_MK, the positive distances of M points to their K nearest neighbors, nearest first.

Axes: K neighbors; J neighbors closer than the last.
"""

import numpy as np

from unmask.interpret.geometry.values import FloatArray

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
    kept = int(len(log_M) * KEPT)
    return float((kept - 1) / (log_M[:kept].sum() + (len(log_M) - kept) * log_M[kept - 1]))


def two_nn_slope(r_MK: FloatArray) -> float:
    """TwoNN as published: the slope through 0 of -log(1 - F) on log(r_2 / r_1), largest tenth left out.

    F is the rank of a ratio divided by M (Facco et al. 2017).
    """
    log_M = np.sort(np.log(r_MK[:, 1] / r_MK[:, 0]))
    kept = int(len(log_M) * KEPT)
    height = -np.log1p(-np.arange(1, kept + 1) / len(log_M))
    return float(log_M[:kept] @ height / (log_M[:kept] @ log_M[:kept]))


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
