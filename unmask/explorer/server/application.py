"""The application: the page, the API, and the guard in front of both.

The page is served immediately. The API needs torch, whose import takes seconds, so it is created in a
separate thread, and the first API requests wait for it.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from unmask.explorer.page import MAX_PDF_BYTES, PDF, STATIC
from unmask.http.guard import Guard
from unmask.http.requests import read_body
from unmask.http.responses import Answer, Refused, failure, own_fault, to_response, unexpected

if TYPE_CHECKING:
    from unmask.explorer.api import Api

PDF_PATH = "/api/pdf"
"""The one route whose body is a file."""
WAITING_REQUESTS = 64
"""Maximum concurrent requests; most of them wait for a model to become free, not for a core."""


class Opening:
    """The API, created in a separate thread."""

    def __init__(self, make: "Callable[[], Api]") -> None:
        self._make = make
        self._made: Api | None = None
        self._thread = threading.Thread(target=self._open, name="unmask explorer: opening", daemon=True)
        self._thread.start()

    def answer(self, request: Request, body: bytes) -> Answer:
        """The API's answer; waits until the API is created."""
        self._thread.join()
        if self._made is None:
            return failure(
                Refused(500, "InternalError", "the explorer could not start; see its terminal for the reason")
            )
        # The raw path: the API decodes escapes per segment, so a segment can contain a slash.
        path = request.scope["raw_path"].decode("latin-1").removeprefix("/api/")
        return self._made.answer(request.method, path, dict(request.query_params), body)

    def close(self) -> None:
        """Stop background work."""
        self._thread.join(2)
        if self._made is not None:
            self._made.close()

    def _open(self) -> None:
        try:
            self._made = self._make()
        except Exception as error:
            unexpected(error)  # reported in the terminal


def build_app(make: "Callable[[], Api]", token: str, port: int) -> Starlette:
    """See `unmask.explorer.make_app`; ``app.state.opening`` closes the API."""
    opening = Opening(make)
    waiting = ThreadPoolExecutor(WAITING_REQUESTS, thread_name_prefix="unmask explorer: request")

    async def api(request: Request) -> Response:
        try:
            is_pdf = request.scope["path"] == PDF_PATH
            body = await (read_body(request, limit=MAX_PDF_BYTES, kind=PDF) if is_pdf else read_body(request))
        except Refused as refused:
            return to_response(failure(refused))
        loop = asyncio.get_running_loop()
        answer = await loop.run_in_executor(waiting, opening.answer, request, body)
        if answer.etag is not None and request.headers.get("if-none-match") == answer.etag:
            return Response(status_code=304, headers={"ETag": answer.etag})
        return to_response(answer)

    app = Starlette(
        routes=[
            Route("/api/{path:path}", api, methods=["GET", "POST", "PUT", "DELETE"]),
            *page_routes(),
        ],
        middleware=[Middleware(Guard, token=token, port=port, service="explorer", command="unmask explore")],
        exception_handlers={Exception: _own_fault},
    )
    app.state.opening = opening
    return app


async def _own_fault(request: Request, error: Exception) -> Response:
    """An internal error: a sentence for the page; the traceback goes to the server's log."""
    return to_response(failure(own_fault()))


class HashedAssets(StaticFiles):
    """Files with a content hash in their names, which browsers may cache forever."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """A file with its cache header."""
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return response


def page_routes() -> list[BaseRoute]:
    """The routes ``/`` and ``/assets``."""

    async def index(request: Request) -> Response:
        return FileResponse(STATIC / "index.html", headers={"Cache-Control": "no-cache"})

    return [
        Route("/", index, methods=["GET"]),
        Mount("/assets", HashedAssets(directory=STATIC / "assets")),
    ]
