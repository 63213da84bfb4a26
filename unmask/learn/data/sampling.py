"""Which source the next piece comes from: always the one that is furthest behind its share of the tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InvalidRequest

Lengths = Callable[[int, int, int], NDArray[np.int64]]
"""Of a source: the lengths of its pieces from a position on, and how many of them."""


@dataclass(frozen=True)
class SourceCursor:
    """What a source has given so far; the whole state of a mixture is one of these for each."""

    pieces: int = 0
    tokens: int = 0


@dataclass(frozen=True, eq=False)
class SampledChunks:
    """Pieces in the order in which a mixture gives them, shape (N,) each."""

    sources: NDArray[np.int64]
    positions: NDArray[np.int64]
    """Counted from the source's first piece, over all epochs."""
    lengths: NDArray[np.int64]


def shares(weights: Sequence[float]) -> NDArray[np.float64]:
    """Weights made to add up to 1; each must be above 0."""
    for weight in weights:
        if not 0 < weight < float("inf"):
            raise InvalidRequest(f"a source has weight {weight}; it must be above 0")
    if not weights:
        raise InvalidRequest("a mixture needs at least one source, and none was given")
    values = np.array(weights, dtype=np.float64)
    return values / float(values.sum())


def draw(
    lengths: Lengths,
    given: Sequence[SourceCursor],
    *,
    share_S: NDArray[np.float64],
    mean_S: Sequence[float],
    cost: int,
    extra: int,
) -> tuple[SampledChunks, list[SourceCursor]]:
    """The next pieces, just so many that they cost ``cost`` tokens, and the state after them.

    The next piece is of the source with the smallest quotient of tokens given and share, the first of
    those in a tie. Put differently, each piece has the quotient of its source just before it as its time,
    and pieces come in the order of their times; so the order does not depend on how many are drawn at once.

    Args:
        lengths: tokens of the pieces that a source gives next.
        given: the state of each source.
        share_S: of each source, adding up to 1.
        mean_S: tokens of a source's average piece, from which it is guessed how many are needed.
        cost: at least how much the pieces must cost together.
        extra: what a piece costs beside its tokens.
    """
    total = float(np.sum([share / mean for share, mean in zip(share_S, mean_S, strict=True)]))
    pieces = max(1.0, cost / (1 / total + extra))
    while True:
        parts, settled = [], np.inf
        for source, (state, share, mean) in enumerate(zip(given, share_S, mean_S, strict=True)):
            some = lengths(source, state.pieces, int(pieces * share / mean / total * 1.05) + 16)
            tokens = state.tokens + np.concatenate(([0], np.cumsum(some)))
            times = tokens / share
            settled = min(settled, times[-1])
            parts.append((np.full(len(some), source), state.pieces + np.arange(len(some)), some, times[:-1]))
        sources, positions, sizes, times = (np.concatenate(part) for part in zip(*parts, strict=True))
        order = np.argsort(times, kind="stable")
        # A piece that was not looked at yet could come as early as `settled`.
        order = order[times[order] < settled]
        costs = np.cumsum(sizes[order] + extra)
        if len(costs) and costs[-1] >= cost:
            order = order[: int(np.searchsorted(costs, cost)) + 1]
            drawn = SampledChunks(sources[order], positions[order], sizes[order])
            return drawn, _after(drawn, given)
        pieces *= 1.5


def _after(drawn: SampledChunks, given: Sequence[SourceCursor]) -> list[SourceCursor]:
    pieces = np.bincount(drawn.sources, minlength=len(given))
    tokens = np.bincount(drawn.sources, weights=drawn.lengths, minlength=len(given))
    return [
        SourceCursor(state.pieces + int(more), state.tokens + int(sum_))
        for state, more, sum_ in zip(given, pieces, tokens, strict=True)
    ]
