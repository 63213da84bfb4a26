"""The page's requests: declared once, spelled alike in Python and in the page, and answered as declared."""

import json
from dataclasses import fields, make_dataclass
from pathlib import Path

import pytest

from unmask.explorer import api as api_module
from unmask.explorer.page import SAVED
from unmask.explorer.routes import corpus as corpus_module
from unmask.explorer.routes import every_request, every_route
from unmask.explorer.routes.attribution import AttributionRequest
from unmask.explorer.routes.change import GlobalChangeRequest, PatchingRequest
from unmask.explorer.routes.corpus import (
    CorpusFindRequest,
    CorpusHeadRequest,
    CorpusHeadsRequest,
    SearchIndexRequest,
)
from unmask.explorer.routes.labels import LabelSpansRequest, SpanCausesRequest
from unmask.explorer.routes.tasks import TaskPredictionRequest
from unmask.explorer.sessions.opened_index import SearchRequest
from unmask.explorer.wire.binary import array_fields, unpack
from unmask.explorer.wire.page_request import Arrays, PageRequest
from unmask.http.requests import Request

CASES = Path(__file__).parents[2] / "web" / "test" / "spelling.json"


def test_paths_are_spelled_as_in_the_page():
    if not CASES.is_file():
        pytest.skip("the sources of the page are not in this copy")
    for case in json.loads(CASES.read_text(encoding="utf-8")):
        values = {name: tuple(one) if isinstance(one, list) else one for name, one in case["given"].items()}
        ordered = {**dict.fromkeys(case.get("query", ())), **values}
        kind = make_dataclass("Case", list(ordered), bases=(PageRequest,), frozen=True)
        kind.path = case["path"]
        assert str(kind(**ordered)) == case["spelled"]


def test_every_get_is_declared_and_every_declaration_is_answered():
    routes = [route.path for route in every_route() if route.method == "GET"]
    assert sorted(routes) == sorted(request.route() for request in every_request())


def test_declarations_name_what_there_is():
    for request in every_request():
        assert set(request.saved_in) <= set(SAVED), request
        names = {field.name for field in fields(request)}
        assert all(f"{{{part}}}" in {f"{{{name}}}" for name in names} for part in open_parts(request)), (
            request
        )


def open_parts(request):
    return [part[1:-1] for part in request.path.split("/") if part.startswith("{")]


class Read(dict):
    """A query that remembers which of its values were looked for."""

    def __init__(self, given):
        super().__init__(given)
        self.names = set()

    def get(self, name, default=None):
        self.names.add(name)
        return super().get(name, default)

    def __getitem__(self, name):
        self.names.add(name)
        return super().__getitem__(name)

    def __contains__(self, name):
        self.names.add(name)
        return super().__contains__(name)


EXAMPLE = {
    "epoch": 2,
    **{
        "layer": 1,
        "head": 2,
        "token": 3,
        "special": "hide",
        "level": 0,
        "y": 0,
        "x": 0,
        "model": 0,
        "top": 4,
        "most": 2,
        "id": 5,
    },
    **{"rows": (0, 2), "columns": (1, 3), "weight": "norm", "pool": "mean", "fusion": "norm", "how": "mean"},
    "over": "layer_mean",
    "pair": "the bank",
    "future": "hidden",
    **{"part": "all", "epsilon": 0.25, "target": "word", "random": "no", "word": "bank"},
    **{"chapter": "handshake", "classes": None, "method": "pca", "basis": "shared"},
    **{"k": 3, "mode": "dense", "unit": "document", "why": "shares"},
    **{"labels": "person", "label": 0, "last": 1, "nested": "yes", "topics": 2},
    **{"order": "match", "first": 0, "count": 3},
    **{"texts": 0, "pattern": "next", "query_word": "bank", "key_word": "river"},
}


OF_LABELS = (LabelSpansRequest, SpanCausesRequest)
OWN_EXAMPLE = {
    AttributionRequest: {"method": "integrated_gradients", "baseline": "pad", "steps": 3},
    PatchingRequest: {"part": "head_output"},
}
"""Values of parameters that are called like those of other requests."""


@pytest.fixture(scope="module")
def texts(asking):
    found = {"text": asking.measured(pair="the bank"), "a": asking.measured(), "b": asking.measured(model=1)}
    return {**found, "before": found["a"], "after": asking.measured("The river text was muddy.")}


@pytest.mark.parametrize("request_class", every_request(), ids=lambda one: one.__name__)
def test_a_handler_reads_the_parameters_that_are_declared(request_class, asking, texts, monkeypatch):
    """One that is not declared could not be asked for by the page; one that is not read would do nothing."""
    given = []

    def noted(parts, query, body):
        given.append(Read(query))
        return Request(parts, given[-1], body)

    monkeypatch.setattr(api_module, "Request", noted)
    monkeypatch.setattr(corpus_module, "MOST_DRAWN_TEXTS", 40)
    values = {**EXAMPLE, **texts, **OWN_EXAMPLE.get(request_class, {})}
    asked = request_class(**{field.name: values[field.name] for field in fields(request_class)})
    answer = asking.raw(str(asked))
    (query,) = given
    assert query.names == set(request_class.query())
    if request_class.path in ("bank", "bank/cloud"):
        # The sentences of the bank are longer than this small model reads.
        assert answer.status == 422
        return
    if request_class in (SearchIndexRequest, SearchRequest, TaskPredictionRequest, *OF_LABELS):
        # This explorer has no index, and its model no classifier and no labels.
        assert answer.status == 409
        return
    if request_class is PatchingRequest:
        # The two texts have different numbers of tokens.
        assert answer.status == 409
        return
    if request_class is GlobalChangeRequest:
        # This model has no global tokens to choose.
        assert answer.status == 409
        return
    if request_class in (CorpusHeadsRequest, CorpusHeadRequest, CorpusFindRequest):
        # This explorer has not read its corpus.
        assert answer.status == 409
        return
    assert answer.status == 200, answer.data
    shape = request_class.answer
    if getattr(shape, "__origin__", None) is Arrays:
        (shape,) = shape.__args__
        unpacked = unpack(answer.data)[1]
    else:
        unpacked = json.loads(answer.data)
    if hasattr(shape, "__dataclass_fields__"):
        assert set(unpacked) == {field.name for field in fields(shape)} - array_fields(shape)
