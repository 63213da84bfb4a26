"""Tokenization is admitted, takes turns and is given up like any other work, and answers are bounded."""

import asyncio
import threading
import time

import pytest

import unmask
from tests.support.tokenizers_built import of_bytes, write_eurobert, write_mmbert
from tests.support.waiting import run_coroutine
from tests.unit.test_special_tokens import of_sentence_pieces
from unmask.http.responses import Refused
from unmask.serve import Limits, make_app
from unmask.serve.errors import Busy
from unmask.serve.service import Call, Gone
from unmask.text import Tokenizer

LARGE, SMALL = 1 << 20, 1 << 12
SECONDS = 20


@pytest.fixture
def service(served_models, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    app = make_app({"vectors": served_models["vectors"]}, limits=Limits(queued_tokens=800))
    yield app.state.service
    app.state.service.close()


def a_call(*, size=LARGE, client="a", seconds=SECONDS, left=False):
    def gone():
        future = asyncio.get_running_loop().create_future()
        if left:
            future.set_result(None)
        return future

    now = time.monotonic()
    return Call(client, now + seconds, gone, now, size)


@pytest.fixture
def held(service):
    """Runs a function of a service whose thread for large requests is inside one, then what it returns."""

    def one(check):
        gate, inside = threading.Event(), threading.Event()

        def holds():
            inside.set()
            return gate.wait(SECONDS)

        async def both():
            first = asyncio.ensure_future(service.aside(a_call(), holds))
            await asyncio.to_thread(inside.wait, SECONDS)
            try:
                found = await check(service)
            finally:
                gate.set()
                assert await first
            return await found if isinstance(found, asyncio.Future) else found

        return run_coroutine(both())

    return one


def test_what_is_refused_at_once_is_not_tokenized(service, monkeypatch):
    def full(size):
        raise Busy(429, "overloaded", "there is no room", 1)

    monkeypatch.setattr(service.scheduler, "check_room", full)
    with pytest.raises(Busy, match="there is no room"):
        run_coroutine(service.run(a_call(size=9), service.models.all[0], lambda: pytest.fail("tokenized")))


def test_what_nobody_waits_for_is_not_tokenized(held, service):
    done = []

    async def check(service):
        with pytest.raises(Gone):
            await service.aside(a_call(left=True), lambda: done.append("left"))
        with pytest.raises(Refused, match="not finished in time") as late:
            await service.aside(a_call(seconds=0.01), lambda: done.append("late"))
        assert late.value.status == 504

    held(check)
    run_coroutine(service.aside(a_call(), lambda: done.append("last")))
    assert done == ["last"]


def test_what_waits_to_be_tokenized_is_bounded(held):
    async def check(service):
        # Each counts for an eighth of the limit and 1; the one that runs no longer waits.
        waiting = [asyncio.ensure_future(service.aside(a_call(), lambda: None)) for _ in range(7)]
        await asyncio.sleep(0)
        assert "\nunmask_tokenize_queue_tokens 707\n" in service.metrics.text()
        with pytest.raises(Busy, match="707 tokens wait") as full:
            await service.aside(a_call(), lambda: None)
        assert full.value.status == 429
        for one in waiting:
            one.cancel()

    held(check)


def test_turns_are_fair_between_clients(held):
    done = []

    async def check(service):
        waiting = []
        for client in ("b", "b", "b", "c"):
            work = service.aside(a_call(client=client), lambda client=client: done.append(client))
            waiting.append(asyncio.ensure_future(work))
            await asyncio.sleep(0)
        return asyncio.gather(*waiting)

    held(check)
    assert done == ["b", "c", "b", "b"]


def test_a_large_request_does_not_hold_up_a_small_one(held):
    async def check(service):
        return await service.aside(a_call(size=SMALL), lambda: "small")

    assert held(check) == "small"


def test_stopping_fails_what_waits_to_be_tokenized(held):
    async def check(service):
        waits = asyncio.ensure_future(service.aside(a_call(), lambda: None))
        await asyncio.sleep(0)
        service.stop(Busy(503, "stopping", "the server is stopping", 1))
        with pytest.raises(Busy, match="stopping"):
            await waits

    with pytest.raises(Busy, match="stopping"):
        held(check)


def test_texts_over_http_are_tokenized_in_turns(served_models):
    """A route passes its own circumstances on: a server without room refuses."""
    from starlette.testclient import TestClient

    app = make_app({"vectors": served_models["vectors"]}, limits=Limits(queued_tokens=100))
    service = app.state.service
    with TestClient(app, base_url="http://localhost") as client:
        service._small.queued_tokens = 99
        for path in ("/tokenize", "/embed"):
            assert client.post(path, json={"inputs": ["the river"] * 300}).status_code == 429
        service._small.queued_tokens = 0
        assert client.post("/tokenize", json={"inputs": ["the river"] * 300}).status_code == 200
    service.close()


def test_answers_are_bounded(client, monkeypatch):
    refused = client.post("/tokenize", json={"inputs": "a " * 200_000})
    assert (refused.status_code, refused.json()["error"]) == (
        413,
        "inputs have 400,000 characters, and /tokenize answers for 262,144 at most; send fewer texts",
    )
    refused = client.post("/tokenize", json={"inputs": "a " * 70_000})
    assert refused.status_code == 413
    assert " tokens, and /tokenize answers for 65,536 at most" in refused.json()["error"]
    monkeypatch.setattr("unmask.serve.routes.tei.MOST_NUMBERS", 100)
    refused = client.post("/embed_all", json={"inputs": ["the river"] * 60})
    assert refused.status_code == 413
    assert " tokens, and vectors of " in refused.json()["error"]


def test_two_thousand_texts_are_answered(client):
    answer = client.post("/v1/embeddings", json={"input": ["the river"] * 2048})
    assert answer.status_code == 200
    assert len(answer.json()["data"]) == 2048


@pytest.mark.parametrize(
    ("path", "texts"), [("/rerank", "texts"), ("/v1/rerank", "documents"), ("/v2/rerank", "documents")]
)
def test_a_query_counts_as_often_as_it_is_tokenized(client, path, texts):
    """A body of 8 KB would be 12 MB of text."""
    began = time.process_time()  # other programs may take the machine
    refused = client.post(path, json={"query": "a " * 3000, texts: ["b"] * 2000})
    assert refused.status_code == 413
    sentence = "query has 6,000 characters and is read with each of 2,000 texts, and 4,194,304 characters may"
    assert sentence in refused.text
    assert time.process_time() - began < 2
    assert client.post(path, json={"query": "a " * 3, texts: ["b"] * 200}).status_code == 200


def test_a_repeated_text_is_no_short_request(service):
    call = a_call(size=100)
    service.repeat(call, "query", "a" * 50, 101)
    assert call.size == 5100


def text_kinds(size):
    """Texts for which an algorithm that looks back, or joins one piece at a time, takes longest."""
    return {
        "one word": "a" * size,
        "random letters": "".join(chr(97 + (n * n * 7919 >> 3) % 26) for n in range(size)),
        "digits": "1" * size,
        "blanks": " " * (size - 1) + "a",
        "line ends": "\n" * (size - 1) + "a",
        "marks": "a" + "\u0301" * (size - 1),
        "joiners": "👨\u200d" * (size // 2),
        "Han": "中" * size,
        "NULs": "\0" * (size - 1) + "a",
        "special tokens": "[MASK]</s>" * (size // 10),
    }


@pytest.mark.parametrize("family", ["default", "bytes", "unigram", "euro", "mm"])
def test_no_text_takes_long_to_tokenize(family, tmp_path):
    """Tokenization cannot be interrupted, so the size of a body must bound it: it is linear in every text."""
    tokenizer = {
        "default": lambda: unmask.load("default").tokenizer,
        "bytes": of_bytes,
        "unigram": of_sentence_pieces,
        "euro": lambda: written(write_eurobert, tmp_path),
        "mm": lambda: written(write_mmbert, tmp_path),
    }[family]().reading("text")
    tokenizer.encode("a")
    for kind, text in text_kinds(100_000).items():
        began = time.process_time()
        tokenizer.encode_batch([text])
        seconds = time.process_time() - began
        assert seconds < 3, (kind, seconds)  # it takes 0.1; in quadratic time it would take minutes


def written(write, folder):
    write(folder)
    return Tokenizer.from_files({path.name: path.read_bytes() for path in folder.iterdir()})
