"""Texts that are longer than a model reads: refused, or without their end."""

import numpy as np

from unmask.errors import InvalidRequest, TextTooLong
from unmask.text.encoding import Encoding, Truncation

WAY_OUT = "shorten it, or truncate it (truncation='end', or --truncation end)"
"""What a user can do about a text that is too long."""


def check_truncation(truncation: str) -> None:
    """Raise `InvalidRequest` unless it is a way to handle long texts."""
    if truncation not in ("error", "end"):
        raise InvalidRequest(f"truncation is {truncation!r}; it can be 'error' or 'end'")


def fitted(encoding: Encoding, max_tokens: int | None, truncation: Truncation, name: str) -> Encoding:
    """An encoding within a limit.

    Raises:
        TextTooLong: it is longer, and ``truncation`` is "error".
    """
    if max_tokens is None or len(encoding) <= max_tokens:
        return encoding
    if truncation == "error":
        raise TextTooLong(
            f"{name} has {len(encoding)} tokens and the model reads at most {max_tokens}; {WAY_OUT}",
            original_tokens=len(encoding),
            max_tokens=max_tokens,
        )
    return truncated(encoding, max_tokens)


def truncated(encoding: Encoding, max_tokens: int) -> Encoding:
    """Drop tokens from the end (of the longer text first); all special tokens stay."""
    of_text = np.flatnonzero(encoding.sequence_ids == 0)
    of_pair = np.flatnonzero(encoding.sequence_ids == 1)
    room = max_tokens - int(encoding.special.sum())
    if room < 1 + (encoding.pair is not None):
        raise InvalidRequest(f"max_tokens is {max_tokens}, which leaves no room for words")
    short, long = sorted((len(of_text), len(of_pair)))
    long = max(short, room - short)
    if short + long > room:
        short, long = room // 2, room - room // 2
    keep_text, keep_pair = (short, long) if len(of_text) <= len(of_pair) else (long, short)
    mask = np.ones(len(encoding), dtype=bool)
    mask[of_text[keep_text:]] = False
    mask[of_pair[keep_pair:]] = False
    return encoding.select(mask)
