"""The result of every route: a status, a media type and bytes, independent of any web framework."""

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from unmask.errors import UnmaskError
from unmask.http.errors import Failure, Refused, problem_of, status_of

if TYPE_CHECKING:
    from starlette.responses import Response

JSON = "application/json"
BEFORE_THE_END = (408, 413)
"""Statuses of responses sent before a body was fully read. Their connection is closed, so that the rest
of the body is not taken for another request."""


@dataclass(frozen=True)
class Answer:
    """One response, independent of any web framework."""

    status: int
    media_type: str
    data: bytes
    etag: str | None = None
    """The ETag of an array, equal exactly if the bytes are."""


def json_answer(value: Any, status: int = 200) -> Answer:
    """A typed result, or plain values, as JSON."""
    return Answer(status, JSON, to_json(value))


def no_answer() -> Answer:
    """An empty response to a successful request."""
    return Answer(204, JSON, b"")


def failure(error: UnmaskError) -> Answer:
    """An error, as a typed result with its status."""
    return json_answer(Failure(problem_of(error)), status_of(error))


def to_response(answer: Answer) -> "Response":
    """The response as an object of the web framework."""
    from starlette.responses import Response

    headers = {"ETag": answer.etag} if answer.etag is not None else {}
    if answer.status in BEFORE_THE_END:
        headers["Connection"] = "close"
    return Response(answer.data, answer.status, headers=headers, media_type=answer.media_type)


def accepted(answer: Answer) -> Answer:
    """Return a successful answer unchanged; raise `Refused` with its message otherwise."""
    if answer.status >= 400:
        problem = json.loads(answer.data)["error"]
        raise Refused(answer.status, problem["kind"], problem["sentence"])
    return answer


def plain(answer: Answer) -> Any:
    """The JSON value of a successful answer; raises `Refused` otherwise."""
    return json.loads(accepted(answer).data)


def to_json(result: Any) -> bytes:
    """UTF-8 JSON of a result (a dataclass, or plain values); a number that is not finite raises ValueError.

    Written in ASCII with escapes, because a message may quote a text that is not valid Unicode.
    """
    value = asdict(result) if hasattr(result, "__dataclass_fields__") else result
    return json.dumps(value, allow_nan=False, separators=(",", ":"), default=_plain).encode("ascii")


def _plain(value: Any) -> Any:
    """Convert a numpy number to a Python number."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is not a JSON value")
