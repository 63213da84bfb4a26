"""The arrays of several segments as those of one, without what was deleted."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.search.store.arrays import all_strings, encode_strings, offsets_of, rows_of
from unmask.search.views.compression import Quantizer

Arrays = Mapping[str, NDArray[Any]]
Mask = NDArray[np.bool_]
Pieces = NDArray[Any] | Iterable[NDArray[Any]]
"""An array, or its parts one after the other."""

ROWS_AT_ONCE = 65536


def merged(
    segments: Sequence[Arrays],
    documents: Sequence[Mask],
    passages: Sequence[Mask],
    quantizer: Quantizer | None = None,
) -> dict[str, Pieces]:
    """The arrays of one segment that holds the live documents and passages of several, in order.

    Args:
        segments: their arrays, which have the same names.
        documents: which documents of each are live.
        passages: which passages of each are live.
        quantizer: makes the codes of dense vectors anew, which are stored in float32, too; None keeps codes.
    """
    names = segments[0].keys()
    arrays_by_name: dict[str, Pieces] = {}
    for name in ("document/id", "document/text", "document/title", "document/facts"):
        arrays_by_name |= _ragged(segments, documents, name, f"{name}_offsets")
    arrays_by_name["document/digest"] = _rows(segments, documents, "document/digest")
    arrays_by_name["passage/document"] = _documents(segments, documents, passages)
    for name in ("passage/start", "passage/end", "passage/tokens", "dense/vectors", "dense/codes"):
        if name in names:
            arrays_by_name[name] = _rows(segments, passages, name)
    if quantizer is not None:
        arrays_by_name["dense/codes"] = map(quantizer.encode, _rows(segments, passages, "dense/vectors"))
    if "bm25/lengths" in names:
        arrays_by_name |= _bm25(segments, passages)
    if "sparse/words" in names:
        arrays_by_name |= _sparse(segments, passages)
    if "vectors/offsets" in names:
        for name in ("vectors/values", "vectors/codes", "vectors/residuals"):
            if name in names:
                arrays_by_name |= _ragged(segments, passages, name, "vectors/offsets")
        arrays_by_name["vectors/spans"] = _pieces(segments, passages, "vectors/spans", "vectors/offsets")
    return arrays_by_name


def _rows(segments: Sequence[Arrays], live: Sequence[Mask], name: str) -> Iterator[NDArray[Any]]:
    for arrays, mask in zip(segments, live, strict=True):
        for start in range(0, len(mask), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            yield arrays[name][part][mask[part]]


def _pieces(
    segments: Sequence[Arrays], live: Sequence[Mask], name: str, offsets: str
) -> Iterator[NDArray[Any]]:
    for arrays, mask in zip(segments, live, strict=True):
        rows = np.flatnonzero(mask)
        for start in range(0, len(rows), ROWS_AT_ONCE // 16):
            yield arrays[name][rows_of(arrays[offsets], rows[start : start + ROWS_AT_ONCE // 16])]


def _ragged(segments: Sequence[Arrays], live: Sequence[Mask], name: str, offsets: str) -> dict[str, Pieces]:
    lengths = [np.diff(arrays[offsets])[mask] for arrays, mask in zip(segments, live, strict=True)]
    return {
        name: _pieces(segments, live, name, offsets),
        offsets: offsets_of(np.concatenate(lengths)),
    }


def _documents(
    segments: Sequence[Arrays], documents: Sequence[Mask], passages: Sequence[Mask]
) -> NDArray[np.int32]:
    parts, first = [], 0
    for arrays, live_D, live_P in zip(segments, documents, passages, strict=True):
        numbers = np.cumsum(live_D) - 1 + first
        parts.append(numbers[arrays["passage/document"][live_P]])
        first += int(live_D.sum())
    return np.concatenate(parts).astype(np.int32)


def _live_postings(arrays: Arrays, live: Mask, first: int, view: str) -> tuple[Mask, NDArray[np.int32]]:
    """Which postings of a segment are of live passages, and the new numbers of these passages."""
    numbers = np.cumsum(live) - 1 + first
    live_postings = live[arrays[f"{view}/passages"]]
    return live_postings, numbers[arrays[f"{view}/passages"][live_postings]].astype(np.int32)


def _bm25(segments: Sequence[Arrays], live: Sequence[Mask]) -> dict[str, Pieces]:
    spellings = [all_strings(segment["bm25/terms"], segment["bm25/term_offsets"]) for segment in segments]
    terms = sorted(set().union(*spellings))
    rank = {term: number for number, term in enumerate(terms)}
    keys, passages, counts, lengths, first = [], [], [], [], 0
    for arrays, mask, segment_terms in zip(segments, live, spellings, strict=True):
        live_postings, numbers = _live_postings(arrays, mask, first, "bm25")
        ranks = np.array([rank[term] for term in segment_terms], dtype=np.int64)
        keys.append(np.repeat(ranks, np.diff(arrays["bm25/postings"]))[live_postings])
        passages.append(numbers)
        counts.append(arrays["bm25/counts"][live_postings])
        lengths.append(arrays["bm25/lengths"][mask])
        first += int(mask.sum())
    keys_N = np.concatenate(keys)
    order = np.argsort(keys_N, kind="stable")
    used, starts = np.unique(keys_N[order], return_index=True)
    content, offsets = encode_strings([terms[number] for number in used])
    return {
        "bm25/terms": content,
        "bm25/term_offsets": offsets,
        "bm25/postings": np.append(starts, len(keys_N)).astype(np.int64),
        "bm25/passages": np.concatenate(passages)[order],
        "bm25/counts": np.concatenate(counts)[order],
        "bm25/lengths": np.concatenate(lengths),
    }


def _sparse(segments: Sequence[Arrays], live: Sequence[Mask]) -> dict[str, Pieces]:
    words, passages, weights, first = [], [], [], 0
    for arrays, mask in zip(segments, live, strict=True):
        live_postings, numbers = _live_postings(arrays, mask, first, "sparse")
        words.append(np.repeat(arrays["sparse/words"], np.diff(arrays["sparse/postings"]))[live_postings])
        passages.append(numbers)
        weights.append(arrays["sparse/weights"][live_postings])
        first += int(mask.sum())
    words_N = np.concatenate(words)
    order = np.argsort(words_N, kind="stable")
    used, starts = np.unique(words_N[order], return_index=True)
    return {
        "sparse/words": used,
        "sparse/postings": np.append(starts, len(words_N)).astype(np.int64),
        "sparse/passages": np.concatenate(passages)[order],
        "sparse/weights": np.concatenate(weights)[order],
    }
