"""Every route answers what Python answers, and every bad request one sentence in its clients' form."""

import base64
import gzip
import json
import re

import numpy as np
import pytest
from starlette.testclient import TestClient

from tests.serve.conftest import LABELS
from tests.support.tiny import WIDTH
from unmask.serve import Limits, make_app

TEXTS = ["the river bank was muddy", "another text", "a bank.", "muddy, the river was"]
LONG = "the river " * 20


def numbers(answer):
    assert answer.status_code == 200, answer.text
    return np.array(answer.json(), dtype=np.float32)


# --- equal to Python ---------------------------------------------------------------------------------------


def test_embed(client, served_models):
    model = served_models["vectors"]
    np.testing.assert_array_equal(
        numbers(client.post("/embed", json={"inputs": TEXTS})), model.embed(TEXTS, normalize=True)
    )
    one = numbers(client.post("/embed", json={"inputs": TEXTS[0], "normalize": False}))
    np.testing.assert_array_equal(one, model.embed(TEXTS[:1], normalize=False))
    cut = numbers(client.post("/embed", json={"inputs": TEXTS, "dimensions": 7}))
    np.testing.assert_array_equal(cut, model.embed(TEXTS, truncate_dim=7, normalize=True))
    np.testing.assert_allclose(np.linalg.norm(cut, axis=1), 1, atol=1e-6)
    whole = numbers(client.post("/embed", json={"inputs": TEXTS, "dimensions": model.embed(TEXTS).shape[1]}))
    np.testing.assert_allclose(whole, model.embed(TEXTS, normalize=True), atol=1e-6)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings"])
def test_openai_embeddings(client, served_models, path):
    expected = served_models["vectors"].embed(TEXTS)
    answer = client.post(path, json={"input": TEXTS, "model": "vectors", "user": "x"}).json()
    assert answer["object"] == "list"
    assert answer["model"] == "vectors"
    assert [one["index"] for one in answer["data"]] == [0, 1, 2, 3]
    np.testing.assert_array_equal(
        np.array([one["embedding"] for one in answer["data"]], dtype=np.float32), expected
    )
    tokens = sum(map(len, served_models["vectors"].tokenize(TEXTS)))
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    packed = client.post(path, json={"input": TEXTS, "encoding_format": "base64"}).json()["data"]
    rows = [np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in packed]
    np.testing.assert_array_equal(np.stack(rows), expected)


def test_rerank(client, served_models):
    model = served_models["cross"]
    for raw, activation in ((False, "sigmoid"), (True, "identity")):
        asked = {"query": "the bank", "texts": TEXTS, "raw_scores": raw, "return_text": raw}
        answer = client.post("/rerank", json=asked).json()
        expected = model.score_pairs("the bank", TEXTS, activation=activation)
        order = np.argsort(-expected)
        assert [one["index"] for one in answer] == order.tolist()
        np.testing.assert_array_equal(np.array([one["score"] for one in answer], np.float32), expected[order])
        assert [one.get("text") for one in answer] == ([TEXTS[i] for i in order] if raw else [None] * 4)


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
def test_cohere_rerank(client, served_models, path):
    asked = {"model": "cross", "query": "the bank", "documents": [*TEXTS[:3], {"text": TEXTS[3]}], "top_n": 2}
    answer = client.post(path, json=asked).json()
    expected = served_models["cross"].score_pairs("the bank", TEXTS, activation="sigmoid")
    order = np.argsort(-expected)[:2]
    assert [(one["index"], np.float32(one["relevance_score"])) for one in answer["results"]] == [
        (index, expected[index]) for index in order
    ]
    assert "document" not in answer["results"][0]
    kept = client.post(path, json=asked | {"return_documents": True}).json()["results"]
    assert kept[0]["document"] == {"text": TEXTS[order[0]]}


