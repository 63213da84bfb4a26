"""Documents read from files: their text, their pages and what they are called."""

from unmask.search.documents.read import read_documents
from unmask.search.documents.values import Document, Skipped

__all__ = ["Document", "Skipped", "read_documents"]
