"""Clients that stall or send nothing more, over sockets: each part of a request and answer has its time."""

import json
import socket
import threading
import time
from contextlib import closing, contextmanager

import pytest
import uvicorn

from tests.support.waiting import wait_until
from unmask.http import server as timed
from unmask.serve import make_app
from unmask.serve.server import listen

pytestmark = pytest.mark.long

SECONDS = 20


@pytest.fixture
def serving(served_models, monkeypatch):
    """Starts a server in this process, on a free port; time limits are short."""
    monkeypatch.setattr(timed, "UNREAD_SECONDS", 0.3)
    monkeypatch.setattr(timed, "WRITE_SECONDS", 0.3)
    monkeypatch.setattr(timed, "PROBE_SECONDS", 0.1)

    @contextmanager
    def one(**options):
        app = make_app({"vectors": served_models["vectors"]}, **options)
        with listen("127.0.0.1", 0, ()) as listening:
            server = uvicorn.Server(timed.configured(app))
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
            thread.start()
            try:
                yield listening.getsockname(), app.state.service, server
            finally:
                server.should_exit = True
                thread.join(SECONDS)
                app.state.service.close()

    return one


def head(line, *headers, host="localhost"):
    return "\r\n".join([f"{line} HTTP/1.1", f"Host: {host}", *headers, "", ""]).encode()


def received(client):
    """All until the server closes the connection."""
    found = b""
    try:
        while part := client.recv(1 << 16):
            found += part
    except ConnectionResetError:
        pass
    return found


JSON, LENGTH = "Content-Type: application/json", "Content-Length: 1000000"
UNREAD = {
    "404": head("POST /nothing", JSON, LENGTH),
    "403": head("POST /embed", JSON, LENGTH, host="evil.example"),
    "405": head("POST /info", JSON, LENGTH),
    "415": head("POST /embed", JSON, LENGTH, "Content-Encoding: gzip"),
    "404 ": head("POST /embed/", JSON, LENGTH),
    "200": head("GET /health", LENGTH),
}


@pytest.mark.parametrize("name", UNREAD)
def test_a_body_that_no_route_reads_has_its_time(serving, name):
    with serving() as (address, _, _), closing(socket.create_connection(address, timeout=3)) as client:
        client.sendall(UNREAD[name])  # uvicorn would close after 5 seconds of silence, and never otherwise
        client.sendall(b" ")
        assert received(client).split(b" ", 2)[1] == name.strip().encode()


def test_an_answer_that_is_not_read_is_given_up(serving, monkeypatch):
    monkeypatch.setattr("unmask.serve.app.to_json", lambda value: b"1" * (1 << 24))
    with serving() as (address, _, server), closing(socket.create_connection(address, timeout=5)) as client:
        client.sendall(head("GET /info"))
        assert client.recv(10)
        deadline = time.monotonic() + SECONDS
        while server.server_state.connections and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not server.server_state.connections


def test_a_slow_reader_gets_all(serving, monkeypatch):
    """As long as it reads, its answer may take several times the limit."""
    monkeypatch.setattr("unmask.serve.app.to_json", lambda value: b"1" * (1 << 24))
    with serving() as (address, _, _), closing(socket.socket()) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        client.settimeout(5)
        client.connect(address)
        client.sendall(head("GET /info", "Connection: close"))
        got = 0
        while part := client.recv(1 << 19):
            got += len(part)
            time.sleep(0.01)
        assert got > 1 << 24


@pytest.fixture
def slow(served_models, monkeypatch):
    """The model computes when this event is set."""
    gate = threading.Event()
    engine = served_models["vectors"].engine
    work = engine.embed

    def waiting(*arguments, **options):
        assert gate.wait(SECONDS)
        return work(*arguments, **options)

    monkeypatch.setattr(engine, "embed", waiting)
    yield gate
    gate.set()


def embed(*headers):
    body = b'{"inputs": "the river"}'
    return head("POST /embed", JSON, f"Content-Length: {len(body)}", *headers) + body


def test_a_client_that_closes_its_sending_side_gets_its_answer(serving, slow):
    gate = slow
    gate.set()
    with serving() as (address, _, _), closing(socket.create_connection(address, timeout=5)) as client:
        gate.clear()
        client.sendall(embed())
        client.shutdown(socket.SHUT_WR)
        time.sleep(0.35)  # it is asked three times
        gate.set()
        *asked, answer = received(client).split(b"HTTP/1.1 ")[1:]
        assert [one[:12] for one in asked] == [b"100 Continue"] * len(asked)
        assert asked
        assert answer.startswith(b"200 ")


def test_a_client_that_has_left_is_noticed(serving, slow):
    gate = slow
    gate.set()
    with serving() as (address, service, _):
        gate.clear()
        with closing(socket.create_connection(address, timeout=5)) as client:
            client.sendall(embed())
            wait_until(lambda: service.requests)
        deadline = time.monotonic() + SECONDS
        while service.requests and time.monotonic() < deadline:
            time.sleep(0.05)
        gate.set()
        assert service.requests == 0
        assert service.metrics.rejected.value("client_left") == 1


NO_HTTP = {
    "a head": (b"GET\r\n\r\n", "error"),
    "a body": (head("POST /embed", JSON, "Transfer-Encoding: chunked") + b"zz\r\n", "error"),
    "OpenAI's body": (head("POST /v1/embeddings", JSON, "Transfer-Encoding: chunked") + b"zz\r\n", "message"),
    "Cohere's body": (head("POST /v2/embed", JSON, "Transfer-Encoding: chunked") + b"zz\r\n", "message"),
    "after an answer": (head("GET /health") + b"\0\0\r\n\r\n", "error"),
}


@pytest.mark.parametrize("name", NO_HTTP)
def test_what_is_not_http_is_answered_in_json(serving, name):
    """In the form of the route's clients, with an id, and counted and logged once."""
    sent, key = NO_HTTP[name]
    lines = []
    with serving(log=lines.append) as (address, _, _):
        with closing(socket.create_connection(address, timeout=SECONDS)) as client:
            client.sendall(sent)
            answer = received(client)
        refused, body = answer.rpartition(b"\r\n\r\n")[::2]
        assert b"HTTP/1.1 400 " in refused
        assert b"application/json" in refused
        assert b"x-request-id: " in refused
        value = json.loads(body)
        value = value["error"] if name == "OpenAI's body" else value
        assert "no valid request of HTTP/1.1" in value[key]
        deadline = time.monotonic() + SECONDS
        while not any('"status": 400' in line for line in lines) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert sum('"status": 400' in line for line in lines) == 1


def test_an_application_without_a_form_of_its_own_answers_in_json():
    async def app(scope, receive, send):
        raise AssertionError("it is not asked")

    with listen("127.0.0.1", 0, ()) as listening:
        server = uvicorn.Server(timed.configured(app))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        with closing(socket.create_connection(listening.getsockname(), timeout=SECONDS)) as client:
            client.sendall(b"GET\r\n\r\n")
            body = received(client).rpartition(b"\r\n\r\n")[2]
        server.should_exit = True
        thread.join(SECONDS)
    assert json.loads(body)["error"]["kind"] == "BadRequest"
