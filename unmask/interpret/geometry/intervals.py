"""Confidence intervals for tokens: leave out one run of consecutive tokens at a time.

The usual bootstrap samples points with replacement, so some appear twice. Their distance is 0, which
invalidates every neighbor-based measure, and the rank of the sample is lower than that of the text, which
biases measures of the spectrum. Tokens of one text are not independent samples either. This module uses the
block jackknife (Kuensch 1989): the tokens, in text order, are split into ten runs, and everything is
computed ten more times, each time without one run, including the neighbors. For independent points, the
interval is on average never too narrow (Efron and Stein 1981), and about 1.5 times too wide for
neighbor-based measures.

Axes: G runs of tokens, each left out once.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.interpret.geometry.values import Estimate

BLOCKS = 10
STUDENT = 2.262
"""The 97.5 % quantile of Student's t with nine degrees of freedom, one less than the number of blocks."""
MOST_POINTS = 4096


def blocks_of(n: int) -> NDArray[np.int64]:
    """The index of the run, of ten consecutive ones, of each of ``n`` points, (N,)."""
    return np.arange(n) * BLOCKS // n


def with_interval(value: float, without_one: Sequence[float], n: int) -> Estimate:
    """The estimate of all points with its 95 % interval, from the estimates without each block.

    The interval is value +- t s, with s^2 = (G - 1) / G times the sum of squared deviations of the G
    estimates from their mean.
    """
    values_G = np.asarray(without_one, dtype=np.float64)
    blocks = len(values_G)
    error = float(np.sqrt((blocks - 1) / blocks * ((values_G - values_G.mean()) ** 2).sum()))
    return Estimate(float(value), float(value) - STUDENT * error, float(value) + STUDENT * error, n)


def generator(seed: int) -> np.random.Generator:
    """A random number generator with this seed.

    Raises:
        InvalidRequest: the seed is negative or has more than 63 bits.
    """
    if not 0 <= seed < 2**63:
        raise InvalidRequest(f"seed is {seed}; it must be from 0 to {2**63 - 1}")
    return np.random.default_rng(seed)


def sample(n: int, most: int, seed: int) -> NDArray[np.int64]:
    """Indices of the points to measure, ascending: all ``n``, or ``most`` drawn without replacement.

    Raises:
        InvalidRequest: ``most`` is below 1 or above 4,096.
    """
    if not 1 <= most <= MOST_POINTS:
        raise InvalidRequest(f"points is {most}; it must be from 1 to {MOST_POINTS}")
    if n <= most:
        return np.arange(n)
    return np.sort(generator(seed).choice(n, most, replace=False))


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, by its expansion in 1 / ``freedom``; from 7 on accurate to 0.01."""
    z = 1.959964
    first = (z**3 + z) / (4 * freedom)
    return z + first + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
