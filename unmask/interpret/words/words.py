"""Words of a text from the tokens of a tokenizer: maps between them, and how well a vocabulary fits them.

Where a word begins and ends is read from the characters of the text by their Unicode properties, never
from how a vocabulary spells its pieces, so that texts of any two tokenizers can be compared.

Axes: W words; G groups of tokens.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import whole_number
from unmask.errors import InvalidRequest
from unmask.text import Encoding, Tokenizer
from unmask.text.borders import is_word, word_borders

MOST_GROUPS = 2048
"""Words of the largest map between words: 2,048 squared in float64 are 34 MB."""

ROWS_AT_ONCE = 128
"""Queries that are grouped together."""


@dataclass(frozen=True, eq=False)
class Words:
    """The word of each token of an encoding; W words in the order of their first tokens.

    Every token is of exactly one word. A special token is a word of its own with the empty span (0, 0).
    """

    encoding: Encoding
    spans: NDArray[np.int64]
    """Characters of each word, (W, 2), counted in its own text, the end not included."""
    in_pair: NDArray[np.bool_]
    """(W,); True where the span counts in the pair."""
    special: NDArray[np.bool_]
    """(W,)."""
    of_token: NDArray[np.int64]
    """The word of each token, (N,)."""
    first_tokens: NDArray[np.int64]
    """(W,)."""

    def __len__(self) -> int:
        return len(self.spans)

    def surface(self, word: int) -> str:
        """The caller's own characters of a word; the vocabulary's spelling for a special token."""
        if self.special[word]:
            return self.encoding.pieces[int(self.first_tokens[word])]
        source = self.encoding.pair if self.in_pair[word] else self.encoding.text
        start, end = self.spans[word]
        return (source or "")[start:end]


class Maps(Protocol):
    """A source of maps, such as `unmask.interpret.AttentionView`."""

    def __len__(self) -> int: ...

    def probabilities(self, layer: int, head: int, rows: slice = ...) -> NDArray[np.float32]:
        """Rows of one head, (R, N)."""


def words(encoding: Encoding) -> Words:
    """The words of an encoding.

    Words are what `word_borders` says; those that one token covers parts of are one word. A token of
    white space is a word, and a token that stands for no character is of the word after it. An encoding of
    the caller's own words (`Tokenizer.encode_words`) keeps those.
    """
    key_N = np.arange(len(encoding))  # special tokens by themselves, the others by (text, stretch) below
    span_N2 = np.zeros((len(encoding), 2), dtype=np.int64)
    beyond = len(encoding)
    for pair, text in texts_of(encoding):
        tokens = tokens_of(encoding, pair)
        spans = encoding.offsets[tokens]
        if encoding.words is not None:
            key_N[tokens], span_N2[tokens] = encoding.words[tokens] + beyond, spans
            continue
        borders = uncrossed(word_borders(text), spans)
        starts = np.flatnonzero(borders[:-1])
        places = [_past_space(text, start) if start == end else start for start, end in spans.tolist()]
        stretch = stretch_of(starts, np.array(places, dtype=np.int64))
        key_N[tokens] = stretch + beyond
        span_N2[tokens] = np.stack([starts[stretch], np.append(starts, len(text))[stretch + 1]], axis=1)
        beyond += len(starts)
    _, first, of_key = np.unique(key_N, return_index=True, return_inverse=True)
    order = np.argsort(first)
    of_token = np.argsort(order)[of_key]
    first = first[order]
    spans_W2 = span_N2[first].copy()
    np.minimum.at(spans_W2[:, 0], of_token, span_N2[:, 0])
    np.maximum.at(spans_W2[:, 1], of_token, span_N2[:, 1])
    return Words(
        encoding, spans_W2, encoding.sequence_ids[first] == 1, encoding.special[first], of_token, first
    )


def _past_space(text: str, place: int) -> int:
    """The first character from ``place`` on that is no white space; ``place`` where there is none."""
    return next((at for at in range(place, len(text)) if not text[at].isspace()), place)


def word_map(view: Maps, layer: int, head: int, of: Words) -> NDArray[np.float32]:
    """Attention between words, (W, W), by the rule of Clark et al. 2019; see `grouped_map`."""
    return grouped_map(view, layer, head, of.of_token, len(of))


def grouped_map(
    view: Maps, layer: int, head: int, group_of_N: NDArray[np.int64], groups: int
) -> NDArray[np.float32]:
    """Attention between groups of tokens, (G, G): summed over the attended, averaged over the attending.

    Rows of groups that have a token sum to 1; those of a group without one are 0.

    Raises:
        InvalidRequest: more than `MOST_GROUPS` groups.
    """
    if groups > MOST_GROUPS:
        raise InvalidRequest(
            f"the text has {groups} words and a map between words holds at most {MOST_GROUPS}; "
            "look at the map of its tokens, or give a shorter text"
        )
    map_GG = np.zeros((groups, groups))
    for first in range(0, len(view), ROWS_AT_ONCE):
        rows = slice(first, min(first + ROWS_AT_ONCE, len(view)))
        summed_RG = columns_summed(view.probabilities(layer, head, rows), group_of_N, groups)
        np.add.at(map_GG, group_of_N[rows], summed_RG)
    sizes_G = np.bincount(group_of_N, minlength=groups)
    return np.asarray((map_GG / np.maximum(sizes_G, 1)[:, None]).astype(np.float32))


def columns_summed(
    p_RN: NDArray[np.float32], group_of_N: NDArray[np.int64], groups: int
) -> NDArray[np.float64]:
    """Rows of attention with the columns of each group summed, (R, N) to (R, G)."""
    order = np.argsort(group_of_N, kind="stable")
    present, firsts = np.unique(group_of_N[order], return_index=True)
    summed_RG = np.zeros((len(p_RN), groups))
    summed_RG[:, present] = np.add.reduceat(p_RN[:, order].astype(np.float64), firsts, axis=1)
    return summed_RG


def texts_of(encoding: Encoding) -> list[tuple[bool, str]]:
    """The text, and the pair if there is one, each with whether it is the pair."""
    return [(False, encoding.text), *([] if encoding.pair is None else [(True, encoding.pair)])]


def tokens_of(encoding: Encoding, pair: bool) -> NDArray[np.int64]:
    """Tokens of one of the texts, special tokens left out."""
    return np.flatnonzero(encoding.sequence_ids == int(pair))


def uncrossed(borders: NDArray[np.bool_], spans: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The borders that no token crosses.

    A token that begins before one in front of it ended is taken to reach up to there, so that what lies
    between two borders is one run of tokens.
    """
    if not len(spans):
        return borders
    reached = np.maximum(np.maximum.accumulate(spans[:, 1]), spans[:, 0] + 1)
    crossed = np.zeros(len(borders) + 2, dtype=np.int64)
    np.add.at(crossed, spans[:, 0] + 1, 1)
    np.add.at(crossed, reached, -1)
    return borders & (np.cumsum(crossed)[: len(borders)] <= 0)


