"""Texts of PDF files that are opened in the page. Text files are read by the page itself."""

import threading
from dataclasses import dataclass

from unmask.errors import MissingExtra
from unmask.http.errors import Refused
from unmask.search.documents.pdf import pdf_documents
from unmask.search.documents.values import Document, Skipped

MAX_PDF_BYTES = 32 << 20
"""Maximum size of a PDF file: 32 MiB. Its text is subject to the limits of every text."""
PDF = "application/pdf"

_one_at_a_time = threading.Lock()
"""PDFium does not support several threads."""


@dataclass(frozen=True)
class PdfText:
    """The text of a PDF file, page after page. ``without_text``: pages that hold a picture and no text."""

    text: str
    pages: int
    without_text: int


def pdf_text(raw: bytes, name: str) -> PdfText:
    """The text of a PDF file.

    Args:
        raw: the bytes of the file.
        name: what the file is called in messages.

    Raises:
        Refused: the file is too large, damaged or encrypted, it has no text, or the packages that read PDF
            files are not installed.
    """
    if len(raw) > MAX_PDF_BYTES:
        raise Refused(
            413, "BodyTooLarge", f"{name} has {len(raw):,} bytes; a PDF may have {MAX_PDF_BYTES:,}, not more"
        )
    try:
        with _one_at_a_time:
            parts = list(pdf_documents(raw, name))
    except MissingExtra as error:
        raise Refused(409, "MissingExtra", f"{name} was not read: {error}") from error
    documents = [part for part in parts if isinstance(part, Document)]
    skipped = [part for part in parts if isinstance(part, Skipped)]
    if not documents:
        raise Refused(422, "NoText", f"{name} was not read: {skipped[0].reason}")
    return PdfText(documents[0].text, len(documents[0].pages), len(skipped))
