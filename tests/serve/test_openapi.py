"""The OpenAPI document says what the server takes and answers; the page that tries it; hostile bodies.

A long run of schemathesis over the document: `UNMASK_SCHEMATHESIS=1000 pytest tests/serve/test_openapi.py`.
"""

import json
import os
import re
import resource
import subprocess
import sys

import httpx
import pytest

from tests.serve.test_routes import TEXTS, WRONG
from tests.support.command import environment
from unmask.serve import make_app
from unmask.serve.routes import ROUTES

CASES = int(os.environ.get("UNMASK_SCHEMATHESIS", "0"))


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
        "/v1/attention": {"texts": TEXTS},
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
    sync = pytest.importorskip("playwright.sync_api")
    with running(served_folders / "vectors", tmp_path) as url, sync.sync_playwright() as engine:
        try:
            browser = engine.chromium.launch(executable_path="/usr/bin/chromium")
        except sync.Error as error:
            pytest.skip(f"there is no Chromium: {str(error).splitlines()[0]}")
        page, wrong = browser.new_page(), []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.goto(f"{url}/docs")
        page.wait_for_selector("#form:not([hidden])")
        options = page.locator("#route option").all_text_contents()
        assert {f"POST {route.path}" for route in ROUTES} <= set(options)
        page.select_option("#route", "POST /embed")
        page.click("button")
        page.wait_for_selector("#answer:not([hidden])")
        assert page.inner_text("#status").startswith("200")
        assert len(json.loads(page.inner_text("#answer"))[0]) == 30
        assert wrong == []
        browser.close()


# --- hostile bodies ----------------------------------------------------------------------------------------

DEEP = 100_000
HOSTILE = {
    "deep lists": b'{"inputs": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "deep objects": b'{"inputs": ' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}",
    "a million items": b'{"inputs": [' + b"1," * 999_999 + b"1]}",
    "a million texts": b'{"inputs": [' + b'"",' * 999_999 + b'""]}',
    "lone surrogates": b'{"inputs": "a \\ud800 \\udfff"}',
    "a key that is one": b'{"\\ud800": 1}',
    "a huge number": b'{"inputs": "a", "dimensions": ' + b"9" * 100_000 + b"}",
    "not a number": b'{"inputs": "a", "dimensions": NaN}',
    "infinity": b'{"inputs": "a", "dimensions": 1e999}',
    "invalid UTF-8": b'{"inputs": "\xff\xfe"}',
    "bare NUL": b'{"inputs": "a\x00b"}',
    "empty": b"",
}


@pytest.mark.parametrize("path", ["/embed", "/tokenize", "/predict", "/embed_all"])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bodies_are_refused(client, path, name):
    answer = client.post(path, content=HOSTILE[name], headers={"content-type": "application/json"})
    assert 400 <= answer.status_code < 500, answer.text[:200]
    assert len(answer.json()["error"]) < 500


def test_a_nul_is_a_character(client):
    answer = client.post("/embed", json={"inputs": "the \x00 bank"})
    assert answer.status_code == 200
    assert client.post("/embed", json={"inputs": "\x00"}).status_code == 400


def test_bodies_without_an_end_take_no_memory(served_folders, tmp_path):
    """A body without a length is read up to the limit, and a compressed one not at all."""
    with running(served_folders / "vectors", tmp_path) as url, httpx.Client(timeout=60) as session:
        session.post(f"{url}/embed", json={"inputs": "the"})
        pid = running.pid
        before = resident(pid)
        sent = 0

        def endless():
            nonlocal sent
            while sent < 1 << 30:
                sent += 1 << 16
                yield b" " * (1 << 16)

        try:
            answer = session.post(
                f"{url}/embed", content=endless(), headers={"content-type": "application/json"}
            )
            assert answer.status_code == 413
        except httpx.TransportError:
            pass  # the connection was closed while the body was still being sent
        assert sent < 64 << 20
        bomb = session.post(
            f"{url}/embed",
            content=b"\x1f\x8b" + b"\0" * 1000,
            headers={"content-type": "application/json", "content-encoding": "gzip"},
        )
        assert bomb.status_code == 415
        assert resident(pid) - before < 24 << 20
        assert session.post(f"{url}/embed", json={"inputs": "the"}).status_code == 200


def resident(pid):
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


class running:
    """``unmask serve`` of one model, as a process."""

    pid = 0

    def __init__(self, folder, place):
        self._command = [
            sys.executable,
            "-m",
            "unmask",
            "serve",
            "-m",
            f"m={folder}",
            "--port",
            "0",
            "--json",
        ]
        self._place = place

    def __enter__(self):
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, text=True, cwd=self._place, env=environment()
        )
        running.pid = self._process.pid
        return json.loads(self._process.stdout.readline())["url"]

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()


# --- schemathesis ------------------------------------------------------------------------------------------


@pytest.mark.skipif(not CASES, reason="set UNMASK_SCHEMATHESIS to a number of cases per route")
@pytest.mark.filterwarnings("ignore")
def test_schemathesis(served_models, tmp_path):
    """Requests made from the document: no 5xx, no status, type or answer that it does not declare."""
    schemathesis = pytest.importorskip("schemathesis")
    from hypothesis import HealthCheck, given, settings
    from hypothesis.errors import Unsatisfiable
    from schemathesis.checks import not_a_server_error
    from schemathesis.generation import GenerationMode
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    app = make_app(served_models, any_host=True)
    api = schemathesis.openapi.from_asgi("/openapi.json", app)
    chosen = [
        not_a_server_error,
        status_code_conformance,
        content_type_conformance,
        response_schema_conformance,
    ]
    count, failures = 0, []
    base = "http://127.0.0.1"
    for operation in (one.ok() for one in api.get_all_operations()):
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

            @given(case=operation.as_strategy(generation_mode=mode))
            @settings(
                max_examples=CASES // 2, deadline=None, database=None, suppress_health_check=list(HealthCheck)
            )
            def ask(case):
                nonlocal count
                count += 1
                answer = case.call(base_url=base, headers={"host": "127.0.0.1"})
                case.validate_response(answer, checks=chosen)

            try:
                ask()
            except Unsatisfiable:
                pass  # a route without parameters has no wrong request
            except Exception as error:
                causes = "; ".join(str(one) for one in getattr(error, "exceptions", ()))
                failures.append(f"{operation.label} ({mode.value}): {error} {causes}")
    app.state.service.close()
    print(f"{count} cases")
    assert not failures, "\n\n".join(failures)
