"""Folders and files of this machine and of object stores, under one interface (fsspec)."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from unmask.base.files import whole_file
from unmask.base.stores import open_store
from unmask.base.system import locked
from unmask.errors import InvalidRequest, OutputError, UnmaskError

LOCK = ".lock"
"""Of a folder of this machine while a run writes to it."""


class Folder:
    """A folder of this machine or of an object store. A file appears in it whole.

    Raises:
        InvalidRequest: nothing that is installed opens such a URL.
        OutputError: a store or a disk refuses what is asked of it.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._files, self._path = open_store(url)
        self._local = is_local(self._files)

    def create(self) -> None:
        """Make the folder and those above it, but no bucket, which a typing error should not make."""
        root = self._path.partition("/")[0] or "/"
        with self._allowed():
            if self._local or self._files.exists(root):
                self._files.makedirs(self._path, exist_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other runs out of a folder of this machine, as long as this process lives; it must exist.

        Raises:
            OutputError: another run writes to it.
        """
        if not self._local:
            yield
            return
        refusal = f"another run is writing to {self.url}; wait until it ends, or name another folder"
        with ExitStack() as held:
            with self._allowed():
                held.enter_context(locked(Path(self._path) / LOCK, refusal, temporary=True))
            yield

    def names(self) -> list[str]:
        """The names of what the folder holds, without its lock."""
        with self._allowed():
            self._files.invalidate_cache()  # of what this process listed before others wrote
            try:
                paths = self._files.ls(self._path, False)
            except FileNotFoundError:
                return []
            except NotADirectoryError:
                raise OutputError(f"{self.url} is a file; name a folder") from None
        return sorted({path.rstrip("/").rpartition("/")[2] for path in paths} - {LOCK})

    def read(self, name: str) -> bytes | None:
        """A file's content; None if there is none."""
        with self._allowed():
            try:
                content: bytes = self._files.cat_file(f"{self._path}/{name}")
            except FileNotFoundError:
                return None
        return content

    def write(self, name: str, content: bytes) -> None:
        """Write a file: renamed when it is whole, or stored by an object store when it has all of it."""
        if self._local:
            with whole_file(Path(self._path) / name) as partial:
                partial.write_bytes(content)
            return
        with self._allowed():
            self._files.pipe_file(f"{self._path}/{name}", content)

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""
        with self._allowed(), suppress(FileNotFoundError):
            self._files.rm_file(f"{self._path}/{name}")

    @contextmanager
    def _allowed(self) -> Iterator[None]:
        with _translated(self._files, lambda reason: OutputError(f"cannot write {self.url}: {reason}")):
            yield


@contextmanager
def opened_input(source: str) -> Iterator[BinaryIO]:
    """An input, open for reading bytes.

    Raises:
        InvalidRequest: it cannot be opened or read.
    """
    files, path = open_store(source)
    with _translated(files, lambda reason: unreadable(source, reason)):
        try:
            file = files.open(path, "rb")
        except FileNotFoundError as error:
            # Stores name the path alone if the file is missing, and say so if the bucket is.
            raise unreadable(source, "there is no such file") if str(error) in path else error from None
        with file:
            yield file


def matching(source: str) -> list[str]:
    """The inputs that a source with ``*`` matches, sorted; one without is itself.

    Raises:
        InvalidRequest: there is none.
    """
    if "*" not in source:
        return [source]
    files, pattern = open_store(source)
    with _translated(files, lambda reason: unreadable(source, reason)):
        paths = sorted(files.glob(pattern))
    if not paths:
        raise InvalidRequest(f"{source} matches no file; name files that exist")
    return paths if is_local(files) else [files.unstrip_protocol(path) for path in paths]


def is_local(files: Any) -> bool:
    """Whether it is the file system of this machine."""
    return isinstance(files, import_module("fsspec.implementations.local").LocalFileSystem)


def unreadable(source: str, reason: object) -> InvalidRequest:
    """The error for an input that cannot be read."""
    return InvalidRequest(f"{source} cannot be read: {reason}")


@contextmanager
def _translated(files: Any, error_of: Callable[[str], UnmaskError]) -> Iterator[None]:
    """Failures of a store or a disk as one sentence.

    The libraries of stores have no common class of errors: credentials that are missing, for one, are no
    OSError of botocore.
    """
    try:
        yield
    except UnmaskError:
        raise
    except Exception as error:
        if is_local(files) and not isinstance(error, OSError):
            raise
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise error_of(" ".join(reason.split())) from None
