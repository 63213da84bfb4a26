"""What a tokenizer makes of one text: ids at once, and where each came from on demand."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Truncation = Literal["error", "end"]
"""What to do with a text of more tokens than the model reads: refuse it, or leave out its end."""


@dataclass(frozen=True, eq=False)
class TokenDetails:
    """What is known of each token besides its id; see the properties of `Encoding`."""

    offsets: NDArray[np.int64]
    special: NDArray[np.bool_]
    sequence_ids: NDArray[np.int64]
    pieces: tuple[str, ...]

    def __post_init__(self) -> None:
        for array in (self.offsets, self.special, self.sequence_ids):
            array.setflags(write=False)

    def select(self, tokens: NDArray[Any]) -> "TokenDetails":
        """Those of some tokens, given as indices or as a mask."""
        chosen = np.arange(len(self.pieces))[tokens].tolist()
        return TokenDetails(
            self.offsets[tokens],
            self.special[tokens],
            self.sequence_ids[tokens],
            tuple(self.pieces[token] for token in chosen),
        )


class DetailSource(Protocol):
    """Where an encoding gets its details when they are asked for: the tokenizer that made it."""

    def details(self, text: str, pair: str | None) -> TokenDetails:
        """The details of the whole text."""


@dataclass(frozen=True, eq=False, slots=True)
class Encoding:
    """One text (or pair of texts) as tokens. Immutable; its arrays are read-only.

    Shapes: N tokens, special tokens included; every array is (N,) but `offsets`, which is (N, 2).
    The ids are there at once. Offsets, pieces and the rest are computed when they are first read, since
    embedding needs none of them.
    """

    text: str
    pair: str | None
    ids: NDArray[np.int64]
    token_type_ids: NDArray[np.int64]
    """0 for tokens of the first text and 1 for tokens of the pair in models that tell them apart."""
    original_tokens: int
    """Tokens of the whole text before truncation, special tokens included; the least number there can be
    where `counted_whole` is False."""
    source: TokenDetails | DetailSource
    """The details, or the tokenizer that computes them; read them through the properties."""
    words: NDArray[np.int64] | None = None
    """Which of the caller's words a token belongs to, from 0, and -1 for a special token; None for text that
    was not given as words."""
    counted_whole: bool = True
    """Whether the whole text was tokenized; of a very long one only a beginning is."""

    def __post_init__(self) -> None:
        self.ids.setflags(write=False)
        self.token_type_ids.setflags(write=False)

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
        """An encoding of copies of arrays; ``original_tokens`` is its length where not given."""
        return cls(
            text,
            pair,
            ids.copy(),
            token_type_ids.copy(),
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
        """Where each token stands in the caller's own string, (N, 2), in characters (code points).

        The end is not included. No white space is at the ends of a token unless it is all white space;
        tokens that share a character (its bytes, or what it is normalized to) all cover the whole of it.
        A special token has (0, 0), and a token that stands for no character, such as the space that a
        tokenizer puts before the first word, has an empty range at its place.
        """
        return self.details.offsets

    @property
    def special(self) -> NDArray[np.bool_]:
        """True for tokens that the tokenizer added, such as [CLS] and [SEP]."""
        return self.details.special

    @property
    def sequence_ids(self) -> NDArray[np.int64]:
        """0 where the offsets count in ``text``, 1 where they count in ``pair``, -1 for special tokens."""
        return self.details.sequence_ids

    @property
    def pieces(self) -> tuple[str, ...]:
        """The vocabulary's spelling of each token."""
        return self.details.pieces

    @property
    def kept_tokens(self) -> int:
        """Tokens that are in this encoding."""
        return len(self.ids)

    @property
    def truncated_tokens(self) -> int:
        """Tokens that were left out because the text was too long; see `original_tokens`."""
        return self.original_tokens - len(self.ids)

    def surface(self, token: int) -> str:
        """The caller's own characters behind a token; the vocabulary's spelling for a special one."""
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
            ids=self.ids[tokens],
            token_type_ids=self.token_type_ids[tokens],
            source=self.details.select(tokens),
            words=None if self.words is None else self.words[tokens],
        )

    def with_pieces(self, ids: NDArray[np.int64], pieces: Sequence[str]) -> "Encoding":
        """The encoding with other tokens at the same places."""
        return replace(self, ids=ids, source=replace(self.details, pieces=tuple(pieces)))

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
        # The tokenizer stays behind: a pickle holds the details instead.
        given = (self.text, self.pair, self.ids, self.token_type_ids, self.original_tokens)
        return Encoding, (*given, self.details, self.words, self.counted_whole)
