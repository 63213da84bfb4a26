"""The explorer's server, asked directly: what stands around the API, which tests/explorer asks without it."""

import http.client
import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fake_model import LAYERS, FakeModel

pytest.importorskip("starlette", reason="the explorer extra is not installed")
pytest.importorskip("httpx", reason="starlette's test client needs httpx")

from starlette.testclient import TestClient

from tests.support.waiting import wait_until
from unmask.errors import InvalidRequest, UnmaskError
from unmask.explorer import make_app, serve
from unmask.explorer.wire.binary import unpack

PORT = 8123
TOKEN = "right-token"
TEXT = "The river bank, muddy 🙂 again."
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def model():
    return FakeModel()


@pytest.fixture
def page(model):
    app = make_app(model, TOKEN, port=PORT, held_texts=2)
    with TestClient(app, base_url=f"http://127.0.0.1:{PORT}", headers={"X-Unmask-Token": TOKEN}) as client:
        yield client
    app.state.opening.close()


def read(page, text=TEXT, **options):
    return page.post("/api/texts", json={"text": text, **options})


def problem(answer):
    error = answer.json()["error"]
    assert error["sentence"]
    assert "\n" not in error["sentence"]
    return error


def test_answers_what_the_api_answers(page, model):
    session = page.get("/api/session")
    assert session.headers["content-type"] == "application/json"
    assert session.json()["models"][0]["layers"] == LAYERS
    text = read(page).json()
    assert page.get(f"/api/texts/{text['id']}").json() == text
    answer = page.get(f"/api/texts/{text['id']}/values/2/3?rows=1:4&columns=0:9")
    assert answer.headers["content-type"] == "application/octet-stream"
    arrays, _ = unpack(answer.content)
    wanted = model.attention(TEXT).probabilities(2, 3, slice(1, 4), slice(0, 9))
    np.testing.assert_allclose(arrays["values"], wanted, atol=1e-6)
    assert page.delete(f"/api/texts/{text['id']}").status_code == 204
    assert page.get(f"/api/texts/{text['id']}").status_code == 404


def test_etag(page):
    text = f"/api/texts/{read(page).json()['id']}"
    wait_until(lambda: page.get(f"{text}/state").json()["phase"] == "done")
    path = f"{text}/values/0/0"
    first = page.get(path)
    same = page.get(path, headers={"If-None-Match": first.headers["etag"]})
    assert (same.status_code, same.content) == (304, b"")
    other = page.get(path + "?rows=0:1", headers={"If-None-Match": first.headers["etag"]})
    assert other.status_code == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[1]", 400),
        (b"\xff\xfe", 400),
        (b'{"text": 1}', 400),
        (b'{"text": "a", "too_long": "maybe"}', 400),
        (b'{"text": "' + b"a" * (1 << 20) + b'"}', 413),
        (b"[" * 100_000, 400),
    ],
)
def test_bad_bodies_are_refused(page, body, status):
    answer = page.post("/api/texts", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status
    problem(answer)


def test_a_form_of_another_page_cannot_post(page):
    answer = page.post("/api/texts", content=b'{"text": "a"}')
    assert answer.status_code == 415
    problem(answer)


def test_unknown_texts_and_routes(page):
    assert problem(page.get("/api/texts/nothing/heads"))["kind"] == "UnknownText"
    assert problem(page.get("/api/elsewhere"))["kind"] == "UnknownRoute"
    assert problem(page.post("/api/session", json={}))["kind"] == "UnknownRoute"
    assert problem(page.get("/api/texts/..%2Fsession"))["kind"] == "UnknownText", "one part, slash and all"
    assert problem(page.get("/api/texts/%2573%25"))["kind"] == "UnknownText"
    assert problem(page.get("/api/?texts"))["kind"] == "UnknownRoute"


def test_the_page_is_there_before_the_api_is(model, capfd):
    def broken():
        raise RuntimeError("no such thing")

    class Late(list):
        """Models whose first use fails: what the API is made of is looked at in the background only."""

        def __iter__(self):
            broken()

    app = make_app(Late([model]), TOKEN, port=PORT)
    client = TestClient(app, base_url=f"http://localhost:{PORT}", headers={"X-Unmask-Token": TOKEN})
    assert client.get("/").status_code == 200
    answer = client.get("/api/session")
    assert answer.status_code == 500
    assert problem(answer)["kind"] == "InternalError"
    assert "no such thing" in capfd.readouterr().err


@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN + "x", "é"])
def test_the_api_wants_the_token(page, token):
    del page.headers["X-Unmask-Token"]
    headers = {} if token is None else {"X-Unmask-Token": token.encode("latin-1")}
    for path in ("/api/session", "/api/elsewhere"):
        answer = page.get(path, headers=headers)
        assert answer.status_code == 401
        assert problem(answer)["kind"] == ("TokenMissing" if token is None else "TokenWrong")
    assert page.get("/").status_code == 200, "the page itself holds nothing secret"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1",
        f"127.0.0.1:{PORT + 1}",
        f"evil.example:{PORT}",
        "",
        f"0.0.0.0:{PORT}",
    ],
)
@pytest.mark.parametrize("path", ["/", "/api/session"])
def test_foreign_hosts_are_refused(page, host, path):
    answer = page.get(path, headers={"Host": host})
    assert answer.status_code == 403
    assert problem(answer)["kind"] == "ForeignHost"


