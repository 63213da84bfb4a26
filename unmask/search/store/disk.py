"""Every operation with which a writer changes the disk, so that one place decides how each of them fails."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from io import FileIO
from pathlib import Path
from typing import TypeVar

from unmask.base.files import unwritable
from unmask.base.system import forget_pages, locked, rename, sync

Result = TypeVar("Result")


def perform(operation: str, path: Path, act: Callable[[], Result]) -> Result:
    """Do one operation on ``path``. Tests replace this function to make the disk fail at any of them.

    Raises:
        OutputError: the disk is full, read-only or failing.
    """
    try:
        return act()
    except OSError as error:
        raise unwritable(path, error) from None


def make_folder(path: Path) -> None:
    """Make a folder that does not exist yet."""
    perform("make_folder", path, path.mkdir)


def create_file(path: Path) -> FileIO:
    """A new file to write to, without a buffer."""
    return perform("create", path, lambda: FileIO(path, "xb"))


def write_content(path: Path, file: FileIO, content: bytes | bytearray | memoryview) -> None:
    """Append all of ``content``."""

    def act() -> None:
        left = memoryview(content)
        while left:
            left = left[file.write(left) or 0 :]

    perform("write", path, act)


def sync_file(path: Path, file: FileIO) -> None:
    """Flush a file to the disk."""

    def act() -> None:
        os.fsync(file.fileno())
        forget_pages(file)

    perform("sync", path, act)


def sync_folder(path: Path) -> None:
    """Flush the names in a folder to the disk."""
    perform("sync", path, lambda: sync(path))


def write_file(path: Path, content: bytes) -> None:
    """Write a new file and flush it to the disk."""
    with create_file(path) as file:
        write_content(path, file, content)
        sync_file(path, file)


def rename_file(source: Path, target: Path) -> None:
    """Give a file another name, at once and in place of any that has it."""
    perform("rename", target, lambda: rename(source, target))


def remove_file(path: Path) -> None:
    """Remove a file, if it exists."""
    perform("remove", path, lambda: path.unlink(missing_ok=True))


@contextmanager
def lock_file(path: Path, refusal: str, *, temporary: bool = False) -> Iterator[None]:
    """Hold a lock, see `locked`.

    Raises:
        OutputError: another process holds it, which ``refusal`` says; or there is no such folder.
    """
    with ExitStack() as held:
        perform("lock", path, lambda: held.enter_context(locked(path, refusal, temporary=temporary)))
        yield
