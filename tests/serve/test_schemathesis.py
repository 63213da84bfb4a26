"""Requests made from the OpenAPI document: every answer is one that it declares, and none is a 5xx.

`UNMASK_SCHEMATHESIS=10000 pytest tests/serve/test_schemathesis.py -s` tries 10,000 requests of each route
(40 without the variable), half of which follow the document; `-k "[/embed]"` chooses a route. Each route
prints how many were made and how they were answered. A route without parameters has only one request.
"""

import os
import time
from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable

import unmask
from tests.serve.test_routes import TEXTS
from tests.support.tiny import tiny_bert, write_checkpoint
from unmask.search.index import Index
from unmask.serve import Limits, make_app
from unmask.serve.openapi import PLAIN_GETS
from unmask.serve.routes import GETS, ROUTES

CASES = int(os.environ.get("UNMASK_SCHEMATHESIS", "40"))
PATHS = [*(route.path for route in ROUTES), *(route.path for route in GETS), *PLAIN_GETS, "/metrics"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def operations(served_models, tmp_path_factory):
    """The operations of a server with a model for every route, by their paths."""
    schemathesis = pytest.importorskip("schemathesis")
    place = tmp_path_factory.mktemp("schemathesis")
    write_checkpoint(place / "names", tiny_bert("BertForTokenClassification", num_labels=3), sentence=False)
    write_checkpoint(place / "spans", tiny_bert("BertForQuestionAnswering"), sentence=False)
    index = Index.create(place / "notes", served_models["vectors"])
    index.add(TEXTS)
    more = {name: unmask.load(place / name) for name in ("names", "spans")}
    # Without a limit of time that a busy machine could exceed, 504 would be a request that was forgotten.
    app = make_app(served_models | more, indexes={"notes": index}, limits=Limits(seconds=3600))
    api = schemathesis.openapi.from_asgi("/openapi.json", app, headers={"host": "127.0.0.1"})
    yield {one.ok().path: one.ok() for one in api.get_all_operations()}
    app.state.service.close()


def test_every_route_is_tried(operations):
    assert set(operations) == set(PATHS)


def answered(operation, mode):
    """Make requests in one of the modes of schemathesis and check each answer; how many had which status."""
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    codes = Counter()

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(max_examples=CASES // 2, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    def ask(case):
        answer = case.call(base_url="http://127.0.0.1", headers={"host": "127.0.0.1"})
        codes[answer.status_code] += 1
        case.validate_response(
            answer,
            checks=[
                not_a_server_error,
                checks.status_code_conformance,
                checks.content_type_conformance,
                checks.response_schema_conformance,
            ],
        )

    with suppress(Unsatisfiable):  # a route without parameters has no wrong request
        ask()
    return codes


@pytest.mark.parametrize("path", PATHS)
def test_answers_follow_the_document(operations, path):
    """No 5xx, and no status, type or answer that is not declared."""
    from schemathesis.generation import GenerationMode

    began = time.monotonic()
    right, wrong = (answered(operations[path], mode) for mode in GenerationMode)
    seconds = time.monotonic() - began
    print(f"\n{path}: {seconds:.0f} s; follow the document: {right.total()} {dict(right)}", end="; ")
    print(f"do not: {wrong.total()} {dict(wrong)}", flush=True)
    assert 200 in right or path == "/v1/masked_words"  # no random text has a mask token
