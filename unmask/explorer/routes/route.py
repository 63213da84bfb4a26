"""Routes, each a method, a path with open parts and a function that answers; the context they share."""

from collections.abc import Callable
from dataclasses import dataclass

from unmask.explorer.sessions.background import Analyses, Corpora
from unmask.explorer.sessions.loading import PageLoader
from unmask.explorer.sessions.models import Models
from unmask.explorer.sessions.opened_index import OpenedIndex
from unmask.explorer.sessions.texts import Texts, TextSession
from unmask.explorer.wire.page_request import PageRequest
from unmask.http.requests import Request
from unmask.http.responses import Answer
from unmask.http.worker import Worker


@dataclass(frozen=True)
class AppContext:
    """The context of all routes: the models, the texts, and the worker that runs both."""

    models: Models
    texts: Texts
    worker: Worker
    analyses: Analyses
    """Analyses that do not belong to a single text."""
    index: OpenedIndex
    corpora: Corpora
    loader: PageLoader | None
    """Loads models that the page names; None where it may name none."""
    answer: Callable[[str], Answer]
    """The answer of the API to a GET of a path."""


Handler = Callable[[AppContext, Request], Answer]


@dataclass(frozen=True)
class Route:
    """Open parts of ``path`` are written ``*``, as in ``texts/*/head/*/*``; they become `Request.parts`."""

    method: str
    path: str
    handler: Handler
    request: type[PageRequest] | None = None
    """Its declaration, if it is a GET of the page."""

    @classmethod
    def get(cls, request: type[PageRequest], handler: Handler) -> "Route":
        """The route of a declared request."""
        return cls("GET", request.route(), handler, request)

    def match(self, method: str, path: tuple[str, ...]) -> tuple[str, ...] | None:
        """The open parts of a path, or None where the route is another one."""
        pattern = self.path.split("/")
        if method != self.method or len(pattern) != len(path):
            return None
        pairs = list(zip(pattern, path, strict=True))
        if any(part not in ("*", part_of_path) for part, part_of_path in pairs):
            return None
        return tuple(part_of_path for part, part_of_path in pairs if part == "*")


def of_text(handler: Callable[[TextSession, Request], Answer]) -> Handler:
    """A handler of paths that begin with ``texts/*``: it is given that text."""

    def answer(context: AppContext, request: Request) -> Answer:
        return handler(context.texts.get(request.parts[0]), request)

    return answer


def head_of(session: TextSession, request: Request) -> tuple[int, int]:
    """Layer and head, the second and third open part of a path."""
    layer = request.index(1, "layer", session.layer_count)
    return layer, request.index(2, "head", session.described.heads[layer])


def token_of(session: TextSession, request: Request, default: int | None = None) -> int:
    """The token that the query names."""
    return request.number("token", default, 0, len(session) - 1)


MAX_CELLS = 1 << 20
"""Exact values: 1,024 x 1,024, or some rows of a very long text; 4 MiB."""
OVERVIEW_CELLS = 32
"""Cells along the side of a thumbnail."""
MAX_WORDS = 2048
"""Words along the side of a map between words: 16 MiB."""
MAX_EDGES = 1 << 20
"""Edges of all heads of all layers that the page asks for at once: 8 MiB in one answer a layer."""
MAX_LISTED = 100
"""Predictions, or sink tokens, of one answer."""
MAX_DRAWN_CELLS = 1 << 22
"""Probabilities of a tile that is drawn as a short question; of more, other questions go first."""
