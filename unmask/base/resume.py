"""Long outputs that survive interruption: rows are appended to a partial file with a journal.

``OUT.partial`` holds the rows so far, and ``OUT.partial.json`` records how many of them are complete, with
their SHA-256 and what they were computed from; ``OUT.partial.lock`` keeps other processes out. After a kill
or a power failure the same command resumes from the journal; when all rows are written, the file is renamed
to ``OUT``, or ``OUT`` is made from it. If the disk refuses a row, both are removed.
"""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType

from unmask.base.files import unwritable, whole_file
from unmask.base.system import locked, rename
from unmask.errors import OutputError

Fingerprint = Callable[[int], str]
"""Identifies the first N rows by their inputs and the settings."""


class ResumableFile:
    """A file of ``rows`` rows written in order, as a context manager.

    Args:
        path: the finished file.
        fingerprint: identifies the settings and the inputs of the first N rows; partial rows with another
            fingerprint are not resumed.
        compatible: other accepted fingerprints, of settings that give the same rows.
        rows: the total number of rows.
        header: the file's first bytes.
        finish: writes the finished file (its second argument) from the partial one (its first); None: the
            partial file becomes the finished one.
        overwrite: replace a finished file of that name.
        restart: discard partial rows instead of resuming.

    Raises:
        OutputError: the file exists, partial rows belong to other inputs or were changed, another process is
            writing it, or the disk is full or read-only.
    """

    def __init__(
        self,
        path: Path,
        fingerprint: Fingerprint,
        rows: int,
        *,
        compatible: Sequence[Fingerprint] = (),
        header: bytes = b"",
        finish: Callable[[Path, Path], None] | None = None,
        overwrite: bool = False,
        restart: bool = False,
    ) -> None:
        self.path = path
        self.rows = rows
        self.rows_done = 0
        self._partial = path.with_name(path.name + ".partial")
        self._journal = path.with_name(path.name + ".partial.json")
        self._fingerprint = fingerprint
        self._accepted = (fingerprint, *compatible)
        self._finish = finish
        self._written = hashlib.sha256()
        self._overwrite = overwrite
        if path.is_dir():
            raise OutputError(f"{path} is a folder; name a file")
        self._refuse_finished()
        refusal = f"another process is writing {path}; wait for it, or name another file"
        self._held = ExitStack()
        try:
            self._held.enter_context(
                locked(path.with_name(path.name + ".partial.lock"), refusal, temporary=True)
            )
            self._file = self._partial.open("ab")
        except OSError as error:
            self._held.close()
            raise unwritable(path, error) from None
        try:
            # Another process may have finished since the first check; with the lock held, none can.
            self._refuse_finished()
            if restart:
                self._journal.unlink(missing_ok=True)
            self._continue(header)
        except OutputError:
            self._close(remove=not self._journal.exists())
            raise
        except OSError as error:
            self._close(remove=True)
            raise unwritable(path, error) from None

    def _refuse_finished(self) -> None:
        if self.path.exists() and not self._overwrite:
            raise OutputError(
                f"{self.path} exists already; name another file, or replace it with --overwrite"
            )

    def _continue(self, header: bytes) -> None:
        state = self._read_journal()
        if state is None:
            self._file.truncate(0)
            self._file.write(header)
            self._written.update(header)
            self._file.flush()
        else:
            self.rows_done, size = state
            self._file.truncate(size)

    def _read_journal(self) -> tuple[int, int] | None:
        """The number of complete rows and their bytes; None if nothing was started."""
        if not self._journal.exists() or not self._partial.stat().st_size:
            # A journal without rows comes from a run that ended just before removing it.
            return None
        try:
            state = json.loads(self._journal.read_bytes())
            fingerprint, rows, size = state["fingerprint"], int(state["rows"]), int(state["bytes"])
            content = state["sha256"]
        except (ValueError, KeyError, TypeError):
            raise OutputError(f"{self._journal} is damaged; start again with --restart") from None
        known = self._partial.stat().st_size >= size and rows <= self.rows
        if not known or all(fingerprint != accepted(rows) for accepted in self._accepted):
            raise OutputError(
                f"{self._partial} was started with other texts or settings; "
                "name another file, or start again with --restart"
            )
        self._read_written(size)
        if self._written.hexdigest() != content:
            raise OutputError(
                f"{self._partial} was changed after it was written; name another file, or start again with "
                "--restart"
            )
        return rows, size

    def _read_written(self, size: int) -> None:
        """Take the digest of the bytes that are there."""
        with self._partial.open("rb") as file:
            while size and (block := file.read(min(size, 2**20))):
                self._written.update(block)
                size -= len(block)

    def append(self, content: bytes, rows: int) -> None:
        """Add ``rows`` rows; when this returns, they are on disk and will not be computed again."""
        try:
            self._file.write(content)
            self._written.update(content)
            self._file.flush()
            os.fsync(self._file.fileno())
            self.rows_done += rows
            state = {
                "fingerprint": self._fingerprint(self.rows_done),
                "rows": self.rows_done,
                "bytes": self._file.tell(),
                "sha256": self._written.hexdigest(),
            }
            with whole_file(self._journal) as journal:
                journal.write_text(json.dumps(state), encoding="utf-8", newline="\n")
        except OSError as error:
            raise unwritable(self.path, error) from None

    def __enter__(self) -> "ResumableFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self.rows_done == self.rows:
            try:
                self._file.close()  # Windows renames and removes no open file
                if self._finish is None:
                    rename(self._partial, self.path)
                else:
                    self._convert(self._finish)
                self._journal.unlink(missing_ok=True)
            except OSError as fault:
                raise unwritable(self.path, fault) from None
            finally:
                self._close()
        else:
            self._close(remove=isinstance(error, OutputError) or self.rows_done == 0)

    def _convert(self, finish: Callable[[Path, Path], None]) -> None:
        """Make the finished file. The rows are kept if that fails, as they took the time."""
        try:
            with whole_file(self.path) as whole:
                finish(self._partial, whole)
        except OutputError as error:
            raise OutputError(f"{error}; the rows are kept, and the same command resumes from them") from None
        self._partial.unlink()

    def _close(self, *, remove: bool = False) -> None:
        """Close the file; removals happen while the lock is held."""
        with self._held:
            with suppress(OSError):  # a failed flush has been reported, or is not journaled
                self._file.close()
            for path in (self._partial, self._journal) if remove else ():
                with suppress(OSError):
                    path.unlink()
