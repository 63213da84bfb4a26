"""95 % intervals of figures: of samples with replacement (bootstrap), and of shares of independent draws."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95

NORMAL_95 = 1.959963984540054
"""The 97.5 % quantile of the normal distribution."""

RESAMPLES, LARGE = 1000, 5000
"""Samples of a bootstrap, a fifth of them for more than ``LARGE`` items, whose intervals are narrow."""


@dataclass(frozen=True)
class Interval:
    """Where the figure of other items of the same kind would be, for 95 of 100 such intervals."""

    low: float
    high: float

    def __format__(self, form: str) -> str:
        """Its ends, both in this form of a number."""
        return f"{self.low:{form}} to {self.high:{form}}"


def samples(items: int) -> Iterator[NDArray[np.int64]]:
    """The indices of each sample with replacement, the same ones in every call."""
    draw = np.random.default_rng(0)
    for _ in range(RESAMPLES if items <= LARGE else RESAMPLES // 5):
        yield draw.integers(0, items, items)


@lru_cache(maxsize=2)
def sample_counts(items: int) -> NDArray[np.float64]:
    """How often each item is in each of `samples`, (samples, items); a product with it sums over samples."""
    counted = np.stack([np.bincount(sample, minlength=items) for sample in samples(items)]).astype(np.float64)
    counted.setflags(write=False)
    return counted


def percentile_interval(values: Sequence[float]) -> Interval:
    """The interval between percentiles of a figure's values on samples."""
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(values, (tail, 1 - tail))
    return Interval(float(low), float(high))


def wilson_interval(share: float, count: int) -> Interval:
    """The interval of a share of ``count`` independent draws (Wilson 1927)."""
    z2 = NORMAL_95**2
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    spread = NORMAL_95 * math.sqrt(share * (1 - share) / count + z2 / (4 * count**2)) / (1 + z2 / count)
    return Interval(max(0.0, middle - spread), min(1.0, middle + spread))


def ratio_interval(parts: NDArray[np.floating], wholes: NDArray[np.floating]) -> Interval:
    """The interval of a sum over items by another, such as right words by words over sentences, from samples
    of the items in which the second is not 0."""
    counts = sample_counts(len(parts))
    totals = counts @ wholes
    return percentile_interval(((counts @ parts)[totals > 0] / totals[totals > 0]).tolist())
