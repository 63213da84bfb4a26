"""Pack whole chunks into bins of a bounded number of tokens."""

from bisect import bisect_left, insort

import numpy as np
from numpy.typing import NDArray


def pack(
    costs: NDArray[np.int64], capacity: int, bins: int | None = None, waited: int = 0
) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
    """Fill bins with chunks; chunks that fit into none of them are left over.

    If bins are much larger than chunks, most of each bin is filled with chunks in order, so that a bin has
    chunks of all lengths; the remaining chunks, longest first, go where they leave the least room (best-fit
    decreasing, Johnson 1973). If bins are small, all chunks are placed by best fit.

    Args:
        costs: tokens of each chunk, special tokens included, at most ``capacity`` each, shape (N,).
        capacity: tokens per bin.
        bins: number of bins to fill; None for as many as hold all chunks.
        waited: number of chunks at the start that were left over before; they are placed first, so that none
        waits forever.

    Returns:
        The chunks of each non-empty bin, as indices; and those left over, in order.
    """
    if bins is None:
        return _best_fit(costs, np.argsort(-costs, kind="stable"), capacity, [], None)
    largest = int(costs.max(initial=1))
    reserve = max(2 * largest, capacity // 8)
    start: list[NDArray[np.int64]] = []
    rest = np.arange(len(costs))
    if 2 * reserve <= capacity:
        start, rest = _as_they_come(costs, capacity - reserve, bins)
    # Longest first, but chunks that have waited come before all others.
    order = rest[np.lexsort((-costs[rest], rest >= waited))]
    return _best_fit(costs, order, capacity, start, bins)


def _as_they_come(
    costs: NDArray[np.int64], level: int, bins: int
) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
    """Fill every bin in order to ``level``, exceeding it by at most one chunk; also return the remaining
    chunks."""
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
    contents = [list(chunks) for chunks in start]
    # (room, bin), sorted: the first that is large enough leaves the least room.
    rooms = sorted((capacity - int(costs[chunks].sum()), number) for number, chunks in enumerate(start))
    left: list[int] = []
    for chunk, cost in zip(order.tolist(), costs[order].tolist(), strict=True):
        at = bisect_left(rooms, (cost, 0))
        if at < len(rooms):
            room, number = rooms.pop(at)
        elif bins is None or len(contents) < bins:
            room, number = capacity, len(contents)
            contents.append([])
        else:
            left.append(chunk)
            continue
        contents[number].append(chunk)
        if room > cost:
            insort(rooms, (room - cost, number))
    return [np.array(content, dtype=np.int64) for content in contents], np.array(sorted(left), dtype=np.int64)
