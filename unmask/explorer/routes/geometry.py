"""The geometry of each level, word senses, and both as clouds of points in three dimensions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.explorer.routes.route import AppContext, Route, of_text
from unmask.explorer.sessions.models import ModelSlot
from unmask.explorer.sessions.texts import TextSession
from unmask.explorer.wire.binary import array_answer, typed_answer
from unmask.explorer.wire.page_request import Arrays, PageRequest
from unmask.http.requests import Request
from unmask.http.responses import Answer, Problem, json_answer, problem_of
from unmask.http.worker import Watch
from unmask.interpret.geometry.layers import geometry
from unmask.interpret.geometry.projection import Basis, Method, Projection, SenseCloud, project, sense_cloud
from unmask.interpret.geometry.values import LayerGeometry
from unmask.interpret.geometry.word_senses import (
    SenseReport,
    Sentence,
    shipped_senses,
    shipped_words,
    word_senses,
)

ASIDE = ("no", "yes")


@dataclass(frozen=True)
class Geometry:
    """The shape of every level's cloud of tokens, special ones left out; level 0 is the embeddings.

    ``random`` is the same text in an encoder of the same design with random weights, where that was asked
    for; ``problem`` says why there is nothing, for instance because the text is too short.
    """

    tokens: int
    levels: tuple[LayerGeometry, ...]
    random: tuple[LayerGeometry, ...] | None
    problem: Problem | None


@dataclass(frozen=True)
class GeometryRequest(PageRequest):
    """The geometry of every level, with that of a random baseline where it is asked for."""

    path = "texts/{text}/geometry"
    answer = Geometry
    saved_in = ("geometry",)

    text: str
    random: Literal["no", "yes"] = "no"


@dataclass(frozen=True)
class Senses:
    """The senses of a word in one model; ``available`` lists the words with example sentences."""

    model: str
    word: str
    available: tuple[str, ...]
    report: SenseReport


@dataclass(frozen=True)
class SensesRequest(PageRequest):
    """The senses of a word in one model; ``model`` is its number."""

    path = "bank"
    answer = Senses
    saved_in = ("geometry",)

    model: int
    word: str = "bank"


@dataclass(frozen=True)
class CloudRequest(PageRequest):
    """All tokens in three dimensions at every level; special ones do not determine the directions."""

    path = "texts/{text}/cloud"
    answer = Arrays[Projection]
    saved_in = ("geometry",)

    text: str
    method: Method = "pca"
    basis: Basis = "own"


@dataclass(frozen=True)
class ReceivedRequest(PageRequest):
    """Mean attention (L, N) that each token receives, over the heads of a layer; 0 where not measured."""

    path = "texts/{text}/received"
    answer = Arrays[None]
    grows = True
    saved_in = ("geometry",)

    text: str


@dataclass(frozen=True)
class SenseCloudMeta:
    """Of the cloud of a word's occurrences: arrays as of `Projection`, one point per sentence."""

    model: str
    word: str
    senses: tuple[str, ...]
    sentences: tuple[Sentence, ...]
    method: str
    basis: str


@dataclass(frozen=True)
class SenseCloudRequest(PageRequest):
    """The occurrences of a word in three dimensions at every level; ``model`` is its number."""

    path = "bank/cloud"
    answer = Arrays[SenseCloudMeta]
    saved_in = ("geometry",)

    model: int
    word: str = "bank"
    method: Method = "pca"
    basis: Basis = "shared"


def of_a_text(session: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/geometry?random=yes|no``; a text too short is an answer that says so."""
    random = request.choice("random", ASIDE) == "yes"
    special_N = session.encoding.special

    def measure(states: Sequence[object], watch: Watch) -> Geometry:
        tokens = int((~special_N).sum())
        try:
            levels = geometry(states, special_N=special_N, watch=watch)
            twin = None
            if random:
                twin = geometry(
                    session.random_levels(watch), special_N=special_N, shuffled=False, watch=watch
                )
        except InvalidRequest as error:
            return Geometry(tokens, (), None, problem_of(error))
        return Geometry(tokens, levels, twin, None)

    return json_answer(session.analyse_levels(("geometry", random), measure))


def bank(context: AppContext, request: Request) -> Answer:
    """``GET bank?model=&word=``: the senses of a word that sentences are shipped of."""
    place, word = model_and_word(context, request)
    model = place.need_any()

    def measure(watch: Watch) -> SenseReport:
        return word_senses(
            model.encoder, model.tokenizer, shipped_senses(word), max_tokens=model.max_tokens, watch=watch
        )

    report = context.analyses.once(("bank", place.index, word), measure)
    return json_answer(Senses(place.name, word, shipped_words(), report))


def model_and_word(context: AppContext, request: Request) -> tuple[ModelSlot, str]:
    """The model, and the word with example sentences, that the query names."""
    word = request.choice("word", shipped_words())
    return context.models.at(request.number("model", 0, 0, len(context.models.places) - 1)), word


METHODS: tuple[Method, ...] = get_args(Method)
BASES: tuple[Basis, ...] = get_args(Basis)


def cloud(session: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/cloud?method=pca|umap&basis=own|shared``: points (L + 1, N, 3)."""
    method, basis = request.choice("method", METHODS), request.choice("basis", BASES)

    def measure(levels: Sequence[object], watch: Watch) -> Projection:
        special_N = session.encoding.special
        return project(levels, method=method, basis=basis, special_N=special_N, watch=watch)

    return typed_answer(session.analyse_levels(("cloud", method, basis), measure))


def sense_points(context: AppContext, request: Request) -> Answer:
    """``GET bank/cloud?model=&word=&method=&basis=``: points (L + 1, M, 3), one of M per sentence."""
    place, word = model_and_word(context, request)
    method = request.choice("method", METHODS)
    basis = request.choice("basis", BASES[::-1])
    model = place.need_any()

    def measure(watch: Watch) -> SenseCloud:
        return sense_cloud(
            model.encoder,
            model.tokenizer,
            shipped_senses(word),
            method=method,
            basis=basis,
            max_tokens=model.max_tokens,
            watch=watch,
        )

    points = context.analyses.once(("sense cloud", place.index, word, method, basis), measure)
    return array_answer(
        _arrays(points.projection),
        SenseCloudMeta(place.name, word, points.given.senses, points.given.sentences, method, basis),
    )


def received(session: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/received``: (L, N), 0 in the layers that are not measured yet."""
    layers = session.layers
    means_LN = np.zeros((len(layers), len(session)), dtype=np.float32)
    for number, layer in enumerate(layers):
        if layer is not None:
            means_LN[number] = layer.attention_received_HN.mean(0, dtype=np.float64)
    return array_answer({"received": means_LN})


def _arrays(projection: Projection) -> dict[str, NDArray[np.floating]]:
    arrays: dict[str, NDArray[np.floating]] = {"points": projection.points_LN3}
    if projection.explained_L3 is not None:
        arrays["explained"] = projection.explained_L3
    return arrays


ROUTES = (
    Route.get(GeometryRequest, of_text(of_a_text)),
    Route.get(SensesRequest, bank),
    Route.get(CloudRequest, of_text(cloud)),
    Route.get(ReceivedRequest, of_text(received)),
    Route.get(SenseCloudRequest, sense_points),
)
