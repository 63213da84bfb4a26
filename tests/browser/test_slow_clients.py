"""Clients that send half of something: given up in time, told apart from faults of ours."""

import socket
from contextlib import closing
from http.client import HTTPConnection

import pytest
from conftest import TOKEN, running
from fake_model import FakeModel


@pytest.fixture
def served(monkeypatch):
    pytest.importorskip("uvicorn", reason="the explorer extra is not installed")
    monkeypatch.setattr("unmask.http.server.HEAD_SECONDS", 0.1)
    monkeypatch.setattr("unmask.http.requests.BODY_SECONDS", 0.1)
    with running(FakeModel()) as server:
        yield server


def connected(server):
    host, port = server.origin.removeprefix("http://").split(":")
    return closing(socket.create_connection((host, int(port)), timeout=20))


def post(server, length):
    host = server.origin.removeprefix("http://")
    lines = (
        "POST /api/texts HTTP/1.1",
        f"Host: {host}",
        f"X-Unmask-Token: {TOKEN}",
        "Content-Type: application/json",
        f"Content-Length: {length}",
    )
    return "\r\n".join((*lines, "", "")).encode()


def received(client):
    """All until the server closes the connection."""
    found = b""
    while part := client.recv(65_536):
        found += part
    return found


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost:"])
def test_half_a_head_is_given_up(served, sent):
    with connected(served) as client:
        client.sendall(sent)
        assert received(client) == b""


def test_half_a_second_request_is_given_up(served):
    with closing(HTTPConnection(served.origin.removeprefix("http://"), timeout=20)) as connection:
        connection.request("GET", "/")
        assert connection.getresponse().read()
        connection.sock.sendall(b"GET / HTTP")
        assert received(connection.sock) == b""


def test_a_body_that_never_comes_is_answered_and_closed(served):
    with connected(served) as client:
        client.sendall(post(served, 100) + b'{"text"')
        answer = received(client)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"BodyTooSlow" in answer


def test_who_leaves_in_mid_upload_is_no_fault_of_ours(served, caplog):
    with connected(served) as client:
        client.sendall(post(served, 100_000) + b'{"text": "a')
    with connected(served) as client:
        client.sendall(post(served, 2) + b"{}")
        assert client.recv(12) == b"HTTP/1.1 400"
    served.stop()
    assert caplog.text == ""


def test_a_web_socket_is_refused_without_advice(served, caplog):
    with connected(served) as client:
        lines = ("GET / HTTP/1.1", f"Host: {served.origin.removeprefix('http://')}", "Connection: Upgrade")
        client.sendall(
            "\r\n".join((*lines, "Upgrade: websocket", "Sec-WebSocket-Version: 13", "", "")).encode()
        )
        assert client.recv(15) == b"HTTP/1.1 200 OK", "the page: the upgrade is ignored"
    assert "pip install" not in caplog.text
