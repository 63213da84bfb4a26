"""Exact search over vectors: one for each passage, or one for each token.

Vectors of tokens are compared by MaxSim (ColBERT, Khattab & Zaharia 2020): the score of a passage is the sum
over the vectors of the query of the largest dot product with a vector of the passage. These vectors are
stored in float16, or encoded in a few bits (`unmask.search.views.compression`), and multiplied in float32.
Vectors of passages are stored in float32, in codes that propose passages, or in both.

Axes: Q vectors of the query; N vectors of passages; E features; P passages.
"""

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.engines.native import interface
from unmask.engines.native.library import call, library_reason
from unmask.engines.native.threads import thread_count
from unmask.search.store.arrays import offsets_of, rows_of
from unmask.search.views.compression import Codec, Quantizer, as_float32

Floats = NDArray[np.float32]

VECTORS_AT_ONCE = 32768
"""Vectors of passages that are multiplied at once, so that the products of a query need a few megabytes."""

PROBES = 32
"""Centroids that are looked up for each vector of a query."""

ROWS_AT_ONCE = 65536
"""Vectors of a memory-mapped array that are multiplied at once."""


class VectorsBuilder:
    """Collects the vectors of the tokens of passages, in order."""

    def __init__(self) -> None:
        self._values: list[NDArray[np.float16]] = []
        self._spans: list[NDArray[np.int32]] = []

    def add(self, vectors_NE: Floats, spans_N2: NDArray[np.int32]) -> None:
        """Add the vectors of the next passage, and the characters of its document that each stands for."""
        self._values.append(vectors_NE.astype(np.float16))
        self._spans.append(spans_N2.astype(np.int32))

    def values(self, width: int) -> NDArray[np.float16]:
        """All vectors, (N, E)."""
        return np.concatenate([np.empty((0, width), np.float16), *self._values])

    def arrays(self, width: int, codec: Codec | None = None) -> dict[str, NDArray[Any]]:
        """The arrays of a segment, with vectors in float16, or encoded by the codec."""
        values_NE = self.values(width)
        stored: dict[str, NDArray[Any]]
        if codec is None:
            stored = {"vectors/values": values_NE}
        else:
            codes_N, packed_NB = codec.encode(values_NE)
            stored = {"vectors/codes": codes_N, "vectors/residuals": packed_NB}
        return stored | {
            "vectors/offsets": offsets_of(map(len, self._values)),
            "vectors/spans": np.concatenate([np.empty((0, 2), np.int32), *self._spans]),
        }


@dataclass(frozen=True, eq=False)
class TokenMatch:
    """The token of a passage that one vector of the query matched best."""

    score: float
    """Their dot product, which is what this vector of the query adds to the score."""
    start: int
    """Where the token begins in the document, in characters; -1 for a special token."""
    end: int