def test_predict(client, served_models):
    model = served_models["labels"]

    def expected(one):
        return sorted(one.scores.items(), key=lambda row: -row[1])

    def shown(rows):
        assert {row["label"] for row in rows} == set(LABELS)
        return [(row["label"], row["score"]) for row in rows]

    assert shown(client.post("/predict", json={"inputs": TEXTS[0]}).json()) == expected(
        model.classify(TEXTS[0])
    )
    asked = {"inputs": TEXTS[0], "parameters": {"top_k": 2}}
    (best,) = client.post("/predict", json=asked).json()  # huggingface_hub takes the first of a list
    assert [(row["label"], row["score"]) for row in best] == expected(model.classify(TEXTS[0]))[:2]
    pair = client.post("/predict", json={"inputs": TEXTS[:2]}).json()
    assert shown(pair) == expected(model.classify(TEXTS[0], TEXTS[1]))
    batch = client.post("/predict", json={"inputs": [[text] for text in TEXTS]}).json()
    assert [shown(one) for one in batch] == [expected(one) for one in model.classify(TEXTS)]
    pairs = client.post("/predict", json={"inputs": [TEXTS[:2], TEXTS[2:]]}).json()
    assert [shown(one) for one in pairs] == [expected(one) for one in model.classify(TEXTS[::2], TEXTS[1::2])]


def test_embed_sparse(client, served_models):
    answer = client.post("/embed_sparse", json={"inputs": TEXTS}).json()
    for found, expected in zip(answer, served_models["words"].sparse_vectors(TEXTS), strict=True):
        assert [one["index"] for one in found] == expected.ids.tolist()
        assert [one["value"] for one in found] == expected.weights.tolist()


def test_similarity(client, served_models):
    asked = {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}}
    expected = served_models["vectors"].similarity(TEXTS[:1], TEXTS[1:])[0]
    np.testing.assert_allclose(numbers(client.post("/similarity", json=asked)), expected, atol=1e-6)


def test_prompts(tmp_path):
    import unmask
    from tests.support.tiny import write_prompts

    model = unmask.load(write_prompts(tmp_path / "m", {"query": "a text "}, include_prompt=False))
    app = make_app({"prompted": model})
    with TestClient(app, base_url="http://localhost") as client:
        for options in ({}, {"prompt_name": "query"}):
            found = numbers(client.post("/embed", json={"inputs": TEXTS, **options}))
            np.testing.assert_array_equal(found, model.embed(TEXTS, **options))
        wrong = client.post("/embed", json={"inputs": TEXTS, "prompt_name": "nothing"})
        assert (wrong.status_code, wrong.json()["error"]) == (
            400,
            "prompt_name is 'nothing'; prompted has: query",
        )
    app.state.service.close()


# --- what it says of itself --------------------------------------------------------------------------------


def test_information(client):
    for path in ("/", "/health", "/ready", "/ping"):
        assert client.get(path).status_code == 200
    found = client.get("/info").json()
    assert found["served_model_name"] == "vectors"
    assert found["model_type"] == {"embedding": {"pooling": "mean"}}
    assert [one["tasks"] for one in found["models"]] == [
        [*one, "embed_all", "attention"]
        for one in (["embed"], ["rerank"], ["predict", "classify"], ["embed_sparse", "masked_words"])
    ]
    assert found["models"][2]["model_type"]["classifier"]["id2label"] == dict(zip("012", LABELS, strict=True))
    assert [one["id"] for one in client.get("/v1/models").json()["data"]] == [
        "vectors", "cross", "labels", "words",
    ]  # fmt: skip


def test_metrics_and_headers(client, served_models):
    def read():
        lines = client.get("/metrics").text.splitlines()
        rows = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
        assert len({name for name, _ in rows}) == len(rows)
        return {name: float(value) for name, value in rows}

    before = read()
    answer = client.post("/embed", json={"inputs": TEXTS}, headers={"x-request-id": "my-id"})
    after = read()
    tokens = sum(map(len, served_models["vectors"].tokenize(TEXTS)))
    assert answer.headers["x-request-id"] == "my-id"
    assert answer.headers["x-compute-tokens"] == str(tokens)
    assert after["unmask_tokens_total"] - before["unmask_tokens_total"] == tokens
    assert after["unmask_texts_total"] - before["unmask_texts_total"] == 4
    name = 'unmask_requests_total{route="/embed",code="200"}'
    assert after[name] - before.get(name, 0) == 1
    assert after["unmask_queue_tokens"] == after["unmask_queue_texts"] == after["unmask_requests_open"] == 0
    for name in ("request", "queue", "pass", "tokenize"):
        buckets = [after[one] for one in after if one.startswith(f"unmask_{name}_duration_seconds_bucket")]
        assert buckets == sorted(buckets)
        assert buckets[-1] == after[f"unmask_{name}_duration_seconds_count"] > 0
    for odd in ("x" * 129, "two words", "a\tb", "é"):
        odd_answer = client.post("/embed", json={"inputs": TEXTS}, headers={"x-request-id": odd.encode()})
        assert re.fullmatch("[0-9a-f]{16}", odd_answer.headers["x-request-id"]), odd


