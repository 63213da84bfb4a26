"""Pieces into bins of a bounded number of tokens, whole and as full as can be."""

from bisect import bisect_left, insort

import numpy as np
from numpy.typing import NDArray


def pack(
    costs: NDArray[np.int64], capacity: int, bins: int | None = None, waited: int = 0
) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
    """Fill bins with pieces; what fits into none of them is left over.

    Where bins are much larger than pieces, most of each bin is filled with pieces as they come, so that
    a bin has pieces of all lengths; the rest of the pieces, longest first, go where they leave the least
    room (best-fit decreasing, Johnson 1973). Where bins are small, all pieces are placed in that way.

    Args:
        costs: tokens of each piece, special ones included, at most ``capacity`` each, shape (N,).
        capacity: tokens of a bin.
        bins: how many to fill; None for as many as hold all pieces.
        waited: how many pieces at the beginning were left over before; a bin is found for them first, so
            that none waits for ever.

    Returns:
        The pieces of each bin, none of which is empty, as indices; and those left over, in their order.
    """
    if bins is None:
        return _best_fit(costs, np.argsort(-costs, kind="stable"), capacity, [], None)
    largest = int(costs.max(initial=1))
    reserve = max(2 * largest, capacity // 8)
    start: list[NDArray[np.int64]] = []
    rest = np.arange(len(costs))
    if 2 * reserve <= capacity:
        start, rest = _as_they_come(costs, capacity - reserve, bins)
    # Longest first, but those that have waited before all others.
    order = rest[np.lexsort((-costs[rest], rest >= waited))]
    return _best_fit(costs, order, capacity, start, bins)


def _as_they_come(
    costs: NDArray[np.int64], level: int, bins: int
) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
    """Fill every bin to ``level`` and no more than one piece above, in order; and the pieces after those."""
    ends = np.cumsum(costs)
    start, filled = 0, []
    for _ in range(bins):
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + level)) + 1
        if stop >= len(costs):
            break
        filled.append(np.arange(start, stop))
        start = stop
    return filled, np.arange(start, len(costs))


def _best_fit(
    costs: NDArray[np.int64],
    order: NDArray[np.int64],
    capacity: int,
    start: list[NDArray[np.int64]],
    bins: int | None,
) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
    contents = [list(some) for some in start]
    # (room, bin), sorted: the first that is large enough is the one that leaves the least room.
    rooms = sorted((capacity - int(costs[some].sum()), number) for number, some in enumerate(start))
    left: list[int] = []
    for piece, cost in zip(order.tolist(), costs[order].tolist(), strict=True):
        at = bisect_left(rooms, (cost, 0))
        if at < len(rooms):
            room, number = rooms.pop(at)
        elif bins is None or len(contents) < bins:
            room, number = capacity, len(contents)
            contents.append([])
        else:
            left.append(piece)
            continue
        contents[number].append(piece)
        if room > cost:
            insort(rooms, (room - cost, number))
    return [np.array(some, dtype=np.int64) for some in contents], np.array(sorted(left), dtype=np.int64)
