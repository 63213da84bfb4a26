"""The application: the page, the API, and the guard in front of both.

The page is answered at once. The API needs torch, whose import takes seconds, so it is made in a thread of
its own, and the first requests to it wait for that.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from unmask.explorer.answers import JSON, Answer, failure
from unmask.explorer.guard import Guard
from unmask.explorer.page import page_routes
from unmask.explorer.problems import Refused, unexpected
from unmask.explorer.request import MAX_BODY_BYTES

if TYPE_CHECKING:
    from unmask.explorer.api import Api

WAITING_REQUESTS = 64
"""Requests that wait for answers at once; most of them wait for a model's turn, not for a core."""


class Opening:
    """The API, made in a thread of its own."""

    def __init__(self, make: "Callable[[], Api]") -> None:
        self._make = make
        self._made: Api | None = None
        self._thread = threading.Thread(target=self._open, name="unmask explorer: opening", daemon=True)
        self._thread.start()

    def answer(self, request: Request, body: bytes) -> Answer:
        """The API's answer, once there is an API."""
        self._thread.join()
        if self._made is None:
            return failure(
                Refused(500, "InternalError", "the explorer could not start; its terminal says more")
            )
        # The server has taken the escapes out of the path, and the API takes them out itself.
        path = quote(request.scope["path"].removeprefix("/api/"))
        return self._made.answer(request.method, path, dict(request.query_params), body)

    def close(self) -> None:
        """Stop what runs in the background."""
        self._thread.join(2)
        if self._made is not None:
            self._made.close()

    def _open(self) -> None:
        try:
            self._made = self._make()
        except Exception as error:
            unexpected(error)  # told in the terminal


def build_app(make: "Callable[[], Api]", token: str, port: int) -> Starlette:
    """See `unmask.explorer.make_app`; ``app.state.opening`` closes the API."""
    opening = Opening(make)
    waiting = ThreadPoolExecutor(WAITING_REQUESTS, thread_name_prefix="unmask explorer: request")

    async def api(request: Request) -> Response:
        try:
            body = await _body(request)
        except Refused as refused:
            return response(failure(refused))
        loop = asyncio.get_running_loop()
        answer = await loop.run_in_executor(waiting, opening.answer, request, body)
        if answer.etag is not None and request.headers.get("if-none-match") == answer.etag:
            return Response(status_code=304, headers={"ETag": answer.etag})
        return response(answer)

    app = Starlette(
        routes=[
            Route("/api/{path:path}", api, methods=["GET", "POST", "PUT", "DELETE"]),
            *page_routes(),
        ],
        middleware=[Middleware(Guard, token=token, port=port)],
        exception_handlers={Exception: _own_fault},
    )
    app.state.opening = opening
    return app


def response(answer: Answer) -> Response:
    """An answer of the API as one of the web."""
    headers = {"ETag": answer.etag} if answer.etag is not None else None
    return Response(answer.data, answer.status, headers=headers, media_type=answer.media_type)


async def _body(request: Request) -> bytes:
    """The whole body, given up as soon as it is longer than it may be."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise Refused(413, "BodyTooLarge", f"a request may hold {MAX_BODY_BYTES:,} bytes, not more")
    said = request.headers.get("content-type", "").partition(";")[0].strip()
    # A form of another page can post without asking, but not as JSON.
    if request.method == "POST" and said != JSON:
        raise Refused(415, "BadRequest", "the body must be JSON, with its content type saying so")
    return bytes(body)


async def _own_fault(request: Request, error: Exception) -> Response:
    """A fault of ours: a sentence for the page; the server's log gets the traceback."""
    return response(
        failure(Refused(500, "InternalError", "the explorer met a fault of its own; its terminal says more"))
    )
