"""What a saved page must hold so that its views work: paths of the API, spelled as the page spells them."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from unmask.errors import InvalidRequest
from unmask.explorer.api.binary import unpack
from unmask.explorer.api.tiles import TILE
from unmask.explorer.export.standalone_html import Get, saved_page
from unmask.explorer.server.address import fragment
from unmask.http.responses import Answer, accepted, plain
from unmask.tasks import Progress

VIEWS = (
    *("tokens", "heads", "map", "flow", "sinks", "paths"),
    *("words", "compare", "geometry", "wall", "tour"),
)
"""Views by their ids in the page."""
OF_A_TEXT = VIEWS[:-2]
"""Those that are about the text that was read."""

VALUES_AT_ONCE = 65_536
"""Exact values in one request of the page: as many whole rows as that holds."""
MOST_ROWS_TOKENS = 1024
"""Longer texts keep exact values of some rows alone; tiles show the rest."""
MOST_TILES = 85
"""Tiles of one head: all levels of 2,048 tokens."""
ALL_HEADS_BYTES = 4 << 20
"""Every head is kept whole where that needs no more."""
ALL_ROLLOUTS_TOKENS = 64
TOP_WORDS, TOP_LENS = 8, 5
"""Predictions that the page asks for: at the end, and at each level."""

Json = dict[str, Any]


@dataclass(frozen=True)
class ViewSelection:
    """What is looked at when the page is opened."""

    views: tuple[str, ...] = OF_A_TEXT
    layer: int = 0
    head: int = 0
    token: int | None = None
    """None: the first mask of the text, else its first token."""


def standalone(
    get: Get,
    paths: Sequence[str],
    hash_: str,
    title: str = "unmask",
    *,
    progress: Progress | None = None,
) -> bytes:
    """The page as one HTML file that holds the answers of ``paths``; see `saved_page`.

    ``progress`` is called with (answers so far, paths).
    """
    asked = 0

    def counted(path: str) -> Answer:
        nonlocal asked
        asked += 1
        if progress is not None:
            progress(min(asked, len(paths)), len(paths))
        return get(path)

    return saved_page(counted, paths, hash_, title)


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
        InvalidRequest: no such view, layer, head or token.
        Refused: a text is not held.
    """
    unknown = [view for view in look.views if view not in VIEWS]
    if unknown or not look.views:
        raise InvalidRequest(
            f"there is no view {unknown[0] if unknown else ''!r}; there are {', '.join(VIEWS)}"
        )
    reads = [plain(get(f"texts/{one}")) for one in texts]
    model = plain(get("session"))["models"][reads[0]["model_index"]]
    _check(look, reads[0])
    found: list[str] = []
    for read in reads:
        base = f"texts/{read['id']}"
        found += [base, f"{base}/state", f"{base}/stamp", f"{base}/heads"]
    asked = _ExportRequests(
        get, reads, model, look, question_token(reads[0]) if look.token is None else look.token
    )
    for view in look.views:
        found += _PATHS[view](asked)
    return list(dict.fromkeys(found))


def question_token(read: Json) -> int:
    """The token that is asked about where none is chosen: the first mask of the text, else its first."""
    pieces = (one["piece"].lower() if one["special"] else "" for one in read["tokens"])
    return next((at for at, piece in enumerate(pieces) if piece.strip("[]<>|_") == "mask"), 0)


def _check(look: ViewSelection, read: Json) -> None:
    given = [("layer", look.layer, read["layers"])]
    if 0 <= look.layer < read["layers"]:
        given.append(("head", look.head, read["heads"][look.layer]))
    if look.token is not None:
        given.append(("token", look.token, len(read["tokens"])))
    for name, value, count in given:
        if not 0 <= value < count:
            raise InvalidRequest(f"{name} is {value}; {read['model']} has 0 to {count - 1} here")


