"""The uvicorn configuration: time limits for incomplete requests, and no web sockets.

Import it inside a function, after checking that the ``explorer`` extra is installed.
"""

import asyncio
import socket
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0
"""Seconds that a local client may take to send the head of a request."""


class TimedProtocol(H11Protocol):
    """HTTP/1.1 that closes a connection whose request stalls; uvicorn would wait for it forever."""

    _limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of the first request, and send every answer at once.

        An answer is sent in two parts, its head and its body. Unless the socket says otherwise, the second
        waits until the client has confirmed the first, which it does after 40 ms. asyncio says so only for
        sockets that name their protocol, which those of `socket.create_server` do not.
        """
        own = transport.get_extra_info("socket")
        if own is not None and own.family in (socket.AF_INET, socket.AF_INET6):
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().connection_made(transport)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        """Stop the timer when a head is complete; partial data does not reset it."""
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timer."""
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
        """Suppress uvicorn's advice to install a library: web sockets are not supported."""


def configured(app: ASGIApp, **options: Any) -> uvicorn.Config:
    """The settings of a local server; ``options`` are further uvicorn settings."""
    settings: dict[str, Any] = {
        "http": TimedProtocol,
        "ws": "none",
        "log_level": "warning",
        "access_log": False,
        "server_header": False,
        "lifespan": "off",
        # Requests that wait for a model must not delay shutdown.
        "timeout_graceful_shutdown": 1,
    }
    return uvicorn.Config(app, **settings | options)
