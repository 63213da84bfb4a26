"""The uvicorn configuration: time limits for all that a client sends and reads, and no web sockets.

Import it inside a function, after checking that the ``explorer`` extra is installed.
"""

import asyncio
import socket
from typing import Any

import h11
import uvicorn
from starlette.responses import Response
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from unmask.http.requests import BODY_SECONDS
from unmask.http.responses import Refused, failure, to_response

HEAD_SECONDS = 10.0
"""Seconds that a local client may take to send the head of a request."""
UNREAD_SECONDS = BODY_SECONDS + 5
"""Seconds for a whole body, whoever reads it or not. A route that reads it answers before."""
WRITE_SECONDS = 30.0
"""Seconds in which a client must read an answer, or `WRITE_BYTES` of it."""
WRITE_BYTES = 1 << 18
"""What a client must read of a long answer in each `WRITE_SECONDS`."""
PROBE_SECONDS = 0.5
"""How often a client that sends nothing more is asked whether it still reads."""


class TimedProtocol(H11Protocol):
    """HTTP/1.1 that closes a connection whose client stalls; uvicorn would wait for it forever."""

    _limit: asyncio.TimerHandle | None = None
    _limited: object = None
    """The part of a request that has a time limit now: the state of the client."""
    _write_limit: asyncio.TimerHandle | None = None
    _probing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of the first request, and send every answer at once.

        An answer is sent in two parts, its head and its body. Unless the socket says otherwise, the second
        waits until the client has confirmed the first, which it does after 40 ms. asyncio says so only for
        sockets that name their protocol, which those of `socket.create_server` do not.
        """
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().connection_made(transport)
        # Whatever is not read yet pauses writing, so that its time can be limited.
        transport.set_write_buffer_limits(high=0)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Start the timer of a body when its head is complete; partial data does not reset a timer."""
        super().data_received(data)
        self._watch()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Answer a client that sends nothing more, as long as it reads.

        A client that has left looks the same. It is told apart by what it is sent: it resets the connection.
        Clients of HTTP/1.1 skip any number of answers 100, and one of HTTP/1.0 is taken to have left.
        """
        cycle = self.cycle
        if (
            cycle is None
            or cycle.response_complete
            or cycle.more_body
            or cycle.scope["http_version"] != "1.1"
        ):
            return False
        cycle.keep_alive = False
        self._probing = self.loop.call_later(PROBE_SECONDS, self._probe, cycle)
        return True

    def pause_writing(self) -> None:
        """Start the timer of an answer."""
        super().pause_writing()
        self._watch_answer()

    def resume_writing(self) -> None:
        """Stop it: all has been read."""
        _cancel(self._write_limit)
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers."""
        for timer in (self._limit, self._write_limit, self._probing):
            _cancel(timer)
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP with JSON, as everything else, unless another answer has begun."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        cycle = self.cycle
        path = None if cycle is None or cycle.response_complete else cycle.scope["path"]
        refused = Refused(
            400, "BadRequest", "what was sent is no valid request of HTTP/1.1; check the client"
        )
        made = getattr(getattr(self.config.app, "state", None), "unread", _unread)
        response = made(refused, path)
        headers = [*response.raw_headers, (b"connection", b"close")]
        for event in (
            h11.Response(status_code=400, headers=headers, reason="Bad Request"),
            h11.Data(data=bytes(response.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _watch(self) -> None:
        """Limit the time of the part of a request that the client sends now."""
        state = self.conn.their_state
        if state is self._limited:
            return
        _cancel(self._limit)
        self._limited = state
        seconds = {h11.IDLE: HEAD_SECONDS, h11.SEND_BODY: UNREAD_SECONDS}.get(state)
        if seconds is not None:
            self._limit = self.loop.call_later(seconds, self.transport.close)

    def _watch_answer(self) -> None:
        unread = self.transport.get_write_buffer_size()

        def look() -> None:
            if self.transport.get_write_buffer_size() > unread - WRITE_BYTES:
                self.transport.abort()
            else:
                self._watch_answer()

        self._write_limit = self.loop.call_later(WRITE_SECONDS, look)

    def _probe(self, cycle: RequestResponseCycle) -> None:
        if not cycle.response_started and not self.transport.is_closing():
            event = h11.InformationalResponse(status_code=100, headers=[], reason="Continue")
            self.transport.write(self.conn.send(event) or b"")
            self._probing = self.loop.call_later(PROBE_SECONDS, self._probe, cycle)

    def _unsupported_upgrade_warning(self) -> None:
        """Suppress uvicorn's advice to install a library: web sockets are not supported."""


def _unread(error: Refused, path: str | None) -> Response:
    return to_response(failure(error))


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def configured(app: ASGIApp, **options: Any) -> uvicorn.Config:
    """The settings of a local server.

    Args:
        app: what answers. What is not HTTP never reaches it: ``app.state.unread(error, path)`` makes the
            answer, if it is there; ``path`` is None unless it is a body that is no HTTP.
        options: further uvicorn settings.
    """
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
