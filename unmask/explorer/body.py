"""Reading what a request carries, within a limit."""

import json
from typing import NamedTuple

from starlette.requests import Request

from unmask.explorer.problems import Refused
from unmask.text.encoding import TooLong

MAX_BODY_BYTES = 1 << 20
"""Longest request body: 1 MiB, far more than any model here reads."""


class ReadRequest(NamedTuple):
    """A text to read."""

    text: str
    too_long: TooLong


async def read_request(request: Request) -> ReadRequest:
    """The body of ``POST /api/texts``; raises `Refused` for anything else than that."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise Refused(415, "BadRequest", "the body must be JSON, with its content type saying so")
    body = await _body(request)
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        raise Refused(400, "BadRequest", "the body is not valid JSON") from None
    text = given.get("text") if isinstance(given, dict) else None
    if not isinstance(text, str):
        raise Refused(400, "BadRequest", "the body must be an object with a string `text`")
    too_long = given.get("too_long", "error")
    if too_long not in ("error", "cut"):
        raise Refused(400, "BadRequest", '`too_long` must be "error" or "cut"')
    return ReadRequest(text, too_long)


async def _body(request: Request) -> bytes:
    """The whole body, given up as soon as it is longer than it may be."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise Refused(413, "BodyTooLarge", f"a request may hold {MAX_BODY_BYTES:,} bytes, not more")
    return bytes(body)
