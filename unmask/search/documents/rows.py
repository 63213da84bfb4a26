"""Documents of the rows of a table: JSON lines and lists, comma- and tab-separated values, Parquet."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.errors import InvalidRequest, InvalidText, quoted
from unmask.search.documents.values import Document, Skipped, require_json
from unmask.text.lines import check_text, lines
from unmask.text.rows import FORMAT_OF, json_row, read_rows

TEXT, OTHER_TEXTS = "text", ("body", "content", "abstract")
"""The column of the text, and those that take its place if it is missing."""
IDS = ("_id", "id")
"""Columns of ids, the first that there is."""
TITLE = "title"

Row = Mapping[str, Any] | InvalidText
"""The values of a row, or why it cannot be read."""


class NoTextColumn(InvalidRequest):
    """It is not clear which column of a table holds the text."""


@dataclass(frozen=True)
class Columns:
    """The columns of a table whose meaning is known."""

    text: str
    id: str | None
    """None: rows are named by their number."""
    title: str | None

    @classmethod
    def of(cls, row: Mapping[str, Any], name: str, field: str | None, id_field: str | None) -> "Columns":
        """The columns of a table with this first row.

        Raises:
            NoTextColumn: there is no such column, or it is not clear which is meant.
        """
        listed = ", ".join(map(str, row))
        if field is not None and field not in row:
            raise NoTextColumn(f"{name} has no column {field!r}; it has: {listed}")
        texts = [TEXT] if TEXT in row else [each for each in OTHER_TEXTS if each in row]
        text = field if field is not None else texts[0] if len(texts) == 1 else None
        if text is None:
            raise NoTextColumn(
                f"it is not clear which column of {name} holds the text; name it (field=, or --field), one "
                f"of: {listed}"
            )
        if id_field and id_field not in row:
            raise NoTextColumn(f"{name} has no column {id_field!r} for ids; it has: {listed}")
        ids = [each for each in IDS if each in row and each != text]
        named = id_field if id_field is not None else ids[0] if ids else ""
        return cls(text, named or None, TITLE if TITLE in row and text != TITLE else None)


def row_documents(
    path: Path, name: str, ending: str, field: str | None, id_field: str | None
) -> Iterator[tuple[int, Document | Skipped]]:
    """The document of each row, with the row's number: the line, or for CSV, Parquet and JSON lists the row.

    A row that cannot be read is skipped; where the format does not allow to continue after it, so is the
    rest of the file. The first row decides which columns hold the text, the title and the id.

    Raises:
        NoTextColumn: it is not clear which column holds the text.
    """
    columns: Columns | None = None
    number = 0
    try:
        for number, row in _rows(path, ending):
            if isinstance(row, InvalidText):
                yield number, Skipped(f"{name}#{number}", str(row))
                continue
            columns = columns or Columns.of(row, str(path), field, id_field)
            yield number, _document(row, columns, f"{name}#{number}")
    except InvalidText as error:
        rest = f" (rows up to number {number:,} were read, and no later ones)" if number else ""
        yield number, Skipped(name, f"{error}{rest}")


def _rows(path: Path, ending: str) -> Iterator[tuple[int, Row]]:
    form = FORMAT_OF[ending]
    if form != "jsonl":
        yield from enumerate((row for _, row in read_rows(path, form)), start=1)
        return
    for number, line in lines(path):
        if line.strip():
            try:
                yield number, json_row(line, f"line {number} of {path}")
            except InvalidText as error:
                yield number, error


def _document(row: Mapping[str, Any], columns: Columns, name: str) -> Document | Skipped:
    text = row.get(columns.text)
    if not isinstance(text, str):
        return Skipped(name, f"it has no text under {columns.text!r}")
    id_ = name if columns.id is None else row.get(columns.id)
    if isinstance(id_, bool) or not isinstance(id_, str | int) or id_ == "":
        return Skipped(name, f"it has no id under {columns.id!r}")
    title = row.get(columns.title) if columns.title is not None else None
    title = title if isinstance(title, str) else ""
    whole = joined(title, text)
    if not whole:
        return Skipped(name, "it has no text")
    used = (columns.text, columns.id, columns.title)
    what = "a column"
    try:
        check_text(f"{id_}{whole}")
        metadata = {str(key): json_type(value) for key, value in row.items() if key not in used}
        for key, value in metadata.items():
            what = f"its column {quoted(key)}"
            require_json({key: value})
    except InvalidText as error:
        return Skipped(name, str(error))
    except (RecursionError, ValueError) as error:
        return Skipped(name, f"{what} cannot be stored as JSON: {error}")
    return Document(str(id_), whole, title.strip(), kind="row", metadata=metadata)


def joined(title: str, text: str) -> str:
    """The text of a document with a title, as BEIR, mteb and sentence-transformers join them."""
    return f"{title} {text}".strip()


def json_type(value: Any) -> Any:
    """The value in JSON's types; a number that JSON cannot write is None, and any other value its string."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): json_type(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_type(item) for item in value]
    return str(value)
