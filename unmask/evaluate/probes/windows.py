"""Running text split into windows of tokens, with the characters and bytes that each token covers."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.evaluate.probes.files import files_in, opened, plain_name
from unmask.models.load import Model
from unmask.text import Encoding, read_lines

ENDINGS = (".txt", ".tokens", ".jsonl")
LINES_AT_ONCE = 1000
WINDOW_TOKENS = 128


@dataclass(frozen=True, eq=False)
class Window:
    """Consecutive tokens of one document, with special tokens."""

    ids_N: NDArray[np.int64]
    """Includes special tokens."""
    scored_N: NDArray[np.bool_]
    """Which tokens are not special."""
    characters: int
    """Characters that its tokens cover; white space belongs to the token before it, and line ends do not
    count."""
    bytes: int
    """Bytes of these characters in UTF-8."""


def text_file(path: Path) -> Path:
    """The file to read: the path itself, the only file in the folder, or the one with "test" in its name.

    Raises:
        InvalidRequest: there is none, or there are several.
    """
    found = files_in(path, ENDINGS)
    found = found if len(found) == 1 else [one for one in found if "test" in one.name]
    if len(found) != 1:
        held = ", ".join(one.name for one in files_in(path, ENDINGS))
        raise InvalidRequest(f"{path} has several text files ({held}); name one of them (--data)")
    return found[0]


def documents(path: Path) -> Iterator[list[str]]:
    """The documents of a file, each as its non-blank lines, stripped.

    A ``.jsonl`` file has one document per line, under the key ``text``; any other file is one document.

    Raises:
        InvalidText: it cannot be read, is not UTF-8, or a line is not a JSON object with a text.
    """
    with opened(path) as stream:
        if plain_name(path).endswith(".jsonl"):
            for line in read_lines(stream, str(path), field="text", blank="skip"):
                yield _lines(line.text.splitlines())
        else:
            yield _lines(line.text for line in read_lines(stream, str(path), blank="skip"))


def _lines(lines: Iterable[str]) -> list[str]:
    return [line.strip() for line in lines if line.strip()]


def windows(
    model: Model, texts: Iterable[Sequence[str]], *, tokens: int | None = None, limit: int | None = None
) -> list[Window]:
    """Split documents into consecutive windows; the last window of a document may be shorter.

    Lines are tokenized one by one and their tokens concatenated.

    Args:
        model: provides the tokenizer.
        texts: the lines of each document.
        tokens: tokens per window, special tokens included; None for 128, or the maximum length if that is
            less.
        limit: use only the first N windows.

    Raises:
        InvalidRequest: a window of this size has no room for text or exceeds the maximum length, ``limit`` is
            below 1, or there is no text.
    """
    if limit is not None and limit < 1:
        raise InvalidRequest(f"limit is {limit}; it must be at least 1 (--limit)")
    longest = model.max_tokens
    size = min(WINDOW_TOKENS, longest or WINDOW_TOKENS) if tokens is None else tokens
    if longest is not None and size > longest:
        raise InvalidRequest(
            f"a window has {size} tokens and the model reads at most {longest}; ask for fewer"
        )
    made: list[Window] = []
    for lines in texts:
        for window in _cut(model, lines, size):
            made.append(window)
            if len(made) == limit:
                return made
    if not made:
        raise InvalidRequest("the file has no text; name another one (--data)")
    return made


def _cut(model: Model, lines: Sequence[str], size: int) -> Iterator[Window]:
    """Windows of one document. The rows of ``held`` are ids, characters and bytes that are not in a window
    yet."""
    held = np.zeros((3, 0), dtype=np.int64)
    for start in range(0, len(lines), LINES_AT_ONCE):
        some = lines[start : start + LINES_AT_ONCE]
        encodings = model.tokenizer.encode_batch(some, name=partial(_line, some))
        before, after = _around(encodings[0])
        room = size - len(before) - len(after)
        if room < 1:
            raise InvalidRequest(
                f"a window of {size} tokens leaves no room for text; ask for more (--tokens)"
            )
        held = np.concatenate([held, *map(_counted, encodings)], axis=1)
        last = start + LINES_AT_ONCE >= len(lines)
        whole = held.shape[1] if last else held.shape[1] // room * room
        for begin in range(0, whole, room):
            yield _window(held[:, begin : min(begin + room, whole)], before, after)
        held = held[:, whole:]


def _line(lines: Sequence[str], index: int) -> str:
    return f"the line {lines[index][:40]!r}"


def _around(encoding: Encoding) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The special tokens before and after a text."""
    inner = np.flatnonzero(~encoding.special)
    return encoding.ids[: inner[0]], encoding.ids[inner[-1] + 1 :]


def _window(held: NDArray[np.int64], before: NDArray[np.int64], after: NDArray[np.int64]) -> Window:
    scored_N = np.zeros(len(before) + held.shape[1] + len(after), dtype=np.bool_)
    scored_N[len(before) : len(before) + held.shape[1]] = True
    ids_N = np.concatenate([before, held[0], after])
    return Window(ids_N, scored_N, int(held[1].sum()), int(held[2].sum()))


def _counted(encoding: Encoding) -> NDArray[np.int64]:
    """Ids of a line without special tokens, and the characters and bytes from each token to the next."""
    text, kept = encoding.text, ~encoding.special
    starts = np.maximum.accumulate(encoding.offsets[kept, 0])
    starts[0] = 0
    bounds = [*starts.tolist(), len(text)]
    characters = np.diff(bounds)
    byte_counts = [len(text[start:end].encode()) for start, end in pairwise(bounds)]
    return np.stack([encoding.ids[kept], characters, np.array(byte_counts)]).astype(np.int64)
