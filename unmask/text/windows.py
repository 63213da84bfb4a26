"""Texts that are longer than a model reads: refused, without their end, or in overlapping windows.

The first tokens of a very long text are found without tokenizing all of it. A tokenizer splits a text from
the left into words and then each word into tokens, so the tokens of a prefix equal those of the whole text,
except near the end of the prefix, where a word may continue and a combining mark may belong to the character
before it. Tokens count as final when their word ends well before the end of the prefix and another word
follows.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tokenizers
from numpy.typing import NDArray

from unmask.base.arguments import at_least
from unmask.errors import InvalidRequest, InvalidText, TextTooLong
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


OVERLAP_TOKENS = 64
"""Tokens that neighboring windows share by default: more than a word, an entity or a short answer has.
Where a window has room for fewer than four times as many, it is a quarter of that room."""


@dataclass(frozen=True, eq=False)
class Window:
    """A part of a tokenized text that the model reads in one pass.

    Axes: N tokens of the window.
    """

    encoding: Encoding
    """The window with its special tokens; its offsets still refer to the caller's string."""
    tokens: NDArray[np.int64]
    """The position of each token in the whole encoding, (N,)."""
    owned: NDArray[np.bool_]
    """The tokens whose results are taken from this window, (N,). Of all windows that hold a token, the one in
    which it has the most context owns it; the first window owns special tokens and a repeated question."""


def windows(
    encoding: Encoding,
    max_tokens: int | None,
    overlap_tokens: int | None = None,
    name: str = "the text",
) -> list[Window]:
    """The windows of one text (or pair); a single one that holds everything, if the model can read it whole.

    Of a pair, the first text is repeated in every window and the windows cover the second, as for a question
    and its context. All windows are equally long: as short as the number of windows that are needed allows.

    Args:
        encoding: the whole text, not truncated.
        max_tokens: the tokens that the model reads, special tokens included; None for any number.
        overlap_tokens: the tokens of the text that neighboring windows share at least. It is what is shared,
            not the step from one window to the next, for which some libraries use the name stride. None is
            `OVERLAP_TOKENS`.
        name: how error messages name the text.

    Raises:
        InvalidRequest: the overlap is negative, or leaves no room in a window.
    """
    at_least("overlap_tokens", overlap_tokens, 0)
    total = len(encoding)
    if max_tokens is None or total <= max_tokens:
        return [Window(encoding, np.arange(total), np.ones(total, dtype=np.bool_))]
    moving = np.flatnonzero(encoding.sequence_ids == (0 if encoding.pair is None else 1))
    fixed = np.setdiff1d(np.arange(total), moving)
    room = max_tokens - len(fixed)
    if overlap_tokens is None:
        overlap_tokens = min(OVERLAP_TOKENS, max(room, 0) // 4)
    beside = "" if encoding.pair is None else f" beside the {len(fixed)} of the first text"
    _check_room(room, overlap_tokens, max_tokens, name=name, beside=beside, remedy="shorten the first text")
    return _windows(encoding, moving, room, overlap_tokens)


def aligned_windows(
    encodings: Sequence[Encoding],
    max_tokens: int | None,
    overlap_tokens: int | None = None,
    name: str = "the text",
    second: str = "choice",
) -> list[list[Window]]:
    """The windows of pairs that have the first text in common, such as a question with each of its choices.

    Window number w of every pair holds the same tokens of the first text, and all of the pair's second text.
    So there are windows as soon as one pair is too long, and the longest second text decides how much of the
    first a window holds. ``second`` is how errors name a second text; other arguments are those of `windows`.
    """
    at_least("overlap_tokens", overlap_tokens, 0)
    if max_tokens is None or all(len(encoding) <= max_tokens for encoding in encodings):
        return [windows(encoding, None) for encoding in encodings]
    room = shared_room(encodings, max_tokens)
    if overlap_tokens is None:
        overlap_tokens = min(OVERLAP_TOKENS, max(room, 0) // 4)
    beside = f" beside the {max_tokens - room} of its longest {second}"
    remedy = f"shorten the longest {second}"
    _check_room(room, overlap_tokens, max_tokens, name=name, beside=beside, remedy=remedy)
    return [
        _windows(encoding, np.flatnonzero(encoding.sequence_ids == 0), room, overlap_tokens)
        for encoding in encodings
    ]


def shared_room(encodings: Sequence[Encoding], max_tokens: int) -> int:
    """The tokens of their common first text that fit beside the longest second text of pairs."""
    return max_tokens - max(int((encoding.sequence_ids != 0).sum()) for encoding in encodings)


def _check_room(
    room: int, overlap_tokens: int, max_tokens: int, *, name: str, beside: str, remedy: str
) -> None:
    """Raise `InvalidRequest` unless a window has room for more tokens than neighboring windows share."""
    if room <= overlap_tokens:
        raise InvalidRequest(
            f"overlap_tokens is {overlap_tokens}, and a window over {name} has room for {max(room, 0)} tokens"
            f"{beside} (the model reads {max_tokens}); " + ("lower overlap_tokens" if room > 1 else remedy)
        )


def _windows(encoding: Encoding, moving: NDArray[np.int64], room: int, overlap_tokens: int) -> list[Window]:
    """The fewest windows over the tokens ``moving`` with at most ``room`` of them, and all other tokens.

    They are equally long: full windows would share more than the overlap, and the last of several would read
    most of its tokens a second time for nothing.
    """
    total = len(encoding)
    fixed = np.setdiff1d(np.arange(total), moving)
    count = -(-(len(moving) - overlap_tokens) // (room - overlap_tokens))
    room = -(-(len(moving) + (count - 1) * overlap_tokens) // count)
    starts = np.arange(count) * (len(moving) - room) // (count - 1)
    owners = _owners(starts, room, len(moving))
    windows = []
    for number, start in enumerate(starts):
        tokens = np.sort(np.concatenate((fixed, moving[start : start + room])))
        owned = np.full(total, number == 0)
        owned[moving] = owners == number
        windows.append(Window(encoding.select(tokens), tokens, owned[tokens]))
    return windows


def _owners(starts: NDArray[np.int64], room: int, count: int) -> NDArray[np.int64]:
    """For each moving token, the window in which it is farthest from the nearer end; the first if equal."""
    tokens = np.arange(count)
    owners = np.zeros(count, dtype=np.int64)
    best = np.full(count, -1)
    for number, start in enumerate(starts.tolist()):
        inside = tokens[start : start + room]
        context = np.minimum(inside - start, start + room - 1 - inside)
        better = inside[context > best[inside]]
        best[better] = context[better - start]
        owners[better] = number
    return owners


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
