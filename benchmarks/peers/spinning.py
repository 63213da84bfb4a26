"""Processes that keep processors busy, to measure how work runs beside other work."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from unmask.errors import InvalidRequest

PROGRAM = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("spinning", flush=True)
while os.getppid() == int(sys.argv[1]):
    for _ in range(100_000):
        pass
"""
"""Ctrl-C reaches the whole process group; the parent ends its children. One whose parent is gone ends
itself, so that none stays behind a parent that was killed."""


@contextmanager
def spinning(count: int) -> Iterator[None]:
    """Let ``count`` processes run without pause inside the block; each takes a processor if one is free.

    All have started when the block begins and have ended when it is left, for whatever reason.

    Raises:
        InvalidRequest: the number is negative.
    """
    if count < 0:
        raise InvalidRequest(f"the number of spinning processes is {count}; it must be at least 0")
    command = [sys.executable, "-I", "-S", "-c", PROGRAM, str(os.getpid())]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            started.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
            )
        for one in started:
            assert one.stdout is not None
            one.stdout.readline()
        yield
    finally:
        for one in started:
            one.kill()
        for one in started:
            one.communicate()
