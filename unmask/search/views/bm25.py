"""BM25 over the passages of an index (Robertson & Zaragoza 2009, in the variant of Lucene).

The weight of a term t in passage p is ``idf(t) * n / (n + k1 * (1 - b + b * |p| / mean |p|))``, where n is
how often p has t, ``|p|`` the number of terms of p and ``idf(t) = ln(1 + (P - d + 0.5) / (d + 0.5))`` for P
passages of which d have t. The score of a passage is the sum over the terms of the query, with repetitions.

Axes: P passages; V terms; N postings.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.search.store.arrays import all_strings, encode_strings

K1, B = 1.5, 0.75
"""The parameters of bm25s by default, and nearly those of Lucene (1.2 and 0.75)."""

Floats = NDArray[np.float32]


class Bm25Builder:
    """Counts the terms of passages, in order."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._terms: list[NDArray[np.int32]] = []
        self._counts: list[NDArray[np.int32]] = []
        self._lengths: list[int] = []

    def add(self, terms: Sequence[str]) -> None:
        """Count the terms of the next passage."""
        numbers = self._numbers
        counted = Counter(terms)
        self._terms.append(
            np.fromiter((numbers.setdefault(term, len(numbers)) for term in counted), np.int32, len(counted))
        )
        self._counts.append(np.fromiter(counted.values(), np.int32, len(counted)))
        self._lengths.append(len(terms))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays of a segment: terms in order, and for each its passages in order, with counts."""
        order = sorted(self._numbers, key=lambda term: term)
        rank_V = np.empty(len(order), dtype=np.int32)
        rank_V[[self._numbers[term] for term in order]] = np.arange(len(order), dtype=np.int32)
        sizes = [len(terms) for terms in self._terms]
        terms_N = rank_V[np.concatenate([np.empty(0, np.int32), *self._terms])]
        passages_N = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        counts_N = np.concatenate([np.empty(0, np.int32), *self._counts])
        by_term = np.argsort(terms_N, kind="stable")
        content, offsets = encode_strings(order)
        return {
            "bm25/terms": content,
            "bm25/term_offsets": offsets,
            "bm25/postings": np.searchsorted(terms_N[by_term], np.arange(len(order) + 1)).astype(np.int64),
            "bm25/passages": passages_N[by_term],
            "bm25/counts": counts_N[by_term],
            "bm25/lengths": np.array(self._lengths, dtype=np.int32),
        }


class _Part:
    """The postings of one segment."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]], live_P: NDArray[np.bool_]) -> None:
        self._arrays = arrays
        self.live_P = live_P
        self.lengths_P: NDArray[np.int32] = arrays["bm25/lengths"]

    @cached_property
    def _rows(self) -> dict[str, int]:
        terms = all_strings(self._arrays["bm25/terms"], self._arrays["bm25/term_offsets"])
        return {term: row for row, term in enumerate(terms)}

    @cached_property
    def _whole(self) -> bool:
        return bool(self.live_P.all())

    def postings(self, term: str) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The live passages that have a term, and how often."""
        row = self._rows.get(term)
        if row is None:
            return np.empty(0, np.int32), np.empty(0, np.int32)
        start, end = self._arrays["bm25/postings"][row : row + 2]
        passages, counts = self._arrays["bm25/passages"][start:end], self._arrays["bm25/counts"][start:end]
        if self._whole:
            return passages, counts
        live = self.live_P[passages]
        return passages[live], counts[live]


@dataclass(frozen=True)
class TermWeight:
    """What one term of the query adds to a passage's BM25 score."""

    term: str
    count: int
    """How often the passage has it."""
    weight: float


class Bm25:
    """BM25 scores of the passages of all segments, which are numbered through.

    Args:
        segments: the arrays of each segment, as `Bm25Builder` made them.
        live: which passages of each segment are not deleted; deleted ones do not count anywhere.
    """

    def __init__(
        self,
        segments: Sequence[Mapping[str, NDArray[Any]]],
        live: Sequence[NDArray[np.bool_]],
        k1: float = K1,
        b: float = B,
    ) -> None:
        self._parts = [_Part(arrays, live_P) for arrays, live_P in zip(segments, live, strict=True)]
        self._k1, self._b = k1, b
        self.passages = sum(len(part.live_P) for part in self._parts)
        self._live = sum(int(part.live_P.sum()) for part in self._parts)
        total = sum(int(part.lengths_P[part.live_P].sum(dtype=np.int64)) for part in self._parts)
        self._mean_length = total / max(1, self._live)

    def scores(self, terms: Sequence[str]) -> Floats:
        """The score of every passage, (P,), float32; 0 without any of the terms, and for deleted ones."""
        scores_P = np.zeros(self.passages, dtype=np.float64)
        for term, times in sorted(Counter(terms).items()):
            postings, idf = self._postings(term)
            start = 0
            for part, (passages, counts) in zip(self._parts, postings, strict=True):
                # A passage occurs once in the postings of a term, so that adding by index is correct.
                scores_P[start + passages] += times * self._weights(idf, counts, part.lengths_P[passages])
                start += len(part.live_P)
        return scores_P.astype(np.float32)

    def explain(self, terms: Sequence[str], passage: int) -> tuple[TermWeight, ...]:
        """What each term of the query adds to the score of a passage, largest first."""
        weights = []
        for term, times in Counter(terms).items():
            by_part, idf = self._postings(term)
            start = 0
            for part, (passages, counts) in zip(self._parts, by_part, strict=True):
                at = np.flatnonzero(passages == passage - start)
                if len(at):
                    length = part.lengths_P[passages[at]]
                    weight = times * float(self._weights(idf, counts[at], length)[0])
                    weights.append(TermWeight(term, int(counts[at[0]]), weight))
                start += len(part.live_P)
        return tuple(sorted(weights, key=lambda weight: (-weight.weight, weight.term)))

    def _postings(self, term: str) -> tuple[list[tuple[NDArray[np.int32], NDArray[np.int32]]], float]:
        postings = [part.postings(term) for part in self._parts]
        holding = sum(len(passages) for passages, _ in postings)
        return postings, math.log1p((self._live - holding + 0.5) / (holding + 0.5))

    def _weights(
        self, idf: float, counts: NDArray[np.int32], lengths: NDArray[np.int32]
    ) -> NDArray[np.float64]:
        norm = self._k1 * (1 - self._b + self._b * lengths / max(self._mean_length, 1e-9))
        return np.asarray(idf * counts / (counts + norm))
