"""Refusals of the server, and their bodies in the form that the clients of each group of routes read."""

import math
from typing import Any, Literal

from unmask.errors import EmptyText, InvalidRequest, MissingExtra, TextError, TextTooLong, UnmaskError
from unmask.http.responses import Refused

Surface = Literal["openai", "tei", "cohere"]
"""Whose clients a route is for."""


class BadField(Refused):
    """A field of the body with a wrong value; carries its name."""

    def __init__(self, param: str, sentence: str, status: int = 400, kind: str = "invalid_value") -> None:
        super().__init__(status, kind, sentence)
        self.param = param


class Busy(Refused):
    """The server cannot take the request now; says after how many seconds to try again."""

    def __init__(self, status: int, kind: str, sentence: str, retry_seconds: float) -> None:
        super().__init__(status, kind, sentence)
        self.retry_after = max(1, min(60, math.ceil(retry_seconds)))


class EmptyBatch(BadField):
    """A request without a text."""

    def __init__(self, param: str) -> None:
        super().__init__(param, f"{param} is empty; give at least one text", kind="empty")


class BackendError(Refused):
    """A model failed on a text; the details are in the server's log."""

    def __init__(self, sentence: str) -> None:
        super().__init__(500, "backend_error", sentence)


def status_of(error: Exception, surface: Surface) -> int:
    """The HTTP status of an error."""
    if isinstance(error, Refused):
        return 424 if isinstance(error, BackendError) and surface == "tei" else error.status
    if isinstance(error, TextTooLong):
        return 413
    if isinstance(error, TextError | InvalidRequest):
        return 400
    if isinstance(error, MissingExtra):
        return 501
    return 424 if surface == "tei" else 500


def kind_of(error: UnmaskError) -> str:
    """A short name for programs."""
    if isinstance(error, Refused):
        return error.kind
    if isinstance(error, TextTooLong):
        return "context_length_exceeded"
    if isinstance(error, TextError):
        return "empty" if isinstance(error, EmptyText) else "invalid_text"
    return "invalid_value" if isinstance(error, InvalidRequest) else "backend_error"


def body_of(error: UnmaskError, surface: Surface) -> dict[str, Any]:
    """The JSON body of an error."""
    status, kind, sentence = status_of(error, surface), kind_of(error), str(error)
    if isinstance(error, TextTooLong):  # its remedy is for Python and the command line
        sentence = sentence.partition(";")[0] + "; shorten it, or set truncate to true"
    param = getattr(error, "param", None)
    if surface == "openai":
        return {"error": {"message": sentence, "type": _openai_type(status), "param": param, "code": kind}}
    if surface == "cohere":
        return {"message": sentence}
    return {"error": sentence, "error_type": _tei_type(status, kind)}


def error_schema(surface: Surface) -> dict[str, Any]:
    """The JSON schema of `body_of`."""
    text: dict[str, Any] = {"type": "string"}

    def record(**of: Any) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": of,
            "required": list(of),
            "additionalProperties": False,
        }

    if surface == "openai":
        param = {"anyOf": [text, {"type": "null"}]}
        return record(error=record(message=text, type=text, param=param, code=text))
    return record(message=text) if surface == "cohere" else record(error=text, error_type=text)


def headers_of(error: UnmaskError) -> dict[str, str]:
    """The headers that an error adds to its answer."""
    if isinstance(error, Busy):
        return {"Retry-After": str(error.retry_after)}
    return {"WWW-Authenticate": "Bearer"} if status_of(error, "openai") == 401 else {}


def _openai_type(status: int) -> str:
    if status in (401, 403):
        return "authentication_error"
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"


def _tei_type(status: int, kind: str) -> str:
    if status == 429:
        return "Overloaded"
    if status in (503, 504):
        return "Unhealthy"
    if status == 424 or status >= 500:
        return "Backend"
    return {"empty": "Empty", "invalid_text": "Tokenizer"}.get(kind, "Validation")
