"""Read a request's path, query and body, and check each value against its limits."""

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from unmask.errors import InvalidRequest
from unmask.http.responses import JSON, Refused

if TYPE_CHECKING:
    from starlette.requests import Request as WebRequest

MAX_BODY_BYTES = 1 << 20
"""Maximum request body: 1 MiB, far more than any model here reads."""
BODY_SECONDS = 30.0
"""Seconds that a local client may take to send a whole body."""

_RANGE = re.compile(r"([0-9]{1,9}):([0-9]{1,9})")

Choice = TypeVar("Choice", bound=str)


@dataclass(frozen=True)
class Request:
    """One request: its path parameters, its query, and its body."""

    parts: tuple[str, ...]
    query: Mapping[str, str]
    body: bytes = b""

    def index(self, at: int, name: str, count: int) -> int:
        """A path parameter as a number in ``0 <= index < count``."""
        return index(name, self.parts[at], count)

    def number(self, name: str, default: int | None, low: int, high: int) -> int:
        """An integer of the query from ``low`` to ``high``; required if there is no default."""
        value = self.query.get(name)
        if value is None and default is not None:
            return default
        if value is None or not re.fullmatch(r"[0-9]{1,9}", value) or not low <= int(value) <= high:
            problem = "is missing" if value is None else f"is {value!r}"
            raise InvalidRequest(f"{name} {problem}; it must be a whole number from {low} to {high}")
        return int(value)

    def share(self, name: str, default: float) -> float:
        """A number of the query between 0 and 1."""
        value = self.query.get(name)
        if value is None:
            return default
        if not re.fullmatch(r"[0-9]*\.?[0-9]{1,12}", value) or not 0 <= float(value) <= 1:
            raise InvalidRequest(f"{name} is {value!r}; it must be a number from 0 to 1")
        return float(value)

    def choice(self, name: str, allowed: tuple[Choice, ...]) -> Choice:
        """A query value that must be one of ``allowed``; the first of them by default."""
        value = self.query.get(name, allowed[0])
        if value not in allowed:
            raise InvalidRequest(f"{name} is {value!r}; it must be one of {', '.join(allowed)}")
        return value

    def range(self, name: str, tokens: int) -> slice:
        """A range ``start:stop`` of tokens, not empty and inside the text; all tokens by default."""
        value = self.query.get(name)
        if value is None:
            return slice(0, tokens)
        match = _RANGE.fullmatch(value)
        start, stop = (int(match[1]), int(match[2])) if match else (0, 0)
        if not start < stop <= tokens:
            raise InvalidRequest(
                f"{name} must be a range start:stop with 0 <= start < stop <= {tokens}, not {value!r}"
            )
        return slice(start, stop)

    def json(self) -> dict[str, Any]:
        """The body as a JSON object."""
        if len(self.body) > MAX_BODY_BYTES:
            raise _too_large(MAX_BODY_BYTES)
        return json_object(self.body)


def json_object(body: bytes) -> dict[str, Any]:
    """A body as a JSON object.

    Raises:
        Refused: it is not one.
    """
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise Refused(400, "BadRequest", "the body is not valid JSON") from None
    if not isinstance(value, dict):
        raise Refused(400, "BadRequest", "the body must be a JSON object")
    return value


def index(name: str, given: str, count: int) -> int:
    """A number in ``0 <= index < count``, written in digits."""
    if not (given.isascii() and given.isdigit() and len(given) <= 9 and int(given) < count):
        raise InvalidRequest(f"{name} must be a number from 0 to {count - 1}, not {given!r}")
    return int(given)


async def read_body(request: "WebRequest", *, limit: int = MAX_BODY_BYTES, kind: str = JSON) -> bytes:
    """The whole body; one that exceeds the size or time limit is not read to its end.

    Args:
        request: the request.
        limit: maximum number of bytes.
        kind: the content type that a POST must have.

    Raises:
        Refused: it is too long, too slow or of another type, or the client disconnected.
    """
    from starlette.requests import ClientDisconnect

    if int(request.headers.get("content-length", 0)) > limit:  # the server has checked that it is a number
        raise _too_large(limit)
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    raise _too_large(limit)
    except TimeoutError:
        sentence = f"the body was not sent within {BODY_SECONDS:g} seconds; send it again"
        raise Refused(408, "BodyTooSlow", sentence) from None
    except ClientDisconnect:
        raise Refused(400, "BadRequest", "the body ends before its announced length") from None
    content_type = request.headers.get("content-type", "").partition(";")[0].strip()
    # A form on another page can post without a preflight request, but of neither of these types.
    if request.method == "POST" and content_type != kind:
        title = "JSON" if kind == JSON else kind
        raise Refused(415, "BadRequest", f"the body must be {title}, with its content type saying so")
    return bytes(body)


def _too_large(limit: int) -> Refused:
    return Refused(413, "BodyTooLarge", f"a request may hold {limit:,} bytes, not more")
