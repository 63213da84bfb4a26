"""Maps of heads: tiles at any zoom, thumbnails, exact values; and the strongest edges of a layer."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from unmask.base.progress import unwatched
from unmask.errors import InvalidRequest
from unmask.explorer.routes.route import MAX_CELLS, MAX_DRAWN_CELLS, OVERVIEW_CELLS, Route, head_of, of_text
from unmask.explorer.sessions.texts import TextSession
from unmask.explorer.wire.binary import array_answer
from unmask.explorer.wire.page_request import Arrays, PageRequest
from unmask.explorer.wire.tiles import FLOOR, TILE, Codes, codes, levels, pooled, reduced, tile_of
from unmask.http.requests import Request
from unmask.http.responses import Answer, cannot
from unmask.http.worker import Watch
from unmask.interpret.attention.attention_statistics import TOP_K
from unmask.interpret.attention.edges import LayerEdges, ResidualNorms, layer_edges, residual_norms
from unmask.interpret.attention.layer_statistics import LayerStatistics
from unmask.interpret.attention.rectangles import Floats, Over, RowSums
from unmask.interpret.attention.view import AttentionView, Weight
from unmask.kernels import Tile
from unmask.spec import Alibi, Disentangled, RelativePositionBias

Special = Literal["show", "hide"]
"""Whether special tokens are part of attention; without them, the rest of each row is divided by its sum."""


WEIGHTS: tuple[Weight, ...] = get_args(Weight)
SPECIALS: tuple[Special, ...] = get_args(Special)


@dataclass(frozen=True)
class EdgesRequest(PageRequest):
    """The top-k keys of every query of all heads of a layer, (H, N, k), -1 where there are fewer; the share
    of each query's attention that is left out, (H, N), and what keys receive on average, (H, N).

    ``special="hide"`` leaves out special tokens as queries and as keys, and divides the rest of each row by
    its sum. ``most`` is k, so that all layers of a long text stay within `Limits.edges`.
    """

    path = "texts/{text}/edges/{layer}"
    answer = Arrays[None]

    text: str
    layer: int
    weight: Weight = "raw"
    special: Special = "show"
    most: int = TOP_K


@dataclass(frozen=True)
class PairEdgesRequest(PageRequest):
    """The top-k keys of every query in each text of a pair, (2, H, N, k), with shares that sum to 1 over that
    text, and the part of the query's attention that goes there, (2, H, N).

    A share times that part is the attention. Special tokens belong to neither text, and have no edges.
    """

    path = "texts/{text}/edges/{layer}/pair"
    answer = Arrays[None]

    text: str
    layer: int
    weight: Weight = "raw"
    most: int = TOP_K


@dataclass(frozen=True)
class ResidualRequest(PageRequest):
    """Norms of the residual stream, (L + 1, N), and of each layer's attention output, (L, N)."""

    path = "texts/{text}/residual"
    answer = Arrays[None]
    saved_in = ("flow",)

    text: str


def edges_of(session: TextSession, layer: int, weight: Weight, special: Special) -> LayerEdges:
    """The strongest edges of a layer, made once."""
    without_N: NDArray[np.bool_] | None = session.encoding.special if special == "hide" else None

    def compute(view: AttentionView, watch: Watch) -> LayerEdges:
        rows = view.layer_cache.rows(layer)
        return layer_edges(rows, TOP_K, weighted=weight == "norm", without_N=without_N, watch=watch)

    return session.analyse(("edges", layer, weight, special), compute)


def sums_without_special(session: TextSession, layer: int, weight: Weight) -> RowSums:
    """The sums that divide the rows of a layer where special tokens are left out."""
    lse_HN = edges_of(session, layer, weight, "hide").lse_HN
    return RowSums(lse_HN, np.ones(lse_HN.shape, dtype=np.float32))


def without_special(session: TextSession, p_RC: Floats, first_row: int, first_column: int) -> Floats:
    """Part of a map with 0 in the rows and columns of special tokens."""
    special_N = session.encoding.special
    p_RC[special_N[first_row : first_row + p_RC.shape[0]]] = 0
    p_RC[:, special_N[first_column : first_column + p_RC.shape[1]]] = 0
    return p_RC


