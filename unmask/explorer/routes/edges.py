"""The strongest edges of a layer's heads, and what they add to the residual stream."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from unmask.explorer.routes.route import Route, of_text
from unmask.explorer.sessions.text_session import TextSession
from unmask.explorer.wire.binary import array_answer
from unmask.explorer.wire.page_request import Arrays, PageRequest
from unmask.http.errors import cannot
from unmask.http.requests import Request
from unmask.http.responses import Answer
from unmask.http.worker import Watch
from unmask.interpret import AttentionView
from unmask.interpret.attention.attention_statistics import TOP_K
from unmask.interpret.attention.edges import LayerEdges, ResidualNorms, layer_edges, residual_norms
from unmask.interpret.attention.rectangles import Floats, RowSums
from unmask.interpret.attention.view import Weight

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


def edges_of(reading: TextSession, layer: int, weight: Weight, special: Special) -> LayerEdges:
    """The strongest edges of a layer, made once."""
    without_N: NDArray[np.bool_] | None = reading.encoding.special if special == "hide" else None

    def compute(view: AttentionView, watch: Watch) -> LayerEdges:
        rows = view.layer_cache.rows(layer)
        return layer_edges(rows, TOP_K, weighted=weight == "norm", without_N=without_N, watch=watch)

    return reading.analyse(("edges", layer, weight, special), compute)


def sums_without_special(reading: TextSession, layer: int, weight: Weight) -> RowSums:
    """What the rows of a layer are divided by where special tokens are left out."""
    lse_HN = edges_of(reading, layer, weight, "hide").lse_HN
    return RowSums(lse_HN, np.ones(lse_HN.shape, dtype=np.float32))


def without_special(reading: TextSession, p_RC: Floats, first_row: int, first_column: int) -> Floats:
    """Part of a map with 0 in the rows and columns of special tokens."""
    special_N = reading.encoding.special
    p_RC[special_N[first_row : first_row + p_RC.shape[0]]] = 0
    p_RC[:, special_N[first_column : first_column + p_RC.shape[1]]] = 0
    return p_RC


def edges(reading: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/edges/{l}``: the strongest keys of every query of every head."""
    layer = request.index(1, "layer", reading.layer_count)
    weight, special = request.choice("weight", WEIGHTS), request.choice("special", SPECIALS)
    reading.prioritize(layer)
    most = request.number("most", TOP_K, 1, TOP_K)
    strongest = edges_of(reading, layer, weight, special)
    return array_answer(
        {
            "keys": strongest.keys_HNk[..., :most],
            "values": strongest.shares_HNk[..., :most],
            "left_out": strongest.left_out_HN,
            "received": strongest.received_HN,
        }
    )


def pair_edges(reading: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/edges/{l}/pair``: the strongest keys of every query in each text of a pair."""
    layer, weight = request.index(1, "layer", reading.layer_count), request.choice("weight", WEIGHTS)
    most = request.number("most", TOP_K, 1, TOP_K)
    encoding = reading.encoding
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

    both = reading.analyse(("pair edges", layer, weight), compute)
    return array_answer(
        {
            "keys": np.stack([one.keys_HNk[..., :most] for one in both]),
            "values": np.stack([one.shares_HNk[..., :most] for one in both]),
            "kept": np.stack([one.kept_HN for one in both]),
        }
    )


def residual(reading: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/residual``: norms of the residual stream and of the attention outputs."""

    def compute(view: AttentionView, watch: Watch) -> ResidualNorms:
        return residual_norms(view.cache)

    norms = reading.analyse("residual", compute)
    return array_answer({"state": norms.state_LN, "attention": norms.attention_LN})


ROUTES = (
    Route.get(EdgesRequest, of_text(edges)),
    Route.get(PairEdgesRequest, of_text(pair_edges)),
    Route.get(ResidualRequest, of_text(residual)),
)
