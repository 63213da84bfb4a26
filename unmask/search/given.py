"""What a caller adds to an index, as documents that can be stored."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from unmask.errors import InvalidRequest, quoted
from unmask.search.documents.storable import require_json, require_unicode
from unmask.search.documents.values import Document, Skipped

Given = Document | Skipped | Mapping[str, Any] | str
"""What can be added to an index."""


def each(documents: Given | Iterable[Given]) -> Iterable[Given]:
    """The documents; a single one is a list of one.

    Raises:
        InvalidRequest: it is neither.
    """
    if isinstance(documents, Document | Skipped | Mapping | str):
        return [documents]
    if hasattr(documents, "iterrows"):  # its items are the names of its columns
        raise InvalidRequest(
            "documents is a data frame; give its rows, with id and text: frame.to_dict('records')"
        )
    if not isinstance(documents, Iterable):
        raise InvalidRequest(f"documents is {quoted(documents)}; give documents, dictionaries or texts")
    return documents


def as_document(value: object, number: int) -> Document:
    """A document from what the caller gave; ``number`` is its place, from 1.

    Raises:
        InvalidRequest: it is no document, or one that cannot be stored.
    """
    match value:
        case Document():
            document = value
        case str():
            document = Document(text_id(value), value)
        case Mapping():
            id, text, title = value.get("id", value.get("_id")), value.get("text"), value.get("title", "")
            if not isinstance(id, str) or not isinstance(text, str) or not isinstance(title, str):
                raise InvalidRequest(
                    f"document {number} is {quoted(dict(value))}; give strings under id and text (and title)"
                )
            document = Document(id, text, title, metadata=value.get("metadata", {}))
        case _:
            raise InvalidRequest(
                f"document {number} is {quoted(value)}; give a Document, a dictionary with id and text, or a "
                "string"
            )
    _check(document, number)
    return document


def text_id(text: str) -> str:
    """The id of a document that is a text alone: 16 hexadecimal digits of its SHA-256."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _check(document: Document, number: int) -> None:
    """Refuse what cannot be stored as it is. A text that is not Unicode is skipped later, by name."""
    for name in ("id", "text", "title"):
        value = getattr(document, name)
        if not isinstance(value, str):
            raise InvalidRequest(f"the {name} of document {number} is {quoted(value)}; give a string")
    if not isinstance(document.metadata, Mapping):
        raise InvalidRequest(f"the metadata of the document {document.id!r} are no dictionary; give one")
    what = f"the id or title of document {number}"
    try:
        require_unicode(document.id)
        require_unicode(document.title)
        what = f"the metadata of the document {quoted(document.id)}"
        require_json(dict(document.metadata))
    except ValueError as error:
        raise InvalidRequest(f"{what} cannot be stored as JSON: {error}") from None
