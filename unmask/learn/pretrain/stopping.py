"""A signal to stop, heard between two steps."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """A run was asked to stop and has written a checkpoint; ``str(error)`` says how to go on."""


class StopRequest:
    """Whether somebody has asked for a stop."""

    def __init__(self) -> None:
        self.requested = False


@contextmanager
def catch_signals() -> Iterator[StopRequest]:
    """Within it, the first SIGINT or SIGTERM is a wish; the second stops at once, as it would elsewhere.

    Signals go to the main thread alone: in another one nothing is heard.
    """
    wish = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield wish
        return

    # None is a handler that was not set from Python and cannot be put back.
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in SIGNALS}

    def hear(number: int, frame: FrameType | None) -> None:
        wish.requested = True
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in SIGNALS:
        signal.signal(number, hear)
    try:
        yield wish
    finally:
        restore()
