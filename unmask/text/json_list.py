"""The objects of a JSON list, one at a time."""

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from unmask.errors import InvalidText
from unmask.text.records import DAMAGED, LONGEST_LINE, Record, Stream, opened

CHUNK = 1 << 16
"""Characters that are read at a time; for a longer object, as many again as are held already."""
SPACE = re.compile(r"[ \t\n\r]*")
LIST_OF_OBJECTS = re.compile(r"[ \t\n\r]*\[[ \t\n\r]*\{")


def is_object_list(beginning: str) -> bool:
    """Whether a JSON text begins as a list of objects does."""
    return LIST_OF_OBJECTS.match(beginning) is not None


def json_list(path: Path | Stream) -> Iterator[Record]:
    """The objects of a file that holds one JSON list, each named by its number as a row.

    Raises:
        InvalidText: the file is not UTF-8, not a list of objects, or damaged.
    """
    number = 0
    try:
        with opened(path) as raw, io.TextIOWrapper(raw, "utf-8-sig") as stream:
            reader = _Reader(stream)
            if reader.next_character() != "[":
                raise InvalidText(f"{path} is not a JSON list of objects, one for each row")
            reader.at += 1
            while reader.next_character() != "]":
                number += 1
                name = f"row {number} of {path}"
                row = reader.value(name)
                if not isinstance(row, dict):
                    raise InvalidText(f"{name} is not a JSON object")
                yield name, row
                following = reader.next_character()
                if following not in (",", "]"):
                    found = repr(following) if following else "the end of the file"
                    raise InvalidText(f"{name} is followed by {found}, not by a comma")
                reader.at += following == ","
            reader.at += 1
            if reader.next_character():
                raise InvalidText(f"{path} continues after its JSON list ends; put one list in a file")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise InvalidText(
            f"{path} is not UTF-8: byte 0x{byte:02x}; convert the file to UTF-8 first"
        ) from None
    except DAMAGED as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidText(f"cannot read {path} after row {number}: {reason}") from None


class _Reader:
    """JSON values of a stream, of which little more than one value is in memory."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.text, self.at = stream, "", 0
        self.decoder = json.JSONDecoder()

    def next_character(self) -> str:
        """The character after white space, which becomes the position; empty at the end."""
        while True:
            match = SPACE.match(self.text, self.at)
            self.at = match.end() if match else self.at
            if self.at < len(self.text):
                return self.text[self.at]
            if not self._more():
                return ""

    def value(self, name: str) -> Any:
        """The value at the position, which moves to its end."""
        while True:
            try:
                value, end = self.decoder.raw_decode(self.text, self.at)
            except (ValueError, RecursionError) as error:
                if len(self.text) - self.at > LONGEST_LINE:
                    raise InvalidText(f"{name} is longer than {LONGEST_LINE:,} characters") from None
                if not self._more():
                    raise InvalidText(f"{name} is not JSON: {error}") from None
            else:
                self.at = end
                return value

    def _more(self) -> bool:
        """Read on; whether there was more."""
        held = self.text[self.at :]
        read = self.stream.read(max(CHUNK, len(held)))
        self.text, self.at = held + read, 0
        return bool(read)
