"""Bootstrap intervals: the figure of samples with replacement."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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


def percentile_interval(values: Sequence[float]) -> Interval:
    """The interval between percentiles of a figure's values on samples."""
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(values, (tail, 1 - tail))
    return Interval(float(low), float(high))
