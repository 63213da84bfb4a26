"""Vectors of tokens over HTTP, and reranking by late interaction."""

import base64

import numpy as np
import pytest

from tests.search.test_index_models import colbert  # noqa: F401 - a fixture
from unmask.serve.routes import route
from unmask.tasks.late_interaction import late_interaction

TEXTS = ["The river bank, was muddy.", "another text, another bank", "muddy muddy! a river"]


@pytest.fixture(scope="module")
def late(colbert):  # noqa: F811
    from starlette.testclient import TestClient

    from unmask.serve import make_app

    app = make_app({"late": colbert})
    with TestClient(app, base_url="http://127.0.0.1:8080") as client:
        yield client
    app.state.service.close()


def post(client, path, code=200, **body):
    answer = client.post(path, json=body)
    assert answer.status_code == code, answer.text
    return answer.json()


@pytest.mark.parametrize("kind", ["query", "document"])
@pytest.mark.parametrize(("form", "dtype"), [("float", None), ("base64", "<f4"), ("base64_float16", "<f2")])
def test_vectors_are_those_of_the_model(late, colbert, kind, form, dtype):  # noqa: F811
    found = post(late, "/v1/multi_vectors", input=TEXTS, kind=kind, encoding_format=form)
    expected = colbert.multi_vectors(TEXTS, kind)
    assert [row["index"] for row in found["data"]] == [0, 1, 2]
    for row, vectors in zip(found["data"], expected, strict=True):
        values = row["vectors"]
        if dtype is not None:
            values = np.frombuffer(base64.b64decode(values), dtype).reshape(row["count"], row["width"])
        assert np.shape(values) == vectors.vectors_NE.shape
        np.testing.assert_allclose(values, vectors.vectors_NE, atol=1e-3 if dtype == "<f2" else 1e-6)
        assert row["spans"] == vectors.spans_N2.tolist()
    assert found["usage"]["total_tokens"] > 0


def test_one_text_alone_is_as_in_a_list(late):
    alone = post(late, "/v1/multi_vectors", input=TEXTS[0])["data"]
    listed = post(late, "/v1/multi_vectors", input=TEXTS[:1])["data"]
    assert alone == listed


@pytest.mark.parametrize("path", ["/rerank", "/v2/rerank", "/v1/rerank"])
def test_reranking_is_late_interaction(late, colbert, path):  # noqa: F811
    query = "a muddy river"
    asked = colbert.multi_vectors(query, "query")
    scores = [late_interaction(asked, each) for each in colbert.multi_vectors(TEXTS, "document")]
    order = np.argsort(-np.array(scores)).tolist()
    if path == "/rerank":
        raw = post(late, path, query=query, texts=TEXTS, raw_scores=True)
        assert [row["index"] for row in raw] == order
        assert [row["score"] for row in raw] == pytest.approx([scores[i] for i in order], abs=1e-5)
        rows = post(late, path, query=query, texts=TEXTS)
        shown = [row["score"] for row in rows]
    else:
        rows = post(late, path, query=query, documents=TEXTS)["results"]
        shown = [row["relevance_score"] for row in rows]
    assert [row["index"] for row in rows] == order
    assert shown == pytest.approx([scores[i] / len(asked) for i in order], abs=1e-5)


def test_errors_name_the_field(late, client, monkeypatch):
    assert "input[1]" in post(late, "/v1/multi_vectors", 413, input=["a", "text " * 90])["error"]["message"]
    assert "texts[1]" in str(post(late, "/rerank", 413, query="a", texts=["a", "text " * 90]))
    assert post(late, "/v1/multi_vectors", input=["text " * 90], truncate=True)["data"]
    wrong = post(client, "/v1/multi_vectors", 400, input="a", model="vectors")["error"]["message"]
    assert "is not a model that gives vectors of tokens for late interaction" in wrong
    monkeypatch.setattr("unmask.serve.routes.openai.MOST_NUMBERS", 20)
    too_many = post(late, "/v1/multi_vectors", 413, input="a text of a river")["error"]["message"]
    assert "at most are answered" in too_many
    assert route.MOST_NUMBERS > 20


def test_search_takes_late_interaction_as_reranker(colbert, tmp_path):  # noqa: F811
    from starlette.testclient import TestClient

    from unmask.search.index import Index
    from unmask.serve import make_app

    index = Index.create(tmp_path / "index", [])
    index.add(TEXTS)
    app = make_app({"late": colbert}, indexes={"notes": index})
    with TestClient(app, base_url="http://127.0.0.1:8080") as client:
        hits = post(client, "/v1/search", query="river", reranker="late")["hits"]
    app.state.service.close()
    expected = index.search("river", reranker=colbert)
    assert [(hit["document"], hit["score"]) for hit in hits] == [
        (hit.document, pytest.approx(hit.score, abs=1e-6)) for hit in expected
    ]
    assert hits
