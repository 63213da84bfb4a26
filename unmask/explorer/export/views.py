"""What a saved page must hold so that its views work, as requests of the page; the route that saves one."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any, get_args

from unmask.errors import InvalidRequest
from unmask.explorer.export.live_model import live_model
from unmask.explorer.export.standalone_html import MOST_PATHS, Get, saved_page
from unmask.explorer.page import IN_DRAWER, OF_A_TEXT, SAVED, fragment
from unmask.explorer.routes import every_request
from unmask.explorer.routes.attribution import AttributionRequest, FeaturesRequest, RolloutRequest
from unmask.explorer.routes.compare import CompareRequest
from unmask.explorer.routes.corpus import CorpusHeadRequest, CorpusHeadsRequest, CorpusRequest
from unmask.explorer.routes.findings import MeasuredFindingsRequest
from unmask.explorer.routes.heads import HeadsRequest, PatternsRequest
from unmask.explorer.routes.live import MAX_LIVE_TOKENS, LiveRequest
from unmask.explorer.routes.maps import (
    EdgesRequest,
    OverviewRequest,
    PairEdgesRequest,
    Pool,
    Special,
    TileRequest,
    ValuesRequest,
)
from unmask.explorer.routes.route import AppContext, Route
from unmask.explorer.routes.session import SessionRequest, StampRequest, StateRequest, TextRequest
from unmask.explorer.routes.tasks import TaskPredictionRequest
from unmask.explorer.routes.tour import ChapterRequest, TourRequest
from unmask.explorer.routes.words import AblationRequest, WordMapRequest
from unmask.explorer.wire.binary import unpack
from unmask.explorer.wire.page_request import PageRequest
from unmask.explorer.wire.tiles import TILE
from unmask.http.requests import Request
from unmask.http.responses import Answer, Refused, accepted, plain
from unmask.interpret.attention.rectangles import Over
from unmask.interpret.attention.view import Weight
from unmask.interpret.effects.attribution import Fusion

VALUES_AT_ONCE = 65_536
"""Exact values in one request of the page: as many whole rows as that holds."""
MOST_ROWS_TOKENS = 1024
"""Longer texts keep exact values of some rows alone; tiles show the rest."""
MOST_TILES = 85
"""Tiles of one head: all levels of 2,048 tokens."""
ALL_HEADS_BYTES = 4 << 20
"""Every head is kept where that needs no more: in every attention that a map offers, or as looked at."""
ALL_ATTENTIONS_HEADS = MOST_PATHS // 24
"""Each head has twelve paths then; they may be half of a file's."""
TOKEN_CELL_BYTES = 5
"""Of one cell of a map over tokens: its code in a tile and its exact value."""
WORD_CELL_BYTES = 4
ALL_ROLLOUTS_TOKENS = 64
ALL_POOLED_TOKENS = 128
"""Texts of up to so many tokens keep the heads of the chosen layer, and all heads, as one map."""
MOST_SAVED_WORDS = 1024
"""Longer texts keep the map between words only if it was looked at: 4 bytes a cell, 6 MB in a file."""
ALL_WORD_MAPS = 256
"""Texts of up to so many words keep it by both weights, with and without special tokens."""
TOUR_CHARACTERS = 600
"""Of the text, in UTF-16, that the page takes to the tour."""

Json = dict[str, Any]


@dataclass(frozen=True)
class ViewSelection:
    """The views, the head and the token that the page shows when it is opened."""

    views: tuple[str, ...] = OF_A_TEXT
    layer: int = 0
    head: int = 0
    token: int | None = None
    """None: the first mask of the text, else its first token."""
    weight: Weight = "raw"
    special: Special = "show"

    def __post_init__(self) -> None:
        unknown = [view for view in self.views if view not in SAVED]
        if unknown or not self.views:
            raise InvalidRequest(
                f"there is no view {unknown[0] if unknown else ''!r}; there are {', '.join(SAVED)}"
            )