@pytest.mark.parametrize("host", [f"127.0.0.1:{PORT}", f"localhost:{PORT}", f"[::1]:{PORT}"])
def test_our_own_names_are_served(page, host):
    headers = {"Host": host, "Origin": f"http://{host}"}
    assert page.get("/api/session", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", f"https://127.0.0.1:{PORT}", "http://127.0.0.1"]
)
def test_foreign_origins_are_refused(page, origin):
    answer = page.get("/api/session", headers={"Origin": origin})
    assert answer.status_code == 403
    assert problem(answer)["kind"] == "ForeignOrigin"
    assert "access-control-allow-origin" not in answer.headers


def test_headers(page):
    for path in ("/", "/api/session", "/api/elsewhere"):
        headers = page.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["x-frame-options"] == "DENY"
        assert headers["cross-origin-opener-policy"] == "same-origin"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["cache-control"] == ("no-cache" if path == "/" else "no-store")


def test_serves_the_page_and_its_assets(page):
    html = page.get("/").text
    asset = html.split('src="')[1].split('"')[0]
    answer = page.get(asset)
    assert answer.status_code == 200
    assert "immutable" in answer.headers["cache-control"]
    assert page.get("/assets/../manifest.json").status_code == 404
    assert page.get("/assets/nothing.js").status_code == 404


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.2", "example.org", ""])
def test_listens_on_this_machine_only(model, host):
    with pytest.raises(InvalidRequest, match="listens only on this machine"):
        serve(model, host=host)


def test_a_port_in_use_is_one_sentence(model):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UnmaskError, match=f"port {port} .* choose another"):
            serve(model, port=port)
    with pytest.raises(InvalidRequest, match="0 to 65535"):
        serve(model, port=70_000)


def test_serve_prints_an_address_that_works_and_leaves_on_interrupt():
    program = (
        "from fake_model import FakeModel; from unmask.explorer import serve;"
        "serve(FakeModel(), text='a+b & c', on_ready=lambda url: print(url, flush=True));"
        "print('left')"
    )
    path = [str(HERE), str(HERE.parents[1])]
    with subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}; {program}"],
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        try:
            url = server.stdout.readline().strip()
            address, _, state = url.partition("#")
            assert state == "v=3&text=a%2Bb%20%26%20c"
            host, _, token = address.removeprefix("http://").partition("/?token=")
            assert host.startswith("127.0.0.1:")
            assert len(token) >= 32
            connection = http.client.HTTPConnection(host, timeout=60)
            connection.request("GET", "/api/session", headers={"X-Unmask-Token": token})
            answer = connection.getresponse()
            assert (answer.status, json.load(answer)["models"][0]["name"]) == (200, "fake")
            assert answer.headers["server"] is None
            connection.close()
            server.send_signal(signal.SIGINT)
            assert server.stdout.read().strip() == "left"
            assert server.wait(timeout=60) == 0
        finally:
            server.kill()  # what fails above must not wait for a server that goes on
