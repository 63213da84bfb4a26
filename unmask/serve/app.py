"""The application: routes, access, limits, one JSON error for each bad request, and request ids.

Answers are JSON without a number that is not finite; the page on which routes can be tried is in one file.
"""

import asyncio
import base64
import hashlib
import hmac
import json
import re
import secrets
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from unmask.errors import OutOfMemory, UnmaskError
from unmask.http.guard import LOOPBACK_NAMES
from unmask.http.requests import json_object, read_body
from unmask.http.responses import BEFORE_THE_END, JSON, Refused
from unmask.serve.errors import BackendError, Busy, Surface, body_of, headers_of, status_of
from unmask.serve.fields import read
from unmask.serve.openapi import document
from unmask.serve.routes import GETS, ROUTES
from unmask.serve.routes.route import GetRoute, PostRoute
from unmask.serve.service import Call, Gone, Service
from unmask.serve.telemetry import CONTENT_TYPE, Answered


def to_json(value: Any) -> bytes:
    """A value of typed results, arrays and plain values as JSON.

    A float32 number has the digits that tell it from other float32 numbers, 9 at most.

    Raises:
        ValueError: a number is not finite.
    """
    try:
        data = orjson.dumps(value, default=_plain, option=orjson.OPT_SERIALIZE_NUMPY)
    except orjson.JSONEncodeError:  # such as a lone surrogate that an error quotes, or a transposed array
        return _strictly(value)
    if b"null" in data:  # orjson writes a number that is not finite as null
        _strictly(value)
    return data


