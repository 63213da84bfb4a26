"""The command as a process: it serves, stops when told to, and answers what it has accepted."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import httpx
import numpy as np
import psutil
import pytest
from starlette.applications import Starlette

from tests.support.command import assert_one_sentence, environment, run_here
from tests.support.json_values import as_json, same
from tests.support.waiting import run_coroutine
from unmask.http.server import configured
from unmask.serve.server import listen
from unmask.serve.stopping import Draining

TEXTS = ["the river bank", "muddy"]


@contextmanager
def served(place, *arguments):
    """``unmask serve`` on a free port; its address and process."""
    with subprocess.Popen(
        [sys.executable, "-m", "unmask", "serve", *arguments, "--port", "0", "--threads", "1", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=place,
        env=environment(),
    ) as process:
        try:
            yield json.loads(process.stdout.readline())["url"], process
        finally:
            process.kill()


@pytest.fixture
def running(served_folders, tmp_path):
    """``unmask serve`` of the embedding model; yields its address and process."""
    with served(tmp_path, "-m", f"v={served_folders / 'vectors'}") as found:
        yield found


def test_it_serves_and_stops_under_load(running, served_models):
    """Each of many clients gets every answer to what it has sent, until the signal and after it."""
    url, process = running
    expected = served_models["vectors"].embed(TEXTS)
    first = httpx.post(f"{url}/v1/embeddings", json={"input": TEXTS, "model": "v"}, timeout=20)
    found = np.array([one["embedding"] for one in first.json()["data"]], np.float32)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    answered, refused, wrong, go = [], [], [], threading.Event()

    def client():
        with httpx.Client(timeout=20) as session:
            while True:
                try:
                    answer = session.post(f"{url}/embed", json={"inputs": TEXTS * 20})
                except (httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError) as error:
                    # A connection that the server had closed, or no longer takes, carries no request.
                    refused.append(type(error).__name__)
                    return
                (answered if answer.status_code == 200 else wrong).append(answer.status_code)
                if len(answered) > 20:
                    go.set()

    threads = [threading.Thread(target=client) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert go.wait(30)
    process.send_signal(signal.SIGTERM)
    for thread in threads:
        thread.join(30)
    assert process.wait(20) == 0
    assert wrong == []
    assert len(refused) == 8
    assert process.stderr.read() == ""


def test_an_answer_does_not_wait_for_its_own_beginning_to_be_confirmed(running):
    """The body follows the head at once; else every answer takes the 40 ms after which TCP confirms it."""
    url, _ = running
    with httpx.Client(timeout=20) as session:
        # Other programs may delay any of them; where each one waits, none is so quick.
        assert any(session.get(f"{url}/info").elapsed.total_seconds() < 0.03 for _ in range(300))


@pytest.mark.long
def test_workers_search_indexes(served_folders, served_models, tmp_path):
    """Whatever is asked of an index is computed in a worker, as in Python, also in one that was replaced."""
    from unmask.search.index import Index

    index = Index.create(tmp_path / "notes", served_models["vectors"])
    index.add(["the river bank was muddy", "another text", "a bank.", "muddy, the river was"])
    query, k, cross = "the muddy bank", 3, served_models["cross"]
    expected = [
        ({}, index.search(query, k)),
        ({"mode": "bm25"}, index.search(query, k, "bm25")),
        ({"explain": "shares"}, index.search(query, k, why="shares")),
        ({"explain": "attribution"}, index.search(query, k, why=True)),
        ({"reranker": "cross"}, index.search(query, k, reranker=cross)),
        (
            {"reranker": "vectors", "mode": "bm25"},
            index.search(query, k, "bm25", reranker=served_models["vectors"]),
        ),
    ]
    models = [f"{name}={served_folders / name}" for name in ("vectors", "cross")]
    arguments = [part for one in models for part in ("-m", one)]
    long = {"query": "the river " * 20, "mode": "dense"}
    with served(tmp_path, *arguments, "--index", "notes") as (url, process):
        (parent,) = psutil.Process(process.pid).children()
        (worker,) = parent.children()
        worker.suspend()
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/v1/search", json={"query": query}, timeout=1)
        worker.resume()
        for options, hits in expected:
            answer = httpx.post(f"{url}/v1/search", json={"query": query, "k": k, **options}, timeout=30)
            assert answer.status_code == 200, answer.text
            same(answer.json()["hits"], [as_json(hit) for hit in hits])
            (worker,) = parent.children()
            worker.kill()
            worker.wait(20)
        refused = httpx.post(f"{url}/v1/search", json=long, timeout=30)
        assert (refused.status_code, refused.json()["error"]["code"]) == (413, "context_length_exceeded")
        cut = httpx.post(f"{url}/v1/search", json=long | {"truncate": True}, timeout=30)
        assert (cut.status_code, cut.json()["query_truncated"]) == (200, True)
        index.add([{"id": "new", "text": "a river was muddy"}])
        added = httpx.post(
            f"{url}/v1/search", json={"query": "a river was muddy", "mode": "bm25"}, timeout=30
        )
        assert added.json()["generation"] == index.generation
        assert "new" in [hit["document"] for hit in added.json()["hits"]]
        (tmp_path / "notes" / "CURRENT").unlink()
        kept = httpx.post(f"{url}/v1/search", json={"query": "a river was muddy", "mode": "bm25"}, timeout=30)
        assert kept.json() == added.json()


@contextmanager
def in_flight(url, process, count=3):
    """Requests that wait for a worker which does not run; yields it, and where their answers come."""
    (parent,) = psutil.Process(process.pid).children()
    (worker,) = parent.children()
    worker.suspend()
    with ThreadPoolExecutor(count) as clients:
        answers = [
            clients.submit(httpx.post, f"{url}/embed", json={"inputs": TEXTS}, timeout=20)
            for _ in range(count)
        ]
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            if f"\nunmask_requests_open {count}\n" in httpx.get(f"{url}/metrics", timeout=20).text:
                break
            time.sleep(0.05)
        yield worker, answers
        worker.resume()


def test_a_server_that_stops_is_not_ready():
    """From the signal on, also while connections are still open."""
    service = SimpleNamespace(draining=False, renewable=lambda: True)
    Draining(configured(Starlette()), service, 1.0).handle_exit(signal.SIGTERM, None)
    assert service.draining


def test_what_is_unfinished_is_given_up_after_the_time(monkeypatch):
    monkeypatch.setattr("unmask.serve.stopping.LAST_SECONDS", 0)
    stopped = []
    service = SimpleNamespace(draining=False, renewable=lambda: True, stop=stopped.append)
    server = Draining(configured(Starlette()), service, 0.2)
    began = time.monotonic()
    run_coroutine(server._give_up(), 15)
    assert time.monotonic() - began >= 0.2
    assert [error.status for error in stopped] == [503]


def test_a_second_signal_refuses_what_is_unfinished(running):
    url, process = running
    with in_flight(url, process) as (_, answers):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        for one in answers:
            refused = one.result(20)
            assert (refused.status_code, refused.json()["error"][:22]) == (503, "the server is stopping")
    assert process.wait(20) == 0
    assert process.stderr.read() == ""


def test_a_closed_terminal_stops_it_as_sigterm_does(running):
    url, process = running
    with in_flight(url, process) as (worker, answers):
        for one in (process, *psutil.Process(process.pid).children(recursive=True)):
            one.send_signal(signal.SIGHUP)
        time.sleep(0.5)
        worker.resume()
        assert [one.result(20).status_code for one in answers] == [200] * 3
    assert process.wait(20) == 0
    assert process.stderr.read() == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("when", ["loading", "ready"])
def test_a_signal_before_it_runs_stops_it(served_models, number, when):
    from unmask.serve import serve

    reached = []
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]

    def stop(at):
        reached.append(at)
        if at == when:
            os.kill(os.getpid(), number)

    def load():
        stop("loading")
        return served_models["vectors"]

    serve({"v": load}, port=0, on_ready=lambda _: stop("ready"))
    assert reached[-1] == when
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_it_ends_if_workers_can_no_longer_be_replaced(running):
    """What was accepted is answered by the worker that is left."""
    url, process = running
    (parent,) = psutil.Process(process.pid).children()
    with in_flight(url, process) as (worker, answers):
        parent.kill()
        time.sleep(0.5)
        worker.resume()
        assert [one.result(20).status_code for one in answers] == [200] * 3
    assert process.wait(20) == 1
    assert (
        process.stderr.read()
        .splitlines()[-1]
        .startswith(
            "unmask: the process that starts workers has ended, so the server has stopped; start it again"
        )
    )


def test_workers_end_quietly_with_a_server_that_is_killed(running):
    """Also one in the middle of a pass, whose result nobody takes."""
    url, process = running
    (parent,) = psutil.Process(process.pid).children()
    (worker,) = parent.children()
    worker.suspend()
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{url}/embed", json={"inputs": TEXTS}, timeout=1)
    process.kill()
    process.wait(20)
    worker.resume()
    psutil.wait_procs([worker, parent], timeout=20)
    assert not worker.is_running()
    assert process.stderr.read() == ""


def test_a_client_that_leaves_is_not_computed(served_models):
    """Its texts are dropped from the queue, and it is counted."""
    from unmask.serve import make_app

    model = served_models["vectors"]
    app = make_app({"v": model})
    service, body = app.state.service, json.dumps({"inputs": ["the"] * 4}).encode()
    gate, work = threading.Event(), model.engine.embed
    inside = threading.Event()

    def waiting(*arguments, **options):
        inside.set()
        assert gate.wait(20)
        return work(*arguments, **options)

    async def ask(leaves):
        sent, messages = [], [{"type": "http.request", "body": body, "more_body": False}]
        left = asyncio.Event()

        async def receive():
            if messages:
                return messages.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        scope = {
            "type": "http", "method": "POST", "path": "/embed", "raw_path": b"/embed", "query_string": b"",
            "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1), "server": ("localhost", 80), "scheme": "http", "root_path": "",
            "http_version": "1.1",
        }  # fmt: skip
        task = asyncio.ensure_future(app(scope, receive, send))
        if leaves:
            await asyncio.to_thread(inside.wait, 20)
            left.set()
        await task
        return sent[0]["status"]

    async def both():
        first = asyncio.ensure_future(ask(False))
        await asyncio.to_thread(inside.wait, 20)
        assert await ask(True) == 499
        gate.set()
        assert await first == 200

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model.engine, "embed", waiting)
        run_coroutine(both())
    deadline = time.monotonic() + 20
    while service.scheduler.queued_tokens and time.monotonic() < deadline:
        time.sleep(0.01)
    assert service.scheduler.queued_tokens == 0
    assert service.requests == 0
    assert service.metrics.texts.value() == 4
    assert service.metrics.rejected.value("client_left") == 1
    service.close()


def test_a_request_ends_after_its_time(served_models):
    from starlette.testclient import TestClient

    from unmask.serve import Limits, make_app

    model, gate = served_models["vectors"], threading.Event()
    app = make_app({"v": model}, limits=Limits(seconds=0.2))
    with pytest.MonkeyPatch.context() as patch, TestClient(app, base_url="http://localhost") as client:
        patch.setattr(model.engine, "embed", lambda *_, **__: gate.wait(20))
        answer = client.post("/embed", json={"inputs": "the"})
        gate.set()
    assert (answer.status_code, answer.json()["error_type"]) == (504, "Unhealthy")
    app.state.service.close()


def test_what_the_command_refuses(tmp_path, served_folders, monkeypatch):
    model = served_folders / "vectors"
    monkeypatch.setenv("UNMASK_API_KEYS", "")
    open_host = ("serve", "-m", model, "--host", "0.0.0.0")
    assert_one_sentence(run_here(*open_host), "host is '0.0.0.0'", "there are no API keys")
    assert_one_sentence(run_here(*open_host, "--api-keys", tmp_path / "no"), "cannot be read: no such file")
    (tmp_path / "empty").write_text("# no key\n")
    assert_one_sentence(run_here(*open_host, "--api-keys", tmp_path / "empty"), "has no key")
    (tmp_path / "short").write_text("abc\n")
    short = run_here(*open_host, "--port", "0", "--api-keys", tmp_path / "short")
    assert_one_sentence(short, "an API key must have at least 16 characters")
    assert "abc" not in short.err
    assert_one_sentence(run_here("serve", "-m", model, "-m", model), "two models are named")
    assert_one_sentence(run_here("serve", "-m", "name="), "--model is 'name='")
    assert_one_sentence(run_here("serve", "-m", model, "--texts", "0"), "texts is 0; it must be at least 1")
    assert_one_sentence(run_here("serve", "-m", model, "--port", "70000"), "port is 70000")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert_one_sentence(run_here("serve", "-m", model, "--port", port), f"port {port} of 127.0.0.1")


def test_a_socket_for_other_machines_needs_keys():
    with listen("0.0.0.0", 0, ["k" * 16]) as socket_:
        assert socket_.getsockname()[1] > 0