# --- what is refused ---------------------------------------------------------------------------------------

WRONG = [
    ("/embed", {}, 400, "inputs is missing; it must be a string or a list of strings"),
    ("/embed", {"inputs": []}, 400, "inputs is empty; give at least one text"),
    ("/embed", {"inputs": ""}, 400, "inputs has no words; give a text with at least one"),
    ("/embed", {"inputs": ["the", " "]}, 400, "inputs[1] has no words; give a text with at least one"),
    ("/embed", {"inputs": ["the", 3]}, 400, "inputs[1] is 3; inputs must be a string or a list of strings"),
    ("/embed", {"inputs": ["the"] * 2049}, 413, "inputs has 2,049 texts, and a request may have 2,048"),
    ("/embed", {"inputs": LONG}, 413, "inputs has 42 tokens and the model reads at most 19; shorten it, or"),
    ("/embed", {"inputs": "the", "normalise": True}, 400, "there is no field 'normalise'; there are dim"),
    ("/embed", {"inputs": "the", "normalize": 1}, 400, "normalize is 1; it must be true or false"),
    ("/embed", {"inputs": "the", "dimensions": 0}, 400, "dimensions is 0; it must be a whole number from 1"),
    ("/embed", {"inputs": "the", "dimensions": 31}, 400, "dimensions is 31, and the embeddings of vectors"),
    ("/embed", {"inputs": "\ud800"}, 400, "inputs"),
    ("/embed", {"inputs": "a", "truncate": True, "truncation_direction": "left"}, 400, "truncation_direct"),
    ("/predict", {"inputs": ["a"]}, 400, "inputs is a list of 1 strings; it must be a string, a list"),
    ("/predict", {"inputs": [["a"], ["a", "the"]]}, 400, "inputs mixes forms"),
    ("/rerank", {"query": "a", "texts": "a"}, 400, "texts is 'a'; it must be a list of strings"),
    ("/rerank", {"texts": ["a"]}, 400, "query is missing; it must be a string"),
    ("/similarity", {"inputs": {"source_sentence": "a"}}, 400, "sentences is missing"),
    ("/similarity", {"inputs": "a"}, 400, "inputs is 'a'; it must be an object"),
    ("/v1/embeddings", {"input": "a", "model": "no"}, 404, "there is no model 'no'; there are vectors"),
    ("/v1/embeddings", {"input": "a", "model": "cross"}, 400, "cross is not a model that embeds texts"),
    ("/v1/embeddings", {"input": [2, 4]}, 400, "input must begin with [2] and end with [3], the model's"),
    ("/v1/embeddings", {"input": [[2, 5, 3], [5, 3]]}, 400, "input[1] must begin with [2]"),
    ("/v1/embeddings", {"input": [2, 100257, 3]}, 400, "input has the token id 100257; the model has 0 to"),
    ("/v1/embeddings", {"input": [2, -1, 3]}, 400, "input has the token id -1; the model has 0 to"),
    ("/v1/embeddings", {"input": [2, 3]}, 400, "input has no words"),
    ("/v1/embeddings", {"input": [2, *[5] * 30, 3]}, 413, "input has 32 tokens and the model"),
    ("/v1/embeddings", {"input": [[]]}, 400, "input[0] is []; it must be a list of token ids"),
    ("/v1/embeddings", {"input": [2, "a"]}, 400, "input is [2, 'a']; it must be a list of token ids"),
    ("/embed", {"inputs": [2, 5, 3], "prompt_name": "query"}, 400, "prompt_name is 'query'; vectors has:"),
    ("/decode", {"ids": [2, 1 << 40]}, 400, "a token id is 1099511627776; vectors has 0 to"),
    ("/decode", {"ids": []}, 400, "ids is empty"),
    ("/tokenize", {"inputs": "a", "model": "no"}, 404, "there is no model 'no'"),
    ("/v2/embed", {"texts": ["a"], "embedding_types": ["int8"]}, 400, "embedding_types has int8"),
    ("/v2/embed", {"texts": ["a"], "truncate": "START"}, 400, "truncate is START"),
    ("/v2/embed", {"texts": ["a"], "input_type": "image"}, 400, "input_type is image"),
    ("/v2/embed", {"texts": [LONG]}, 413, "texts[0] has 42 tokens and the model reads at most 19"),
    ("/v1/entities", {"texts": "a"}, 400, "vectors is not a model that can label words"),
    ("/v1/masked_words", {"texts": "a"}, 400, "texts has no [MASK]"),
    ("/v1/masked_words", {"texts": "[MASK]", "top_k": 500}, 400, "top_k is 500, and the vocabulary has"),
    ("/v1/attention", {"texts": LONG}, 413, "texts has 42 tokens and the model reads at most 19"),
    ("/v1/search", {"query": "a"}, 404, "no index is served; start the server with --index"),
    ("/v1/embeddings", {"input": "a", "encoding_format": "int8"}, 400, "encoding_format is 'int8'; it must"),
    ("/v1/embeddings", {"input": LONG}, 413, "input has 42 tokens and the model reads at most 19"),
    ("/v2/rerank", {"query": "a", "documents": [3]}, 400, "documents[0] must be a string"),
    ("/v2/rerank", {"query": "a", "documents": []}, 400, "documents is empty"),
]  # fmt: skip


