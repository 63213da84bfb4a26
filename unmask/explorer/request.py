"""Reading a request: its path, its query and its body, each value checked against its limits."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from unmask.errors import InvalidRequest
from unmask.explorer.problems import Refused

MAX_BODY_BYTES = 1 << 20
"""Longest request body: 1 MiB, far more than any model here reads."""

_RANGE = re.compile(r"([0-9]{1,9}):([0-9]{1,9})")

Choice = TypeVar("Choice", bound=str)


@dataclass(frozen=True)
class Request:
    """One request: the parts of its path that a route left open, its query, and its body."""

    parts: tuple[str, ...]
    query: Mapping[str, str]
    body: bytes = b""

    def index(self, at: int, name: str, count: int) -> int:
        """A part of the path as a number in ``0 <= index < count``."""
        return index(name, self.parts[at], count)

    def number(self, name: str, default: int | None, low: int, high: int) -> int:
        """A whole number of the query from ``low`` to ``high``; without a default it must be there."""
        given = self.query.get(name)
        if given is None and default is not None:
            return default
        if given is None or not re.fullmatch(r"[0-9]{1,9}", given) or not low <= int(given) <= high:
            said = "is missing" if given is None else f"is {given!r}"
            raise InvalidRequest(f"{name} {said}; it must be a whole number from {low} to {high}")
        return int(given)

    def share(self, name: str, default: float) -> float:
        """A number of the query between 0 and 1."""
        given = self.query.get(name)
        if given is None:
            return default
        if not re.fullmatch(r"[0-9]*\.?[0-9]{1,12}", given) or not 0 <= float(given) <= 1:
            raise InvalidRequest(f"{name} is {given!r}; it must be a number from 0 to 1")
        return float(given)

    def choice(self, name: str, allowed: tuple[Choice, ...]) -> Choice:
        """One of some words of the query; the first of them where it is left out."""
        given = self.query.get(name, allowed[0])
        if given not in allowed:
            raise InvalidRequest(f"{name} is {given!r}; it must be one of {', '.join(allowed)}")
        return given

    def range(self, name: str, tokens: int) -> slice:
        """A range ``start:stop`` of tokens, not empty and inside the text; all of them where left out."""
        given = self.query.get(name)
        if given is None:
            return slice(0, tokens)
        match = _RANGE.fullmatch(given)
        start, stop = (int(match[1]), int(match[2])) if match else (0, 0)
        if not start < stop <= tokens:
            raise InvalidRequest(
                f"{name} must be a range start:stop with 0 <= start < stop <= {tokens}, not {given!r}"
            )
        return slice(start, stop)

    def json(self) -> dict[str, Any]:
        """The body, an object in JSON."""
        if len(self.body) > MAX_BODY_BYTES:
            raise Refused(413, "BodyTooLarge", f"a request may hold {MAX_BODY_BYTES:,} bytes, not more")
        try:
            given = json.loads(self.body)
        except (ValueError, RecursionError):
            raise Refused(400, "BadRequest", "the body is not valid JSON") from None
        if not isinstance(given, dict):
            raise Refused(400, "BadRequest", "the body must be a JSON object")
        return given


def index(name: str, given: str, count: int) -> int:
    """A number in ``0 <= index < count``, written in digits."""
    if not (given.isascii() and given.isdigit() and len(given) <= 9 and int(given) < count):
        raise InvalidRequest(f"{name} must be a number from 0 to {count - 1}, not {given!r}")
    return int(given)
