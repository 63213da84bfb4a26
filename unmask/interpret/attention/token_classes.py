"""Classes of tokens: first, special and punctuation."""

import unicodedata

import numpy as np
from numpy.typing import NDArray

from unmask.text import Encoding

Marks = NDArray[np.bool_]


def column_classes(encoding: Encoding) -> tuple[Marks, Marks, Marks]:
    """Which tokens are the first, special but not the first, and punctuation; (N,) each.

    Punctuation has characters, spaces at its ends not counted, and every one of them is in one of Unicode's
    categories of punctuation or symbols (P, S). Special tokens are none.
    """
    length = len(encoding)
    first_N = np.arange(length) == 0
    punctuation_N = np.array([_is_punctuation(encoding, token) for token in range(length)], dtype=np.bool_)
    return first_N, encoding.special & ~first_N, punctuation_N


def _is_punctuation(encoding: Encoding, token: int) -> bool:
    if encoding.special[token]:
        return False
    characters = encoding.surface(token).strip()
    return bool(characters) and all(unicodedata.category(one)[0] in "PS" for one in characters)
