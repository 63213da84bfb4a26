"""The first tokens of a very long text, found without tokenizing all of it.

A tokenizer splits a text from the left into words and then each word into tokens, so the tokens of a prefix
equal those of the whole text, except near the end of the prefix, where a word may continue and a combining
mark may belong to the character before it. Tokens count as final when their word ends well before the end of
the prefix and another word follows.
"""

import sys
from dataclasses import dataclass

import numpy as np
import tokenizers

from unmask.errors import InvalidText

WHOLE_UP_TO = 100_000
"""Texts of up to this many characters are always tokenized in full, so that their tokens can be counted."""
WHOLE_CHARACTERS_A_TOKEN = 32
"""The same limit per token that the model reads; English prose has 4 to 5 characters per token."""
LONGEST_PREFIX = 1_000_000
"""Characters after which a text without enough words is refused; their tokens take about 200 MB."""
MARGIN = 512
"""Characters at the end of a prefix where no token is final: longer than any added token or combining
sequence."""


@dataclass(frozen=True)
class Beginning:
    """A prefix of a text and its tokens, of which the first ``final`` are those of the whole text."""

    text: str
    tokens: tokenizers.Encoding
    final: int
    """The number of final tokens, without special tokens."""


def characters_tokenized_whole(max_tokens: int | None) -> int:
    """The characters up to which a text is tokenized in full; all of them if its length is unlimited."""
    return sys.maxsize if max_tokens is None else max(WHOLE_UP_TO, WHOLE_CHARACTERS_A_TOKEN * max_tokens)


def beginning(
    engine: tokenizers.Tokenizer,
    text: str,
    tokens: int,
    name: str,
    *,
    first: int = WHOLE_UP_TO,
    most: int = LONGEST_PREFIX,
    margin: int = MARGIN,
) -> Beginning | None:
    """A prefix that has ``tokens`` final tokens; None if only the whole text has that many.

    Prefixes start at ``first`` characters and grow fourfold.

    Raises:
        InvalidText: the first ``most`` characters of a longer text have fewer final tokens.
    """
    most = max(most, WHOLE_CHARACTERS_A_TOKEN * tokens)
    size = max(first, WHOLE_CHARACTERS_A_TOKEN * tokens)
    while size < len(text):
        prefix = _read(engine, text[:size], margin)
        if prefix.final >= tokens:
            return prefix
        if size >= most:
            raise InvalidText(
                f"{name} has {len(text):,} characters, and the first {size:,} of them make fewer than "
                f"{tokens} tokens that end with a word; split the text, or remove its blank or unbroken "
                "stretches"
            )
        size = min(4 * size, most)
    return None


def _read(engine: tokenizers.Tokenizer, prefix: str, margin: int) -> Beginning:
    tokens = engine.encode(prefix)
    word_N = np.array([-1 if word is None else word for word in tokens.word_ids], dtype=np.int64)
    ends_N = np.array(tokens.offsets, dtype=np.int64).reshape(-1, 2)[word_N >= 0, 1]
    word_N = word_N[word_N >= 0]
    end_of = np.zeros(int(word_N.max(initial=-1)) + 1, dtype=np.int64)
    np.maximum.at(end_of, word_N, ends_N)
    # The last word is never final: the tokenizer may drop characters between it and the end of the prefix.
    open_N = (end_of[word_N] > len(prefix) - margin) | (word_N == len(end_of) - 1)
    return Beginning(prefix, tokens, int(np.argmax(open_N)) if open_N.any() else len(word_N))
