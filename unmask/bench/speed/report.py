"""What the reports of all protocols share."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MIB = 2**20


@dataclass(frozen=True)
class LeftOut:
    """Something that was not measured, and why."""

    name: str
    work: str
    """The part that was not measured; empty for all of it."""
    reason: str


@dataclass(frozen=True)
class Agreement:
    """Agreement of outputs with a reference."""

    largest_difference: float
    cosine_min: float
    """Over rows, which are embeddings of texts or states of tokens."""
    cosine_percentile_1: float
    cosine_mean: float


def agreement(found: NDArray[np.float32], reference: NDArray[np.float32]) -> Agreement:
    """Agreement of rows (S, E) with reference rows, computed in float64."""
    left, right = found.astype(np.float64), reference.astype(np.float64)
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    cosines = (left * right).sum(1) / np.maximum(lengths, np.finfo(np.float64).tiny)
    return Agreement(
        largest_difference=float(np.abs(left - right).max()),
        cosine_min=float(cosines.min()),
        cosine_percentile_1=float(np.percentile(cosines, 1)),
        cosine_mean=float(cosines.mean()),
    )


def sentence_of(error: BaseException) -> str:
    """The message of any error on one line; its class if the message is empty."""
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else f"{text[:297]}..." if text else type(error).__name__
