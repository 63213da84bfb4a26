"""What a route is, and the fields that many routes have."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from unmask.serve.errors import Surface
from unmask.serve.fields import Body, Flag, Schema, Text, Whole
from unmask.serve.service import Call, Service
from unmask.text import Truncation

Values = dict[str, Any]
"""The checked fields of a request."""

Handler = Callable[[Service, Call, Values], Awaitable[Any]]
"""From the fields of a request to the JSON value of its answer."""


@dataclass(frozen=True)
class PostRoute:
    """A path that takes a JSON object; its declarations check requests and are the OpenAPI document."""

    path: str
    surface: Surface
    handle: Handler
    body: Body
    answer: Schema
    """The schema of what it answers with 200."""


@dataclass(frozen=True)
class GetRoute:
    """A path that tells of the server."""

    path: str
    surface: Surface
    answer: Callable[[Service], Any]
    schema: Schema


MOST_NUMBERS = 1 << 22
"""How many numbers an answer with a vector for each token has: as JSON, each takes up to 13 bytes."""

MODEL = Text(about="the name of the model; the first that can do the task if it is missing")
DIMENSIONS = Whole(low=1, high=1 << 20, about="keep only so many numbers of each vector")
TRUNCATE = Flag(about="drop the end of texts that are too long, which are otherwise refused")
PROMPT_NAME = Text(about="which prompt of the model to put before texts; see /info")


def truncation_of(service: Service, values: Values) -> Truncation:
    """What to do with texts that are too long."""
    return service.truncation(values["truncate"])


def named(field: str, single: bool) -> Callable[[int], str]:
    """How errors name the text at an index of a field."""
    return (lambda _: field) if single else (lambda index: f"{field}[{index}]")