def edges(session: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/edges/{l}``: the strongest keys of every query of every head."""
    layer = request.index(1, "layer", session.layer_count)
    weight, special = request.choice("weight", WEIGHTS), request.choice("special", SPECIALS)
    session.prioritize(layer)
    most = request.number("most", TOP_K, 1, TOP_K)
    strongest = edges_of(session, layer, weight, special)
    return array_answer(
        {
            "keys": strongest.keys_HNk[..., :most],
            "values": strongest.shares_HNk[..., :most],
            "left_out": strongest.left_out_HN,
            "received": strongest.received_HN,
        }
    )


def pair_edges(session: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/edges/{l}/pair``: the strongest keys of every query in each text of a pair."""
    layer, weight = request.index(1, "layer", session.layer_count), request.choice("weight", WEIGHTS)
    most = request.number("most", TOP_K, 1, TOP_K)
    encoding = session.encoding
    if encoding.pair is None:
        raise cannot("this is a single text; edges between two texts are those of a pair")

    def compute(view: AttentionView, watch: Watch) -> list[LayerEdges]:
        rows = view.layer_cache.rows(layer)
        return [
            layer_edges(
                rows,
                TOP_K,
                weighted=weight == "norm",
                without_N=encoding.special | (encoding.sequence_ids != text),
                queries_N=~encoding.special,
                watch=watch,
            )
            for text in (0, 1)
        ]

    both = session.analyse(("pair edges", layer, weight), compute)
    return array_answer(
        {
            "keys": np.stack([text_edges.keys_HNk[..., :most] for text_edges in both]),
            "values": np.stack([text_edges.shares_HNk[..., :most] for text_edges in both]),
            "kept": np.stack([text_edges.kept_HN for text_edges in both]),
        }
    )


def residual(session: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/residual``: norms of the residual stream and of the attention outputs."""

    def compute(view: AttentionView, watch: Watch) -> ResidualNorms:
        return residual_norms(view.cache)

    norms = session.analyse("residual", compute)
    return array_answer({"state": norms.state_LN, "attention": norms.attention_LN})


Pool = Literal["max", "mean"]


POOLS: tuple[Pool, ...] = get_args(Pool)
OVERS: tuple[Over, ...] = get_args(Over)
WHOLE_PART = "all"


@dataclass(frozen=True)
class TileMeta:
    """Of tiles and overviews. A cell stands for ``cell`` x ``cell`` tokens. What a code stands for is fixed:
    0 is below ``floor`` or not allowed, c of 1..255 is exp(ln floor * (255 - c) / 254)."""

    cell: int
    tokens: int
    pool: str
    weight: str
    kind: str
    floor: float


@dataclass(frozen=True)
class TileRequest(PageRequest):
    """Codes of one tile of a head's map, at most 256 x 256 cells of 2^level x 2^level tokens.

    ``over`` asks for the heads of the layer, or for all heads, as one map, whatever the head; cells are
    then pooled as heads are.
    """

    path = "texts/{text}/tiles/{layer}/{head}/{level}/{y}/{x}"
    answer = Arrays[TileMeta]

    text: str
    layer: int
    head: int
    level: int
    y: int
    x: int
    pool: Pool = "max"
    weight: Weight = "raw"
    special: Special = "show"
    over: Over | None = None


@dataclass(frozen=True)
class OverviewRequest(PageRequest):
    """Codes of small maps of all heads, of the layers that are measured."""

    path = "texts/{text}/overview"
    answer = Arrays[TileMeta]
    grows = True

    text: str
    weight: Weight = "raw"
    pool: Pool = "max"
    special: Special = "show"


@dataclass(frozen=True)
class ValuesMeta:
    """Of exact values: which ranges, and what is in them."""

    rows: tuple[int, int]
    columns: tuple[int, int]
    weight: str
    part: str
    parts: tuple[str, ...]
    kind: str


@dataclass(frozen=True)
class ValuesRequest(PageRequest):
    """Exact probabilities of a rectangle of a head's map, or one part of its scores; ``over`` as in tiles."""

    path = "texts/{text}/values/{layer}/{head}"
    answer = Arrays[ValuesMeta]

    text: str
    layer: int
    head: int
    rows: tuple[int, int]
    columns: tuple[int, int]
    weight: Weight = "raw"
    part: str | None = None
    special: Special = "show"
    over: Over | None = None


def tile(session: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/tiles/{l}/{h}/{z}/{y}/{x}``: codes of at most 256 x 256 cells."""
    layer, head = head_of(session, request)
    z = request.index(3, "zoom", levels(len(session)))
    count = -(-len(session) // (TILE << z))
    y, x = request.index(4, "row of tiles", count), request.index(5, "column of tiles", count)
    pool, weight = request.choice("pool", POOLS), request.choice("weight", WEIGHTS)
    special = request.choice("special", SPECIALS)
    over = over_of(request)
    if over is not None:
        part, pool = tile_of(z, y, x, len(session)), _pool_of(over)
        many = codes(_over(session, (layer, over), part, (weight, special), 1 << z))
        meta = TileMeta(1 << z, len(session), pool, weight, session.view.kind(layer), FLOOR)
        return array_answer({"codes": many}, meta)
    coded = _measured_tile(session, (layer, head), z, pool, weight) if special == "show" else None
    if coded is None:
        part = tile_of(z, y, x, len(session))
        both = _pooled(session, (layer, head), part, z, (weight, special))
        coded = both[POOLS.index(pool)]
    meta = TileMeta(1 << z, len(session), pool, weight, session.view.kind(layer), FLOOR)
    return array_answer({"codes": coded}, meta)


def over_of(request: Request) -> Over | None:
    """The heads that are requested as one map; None for a single head."""
    return request.choice("over", OVERS) if "over" in request.query else None


def _pool_of(over: Over) -> Pool:
    return "max" if over.endswith("max") else "mean"


def _over(
    session: TextSession, heads: tuple[int, Over], part: Tile, shares: tuple[Weight, Special], cell: int = 1
) -> Floats:
    """A rectangle of many heads as one, exactly."""
    (layer, over), (weight, special) = heads, shares
    layer_of, pool = (None if over.startswith("all") else layer), _pool_of(over)

    def compute(view: AttentionView, watch: Watch) -> Floats:
        return view.pooled(
            layer_of, pool, slice(part.first_row, part.end_row), slice(part.first_column, part.end_column),
            weight=weight, without_N=session.encoding.special if special == "hide" else None,
            cell=cell, watch=watch,
        )  # fmt: skip

    key = ("pooling", layer_of, pool, part, *shares, cell)
    return session.cache.of(key, lambda: session.analyse(key, compute))


def _measured_tile(
    session: TextSession, head: tuple[int, int], z: int, pool: str, weight: Weight
) -> Codes | None:
    """The tile of the last zoom level, where it was measured with everything else."""
    statistics = session.layers[head[0]]
    if statistics is None or z == 0 or statistics.cell != 1 << z or (weight == "norm" and pool == "max"):
        return None
    if weight == "norm":
        return codes(statistics.map_norm_HSS[head[1]])
    return codes((statistics.map_max_HSS if pool == "max" else statistics.map_mean_HSS)[head[1]])


def _pooled(
    session: TextSession, head: tuple[int, int], part: Tile, z: int, shares: tuple[Weight, Special]
) -> tuple[Codes, Codes]:
    """Codes of the largest and of the mean of each cell, kept for who asks for the other."""
    weight, special = shares
    key = ("tile", *head, part, z, weight, special)
    stored = session.cache.get(key)
    if stored is not None:
        return stored[0], stored[1]
    measured = _sums(session, head[0], weight, special)

    def compute(view: AttentionView, watch: Watch) -> Codes:
        def watched() -> Iterator[tuple[int, Floats]]:
            for first, p_RC in view.layer_cache.blocks(head, part, measured, weighted=weight == "norm"):
                if special == "hide":
                    without_special(session, p_RC, first, part.first_column)
                yield first, p_RC
                watch("drawing", first - part.first_row, part.end_row - part.first_row)

        most, mean = pooled(watched(), part, 1 << z)
        return np.stack([codes(most), codes(mean)])

    cells = (part.end_row - part.first_row) * (part.end_column - part.first_column)
    if measured is not None and cells <= MAX_DRAWN_CELLS:
        both = session.ask(lambda view: compute(view, unwatched))
    else:
        both = session.analyse(key, compute)
    session.cache.put(key, both)
    return both[0], both[1]


def _sums(
    session: TextSession, layer: int, weight: Weight, special: Special
) -> LayerStatistics | RowSums | None:
    """The sums that divide the rows of a layer; None where they are not known before the rows."""
    measured = session.layers[layer]
    if measured is None:
        session.prioritize(layer)
    return measured if special == "show" else sums_without_special(session, layer, weight)


def overview(session: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/overview``: thumbnails of all heads, of the layers that are measured (``ready``)."""
    pool, weight = request.choice("pool", POOLS), request.choice("weight", WEIGHTS)
    if weight == "norm":
        pool = "mean"  # the one that is kept of weighted maps; the meta says so
    special = request.choice("special", SPECIALS)
    small, cell = {}, 0
    for layer, statistics in enumerate(session.layers):
        if statistics is not None and special == "hide":
            small[layer], cell = _small_without_special(session, layer, pool, weight)
        elif statistics is not None:
            whole = {"max": statistics.map_max_HSS, "mean": statistics.map_mean_HSS}[pool]
            whole = statistics.map_norm_HSS if weight == "norm" else whole
            small[layer] = codes(reduced(whole, OVERVIEW_CELLS, largest=pool == "max"))
            cell = statistics.cell * -(-whole.shape[-1] // OVERVIEW_CELLS)
    size = max((maps.shape[-1] for maps in small.values()), default=0)
    coded = np.zeros((session.layer_count, session.head_count, size, size), dtype=np.uint8)
    for layer, maps in small.items():
        coded[layer, : len(maps)] = maps
    ready = np.array([layer in small for layer in range(session.layer_count)])
    kinds = {statistics.kind for statistics in session.layers if statistics is not None}
    kind = kinds.pop() if len(kinds) == 1 else "mixed"
    meta = TileMeta(cell, len(session), pool, weight, kind, FLOOR)
    return array_answer({"codes": coded, "ready": ready}, meta)


def _small_without_special(session: TextSession, layer: int, pool: Pool, weight: Weight) -> tuple[Codes, int]:
    """Thumbnails of a layer's heads without special tokens, and the tokens along the side of a cell."""
    whole = Tile(0, len(session), 0, len(session))
    z = max(0, math.ceil(math.log2(len(session) / OVERVIEW_CELLS)))
    heads = range(session.described.heads[layer])
    at = POOLS.index(pool)
    thumbnails = [_pooled(session, (layer, head), whole, z, (weight, "hide"))[at] for head in heads]
    return np.stack(thumbnails), 1 << z


def values(session: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/values/{l}/{h}?rows=a:b&columns=c:d``: exact probabilities, or a part of the score."""
    layer, head = head_of(session, request)
    rows, columns = request.range("rows", len(session)), request.range("columns", len(session))
    height, width = rows.stop - rows.start, columns.stop - columns.start
    if height * width > MAX_CELLS:
        raise InvalidRequest(
            f"a rectangle of {height:,} x {width:,} cells is more than the {MAX_CELLS:,} that one "
            "answer holds; ask for smaller ranges"
        )
    weight, part = request.choice("weight", WEIGHTS), request.query.get("part", WHOLE_PART)
    view = session.view
    parts = _parts(session, view, layer)
    if part not in (WHOLE_PART, *parts):
        has = f"they are made of {', '.join(parts)}" if parts else "they are one thing only"
        raise cannot(f"the scores of layer {layer} have no part {part!r}; {has}")

    special = request.choice("special", SPECIALS)
    rectangle = Tile(rows.start, rows.stop, columns.start, columns.stop)
    over = over_of(request)
    if over is not None and part == WHOLE_PART:
        rectangle_values = _over(session, (layer, over), rectangle, (weight, special))
    else:
        rectangle_values = _of_head(session, (layer, head), rectangle, (weight, special), part)
    meta = ValuesMeta(
        rows=(rows.start, rows.stop),
        columns=(columns.start, columns.stop),
        weight=weight,
        part=part,
        parts=parts,
        kind=view.kind(layer),
    )
    return array_answer({"values": rectangle_values}, meta)


def _of_head(
    session: TextSession, at: tuple[int, int], rectangle: Tile, shares: tuple[Weight, Special], part: str
) -> NDArray[np.floating]:
    """A rectangle of one head, or of a part of its scores."""
    (layer, head), (weight, special) = at, shares
    measured = _sums(session, layer, weight, special)
    rows = slice(rectangle.first_row, rectangle.end_row)
    columns = slice(rectangle.first_column, rectangle.end_column)

    def compute(view: AttentionView) -> NDArray[np.floating]:
        if part == WHOLE_PART:
            whole = view.layer_cache.rectangle
            p_RC = whole((layer, head), rectangle, measured, weighted=weight == "norm")
            return without_special(session, p_RC, rows.start, columns.start) if special == "hide" else p_RC
        return view.score_parts(layer, head, rows, columns)[part]

    return session.ask(compute)


def _parts(session: TextSession, view: AttentionView, layer: int) -> tuple[str, ...]:
    """The terms of the scores of a layer; empty where the scores are a single term."""
    position = getattr(session.model.spec.layers[layer].mixer, "position", None)
    if view.kind(layer) != "softmax" or not isinstance(position, Alibi | Disentangled | RelativePositionBias):
        return ()
    first = slice(0, 1)
    return tuple(session.ask(lambda view: view.score_parts(layer, 0, first, first)))


ROUTES = (
    Route.get(TileRequest, of_text(tile)),
    Route.get(OverviewRequest, of_text(overview)),
    Route.get(ValuesRequest, of_text(values)),
    Route.get(EdgesRequest, of_text(edges)),
    Route.get(PairEdgesRequest, of_text(pair_edges)),
    Route.get(ResidualRequest, of_text(residual)),
)