def _strictly(value: Any) -> bytes:
    """With the standard library, which takes everything and refuses numbers that are not finite."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"), default=_plain).encode("ascii")


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not a JSON value")


@cache
def page() -> tuple[bytes, str]:
    """The page, and a Content-Security-Policy that lets run what is in it and nothing else."""
    html = (files("unmask.serve") / "page.html").read_text(encoding="utf-8")
    script, style = (_digest(html, tag) for tag in ("script", "style"))
    policy = (
        f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return html.encode(), policy


def _digest(html: str, tag: str) -> str:
    match = re.search(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
    assert match is not None
    return f"'sha256-{base64.b64encode(hashlib.sha256(match[1].encode()).digest()).decode()}'"


_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
CLIENT_LEFT = 499
"""The status under which a request whose client has left is counted."""

Answerer = Callable[[Request], Awaitable[Response]]


class App:
    """Answers requests with a service.

    Args:
        service: models, scheduler and limits.
        keys: the keys that clients may use; without any, every client may use the server.
        any_host: whether a request may name another host than this machine. Without keys it may not, so that
            web sites whose names resolve to this machine cannot use the server.
        log: called with each line of the log of requests; see `log_line`.
    """

    def __init__(
        self,
        service: Service,
        *,
        keys: Sequence[str] = (),
        any_host: bool = False,
        log: Callable[[str], None] | None = None,
    ) -> None:
        self._service, self._log = service, log
        self._keys = [(key.encode(), hashlib.sha256(key.encode()).hexdigest()[:12]) for key in keys]
        self._any_host = any_host or bool(keys)

        def well() -> Response:
            return self._health(service.scheduler.alive())

        # They say whether the server works, and which routes and limits it has.
        public: dict[str, Callable[[], Response]] = {
            "/health": well,
            "/ping": well,
            "/ready": lambda: self._health(service.ready()),
            "/openapi.json": lambda: _json(document(service.limits, keys=bool(keys))),
            "/docs": _page,
        }
        keyed: dict[str, Callable[[], Response]] = {
            "/": well,
            **{route.path: self._status_route(route) for route in GETS},
            "/metrics": lambda: Response(service.metrics.text(), media_type=CONTENT_TYPE),
        }
        self.starlette = Starlette(
            routes=[
                *(self._get(path, answer, public=True) for path, answer in public.items()),
                *(self._get(path, answer) for path, answer in keyed.items()),
                *(Route(route.path, self._post(route), methods=["POST"]) for route in ROUTES),
            ],
            exception_handlers={HTTPException: self._unrouted},
        )
        # It would answer before the request is checked, counted and logged.
        self.starlette.router.redirect_slashes = False
        self.starlette.state.unread = self._unread

    def _status_route(self, route: GetRoute) -> Callable[[], Response]:
        return lambda: _json(route.answer(self._service))

    def _get(self, path: str, answer: Callable[[], Response], *, public: bool = False) -> Route:
        async def answered(request: Request) -> Response:
            return answer()

        return Route(path, self._guarded(path, surface_of(path), answered, public=public), methods=["GET"])

    def _post(self, route: PostRoute) -> Answerer:
        async def answered(request: Request) -> Response:
            began = time.monotonic()
            self._service.enter()
            try:
                if "content-encoding" in request.headers:
                    raise Refused(415, "encoded_body", "the body is compressed; send it as plain JSON")
                content = await read_body(request, limit=self._service.limits.body_bytes)
                body = json_object(content)
                call = Call(
                    self._client(request),
                    began + self._service.limits.seconds,
                    lambda: asyncio.ensure_future(_left(request)),
                    began,
                    len(content),
                )
                values = read(route.body, body, self._service.limits.texts)
                value = await route.handle(self._service, call, values)
                return _json(value, headers=call.headers())
            finally:
                self._service.leave()

        return self._guarded(route.path, route.surface, answered)

    def _guarded(self, path: str, surface: Surface, answer: Answerer, *, public: bool = False) -> Answerer:
        """With access control, errors as JSON, a request id, metrics, and a line of the log or a span.

        Whether a request needs a key depends on the route that it matched, never on what it says of itself.

        Args:
            path: the route's name in metrics, the log and spans.
            surface: the form of its errors.
            answer: what answers.
            public: whether it needs no key.
        """
        service = self._service

        async def guarded(request: Request) -> Response:
            began = time.monotonic()
            traces = nullcontext(Answered()) if service.traces is None else service.traces.span(path, request)
            with traces as answered:
                response = answered.response = await self._answered(request, surface, answer, public)
            sent_id = request.headers.get("x-request-id", "")
            response.headers["x-request-id"] = (
                sent_id if _REQUEST_ID.fullmatch(sent_id) else secrets.token_hex(8)
            )
            self._count(path, response, time.monotonic() - began, answered.trace_id)
            return response

        return guarded

    def _count(self, path: str, response: Response, seconds: float, trace_id: str | None = None) -> None:
        """Count and log an answer that has an id."""
        response.headers["Cache-Control"] = "no-store"
        metrics = self._service.metrics
        metrics.requests.add(1, path, str(response.status_code))
        metrics.request_seconds.observe(seconds)
        self._say(log_line(path, response, seconds, trace_id))

    def _unread(self, error: Refused, path: str | None) -> Response:
        """The answer to what is not HTTP; a request whose path is known is counted when it ends."""
        response = self._refusal(error, surface_of(path or "/"))
        response.headers["x-request-id"] = secrets.token_hex(8)
        if path is None:
            self._count("unknown", response, 0.0)
        return response

    def _say(self, line: str) -> None:
        """Log a line; one that cannot be written (a full disk, a reader that has ended) is counted."""
        if self._log is not None:
            try:
                self._log(line)
            except (OSError, ValueError):
                self._service.metrics.log_lines_lost.add()

    async def _answered(self, request: Request, surface: Surface, answer: Answerer, public: bool) -> Response:
        """The answer to a request that may use its route, or what refuses it."""
        metrics = self._service.metrics
        try:
            self._check(request, public)
            return await answer(request)
        except Gone:
            metrics.rejected.add(1, "client_left")
            return Response(status_code=CLIENT_LEFT)
        except UnmaskError as error:
            return self._refusal(error, surface)
        except (MemoryError, OutOfMemory):
            return self._refusal(
                BackendError("this machine's memory was not enough; send fewer texts"), surface
            )
        except asyncio.CancelledError:
            metrics.rejected.add(1, "cancelled")
            raise
        except Exception as error:
            traceback.print_exception(error, file=sys.stderr)
            return self._refusal(
                BackendError("the server had an internal error; see its log for details"), surface
            )

    def _refusal(self, error: UnmaskError, surface: Surface) -> Response:
        status = status_of(error, surface)
        if isinstance(error, Busy):
            self._service.metrics.rejected.add(1, error.kind)
        elif status == 504:
            self._service.metrics.rejected.add(1, "timeout")
        headers = headers_of(error)
        if status in BEFORE_THE_END:
            headers["Connection"] = "close"
        return _json(body_of(error, surface), status, headers)

    async def _unrouted(self, request: Request, error: Exception) -> Response:
        """A path or method that does not exist, for those who may use the server."""
        assert isinstance(error, HTTPException)
        path, status = request.scope["path"], error.status_code
        allowed = (error.headers or {}).get("Allow", "")
        if status == 405:
            refused = Refused(405, "wrong_method", f"{path} takes {allowed}, not {request.method}")
        else:
            refused = Refused(404, "not_found", f"there is no route {path[:80]}; see the documentation")

        async def refuse(request: Request) -> Response:
            response = self._refusal(refused, surface_of(path))
            if status == 405:
                response.headers["Allow"] = allowed
            return response

        return await self._guarded("unknown", surface_of(path), refuse)(request)

    def _check(self, request: Request, public: bool) -> None:
        """Raise `Refused` unless the request may use its route."""
        if not self._any_host and _name_of(request.headers.get("host", "")) not in LOOPBACK_NAMES:
            raise Refused(
                403,
                "foreign_host",
                "without API keys the server answers only under its own address on this machine",
            )
        if self._keys and not public and self._key_of(request) is None:
            raise Refused(
                401,
                "invalid_api_key",
                "the API key is missing or wrong; send Authorization: Bearer KEY",
            )

    def _key_of(self, request: Request) -> str | None:
        """The short digest of the key that was sent; all keys are compared, in constant time."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        sent = token.strip().encode("latin-1") if scheme.lower() == "bearer" else b""
        matching = None
        for key, digest in self._keys:
            if hmac.compare_digest(sent, key):
                matching = digest
        return matching

    def _client(self, request: Request) -> str:
        """Whose turn the request takes: its key's, or its address's without keys."""
        if self._keys:
            return self._key_of(request) or ""
        return request.client.host if request.client else ""

    def _health(self, well: bool) -> Response:
        return Response(status_code=200 if well else 503)


