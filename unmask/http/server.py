"""How uvicorn is set up: time limits for who sends half a request, and no web sockets.

It is imported inside a function, once the ``explorer`` extra is known to be there.
"""

import asyncio
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0
"""How long a client of this machine may take to send the head of a request."""


class TimedProtocol(H11Protocol):
    """HTTP/1.1 that closes a connection whose request does not get on; uvicorn waits for it for ever."""

    _limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The clock of the first request runs from here."""
        super().connection_made(transport)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        """The clock stops when a head is whole; more bytes of it do not set it back."""
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._forget_limit()
        super().connection_lost(exc)

    def _watch_head(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._forget_limit()
        elif self._limit is None:
            self._limit = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _forget_limit(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def _unsupported_upgrade_warning(self) -> None:
        """Nothing here speaks web socket: there is no library to be installed for it."""


def configured(app: ASGIApp, **options: Any) -> uvicorn.Config:
    """The settings of a server for this machine; ``options`` are further ones of uvicorn's."""
    return uvicorn.Config(
        app,
        http=TimedProtocol,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        # Requests that wait for a model must not hold up the end.
        timeout_graceful_shutdown=1,
        **options,
    )