def address(look: ViewSelection, reads: Sequence[Json], *, cut: bool) -> str:
    """The state of the page as behind ``#``; ``reads`` are the texts as the API described them."""
    first = reads[0]
    fields: dict[str, object] = {"text": first["text"], "pair": first["pair"]}
    fields |= {"model": first["model"], "beside": reads[1]["model"] if len(reads) > 1 else None}
    fields |= {"cut": "1" if cut else None, "view": look.views[0]}
    fields |= {"layer": look.layer, "head": look.head, "query": look.token}
    return fragment(fields)


def view_paths(get: Get, texts: Sequence[str], look: ViewSelection) -> list[str]:
    """All paths that the views of a look ask for.

    Args:
        get: the answer of a path of the API.
        texts: ids of one text, or of the same in two models; measured to their ends.
        look: the views and the head, both of the first model.

    Raises:
        InvalidRequest: no such layer, head or token.
        Refused: a text is not held.
    """
    reads = [plain(get(str(TextRequest(text)))) for text in texts]
    model = plain(get(str(SessionRequest())))["models"][reads[0]["model_index"]]
    _check(look, reads[0])
    requests: list[PageRequest] = [
        request(described["id"])
        for described in reads
        for request in (TextRequest, StateRequest, StampRequest, HeadsRequest)
    ]
    if model["can_classify"]:
        requests.append(TaskPredictionRequest(reads[0]["id"]))
    page = _ExportRequests(
        get, reads, model, look, question_token(reads[0]) if look.token is None else look.token
    )
    for view in look.views:
        for request in every_request():
            if view in request.saved_in:
                requests += _of_selection(request, page)
        if view in _BEYOND_SELECTION:
            requests += _BEYOND_SELECTION[view](page)
        if view in IN_DRAWER and reads[0]["heads"][0]:
            requests += _canvas(page)
    return list(dict.fromkeys(map(str, requests)))


def question_token(described: Json) -> int:
    """The token that is asked about where none is chosen: the first mask of the text, else its first."""
    pieces = (token["piece"].lower() if token["special"] else "" for token in described["tokens"])
    return next((at for at, piece in enumerate(pieces) if piece.strip("[]<>|_") == "mask"), 0)


def _check(look: ViewSelection, described: Json) -> None:
    choices = [("layer", look.layer, described["layers"])]
    if 0 <= look.layer < described["layers"]:
        choices.append(("head", look.head, described["heads"][look.layer]))
    if look.token is not None:
        choices.append(("token", look.token, len(described["tokens"])))
    for name, value, count in choices:
        if not 0 <= value < count:
            raise InvalidRequest(f"{name} is {value}; {described['model']} has 0 to {count - 1} here")


