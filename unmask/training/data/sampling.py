"""The order in which chunks are read: shuffled within each epoch, and mixed between sources by share.

An order is computed instead of stored: a keyed permutation of the first n numbers.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.training.data.shards import ShardSet

ROUNDS = 8

_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def key_of(*parts: int | str) -> int:
    """A 64-bit key from numbers and names; equal parts give equal keys on every machine."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little")


def permute(index: NDArray[np.int64], count: int, key: int) -> NDArray[np.int64]:
    """Apply a keyed permutation of ``range(count)`` to some numbers, in time proportional to their count.

    A Feistel network permutes the numbers below a power of 4 that is at least ``count``; results outside the
    range are permuted again until they are inside (cycle walking, Black & Rogaway 2002). This is for
    shuffling; it is not a cipher.

    Args:
        index: numbers from 0 to ``count`` - 1, shape (N,).
        count: how many numbers are permuted, at least 1.
        key: chooses the permutation.
    """
    return permute_each(index, count, [key], np.zeros(len(index), dtype=np.int64))


def permute_each(
    index: NDArray[np.int64], count: int, keys: Sequence[int], which: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Like `permute`, with the key ``keys[which[i]]`` for number i."""
    half = max(2, (max(count - 1, 1).bit_length() + 1) // 2)
    table = np.array([[key_of(key, round_) for key in keys] for round_ in range(ROUNDS)], dtype=np.uint64)
    result = _network(index.astype(np.uint64), half, table, which)
    outside = np.flatnonzero(result >= count)
    while len(outside):
        result[outside] = _network(result[outside], half, table, which[outside])
        outside = outside[result[outside] >= count]
    return result.astype(np.int64)


def _network(
    value: NDArray[np.uint64], half: int, table: NDArray[np.uint64], which: NDArray[np.int64]
) -> NDArray[np.uint64]:
    bits, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = value >> bits, value & mask
    for keys in table:
        mixed = right + keys[which]
        # The finalizer of splitmix64 (Steele, Lea & Flood 2014).
        mixed = (mixed ^ (mixed >> np.uint64(30))) * _MULTIPLIERS[0]
        mixed = (mixed ^ (mixed >> np.uint64(27))) * _MULTIPLIERS[1]
        left, right = right, left ^ ((mixed ^ (mixed >> np.uint64(31))) & mask)
    return (left << bits) | right


class EpochOrder:
    """Which chunk is at each position of a source's endless sequence.

    Args:
        shards: the source.
        seed: determines the order of every epoch.
        shuffle_files: None shuffles all chunks of an epoch. Otherwise the files of ids are shuffled and cut
            into windows of so many, and chunks are shuffled within each window, so that few files are read
            at a time.
    """

    def __init__(self, shards: ShardSet, seed: int, shuffle_files: int | None) -> None:
        self._shards, self._seed, self._shuffle_files = shards, seed, shuffle_files
        self._made: dict[int, tuple[list[NDArray[np.int64]], NDArray[np.int64]]] = {}

    def chunks(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers of the chunks at these positions, shape (N,)."""
        count, seed, name = self._shards.count, self._seed, self._shards.name
        epochs, which = np.unique(positions // count, return_inverse=True)
        within = positions % count
        if self._shuffle_files is None:
            keys = [key_of("order", seed, name, epoch) for epoch in epochs.tolist()]
            return permute_each(within, count, keys, which)
        chunks = np.empty_like(positions)
        for number, epoch in enumerate(epochs.tolist()):
            of_it = np.flatnonzero(which == number)
            files, bounds = self._windows(epoch)
            windows = np.searchsorted(bounds, within[of_it], side="right") - 1
            for window in np.unique(windows).tolist():
                there = of_it[windows == window]
                size = int(bounds[window + 1] - bounds[window])
                key = key_of("window", seed, name, epoch, window)
                chunks[there] = self._in_files(
                    permute(within[there] - bounds[window], size, key), files[window]
                )
        return chunks

    def files(self, position: int) -> list[int]:
        """The files that are read from a position on: those of its window, then those of the next."""
        if self._shuffle_files is None:
            return list(range(len(self._shards.file_starts) - 1))
        epoch, within = divmod(position, self._shards.count)
        files, bounds = self._windows(epoch)
        window = int(np.searchsorted(bounds, within, side="right")) - 1
        later = files[window + 1] if window + 1 < len(files) else self._windows(epoch + 1)[0][0]
        return list(dict.fromkeys([*files[window].tolist(), *later.tolist()]))

    def _windows(self, epoch: int) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
        """The files of each window of an epoch, and the first position of each, followed by N."""
        if epoch not in self._made:
            self._made = {
                number: windows for number, windows in self._made.items() if abs(number - epoch) == 1
            }
            self._made[epoch] = self._make_windows(epoch)
        return self._made[epoch]

    def _make_windows(self, epoch: int) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
        sizes = np.diff(self._shards.file_starts)
        key = key_of("files", self._seed, self._shards.name, epoch)
        files = permute(np.arange(len(sizes)), len(sizes), key)
        step = self._shuffle_files or len(sizes)
        windows = [files[start : start + step] for start in range(0, len(files), step)]
        return windows, np.concatenate(([0], np.cumsum([sizes[window].sum() for window in windows])))

    def _in_files(self, index: NDArray[np.int64], files: NDArray[np.int64]) -> NDArray[np.int64]:
        """The chunks with these numbers in some files laid end to end."""
        first = self._shards.file_starts[files]
        before = np.concatenate(([0], np.cumsum(self._shards.file_starts[files + 1] - first)))
        which = np.searchsorted(before, index, side="right") - 1
        return first[which] + index - before[which]


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
        before: the state of each source.
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
            samples = SampledChunks(sources[order], positions[order], sizes[order])
            return samples, _after(samples, before)
        chunks *= 1.5


def _after(samples: SampledChunks, before: Sequence[SourceCursor]) -> list[SourceCursor]:
    chunks = np.bincount(samples.sources, minlength=len(before))
    tokens = np.bincount(samples.sources, weights=samples.lengths, minlength=len(before))
    return [
        SourceCursor(state.chunks + int(more), state.tokens + int(sum_))
        for state, more, sum_ in zip(before, chunks, tokens, strict=True)
    ]
