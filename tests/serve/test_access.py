"""Which requests are answered depends on the route and the key, not on what a request says of itself."""

import errno
import json

import pytest
from starlette.datastructures import URL
from starlette.requests import HTTPConnection
from starlette.testclient import TestClient

from unmask.serve import make_app

KEY = "a key of many characters"
PUBLIC = {"/health", "/ping", "/ready", "/docs", "/openapi.json"}


@pytest.fixture(scope="module")
def lines():
    return []


@pytest.fixture(scope="module")
def keyed(served_models, lines):
    """A server with a key, of which every address is what the Host header makes of it."""
    app = make_app({"vectors": served_models["vectors"]}, keys=[KEY], log=lines.append)
    with pytest.MonkeyPatch.context() as patch:
        # Starlette before 1.0.1 does this.
        patch.setattr(
            HTTPConnection,
            "url",
            property(lambda own: URL(f"http://{own.headers['host']}{own.scope['path']}")),
        )
        yield app
    app.state.service.close()


@pytest.mark.parametrize("host", ["x/health?", "x/docs#", "x/ready?", "x/openapi.json?", "x"])
def test_no_host_opens_a_route_that_needs_a_key(keyed, host):
    with TestClient(keyed) as client:
        for route in keyed.routes:
            (method,) = route.methods - {"HEAD"}
            answer = client.request(
                method, route.path, headers={"host": host}, json={} if method == "POST" else None
            )
            assert (answer.status_code == 401) == (route.path not in PUBLIC), (route.path, answer.text)


def test_a_slash_at_the_end_is_checked_logged_and_counted(keyed, lines):
    with TestClient(keyed, follow_redirects=False) as client:
        lines.clear()
        for path in ("/embed/", "/v1/embeddings/", "/health/"):
            refused = client.post(path, json={"input": "a"}, headers={"host": "evil.example"})
            assert (refused.status_code, "location" in refused.headers) == (401, False)
            allowed = {"authorization": f"Bearer {KEY}", "x-request-id": "r-1"}
            missing = client.post(path, json={"input": "a"}, headers=allowed)
            assert (missing.status_code, missing.headers["x-request-id"]) == (404, "r-1")
    assert [json.loads(line)["status"] for line in lines] == [401, 404] * 3


def test_without_keys_a_foreign_host_is_not_redirected(served_models):
    app = make_app({"vectors": served_models["vectors"]})
    with TestClient(app, base_url="http://evil.example", follow_redirects=False) as client:
        assert client.post("/v1/embeddings/", json={"input": "a"}).status_code == 403
    app.state.service.close()


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "no space left"), BrokenPipeError(), ValueError("closed")]
)
def test_a_log_that_cannot_be_written_fails_no_request(served_models, error):
    def full(line):
        raise error

    app = make_app({"vectors": served_models["vectors"]}, log=full)
    with TestClient(app, base_url="http://localhost") as client:
        assert client.post("/embed", json={"inputs": "the"}).status_code == 200
        assert "\nunmask_log_lines_lost_total 1\n" in client.get("/metrics").text
    app.state.service.close()
