"""A uvicorn server that answers what it has accepted before it stops."""

import asyncio
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from unmask.http.server import configured
from unmask.serve.errors import Busy
from unmask.serve.service import Service

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

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Say that the server is not ready, and begin to stop; a second signal stops at once."""
        if self.should_exit:
            self.force_exit = True
        self._service.draining = True
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop; after the time is over, fail what is unfinished."""
        stopping = Busy(503, "stopping", "the server is stopping; send the request again", 1)
        timer = asyncio.get_running_loop().call_later(self._seconds, self._service.stop, stopping)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()


def run(app: Starlette, listening: socket.socket, drain_seconds: float) -> None:
    """Serve on a socket until SIGINT or SIGTERM."""
    config = configured(app, timeout_graceful_shutdown=int(drain_seconds + LAST_SECONDS) + 1)
    server = Draining(config, app.state.service, drain_seconds)
    with _clean_end():
        server.run(sockets=[listening])


class _Stopped(BaseException):
    """SIGTERM has come."""


@contextmanager
def _clean_end() -> Iterator[None]:
    """End without an error after SIGINT and SIGTERM, which uvicorn sends again after a clean stop."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise _Stopped

    here = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, stop) if here else None
    try:
        yield
    except (KeyboardInterrupt, _Stopped):
        return
    finally:
        if here:
            signal.signal(signal.SIGTERM, before)
