"""Read documents from files and folders."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from unmask.base.arguments import listed, whole_number
from unmask.errors import InvalidRequest, InvalidText
from unmask.search.documents.files import DocumentFile, check_paths, find_files
from unmask.search.documents.markup import decode_html, markdown_title
from unmask.search.documents.pages import PageParser
from unmask.search.documents.pdf import pdf_documents
from unmask.search.documents.rows import NoTextColumn, row_documents
from unmask.search.documents.values import MAX_DOCUMENT_BYTES, Document, Skipped
from unmask.text.lines import DAMAGED, FileTooLong, content, decode, format_ending, opened
from unmask.text.rows import is_object_list

TEXT = frozenset((".txt", ".text", ".rst", ".log", ".tex", ".org", ".adoc", ""))
MARKDOWN = frozenset((".md", ".markdown"))
HTML = frozenset((".html", ".htm", ".xhtml"))
PDF = ".pdf"
ROWS = frozenset((".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet"))
_CODE = (
    ".bash .bat .c .cc .cfg .cjs .clj .cmake .cpp .cs .css .cu .cxx .dart .el .erl .ex .exs .f90 .go .gradle "
    ".graphql .groovy .h .hh .hpp .hs .ini .java .jl .js .jsx .kt .kts .less .lisp .lua .m .mjs .ml .mm .nim "
    ".pas .php .pl .pm .proto .ps1 .py .pyi .pyx .r .rb .rs .sass .scala .scm .scss .sh .sql .svelte .swift "
    ".tf .toml .ts .tsx .v .vb .vue .xml .yaml .yml .zig .zsh"
)
CODE = frozenset(_CODE.split())
"""Source code and settings, which are indexed as they are."""

PDF_BYTES = 16
"""How many times as many bytes a PDF file may have, which holds pictures and fonts too."""
LONGEST_CHARACTER = 4
"""Bytes of a character in UTF-8."""
BEGINNING = 4096
"""Bytes of a .json file that decide whether it is a list of rows."""


def read_documents(
    paths: str | Path | Sequence[str | Path],
    *,
    field: str | None = None,
    id_field: str | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    max_document_bytes: int = MAX_DOCUMENT_BYTES,
    follow_links: bool = False,
) -> Iterator[Document | Skipped]:
    """The documents of files and folders, one at a time, and every file or row of which none was made.

    Args:
        paths: files, and folders whose files are read in the order of their names. Files and folders inside
            whose names begin with a point are hidden, and left out.
        field: the column of the text, in files whose rows are documents (JSON lines and lists, CSV, TSV,
            Parquet); None: ``text``, or else ``body``, ``content`` or ``abstract``. A ``title`` stands before
            the text. All other columns become metadata.
        id_field: the column of ids; None: ``_id`` or ``id`` if there is one; ``""`` numbers the rows instead.
        include: read only files of a folder whose path or a part of it matches a pattern such as ``*.md``.
        exclude: leave out those that match.
        max_document_bytes: skip a document whose text has more bytes, and a PDF file of more than
            `PDF_BYTES` times as many.
        follow_links: follow symbolic links that lead out of a folder; otherwise they are skipped.

    Raises:
        InvalidRequest: a path does not exist, two documents have the same id, or it is not clear which column
            of a file given itself holds the text.
        MissingExtra: a PDF, HTML or Parquet file was found, and the packages that read it are not installed.
    """
    sources = [paths] if isinstance(paths, str | Path) else listed("paths", paths)
    places = [Path(path) for path in sources]
    check_paths(places)
    whole_number("max_document_bytes", max_document_bytes, 1)
    files = find_files(places, include, exclude, follow_links=follow_links)
    return _read(files, field, id_field, max_document_bytes)


def _read(
    files: Iterator[DocumentFile | Skipped], field: str | None, id_field: str | None, most: int
) -> Iterator[Document | Skipped]:
    with PageParser() as pages:
        yield from _documents(files, pages, field, id_field, most)


def _documents(
    files: Iterator[DocumentFile | Skipped],
    pages: PageParser,
    field: str | None,
    id_field: str | None,
    most: int,
) -> Iterator[Document | Skipped]:
    read: list[Path] = []
    places: dict[str, tuple[int, int]] = {}
    """Of each id the file, by its number, and the row."""
    for entry in files:
        if isinstance(entry, Skipped):
            yield entry
            continue
        read.append(entry.path)
        for row, document in _of_file(entry, pages, field, id_field, most):
            bounded = _bounded(document, most)
            if isinstance(bounded, Document):
                if bounded.id in places:
                    file, earlier = places[bounded.id]
                    raise _same_id(bounded.id, _place(read[file], earlier), _place(entry.path, row))
                places[bounded.id] = (len(read) - 1, row)
            yield bounded


def _of_file(
    file: DocumentFile, pages: PageParser, field: str | None, id_field: str | None, most: int
) -> Iterator[tuple[int, Document | Skipped]]:
    """The documents of one file, each with its row; 0 for a document that is the whole file."""
    ending = format_ending(file.path.name)
    try:
        if ending in ROWS and (ending != ".json" or _holds_rows(file.path)):
            yield from row_documents(file.path, file.name, ending, field, id_field)
        elif ending == PDF:
            yield from (
                (0, document) for document in pdf_documents(content(file.path, most * PDF_BYTES), file.name)
            )
        elif ending in TEXT | MARKDOWN | HTML | CODE | ROWS:
            raw = content(file.path, most)
            text = decode_html(raw) if ending in HTML else decode(raw)
            yield 0, _document(text, file.name, ending, pages)
        else:
            yield 0, Skipped(file.name, f"its ending {ending} is not one of those that are read")
    except FileTooLong as error:
        yield 0, Skipped(file.name, f"{error}; raise --max-document-bytes to read it")
    except InvalidText as error:
        yield 0, Skipped(file.name, str(error))
    except NoTextColumn as error:
        if file.alone:
            raise
        yield 0, Skipped(file.name, str(error))


def _bounded(document: Document | Skipped, most: int) -> Document | Skipped:
    """The document, or that it was skipped for its length."""
    if isinstance(document, Skipped) or len(document.text) * LONGEST_CHARACTER <= most:
        return document
    size = len(document.text.encode())
    if size <= most:
        return document
    return Skipped(
        document.id,
        f"its text has {size:,} bytes and the limit is {most:,}; raise --max-document-bytes to read it",
    )


def _document(text: str, name: str, ending: str, pages: PageParser) -> Document | Skipped:
    kind, title = "code" if ending in CODE | ROWS else "text", ""
    if ending in MARKDOWN:
        kind, title = "markdown", markdown_title(text)
    elif ending in HTML:
        kind, (text, title) = "html", pages.text(text)
    return Document(name, text, title, kind=kind) if text.strip() else Skipped(name, "it has no text")


def _holds_rows(path: Path) -> bool:
    try:
        with opened(path) as stream:
            return is_object_list(stream.read(BEGINNING).decode("utf-8-sig", "replace"))
    except DAMAGED:
        return False


def _place(path: Path, row: int) -> str:
    return f"row {row} of {path}" if row else str(path)


def _same_id(id_: str, first: str, second: str) -> InvalidRequest:
    return InvalidRequest(
        f"{first} and {second} both have the id {id_!r}; give the folder that holds both, or name another "
        'column for ids (id_field, or "" to number the rows)'
    )