def log_line(route: str, response: Response, seconds: float, trace_id: str | None = None) -> str:
    """One request as a JSON object: when, its ids, route, status, time and tokens; never what it held."""
    headers = response.headers
    line = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "request_id": headers["x-request-id"],
        "route": route,
        "status": response.status_code,
        "milliseconds": round(seconds * 1e3, 1),
    }
    if trace_id is not None:
        line["trace_id"] = trace_id
    for name in ("x-compute-tokens", "x-truncated-inputs", "x-queue-time"):
        if name in headers:
            line[name.removeprefix("x-").replace("-", "_")] = int(headers[name])
    return json.dumps(line)


def surface_of(path: str) -> Surface:
    """Whose clients a path is for."""
    if path.startswith(("/v1/rerank", "/v1/embed/", "/v2/")) or path == "/v1/embed":
        return "cohere"
    return "openai" if path.startswith(("/v1/", "/embeddings")) else "tei"


async def _left(request: Request) -> None:
    """Wait until the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _name_of(host: str) -> str:
    """The host without its port."""
    return re.sub(r":[0-9]+$", "", host.lower())


def _page() -> Response:
    content, policy = page()
    return Response(content, media_type="text/html", headers={"Content-Security-Policy": policy})


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(to_json(value), status, headers=headers, media_type=JSON)
