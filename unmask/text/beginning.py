"""The first tokens of a very long text, found without tokenizing all of it.

A tokenizer splits a text from the left into words and then each word into tokens, so the tokens of a prefix
equal those of the whole text, except near the cut: a word there may go on, and a mark may belong to the
character before it. Tokens count as final here when their word ends well
before the cut and another follows it.
"""

from dataclasses import dataclass

import numpy as np
import tokenizers

from unmask.errors import InvalidText

WHOLE_UP_TO = 100_000
"""Characters of a text that is tokenized whole whatever the model reads, so that its tokens are counted."""
WHOLE_CHARACTERS_A_TOKEN = 32
"""Likewise for models that read long texts; words of English prose have 4 to 5 characters a token."""
LONGEST_PREFIX = 1_000_000
"""Characters after which a text without enough words is refused; their tokens take some 200 MB."""
MARGIN = 512
"""Characters before the cut in which no token is final: more than any added token or combining sequence."""


@dataclass(frozen=True)
class Beginning:
    """A prefix of a text and its tokens, of which the first ``final`` are those of the whole text."""

    text: str
    tokens: tokenizers.Encoding
    final: int
    """Special tokens are not counted."""


def is_very_long(text: str, max_tokens: int | None) -> bool:
    """Whether only the beginning of a text is tokenized; never where nothing limits its length."""
    return max_tokens is not None and len(text) > max(WHOLE_UP_TO, WHOLE_CHARACTERS_A_TOKEN * max_tokens)


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
    """A prefix that has ``tokens`` final tokens; None where only the whole text would do.

    Prefixes grow from ``first`` characters fourfold.

    Raises:
        InvalidText: the first ``most`` characters have no such number of tokens, and there are more.
    """
    most = max(most, WHOLE_CHARACTERS_A_TOKEN * tokens)
    size = max(first, WHOLE_CHARACTERS_A_TOKEN * tokens)
    while size < len(text):
        found = _read(engine, text[:size], margin)
        if found.final >= tokens:
            return found
        if size >= most:
            raise InvalidText(
                f"{name} has {len(text):,} characters, and the first {size:,} of them make fewer than "
                f"{tokens} tokens that end with a word; split the text, or remove its blank or unbroken "
                "stretches"
            )
        size = min(4 * size, most)
    return None


def _read(engine: tokenizers.Tokenizer, prefix: str, margin: int) -> Beginning:
    made = engine.encode(prefix)
    word_N = np.array([-1 if word is None else word for word in made.word_ids], dtype=np.int64)
    ends_N = np.array(made.offsets, dtype=np.int64).reshape(-1, 2)[word_N >= 0, 1]
    word_N = word_N[word_N >= 0]
    end_of = np.zeros(int(word_N.max(initial=-1)) + 1, dtype=np.int64)
    np.maximum.at(end_of, word_N, ends_N)
    # The last word is never final: characters that the tokenizer drops may stand between it and its end.
    open_N = (end_of[word_N] > len(prefix) - margin) | (word_N == len(end_of) - 1)
    return Beginning(prefix, made, int(np.argmax(open_N)) if open_N.any() else len(word_N))
