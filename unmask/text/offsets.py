"""Normalize the character offsets of tokens to one rule for all tokenizers: see `Encoding.offsets`."""

import unicodedata

import numpy as np
from numpy.typing import NDArray

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
