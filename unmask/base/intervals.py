"""Bootstrap intervals: the figure of samples with replacement."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95

RESAMPLES, LARGE = 1000, 5000
"""Samples of a bootstrap, a fifth of them for more than ``LARGE`` items, whose intervals are narrow."""


@dataclass(frozen=True)
class Interval:
    """Where the figure of other items of the same kind would be, for 95 of 100 such intervals."""

    low: float
    high: float


def samples(items: int) -> Iterator[NDArray[np.int64]]:
    """The indices of each sample with replacement, the same ones in every call."""
    draw = np.random.default_rng(0)
    for _ in range(RESAMPLES if items <= LARGE else RESAMPLES // 5):
        yield draw.integers(0, items, items)


@lru_cache(maxsize=2)
def sample_counts(items: int) -> NDArray[np.float64]:
    """How often each item is in each of `samples`, (samples, items); a product with it sums over samples."""
    counted = np.stack([np.bincount(one, minlength=items) for one in samples(items)]).astype(np.float64)
    counted.setflags(write=False)
    return counted


def percentile_interval(values: Sequence[float]) -> Interval:
    """The interval between percentiles of a figure's values on samples."""
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(values, (tail, 1 - tail))
    return Interval(float(low), float(high))
