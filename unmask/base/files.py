"""Write files and folders atomically: they appear complete or not at all."""

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PureWindowsPath
from typing import TypeVar

from unmask.base.system import rename, sync
from unmask.errors import OutputError

Result = TypeVar("Result")

KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (lambda mode: True, "a device"),
)
"""Kinds of paths that are not regular files."""


def user_cache(name: str) -> Path:
    """The folder of a cache that can be removed at any time: below ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (folder if folder.is_absolute() else Path.home() / ".cache") / "unmask" / name


def unwritable(path: Path, error: OSError) -> OutputError:
    """The error for a file system that refused to write ``path``."""
    return OutputError(f"cannot write {path}: {error.strerror or error}")


def check_can_write(path: Path) -> None:
    """Check before the work that its result can be written.

    Raises:
        OutputError: the path is a folder, or its folder is missing or not writable.
    """
    if path.is_dir():
        raise OutputError(f"cannot write {path}: it is a folder; name a file")
    if not path.parent.is_dir():
        raise OutputError(f"cannot write {path}: {path.parent} is not a folder")
    if not os.access(path.parent, os.W_OK):
        raise OutputError(f"cannot write {path}: {path.parent} may not be written to")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path to write to, renamed to ``path`` if the block succeeds and removed otherwise.

    Raises:
        OutputError: the disk is full or read-only, or the folder does not exist.
    """
    # A fixed temporary name, so that the next process overwrites what a killed one left.
    partial = path.with_name(f".{path.name}.partial")
    try:
        yield partial
        sync(partial)
        rename(partial, path)
    except OSError as error:
        raise unwritable(path, error) from None
    finally:
        if partial.exists():
            partial.unlink()


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A new folder to fill, renamed to ``path`` if the block succeeds and removed otherwise.

    Raises:
        OutputError: ``path`` exists and is not an empty folder, or it cannot be written.
    """
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise OutputError(f"{path} exists already; name a folder that does not, or an empty one")
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True)
        yield partial
        settle(partial)
        rename(partial, path)
        sync(path.parent)
    except OSError as error:
        raise unwritable(path, error) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def replaced_folder(path: Path) -> Iterator[Path]:
    """A new folder to fill, which replaces ``path`` if the block succeeds; otherwise ``path`` stays as it is.

    Only one process at a time may replace a folder.

    Raises:
        OutputError: it cannot be written.
    """
    work = _work_of(path)
    new, old = work / path.name, work / "old"
    try:
        shutil.rmtree(work, ignore_errors=True)
        new.mkdir(parents=True)
        yield new
        settle(new)
        if path.exists():
            rename(path, old)
        try:
            rename(new, path)
        except OSError:
            if old.exists():
                rename(old, path)
            raise
        sync(path.parent)
    except OSError as error:
        raise unwritable(path, error) from None
    finally:
        shutil.rmtree(work, ignore_errors=True)


def remove_leftover(path: Path) -> None:
    """Remove what a process killed in `replaced_folder` left, where the folder needs no replacement."""
    shutil.rmtree(_work_of(path), ignore_errors=True)


def _work_of(path: Path) -> Path:
    # A fixed name, so that the next process removes what a killed one left.
    return path.with_name(f".{path.name}.new")


def settle(folder: Path) -> None:
    """Flush everything in a folder to disk."""
    for path in [folder, *folder.rglob("*")]:
        sync(path)


def leaves_folder(name: str) -> bool:
    """Whether a name that a file of a folder gives leads out of the folder, read as on any system."""
    path = PureWindowsPath(name)  # which knows both separators
    return bool(path.anchor) or ".." in path.parts


def check_regular(path: Path, error: Callable[[str], Exception]) -> None:
    """Refuse anything but a regular file before opening it: opening a pipe blocks until there is a writer.

    ``error`` makes the exception from a message.
    """
    try:
        mode = path.stat().st_mode
    except OSError as fault:
        raise error(f"cannot read {path}: {fault.strerror or fault}") from None
    if not stat.S_ISREG(mode):
        kind = next(name for is_kind, name in KINDS if is_kind(mode))
        raise error(f"cannot read {path}: it is {kind}, not a file")


def read_regular(path: Path, error: Callable[[str], Exception]) -> bytes:
    """The contents of a regular file; anything else is refused, see `check_regular`."""
    check_regular(path, error)
    return read_bytes(path, error)


def read_bytes(path: Path, error: Callable[[str], Exception]) -> bytes:
    """The contents of a file; if it cannot be read, ``error`` makes the exception from a message."""
    try:
        return path.read_bytes()
    except OSError as fault:
        raise error(f"cannot read {path}: {fault.strerror or fault}") from None
