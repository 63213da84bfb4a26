"""How a request of the page is declared: its path, its parameters and its answer, in one place.

A declaration is a frozen dataclass that extends `PageRequest`. It stands beside its answer and its handler,
in one of `unmask.explorer.routes`. The route of the API, the paths that a saved page holds and the functions
of ``web/src/api/requests.ts`` are made from it, so that a path has one spelling.
"""

import math
import re
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Generic, Literal, TypeVar
from urllib.parse import quote

Json = Any
"""A value that another part defines; the page reads it with types of its own."""


Meta = TypeVar("Meta")


class Arrays(Generic[Meta]):
    """As an answer: named arrays as bytes (`unmask.explorer.wire.binary`), with a ``meta`` of that class.

    Of a typed result the fields that are no arrays; see `unmask.explorer.wire.binary.typed_answer`.
    """


@dataclass(frozen=True)
class PageRequest:
    """One GET of the API. ``str`` is its path.

    Fields that ``path`` names in braces are parts of the path. The others are the query, in the order of the
    fields; one that is None is left out.
    """

    path: ClassVar[str]
    answer: ClassVar[Any]
    """The dataclass of the JSON that answers, or `Arrays` of its meta."""
    grows: ClassVar[bool] = False
    """Whether the answer grows while the text is measured."""
    saved_in: ClassVar[tuple[str, ...]] = ()
    """Views whose saved page holds the answer for the chosen text, head and token, and the defaults of all
    other parameters. `unmask.explorer.export.views` adds what a view asks for beyond that."""
    needs: ClassVar[Literal["can_fill", "can_classify", "takes_labels"] | None] = None
    """The ability of a model that the request needs; a field of `ModelInfo`."""

    @classmethod
    def route(cls) -> str:
        """The path with ``*`` for its open parts, as routes have it."""
        return re.sub(r"\{\w+\}", "*", cls.path)

    @classmethod
    def query(cls) -> tuple[str, ...]:
        """Names of the query's values, in order."""
        return tuple(field.name for field in fields(cls) if f"{{{field.name}}}" not in cls.path)

    def __str__(self) -> str:
        path = self.path.format_map(
            {field.name: spelled(getattr(self, field.name)) for field in fields(self)}
        )
        values = ((name, getattr(self, name)) for name in self.query())
        query = "&".join(f"{name}={spelled(value)}" for name, value in values if value is not None)
        return f"{path}?{query}" if query else path


def spelled(value: object) -> str:
    """A value in a path: a range as ``start:stop``, a fraction with at most two decimals, text with escapes.

    ``web/src/api/request.ts`` spells values alike; ``web/test/spelling.json`` holds both to it.
    """
    if isinstance(value, tuple):
        return ":".join(map(spelled, value))
    if isinstance(value, float):
        return f"{math.floor(value * 100 + 0.5) / 100:.12g}"
    # Half of a surrogate pair, which a truncated text may end with, has no UTF-8.
    whole = str(value).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return quote(whole, safe="!~*'()")
