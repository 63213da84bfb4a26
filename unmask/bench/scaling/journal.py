"""Points as they are measured, one JSON line each, so that an interrupted run can resume."""

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from unmask.base.files import unwritable
from unmask.bench.scaling.report import ScalingPoint, read_value
from unmask.errors import InvalidRequest

DECIDED = ("measured", "did not fit")
"""Outcomes that a later run does not retry; others may change with more time or another library installed."""


def journal_of(output: Path) -> Path:
    """Where the points of the report ``output`` are kept until it is complete."""
    return output.with_name(f"{output.name}.points")


class Journal:
    """The points of one run, in their own file.

    Args:
        path: the file; it is created with the first point.
        what: everything that a point depends on; points of anything else are not resumed.
        restart: discard existing points.

    Raises:
        InvalidRequest: the file holds points of other settings, or is not a journal.
    """

    def __init__(self, path: Path, what: object, *, restart: bool = False) -> None:
        self.path = path
        plain = json.dumps(what, sort_keys=True, default=str)
        self._head = {"scaling": hashlib.sha256(plain.encode()).hexdigest()}
        if restart:
            self.remove()
        self.points = self._points()

    def _points(self) -> list[ScalingPoint]:
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequest(f"cannot read {self.path}: {error}") from None
        values = []
        for line in lines:
            with suppress(ValueError):  # a process killed while writing leaves a partial last line
                values.append(json.loads(line))
        if not values:
            return []
        if values[0] != self._head:
            raise InvalidRequest(
                f"{self.path} holds points of another model, machine or setting; name another file with "
                "--output, or start again with --restart"
            )
        return [read_value(ScalingPoint, value, str(self.path)) for value in values[1:]]

    def find(self, kernel: str, length: int) -> ScalingPoint | None:
        """The point, if an earlier run has decided it."""
        return next((one for one in self.points if (one.kernel, one.length) == (kernel, length)), None)

    def add(self, point: ScalingPoint) -> None:
        """Store a decided point; it is on disk when this returns.

        Raises:
            OutputError: it cannot be written.
        """
        if point.outcome not in DECIDED:
            return
        lines = [asdict(point)] if self.points else [self._head, asdict(point)]
        try:
            # The first point overwrites the file: it held no complete line, if anything.
            with self.path.open("a" if self.points else "w", encoding="utf-8") as file:
                file.writelines(f"\n{json.dumps(line)}\n" for line in lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise unwritable(self.path, error) from None
        self.points.append(point)

    def remove(self) -> None:
        """Forget all points, and the file."""
        self.points = []
        with suppress(FileNotFoundError):
            self.path.unlink()
