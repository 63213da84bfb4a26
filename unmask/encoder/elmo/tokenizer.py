"""Texts as the words that ELMo reads. Free of torch."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from unmask.errors import EmptyText, InvalidRequest, quoted
from unmask.text.borders import word_borders
from unmask.text.encoding import Encoding
from unmask.text.tokenizer import numbered


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
