"""Event files for TensorBoard, written immediately, so that a full disk is noticed where it happens."""

import contextlib
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unmask.base.files import unwritable
from unmask.base.optional import require


class Board:
    """Writes one event file; each event has been handed to the operating system when `write` returns.

    Args:
        folder: TensorBoard's log folder; created if it does not exist.
        step: events of earlier processes for later steps are hidden, because those steps are taken again.

    Raises:
        MissingExtra: TensorBoard is not installed.
        OutputError: the disk is full or read-only.
    """

    def __init__(self, folder: Path, step: int) -> None:
        require("tensorboard")
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event: Any = Event
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self.path = folder / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("wb")
        except OSError as error:
            raise unwritable(self.path, error) from None
        self._records: Any = RecordWriter(self._file)
        self._add(file_version="brain.Event:2", step=step + 1)
        self._add(session_log=SessionLog(status=SessionLog.START), step=step + 1)

    def write(self, figures: Mapping[str, float], step: int) -> None:
        """Write the figures of a step.

        Raises:
            OutputError: the disk is full.
        """
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in figures.items()]
        self._add(summary=Summary(value=values), step=step)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _add(self, **fields: Any) -> None:
        try:
            self._records.write(self._event(wall_time=time.time(), **fields).SerializeToString())
            self._records.flush()
        except OSError as error:
            # Otherwise closing the file would retry what could not be written.
            with contextlib.suppress(OSError):
                self._file.close()
            raise unwritable(self.path, error) from None
