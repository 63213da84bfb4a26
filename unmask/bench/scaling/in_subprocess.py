"""The parent's side of one point: start its process, monitor it, end it in time, and report how it ended."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO

from unmask.bench.scaling.one import Request
from unmask.bench.scaling.report import Outcome, ScalingPoint

TICK_SECONDS = 0.1
"""Interval at which the parent does other work while a point is measured."""
Tick = Callable[[], None]


def measure_in_subprocess(request: Request, deadline: float, tick: Tick) -> ScalingPoint:
    """Measure one point in a process of its own.

    Args:
        request: what to measure.
        deadline: on `time.monotonic`; the process is ended then, and what it has measured counts.
        tick: called every `TICK_SECONDS`; an exception in it ends the process and propagates to the caller.
    """
    start = time.monotonic()
    command = [sys.executable, "-m", "unmask.bench.scaling.one", request.text()]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen(command, stdout=out, stderr=err, start_new_session=True)
        late = False
        try:
            while child.poll() is None and not late:
                with suppress(subprocess.TimeoutExpired):
                    child.wait(TICK_SECONDS)
                tick()
                late = child.poll() is None and time.monotonic() > deadline
        finally:
            _end(child)
        lines, last = _lines(out), _last_line(err)
    return _point(request, lines, (child.returncode, late, last), time.monotonic() - start)


def _end(child: "subprocess.Popen[bytes]") -> None:
    """End the process and everything it started, whether or not it has exited."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _point(
    request: Request, lines: list[dict[str, object]], ending: tuple[int, bool, str], process: float
) -> ScalingPoint:
    found: dict[str, object] = {}
    for line in lines:
        found |= line
    code, late, last = ending
    repeats = tuple(float(str(line["seconds"])) for line in lines if "seconds" in line)
    outcome, note = _ending(found, code, late, last, bool(repeats))
    ran, peak, resting = found.get("ran"), found.get("peak_bytes"), found.get("resting_bytes")
    return ScalingPoint(
        kernel=request.way,
        length=request.length,
        outcome=outcome,
        note=note,
        ran=tuple(ran) if isinstance(ran, list) else (),
        repeats=repeats,
        peak_bytes=peak if isinstance(peak, int) else None,
        resting_bytes=resting if isinstance(resting, int) else None,
        process_seconds=process,
    )


def _ending(found: dict[str, object], code: int, late: bool, last: str, timed: bool) -> tuple[Outcome, str]:
    """How the process ended: by its own report, by the time budget, or by a signal."""
    if "outcome" in found:
        outcome: Outcome = found["outcome"]  # type: ignore[assignment]
        return outcome, str(found["note"])
    if late:
        return ("measured", "") if timed else ("no time", "the time budget of this run ended during it")
    if code == -signal.SIGKILL:
        return "did not fit", "the system killed the process, as it does when memory runs out"
    if code < 0:
        name = signal.Signals(-code).name
        # A library that cannot handle a failed allocation aborts.
        kind: Outcome = "did not fit" if "resting_bytes" in found and "alloc" in last.lower() else "failed"
        return kind, f"the process ended by {name}{f': {last}' if last else ''}"
    return "failed", last or f"the process exited with code {code} and no message"


def _lines(out: IO[bytes]) -> list[dict[str, object]]:
    """Complete JSON objects among the lines; libraries print other lines, and a killed process a partial
    one."""
    out.seek(0)
    found = []
    for line in out.read().decode("utf-8", "replace").splitlines():
        with suppress(ValueError):
            value = json.loads(line)
            if isinstance(value, dict):
                found.append(value)
    return found


def _last_line(err: IO[bytes]) -> str:
    err.seek(0)
    lines = err.read().decode("utf-8", "replace").split("\n")
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")
