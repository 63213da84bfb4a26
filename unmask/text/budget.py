"""Group sequences of similar length into batches with a bounded number of tokens."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InvalidRequest


def token_budget_batches(lengths: NDArray[np.int64], token_budget: int) -> Iterator[NDArray[np.int64]]:
    """Split sequences into batches of at most ``token_budget`` tokens, longest first.

    Sequences of equal length become neighbors, and attention runs them as one rectangle. A sequence
    longer than the budget forms its own batch. The longest come first so that peak memory occurs at
    the start and the remaining time is not underestimated.

    Args:
        lengths: tokens of each sequence, shape (S,).
        token_budget: the maximum number of tokens per batch, at least 1.

    Yields:
        Indices into ``lengths``; every index occurs in exactly one batch.
    """
    if token_budget < 1:
        raise InvalidRequest(f"token_budget is {token_budget}; it must be at least 1")
    order = np.argsort(-lengths, kind="stable")
    start, tokens = 0, 0
    for end, sequence in enumerate(order):
        if end > start and tokens + lengths[sequence] > token_budget:
            yield order[start:end]
            start, tokens = end, 0
        tokens += int(lengths[sequence])
    if len(order):
        yield order[start:]
