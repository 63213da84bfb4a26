"""How an error becomes an answer: its HTTP status and its `Problem`."""

import sys
import traceback
from dataclasses import dataclass

from unmask.errors import InvalidRequest, MissingExtra, TextError, TextTooLong, UnmaskError


@dataclass(frozen=True)
class Problem:
    """Why a request was refused: a kind for programs, a sentence for people.

    ``total_tokens`` and ``max_tokens`` are set when a text is too long.
    """

    kind: str
    sentence: str
    total_tokens: int | None = None
    max_tokens: int | None = None


@dataclass(frozen=True)
class Failure:
    """The body of every answer that is not a success."""

    error: Problem


class Refused(UnmaskError):
    """A request that is refused before any model is asked; carries its HTTP status and kind."""

    def __init__(self, status: int, kind: str, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.kind = kind


def cannot(sentence: str) -> Refused:
    """Something this model, or this text, has not got; the sentence says what would have."""
    return Refused(409, "Impossible", sentence)


def unexpected(error: BaseException) -> Refused:
    """A fault of ours, told in the terminal and named to the page in a sentence."""
    if isinstance(error, MemoryError) or "not enough memory" in str(error):
        return Refused(
            507,
            "OutOfMemory",
            "this machine's memory was not enough; read a shorter text, or only its beginning",
        )
    traceback.print_exception(error, file=sys.stderr)
    return own_fault()


def own_fault() -> Refused:
    """What is said to whoever asked when the fault is ours."""
    return Refused(500, "InternalError", "the server met a fault of its own; its terminal says more")


def status_of(error: UnmaskError) -> int:
    """HTTP status: the request's fault is 4xx, the checkpoint's or the machine's is 500."""
    if isinstance(error, Refused):
        return error.status
    if isinstance(error, TextError):
        return 422
    if isinstance(error, MissingExtra):
        return 409
    return 400 if isinstance(error, InvalidRequest) else 500


def problem_of(error: UnmaskError) -> Problem:
    """The error as a typed value; its kind is the name of its class unless it says another."""
    if isinstance(error, Refused):
        return Problem(error.kind, str(error))
    if isinstance(error, TextTooLong):
        return Problem(type(error).__name__, str(error), error.original_tokens, error.max_tokens)
    return Problem(type(error).__name__, str(error))
