"""Signals that stop the server, from the first model that is loaded to the last answer."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType


class _Stopped(BaseException):
    """SIGTERM or SIGHUP has come."""


@contextmanager
def stops() -> Iterator[None]:
    """End without an error after SIGINT, SIGTERM and SIGHUP, also while models are loaded.

    Uvicorn sends the first two again after a clean stop. SIGHUP, which a closed terminal sends, counts as
    SIGTERM unless the server was started to ignore it.
    """
    stopped = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopped
        if not stopped:  # what is being closed is closed to the end
            stopped = True
            raise _Stopped

    with suppress(KeyboardInterrupt, _Stopped), handled(signal.SIGTERM, stop), handled(signal.SIGHUP, stop):
        yield


@contextmanager
def handled(number: signal.Signals, handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """A handler of a signal that is not ignored, in the main thread, which alone gets signals."""
    before = signal.getsignal(number)
    if threading.current_thread() is not threading.main_thread() or before == signal.SIG_IGN:
        yield
        return
    signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)
