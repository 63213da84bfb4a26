"""Learned sparse vectors over the passages of an index: one weight per word of the model's vocabulary.

Axes: P passages; N nonzero weights.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]


class SparseBuilder:
    """Collects the sparse vectors of passages, in order."""

    def __init__(self) -> None:
        self._ids: list[NDArray[np.int32]] = []
        self._weights: list[Floats] = []

    def add(self, ids: Ids, weights: Floats) -> None:
        """Add the vector of the next passage; each id occurs once."""
        self._ids.append(ids.astype(np.int32))
        self._weights.append(weights.astype(np.float32))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays of a segment: its words in order, and for each the passages that weigh it."""
        sizes = list(map(len, self._ids))
        ids_N = np.concatenate([np.empty(0, np.int32), *self._ids])
        weights_N = np.concatenate([np.empty(0, np.float32), *self._weights])
        passages_N = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        by_word = np.argsort(ids_N, kind="stable")
        words, starts = np.unique(ids_N[by_word], return_index=True)
        return {
            "sparse/words": words,
            "sparse/postings": np.append(starts, len(ids_N)).astype(np.int64),
            "sparse/passages": passages_N[by_word],
            "sparse/weights": weights_N[by_word],
        }


class Sparse:
    """Dot products of sparse vectors with those of all segments, which are numbered through.

    Args:
        segments: the arrays of each segment, as `SparseBuilder` made them.
        sizes: the number of passages of each.
    """

    def __init__(self, segments: Sequence[Mapping[str, NDArray[Any]]], sizes: Sequence[int]) -> None:
        self._segments = segments
        self._sizes = sizes
        self.passages = sum(sizes)

    def scores(self, ids: Ids, weights: Floats) -> Floats:
        """The score of every passage, (P,), float32."""
        scores_P = np.zeros(self.passages, dtype=np.float64)
        for start, arrays in self._placed():
            for id, weight in zip(ids.tolist(), weights.tolist(), strict=True):
                passages, weights_N = _postings(arrays, id)
                scores_P[start + passages] += weight * weights_N.astype(np.float64)
        return scores_P.astype(np.float32)

    def explain(self, ids: Ids, weights: Floats, passage: int) -> list[tuple[int, float]]:
        """What each word adds to the score of a passage: ids and products, largest first."""
        shares = []
        for start, arrays in self._placed():
            for id, weight in zip(ids.tolist(), weights.tolist(), strict=True):
                passages, weights_N = _postings(arrays, id)
                at = np.flatnonzero(passages == passage - start)
                if len(at):
                    shares.append((id, weight * float(weights_N[at[0]])))
        return sorted(shares, key=lambda weight: (-weight[1], weight[0]))

    def _placed(self) -> list[tuple[int, Mapping[str, NDArray[Any]]]]:
        starts = np.cumsum([0, *self._sizes]).tolist()
        return list(zip(starts, self._segments, strict=False))


def _postings(arrays: Mapping[str, NDArray[Any]], id: int) -> tuple[NDArray[np.int32], Floats]:
    words = arrays["sparse/words"]
    row = int(np.searchsorted(words, id))
    if row == len(words) or words[row] != id:
        return np.empty(0, np.int32), np.empty(0, np.float32)
    start, end = arrays["sparse/postings"][row : row + 2]
    return arrays["sparse/passages"][start:end], arrays["sparse/weights"][start:end]
