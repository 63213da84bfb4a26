"""Write files and folders atomically: they appear complete or not at all.

The SHA-256 of the files of a checkpoint folder is written when it is saved, and compared when it is read.
"""

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import TypeVar

from unmask.base.json_settings import JsonSettings
from unmask.base.system import rename, sync
from unmask.errors import CorruptCheckpoint, InvalidRequest, OutputError

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


CHECKSUMS = "unmask_checksums.json"
"""The file that contains them, next to config.json. Other libraries ignore it."""

ALWAYS_HASHED_BYTES = 64_000_000
"""Folders of up to this many bytes are hashed at every load; that takes about 0.15 s on one core."""


@dataclass(frozen=True)
class StoredFile:
    """One file as it was saved."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Verified:
    """What was compared with the checksums of a folder."""

    files: int
    """The number of files; their sizes are always compared."""
    hashed: bool
    """Whether their contents were also compared."""


def write_checksums(folder: Path) -> None:
    """Write `CHECKSUMS` for every other file below ``folder``.

    Raises:
        OutputError: the disk is full or read-only.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != CHECKSUMS)
    lines = []
    for path in paths:
        entry = {"bytes": path.stat().st_size, "sha256": _digest(path)}
        lines.append(f"    {json.dumps(path.relative_to(folder).as_posix())}: {json.dumps(entry)}")
    # One line per file, so that an entry can be removed by hand.
    content = '{\n  "files": {\n' + ",\n".join(lines) + "\n  }\n}\n"
    with whole_file(folder / CHECKSUMS) as partial:
        partial.write_text(content, encoding="utf-8", newline="\n")


def check_files(folder: Path, verify: bool | None = None) -> Verified | None:
    """Compare the files of a folder with its checksums; None if it has none, like most folders.

    Args:
        folder: a checkpoint folder.
        verify: whether to compare contents; sizes are compared in any case. None compares contents if
            the folder has at most `ALWAYS_HASHED_BYTES`.

    Raises:
        InvalidRequest: ``verify`` is true and the folder has no checksums.
        CorruptCheckpoint: a file is missing or has changed since it was saved.
    """
    if not (folder / CHECKSUMS).exists():
        if verify:
            raise InvalidRequest(
                f"{folder} holds no {CHECKSUMS} to compare its files with; "
                "unmask convert, Model.save and save_elmo write a copy that does"
            )
        return None
    checksums = _read(folder / CHECKSUMS)
    for name, expected in checksums.items():
        path = folder / name
        if not path.exists():
            raise CorruptCheckpoint(f"{path} is missing, and {CHECKSUMS} lists it; {_way_out(name)}")
        size = path.stat().st_size
        if size != expected.bytes:
            raise CorruptCheckpoint(
                f"{path} has {size:,} bytes and had {expected.bytes:,} when it was saved; {_way_out(name)}"
            )
    hashed = (
        sum(expected.bytes for expected in checksums.values()) <= ALWAYS_HASHED_BYTES
        if verify is None
        else verify
    )
    if hashed:
        for name, expected in checksums.items():
            if _digest(folder / name) != expected.sha256:
                raise CorruptCheckpoint(
                    f"{folder / name} is not the file that was saved: its SHA-256 differs; {_way_out(name)}"
                )
    return Verified(len(checksums), hashed)


def _way_out(name: str) -> str:
    return f"copy it again or, if the change is intended, remove the entry of {name} from {CHECKSUMS}"


def _read(path: Path) -> Mapping[str, StoredFile]:
    settings = JsonSettings.parse(read_regular(path, CorruptCheckpoint), path.name)
    files: dict[str, object] = settings.get("files", {})
    return dict(_entries(files, path))


def _entries(files: Mapping[str, object], path: Path) -> Iterator[tuple[str, StoredFile]]:
    for name, entry in files.items():
        if leaves_folder(name) or not isinstance(entry, dict):
            raise CorruptCheckpoint(f"{path} has no valid entry for {name}; remove that entry or the file")
        values = JsonSettings(f"{path.name}, {name}", entry)
        yield name, StoredFile(values.get("bytes", 0), values.get("sha256", ""))


def _digest(path: Path) -> str:
    check_regular(path, CorruptCheckpoint)
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CorruptCheckpoint(f"cannot read {path}: {error.strerror or error}") from None
