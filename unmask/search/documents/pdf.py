"""The text of PDF files, page by page, with the rows of ruled tables under their headings."""

import io
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from unmask.base.optional import installed, require
from unmask.search.documents.markup import Cell, Row, row_lines
from unmask.search.documents.values import Document, Skipped

NO_TEXT = "it has no text; run OCR first"
PASSWORD_ERROR = 4
"""PDFium's FPDF_ERR_PASSWORD."""

NUMBER = re.compile(r"[-+−(]*[^\w\s]?\s?\d[\d.,'’\s]*[^\w\s]?\)?\Z")
YEAR = re.compile(r"(?:1[6-9]|20|21)\d\d\Z")
"""Headings can be years, and no other numbers."""

MANY_BREAKS = re.compile(r"\n{3,}")

NEAR = 1.0
"""Points within which edges of cells are the same."""

Box = tuple[float, float, float, float]
"""Left, top, right and bottom edges, in points from the left and the top of a page."""


def pdf_documents(raw: bytes, name: str) -> Iterator[Document | Skipped]:
    """The document of a PDF file, after what was skipped of it: pages that hold a picture and no text.

    With the extra ``pdf-tables``, each row of a table that has lines around its cells is a paragraph, in
    which a cell stands after the heading of its column, as in tables of HTML. The first row is headings if
    its cells are different words or years; its first cell can be empty. Tables of turned pages, and those
    that white space alone makes, are read as the other text.
    """
    require("search")
    pdfium = import_module("pypdfium2")
    try:
        pdf = pdfium.PdfDocument(raw)
    except pdfium.PdfiumError as error:
        locked = getattr(error, "err_code", None) == PASSWORD_ERROR
        yield Skipped(name, "it is encrypted; remove its password first" if locked else _damaged(error))
        return
    tables = _Tables(raw) if installed("pdf-tables") else None
    try:
        texts = [_page_text(page, number, tables) for number, page in enumerate(pdf)]
        pictures = [not text and _has(page, "IMAGE") for text, page in zip(texts, pdf, strict=True)]
        title = pdf.get_metadata_value("Title")
    except pdfium.PdfiumError as error:
        yield Skipped(name, _damaged(error))
        return
    finally:
        pdf.close()
        if tables is not None:
            tables.close()
    if not any(texts):
        yield Skipped(name, NO_TEXT)
        return
    for number, picture in enumerate(pictures, start=1):
        if picture:
            yield Skipped(f"{name}, page {number}", NO_TEXT)
    starts = [0]
    for text in texts[:-1]:
        starts.append(starts[-1] + len(text) + 1)
    yield Document(name, "\n".join(texts), title.strip(), tuple(starts), "pdf")


def _page_text(page: Any, number: int, tables: "_Tables | None") -> str:
    """The text of a page; words that a hyphen divides at the end of a line are joined."""
    words: Any = page.get_textpage()
    ruled = tables is not None and not page.get_rotation() and _has(page, "PATH")
    cells = tables.of(number, *page.get_size()) if tables is not None and ruled else []
    text: str = _with_rows(words, page.get_height(), cells) if cells else words.get_text_bounded()
    words.close()
    return _joined(text).strip()


def _joined(text: str) -> str:
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    for mark in ("\ufffe", "\x02"):  # what PDFium writes for a hyphen at the end of a line
        text = text.replace(f"{mark}\n", "").replace(mark, "")
    return text.replace("\0", "")


class _Tables:
    """The cells of ruled tables, as `pdfplumber` finds them; the file is opened when first needed."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._pdf: Any = None

    def of(self, number: int, width: float, height: float) -> list[list[Box]]:
        """The cells of each table of a page of that size.

        A page that `pdfplumber` cannot read, or of which only a part is shown, has none.
        """
        try:
            if self._pdf is None:
                self._pdf = import_module("pdfplumber").open(io.BytesIO(self._raw))
            page = self._pdf.pages[number]
            shown = zip(page.bbox, (0, 0, width, height), strict=True)
            tables = [] if any(abs(a - b) > NEAR for a, b in shown) else page.find_tables()
            cells_of_each = [table.cells for table in tables]
            page.close()
        except Exception:  # damaged files raise errors of every kind
            return []
        return [cells for cells in cells_of_each if min(len(_edges(cells, axis)) for axis in (0, 1)) > 1]

    def close(self) -> None:
        """Close the file."""
        if self._pdf is not None:
            self._pdf.close()


def _edges(cells: Sequence[Box], axis: int) -> list[float]:
    """Where columns (axis 0) or rows (axis 1) begin, without those that nearly coincide."""
    edges: list[float] = []
    for edge in sorted(cell[axis] for cell in cells):
        if not edges or edge > edges[-1] + NEAR:
            edges.append(edge)
    return edges


def _with_rows(words: Any, height: float, tables: Sequence[Sequence[Box]]) -> str:
    """The text of a page, with the lines of each table where its first character is.

    A character belongs to the cell that holds its center, and white space goes with the character before it.
    """
    places = [(table, box) for table, cells in enumerate(tables) for box in cells]
    parts: list[str] = []
    begins: dict[int, int] = {}
    texts: dict[tuple[int, Box], str] = {}
    place: tuple[int, Box] | None = None
    for index in range(words.count_chars()):
        character: str = words.get_text_range(index, 1)
        if character.strip():
            left, bottom, right, top = words.get_charbox(index)
            x, y = (left + right) / 2, height - (bottom + top) / 2
            if place is None or not _holds(place[1], x, y):
                place = next((candidate for candidate in places if _holds(candidate[1], x, y)), None)
        if place is None:
            parts.append(character)
            continue
        if place[0] not in begins:
            begins[place[0]] = len(parts)
            parts.append("")
        texts[place] = texts.get(place, "") + character
    for table, begin in begins.items():
        named = {box: " ".join(_joined(texts.get((table, box), "")).split()) for box in tables[table]}
        parts[begin] = "\n\n".join(["", *_lines(named), ""])
    return MANY_BREAKS.sub("\n\n", "".join(parts).replace("\r\n", "\n"))


def _holds(box: Box, x: float, y: float) -> bool:
    return box[0] <= x <= box[2] and box[1] <= y <= box[3]


def _lines(named: Mapping[Box, str]) -> list[str]:
    """The lines of a table, from the text of each of its cells."""
    columns, lines = _edges([*named], 0), _edges([*named], 1)
    rows: list[Row] = [[] for _ in lines]
    for box, text in sorted(named.items(), key=lambda item: item[0][0]):
        start, stop = bisect_right(columns, box[0] + NEAR) - 1, bisect_right(columns, box[2] - NEAR)
        first, until = bisect_right(lines, box[1] + NEAR) - 1, bisect_right(lines, box[3] - NEAR)
        cell = Cell(text, False, start, stop, until)
        for row in range(first, until):
            rows[row].append((cell, row == first))
    heads = int(_are_headings([cell.text for cell, _ in rows[0]]))
    return [line for line, _ in row_lines(rows, heads) if line]


def _are_headings(texts: Sequence[str]) -> bool:
    named = texts[not texts[0] :]
    return (
        len(named) > 0
        and all(named)
        and len(set(named)) == len(named)
        and not any(NUMBER.match(text) and not YEAR.match(text) for text in named)
    )


def _has(page: Any, kind: str) -> bool:
    """Whether a page has an object of a kind, such as a picture or a line."""
    raw = import_module("pypdfium2.raw")
    return any(True for _ in page.get_objects(filter=[getattr(raw, f"FPDF_PAGEOBJ_{kind}")]))


def _damaged(error: Exception) -> str:
    return f"it is not a PDF file that can be read: {error}"
