"""Texts as the words that ELMo reads, and words as rows of character ids. Free of torch."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from unmask.errors import EmptyText, InvalidRequest, InvalidText, quoted
from unmask.text.borders import word_borders
from unmask.text.encoding import Encoding
from unmask.text.tokenizer import numbered

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


class WordTokenizer:
    """Divides texts at word borders: words and punctuation marks apart, as in the text ELMo was trained on.

    Its encodings have one token per word, with offsets and without special tokens. There is no vocabulary, so
    their ids are only the number of the word in its text; the network reads the characters of the pieces.
    """

    def encode(self, text: str) -> Encoding:
        """One text as words."""
        return self.encode_batch([text], name=lambda _: "the text")[0]

    def encode_batch(
        self,
        texts: Sequence[str],
        *,
        max_tokens: int | None = None,
        name: Callable[[int], str] = numbered,
    ) -> list[Encoding]:
        """Texts as words; a text may have any length, so ``max_tokens`` is not read.

        Raises:
            EmptyText: a text has no words.
            InvalidRequest: a text is not a string.
        """
        return [_encoded(text, name(index)) for index, text in enumerate(texts)]


def _encoded(text: object, name: str) -> Encoding:
    if not isinstance(text, str):
        raise InvalidRequest(f"{name} is {quoted(text)}; give a string")
    cuts = np.flatnonzero(word_borders(text)).tolist()
    spans = [span for span in pairwise(cuts) if not text[slice(*span)].isspace()]
    if not spans:
        raise EmptyText(f"{name} has no words; give a text with at least one")
    count = len(spans)
    return Encoding.of_arrays(
        text,
        ids=np.arange(count),
        token_type_ids=np.zeros(count, dtype=np.int64),
        offsets=np.array(spans, dtype=np.int64),
        special=np.zeros(count, dtype=np.bool_),
        sequence_ids=np.zeros(count, dtype=np.int64),
        pieces=[text[start:end] for start, end in spans],
    )
