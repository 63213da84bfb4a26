"""Means over seeds with intervals, and differences between variants run with the same seeds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

T_975 = (
    *(12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157, 2.228139),
    *(2.200985, 2.178813, 2.160369, 2.144787, 2.131450, 2.119905, 2.109816, 2.100922, 2.093024, 2.085963),
)
"""The 97.5 % point of Student's t with 1, 2, ... degrees of freedom (Student 1908)."""

MOST_SEEDS = len(T_975) + 1


@dataclass(frozen=True)
class Mean:
    """A mean over runs."""

    mean: float
    half: float | None
    """Half of the 95 % interval, by Student's t; None for a single run."""
    count: int

    @property
    def clear(self) -> bool:
        """Whether zero is outside the interval."""
        return self.half is not None and abs(self.mean) > self.half


def mean_of(values: Sequence[float]) -> Mean | None:
    """The mean of independent values with its interval; None if there are no values."""
    if not values:
        return None
    count = len(values)
    mean = math.fsum(values) / count
    if count == 1:
        return Mean(mean, None, 1)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    return Mean(mean, T_975[count - 2] * deviation / math.sqrt(count), count)


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Mean | None:
    """The mean of ours minus theirs over the seeds of both, so that effects of the seed on both cancel."""
    return mean_of([value - theirs[seed] for seed, value in ours.items() if seed in theirs])
