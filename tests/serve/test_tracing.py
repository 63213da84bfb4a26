"""Spans reach a collector over HTTP, belong to the client's trace, and hold no texts."""

import json
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from starlette.testclient import TestClient

from tests.serve.test_routes import TEXTS
from unmask.base import optional
from unmask.errors import InvalidRequest, MissingExtra
from unmask.serve import make_app
from unmask.serve.server import serve

pytest.importorskip("opentelemetry.sdk", reason="traces need OpenTelemetry's SDK")

pytestmark = pytest.mark.long

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CONTEXT = {"traceparent": f"00-{TRACE}-{PARENT}-01"}


class Collector:
    """Takes spans over HTTP, as a collector does."""

    def __init__(self):
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        self.bodies, self.paths, self.keys = [], [], []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(handler):
                self.paths.append(handler.path)
                self.keys.append(handler.headers["x-key"])
                self.bodies.append(handler.rfile.read(int(handler.headers["content-length"])))
                handler.send_response(200)
                handler.end_headers()

            def log_message(handler, *said):
                pass

        self._parse = ExportTraceServiceRequest.FromString
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    def resources(self):
        return [one for body in self.bodies for one in self._parse(body).resource_spans]

    def spans(self):
        """Each span with its attributes."""
        found = [span for one in self.resources() for scope in one.scope_spans for span in scope.spans]
        return [(span, {pair.key: value(pair.value) for pair in span.attributes}) for span in found]


def value(any_value):
    return getattr(any_value, any_value.WhichOneof("value"))


@pytest.fixture
def collector():
    made = Collector()
    yield made
    made.close()


def asked(app, *requests):
    """The answers to requests, after which the server is closed."""
    try:
        with TestClient(app, base_url="http://127.0.0.1:8080", raise_server_exceptions=False) as client:
            return [client.request(method, path, **given) for method, path, given in requests]
    finally:
        app.state.service.close()


def test_spans_of_requests(collector, served_models):
    model, lines = served_models["vectors"], []
    app = make_app({"vectors": model}, otlp_endpoint=collector.url + "/", log=lines.append)
    answers = asked(
        app,
        ("POST", "/embed", {"json": {"inputs": TEXTS}, "headers": CONTEXT}),
        ("GET", "/nothing", {"headers": CONTEXT}),
        ("GET", "/health", {}),
    )
    assert [one.status_code for one in answers] == [200, 404, 200]
    (embed, said), (unknown, missing), (health, well) = collector.spans()
    assert set(collector.paths) == {"/v1/traces"}
    assert [one.name for one in (embed, unknown, health)] == ["POST /embed", "GET unknown", "GET /health"]
    assert {one.kind for one in (embed, unknown, health)} == {embed.SPAN_KIND_SERVER}
    assert (embed.trace_id.hex(), embed.parent_span_id.hex()) == (TRACE, PARENT)
    assert health.trace_id.hex() != TRACE
    assert embed.end_time_unix_nano > embed.start_time_unix_nano
    assert said["http.request.method"] == "POST"
    assert said["http.route"] == "/embed"
    assert said["gen_ai.usage.input_tokens"] == sum(map(len, model.tokenize(TEXTS)))
    assert [one["http.response.status_code"] for one in (said, missing, well)] == [200, 404, 200]
    assert "error.type" not in missing
    assert [json.loads(line)["trace_id"] for line in lines] == [TRACE, TRACE, health.trace_id.hex()]
    sent = b"".join(collector.bodies)
    assert not [text for text in TEXTS if text.encode() in sent]
    names = {pair.key: value(pair.value) for one in collector.resources() for pair in one.resource.attributes}
    assert names["service.name"] == "unmask"


def test_settings_come_from_the_environment(collector, served_models, monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "reader")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=secret")
    asked(
        make_app({"vectors": served_models["vectors"]}, otlp_endpoint=collector.url), ("GET", "/health", {})
    )
    (one,) = collector.resources()
    assert {pair.key: value(pair.value) for pair in one.resource.attributes}["service.name"] == "reader"
    assert collector.keys == ["secret"]
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    asked(
        make_app({"vectors": served_models["vectors"]}, otlp_endpoint=collector.url), ("GET", "/health", {})
    )
    assert len(collector.bodies) == 1


def test_an_endpoint_that_is_no_string_is_refused(served_models):
    with pytest.raises(InvalidRequest, match=r"^the OTLP endpoint is 4318; give a collector's address"):
        make_app({"vectors": served_models["vectors"]}, otlp_endpoint=4318)


@pytest.mark.parametrize(
    ("path", "body", "status"), [("/embed", {"inputs": "a"}, 424), ("/v1/embeddings", {"input": "a"}, 500)]
)
def test_an_internal_error_is_told_without_what_it_said(
    path, body, status, collector, served_models, monkeypatch, capsys
):
    app = make_app({"vectors": served_models["vectors"]}, otlp_endpoint=collector.url)

    def broken(*given):
        raise RuntimeError("what somebody wrote")

    monkeypatch.setattr(app.state.service.scheduler, "submit", broken)
    (answer,) = asked(app, ("POST", path, {"json": body}))
    assert answer.status_code == status
    ((span, said),) = collector.spans()
    assert (said["error.type"], span.status.code) == (str(status), span.status.STATUS_CODE_ERROR)
    assert b"somebody" not in b"".join(collector.bodies)
    assert "what somebody wrote" in capsys.readouterr().err


def test_without_a_collector_requests_are_answered_and_the_server_ends(served_models):
    gone = Collector()
    gone.close()
    app = make_app({"vectors": served_models["vectors"]}, otlp_endpoint=gone.url)
    began = time.monotonic()
    (answer,) = asked(app, ("POST", "/embed", {"json": {"inputs": TEXTS}}))
    assert answer.status_code == 200
    assert time.monotonic() - began < 20


def test_without_an_endpoint_there_are_no_spans(app):
    assert app.state.service.traces is None


@pytest.mark.parametrize(
    "endpoint", ["localhost:4318", "ftp://collector", "http://", "http://a:x", "http://a:0", ""]
)
def test_an_address_that_is_none_is_refused(served_models, endpoint):
    said = f"the OTLP endpoint is '{endpoint}'; give a collector's address, such as http://localhost:4318"
    with pytest.raises(InvalidRequest, match=r"^the OTLP endpoint is ") as refused:
        make_app({"vectors": served_models["vectors"]}, otlp_endpoint=endpoint)
    assert str(refused.value) == said
    with pytest.raises(InvalidRequest, match=r"^the OTLP endpoint is "):
        serve({"vectors": lambda: pytest.fail("the model was loaded")}, port=0, otlp_endpoint=endpoint)


def test_without_the_packages(served_models, monkeypatch):
    found = optional._found
    monkeypatch.setattr(optional, "_found", lambda name: "opentelemetry" not in name and found(name))
    with pytest.raises(MissingExtra, match=r"pip install 'unmask\[otel\]', or leave --otlp-endpoint out$"):
        make_app({"vectors": served_models["vectors"]}, otlp_endpoint="http://localhost:4318")


def test_the_command_refuses_it_in_one_sentence():
    ended = subprocess.run(
        [sys.executable, "-m", "unmask", "serve", "--port", "0", "--otlp-endpoint", "collector"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr.strip().endswith("such as http://localhost:4318")
    assert "Traceback" not in ended.stderr
