"""The OpenAPI document says what the server takes and answers, and the page tries it."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.serve.test_routes import TEXTS, WRONG
from tests.serve.test_running import served
from tests.support.chromium import chromium
from unmask.serve.routes import ROUTES

(TRIED,) = (route for route in ROUTES if route.path == "/embed")


@pytest.fixture
def document(client):
    return client.get("/openapi.json").json()


def test_it_describes_every_route(app, document):
    served = {(route.path, method) for route in app.routes for method in route.methods - {"HEAD"}}
    written = {(path, method.upper()) for path, methods in document["paths"].items() for method in methods}
    assert written == served - {("/docs", "GET"), ("/openapi.json", "GET")}
    assert len(
        {one["operationId"] for methods in document["paths"].values() for one in methods.values()}
    ) == (len(written))


def test_answers_and_refusals_follow_it(client, document):
    """One good request for each route that a model of the fixture serves, and every bad one of the others."""
    jsonschema = pytest.importorskip(
        "jsonschema_rs", reason="checks JSON schemas; it comes with schemathesis"
    )
    good = {
        "/v1/embeddings": {"input": TEXTS}, "/embed": {"inputs": TEXTS}, "/embed_all": {"inputs": TEXTS[0]},
        "/embed_sparse": {"inputs": TEXTS}, "/rerank": {"query": "a", "texts": TEXTS, "return_text": True},
        "/predict": {"inputs": "a"}, "/tokenize": {"inputs": TEXTS}, "/decode": {"ids": [2, 5]},
        "/similarity": {"inputs": {"source_sentence": "a", "sentences": TEXTS}},
        "/v2/rerank": {"query": "a", "documents": TEXTS, "return_documents": True},
        "/v2/embed": {"texts": TEXTS, "embedding_types": ["float", "base64", "binary"]},
        "/v1/embed": {"texts": TEXTS}, "/v1/masked_words": {"texts": "the [MASK]"},
        "/v1/attention": {"texts": TEXTS}, "/v1/redact": {"texts": TEXTS},
    }  # fmt: skip
    for path, body in [*good.items(), *((path, body) for path, body, *_ in WRONG)]:
        answer = client.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
        declared = document["paths"][path]["post"]["responses"][str(answer.status_code)]
        jsonschema.validate(declared["content"]["application/json"]["schema"], answer.json())
        schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        if path in good and body is good[path]:
            assert answer.status_code == 200, answer.text
            jsonschema.validate(schema, body)


def test_the_page_needs_nothing_else(client):
    answer = client.get("/docs")
    assert answer.headers["content-type"].startswith("text/html")
    assert not re.findall(r"(?:src|href)=\"(?!data:|openapi\.json)", answer.text)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert policy.count("sha256-") == 2


def test_the_page_tries_a_route(served_folders, tmp_path):
    """In a browser: every route is listed, and one request is answered."""
    with ThreadPoolExecutor(1) as own:  # this thread may have a loop: Playwright's, in other browser tests
        own.submit(try_a_route, served_folders, tmp_path).result()


def try_a_route(served_folders, tmp_path):
    with served(tmp_path, "-m", f"m={served_folders / 'vectors'}") as (url, _), chromium() as browser:
        page, wrong = browser.new_page(), []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.goto(f"{url}/docs")
        page.wait_for_selector("#form:not([hidden])")
        options = page.locator("#route option").all_text_contents()
        assert {f"POST {route.path}" for route in ROUTES} <= set(options)
        page.select_option("#route", f"POST {TRIED.path}")
        page.click("button")
        page.wait_for_selector("#answer:not([hidden])")
        assert page.inner_text("#status").startswith("200")
        answer = page.inner_text("#answer")
        assert len(json.loads(answer)[0]) == 30
        assert len(answer.splitlines()) == 3  # a vector is one line
        assert page.locator("#fields tr").count() == len(TRIED.body)
        assert not page.is_visible("#key")  # the server has none
        assert wrong == []
        # On a phone, nothing is wider than the screen and the fields are folded.
        page.set_viewport_size({"width": 390, "height": 844})
        page.reload()
        page.wait_for_selector("#form:not([hidden])")
        assert not page.is_visible("#fields")
        page.click("summary")
        assert page.evaluate("document.documentElement.scrollWidth") == 390
