"""Read texts from files and streams: one per line, or one per JSON line, in UTF-8 only."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import BinaryIO, Literal

from unmask.errors import EmptyText, InvalidText
from unmask.text.records import Stream, json_row, text_lines

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
    for number, text in text_lines(Stream(source, stream)):
        where = f"line {number} of {source}"
        found = text if field is None or not text.strip() else _field(text, field, where)
        if found.strip():
            yield Line(found, source, number)
        elif blank == "error":
            raise EmptyText(
                f"{where} holds no text; remove it, or leave such lines out (blank='skip', or --blank skip)"
            )


def _field(text: str, field: str, where: str) -> str:
    value = json_row(text, where).get(field)
    if not isinstance(value, str):
        raise InvalidText(f"{where} has no string under {field!r}; name another key (field=, or --field)")
    return value
