"""Words as tokens: how documents are cut into passages if no model reads them."""

import numpy as np

from unmask.errors import EmptyText, InvalidText
from unmask.text import Encoding
from unmask.text.borders import word_borders


def words_of(text: str) -> Encoding:
    """The words of a text as its tokens, without special tokens; their ids mean nothing.

    Words are those of `word_borders`: runs of letters and digits, and single other characters.

    Raises:
        InvalidText: the text contains a lone surrogate.
        EmptyText: it is all white space.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidText(
            f"it has a lone surrogate at character {error.start:,}; give text that UTF-8 can hold"
        ) from None
    borders = np.flatnonzero(word_borders(text))
    spans = np.stack([borders[:-1], borders[1:]], axis=1).astype(np.int64)
    spans = spans[[not text[start:end].isspace() for start, end in spans.tolist()]]
    if not len(spans):
        raise EmptyText("it is blank")
    count = len(spans)
    zeros = np.zeros(count, dtype=np.int64)
    return Encoding.of_arrays(
        text,
        ids=zeros,
        token_type_ids=zeros,
        offsets=spans,
        special=np.zeros(count, dtype=np.bool_),
        sequence_ids=zeros,
        pieces=[text[start:end] for start, end in spans.tolist()],
    )
