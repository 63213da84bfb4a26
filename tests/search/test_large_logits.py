"""Scores that a sigmoid makes equal: every ranking follows the logits."""

import numpy as np
import pytest

import unmask
from tests.support.tiny import tiny_bert, write_checkpoint
from unmask.evaluate.retrieval.mteb import MtebCrossEncoder
from unmask.evaluate.retrieval.retrieval import ranking
from unmask.search.index import Index
from unmask.tasks.classify import most_probable

TEXTS = ["the river", "a muddy bank", "the bank was a river", "another text", "a text", "was muddy"]
QUERY = "a river"


@pytest.fixture(scope="module")
def sure(tmp_path_factory):
    """A cross-encoder whose scores are all 1."""
    folder = tmp_path_factory.mktemp("sure") / "model"
    network = tiny_bert("BertForSequenceClassification", num_labels=1)
    network.classifier.weight.data *= 30
    network.classifier.bias.data[:] = 100
    write_checkpoint(folder, network, sentence=False)
    return unmask.load(folder)


@pytest.fixture(scope="module")
def logits(sure):
    found = sure.score_pairs(QUERY, TEXTS, activation="identity")
    assert len(set(found.tolist())) == len(TEXTS)
    assert set(sure.score_pairs(QUERY, TEXTS).tolist()) == {1.0}
    return found


@pytest.fixture(scope="module")
def order(logits):
    best = np.argsort(-logits).tolist()
    assert best != sorted(best)
    return best


def test_a_reranker_orders_hits_and_evaluations(sure, order, tmp_path):
    index = Index.create(tmp_path / "index", [])
    index.add([{"id": str(at), "text": f"{text} {'river ' * 9}"} for at, text in enumerate(TEXTS)])
    texts = [index.document(str(at)).text for at in range(len(TEXTS))]
    best = np.argsort(-sure.score_pairs("river", texts, activation="identity")).astype(str).tolist()
    hits = index.search("river", mode="bm25", reranker=sure)
    assert [hit.document for hit in hits] == best
    assert {hit.score for hit in hits} == {1.0}
    (found,) = index.rank_documents(["river"], mode="bm25", reranker=sure)
    assert ranking(dict(found)) == best


def test_mteb_gets_logits(sure, logits):
    found = MtebCrossEncoder(sure).predict([{"text": [QUERY] * len(TEXTS)}], [{"text": TEXTS}])
    np.testing.assert_allclose(found, logits, rtol=1e-5)


def test_served_rankings(sure, order):
    testclient = pytest.importorskip("starlette.testclient")
    pytest.importorskip("httpx")
    from unmask.serve import make_app

    app = make_app({"sure": sure})
    with testclient.TestClient(app, base_url="http://127.0.0.1") as client:
        asked = {"query": QUERY, "texts": TEXTS}
        assert [one["index"] for one in client.post("/rerank", json=asked).json()] == order
        for path in ("/v1/rerank", "/v2/rerank"):
            body = {"model": "sure", "query": QUERY, "documents": TEXTS, "top_n": 3}
            answer = client.post(path, json=body).json()
            assert [one["index"] for one in answer["results"]] == order[:3]
    app.state.service.close()


def test_the_best_label_has_the_largest_logit():
    assert most_probable(np.array([1.0, 1.0, 0.0]), np.array([40.0, 50.0, 60.0])) == 1
    assert most_probable(np.array([0.5, 0.5]), np.array([2.0, 2.0])) == 0
