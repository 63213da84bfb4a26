"""The explorer's server, asked directly, with a model of made-up attention."""

import http.client
import json
import signal
import socket
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_model import HEADS, LAYERS, FakeModel, FakeView

pytest.importorskip("starlette", reason="the explorer extra is not installed")
pytest.importorskip("httpx", reason="starlette's test client needs httpx")

from starlette.testclient import TestClient

from unmask.errors import InvalidRequest, UnmaskError
from unmask.explorer import make_app, serve

PORT = 8123
TOKEN = "right-token"
TEXT = "The river bank, muddy 🙂 again."
HERE = Path(__file__).parent


@pytest.fixture
def model():
    return FakeModel()


@pytest.fixture
def page(model):
    app = make_app(model, TOKEN, port=PORT, held_texts=2)
    with TestClient(app, base_url=f"http://127.0.0.1:{PORT}", headers={"X-Unmask-Token": TOKEN}) as client:
        yield client


def read(page, text=TEXT, **options):
    return page.post("/api/texts", json={"text": text, **options})


def problem(answer):
    error = answer.json()["error"]
    assert error["sentence"]
    assert "\n" not in error["sentence"]
    return error


def grid(answer, per_cell=1):
    magic, rows, columns, kind = struct.unpack("<4sIII", answer.content[:16])
    assert magic == b"UMK1"
    values = np.frombuffer(answer.content, "<f4", offset=16)
    return kind, values.reshape(rows, columns, *([per_cell] if per_cell > 1 else []))


def test_describes_the_model(page, model):
    assert page.get("/api/model").json() == {
        "name": "fake",
        "revision": model.revision,
        "parameter_count": 12_345_678,
        "layers": LAYERS,
        "heads": HEADS,
        "width": 16,
        "max_tokens": 32,
    }


def test_reads_a_text(page):
    read_ = read(page).json()
    assert (read_["layers"], read_["heads"]) == (LAYERS, HEADS)
    assert read_["total_tokens"] == read_["kept_tokens"] == len(read_["tokens"]) == 10
    first, *inner, last = read_["tokens"]
    assert (first["surface"], first["special"], first["start"], first["end"]) == (
        "[CLS]",
        True,
        0,
        0,
    )
    assert last["piece"] == "[SEP]"
    for token in inner:
        # Code points, as Python counts them: the emoji is one.
        assert TEXT[token["start"] : token["end"]] == token["surface"]
    assert "🙂" in [token["surface"] for token in inner]


def test_tile_is_the_view_s_own_numbers(page, model):
    text_id = read(page).json()["id"]
    view = model.attention(TEXT)
    answer = page.get(f"/api/texts/{text_id}/tiles/2/3?rows=1:4&columns=0:9")
    assert answer.headers["content-type"] == "application/octet-stream"
    kind, values = grid(answer)
    assert kind == 1
    assert np.array_equal(values, view.probabilities(2, 3, slice(1, 4), slice(0, 9)))
    _, whole = grid(page.get(f"/api/texts/{text_id}/tiles/2/3"))
    assert whole.shape == (10, 10)
    np.testing.assert_allclose(whole.sum(axis=1), 1, rtol=1e-6)


def test_head_statistics(page, model):
    text_id = read(page).json()["id"]
    view = model.attention(TEXT)
    kind, values = grid(page.get(f"/api/texts/{text_id}/heads"), per_cell=3)
    assert kind == 2
    assert values.shape == (LAYERS, HEADS, 3)
    for layer in range(LAYERS):
        for head in range(HEADS):
            p = view.whole(layer, head).astype(np.float64)
            entropy = -(p * np.log(p)).sum(axis=1).mean() / np.log(len(p))
            at = np.arange(len(p))
            distance = (p * abs(at[:, None] - at)).sum(axis=1).mean()
            wanted = [entropy, p.mean(axis=0).max(), distance]
            np.testing.assert_allclose(values[layer, head], wanted, rtol=1e-5)


