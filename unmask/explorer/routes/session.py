"""The session: its models, texts and PDF files; analyses in progress; stopping, resuming and forgetting."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import unmask
from unmask.errors import CheckpointError, MissingExtra
from unmask.explorer.page import EXAMPLES, MAX_PDF_BYTES, OTHER_SCRIPTS
from unmask.explorer.routes.route import (
    MAX_CELLS,
    MAX_EDGES,
    MAX_WORDS,
    OVERVIEW_CELLS,
    AppContext,
    Route,
    of_text,
)
from unmask.explorer.sessions.background import Analyses, Underway, UnderwayList, name_of
from unmask.explorer.sessions.described import ModelInfo, TextRead, model_info, versions
from unmask.explorer.sessions.loading import PageLoader
from unmask.explorer.sessions.provenance import Stamp, stamp
from unmask.explorer.sessions.texts import Spans, State, TextSession
from unmask.explorer.wire.page_request import PageRequest
from unmask.explorer.wire.tiles import TILE
from unmask.http.requests import MAX_BODY_BYTES, Request
from unmask.http.responses import Answer, Refused, json_answer, no_answer
from unmask.models.elmo import ElmoModel
from unmask.search.documents.pdf import pdf_documents
from unmask.search.documents.values import Document, Skipped


@dataclass(frozen=True)
class TextAnalysesRequest(PageRequest):
    """The analyses of a text that are in progress."""

    path = "texts/{text}/analyses"
    answer = UnderwayList

    text: str


@dataclass(frozen=True)
class AnalysesRequest(PageRequest):
    """The analyses in progress that belong to no single text."""

    path = "analyses"
    answer = UnderwayList


@dataclass(frozen=True)
class Limits:
    """What one answer, and the explorer as a whole, will hold."""

    body_bytes: int
    pdf_bytes: int
    values_cells: int
    tile_cells: int
    overview_cells: int
    words: int
    edges: int
    held_texts: int
    held_bytes: int


@dataclass(frozen=True)
class Session:
    """What the page requests first. ``versions`` names the packages that computed what is shown.

    ``index`` is the name of the folder that can be searched, if there is one. The page reads the first of
    ``examples`` if its address names no text. ``loads``: whether it can load other models.
    """

    version: str
    versions: dict[str, str]
    models: tuple[ModelInfo, ...]
    limits: Limits
    index: str | None
    examples: tuple[str, ...]
    loads: bool


@dataclass(frozen=True)
class SessionRequest(PageRequest):
    """The versions, the models and the limits."""

    path = "session"
    answer = Session


@dataclass(frozen=True)
class TextRequest(PageRequest):
    """One text as its model reads it."""

    path = "texts/{text}"
    answer = TextRead

    text: str


@dataclass(frozen=True)
class StampRequest(PageRequest):
    """What the numbers of a text are made with."""

    path = "texts/{text}/stamp"
    answer = Stamp

    text: str


@dataclass(frozen=True)
class StateRequest(PageRequest):
    """How far the background work on a text is."""

    path = "texts/{text}/state"
    answer = State

    text: str


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
    examples = (*EXAMPLES, *_readable(context))
    return json_answer(Session(unmask.__version__, versions(), models, limits, index, examples, loads))


def _readable(context: AppContext) -> tuple[str, ...]:
    """Texts in other scripts that the first model reads without an unknown token; none until it is loaded."""
    model = context.models.places[0].model
    if model is None or isinstance(model, ElmoModel):
        return ()
    unknown = model.tokenizer.special_tokens.get("unk")
    unknown_id = None if unknown is None else model.tokenizer.token_to_id(unknown)
    return tuple(
        text
        for text in OTHER_SCRIPTS
        if unknown_id not in model.tokenizer.encode(text, max_tokens=model.max_tokens, truncation="end").ids
    )


def read(context: AppContext, request: Request) -> Answer:
    """``POST texts``: the tokens at once; states and statistics follow in the background."""
    body = request.json()
    text, pair = body.get("text"), body.get("pair")
    if not isinstance(text, str) or not (pair is None or isinstance(pair, str)):
        raise Refused(400, "BadRequest", "the body must have a string `text`, and may have a string `pair`")
    too_long, index = body.get("too_long", "error"), body.get("model", 0)
    if too_long not in ("error", "cut"):
        raise Refused(400, "BadRequest", '`too_long` must be "error" or "cut"')
    if not isinstance(index, int) or isinstance(index, bool):
        raise Refused(400, "BadRequest", "`model` must be the number of a model")
    place, spans = context.models.at(index), _spans(body.get("global", []))
    return json_answer(context.texts.read(place, text, pair, too_long, spans).described)


def _spans(ranges: object) -> Spans:
    """Ranges of characters, sorted, each once."""

    def is_span(span: object) -> bool:
        return (
            isinstance(span, list)
            and len(span) == 2
            and all(isinstance(at, int) and not isinstance(at, bool) for at in span)
            and 0 <= span[0] < span[1]
        )

    if not isinstance(ranges, list) or not all(map(is_span, ranges)):
        raise Refused(400, "BadRequest", "`global` must be a list of ranges of characters, [start, end]")
    return tuple(sorted({(start, end) for start, end in ranges}))


def describe(session: TextSession, request: Request) -> Answer:
    """``GET texts/{id}``."""
    return json_answer(session.described)


def state(session: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/state``."""
    return json_answer(session.state())


