"""The session, and texts: read, state, stop, resume, forget."""

import unmask
from unmask.explorer.api.describe import model_info, versions
from unmask.explorer.api.session_schemas import (
    Limits,
    Session,
    SessionRequest,
    StampRequest,
    StateRequest,
    TextRequest,
)
from unmask.explorer.api.tiles import TILE
from unmask.explorer.examples import EXAMPLES
from unmask.explorer.export.provenance import stamp
from unmask.explorer.routes.limits import MAX_CELLS, MAX_EDGES, MAX_WORDS, OVERVIEW_CELLS
from unmask.explorer.routes.route import Route, of_text
from unmask.explorer.sessions.context import AppContext
from unmask.explorer.sessions.documents import MAX_PDF_BYTES
from unmask.explorer.sessions.text_session import Spans, TextSession
from unmask.http.errors import Refused
from unmask.http.requests import MAX_BODY_BYTES, Request
from unmask.http.responses import Answer, json_answer, no_answer


def session(context: AppContext, request: Request) -> Answer:
    """``GET session``: the versions, the models and the limits."""
    limits = Limits(
        body_bytes=MAX_BODY_BYTES,
        pdf_bytes=MAX_PDF_BYTES,
        values_cells=MAX_CELLS,
        tile_cells=TILE,
        overview_cells=OVERVIEW_CELLS,
        words=MAX_WORDS,
        edges=MAX_EDGES,
        held_texts=context.texts.held_texts,
        held_bytes=context.texts.held_bytes,
    )
    models = tuple(model_info(place) for place in context.models.places)
    path = context.index.path
    index = None if path is None else path.resolve().name
    loads = context.loader is not None
    return json_answer(Session(unmask.__version__, versions(), models, limits, index, EXAMPLES, loads))


def read(context: AppContext, request: Request) -> Answer:
    """``POST texts``: the tokens at once; states and statistics follow in the background."""
    given = request.json()
    text, pair = given.get("text"), given.get("pair")
    if not isinstance(text, str) or not (pair is None or isinstance(pair, str)):
        raise Refused(400, "BadRequest", "the body must have a string `text`, and may have a string `pair`")
    too_long, index = given.get("too_long", "error"), given.get("model", 0)
    if too_long not in ("error", "cut"):
        raise Refused(400, "BadRequest", '`too_long` must be "error" or "cut"')
    if not isinstance(index, int) or isinstance(index, bool):
        raise Refused(400, "BadRequest", "`model` must be the number of a model")
    place, spans = context.models.at(index), _spans(given.get("global", []))
    return json_answer(context.texts.read(place, text, pair, too_long, spans).described)


def _spans(given: object) -> Spans:
    """Ranges of characters, sorted, each once."""

    def is_span(one: object) -> bool:
        return (
            isinstance(one, list)
            and len(one) == 2
            and all(isinstance(at, int) and not isinstance(at, bool) for at in one)
            and 0 <= one[0] < one[1]
        )

    if not isinstance(given, list) or not all(map(is_span, given)):
        raise Refused(400, "BadRequest", "`global` must be a list of ranges of characters, [start, end]")
    return tuple(sorted({(start, end) for start, end in given}))


def describe(reading: TextSession, request: Request) -> Answer:
    """``GET texts/{id}``."""
    return json_answer(reading.described)


def state(reading: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/state``."""
    return json_answer(reading.state())


def stamped(reading: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/stamp``: what its numbers are made with."""
    return json_answer(stamp(reading))


def stop(reading: TextSession, request: Request) -> Answer:
    """``POST texts/{id}/stop``: stop; measured layers are kept."""
    reading.stop()
    return json_answer(reading.state())


def go(reading: TextSession, request: Request) -> Answer:
    """``POST texts/{id}/go``: resume."""
    reading.go()
    return json_answer(reading.state())


def forget(context: AppContext, request: Request) -> Answer:
    """``DELETE texts/{id}``, held or not."""
    context.texts.forget(request.parts[0])
    return no_answer()


ROUTES = (
    Route.get(SessionRequest, session),
    Route("POST", "texts", read),
    Route.get(TextRequest, of_text(describe)),
    Route.get(StateRequest, of_text(state)),
    Route.get(StampRequest, of_text(stamped)),
    Route("POST", "texts/*/stop", of_text(stop)),
    Route("POST", "texts/*/go", of_text(go)),
    Route("DELETE", "texts/*", forget),
)
