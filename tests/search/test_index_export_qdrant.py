"""An index written to Qdrant: its local mode, and requests to a server."""

import json
import sqlite3
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.search import test_index_export
from tests.search.test_index_export import QUERIES, left, require_whole, searched
from tests.support.command import run_here
from unmask.errors import InvalidRequest, OutputError
from unmask.search.export import qdrant

client = pytest.importorskip("qdrant_client", reason="it writes and searches collections")

pytestmark = pytest.mark.long

model, index, expected = test_index_export.model, test_index_export.index, test_index_export.expected


@pytest.fixture(scope="module")
def collection(index, tmp_path_factory):
    """The local mode, opened after the export."""
    folder = tmp_path_factory.mktemp("qdrant") / "new"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(qdrant, "POINTS_AT_ONCE", 7)
        index.export(folder, "qdrant", name="notes")
    opened = client.QdrantClient(path=str(folder))
    yield opened
    opened.close()


@pytest.mark.parametrize("query", QUERIES)
def test_the_local_mode_finds_what_exact_search_finds(collection, index, model, query):
    vector = model.embed_query(query, normalize=True)
    points = collection.query_points("notes", query=vector.tolist(), limit=10).points
    hits = index.search(query, mode="dense")
    assert [(point.payload["document"], point.payload["start"]) for point in points] == searched(index, query)
    assert [point.score for point in points] == pytest.approx([hit.score for hit in hits], abs=1e-6)


def test_the_collection_has_every_passage(collection, index, expected):
    points, after = collection.scroll("notes", limit=1000, with_vectors=True)
    assert after is None
    require_whole([point.payload | {"id": point.id, "vector": point.vector} for point in points], expected)
    told = collection.get_collection("notes").config
    assert told.params.vectors.distance == client.models.Distance.DOT
    assert told.metadata["sha256"] == index.settings.models["dense"].sha256


class Server(ThreadingHTTPServer):
    """What a Qdrant server answers to the requests of an export, and which it got."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.collections, self.requests, self.keys = {}, [], set()
        self.most_points, self.lost_points, self.taken = 10**6, 0, None

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    """One request: GET .../exists, PUT, DELETE, PUT .../points, POST .../points/count."""

    def answer(self):
        size = int(self.headers.get("content-length", 0))
        body = json.loads(self.rfile.read(size)) if size else None
        path = self.path.split("?")[0]
        server, (_, _, name, *rest) = self.server, path.split("/")
        server.requests.append((self.command, "/".join(rest)))
        server.keys.add(self.headers.get("api-key"))
        match self.command, rest:
            case "GET", ["exists"]:
                self.say({"exists": name in server.collections})
            case "PUT", []:
                if name == server.taken:
                    self.say(f"Collection {name} already exists!", 409)
                    return
                server.collections[name] = []
                self.say(True)
            case "DELETE", []:
                server.collections.pop(name)
                self.say(True)
            case "PUT", ["points"]:
                kept, batch = server.collections[name], body["batch"]
                if len(kept) + len(batch["ids"]) > server.most_points:
                    self.say("no space is left", 500)
                    return
                fields = zip(batch["ids"], batch["vectors"], batch["payloads"], strict=True)
                kept += [payload | {"id": id, "vector": vector} for id, vector, payload in fields]
                self.say({"operation_id": 1, "status": "completed"})
            case "POST", ["points", "count"]:
                self.say({"count": len(server.collections[name]) - server.lost_points})

    do_GET = do_PUT = do_POST = do_DELETE = answer

    def say(self, result, code=200):
        told = {"status": {"error": result}} if code != 200 else {"status": "ok", "result": result}
        content = json.dumps(told | {"time": 0.1}).encode()
        self.send_response(code)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(qdrant, "POINTS_AT_ONCE", 7)
    made = Server()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def test_a_server_gets_every_passage(server, index, expected, monkeypatch):
    monkeypatch.setenv("QDRANT_API_KEY", "secret")
    with pytest.warns(UserWarning, match="insecure connection"):
        made = index.export(server.url, "qdrant")
    require_whole(server.collections["passages"], expected)
    assert made.output == server.url
    assert server.requests[:2] == [("GET", "exists"), ("PUT", "")]
    assert server.requests.count(("PUT", "points")) > 3
    assert server.keys == {"secret"}


def test_a_collection_that_exists_is_kept(server, index):
    server.collections["passages"] = ["mine"]
    with pytest.raises(OutputError, match="has a collection passages already; choose another name"):
        index.export(server.url, "qdrant")
    assert server.collections == {"passages": ["mine"]}


def test_a_server_that_fails_keeps_no_part(server, index):
    server.most_points = 20
    ran = run_here("index-export", index.path, "-o", server.url, "--format", "qdrant")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"unmask: cannot write to {server.url}: no space is left\n"
    assert server.collections == {}
    assert server.requests[-1] == ("DELETE", "")


def test_a_collection_that_appears_meanwhile_is_kept(server, index):
    server.taken = "passages"
    with pytest.raises(OutputError, match="Collection passages already exists!"):
        index.export(server.url, "qdrant")
    assert ("DELETE", "") not in server.requests


def test_a_full_disk_is_reported(index, tmp_path, monkeypatch):
    def upsert(*args, **named):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(client.QdrantClient, "upsert", upsert)
    with pytest.raises(OutputError, match=r"cannot write .*: database or disk is full"):
        index.export(tmp_path / "new", "qdrant")
    assert left(tmp_path) == []


def test_points_that_are_lost_are_noticed(server, index):
    server.lost_points = 2
    with pytest.raises(OutputError, match=f"has {index.passages - 2} points of {index.passages} passages"):
        index.export(server.url, "qdrant")
    assert server.collections == {}


def test_an_address_without_a_server(index, tmp_path):
    with pytest.raises(OutputError, match=r"cannot write to http://127\.0\.0\.1:9: .*refused"):
        index.export("http://127.0.0.1:9", "qdrant")
    with pytest.raises(InvalidRequest, match="is no address"):
        index.export("http://[", "qdrant")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError, match="exists already"):
        index.export(tmp_path / "file", "qdrant")
    assert left(tmp_path) == ["file"]