def stamped(session: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/stamp``: what its numbers are made with."""
    return json_answer(stamp(session))


def stop(session: TextSession, request: Request) -> Answer:
    """``POST texts/{id}/stop``: stop; measured layers are kept."""
    session.stop()
    return json_answer(session.state())


def go(session: TextSession, request: Request) -> Answer:
    """``POST texts/{id}/go``: resume."""
    session.go()
    return json_answer(session.state())


def forget(context: AppContext, request: Request) -> Answer:
    """``DELETE texts/{id}``, held or not."""
    context.texts.forget(request.parts[0])
    return no_answer()


def preview(context: AppContext, request: Request) -> Answer:
    """``POST models/preview {name}``: its size and its architecture, before it is loaded."""
    loader, name = _loader(context), _name(request)
    with _refused():
        return json_answer(loader.preview(name))


def load(context: AppContext, request: Request) -> Answer:
    """``POST models {name}``: load it in the background; the session says how far it is."""
    loader, name = _loader(context), _name(request)
    with _refused():
        return json_answer(model_info(loader.add(context.models, name)), 202)


@contextmanager
def _refused() -> Iterator[None]:
    """Errors of a checkpoint are refusals here, not faults of the server."""
    try:
        yield
    except CheckpointError as error:
        raise Refused(409, type(error).__name__, str(error)) from None


def _loader(context: AppContext) -> PageLoader:
    if context.loader is None:
        raise Refused(
            403, "LoadingOff", "this explorer loads no other models; name them with --model when you start it"
        )
    return context.loader


def _name(request: Request) -> str:
    name = request.json().get("name")
    if not isinstance(name, str):
        raise Refused(400, "BadRequest", "the body must have a string `name`")
    return name


_one_at_a_time = threading.Lock()
"""PDFium does not support several threads."""


@dataclass(frozen=True)
class PdfText:
    """The text of a PDF file, page after page. ``without_text``: pages that hold a picture and no text."""

    text: str
    pages: int
    without_text: int


def pdf_text(raw: bytes, name: str) -> PdfText:
    """The text of a PDF file.

    Args:
        raw: the bytes of the file.
        name: what the file is called in messages.

    Raises:
        Refused: the file is too large, damaged or encrypted, it has no text, or the packages that read PDF
            files are not installed.
    """
    if len(raw) > MAX_PDF_BYTES:
        raise Refused(
            413, "BodyTooLarge", f"{name} has {len(raw):,} bytes; a PDF may have {MAX_PDF_BYTES:,}, not more"
        )
    try:
        with _one_at_a_time:
            parts = list(pdf_documents(raw, name))
    except MissingExtra as error:
        raise Refused(409, "MissingExtra", f"{name} was not read: {error}") from error
    documents = [part for part in parts if isinstance(part, Document)]
    skipped = [part for part in parts if isinstance(part, Skipped)]
    if not documents:
        raise Refused(422, "NoText", f"{name} was not read: {skipped[0].reason}")
    return PdfText(documents[0].text, len(documents[0].pages), len(skipped))


MAX_NAME = 100
"""Characters of a file's name in messages."""


def pdf(context: AppContext, request: Request) -> Answer:
    """``POST pdf?name=``: the text of the PDF file that is the body."""
    return json_answer(pdf_text(request.body, request.query.get("name", "the file")[:MAX_NAME]))


def of_a_text(session: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/analyses``."""
    return json_answer(_underway(session.analyses))


def of_no_text(context: AppContext, request: Request) -> Answer:
    """``GET analyses``."""
    return json_answer(_underway(context.analyses))


def stop_of_a_text(session: TextSession, request: Request) -> Answer:
    """``POST texts/{id}/analyses/{name}/stop``: those of that name; what is measured of the text stays."""
    session.analyses.stop(request.parts[1])
    return json_answer(_underway(session.analyses))


def stop_of_no_text(context: AppContext, request: Request) -> Answer:
    """``POST analyses/{name}/stop``."""
    context.analyses.stop(request.parts[0])
    return json_answer(_underway(context.analyses))


def _underway(analyses: Analyses) -> UnderwayList:
    return UnderwayList(
        tuple(
            Underway(
                name=name_of(key),
                phase=job.phase,
                what=job.what,
                done=job.done,
                total=job.total,
                seconds=round(job.seconds, 1),
                eta_s=None if job.eta_seconds is None else round(job.eta_seconds, 1),
            )
            for key, job in analyses.underway()
        )
    )


ROUTES = (
    Route.get(SessionRequest, session),
    Route("POST", "texts", read),
    Route.get(TextRequest, of_text(describe)),
    Route.get(StateRequest, of_text(state)),
    Route.get(StampRequest, of_text(stamped)),
    Route("POST", "texts/*/stop", of_text(stop)),
    Route("POST", "texts/*/go", of_text(go)),
    Route("DELETE", "texts/*", forget),
    Route("POST", "models/preview", preview),
    Route("POST", "models", load),
    Route("POST", "pdf", pdf),
    Route.get(TextAnalysesRequest, of_text(of_a_text)),
    Route.get(AnalysesRequest, of_no_text),
    Route("POST", "texts/*/analyses/*/stop", of_text(stop_of_a_text)),
    Route("POST", "analyses/*/stop", stop_of_no_text),
)
