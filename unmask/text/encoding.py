"""A tokenized text: ids immediately, and the origin of each token on demand."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Truncation = Literal["error", "end"]
"""What to do with a text of more tokens than the model reads: refuse it, or drop its end."""


Ids = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TokenDetails:
    """Details of each token besides its id; see the properties of `Encoding`."""

    offsets: NDArray[np.int64]
    special: NDArray[np.bool_]
    sequence_ids: NDArray[np.int64]
    pieces: tuple[str, ...]

    def __post_init__(self) -> None:
        for array in (self.offsets, self.special, self.sequence_ids):
            array.setflags(write=False)

    def select(self, tokens: NDArray[Any]) -> "TokenDetails":
        """The details of some tokens, given as indices or as a mask."""
        chosen = (np.flatnonzero(tokens) if tokens.dtype == np.bool_ else tokens).tolist()
        return TokenDetails(
            self.offsets[tokens],
            self.special[tokens],
            self.sequence_ids[tokens],
            tuple(self.pieces[token] for token in chosen),
        )


class DetailSource(Protocol):
    """Computes an encoding's details on demand; usually the tokenizer that made it."""

    def details(self, text: str, pair: str | None) -> TokenDetails:
        """The details of the whole text."""


@dataclass(frozen=True, eq=False, slots=True)
class Encoding:
    """One text (or pair of texts) as tokens. Immutable; give it read-only arrays, or make it by `of_arrays`.

    Shapes: N tokens, special tokens included; every array is (N,) except `offsets`, which is (N, 2).
    The ids are available immediately. Offsets, pieces and the other details are computed on first access,
    since embedding needs none of them.
    """

    text: str
    pair: str | None
    ids: NDArray[np.int64]
    token_type_ids: NDArray[np.int64]
    """0 for tokens of the first text and 1 for tokens of the second, in models that distinguish them."""
    original_tokens: int
    """Tokens of the whole text before truncation, special tokens included; a lower bound
    if `counted_whole` is False."""
    source: TokenDetails | DetailSource
    """The details, or the tokenizer that computes them; read them through the properties."""
    words: NDArray[np.int64] | None = None
    """The index of the caller's word that each token belongs to, and -1 for a special token; None for text
    that was not given as words."""
    counted_whole: bool = True
    """Whether the whole text was tokenized; only the beginning of a very long text is."""

    @classmethod
    def of_arrays(
        cls,
        text: str,
        pair: str | None = None,
        *,
        ids: NDArray[np.int64],
        token_type_ids: NDArray[np.int64],
        offsets: NDArray[np.int64],
        special: NDArray[np.bool_],
        sequence_ids: NDArray[np.int64],
        pieces: Sequence[str],
        original_tokens: int | None = None,
        words: NDArray[np.int64] | None = None,
    ) -> "Encoding":
        """An encoding of copied arrays; ``original_tokens`` defaults to its length."""
        return cls(
            text,
            pair,
            read_only(ids.copy()),
            read_only(token_type_ids.copy()),
            len(ids) if original_tokens is None else original_tokens,
            TokenDetails(offsets.copy(), special.copy(), sequence_ids.copy(), tuple(pieces)),
            words,
        )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def details(self) -> TokenDetails:
        """Offsets, special tokens, sequence ids and pieces together."""
        source = self.source
        if not isinstance(source, TokenDetails):
            source = source.details(self.text, self.pair)
            object.__setattr__(self, "source", source)
        return source

    @property
    def offsets(self) -> NDArray[np.int64]:
        """The range of each token in the caller's string, (N, 2), in characters (code points), end exclusive.

        White space at the ends of a token is not included unless the token is all white space. Tokens that
        share a character (its bytes, or its normalized form) all cover the whole character. A special token
        has (0, 0), and a token that stands for no character, such as the space that a tokenizer puts before
        the first word, has an empty range at its position.
        """
        return self.details.offsets

    @property
    def special(self) -> NDArray[np.bool_]:
        """True for tokens that the tokenizer added, such as [CLS] and [SEP]."""
        return self.details.special

    @property
    def sequence_ids(self) -> NDArray[np.int64]:
        """0 for tokens of ``text``, 1 for tokens of ``pair``, -1 for special tokens."""
        return self.details.sequence_ids

    @property
    def pieces(self) -> tuple[str, ...]:
        """The vocabulary's spelling of each token."""
        return self.details.pieces

    @property
    def kept_tokens(self) -> int:
        """Number of tokens in this encoding."""
        return len(self.ids)

    @property
    def truncated_tokens(self) -> int:
        """Number of tokens dropped because the text was too long; see `original_tokens`."""
        return self.original_tokens - len(self.ids)

    def surface(self, token: int) -> str:
        """The caller's characters that a token covers; a special token as the vocabulary spells it."""
        details = self.details
        if details.special[token]:
            return details.pieces[token]
        source = self.pair if details.sequence_ids[token] == 1 and self.pair is not None else self.text
        start, end = details.offsets[token]
        return source[start:end]

    def select(self, tokens: NDArray[Any]) -> "Encoding":
        """The encoding with only some of its tokens, given as indices or as a mask."""
        return replace(
            self,
            ids=read_only(self.ids[tokens]),
            token_type_ids=read_only(self.token_type_ids[tokens]),
            source=self.details.select(tokens),
            words=None if self.words is None else self.words[tokens],
        )

    def with_pieces(self, ids: NDArray[np.int64], pieces: Sequence[str]) -> "Encoding":
        """The encoding with other tokens at the same positions."""
        return replace(self, ids=read_only(ids), source=replace(self.details, pieces=tuple(pieces)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Encoding):
            return NotImplemented
        mine, its = self._compared(), other._compared()
        return all(
            np.array_equal(a, b)
            if isinstance(a, np.ndarray) and isinstance(b, np.ndarray)
            else a is b or a == b
            for a, b in zip(mine, its, strict=True)
        )

    def __hash__(self) -> int:
        return hash((self.text, self.pair, self.ids.tobytes()))

    def _compared(self) -> tuple[object, ...]:
        details = self.details
        return (
            self.text,
            self.pair,
            self.ids,
            self.token_type_ids,
            self.original_tokens,
            self.counted_whole,
            self.words,
            details.offsets,
            details.special,
            details.sequence_ids,
            details.pieces,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickle holds the details instead of the tokenizer.
        arguments = (self.text, self.pair, self.ids, self.token_type_ids, self.original_tokens)
        return _unpickled, (*arguments, self.details, self.words, self.counted_whole)


def _unpickled(text: str, pair: str | None, ids: Ids, token_type_ids: Ids, *rest: Any) -> Encoding:
    return Encoding(text, pair, read_only(ids), read_only(token_type_ids), *rest)


def read_only(array: Ids) -> Ids:
    """The array itself, which can no longer be changed.

    The constructor of `Encoding` does not do this, because it is called for every text.
    """
    array.setflags(write=False)
    return array


_IS_SPACE = np.array([*(chr(code).isspace() for code in range(0x3001)), False])
"""Indexed by code point. No white space lies beyond U+3000; the last entry stands for all of that range."""


def without_spaces(offsets: NDArray[np.int64], lone: NDArray[np.bool_], text: str) -> NDArray[np.int64]:
    """Offsets without white space at their ends, except for tokens that are all white space.

    ``lone`` says which tokens are only a space; if the range of such a token is not white space, the
    tokenizer inserted it and it stands for no character.
    """
    characters = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    blank = _IS_SPACE[np.minimum(characters, len(_IS_SPACE) - 1)]
    count = len(blank)
    places = np.arange(count + 1)
    word_from = np.minimum.accumulate(np.append(np.where(blank, count, places[:-1]), count)[::-1])[::-1]
    word_until = np.maximum.accumulate(np.append(0, np.where(blank, 0, places[1:])))
    starts, ends = word_from[offsets[:, 0]], word_until[offsets[:, 1]]
    holds_word = starts < ends
    trimmed = np.where(holds_word[:, None], np.stack([starts, ends], axis=1), offsets)
    invented = lone & holds_word
    trimmed[invented, 1] = trimmed[invented, 0]
    return trimmed


def with_loose(offsets: NDArray[np.int64], text: str) -> NDArray[np.int64]:
    """Extend offsets over adjacent characters of the same unit that no token covers.

    Where a tokenizer composes a letter and its accent into one character (NFC, NFKC), or drops the
    accent, the engine counts the letter alone; of two single quotes that are read as a double one
    (ALBERT) it counts the second.
    """
    change = np.zeros(len(text) + 1, dtype=np.int64)
    np.add.at(change, offsets[:, 0], 1)
    np.add.at(change, offsets[:, 1], -1)
    bare = [int(place) for place in np.flatnonzero(np.cumsum(change)[:-1] == 0) if not text[place].isspace()]
    if not bare:
        return offsets
    start_of, end_of = np.arange(len(text) + 1), np.arange(len(text) + 1)
    for place in reversed(bare):
        if unicodedata.category(text[place]).startswith("M"):
            end_of[place] = end_of[place + 1]
    for place in bare:
        if text[place] in "'`" and text[place : place + 1] == text[place + 1 : place + 2]:
            start_of[place + 1] = start_of[place]
    starts = start_of[offsets[:, 0]]
    ends = np.where(offsets[:, 0] < offsets[:, 1], end_of[offsets[:, 1]], starts)
    return np.stack([starts, ends], axis=1)