def test_etag(page):
    path = f"/api/texts/{read(page).json()['id']}/tiles/0/0"
    first = page.get(path)
    same = page.get(path, headers={"If-None-Match": first.headers["etag"]})
    assert (same.status_code, same.content) == (304, b"")
    other = page.get(path + "?rows=0:1", headers={"If-None-Match": first.headers["etag"]})
    assert other.status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "tiles/3/0",
        "tiles/0/4",
        "tiles/-1/0",
        "tiles/x/0",
        "tiles/²/0",
        "tiles/0/0?rows=0:11",
        "tiles/0/0?rows=3:3",
        "tiles/0/0?rows=4:2",
        "tiles/0/0?rows=-1:2",
        "tiles/0/0?rows=1",
        "tiles/0/0?rows=",
        "tiles/0/0?columns=0:99999999999",
        "tiles/0/0?columns=a:b",
    ],
)
def test_bad_rectangles_are_refused(page, path):
    answer = page.get(f"/api/texts/{read(page).json()['id']}/{path}")
    assert answer.status_code == 400
    assert problem(answer)["kind"] == "InvalidRequest"


def test_large_rectangles_are_refused():
    app = make_app(FakeModel(max_tokens=None), TOKEN, port=PORT)
    client = TestClient(app, base_url=f"http://localhost:{PORT}", headers={"X-Unmask-Token": TOKEN})
    path = f"/api/texts/{read(client, 'a ' * 1100).json()['id']}/tiles/0/0"
    answer = client.get(path)
    assert answer.status_code == 400
    assert "1,048,576" in problem(answer)["sentence"]
    assert client.get(path + "?rows=0:2").status_code == 200


def test_too_long_says_both_numbers_and_can_be_cut(page):
    long = "word " * 40
    answer = read(page, long)
    assert answer.status_code == 422
    error = problem(answer)
    assert (error["kind"], error["total_tokens"], error["max_tokens"]) == ("TextTooLong", 42, 32)
    cut = read(page, long, too_long="cut").json()
    assert (cut["total_tokens"], cut["kept_tokens"], len(cut["tokens"])) == (42, 32, 32)


