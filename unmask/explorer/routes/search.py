"""Search: what the index holds, and the passages that it finds."""

from dataclasses import dataclass
from typing import Literal, get_args

from unmask.explorer.routes.route import MAX_LISTED, AppContext, Route
from unmask.explorer.sessions.opened_index import SearchIndex, SearchRequest
from unmask.explorer.wire.page_request import PageRequest
from unmask.http.requests import Request
from unmask.http.responses import Answer, json_answer
from unmask.search.options import Mode, Unit

MODES: tuple[Mode, ...] = get_args(Mode)
UNITS: tuple[Unit, ...] = get_args(Unit)
WHY: tuple[Literal["no", "shares", "yes"], ...] = ("no", "shares", "yes")


@dataclass(frozen=True)
class SearchIndexRequest(PageRequest):
    """What the index holds; asked again, it shows what was added since."""

    path = "index"
    answer = SearchIndex


def index(context: AppContext, request: Request) -> Answer:
    """``GET index``."""
    return json_answer(context.index.described())


def search(context: AppContext, request: Request) -> Answer:
    """``GET search?text=&k=&mode=&unit=&why=``."""
    query = SearchRequest(
        text=request.query.get("text", ""),
        k=request.number("k", 10, 1, MAX_LISTED),
        mode=request.choice("mode", MODES) if request.query.get("mode") else None,
        unit=request.choice("unit", UNITS),
        why=request.choice("why", WHY),
    )
    return json_answer(context.index.search(query))


ROUTES = (Route.get(SearchIndexRequest, index), Route.get(SearchRequest, search))
