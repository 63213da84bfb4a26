"""How a server stops: by a signal, from the first model that is loaded to the last answer."""

import asyncio
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from unmask.base.system import HANGUP
from unmask.errors import UnmaskError
from unmask.http.server import configured
from unmask.serve.errors import Busy
from unmask.serve.service import Service


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

    with suppress(KeyboardInterrupt, _Stopped), handled(signal.SIGTERM, stop), handled(HANGUP, stop):
        yield


@contextmanager
def handled(
    number: signal.Signals | None, handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """A handler of a signal that is not ignored, in the main thread, which alone gets signals.

    None is a signal that this system does not have.
    """
    main = threading.current_thread() is threading.main_thread()
    if number is None or not main or (before := signal.getsignal(number)) == signal.SIG_IGN:
        yield
        return
    signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


LAST_SECONDS = 2.0
"""Time for the answers to requests that are given up."""


class Draining(uvicorn.Server):
    """Answers the requests in progress when it is told to stop, for a bounded time.

    Args:
        config: uvicorn's settings.
        service: what answers.
        seconds: how long requests may take that are in progress.
    """

    def __init__(self, config: uvicorn.Config, service: Service, seconds: float) -> None:
        super().__init__(config)
        self._service, self._seconds = service, seconds
        self._at_once = False
        self.broken = False
        """Whether it stopped because workers could no longer be replaced."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Say that the server is not ready, and begin to stop; a second signal fails what is unfinished."""
        if self.should_exit:
            self.force_exit = self._at_once  # a third signal does not even wait for answers
            self._at_once = True
            return
        self._service.draining = True
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """Begin to stop if workers can no longer be replaced."""
        if not self.should_exit and not self._service.renewable():
            self.broken = self._service.draining = self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop; after the time is over, fail what is unfinished."""
        limit = asyncio.ensure_future(self._give_up())
        try:
            await super().shutdown(sockets)
        finally:
            limit.cancel()

    async def _give_up(self) -> None:
        """Fail what is unfinished when the time is over, then close the connections of clients that stall."""
        end = time.monotonic() + self._seconds
        while not self._at_once and time.monotonic() < end:
            await asyncio.sleep(0.1)
        self._service.stop(Busy(503, "stopping", "the server is stopping; send the request again", 1))
        await asyncio.sleep(LAST_SECONDS)
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def run(app: Starlette, listening: socket.socket, drain_seconds: float) -> None:
    """Serve on a socket until SIGINT, SIGTERM or SIGHUP; call it within `stops`.

    Raises:
        UnmaskError: the server stopped by itself, because its workers could no longer be replaced.
    """
    config = configured(app, timeout_graceful_shutdown=int(drain_seconds + LAST_SECONDS) + 2)
    server = Draining(config, app.state.service, drain_seconds)
    with handled(HANGUP, lambda _, frame: server.handle_exit(signal.SIGTERM, frame)):
        server.run(sockets=[listening])
    if server.broken:
        raise UnmaskError(
            "the process that starts workers has ended, so the server has stopped; start it again (Linux "
            "ends processes where memory is short)"
        )
