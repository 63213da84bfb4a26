"""Choose the source of the next chunk: always the one furthest behind its share of the tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InvalidRequest

Lengths = Callable[[int, int, int], NDArray[np.int64]]
"""Returns the lengths of a source's chunks, given the source, a start position and a count."""


@dataclass(frozen=True)
class SourceCursor:
    """What has been drawn from a source so far; the state of a mixture is one of these per source."""

    chunks: int = 0
    tokens: int = 0


@dataclass(frozen=True, eq=False)
class SampledChunks:
    """Chunks in the order of a mixture, shape (N,) each."""

    sources: NDArray[np.int64]
    positions: NDArray[np.int64]
    """Counted from the source's first chunk, over all epochs."""
    lengths: NDArray[np.int64]


def shares(weights: Sequence[float]) -> NDArray[np.float64]:
    """Normalize weights to sum to 1; each must be above 0."""
    for weight in weights:
        if not 0 < weight < float("inf"):
            raise InvalidRequest(f"a source has weight {weight}; it must be above 0")
    if not weights:
        raise InvalidRequest("a mixture needs at least one source, and none was given")
    values = np.array(weights, dtype=np.float64)
    return values / float(values.sum())


def draw(
    lengths: Lengths,
    before: Sequence[SourceCursor],
    *,
    share_S: NDArray[np.float64],
    mean_S: Sequence[float],
    cost: int,
    extra: int,
) -> tuple[SampledChunks, list[SourceCursor]]:
    """Draw just enough chunks to reach ``cost`` tokens, and return them with the state after them.

    The next chunk comes from the source with the smallest ratio of drawn tokens to share, the first one in a
    tie. Equivalently, each chunk's time is the ratio of its source just before it, and chunks are ordered by
    time; so the order does not depend on how many are drawn at once.

    Args:
        lengths: returns the tokens of a source's next chunks.
        given: the state of each source.
        share_S: share of each source, summing to 1.
        mean_S: mean tokens of a source's chunks, used to estimate how many are needed.
        cost: minimum total cost of the chunks.
        extra: cost of a chunk in addition to its tokens.
    """
    total = float(np.sum([share / mean for share, mean in zip(share_S, mean_S, strict=True)]))
    chunks = max(1.0, cost / (1 / total + extra))
    while True:
        parts, settled = [], np.inf
        for source, (state, share, mean) in enumerate(zip(before, share_S, mean_S, strict=True)):
            lengths_ = lengths(source, state.chunks, int(chunks * share / mean / total * 1.05) + 16)
            tokens = state.tokens + np.concatenate(([0], np.cumsum(lengths_)))
            times = tokens / share
            settled = min(settled, times[-1])
            parts.append(
                (
                    np.full(len(lengths_), source),
                    state.chunks + np.arange(len(lengths_)),
                    lengths_,
                    times[:-1],
                )
            )
        sources, positions, sizes, times = (np.concatenate(part) for part in zip(*parts, strict=True))
        order = np.argsort(times, kind="stable")
        # A chunk that has not been looked at yet could come as early as `settled`.
        order = order[times[order] < settled]
        costs = np.cumsum(sizes[order] + extra)
        if len(costs) and costs[-1] >= cost:
            order = order[: int(np.searchsorted(costs, cost)) + 1]
            drawn = SampledChunks(sources[order], positions[order], sizes[order])
            return drawn, _after(drawn, before)
        chunks *= 1.5


def _after(drawn: SampledChunks, before: Sequence[SourceCursor]) -> list[SourceCursor]:
    chunks = np.bincount(drawn.sources, minlength=len(before))
    tokens = np.bincount(drawn.sources, weights=drawn.lengths, minlength=len(before))
    return [
        SourceCursor(state.chunks + int(more), state.tokens + int(sum_))
        for state, more, sum_ in zip(before, chunks, tokens, strict=True)
    ]
