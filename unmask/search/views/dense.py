"""Exact search with one vector per passage.

Axes: P passages; E features.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

ROWS_AT_ONCE = 65536
"""Vectors of a memory-mapped array that are multiplied at once."""

Floats = NDArray[np.float32]


class Dense:
    """Dot products of a query with the vectors of all segments, which are numbered through.

    Args:
        segments: the vectors of each segment, (P, E), float32 or float16.
    """

    def __init__(self, segments: Sequence[Floats]) -> None:
        self._segments = segments
        self._starts = np.cumsum([0, *map(len, segments)])
        self.passages = int(self._starts[-1])

    def scores(self, query_E: Floats) -> Floats:
        """The dot product of a query with every passage, (P,), float32."""
        scores_P = np.empty(self.passages, dtype=np.float32)
        for begin, vectors in zip(self._starts[:-1].tolist(), self._segments, strict=True):
            for start in range(0, len(vectors), ROWS_AT_ONCE):
                block = np.asarray(vectors[start : start + ROWS_AT_ONCE], dtype=np.float32)
                scores_P[begin + start : begin + start + len(block)] = block @ query_E
        return scores_P

    def exact(self, query_E: Floats, passages: NDArray[np.int64]) -> Floats:
        """Dot products with some passages, summed in float64: they depend on no other passage."""
        products = self.vectors(passages).astype(np.float64) @ query_E.astype(np.float64)
        return np.asarray(products, dtype=np.float32)

    def vectors(self, passages: NDArray[np.int64]) -> Floats:
        """The vectors of some passages, float32."""
        which = (np.searchsorted(self._starts, passages, side="right") - 1).tolist()
        width = self._segments[0].shape[1] if self._segments else 0
        vectors = np.empty((len(passages), width), dtype=np.float32)
        for row, (segment, passage) in enumerate(zip(which, passages.tolist(), strict=True)):
            vectors[row] = self._segments[segment][passage - self._starts[segment]]
        return vectors
