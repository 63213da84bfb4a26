"""Stretches of a text whose borders no token crosses."""

import numpy as np
from numpy.typing import NDArray

from unmask.text import Encoding


def texts_of(encoding: Encoding) -> list[tuple[bool, str]]:
    """The text, and the pair if there is one, each with whether it is the pair."""
    return [(False, encoding.text), *([] if encoding.pair is None else [(True, encoding.pair)])]


def tokens_of(encoding: Encoding, pair: bool) -> NDArray[np.int64]:
    """Tokens of one of the texts, special tokens left out."""
    return np.flatnonzero(encoding.sequence_ids == int(pair))


def uncrossed(borders: NDArray[np.bool_], spans: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The borders that no token crosses.

    A token that begins before one in front of it ended is taken to reach up to there, so that what lies
    between two borders is one run of tokens.
    """
    if not len(spans):
        return borders
    reached = np.maximum(np.maximum.accumulate(spans[:, 1]), spans[:, 0] + 1)
    crossed = np.zeros(len(borders) + 2, dtype=np.int64)
    np.add.at(crossed, spans[:, 0] + 1, 1)
    np.add.at(crossed, reached, -1)
    return borders & (np.cumsum(crossed)[: len(borders)] <= 0)


def stretch_of(starts: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
    """The stretch that holds each character, given where they begin."""
    found: NDArray[np.int64] = np.maximum(np.searchsorted(starts, places, side="right") - 1, 0)
    return found
