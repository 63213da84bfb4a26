"""Search: what the index holds, and the passages that it finds."""

from typing import Literal, get_args

from unmask.explorer.api.search_schemas import SearchIndexRequest, SearchRequest
from unmask.explorer.routes.limits import MAX_LISTED
from unmask.explorer.routes.route import Route
from unmask.explorer.sessions.context import AppContext
from unmask.http.requests import Request
from unmask.http.responses import Answer, json_answer
from unmask.search.options import Mode, Unit

MODES: tuple[Mode, ...] = get_args(Mode)
UNITS: tuple[Unit, ...] = get_args(Unit)
WHY: tuple[Literal["no", "shares", "yes"], ...] = ("no", "shares", "yes")


def index(context: AppContext, request: Request) -> Answer:
    """``GET index``."""
    return json_answer(context.index.described())


def search(context: AppContext, request: Request) -> Answer:
    """``GET search?text=&k=&mode=&unit=&why=``."""
    asked = SearchRequest(
        text=request.query.get("text", ""),
        k=request.number("k", 10, 1, MAX_LISTED),
        mode=request.choice("mode", MODES) if request.query.get("mode") else None,
        unit=request.choice("unit", UNITS),
        why=request.choice("why", WHY),
    )
    return json_answer(context.index.search(asked))


ROUTES = (Route.get(SearchIndexRequest, index), Route.get(SearchRequest, search))
