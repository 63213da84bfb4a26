"""One file to hand over: the page with the answers of the paths that were looked at."""

from typing import get_args

from unmask.explorer.export.standalone_html import MOST_PATHS, saved_page
from unmask.explorer.export.views import ViewSelection, view_paths
from unmask.explorer.routes.edges import Special
from unmask.explorer.routes.route import AppContext, Route
from unmask.http.errors import Refused
from unmask.http.requests import Request
from unmask.http.responses import Answer
from unmask.interpret.attention.view import Weight


def export(context: AppContext, request: Request) -> Answer:
    """``POST export {paths, hash, title, look?}``: HTML that needs no server and no network.

    ``look``, ``{texts: [...], views: [...], layer, head, token, weight?, special?}``, adds what these
    views ask for.
    """
    body = request.json()
    paths, hash_, title = body.get("paths"), body.get("hash", ""), body.get("title", "unmask")
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise Refused(400, "BadRequest", "paths must be a list of paths of this API")
    if not isinstance(hash_, str) or not isinstance(title, str):
        raise Refused(400, "BadRequest", "hash and title must be strings")
    if "look" in body:
        paths = [*paths, *_of_views(context, body["look"])]
    if len(paths) > MOST_PATHS:
        raise Refused(400, "BadRequest", f"{len(paths):,} paths are more than the {MOST_PATHS:,} of one file")
    page = saved_page(context.answer, paths, hash_, title)
    return Answer(200, "text/html; charset=utf-8", page)


def _of_views(context: AppContext, given: object) -> list[str]:
    if not isinstance(given, dict):
        raise Refused(400, "BadRequest", "look must be an object")
    texts, views, token = given.get("texts"), given.get("views"), given.get("token")
    for listed in (texts, views):
        if not isinstance(listed, list) or not listed or not all(isinstance(one, str) for one in listed):
            raise Refused(400, "BadRequest", "look must list texts and views, as strings")
    numbers = [given.get("layer"), given.get("head"), 0 if token is None else token]
    if not all(type(number) is int for number in numbers):
        raise Refused(400, "BadRequest", "layer, head and token of look must be whole numbers")
    weight, special = given.get("weight", "raw"), given.get("special", "show")
    if weight not in get_args(Weight) or special not in get_args(Special):
        raise Refused(400, "BadRequest", "weight of look is raw or norm, and special is show or hide")
    look = ViewSelection(tuple(views), given["layer"], given["head"], token, weight, special)  # type: ignore[arg-type]
    return view_paths(context.answer, texts, look)  # type: ignore[arg-type]


ROUTES = (Route("POST", "export", export),)
