"""The files of folders, in order, and what is skipped among them."""

import os
import stat
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from unmask.base.files import KINDS
from unmask.errors import InvalidRequest
from unmask.search.documents.values import Skipped
from unmask.text.lines import COMPRESSED

BEIR_CORPUS, BEIR_QUERIES, BEIR_JUDGMENTS = "corpus.jsonl", "queries.jsonl", "qrels"
"""Names in a test collection in BEIR's layout, of which only the corpus holds documents."""


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
    wanted = [unicodedata.normalize("NFC", pattern).rstrip("/") for pattern in patterns]
    return any(fnmatchcase(candidate, pattern) for pattern in wanted for candidate in (*paths, *parts))
