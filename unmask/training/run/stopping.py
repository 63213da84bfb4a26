"""Signals that ask a run to stop, checked between two steps."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """A run was asked to stop and has written a checkpoint; ``str(error)`` says how to resume."""


class StopRequest:
    """Whether a stop has been requested."""

    def __init__(self) -> None:
        self.requested = False


@contextmanager
def catch_signals() -> Iterator[StopRequest]:
    """Context in which the first SIGINT or SIGTERM requests a stop; the second one acts as usual.

    Only the main thread can handle signals; in another thread this does nothing.
    """
    stop_request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop_request
        return

    # None is a handler that was not set from Python and cannot be restored.
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in SIGNALS}

    def hear(number: int, frame: FrameType | None) -> None:
        stop_request.requested = True
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in SIGNALS:
        signal.signal(number, hear)
    try:
        yield stop_request
    finally:
        restore()
