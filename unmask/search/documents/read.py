"""Read documents from files and folders: which files, in order, and each by its kind."""

import os
import stat
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from unmask.base.arguments import listed, whole_number
from unmask.base.files import KINDS
from unmask.errors import InvalidRequest, InvalidText
from unmask.search.documents.markup import decode_html, markdown_title
from unmask.search.documents.pages import PageParser
from unmask.search.documents.pdf import pdf_documents
from unmask.search.documents.rows import NoTextColumn, row_documents
from unmask.search.documents.values import MAX_DOCUMENT_BYTES, Document, Skipped
from unmask.text.lines import COMPRESSED, DAMAGED, FileTooLong, content, decode, format_ending, opened
from unmask.text.rows import is_object_list

BEIR_CORPUS, BEIR_QUERIES, BEIR_JUDGMENTS = "corpus.jsonl", "queries.jsonl", "qrels"
"""Names in a test collection in BEIR's layout, of which only the corpus holds documents."""

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


@dataclass(frozen=True)
class DocumentFile:
    """A file to read."""

    path: Path
    name: str
    """Its path relative to the folder that was given, with / between parts,
    or the name of a file given itself."""
    alone: bool
    """Whether the file itself was given, not a folder that holds it."""


def find_files(
    paths: Sequence[Path],
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    *,
    follow_links: bool = False,
) -> Iterator[DocumentFile | Skipped]:
    """The files of each path in the order of their names; hidden ones only if they are given themselves.

    A pattern applies to a file whose relative path, or a folder or a name in it, matches. ``include`` limits
    the files to those that match a pattern, and ``exclude`` leaves out those that do. Links that lead out of
    a folder are skipped, unless ``follow_links``.
    """
    for path in paths:
        if path.is_dir():
            inside = None if follow_links else path.resolve()
            for entry in _below(path, "", (_identity(path),), inside):
                chosen = not include or _matches(entry.name, include)
                if chosen and not _matches(entry.name, exclude):
                    yield entry
        else:
            name, reason = printable(path.name), _not_a_file(path)
            yield DocumentFile(path, name, alone=True) if reason is None else Skipped(name, reason)


def check_paths(paths: Sequence[Path]) -> None:
    """Check before any work that all paths exist."""
    if not paths:
        raise InvalidRequest("no file or folder was given; name at least one")
    for path in paths:
        if not path.exists():
            raise InvalidRequest(f"there is no file or folder {path}; check the path")


def printable(name: str) -> str:
    """A file name as Unicode text: bytes that are not UTF-8 are written as ``\\xff``."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _below(
    folder: Path, prefix: str, above: tuple[tuple[int, int], ...], inside: Path | None
) -> Iterator[DocumentFile | Skipped]:
    """The files of one folder; ``above`` identifies it and the folders that hold it.

    Links that lead out of ``inside`` are skipped.
    """
    try:
        entries = sorted(os.listdir(folder))
    except OSError as error:
        yield Skipped(prefix.rstrip("/") or str(folder), f"the folder cannot be read: {error.strerror}")
        return
    collection = _is_collection(entries)
    for entry in entries:
        if entry.startswith("."):
            continue
        path, name = folder / entry, prefix + printable(entry)
        if collection and entry == BEIR_JUDGMENTS:
            yield Skipped(name, f"it holds the judgments of the test collection beside {BEIR_CORPUS}")
        elif collection and _plain(entry) == BEIR_QUERIES:
            yield Skipped(name, f"it holds the queries of the test collection beside {BEIR_CORPUS}")
        elif inside is not None and path.is_symlink() and not path.resolve().is_relative_to(inside):
            yield Skipped(name, "it is a link that leaves the folder; give --follow-links to follow it")
        elif not path.is_dir():
            reason = _not_a_file(path)
            yield DocumentFile(path, name, alone=False) if reason is None else Skipped(name, reason)
        elif (identity := _identity(path)) in above:
            yield Skipped(name, "it is a link to a folder that holds it")
        else:
            yield from _below(path, f"{name}/", (*above, identity), inside)


def _is_collection(entries: Sequence[str]) -> bool:
    plain = {_plain(entry) for entry in entries}
    return BEIR_CORPUS in plain and BEIR_QUERIES in plain


def _plain(name: str) -> str:
    """The name without the ending of a compressed file."""
    return next((name.removesuffix(end) for end in COMPRESSED if name.endswith(end)), name)


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


def _not_a_file(path: Path) -> str | None:
    """Why a path is no file that can be opened; None if it is one."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return "it is a broken link" if path.is_symlink() else f"it cannot be read: {error.strerror}"
    if stat.S_ISREG(mode):
        return None
    return f"it is {next(kind for holds, kind in KINDS if holds(mode))}, not a file"


def _matches(name: str, patterns: Sequence[str]) -> bool:
    # A disk may hold é as one character or as two.
    parts = unicodedata.normalize("NFC", name).split("/")
    paths = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
    normalized = [unicodedata.normalize("NFC", pattern).rstrip("/") for pattern in patterns]
    return any(fnmatchcase(candidate, pattern) for pattern in normalized for candidate in (*paths, *parts))


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
