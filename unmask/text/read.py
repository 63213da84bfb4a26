"""Read texts from files and streams: one per line, or one per JSON line, in UTF-8 only."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO, Literal

from unmask.errors import EmptyText, InvalidText

LONGEST_LINE = 128 << 20
"""Maximum bytes of a line; a longer line means a different kind of file, such as one without line ends."""

Blank = Literal["error", "skip"]
"""What to do with a line that holds no text: refuse the file, or skip the line."""


@dataclass(frozen=True)
class Line:
    """One text and its source line."""

    text: str
    source: str
    """The file name; ``<stdin>`` for standard input."""
    number: int
    """Counted from 1."""

    def __str__(self) -> str:
        return f"line {self.number} of {self.source}"


def read_lines(
    stream: BinaryIO, source: str, *, field: str | None = None, blank: Blank = "error"
) -> Iterable[Line]:
    """The texts of a stream in order, without their line ends.

    Args:
        stream: bytes; a byte order mark at the beginning is skipped.
        source: its name in error messages.
        field: read each line as a JSON object and take the text under this key; None takes the line.
        blank: what to do with a line without text.

    Raises:
        InvalidText: a line is not UTF-8, is not a JSON object with such a string, or is too long.
        EmptyText: a line contains no text, with ``blank="error"``.
    """
    lines = iter(partial(stream.readline, LONGEST_LINE + 1), b"")
    for number, raw in enumerate(lines, start=1):
        where = f"line {number} of {source}"
        if len(raw) > LONGEST_LINE:
            raise InvalidText(f"{where} is longer than {LONGEST_LINE:,} bytes; put one text on each line")
        try:
            text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise InvalidText(
                f"{where} is not UTF-8: byte 0x{raw[error.start]:02x} at byte {error.start + 1}; "
                "convert the file to UTF-8 first"
            ) from None
        text = text.removesuffix("\n").removesuffix("\r")
        if field is not None and text.strip():
            text = _field(text, field, where)
        if text.strip():
            yield Line(text, source, number)
        elif blank == "error":
            raise EmptyText(
                f"{where} holds no text; remove it, or leave such lines out (blank='skip', or --blank skip)"
            )


def _field(text: str, field: str, where: str) -> str:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidText(f"{where} is not JSON: {error}") from None
    value = record.get(field) if isinstance(record, dict) else None
    if not isinstance(value, str):
        raise InvalidText(f"{where} has no string under {field!r}; name another key (field=, or --field)")
    return value
