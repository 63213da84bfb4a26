"""The result of every route: a status, a media type and bytes, independent of any web framework; errors
as such results, each with its HTTP status and its `Problem`.
"""

import json
import sys
import traceback
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from unmask.errors import InvalidRequest, MissingExtra, TextError, TextTooLong, UnmaskError

if TYPE_CHECKING:
    from starlette.responses import Response

JSON = "application/json"
BEFORE_THE_END = (408, 413)
"""Statuses of responses sent before a body was fully read. Their connection is closed, so that the rest
of the body is not taken for another request."""


@dataclass(frozen=True)
class Problem:
    """Why a request was refused: a kind for programs, a message for people.

    ``total_tokens`` and ``max_tokens`` are set when a text is too long.
    """

    kind: str
    sentence: str
    total_tokens: int | None = None
    max_tokens: int | None = None


@dataclass(frozen=True)
class Failure:
    """The body of every unsuccessful response."""

    error: Problem


class Refused(UnmaskError):
    """A request refused before any model runs; carries its HTTP status and kind."""

    def __init__(self, status: int, kind: str, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.kind = kind


def cannot(sentence: str) -> Refused:
    """The request needs something that this model or text lacks; the message says what would provide it."""
    return Refused(409, "Impossible", sentence)


def unexpected(error: BaseException) -> Refused:
    """An internal error: details go to the terminal, and a one-sentence message to the page."""
    if isinstance(error, MemoryError) or "not enough memory" in str(error):
        return Refused(
            507,
            "OutOfMemory",
            "this machine's memory was not enough; read a shorter text, or only its beginning",
        )
    traceback.print_exception(error, file=sys.stderr)
    return own_fault()


def own_fault() -> Refused:
    """The response to an internal error."""
    return Refused(500, "InternalError", "the server had an internal error; see its terminal for details")


def status_of(error: UnmaskError) -> int:
    """The HTTP status: 4xx for an error of the request, 500 for one of the checkpoint or the machine."""
    if isinstance(error, Refused):
        return error.status
    if isinstance(error, TextError):
        return 422
    if isinstance(error, MissingExtra):
        return 409
    return 400 if isinstance(error, InvalidRequest) else 500


def problem_of(error: UnmaskError) -> Problem:
    """The error as a typed value; its kind defaults to the name of its class."""
    if isinstance(error, Refused):
        return Problem(error.kind, str(error))
    if isinstance(error, TextTooLong):
        return Problem(type(error).__name__, str(error), error.original_tokens, error.max_tokens)
    return Problem(type(error).__name__, str(error))


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
