"""How an error becomes an answer: its HTTP status and its `Problem`."""

from unmask.errors import InvalidRequest, TextError, TextTooLong, UnmaskError
from unmask.explorer.results import Problem


class Refused(UnmaskError):
    """A request that is refused before any model is asked; carries its HTTP status and kind."""

    def __init__(self, status: int, kind: str, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.kind = kind


def status_of(error: UnmaskError) -> int:
    """HTTP status: the request's fault is 4xx, the checkpoint's or the machine's is 500."""
    if isinstance(error, Refused):
        return error.status
    if isinstance(error, TextError):
        return 422
    return 400 if isinstance(error, InvalidRequest) else 500


def problem_of(error: UnmaskError) -> Problem:
    """The error as a typed value; its kind is the name of its class unless it says another."""
    if isinstance(error, Refused):
        return Problem(error.kind, str(error))
    if isinstance(error, TextTooLong):
        return Problem(type(error).__name__, str(error), error.total_tokens, error.max_tokens)
    return Problem(type(error).__name__, str(error))
