"""What a route is."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from unmask.serve.errors import Surface
from unmask.serve.service import Call, Service

Handler = Callable[[Service, Call, dict[str, Any]], Awaitable[Any]]
"""From the body of a request to the JSON value of its answer."""


@dataclass(frozen=True)
class PostRoute:
    """A path that takes a JSON object."""

    path: str
    surface: Surface
    handle: Handler


def named(field: str, single: bool) -> Callable[[int], str]:
    """How errors name the text at an index of a field."""
    return (lambda _: field) if single else (lambda index: f"{field}[{index}]")
