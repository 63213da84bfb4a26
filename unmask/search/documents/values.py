"""What reading files gives: documents, what was skipped, and what can be stored beside a text."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from unmask.errors import quoted

MAX_DOCUMENT_BYTES = 32 << 20
"""Bytes of the text of a document, unpacked; indexing takes up to 60 times as much memory."""


@dataclass(frozen=True)
class Document:
    """The text of one document, as it is stored and as every offset counts it."""

    id: str
    """The name that results give. Of a file its path relative to the folder, with / between parts; of a row
    of JSONL or CSV its own id, or the file's path and the row's number (``notes.jsonl#12``): the line in JSON
    lines, and elsewhere the row, counted from 1 without the row of names."""
    text: str
    """Everything that is indexed. A title of a row stands first, separated by a space, and white space around
    both is removed, as BEIR and sentence-transformers do."""
    title: str = ""
    """The title, if there is one; for display."""
    pages: tuple[int, ...] = ()
    """The character at which each page of a PDF begins; empty for documents without pages."""
    kind: str = "text"
    """``text``, ``markdown``, ``html``, ``pdf``, ``row`` or ``code``."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Values to filter by, in JSON's types: the other columns of a row, or nothing."""


@dataclass(frozen=True)
class Skipped:
    """A file, or a row of one, of which no document was made."""

    name: str
    reason: str
    """A clause that completes "NAME was skipped: ..."."""


MOST_LEVELS = 100
"""How deep metadata may be nested."""

MOST_BITS = 14_000
"""The bits of a number in metadata; JSON is written and read with up to 4,300 digits."""


def require_json(value: Any, level: int = 1) -> None:
    """Raise ValueError if a value would be another after it was written as JSON and read again."""
    match value:
        case None | bool():
            pass
        case str():
            require_unicode(value)
        case int():
            if value.bit_length() > MOST_BITS:
                raise ValueError("a number has more than 4,200 digits; give it as text")
        case float():
            if not math.isfinite(value):
                raise ValueError(f"{value} is no number of JSON; give None")
        case dict() | list() | tuple():
            if level > MOST_LEVELS:
                raise ValueError(f"they are nested more than {MOST_LEVELS} levels deep; give them flatter")
            if isinstance(value, dict):
                _require_keys(value)
                value = value.values()
            for each_value in value:
                require_json(each_value, level + 1)
        case _:
            raise ValueError(f"{quoted(value)} is no string, number, list or dictionary; give one of them")


def _require_keys(keys: Iterable[object]) -> None:
    for key in keys:
        if not isinstance(key, str):
            raise ValueError(f"the key {quoted(key)} is no string; give strings as keys")
        require_unicode(key)


def require_unicode(text: str) -> None:
    """Raise ValueError if a text holds half a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{quoted(text)} has a lone surrogate at character {error.start:,}; give text that UTF-8 can hold"
        ) from None
