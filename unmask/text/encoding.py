"""What a tokenizer makes of one text: ids, and for each the characters it came from."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

TooLong = Literal["error", "cut"]
"""What to do with a text of more tokens than the model reads: refuse it, or keep its beginning."""


@dataclass(frozen=True, eq=False)
class Encoding:
    """One text (or pair of texts) as tokens.

    Shapes: N tokens, special tokens included; every array is (N,) but ``spans``, which is (N, 2) and
    counts characters (code points) of the caller's own string, the end not included. A span has no
    space at its ends unless it is all space; tokens that share a character (its bytes, or what it is
    normalised to) all cover the whole of it. A special token has the empty span (0, 0), and a token
    that stands for no character, such as the space that a tokenizer puts before the first word, an
    empty span where it stands.
    """

    text: str
    pair: str | None
    ids: NDArray[np.int64]
    segments: NDArray[np.int64]
    """Which segment a token is said to be in: 0 for the first text, 1 for the pair (BERT's token types)."""
    spans: NDArray[np.int64]
    special: NDArray[np.bool_]
    """True for tokens that the tokenizer added, such as [CLS] and [SEP]."""
    in_pair: NDArray[np.bool_]
    """True where the span counts in ``pair`` rather than in ``text``."""
    pieces: tuple[str, ...]
    """The vocabulary's spelling of each token."""
    total_tokens: int
    """Tokens of the whole text, special tokens included, before any cut."""
    words: NDArray[np.int64] | None = None
    """Which of the caller's words a token is of, from 0, and -1 for a special token; None for text that
    was not given as words."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def kept_tokens(self) -> int:
        """Tokens that are in this encoding."""
        return len(self.ids)

    @property
    def cut_tokens(self) -> int:
        """Tokens that were left out because the text was too long."""
        return self.total_tokens - len(self.ids)

    def surface(self, token: int) -> str:
        """The caller's own characters behind a token; the vocabulary's spelling for a special one."""
        if self.special[token]:
            return self.pieces[token]
        source = self.pair if self.in_pair[token] and self.pair is not None else self.text
        start, end = self.spans[token]
        return source[start:end]
