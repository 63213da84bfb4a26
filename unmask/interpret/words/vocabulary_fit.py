"""How well a vocabulary fits a text: the number of tokens per word.

Axes: W words.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.interpret.arguments import at_least
from unmask.interpret.words.words import Words, words
from unmask.text import Encoding, Tokenizer
from unmask.text.borders import is_word


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
    at_least("top", top, 0)
    found = words(encoding)
    surfaces = [found.surface(word) for word in range(len(found))]
    counted_W = np.array([is_word(surface) for surface in surfaces]) & ~found.special
    if not counted_W.any():
        raise InvalidRequest("the text has no word with a letter or digit to measure a vocabulary by")
    plain_N = ~encoding.special
    pieces_W = np.bincount(found.of_token, minlength=len(found))
    lengths_N = encoding.offsets[:, 1] - encoding.offsets[:, 0]
    longer_N = np.array([len(surface) > 1 for surface in surfaces])[found.of_token]
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
        most_split=_most_split(found, surfaces, counted_W & (pieces_W > 1), top),
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
        held = np.cumsum(change)[:-1] > 0
        covered += sum(not text[place].isspace() for place in np.flatnonzero(held))
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
    found: Words, surfaces: list[str], split_W: NDArray[np.bool_], top: int
) -> tuple[SplitWord, ...]:
    split, pieces_W = np.flatnonzero(split_W), np.bincount(found.of_token)
    first: dict[str, int] = {}
    times: dict[str, int] = {}
    for word in split.tolist():
        first.setdefault(surfaces[word], word)
        times[surfaces[word]] = times.get(surfaces[word], 0) + 1
    best = sorted(first, key=lambda surface: (-pieces_W[first[surface]], first[surface]))[:top]
    return tuple(
        SplitWord(
            surface,
            tuple(found.encoding.pieces[token] for token in np.flatnonzero(found.of_token == first[surface])),
            times[surface],
        )
        for surface in best
    )
