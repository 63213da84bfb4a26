"""The run's log: one JSON object per line, complete lines only, even if the process is killed."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unmask.base.files import unwritable, whole_file
from unmask.errors import InvalidRequest


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Read the events of a log in order; a last line truncated by a kill is skipped.

    Raises:
        InvalidRequest: another line is not an event.
    """
    if not path.exists():
        return
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                continue
            try:
                event = json.loads(line)
            except ValueError:
                event = None
            if not isinstance(event, dict):
                raise InvalidRequest(
                    f"line {number} of {path} is not an event; move the log elsewhere to resume"
                )
            yield event


class EventLog:
    """Appends events to a file; each has been handed to the operating system when `write` returns.

    Args:
        path: the log; created if it does not exist.
        step: events of later steps are removed, because a resumed run writes them again.

    Raises:
        InvalidRequest: see `read_events`.
        OutputError: the disk is full or read-only.
    """

    def __init__(self, path: Path, step: int) -> None:
        self.path = path
        try:
            events = [event for event in read_events(path) if event.get("step", 0) <= step]
            with whole_file(path) as partial:
                partial.write_bytes(b"".join(map(_line, events)))
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        except OSError as error:
            raise unwritable(path, error) from None

    def write(self, kind: str, step: int, **figures: Any) -> None:
        """Append one event; ``figures`` are numbers and short texts with units in their names.

        Raises:
            OutputError: the disk is full; a partially written event is removed.
        """
        line = _line({"event": kind, "step": step, **figures})
        before = os.fstat(self._file).st_size
        done = 0
        try:
            # Usually one call; a full disk accepts a part of the line and refuses the rest.
            while done < len(line):
                done += os.write(self._file, line[done:])
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, before)
            raise unwritable(self.path, error) from None

    def sync(self) -> None:
        """Wait until every event is on disk."""
        try:
            os.fsync(self._file)
        except OSError as error:
            raise unwritable(self.path, error) from None

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def _line(event: dict[str, Any]) -> bytes:
    return json.dumps(event, ensure_ascii=False).encode() + b"\n"
