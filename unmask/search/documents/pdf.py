"""Text of PDF files, page by page."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from unmask.base.optional import require
from unmask.search.documents.values import Document, Skipped

NO_TEXT = "it has no text; run OCR first"
PASSWORD_ERROR = 4
"""PDFium's FPDF_ERR_PASSWORD."""


def pdf_documents(raw: bytes, name: str) -> Iterator[Document | Skipped]:
    """The document of a PDF file, after what was skipped of it: pages that hold a picture and no text."""
    require("search")
    pdfium = import_module("pypdfium2")
    try:
        pdf = pdfium.PdfDocument(raw)
    except pdfium.PdfiumError as error:
        locked = getattr(error, "err_code", None) == PASSWORD_ERROR
        yield Skipped(name, "it is encrypted; remove its password first" if locked else _damaged(error))
        return
    try:
        texts = [_page_text(page) for page in pdf]
        pictures = [not text and _has_picture(page) for text, page in zip(texts, pdf, strict=True)]
        title = pdf.get_metadata_value("Title")
    except pdfium.PdfiumError as error:
        yield Skipped(name, _damaged(error))
        return
    finally:
        pdf.close()
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


def _page_text(page: Any) -> str:
    """The text of a page; words that a hyphen divides at the end of a line are joined."""
    words: Any = page.get_textpage()
    text: str = words.get_text_bounded()
    words.close()
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    for mark in ("\ufffe", "\x02"):  # what PDFium writes for such a hyphen
        text = text.replace(f"{mark}\n", "").replace(mark, "")
    return text.replace("\0", "").strip()


def _has_picture(page: Any) -> bool:
    return any(True for _ in page.get_objects(filter=[import_module("pypdfium2.raw").FPDF_PAGEOBJ_IMAGE]))


def _damaged(error: Exception) -> str:
    return f"it is not a PDF file that can be read: {error}"