class Vectors:
    """MaxSim with the passages of all segments, which are numbered through.

    Args:
        segments: the arrays of each segment, as `VectorsBuilder` made them.
        codec: what encoded their vectors; None for those in float16.
    """

    def __init__(self, segments: Sequence[Mapping[str, NDArray[Any]]], codec: Codec | None = None) -> None:
        self._segments = segments
        self._codec = codec
        self._starts = np.cumsum([0, *(len(segment["vectors/offsets"]) - 1 for segment in segments)])
        self.passages = int(self._starts[-1])

    def scores(self, query_QE: Floats, passages: NDArray[np.int64] | None = None) -> Floats:
        """MaxSim of the query with some passages in ascending order, or with all; float32.

        A passage without vectors has -infinity.
        """
        query_QE = self._rotated(query_QE)
        chosen = np.arange(self.passages) if passages is None else passages
        parts = [self._of_segment(s, query_QE, rows) for s, rows in self._split(chosen)]
        return np.concatenate([np.empty(0, np.float32), *parts])

    def explain(self, query_QE: Floats, passage: int) -> list[TokenMatch]:
        """The best token of a passage for each vector of the query; their scores add up to its own."""
        ((segment, rows),) = self._split(np.array([passage]))
        arrays = self._segments[segment]
        start, end = arrays["vectors/offsets"][rows[0] : rows[0] + 2]
        query_QE = self._rotated(query_QE)
        products_QN = query_QE @ self._decoded(arrays, slice(start, end)).T
        if library_reason("float32") is None:
            terms_PQ = np.empty((1, len(query_QE)), np.float32)
            maxsim_natively(arrays, self._codec, query_QE, rows, terms_PQ)
            each_Q = terms_PQ[0]
        else:
            each_Q = products_QN.max(axis=1)
        spans_Q2 = arrays["vectors/spans"][start:end][products_QN.argmax(axis=1)]
        return [
            TokenMatch(score, begin, until)
            for score, (begin, until) in zip(each_Q.tolist(), spans_Q2.tolist(), strict=True)
        ]

    def proposed(self, query_QE: Floats, eligible_P: NDArray[np.bool_], count: int) -> NDArray[np.int64]:
        """The passages that are most likely the best by MaxSim, in ascending order; at most ``count``.

        For each vector of the query the `PROBES` nearest centroids are looked up. A passage that has a token
        of one of them gets the product with that centroid, and any other the smallest of these products,
        which its own does not exceed by much (as in WARP, Scheerer et al. 2025). Passages are ranked by the
        sum over the query's vectors.

        Args:
            query_QE: the vectors of the query.
            eligible_P: which passages may be proposed.
            count: how many.
        """
        eligible = np.flatnonzero(eligible_P)
        if len(eligible) <= count:
            return eligible
        if self._codec is None:
            raise ValueError("vectors in float16 have no centroids to propose passages by")
        products_QK = self._rotated(query_QE) @ self._codec.centroids.T
        proposals = proposals_natively if library_reason("float32") is None else proposals_in_numpy
        totals = proposals(products_QK, self.lists, self._starts)[eligible]
        least = np.partition(totals, -count)[-count]
        above, equal = np.flatnonzero(totals > least), np.flatnonzero(totals == least)
        return eligible[np.sort(np.concatenate((above, equal[: count - len(above)])))]

    @cached_property
    def lists(self) -> list[tuple[NDArray[np.int64], NDArray[np.int32]]]:
        """For each segment the passages that have a token of each centroid: offsets, and passages."""
        assert self._codec is not None
        lists = []
        for arrays in self._segments:
            codes_N, offsets = arrays["vectors/codes"], arrays["vectors/offsets"]
            order = np.argsort(codes_N, kind="stable")
            passages_N = np.repeat(np.arange(len(offsets) - 1, dtype=np.int32), np.diff(offsets))[order]
            sorted_N = codes_N[order]
            first = (np.diff(sorted_N, prepend=0) != 0) | (np.diff(passages_N, prepend=-1) != 0)
            sorted_N, passages_N = sorted_N[first], passages_N[first]
            borders = np.searchsorted(sorted_N, np.arange(len(self._codec.centroids) + 1))
            lists.append((borders.astype(np.int64), passages_N))
        return lists

    def _rotated(self, query_QE: Floats) -> Floats:
        """Vectors of a query in the basis of what `_decoded` returns."""
        return query_QE if self._codec is None else self._codec.rotated(query_QE)

    def _decoded(self, arrays: Mapping[str, NDArray[Any]], rows: slice | NDArray[np.int64]) -> Floats:
        """Some vectors of a segment, float32; in the basis of the codec, if there is one."""
        if self._codec is None:
            return as_float32(arrays["vectors/values"][rows])
        return self._codec.decode(arrays["vectors/codes"][rows], arrays["vectors/residuals"][rows])

    def _split(self, passages: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Each segment with those of the passages that it has, counted from its first."""
        borders = np.searchsorted(passages, self._starts)
        for segment, (start, end) in enumerate(pairwise(borders.tolist())):
            if start < end:
                yield segment, passages[start:end] - self._starts[segment]

    def _of_segment(self, segment: int, query_QE: Floats, passages: NDArray[np.int64]) -> Floats:
        arrays = self._segments[segment]
        if library_reason("float32") is None:
            return maxsim_natively(arrays, self._codec, query_QE, passages)
        offsets = arrays["vectors/offsets"]
        lengths = offsets[passages + 1] - offsets[passages]
        scores = np.full(len(passages), -np.inf, dtype=np.float32)
        ends = np.cumsum(lengths)
        start = 0
        while start < len(passages):
            before = int(ends[start - 1]) if start else 0
            end = max(start + 1, int(np.searchsorted(ends, before + VECTORS_AT_ONCE, side="right")))
            chosen, sizes = passages[start:end], lengths[start:end]
            filled = np.flatnonzero(sizes)
            if len(filled):
                products_QN = query_QE @ self._decoded(arrays, rows_of(offsets, chosen)).T
                firsts = np.concatenate(([0], np.cumsum(sizes[filled])[:-1]))
                best_QP = np.maximum.reduceat(products_QN, firsts, axis=1)
                scores[start + filled] = best_QP.sum(axis=0, dtype=np.float64)
            start = end
        return scores


Lists = Sequence[tuple[NDArray[np.int64], NDArray[np.int32]]]
"""For each segment the passages that have a token of each centroid, as `Vectors` makes them."""


def proposals_in_numpy(products_QK: Floats, lists: Lists, starts: NDArray[np.int64]) -> NDArray[np.float64]:
    """For each passage the sum over a query's vectors that `Vectors.proposed` describes, (P,).

    Args:
        products_QK: of the query's vectors with all centroids.
        lists: passages by centroid.
        starts: passages before each segment, and all of them.
    """
    probes = min(PROBES, products_QK.shape[1])
    nearest_Q = np.argpartition(products_QK, -probes, axis=1)[:, -probes:]
    totals_P = np.zeros(int(starts[-1]))
    for products_K, probed in zip(products_QK, nearest_Q, strict=True):
        # From the smallest product to the largest, so that a passage keeps its best.
        nearest = probed[np.argsort(products_K[probed], kind="stable")]
        best_P = np.full(len(totals_P), products_K[nearest[0]])
        for start, (offsets, passages) in zip(starts.tolist(), lists, strict=False):
            for centroid in nearest.tolist():
                chosen = passages[offsets[centroid] : offsets[centroid + 1]]
                best_P[start + chosen] = products_K[centroid]
        totals_P += best_P
    return totals_P


def proposals_natively(products_QK: Floats, lists: Lists, starts: NDArray[np.int64]) -> NDArray[np.float64]:
    """The same by the native library."""
    products_QK = np.ascontiguousarray(products_QK)
    totals_P = np.zeros(int(starts[-1]))
    pointers = ctypes.c_void_p * max(1, len(lists))
    call(
        "native_proposal",
        interface.Proposal(
            products=products_QK.ctypes.data,
            borders=pointers(*(offsets.ctypes.data for offsets, _ in lists)),
            passages=pointers(*(passages.ctypes.data for _, passages in lists)),
            starts=starts.ctypes.data,
            totals=totals_P.ctypes.data,
            count=len(products_QK),
            centroids=products_QK.shape[1],
            probes=min(PROBES, products_QK.shape[1]),
            segments=len(lists),
            threads=thread_count(),
        ),
    )
    return totals_P


def maxsim_natively(
    arrays: Mapping[str, NDArray[Any]],
    codec: Codec | None,
    query_QE: Floats,
    passages: NDArray[np.int64],
    terms_PQ: Floats | None = None,
) -> Floats:
    """MaxSim with some passages of a segment by the native library, (P,).

    Args:
        arrays: of the segment, as `VectorsBuilder` made them.
        codec: what encoded its vectors; None for those in float16.
        query_QE: the vectors of the query, in the basis of the codec.
        passages: numbers in the segment.
        terms_PQ: where the largest product with each vector of the query goes, if it is asked for.
    """
    query_QE = np.ascontiguousarray(query_QE, np.float32)
    passages = np.ascontiguousarray(passages, np.int64)
    offsets = np.ascontiguousarray(arrays["vectors/offsets"], np.int64)
    scores = np.empty(len(passages), np.float32)
    what = interface.MaxSim(
        queries=query_QE.ctypes.data,
        offsets=offsets.ctypes.data,
        passages=passages.ctypes.data,
        scores=scores.ctypes.data,
        each=None if terms_PQ is None else terms_PQ.ctypes.data,
        chosen=len(passages),
        count=len(query_QE),
        width=query_QE.shape[1],
        threads=thread_count(),
    )
    if codec is None:
        what.halves = arrays["vectors/values"].ctypes.data
    else:
        residuals = arrays["vectors/residuals"]
        what.codes, what.residuals = arrays["vectors/codes"].ctypes.data, residuals.ctypes.data
        what.centroids, what.of_byte = codec.centroids.ctypes.data, codec.values_of_byte.ctypes.data
        what.bytes, what.in_byte = residuals.shape[1], codec.values_of_byte.shape[1]
    call("native_maxsim", what)
    return scores


def token_vectors(
    arrays: Mapping[str, NDArray[Any]], rows: NDArray[np.int64], codec: Codec | None = None
) -> NDArray[np.float16]:
    """The vectors of the tokens of some passages of a segment, one after the other, (N, E), float16.

    These are the numbers that are stored, or what the codes of a compressed index stand for, in the basis of
    the model and rounded to float16.

    Args:
        arrays: those of the segment, as `VectorsBuilder` made them.
        rows: which of its passages.
        codec: what encoded the vectors; None for those in float16.
    """
    chosen = rows_of(arrays["vectors/offsets"], rows)
    if codec is None:
        return np.asarray(arrays["vectors/values"][chosen], np.float16)
    rotated_NE = codec.decode(arrays["vectors/codes"][chosen], arrays["vectors/residuals"][chosen])
    return (rotated_NE @ codec.rotation_EE.T).astype(np.float16)


class Dense:
    """Dot products of a query with the vectors of all segments, which are numbered through.

    Args:
        segments: the arrays of each segment: the vectors in float32 or float16, their codes, or both.
        quantizer: what made the codes; None without them.
    """

    def __init__(
        self, segments: Sequence[Mapping[str, NDArray[Any]]], quantizer: Quantizer | None = None
    ) -> None:
        self._segments = segments
        self._quantizer = quantizer
        self._starts = np.cumsum([0, *map(dense_count, segments)])
        self.passages = int(self._starts[-1])

    def scores(self, query_E: Floats) -> Floats:
        """The dot product of a query with every passage, (P,), float32."""
        scores_P = np.empty(self.passages, dtype=np.float32)
        for begin, arrays in zip(self._starts[:-1].tolist(), self._segments, strict=True):
            for start in range(0, dense_count(arrays), ROWS_AT_ONCE):
                block = self._products(query_E, arrays, slice(start, start + ROWS_AT_ONCE))
                scores_P[begin + start : begin + start + len(block)] = block
        return scores_P

    def exact(self, query_E: Floats, passages: NDArray[np.int64]) -> Floats:
        """Dot products with some passages, summed in float64: they depend on no other passage."""
        products = self.vectors(passages).astype(np.float64) @ query_E.astype(np.float64)
        return np.asarray(products, dtype=np.float32)

    def vectors(self, passages: NDArray[np.int64]) -> Floats:
        """The vectors of some passages, float32."""
        which = np.searchsorted(self._starts, passages, side="right") - 1
        width = 0 if not self._segments else dense_width(self._segments[0], self._quantizer)
        vectors = np.empty((len(passages), width), dtype=np.float32)
        for segment in np.unique(which).tolist():
            chosen = which == segment
            rows = passages[chosen] - self._starts[segment]
            vectors[chosen] = dense_vectors(self._segments[segment], rows, self._quantizer)
        return vectors

    def proposed(self, query_E: Floats, eligible_P: NDArray[np.bool_], count: int) -> NDArray[np.int64]:
        """The eligible passages whose codes are nearest to the query, in ascending order.

        There are ``count`` of them, if so many are eligible, and more where others are as near as the last.
        """
        eligible = np.flatnonzero(eligible_P)
        if len(eligible) <= count:
            return eligible
        if self._quantizer is None:
            raise ValueError("vectors without codes propose no passages")
        segments = [self._quantizer.near(query_E, arrays["dense/codes"]) for arrays in self._segments]
        nearness = np.concatenate(segments)[eligible]
        return np.asarray(eligible[nearness >= _nth_largest(nearness, count)], np.int64)

    def code_score(self, query_E: Floats, passage: int) -> float:
        """The dot product with what the code of a passage stands for."""
        segment = int(np.searchsorted(self._starts, passage, side="right")) - 1
        row = passage - self._starts[segment]
        codes = {"dense/codes": self._segments[segment]["dense/codes"]}
        return float(self._products(query_E, codes, slice(row, row + 1))[0])

    def _products(self, query_E: Floats, arrays: Mapping[str, NDArray[Any]], rows: slice) -> Floats:
        """Dot products with some vectors of a segment, stored or as codes stand for them."""
        if "dense/vectors" in arrays:
            return np.asarray(arrays["dense/vectors"][rows], dtype=np.float32) @ query_E
        assert self._quantizer is not None
        return self._quantizer.products(query_E, arrays["dense/codes"][rows])


def _nth_largest(values: NDArray[Any], count: int) -> Any:
    """The smallest of the ``count`` largest values; there are at least so many."""
    if values.dtype.kind == "f":
        return np.partition(values, len(values) - count)[len(values) - count]
    # Small integers are counted, which is faster than ordering them.
    lowest = values.min()
    at_least = np.bincount(values - lowest)[::-1].cumsum()[::-1]
    return lowest + np.flatnonzero(at_least >= count)[-1]


def dense_count(arrays: Mapping[str, NDArray[Any]]) -> int:
    """The passages of a segment that has one vector for each."""
    return len(arrays["dense/vectors" if "dense/vectors" in arrays else "dense/codes"])


def dense_width(arrays: Mapping[str, NDArray[Any]], quantizer: Quantizer | None = None) -> int:
    """The numbers of a vector."""
    if "dense/vectors" in arrays:
        return int(arrays["dense/vectors"].shape[1])
    assert quantizer is not None
    return quantizer.width


def dense_vectors(
    arrays: Mapping[str, NDArray[Any]], rows: slice | NDArray[np.int64], quantizer: Quantizer | None = None
) -> Floats:
    """The vectors of some passages of a segment, float32: those stored, or what codes stand for.

    Args:
        arrays: those of the segment.
        rows: which of its passages.
        quantizer: what made the codes; None without them.
    """
    if "dense/vectors" in arrays:
        return np.asarray(arrays["dense/vectors"][rows], dtype=np.float32)
    assert quantizer is not None
    return quantizer.decode(arrays["dense/codes"][rows])
