"""The order of a source's chunks in each epoch: all of them shuffled, or those of a few files at a time."""

import numpy as np
from numpy.typing import NDArray

from unmask.training.data.order import key_of, permute, permute_each
from unmask.training.data.shards import ShardSet


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
        found = np.empty_like(positions)
        for number, epoch in enumerate(epochs.tolist()):
            of_it = np.flatnonzero(which == number)
            files, bounds = self._windows(epoch)
            windows = np.searchsorted(bounds, within[of_it], side="right") - 1
            for window in np.unique(windows).tolist():
                there = of_it[windows == window]
                size = int(bounds[window + 1] - bounds[window])
                key = key_of("window", seed, name, epoch, window)
                found[there] = self._in_files(
                    permute(within[there] - bounds[window], size, key), files[window]
                )
        return found

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
            self._made = {one: made for one, made in self._made.items() if abs(one - epoch) == 1}
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
