"""The configuration of nginx in deploy/, run by nginx before two replicas that answer what a test says."""

import json
import re
import shutil
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from benchmarks.serving_replicas import CONFIGURATION, balancer, free_port
from unmask.cli.serve import LIMITS
from unmask.http.server import configured
from unmask.serve.app import surface_of
from unmask.serve.errors import BadField, body_of
from unmask.serve.routes import ROUTES

pytestmark = pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")

MOST = 5 << 20
"""The largest body that it passes on."""


class Replica(ThreadingHTTPServer):
    """Answers every request with its status, unless that is 0: then it closes the connection."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.status, self.asked = 200, []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.server.asked.append(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.server.status:
            self.close_connection = True
            return
        said = json.dumps({"error": f"status {self.server.status}"}).encode()
        self.send_response(self.server.status)
        headers = {"Content-Length": len(said), "x-request-id": self.headers.get("x-request-id", "none")}
        for name, value in (headers | ({"Retry-After": 7} if self.server.status == 429 else {})).items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_):
        pass


@contextmanager
def replica():
    with Replica() as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.01,))
        thread.start()
        yield found
        found.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def running():
    with replica() as first, replica() as second:
        ports = [one.server_address[1] for one in (first, second)]
        with balancer(ports) as (url, _), httpx.Client(base_url=url, timeout=20) as client:
            yield client, first, second


@pytest.fixture
def behind(running):
    client, first, second = running
    for one in (first, second):
        one.status, one.asked = 200, []
    return client, first, second


def post(client, path="/embed", **options):
    return client.post(path, **({"json": {"inputs": "a"}} | options))


def test_both_replicas_are_asked_and_headers_pass(behind):
    client, first, second = behind
    answers = [post(client, headers={"x-request-id": f"id-{number}"}) for number in range(10)]
    assert [answer.headers["x-request-id"] for answer in answers] == [f"id-{number}" for number in range(10)]
    assert (len(first.asked), len(second.asked)) == (5, 5)


@pytest.mark.parametrize("status", [429, 503, 0], ids=["full", "stopping", "killed in flight"])
def test_the_other_replica_answers(behind, status):
    client, first, second = behind
    first.status = status
    assert {post(client).status_code for _ in range(10)} == {200}
    assert len(first.asked) == 5  # each is asked in turn, whatever it answered before
    assert len(second.asked) == 10


@pytest.mark.parametrize("status", [200, 400, 413, 424, 500, 504])
def test_other_answers_are_final(behind, status):
    client, first, second = behind
    first.status = second.status = status
    answer = post(client)
    assert (answer.status_code, answer.json()) == (status, {"error": f"status {status}"})
    assert len(first.asked) + len(second.asked) == 1


def test_replicas_that_are_all_full_say_when_to_come_back(behind):
    """Also the second time: nginx takes none for dead because it was full."""
    client, first, second = behind
    first.status = second.status = 429
    for _ in range(5):
        answer = post(client)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
    first.status = second.status = 200
    assert post(client).status_code == 200


def test_what_nginx_refuses_reads_as_what_the_server_refuses(behind):
    """Bodies above its limit, and requests that no replica answers, on every route."""
    client, first, second = behind
    first.status = second.status = 0
    large, small = b" " * (MOST + 1), b"{}"
    for path in (route.path for route in ROUTES):
        for content, status in ((large, 413), (small, 503)):
            answer = post(client, path, json=None, content=content)
            assert answer.status_code == status
            assert answer.headers["content-type"] == "application/json"
            assert answer.headers.get("retry-after") == ("1" if status == 503 else None)
            expected = body_of(BadField("", "a sentence", status), surface_of(path))
            assert forms(answer.json()) == forms(expected)
            assert (f"{MOST:,} bytes" in answer.text) == (status == 413)
    assert {*first.asked, *second.asked} == {small}


def forms(value):
    """The names in an error, and those of its values that are the same for all sentences."""
    if isinstance(value, dict):
        free = ("error", "message", "code", "param")
        return {
            name: forms(one) if name not in free or isinstance(one, dict) else None
            for name, one in value.items()
        }
    return value


def test_a_body_that_the_server_refuses_reaches_it(behind):
    client, first, second = behind
    bodies = [b" " * size for size in (LIMITS.checked("cpu").body_bytes + 1, MOST)]
    for body in bodies:
        assert post(client, json=None, content=body).status_code == 200
    assert bodies in ([*first.asked, *second.asked], [*second.asked, *first.asked])


def test_a_replica_that_is_gone():
    with (
        replica() as left,
        balancer([free_port(), left.server_address[1]]) as (url, _),
        httpx.Client(base_url=url, timeout=20) as client,
    ):
        assert {post(client).status_code for _ in range(6)} == {200}


def test_its_times_fit_those_of_the_server():
    """It waits longer than the server does, and drops idle connections before the server does."""
    seconds = {
        name: int(value)
        for name, value in re.findall(r"(\w+_timeout) (\d+)s;", CONFIGURATION.read_text(encoding="utf-8"))
    }
    assert seconds["proxy_read_timeout"] > LIMITS.seconds
    assert seconds["keepalive_timeout"] < configured(None).timeout_keep_alive
    # A request that took until the timeout is not sent again.
    assert seconds["proxy_next_upstream_timeout"] < seconds["proxy_read_timeout"]
