"""What reading files gives: documents, and what was skipped."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
