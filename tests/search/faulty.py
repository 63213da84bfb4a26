"""A disk that fails: operations counted, killed, refused, and writes of which only half arrives."""

import errno
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from unmask.search.store import disk

Around = Callable[[int, str, Path, Callable[[], Any]], Any]
"""What is done in place of an operation: its number, its name, its path, and the operation itself."""


@contextmanager
def disk_with(around: Around) -> Iterator[list[tuple[str, Path]]]:
    """Let ``around`` do the writers' operations; the list of them grows."""
    original, done = disk.perform, []

    def perform(operation, path, act):
        done.append((operation, path))
        number = len(done) - 1
        return original(operation, path, lambda: around(number, operation, path, act))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk, "perform", perform)
        yield done


def half(operation: str, path: Path, act: Callable[[], Any]) -> None:
    """Do half of a write, and nothing of any other operation."""
    if operation == "write":
        before = path.stat().st_size
        act()
        os.truncate(path, (before + path.stat().st_size) // 2)


class Stopped(BaseException):
    """The process is no more, in tests that stand in for its end."""


def kill() -> None:
    """End the process as kill -9 does."""
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    """Stand in for the end of the process."""
    raise Stopped


def interrupted_at(wanted: int, end: Callable[[], None]) -> Around:
    """End in the middle of one operation; where that does not end the process, also at each later one."""

    def around(number, operation, path, act):
        if number == wanted:
            half(operation, path, act)
        if number >= wanted:
            end()
        return act()

    return around


def refused_at(wanted: int, code: int = errno.ENOSPC, *, on: bool = False) -> Around:
    """Refuse one operation; with ``on``, also all later ones but those that make room."""

    def around(number, operation, path, act):
        if number == wanted or (on and number > wanted and operation != "remove"):
            half(operation, path, act)
            raise OSError(code, os.strerror(code))
        return act()

    return around


def forked(act: Callable[[], None]) -> int:
    """Run ``act`` in a process of its own; its number."""
    child = os.fork()
    if child == 0:
        try:
            act()
        finally:
            os._exit(0)
    return child


def ended_by(child: int) -> int:
    """Wait for a process; the signal that ended it, or 0."""
    return os.WTERMSIG(os.waitpid(child, 0)[1])