@dataclass(frozen=True)
class _ExportRequests:
    """The texts, the model and the selection that paths are made from."""

    get: Get
    reads: list[Json]
    model: Json
    look: ViewSelection
    token: int

    @property
    def described(self) -> Json:
        return self.reads[0]

    @property
    def text(self) -> str:
        return str(self.described["id"])

    @property
    def tokens(self) -> int:
        return len(self.described["tokens"])

    @property
    def chosen(self) -> tuple[int, int]:
        return self.look.layer, self.look.head

    @property
    def heads(self) -> list[tuple[int, int]]:
        """Heads that are kept whole: all of a short text."""
        if self._cells(TOKEN_CELL_BYTES, 0) > ALL_HEADS_BYTES:
            return [self.chosen]
        return [(layer, head) for layer, heads in enumerate(self.described["heads"]) for head in range(heads)]

    def _cells(self, token_cell: int, word_cell: int) -> int:
        """Bytes of one map of every head."""
        cells = token_cell * self.tokens**2 + word_cell * len(self.described["words"]) ** 2
        return sum(self.described["heads"]) * cells

    @property
    def attentions(self) -> list[tuple[Weight, Special]]:
        """The attentions of `heads` that are kept: of a short text all of the map, else the shown one."""
        offered = list(product(get_args(Weight), get_args(Special)))
        few = sum(self.described["heads"]) <= ALL_ATTENTIONS_HEADS
        if few and len(offered) * self._cells(TOKEN_CELL_BYTES, WORD_CELL_BYTES) <= ALL_HEADS_BYTES:
            return offered
        return [(self.look.weight, self.look.special)]

    @property
    def edge_layers(self) -> list[int]:
        """Layers whose edges are kept: all of a short text."""
        return list(dict.fromkeys(layer for layer, _ in self.heads))

    def rows(
        self, layer: int, head: int, weight: Weight = "raw", special: Special = "show"
    ) -> Iterator[PageRequest]:
        """Exact rows in the blocks of the page: all of a text that is not long, else those of the token."""
        height = max(1, min(self.tokens, VALUES_AT_ONCE // self.tokens))
        starts = range(0, self.tokens, height)
        if self.tokens > MOST_ROWS_TOKENS:
            starts = range(self.token // height * height, self.token + 1, height)
        for start in starts:
            rows = start, min(self.tokens, start + height)
            yield ValuesRequest(self.text, layer, head, rows, (0, self.tokens), weight, special=special)

    def pooled(self) -> Iterator[PageRequest]:
        """Maps of many heads as one, of a short text: of the layer that is looked at, and of all."""
        weight, special = self.look.weight, self.look.special
        for over in get_args(Over) if self.tokens <= ALL_POOLED_TOKENS else ():
            layer = 0 if over.startswith("all") else self.look.layer
            for request in (
                *self.tiles(layer, 0, "max", weight, special),
                *self.rows(layer, 0, weight, special),
            ):
                yield replace(request, over=over)  # type: ignore[call-arg]

    def tiles(
        self, layer: int, head: int, pool: Pool = "max", weight: Weight = "raw", special: Special = "show"
    ) -> Iterator[PageRequest]:
        for level, y, x in _tiles(self.tokens):
            # Single cells are what they are in either way of pooling; the page asks for them by the first.
            yield TileRequest(self.text, layer, head, level, y, x, pool if level else "max", weight, special)


def _of_selection(request: type[PageRequest], page: _ExportRequests) -> Iterator[PageRequest]:
    """A request for what is looked at: for every head that is kept, where it is about a head."""
    names = {field.name for field in fields(request)}
    if request.needs is not None and not page.model[request.needs]:
        return
    chosen = {"text": page.text, "token": page.token, "model": page.described["model_index"]}
    for layer, head in page.heads if "head" in names else [page.chosen]:
        values = {**chosen, "layer": layer, "head": head}
        yield request(**{name: value for name, value in values.items() if name in names})


def _heads(page: _ExportRequests) -> Iterator[PageRequest]:
    for weight in get_args(Weight):
        for pool in get_args(Pool):
            for special in get_args(Special):
                yield OverviewRequest(page.text, weight, pool, special)
    for layer in page.edge_layers:
        for weight in get_args(Weight):
            yield EdgesRequest(page.text, layer, weight, "hide")


def _canvas(page: _ExportRequests) -> Iterator[PageRequest]:
    """The thumbnails of all heads, and what they show of the token pointed at."""
    yield OverviewRequest(page.text)
    described = page.described
    if page.tokens <= MAX_LIVE_TOKENS and not described["pair"] and not described["global_spans"]:
        yield LiveRequest(described["model_index"], described["text"])


def _overview(page: _ExportRequests) -> Iterator[PageRequest]:
    yield from _canvas(page)
    # The word that is masked, where the model predicts words.
    yield MeasuredFindingsRequest(page.text, page.look.token if page.model["can_fill"] else None)


def _tokens(page: _ExportRequests) -> Iterator[PageRequest]:
    for weight in get_args(Weight):
        yield EdgesRequest(page.text, page.chosen[0], weight, "hide")


def _head(page: _ExportRequests) -> Iterator[PageRequest]:
    model, chosen = page.described["model_index"], page.chosen
    for special in get_args(Special):
        yield OverviewRequest(page.text, special=special)
    if len(page.reads) > 1:
        yield CompareRequest(page.reads[0]["id"], page.reads[1]["id"])
    texts = plain(page.get(str(CorpusRequest(model))))["texts"]
    heads = page.heads
    if texts:
        yield CorpusHeadsRequest(model, texts)
        size = len(accepted(page.get(str(CorpusHeadRequest(model, *chosen, texts)))).data)
        heads = heads if size * len(heads) <= ALL_HEADS_BYTES else [chosen]
    for layer, head in heads:
        yield EdgesRequest(page.text, layer, "raw", "hide")
        yield AblationRequest(page.text, layer, head, None, "zero", "embedding")
        if page.model["can_fill"]:
            yield AblationRequest(page.text, layer, head, page.token, "zero", "word")
        if texts:
            yield CorpusHeadRequest(model, layer, head, texts)


def _map(page: _ExportRequests) -> Iterator[PageRequest]:
    layer, head = page.chosen
    yield from _canvas(page)
    for weight in get_args(Weight):
        for pool in get_args(Pool):
            yield from page.tiles(layer, head, pool, weight)
        yield from page.rows(layer, head, weight)
        yield from page.rows(layer, head, weight, "hide")
        yield from page.tiles(layer, head, "max", weight, "hide")
    yield EdgesRequest(page.text, layer, "raw", "hide")
    yield EdgesRequest(page.text, layer, "norm", "hide")
    if len(page.described["words"]) <= MOST_SAVED_WORDS:
        yield WordMapRequest(page.text, layer, head)
    if len(page.described["words"]) <= ALL_WORD_MAPS:
        for weight in get_args(Weight):
            for special in get_args(Special):
                yield WordMapRequest(page.text, layer, head, weight, special)
    yield from page.pooled()
    yield from (PatternsRequest(page.text, layer) for layer in page.edge_layers)
    attentions = page.attentions
    for layer, head in page.heads:
        for weight, special in attentions:
            yield from page.tiles(layer, head, "max", weight, special)
            yield from page.rows(layer, head, weight, special)
            if len(attentions) > 1:
                yield WordMapRequest(page.text, layer, head, weight, special)
            if special == "hide":
                yield EdgesRequest(page.text, layer, weight, special)
        # One cell, by which the page learns of what parts the scores are sums.
        yield ValuesRequest(page.text, layer, head, (0, 1), (0, 1))


def _tiles(tokens: int) -> list[tuple[int, int, int]]:
    """Tiles (level, y, x), the coarsest first, as many levels as `MOST_TILES` holds."""
    level = 0
    while tokens / 2**level > TILE:
        level += 1
    tiles: list[tuple[int, int, int]] = []
    for zoom in range(level, -1, -1):
        side = math.ceil(tokens / 2**zoom / TILE)
        if len(tiles) + side * side > MOST_TILES:
            break
        tiles += [(zoom, y, x) for y in range(side) for x in range(side)]
    return tiles


def _flow(page: _ExportRequests) -> Iterator[PageRequest]:
    yield from _canvas(page)
    for layer in page.edge_layers:
        for weight in get_args(Weight):
            for special in get_args(Special):
                yield EdgesRequest(page.text, layer, weight, special)
            if page.described["pair"] is not None and len(page.heads) > 1:
                yield PairEdgesRequest(page.text, layer, weight)


def _paths(page: _ExportRequests) -> Iterator[PageRequest]:
    text, token = page.text, page.token
    for fusion in get_args(Fusion):
        yield RolloutRequest(text, token, fusion)
    yield RolloutRequest(text, None, "mean")
    if page.tokens <= ALL_ROLLOUTS_TOKENS:
        yield from (RolloutRequest(text, target, "mean") for target in range(page.tokens))
    if page.model["can_fill"]:
        yield AttributionRequest(text, token, "word")
    if page.model["can_classify"]:
        yield AttributionRequest(text, token, "class")
    yield AttributionRequest(text, token, "embedding")


def _features(page: _ExportRequests) -> Iterator[PageRequest]:
    layers = page.described["layers"]
    yield FeaturesRequest(page.text, layers // 2, "embedding")


def _compare(page: _ExportRequests) -> Iterator[PageRequest]:
    if len(page.reads) < 2:
        return
    request = CompareRequest(page.reads[0]["id"], page.reads[1]["id"])
    yield request
    _, meta = unpack(accepted(page.get(str(request))).data)
    match = [pair for pair in meta["matches"] if tuple(pair["a"]) == page.chosen]
    other = tuple(match[0]["b"]) if match else (0, 0)
    for special in get_args(Special):
        for described, (layer, head) in zip(page.reads, (page.chosen, other), strict=True):
            yield WordMapRequest(described["id"], layer, head, special=special)
    # Shown until the page knows which head matches.
    yield WordMapRequest(page.reads[1]["id"], 0, 0)


def _tour(page: _ExportRequests) -> Iterator[PageRequest]:
    # The page takes the first characters of the text, counted in UTF-16.
    units = page.described["text"].encode("utf-16-le", "surrogatepass")[: 2 * TOUR_CHARACTERS]
    text = units.decode("utf-16-le", "surrogatepass")
    for chapter in plain(page.get(str(TourRequest())))["chapters"]:
        yield ChapterRequest(chapter["id"], page.described["model_index"], text)


_BEYOND_SELECTION: dict[str, Callable[[_ExportRequests], Iterator[PageRequest]]] = {
    "overview": _overview,
    "tokens": _tokens,
    "heads": _heads,
    "head": _head,
    "map": _map,
    "flow": _flow,
    "paths": _paths,
    "features": _features,
    "compare": _compare,
    "tour": _tour,
}
"""Requests of views beyond those that name them in `PageRequest.saved_in`."""


def export(context: AppContext, request: Request) -> Answer:
    """``POST export {paths, hash, title, views?, look?, live?}``: HTML that needs no server and no network.

    ``views`` are those that the page offers besides those of ``look``.

    ``look``, ``{texts: [...], views: [...], layer, head, token, weight?, special?}``, adds what these
    views ask for. ``live`` is the number of a model that is put into the file.
    """
    body = request.json()
    paths, hash_, title = body.get("paths"), body.get("hash", ""), body.get("title", "unmask")
    views = body.get("views", [])
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise Refused(400, "BadRequest", "paths must be a list of paths of this API")
    if not isinstance(views, list) or not all(isinstance(view, str) for view in views):
        raise Refused(400, "BadRequest", "views must be a list of names of views")
    if not isinstance(hash_, str) or not isinstance(title, str):
        raise Refused(400, "BadRequest", "hash and title must be strings")
    if "look" in body:
        paths = [*paths, *_of_views(context, body["look"])]
    if len(paths) > MOST_PATHS:
        raise Refused(400, "BadRequest", f"{len(paths):,} paths are more than the {MOST_PATHS:,} of one file")
    looked = body["look"]["views"] if "look" in body else []
    live = None if body.get("live") is None else _live(context, body["live"])
    views = dict.fromkeys([*views, *looked])
    page = saved_page(context.answer, paths, hash_, title, views=tuple(views), live=live)
    return Answer(200, "text/html; charset=utf-8", page)


def _live(context: AppContext, index: object) -> str:
    if type(index) is not int:
        raise Refused(400, "BadRequest", "live must be the number of a model")
    return live_model(context.models.at(index).need(), index=index)


def _of_views(context: AppContext, selection: object) -> list[str]:
    if not isinstance(selection, dict):
        raise Refused(400, "BadRequest", "look must be an object")
    texts, views, token = selection.get("texts"), selection.get("views"), selection.get("token")
    for listed in (texts, views):
        if not isinstance(listed, list) or not listed or not all(isinstance(name, str) for name in listed):
            raise Refused(400, "BadRequest", "look must list texts and views, as strings")
    numbers = [selection.get("layer"), selection.get("head"), 0 if token is None else token]
    if not all(type(number) is int for number in numbers):
        raise Refused(400, "BadRequest", "layer, head and token of look must be whole numbers")
    weight, special = selection.get("weight", "raw"), selection.get("special", "show")
    if weight not in get_args(Weight) or special not in get_args(Special):
        raise Refused(400, "BadRequest", "weight of look is raw or norm, and special is show or hide")
    look = ViewSelection(tuple(views), selection["layer"], selection["head"], token, weight, special)  # type: ignore[arg-type]
    return view_paths(context.answer, texts, look)  # type: ignore[arg-type]


ROUTES = (Route("POST", "export", export),)
