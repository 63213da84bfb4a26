"""Statistics of all heads, of one head token by token, their patterns and their sinks."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unmask.explorer.routes.route import MAX_LISTED, Route, head_of, of_text
from unmask.explorer.sessions.texts import TextSession
from unmask.explorer.wire.binary import array_answer
from unmask.explorer.wire.page_request import Arrays, PageRequest
from unmask.http.requests import Request
from unmask.http.responses import Answer, json_answer
from unmask.http.worker import Watch
from unmask.interpret import AttentionView
from unmask.interpret.attention.layer_statistics import (
    CLASSES,
    LABELS,
    LayerStatistics,
    label_heads,
    uniform_distance,
)
from unmask.interpret.attention.patterns import CLEAR, SHAPES, HeadPatterns, head_patterns
from unmask.interpret.attention.sinks import EPSILON, Sinks
from unmask.interpret.attention.sinks import sinks as find

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class HeadsMeta:
    """Of ``heads``: what the classes of keys are called, and the labels that ``label`` counts in.

    ``kinds`` has one entry a layer: softmax, or kernel for the implied weights of linear attention.
    """

    classes: tuple[str, ...]
    labels: tuple[str, ...]
    kinds: tuple[str, ...]


@dataclass(frozen=True)
class HeadsRequest(PageRequest):
    """(L, H) of each statistic; 0 where it is not measured, or where there is no head.

    ``label`` names a head by what it does beyond special tokens, ``special_mass`` is what these get of the
    other tokens' attention.
    """

    path = "texts/{text}/heads"
    answer = Arrays[HeadsMeta]
    grows = True

    text: str


@dataclass(frozen=True)
class HeadRequest(PageRequest):
    """(N,) of each statistic of one head, and its profile of distances."""

    path = "texts/{text}/head/{layer}/{head}"
    answer = Arrays[HeadsMeta]
    saved_in = ("tokens",)

    text: str
    layer: int
    head: int


@dataclass(frozen=True)
class Patterns:
    """``scores`` of each head of a layer, in the order of ``shapes``; None where the text has no such keys.

    A pattern is clear from ``clear`` on. See `unmask.interpret.attention.patterns`.
    """

    shapes: tuple[str, ...]
    clear: float
    scores: tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True)
class PatternsRequest(PageRequest):
    """How much of a vertical line, of diagonals, blocks and distant links each map of a layer has."""

    path = "texts/{text}/patterns/{layer}"
    answer = Patterns
    saved_in = ("map",)

    text: str
    layer: int


@dataclass(frozen=True)
class SinksRequest(PageRequest):
    """Attention sinks of the layers that are measured so far."""

    path = "texts/{text}/sinks"
    answer = Sinks
    grows = True
    saved_in = ("sinks",)

    text: str
    epsilon: float = EPSILON


def heads(session: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/heads``: (L, H) of each statistic; 0 where not measured, or where there is no head."""
    shape = session.layer_count, session.head_count
    values_LH = {name: np.zeros(shape) for name in ("entropy", "entropy_share", "distance", "distance_share")}
    values_LH |= {name: np.zeros(shape) for name in ("sink_mass", "special_mass", "confidence")}
    sink_token = np.zeros(shape, dtype=np.int32)
    label = np.zeros(shape, dtype=np.uint8)
    classes = np.zeros((*shape, len(CLASSES)))
    ready = np.zeros(session.layer_count, dtype=np.bool_)
    kinds = [""] * session.layer_count
    for layer, statistics in enumerate(session.layers):
        if statistics is None:
            continue
        place = layer, slice(0, statistics.heads)
        ready[layer], kinds[layer] = True, statistics.kind
        for name, values in _means(statistics).items():
            values_LH[name][place] = values
        sink_token[place] = statistics.attention_received_HN.argmax(axis=-1)
        classes[place] = statistics.classes_HX
        labels = label_heads(statistics, session.encoding.special)
        label[place] = [LABELS.index(head_label.label) for head_label in labels]
        values_LH["confidence"][place] = [head_label.confidence for head_label in labels]
        values_LH["special_mass"][place] = [head_label.special for head_label in labels]
    arrays = {"ready": ready, **values_LH, "sink_token": sink_token, "classes": classes, "label": label}
    return array_answer(arrays, HeadsMeta(CLASSES, LABELS, tuple(kinds)))


def head(session: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/head/{l}/{h}``: (N,) of each statistic, and the profile of distances."""
    layer, number = head_of(session, request)
    session.prioritize(layer)
    statistics = session.layer(layer)
    names = ("entropy", "entropy_share", "keys", "distance", "attention_received", "causal_received")
    arrays = {
        name: getattr(statistics, f"{name}_HN")[number]
        for name in (*names, "max_received", "norm", "received_norm")
    }
    arrays["profile"] = statistics.profile_HB[number]
    arrays["profile_edges"] = statistics.profile_edges
    arrays["classes"] = statistics.classes_HX[number]
    return array_answer(arrays, HeadsMeta(CLASSES, LABELS, (statistics.kind,)))


def patterns(session: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/patterns/{l}``: the scores of named patterns, of each head of a layer."""
    layer = request.index(1, "layer", session.layer_count)
    session.prioritize(layer)
    session.layer(layer)  # refused until it is measured
    statistics = session.statistics_now()
    assert statistics is not None

    def compute(view: AttentionView, watch: Watch) -> HeadPatterns:
        return head_patterns(view.cache, statistics, layers=(layer,), watch=watch)

    scores = session.analyse(("patterns", layer), compute)
    heads = range(session.described.heads[layer])
    return json_answer(
        Patterns(SHAPES, CLEAR, tuple(tuple(scores.of(layer, number).values()) for number in heads))
    )


def _means(statistics: LayerStatistics) -> dict[str, Floats]:
    """Statistics of a layer's heads, (H,) each."""
    distance_H = statistics.distance_HN.mean(axis=-1, dtype=np.float64)
    even_H = uniform_distance(statistics.keys_HN)
    return {
        "entropy": statistics.entropy_HN.mean(axis=-1, dtype=np.float64),
        "entropy_share": statistics.entropy_share_HN.mean(axis=-1, dtype=np.float64),
        "distance": distance_H,
        "distance_share": np.divide(distance_H, even_H, out=np.zeros_like(distance_H), where=even_H > 0),
        "sink_mass": statistics.attention_received_HN.max(axis=-1).astype(np.float64),
    }


def sinks(session: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/sinks?epsilon=``: of the layers that are measured so far, which may be none."""
    epsilon = request.share("epsilon", EPSILON)
    # A layer may be added meanwhile: all of the answer is of these.
    statistics = session.statistics_now()
    if statistics is None or not any(statistics.layers):
        return json_answer(Sinks(epsilon, 1 / len(session), (), (), dict.fromkeys(CLASSES, 0.0), ()))
    return json_answer(find(statistics, epsilon, top=MAX_LISTED))


ROUTES = (
    Route.get(HeadsRequest, of_text(heads)),
    Route.get(HeadRequest, of_text(head)),
    Route.get(PatternsRequest, of_text(patterns)),
    Route.get(SinksRequest, of_text(sinks)),
)