def sentence_of(answer, path):
    """The sentence, from the form of the path's clients."""
    body = answer.json()
    if path.startswith("/v2") or path == "/v1/embed":
        assert set(body) == {"message"}
        return body["message"]
    if path.startswith("/v1"):
        assert set(body["error"]) == {"message", "type", "param", "code"}
        return body["error"]["message"]
    assert set(body) == {"error", "error_type"}
    return body["error"]


@pytest.mark.parametrize(("path", "body", "status", "said"), WRONG)
def test_bad_requests(client, path, body, status, said):
    content = json.dumps(body)
    answer = client.post(path, content=content, headers={"content-type": "application/json"})
    assert answer.status_code == status
    sentence = sentence_of(answer, path)
    assert sentence.startswith(said)
    assert "\n" not in sentence
    assert client.post("/embed", json={"inputs": "the"}).status_code == 200


@pytest.mark.parametrize(
    ("content", "headers", "status", "said"),
    [
        (b"{", {}, 400, "the body is not valid JSON"),
        (b"[" * 100_000, {}, 400, "the body is not valid JSON"),
        (b"[]", {}, 400, "the body must be a JSON object"),
        (b"\xff", {}, 400, "the body is not valid JSON"),
        (b'{"inputs": "a"}', {"content-type": "text/plain"}, 415, "the body must be JSON"),
        (gzip.compress(bytes(1 << 25)), {"content-encoding": "gzip"}, 415, "the body is compressed"),
        (b" " * (1 << 22) + b"{}", {}, 413, "a request may hold 4,194,304 bytes"),
    ],
    ids=["cut", "deep", "list", "bytes", "form", "gzip", "large"],
)
def test_bad_bodies(client, content, headers, status, said):
    given = {"content-type": "application/json"} | headers
    answer = client.post("/embed", content=content, headers=given)
    assert answer.status_code == status
    assert answer.json()["error"].startswith(said)


def test_unknown_paths_and_methods(client):
    assert client.get("/nothing").json() == {
        "error": "there is no route /nothing; see the documentation",
        "error_type": "Validation",
    }
    wrong = client.get("/v1/embeddings")
    assert (wrong.status_code, wrong.json()["error"]["message"]) == (
        405,
        "/v1/embeddings takes POST, not GET",
    )


def test_unknown_paths_are_answered_as_routes_are(served_models):
    lines = []
    app = make_app({"vectors": served_models["vectors"]}, keys=["a key of many characters"], log=lines.append)
    allowed = {"authorization": "Bearer a key of many characters", "x-request-id": "r-1"}
    with TestClient(app) as client:
        for method, path, status in (("GET", "/nothing", 404), ("GET", "/embed", 405)):
            assert client.request(method, path).status_code == 401
            answer = client.request(method, path, headers=allowed)
            assert (answer.status_code, answer.headers["x-request-id"]) == (status, "r-1")
            assert answer.headers.get("allow") == (None if status == 404 else "POST")
    app.state.service.close()
    app = make_app({"vectors": served_models["vectors"]})
    with TestClient(app, base_url="http://evil.example") as client:
        assert client.get("/nothing").status_code == 403
    app.state.service.close()
    told = [(one["route"], one["status"]) for one in map(json.loads, lines)]
    assert told == [("unknown", 401), ("unknown", 404), ("unknown", 401), ("unknown", 405)]


