"""The cloud of tokens, and of the occurrences of a word, in three dimensions."""

from collections.abc import Sequence
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from unmask.explorer.api.analysis_schemas import (
    CloudMeta,
    CloudRequest,
    Occurrence,
    ReceivedRequest,
    SenseCloudMeta,
    SenseCloudRequest,
)
from unmask.explorer.api.binary import array_answer
from unmask.explorer.routes.geometry import model_and_word
from unmask.explorer.routes.route import Route, of_text
from unmask.explorer.sessions.context import AppContext
from unmask.explorer.sessions.text_session import TextSession
from unmask.http.requests import Request
from unmask.http.responses import Answer
from unmask.http.worker import Watch
from unmask.interpret.geometry.projection import Basis, Method, Projection, project
from unmask.interpret.geometry.sense_cloud import SenseCloud, sense_cloud
from unmask.interpret.geometry.word_sense_sets import shipped_senses

METHODS: tuple[Method, ...] = get_args(Method)
BASES: tuple[Basis, ...] = get_args(Basis)


def of_a_text(reading: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/cloud?method=pca|umap&basis=own|shared``: points (L + 1, N, 3)."""
    method, basis = request.choice("method", METHODS), request.choice("basis", BASES)

    def measure(levels: Sequence[object], watch: Watch) -> Projection:
        special_N = reading.encoding.special
        return project(levels, method=method, basis=basis, special_N=special_N, watch=watch)

    made = reading.analyse_levels(("cloud", method, basis), measure)
    return array_answer(_arrays(made), CloudMeta(method, basis, made.fitted))


def of_a_word(context: AppContext, request: Request) -> Answer:
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

    made = context.analyses.once(("sense cloud", place.index, word, method, basis), measure)
    names = made.given.senses
    sentences = tuple(
        Occurrence(one.text, one.start, one.end, names.index(one.sense)) for one in made.given.sentences
    )
    return array_answer(
        _arrays(made.projection), SenseCloudMeta(place.name, word, names, sentences, method, basis)
    )


def received(reading: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/received``: (L, N), 0 in the layers that are not measured yet."""
    layers = reading.layers
    means_LN = np.zeros((len(layers), len(reading)), dtype=np.float32)
    for number, layer in enumerate(layers):
        if layer is not None:
            means_LN[number] = layer.attention_received_HN.mean(0, dtype=np.float64)
    return array_answer({"received": means_LN})


def _arrays(made: Projection) -> dict[str, NDArray[np.floating]]:
    found: dict[str, NDArray[np.floating]] = {"points": made.points_LN3}
    if made.explained_L3 is not None:
        found["explained"] = made.explained_L3
    return found


ROUTES = (
    Route.get(CloudRequest, of_text(of_a_text)),
    Route.get(ReceivedRequest, of_text(received)),
    Route.get(SenseCloudRequest, of_a_word),
)
