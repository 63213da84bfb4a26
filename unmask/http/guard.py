"""Access control: only this machine's own page may use a server of this package.

The page is served on a loopback address, but every web site open in the same browser can send
requests there, and a foreign name can be made to resolve to it (DNS rebinding). So the Host must
be a loopback name with our port, an Origin must be our own, and the API requires the launch token.
"""

import hmac
from collections.abc import MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from unmask.http.responses import Refused, failure, to_response

TOKEN_HEADER = "X-Unmask-Token"

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'self'",
        # Images of itself that the page saves.
        "img-src 'self' data: blob:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "object-src 'none'",
    )
)

SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Guard:
    """ASGI middleware: checks Host, Origin and token, and adds the security headers.

    Args:
        app: the guarded app; paths below ``/api/`` require the token.
        token: the launch token.
        port: the port of the server's address.
        service: the server's name in messages, such as "explorer".
        command: the command that started it and printed its address.
    """

    def __init__(self, app: ASGIApp, *, token: str, port: int, service: str, command: str) -> None:
        self._app = app
        self._service, self._command = service, command
        self._token = token.encode()
        hosts = {f"{name}:{port}" for name in LOOPBACK_NAMES}
        # Browsers omit HTTP's default port.
        self._hosts = hosts | set(LOOPBACK_NAMES) if port == 80 else hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or refuse it."""
        if scope["type"] == "websocket":
            # No route uses one, and it would bypass the checks below.
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                _add_headers(scope, message)
            await send(message)

        try:
            self._check(scope["path"], Headers(scope=scope))
        except Refused as refused:
            await to_response(failure(refused))(scope, receive, send_guarded)
            return
        await self._app(scope, receive, send_guarded)

    def _check(self, path: str, headers: Headers) -> None:
        host = headers.get("host", "").lower()
        if host not in self._hosts:
            raise Refused(
                403, "ForeignHost", f"the {self._service} answers only under its own address, not this one"
            )
        origin = headers.get("origin")
        if origin is not None and origin.lower() != f"http://{host}":
            raise Refused(403, "ForeignOrigin", f"another web site may not use the {self._service}")
        if not path.startswith("/api/"):
            return
        token = headers.get(TOKEN_HEADER)
        if token is None:
            raise Refused(
                401,
                "TokenMissing",
                "this page was opened without its launch token; open the address that "
                f'"{self._command}" printed',
            )
        if not hmac.compare_digest(token.encode("latin-1"), self._token):
            raise Refused(
                401,
                "TokenWrong",
                f"the launch token belongs to another run of the {self._service}; open the address that "
                f'"{self._command}" printed last',
            )


def _add_headers(scope: MutableMapping[str, Any], message: Message) -> None:
    headers = MutableHeaders(scope=message)
    for name, value in SECURITY_HEADERS.items():
        headers[name] = value
    if scope["path"].startswith("/api/"):
        # User input may be private: keep it out of the browser's cache.
        headers["Cache-Control"] = "no-store"
