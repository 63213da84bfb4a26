"""Object stores and other file systems that fsspec opens, by URL; requests that fail are repeated."""

import errno
import glob
from collections.abc import Callable
from importlib import import_module
from time import sleep
from typing import Any, TypeVar

from unmask.errors import InvalidRequest

ATTEMPTS = 4
"""Requests in all before an error is reported."""
FIRST_WAIT = 1.0
"""Seconds before the second request; each further wait is twice as long."""

FINAL = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError, NotImplementedError)
"""Errors that another request would not change."""
OF_THE_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}
"""Numbers of errors of this machine's disk, to which a file is downloaded."""

Result = TypeVar("Result")


def is_url(place: str) -> bool:
    """Whether a place is a URL such as ``s3://bucket/folder`` and not a path."""
    return "://" in place


def open_store(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it.

    Raises:
        InvalidRequest: the protocol is unknown, or its package is not installed.
    """
    try:
        files, path = import_module("fsspec.core").url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise InvalidRequest(f"{url} cannot be opened: {error}") from None
    return files, path


def matching(url: str) -> list[str]:
    """The URLs of the files that a URL names, which may hold ``*``, ``?`` and ``[...]``; sorted.

    Raises:
        InvalidRequest: the store cannot be read, or a file that is named without these is not there.
    """
    files, path = open_store(url)
    if glob.has_magic(path):
        matches = reading(url, lambda: sorted(files.glob(path)))
        return [str(files.unstrip_protocol(match)) for match in matches]
    reading(url, lambda: files.info(path))  # `exists` takes every error for an answer
    return [url]


def reading(url: str, work: Callable[[], Result]) -> Result:
    """The result of ``work``, which reads ``url`` and is called up to `ATTEMPTS` times.

    Raises:
        InvalidRequest: it failed every time, or in a way that does not pass.
        OSError: the disk of this machine is full or read-only.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return work()
        except Exception as error:  # each store has error classes of its own, many of them not OSError
            if isinstance(error, OSError) and error.errno in OF_THE_DISK:
                raise
            if isinstance(error, FileNotFoundError):
                raise InvalidRequest(f"cannot read {url}: there is no such file") from None
            if attempt == ATTEMPTS or isinstance(error, FINAL):
                times = "" if attempt == 1 else f" in {attempt} attempts"
                raise InvalidRequest(f"cannot read {url}{times}: {_sentence(error)}") from None
            sleep(FIRST_WAIT * 2 ** (attempt - 1))
    raise AssertionError  # the last attempt returns or raises


def _sentence(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0] or type(error).__name__
