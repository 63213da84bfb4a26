"""What a route is: a method, a path with open parts, and a function that answers."""

from collections.abc import Callable
from dataclasses import dataclass

from unmask.explorer.api.page_request import PageRequest
from unmask.explorer.sessions.context import AppContext
from unmask.explorer.sessions.text_session import TextSession
from unmask.http.requests import Request
from unmask.http.responses import Answer

Handler = Callable[[AppContext, Request], Answer]


@dataclass(frozen=True)
class Route:
    """Open parts of ``path`` are written ``*``, as in ``texts/*/head/*/*``; they become `Request.parts`."""

    method: str
    path: str
    handler: Handler

    @classmethod
    def get(cls, request: type[PageRequest], handler: Handler) -> "Route":
        """The route of a declared request."""
        return cls("GET", request.route(), handler)

    def match(self, method: str, path: tuple[str, ...]) -> tuple[str, ...] | None:
        """The open parts of a path, or None where the route is another one."""
        wanted = self.path.split("/")
        if method != self.method or len(wanted) != len(path):
            return None
        pairs = list(zip(wanted, path, strict=True))
        if any(part not in ("*", given) for part, given in pairs):
            return None
        return tuple(given for part, given in pairs if part == "*")


def of_text(handler: Callable[[TextSession, Request], Answer]) -> Handler:
    """A handler of paths that begin with ``texts/*``: it is given that text."""

    def answer(context: AppContext, request: Request) -> Answer:
        return handler(context.texts.get(request.parts[0]), request)

    return answer


def head_of(reading: TextSession, request: Request) -> tuple[int, int]:
    """Layer and head, the second and third open part of a path."""
    layer = request.index(1, "layer", reading.layer_count)
    return layer, request.index(2, "head", reading.described.heads[layer])


def token_of(reading: TextSession, request: Request, default: int | None = None) -> int:
    """The token that the query names."""
    return request.number("token", default, 0, len(reading) - 1)
