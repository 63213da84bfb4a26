"""Split chunks into two segments, and exchange segments between documents or swap them.

A chunk is split after a sentence end, chosen uniformly, or between any two words if no sentence ends inside
it. A word is never split.

Exchanged segments must not be recognizable by their length or their beginning. Therefore chunks of different
documents are paired first, partners are split where their second parts are closest in length, and only then
is it decided at random whether they exchange them. BERT instead draws a second segment for each first one and
truncates it; here no text is read twice in a micro-batch, and its number of tokens is unchanged.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unmask.training.data.batches import Chunk
from unmask.training.vocabulary import Vocabulary

PLACES_COMPARED = 64
"""Maximum number of random split points of a partner that are compared."""

Ids = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PairedSentences:
    """Two segments for each chunk, in the order of chunks."""

    firsts: list[Ids]
    seconds: list[Ids]
    """Empty if a chunk cannot be split."""
    labels_S: NDArray[np.int64]
    """1 where the second does not follow the first."""
    alone: int
    """Chunks that can be split but found no partner."""
    cut_tokens: int
    """Tokens truncated because a pair was too long."""


def places(ids_N: Ids, vocabulary: Vocabulary) -> NDArray[np.int64]:
    """Possible split points of a chunk, ascending: the index (at least 1) of the second segment's first
    token.

    These are after every sentence end inside the chunk or, if there is none, between all words.
    """
    between = np.flatnonzero(~vocabulary.continues_V[ids_N[1:]]) + 1
    if vocabulary.ends_V is None:
        return between
    ends = between[vocabulary.ends_V[ids_N[between - 1]]]
    # In an ellipsis or "?!" the last mark ends the sentence.
    ends = ends[~vocabulary.ends_V[ids_N[ends]]]
    return ends if len(ends) else between


def swap(
    chunks: Sequence[Chunk], vocabulary: Vocabulary, draw: np.random.Generator, *, share: float = 0.5
) -> PairedSentences:
    """Split each chunk in two, and swap the parts with probability ``share`` (label 1)."""
    firsts, seconds = [], []
    labels_S = np.zeros(len(chunks), dtype=np.int64)
    for number, chunk in enumerate(chunks):
        candidates = places(chunk.ids, vocabulary)
        first, second = _split(chunk.ids, _drawn_place(candidates, len(chunk.ids), draw))
        if len(second) and draw.random() < share:
            first, second = second, first
            labels_S[number] = 1
        firsts.append(first)
        seconds.append(second)
    return PairedSentences(firsts, seconds, labels_S, alone=0, cut_tokens=0)


def exchange(
    chunks: Sequence[Chunk],
    vocabulary: Vocabulary,
    draw: np.random.Generator,
    *,
    share: float = 0.5,
    longest: int | None = None,
) -> PairedSentences:
    """Split each chunk in two; with probability ``share`` partners exchange their second parts (label 1).

    Args:
        chunks: the chunks; those without a partner from another document are unchanged (label 0).
        vocabulary: determines where words begin and sentences end.
        draw: determines all random choices.
        share: share of the partner pairs that exchange.
        longest: maximum tokens of a pair of segments; exchanged parts that exceed it are truncated.
        None for no limit.
    """
    candidates = [places(chunk.ids, vocabulary) for chunk in chunks]
    free = [number for number, candidates_of_chunk in enumerate(candidates) if len(candidates_of_chunk)]
    partners = pair_up([chunks[number].document for number in free], draw)
    at = {number: _drawn_place(candidates[number], len(chunks[number].ids), draw) for number in free}
    exchanged: list[tuple[int, int]] = []
    for left, right in ((free[a], free[b]) for a, b in partners):
        lengths = len(chunks[left].ids), len(chunks[right].ids)
        at[left], at[right] = _like_places(candidates[left], candidates[right], lengths, draw)
        if draw.random() < share:
            exchanged.append((left, right))
    parts = [_split(chunk.ids, at.get(number, len(chunk.ids))) for number, chunk in enumerate(chunks)]
    firsts, seconds = [first for first, _ in parts], [second for _, second in parts]
    labels_S = np.zeros(len(chunks), dtype=np.int64)
    cut_tokens = 0
    for left, right in exchanged:
        seconds[left], seconds[right] = seconds[right], seconds[left]
        for number in (left, right):
            labels_S[number] = 1
            room = len(seconds[number]) if longest is None else max(1, longest - len(firsts[number]))
            cut_tokens += max(0, len(seconds[number]) - room)
            seconds[number] = seconds[number][:room]
    return PairedSentences(firsts, seconds, labels_S, len(free) - 2 * len(partners), cut_tokens)


def pair_up(documents: Sequence[int], draw: np.random.Generator) -> list[tuple[int, int]]:
    """Randomly pair as many chunks of different documents as possible; return pairs of indices.

    Sorted by document, each chunk's partner is half the list away, which is in another document once surplus
    chunks of the largest document are removed.
    """
    order = draw.permutation(len(documents))
    values, group, sizes = np.unique(
        np.asarray(documents, dtype=np.int64)[order], return_inverse=True, return_counts=True
    )
    if len(values) < 2:
        return []
    largest = int(sizes.argmax())
    surplus = max(2 * int(sizes[largest]) - len(documents), len(documents) % 2)
    ranks = draw.permutation(len(values))[group]
    sorted_N = np.argsort(ranks, kind="stable")
    kept_N = order[sorted_N[~np.isin(sorted_N, np.flatnonzero(group == largest)[:surplus])]]
    half = len(kept_N) // 2
    return list(zip(kept_N[:half].tolist(), kept_N[half:].tolist(), strict=True))


def _drawn_place(candidates: NDArray[np.int64], length: int, draw: np.random.Generator) -> int:
    """A random split point; ``length``, the chunk's end, if there is none."""
    return int(candidates[draw.integers(len(candidates))]) if len(candidates) else length


def _like_places(
    left: NDArray[np.int64], right: NDArray[np.int64], lengths: tuple[int, int], draw: np.random.Generator
) -> tuple[int, int]:
    """Split points in two chunks whose second parts are closest in length; ties are broken at random."""
    left, right = (
        side if len(side) <= PLACES_COMPARED else draw.choice(side, PLACES_COMPARED, replace=False)
        for side in (left, right)
    )
    apart_LR = np.abs((lengths[0] - left)[:, None] - (lengths[1] - right)[None, :])
    best = np.flatnonzero(apart_LR == apart_LR.min())
    row, column = divmod(int(best[draw.integers(len(best))]), len(right))
    return int(left[row]), int(right[column])


def _split(ids_N: Ids, place: int) -> tuple[Ids, Ids]:
    return ids_N[:place], ids_N[place:]
