"""Convert an error to a response: its HTTP status and its `Problem`."""

import sys
import traceback
from dataclasses import dataclass

from unmask.errors import InvalidRequest, MissingExtra, TextError, TextTooLong, UnmaskError


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