@pytest.mark.parametrize(
    ("text", "kind"), [("", "EmptyText"), ("  \n", "EmptyText"), ("a \ud83d b", "InvalidText")]
)
def test_texts_that_cannot_be_read(page, text, kind):
    # json escapes the lone surrogate, as JSON.stringify does in a browser.
    answer = page.post(
        "/api/texts",
        content=json.dumps({"text": text}),
        headers={"Content-Type": "application/json"},
    )
    assert answer.status_code == 422
    assert problem(answer)["kind"] == kind


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
def test_bad_bodies_are_refused(page, model, body, status):
    answer = page.post("/api/texts", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status
    problem(answer)
    assert model.calls == 0


def test_a_form_of_another_page_cannot_post(page, model):
    answer = page.post("/api/texts", content=b'{"text": "a"}')
    assert answer.status_code == 415
    assert model.calls == 0


def test_unknown_texts_and_routes(page):
    for path in ("/api/texts/nothing/heads", "/api/texts/nothing/tiles/0/0"):
        answer = page.get(path)
        assert answer.status_code == 404
        assert problem(answer)["kind"] == "UnknownText"
    assert problem(page.get("/api/elsewhere"))["kind"] == "UnknownRoute"
    assert problem(page.post("/api/model"))["kind"] == "UnknownRoute"


def test_only_the_latest_texts_are_held(page, model):
    ids = [read(page, text).json()["id"] for text in ("one", "two")]
    assert page.get(f"/api/texts/{ids[0]}/heads").status_code == 200
    read(page, "three")
    assert page.get(f"/api/texts/{ids[0]}/heads").status_code == 200
    assert page.get(f"/api/texts/{ids[1]}/heads").status_code == 404
    calls = model.calls
    assert read(page, "two").json()["id"] == ids[1], "a text sent again keeps its id"
    assert model.calls == calls + 1
    read(page, "two")
    assert model.calls == calls + 1, "a text that is held is not read again"


def test_forgetting(page):
    text_id = read(page).json()["id"]
    assert page.delete(f"/api/texts/{text_id}").status_code == 204
    assert page.get(f"/api/texts/{text_id}/heads").status_code == 404
    assert page.delete(f"/api/texts/{text_id}").status_code == 204


def test_numbers_that_are_not_finite_never_leave(page, monkeypatch):
    text_id = read(page).json()["id"]
    monkeypatch.setattr(FakeView, "probabilities", lambda *_: np.full((2, 2), np.nan, dtype=np.float32))
    answer = page.get(f"/api/texts/{text_id}/tiles/0/0")
    assert answer.status_code == 500
    assert problem(answer)["kind"] == "NonFiniteResult"


def test_a_fault_of_ours_is_still_a_sentence(model):
    model.attention = lambda *_, **__: 1 // 0
    app = make_app(model, TOKEN, port=PORT)
    client = TestClient(
        app,
        base_url=f"http://localhost:{PORT}",
        headers={"X-Unmask-Token": TOKEN},
        raise_server_exceptions=False,
    )
    answer = read(client)
    assert answer.status_code == 500
    assert problem(answer)["kind"] == "InternalError"


@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN + "x", "é"])
def test_the_api_wants_the_token(page, token):
    del page.headers["X-Unmask-Token"]
    headers = {} if token is None else {"X-Unmask-Token": token.encode("latin-1")}
    for path in ("/api/model", "/api/elsewhere"):
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
@pytest.mark.parametrize("path", ["/", "/api/model"])
def test_foreign_hosts_are_refused(page, host, path):
    answer = page.get(path, headers={"Host": host})
    assert answer.status_code == 403
    assert problem(answer)["kind"] == "ForeignHost"


@pytest.mark.parametrize("host", [f"127.0.0.1:{PORT}", f"localhost:{PORT}", f"[::1]:{PORT}"])
def test_our_own_names_are_served(page, host):
    headers = {"Host": host, "Origin": f"http://{host}"}
    assert page.get("/api/model", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", f"https://127.0.0.1:{PORT}", "http://127.0.0.1"]
)
def test_foreign_origins_are_refused(page, origin):
    answer = page.get("/api/model", headers={"Origin": origin})
    assert answer.status_code == 403
    assert problem(answer)["kind"] == "ForeignOrigin"
    assert "access-control-allow-origin" not in answer.headers


def test_headers(page):
    for path in ("/", "/api/model", "/api/elsewhere"):
        headers = page.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
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
    with pytest.raises(InvalidRequest, match="this machine only"):
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
        url = server.stdout.readline().strip()
        address, _, state = url.partition("#")
        assert state == "v=1&text=a%2Bb%20%26%20c"
        host, _, token = address.removeprefix("http://").partition("/?token=")
        assert host.startswith("127.0.0.1:")
        assert len(token) >= 32
        connection = http.client.HTTPConnection(host, timeout=10)
        connection.request("GET", "/api/model", headers={"X-Unmask-Token": token})
        answer = connection.getresponse()
        assert (answer.status, json.load(answer)["name"]) == (200, "fake")
        assert answer.headers["server"] is None
        connection.close()
        server.send_signal(signal.SIGINT)
        assert server.stdout.read().strip() == "left"
        assert server.wait(timeout=10) == 0


def test_models_without_a_revision_or_a_limit(model):
    app = make_app(replace(model, revision=None, max_tokens=None), TOKEN, port=PORT)
    client = TestClient(app, base_url=f"http://localhost:{PORT}", headers={"X-Unmask-Token": TOKEN})
    described = client.get("/api/model").json()
    assert described["revision"] is None
    assert described["max_tokens"] is None
    assert read(client).status_code == 200