def test_truncation_is_reported(client, served_models):
    answer = client.post("/embed", json={"inputs": ["the", LONG], "truncate": True})
    expected = served_models["vectors"].embed(["the", LONG], truncation="end")
    np.testing.assert_array_equal(numbers(answer), expected)
    assert answer.headers["x-truncated-inputs"] == "1"
    assert "x-truncated-inputs" not in client.post("/embed", json={"inputs": "the"}).headers
    assert "unmask_truncated_texts_total 0" not in client.get("/metrics").text


def test_without_keys_only_this_machine_is_answered(client):
    answer = client.post("/embed", json={"inputs": "a"}, headers={"host": "evil.example"})
    assert (answer.status_code, answer.json()["error"][:21]) == (403, "without API keys the ")
    for host in ("localhost:9", "127.0.0.1", "[::1]:8080"):
        assert client.get("/health", headers={"host": host}).status_code == 200


def test_keys_and_truncation_of_the_whole_server(served_models):
    keys = ["first-key-0123456789", "second-key-0123456789"]
    app = make_app({"vectors": served_models["vectors"]}, keys=keys, truncate=True, limits=Limits(texts=2))
    with TestClient(app, base_url="http://any.example") as client:
        for given in ({}, {"authorization": "Bearer no"}, {"authorization": keys[0]}):
            answer = client.post("/embed", json={"inputs": "a"}, headers=given)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert client.get("/metrics", headers=given).status_code == 401
            assert client.get("/health", headers=given).status_code == 200
        for key in keys:
            given = {"authorization": f"Bearer {key}"}
            assert client.post("/embed", json={"inputs": LONG}, headers=given).status_code == 200
            refused = client.post("/embed", json={"inputs": LONG, "truncate": False}, headers=given)
            assert refused.status_code == 413
            assert client.post("/embed", json={"inputs": ["a"] * 3}, headers=given).status_code == 413
    app.state.service.close()


def test_a_full_server_says_when_to_come_back(served_models):
    app = make_app({"vectors": served_models["vectors"]}, limits=Limits(queued_tokens=30, texts=20))
    service = app.state.service
    with TestClient(app, base_url="http://localhost") as client:
        whole = client.post("/embed", json={"inputs": ["the"] * 11})
        assert (whole.status_code, whole.json()["error"][:26]) == (413, "the request has 33 tokens,")
        service.scheduler.queued_tokens = 29
        full = client.post("/embed", json={"inputs": "the"})
        assert (full.status_code, full.json()["error_type"]) == (429, "Overloaded")
        assert full.headers["retry-after"] == "1"
        service.scheduler.queued_tokens = 0
        service.requests = service.limits.concurrent_requests
        assert client.post("/embed", json={"inputs": "the"}).status_code == 429
        assert client.get("/health").status_code == 200
        service.requests = 0
        assert client.post("/embed", json={"inputs": "the"}).status_code == 200
        assert 'unmask_rejected_total{reason="overloaded"} 2' in client.get("/metrics").text
    service.close()


def test_a_number_that_is_not_finite_is_an_error(client, served_models, monkeypatch):
    model = served_models["vectors"]
    muddy, whole = model.tokenizer.token_to_id("muddy"), model.engine.embed

    def broken(batch, head, **options):
        rows_SE = whole(batch, head, **options)
        rows_SE[[one for one in range(len(rows_SE)) if muddy in batch.ids_T[batch.layout.rows(one)]]] = np.nan
        return rows_SE

    monkeypatch.setattr(model.engine, "embed", broken)
    for path, field, status in (("/embed", "inputs", 424), ("/v1/embeddings", "input", 500)):
        answer = client.post(path, json={field: ["the bank", "muddy"]})
        assert answer.status_code == status
        assert sentence_of(answer, path).startswith("the embedding of a text is not finite")
    assert client.post("/embed", json={"inputs": "the bank"}).status_code == 200


def test_models_and_keys_that_are_refused(tmp_path):
    import unmask
    from tests.support.tiny import write_checkpoint
    from unmask.errors import InvalidRequest

    plain = unmask.load(write_checkpoint(tmp_path / "plain", sentence=False))
    app = make_app({"plain": plain})
    assert app.state.service.models.all[0].tasks == ("embed_all", "attention")
    app.state.service.close()
    with pytest.raises(InvalidRequest, match="models is empty"):
        make_app({})
    with pytest.raises(InvalidRequest, match="at least 16 characters"):
        make_app({"plain": plain}, keys=["short"])


def test_width_is_the_models(client):
    assert numbers(client.post("/embed", json={"inputs": "the"})).shape == (1, WIDTH)
