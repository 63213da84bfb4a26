"""Words as rows of character ids, as in the training of the published ELMo. Free of torch."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InvalidText

SENTENCE_BEGIN, SENTENCE_END, WORD_BEGIN, WORD_END, PADDING = range(256, 261)
"""Ids of the marks; ids below 256 are the bytes of the word in UTF-8."""


def character_ids(words: Sequence[str], width: int = 50) -> NDArray[np.int64]:
    """One row per word, (T, ``width``): its bytes between two marks, then padding.

    Bytes past ``width - 2`` are dropped, as in training. The convolutions treat padding like any other
    character, so the width is part of the model.

    Raises:
        InvalidText: a word is not Unicode text.
    """
    ids_TC = np.full((len(words), width), PADDING, dtype=np.int64)
    for row, word in enumerate(words):
        try:
            content = word.encode("utf-8")[: width - 2]
        except UnicodeEncodeError as error:
            raise InvalidText(f"word {row} is not Unicode text: {error.reason}") from None
        mark_row(ids_TC[row], content)
    return ids_TC


def sentence_marks(width: int) -> NDArray[np.int64]:
    """The rows of the two words that surround every sentence, (2, ``width``)."""
    ids_2C = np.full((2, width), PADDING, dtype=np.int64)
    for row, mark in zip(ids_2C, (SENTENCE_BEGIN, SENTENCE_END), strict=True):
        mark_row(row, (mark,))
    return ids_2C


def mark_row(row_C: NDArray[np.int64], content: Sequence[int]) -> None:
    """Write a word's characters between its marks."""
    row_C[0] = WORD_BEGIN
    row_C[1 : len(content) + 1] = list(content)
    row_C[len(content) + 1] = WORD_END