def stretch_of(starts: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
    """The stretch that holds each character, given where they begin."""
    return np.asarray(np.maximum(np.searchsorted(starts, places, side="right") - 1, 0))


@dataclass(frozen=True)
class SplitWord:
    """A word of the text and its tokens."""

    text: str
    pieces: tuple[str, ...]
    """The vocabulary's spelling of each."""
    times: int
    """Number of occurrences with this spelling."""


@dataclass(frozen=True)
class VocabularyFit:
    """Tokenization statistics of the words of one text.

    Words are those of `unmask.interpret.words.words.words` that contain a letter or digit. Special tokens are
    not counted; characters are code points without white space.
    """

    words: int
    pieces: int
    """Tokens, those of punctuation included."""
    pieces_per_word: float
    """Tokens per word, at least 1 (fertility in Rust et al. 2021)."""
    continued_share: float
    """Share of words split into two or more tokens (Rust et al. 2021)."""
    characters_per_piece: float
    """Characters that tokens stand for, by tokens."""
    unknown_share: float
    """Tokens that are the unknown token."""
    single_share: float
    """Tokens that stand for one character of a longer word."""
    partial_share: float
    """Tokens that share their characters with another, as the bytes of one character do."""
    most_split: tuple[SplitWord, ...]
    """Distinct words, those with the most tokens first; none with a single token."""


def vocabulary_fit(encoding: Encoding, tokenizer: Tokenizer, *, top: int = 12) -> VocabularyFit:
    """How well the vocabulary of ``tokenizer`` fits the text of ``encoding``, which it made.

    Args:
        encoding: the text; truncated tokens are not counted.
        tokenizer: whose unknown token is looked for.
        top: the most words to give in ``most_split``.

    Raises:
        InvalidRequest: ``top`` is negative, or the tokens hold no letter or digit.
    """
    whole_number("top", top, 0)
    grouped = words(encoding)
    surfaces = [grouped.surface(word) for word in range(len(grouped))]
    counted_W = np.array([is_word(surface) for surface in surfaces]) & ~grouped.special
    if not counted_W.any():
        raise InvalidRequest("the text has no word with a letter or digit to measure a vocabulary by")
    plain_N = ~encoding.special
    pieces_W = np.bincount(grouped.of_token, minlength=len(grouped))
    lengths_N = encoding.offsets[:, 1] - encoding.offsets[:, 0]
    longer_N = np.array([len(surface) > 1 for surface in surfaces])[grouped.of_token]
    unknown = tokenizer.special_tokens.get("unk")
    unknown_id = None if unknown is None else tokenizer.token_to_id(unknown)
    count = int(plain_N.sum())
    partial_N = _partial(encoding)
    return VocabularyFit(
        words=int(counted_W.sum()),
        pieces=count,
        pieces_per_word=float(pieces_W[counted_W].mean()),
        continued_share=float((pieces_W[counted_W] > 1).mean()),
        characters_per_piece=_characters(encoding) / count,
        unknown_share=float((encoding.ids[plain_N] == unknown_id).mean()),
        single_share=float(((lengths_N == 1) & longer_N & ~partial_N)[plain_N].mean()),
        partial_share=float(partial_N[plain_N].mean()),
        most_split=_most_split(grouped, surfaces, counted_W & (pieces_W > 1), top),
    )


def _characters(encoding: Encoding) -> int:
    """Characters that at least one token stands for, each once, white space left out."""
    covered = 0
    for pair, text in ((False, encoding.text), (True, encoding.pair)):
        if text is None:
            continue
        change = np.zeros(len(text) + 1, dtype=np.int64)
        spans = encoding.offsets[encoding.sequence_ids == int(pair)]
        np.add.at(change, spans[:, 0], 1)
        np.add.at(change, spans[:, 1], -1)
        inside = np.cumsum(change)[:-1] > 0
        covered += sum(not text[place].isspace() for place in np.flatnonzero(inside))
    return covered


def _partial(encoding: Encoding) -> NDArray[np.bool_]:
    """Tokens whose characters the token before or after has too."""
    partial = np.zeros(len(encoding), dtype=np.bool_)
    starts, ends = encoding.offsets.T
    plain = ~encoding.special & (starts < ends)
    both = plain[:-1] & plain[1:] & (encoding.sequence_ids[:-1] == encoding.sequence_ids[1:])
    shared = both & (starts[1:] < ends[:-1])
    partial[:-1] |= shared
    partial[1:] |= shared
    return partial


def _most_split(
    grouped: Words, surfaces: list[str], split_W: NDArray[np.bool_], top: int
) -> tuple[SplitWord, ...]:
    split, pieces_W = np.flatnonzero(split_W), np.bincount(grouped.of_token)
    first: dict[str, int] = {}
    times: dict[str, int] = {}
    for word in split.tolist():
        first.setdefault(surfaces[word], word)
        times[surfaces[word]] = times.get(surfaces[word], 0) + 1
    best = sorted(first, key=lambda surface: (-pieces_W[first[surface]], first[surface]))[:top]
    return tuple(
        SplitWord(
            surface,
            tuple(
                grouped.encoding.pieces[token] for token in np.flatnonzero(grouped.of_token == first[surface])
            ),
            times[surface],
        )
        for surface in best
    )