@dataclass(frozen=True)
class _ExportRequests:
    """What paths are made from."""

    get: Get
    reads: list[Json]
    model: Json
    look: ViewSelection
    token: int

    @property
    def read(self) -> Json:
        return self.reads[0]

    @property
    def base(self) -> str:
        return f"texts/{self.read['id']}"

    @property
    def tokens(self) -> int:
        return len(self.read["tokens"])

    @property
    def chosen(self) -> tuple[int, int]:
        return self.look.layer, self.look.head

    @property
    def heads(self) -> list[tuple[int, int]]:
        """Heads that are kept whole: all of a short text."""
        if 5 * sum(self.read["heads"]) * self.tokens**2 > ALL_HEADS_BYTES:
            return [self.chosen]
        return [(layer, head) for layer, heads in enumerate(self.read["heads"]) for head in range(heads)]

    def rows(self, layer: int, head: int, weight: str = "raw") -> Iterator[str]:
        """Exact rows in the blocks of the page: all of a text that is not long, else those of the token."""
        height = max(1, min(self.tokens, VALUES_AT_ONCE // self.tokens))
        starts = range(0, self.tokens, height)
        if self.tokens > MOST_ROWS_TOKENS:
            starts = range(self.token // height * height, self.token + 1, height)
        for start in starts:
            rows = f"rows={start}:{min(self.tokens, start + height)}&columns=0:{self.tokens}"
            yield f"{self.base}/values/{layer}/{head}?{rows}&weight={weight}"


def _tokens(asked: _ExportRequests) -> Iterator[str]:
    yield f"{asked.base}/vocabulary"
    for layer, head in asked.heads:
        yield f"{asked.base}/head/{layer}/{head}"


def _heads(asked: _ExportRequests) -> Iterator[str]:
    for weight in ("raw", "norm"):
        for pool in ("max", "mean"):
            yield f"{asked.base}/overview?weight={weight}&pool={pool}"


def _map(asked: _ExportRequests) -> Iterator[str]:
    layer, head = asked.chosen
    tiles = _tiles(asked.tokens)
    for weight in ("raw", "norm"):
        for pool in ("max", "mean"):
            yield from (
                f"{asked.base}/tiles/{layer}/{head}/{one}?pool={pool}&weight={weight}" for one in tiles
            )
        yield from asked.rows(layer, head, weight)
    yield f"{asked.base}/words/{layer}/{head}?weight=raw"
    for layer, head in asked.heads:
        yield from (f"{asked.base}/tiles/{layer}/{head}/{one}?pool=max&weight=raw" for one in tiles)
        yield from asked.rows(layer, head)


def _tiles(tokens: int) -> list[str]:
    """Tiles ``level/y/x``, the coarsest first, as many levels as `MOST_TILES` holds."""
    level = 0
    while tokens / 2**level > TILE:
        level += 1
    found: list[str] = []
    for one in range(level, -1, -1):
        side = math.ceil(tokens / 2**one / TILE)
        if len(found) + side * side > MOST_TILES:
            break
        found += [f"{one}/{y}/{x}" for y in range(side) for x in range(side)]
    return found


def _flow(asked: _ExportRequests) -> Iterator[str]:
    for layer, head in asked.heads:
        yield f"{asked.base}/edges/{layer}/{head}"
        yield f"{asked.base}/head/{layer}/{head}"
        yield from asked.rows(layer, head)


def _sinks(asked: _ExportRequests) -> Iterator[str]:
    yield f"{asked.base}/sinks?epsilon=0.30"


def _paths(asked: _ExportRequests) -> Iterator[str]:
    base, token = asked.base, asked.token
    for fusion in ("mean", "max", "min", "norm"):
        yield f"{base}/rollout?token={token}&fusion={fusion}"
    yield f"{base}/rollout?fusion=mean"
    if asked.tokens <= ALL_ROLLOUTS_TOKENS:
        yield from (f"{base}/rollout?token={one}&fusion=mean" for one in range(asked.tokens))
    if asked.model["can_fill"]:
        yield f"{base}/relevance?token={token}&target=word"
    if asked.model["can_classify"]:
        yield f"{base}/relevance?token={token}&target=class"
    yield f"{base}/relevance?token={token}&target=embedding"


def _words(asked: _ExportRequests) -> Iterator[str]:
    if asked.model["can_fill"]:
        yield f"{asked.base}/fill?token={asked.token}&top={TOP_WORDS}"
        yield f"{asked.base}/lens?token={asked.token}&top={TOP_LENS}"
    yield f"{asked.base}/importance?token={asked.token}"


def _compare(asked: _ExportRequests) -> Iterator[str]:
    if len(asked.reads) < 2:
        return
    path = f"compare/{asked.reads[0]['id']}/{asked.reads[1]['id']}"
    yield path
    _, meta = unpack(accepted(asked.get(path)).data)
    match = [one for one in meta["matches"] if (one["a_layer"], one["a_head"]) == asked.chosen]
    other = (match[0]["b_layer"], match[0]["b_head"]) if match else (0, 0)
    for read, (layer, head) in zip(asked.reads, (asked.chosen, other), strict=True):
        yield f"texts/{read['id']}/words/{layer}/{head}?weight=raw"


def _geometry(asked: _ExportRequests) -> Iterator[str]:
    yield f"{asked.base}/geometry"
    yield f"bank?model={asked.read['model_index']}&word=bank"


def _wall(asked: _ExportRequests) -> Iterator[str]:
    yield "wall"


def _tour(asked: _ExportRequests) -> Iterator[str]:
    yield "tour"
    # The page counts in UTF-16, and writes a query as its URLSearchParams do.
    text = asked.read["text"].encode("utf-16-le", "surrogatepass")[:1200].decode("utf-16-le", "replace")
    query = urlencode({"model": asked.read["model_index"], "text": text}, safe="*").replace("~", "%7E")
    for chapter in plain(asked.get("tour"))["chapters"]:
        yield f"tour/{chapter['id']}?{query}"


_PATHS: dict[str, Callable[[_ExportRequests], Iterator[str]]] = {
    "tokens": _tokens,
    "heads": _heads,
    "map": _map,
    "flow": _flow,
    "sinks": _sinks,
    "paths": _paths,
    "words": _words,
    "compare": _compare,
    "geometry": _geometry,
    "wall": _wall,
    "tour": _tour,
}
