"""Hostile requests are refused at their limits, by the application and over a socket, and take no memory."""

import gzip
import json
import select
import socket
from contextlib import suppress

import httpx
import psutil
import pytest

from tests.serve.test_running import served

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
GIGABYTE = 1 << 30


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


# --- over a socket -----------------------------------------------------------------------------------------


def post(*headers, body=b""):
    """A request to /embed as bytes."""
    said = ["POST /embed HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers]
    return ["\r\n".join([*said, "", ""]).encode(), body]


def sized(body, *headers):
    return post(f"Content-Length: {len(body)}", *headers, body=body)


def without_an_end():
    """A gigabyte in chunks."""
    yield from post("Transfer-Encoding: chunked")
    for _ in range(GIGABYTE >> 16):
        yield b"10000\r\n" + b" " * (1 << 16) + b"\r\n"


CHUNKED = "Transfer-Encoding: chunked"
OVER_A_SOCKET = {name: (lambda body=body: sized(body), {400, 413}) for name, body in HOSTILE.items()} | {
    "a gigabyte in chunks": (without_an_end, {413}),
    "a gigabyte of zeros, compressed": (
        lambda: sized(gzip.compress(bytes(1 << 24)) * (GIGABYTE >> 24), "Content-Encoding: gzip"),
        {415},
    ),
    "4 GB that are never sent": (lambda: post(f"Content-Length: {4 << 30}"), {413}),
    "a length that is no number": (lambda: post("Content-Length: many"), {400}),
    "a negative length": (lambda: post("Content-Length: -1"), {400}),
    "two lengths": (lambda: post("Content-Length: 2", "Content-Length: 3", body=b"{}"), {400}),
    "a length and chunks": (lambda: post("Content-Length: 2", CHUNKED, body=b"0\r\n\r\n"), {400}),
    "a header of a megabyte": (lambda: sized(b"{}", "X-Long: " + "a" * (1 << 20)), {400}),
    "10,000 headers": (lambda: sized(b"{}", *(f"X-{number}: 1" for number in range(10_000))), {400}),
    "a path of a megabyte": (lambda: [b"GET /" + b"a" * (1 << 20) + b" HTTP/1.1\r\n\r\n"], {400}),
    "a chunk size that is no number": (lambda: post(CHUNKED, body=b"zz\r\n{}\r\n0\r\n\r\n"), {400}),
    "a negative chunk size": (lambda: post(CHUNKED, body=b"-1\r\n{}\r\n0\r\n\r\n"), {400}),
    "a huge chunk size": (lambda: post(CHUNKED, body=b"f" * 100 + b"\r\n{}"), {400}),
    "an unknown encoding": (lambda: post("Transfer-Encoding: snappy", body=b"{}"), {400, 501}),
    "HTTP/0.9": (lambda: [b"GET /embed\r\n\r\n"], {400}),
    "another protocol": (lambda: [b"\x16\x03\x01\x02\x00" + bytes(range(256)) * 100 + b"\r\n\r\n"], {400}),
    "a NUL in a header": (lambda: sized(b"{}", "X-Zero: a\0b"), {400}),
    "no host": (lambda: [b"POST /embed HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"], {400}),
}


def exchanged(port, parts):
    """Send until there is an answer; it is empty if the connection closed without one."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        # It may be closed while the rest is being sent; an answer is there then.
        with suppress(BrokenPipeError, ConnectionResetError):
            for part in parts:
                connection.sendall(part)
                if select.select([connection], [], [], 0)[0]:
                    break
        answer = b""
        with suppress(ConnectionResetError):
            while not whole(answer) and (part := connection.recv(1 << 16)):
                answer += part
        return answer


def whole(answer):
    """Whether an answer has its announced length."""
    head, _, body = answer.partition(b"\r\n\r\n")
    length = head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]
    return bool(length) and len(body) >= int(length)


def resident(processes):
    """Bytes that processes have in memory, and the most that they had since `forget_peaks`."""
    kilobytes = [0, 0]
    for one in processes:
        with open(f"/proc/{one.pid}/status", encoding="ascii") as file:
            said = dict(line.split(":", 1) for line in file)
        for at, name in enumerate(("VmRSS", "VmHWM")):
            kilobytes[at] += int(said[name].split()[0])
    return [one << 10 for one in kilobytes]


def forget_peaks(processes):
    for one in processes:
        with open(f"/proc/{one.pid}/clear_refs", "w", encoding="ascii") as file:
            file.write("5")


def test_hostile_requests_take_no_memory(served_folders, tmp_path):
    """Each is refused as soon as its limit is passed.

    A million empty texts are a body of 3 MB and a list of 8 MB, which Python copies while it grows.
    """
    with served(tmp_path, "-m", f"v={served_folders / 'vectors'}") as (url, process):
        own = psutil.Process(process.pid)
        processes = [own, *own.children(recursive=True)]
        port = int(url.rpartition(":")[2])
        with httpx.Client(base_url=url, timeout=20) as session:
            for _ in range(20):
                session.post("/embed", json={"inputs": ["the river bank"] * 50}).raise_for_status()
        before, wrong = resident(processes)[0], []
        for name, (parts, expected) in OVER_A_SOCKET.items():
            forget_peaks(processes)
            answer = exchanged(port, parts())
            status = int(answer.split(b" ", 2)[1]) if answer else None
            assert b"content-type: application/json\r\n" in answer.lower(), name
            closes = b"connection: close\r\n" in answer.lower()
            assert closes or status not in (408, 413), f"{name}: the rest of a body is no request"
            assert b"x-request-id: " in answer, name
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"], name
            peak = resident(processes)[1]
            print(f"{name}: {status}, {(peak - before) / 1e6:.1f} MB at most")
            if status not in expected or peak - before > 36e6:
                wrong.append((name, status, answer, (peak - before) / 1e6))
        assert wrong == []
        counted = httpx.get(f"{url}/metrics", timeout=20).text
        assert '\nunmask_requests_total{route="unknown",code="400"} ' in counted
        assert resident(processes)[0] - before < 25e6  # malloc keeps 18 to 20 MB of the requests
        answer = httpx.post(f"{url}/embed", json={"inputs": "the"}, timeout=20)
        assert answer.status_code == 200, json.dumps(answer.json())
