"""The methods that mteb calls, with and without mteb."""

import numpy as np
import pytest

import unmask
from unmask.errors import MissingExtra
from unmask.model.spec import PooledVector
from unmask.search.evaluation.mteb import DenseEngine, MtebEncoder, MtebSearch

CORPUS = [
    {"id": "a", "title": "the", "text": "river"},
    {"id": "b", "title": "", "text": "a muddy bank"},
    {"id": "c", "title": None, "text": "the bank was a river"},
]
QUERIES = [{"id": "1", "text": "the river"}, {"id": "2", "text": "a muddy bank"}]


@pytest.fixture(scope="module")
def model(tiny_folder):
    return unmask.load(tiny_folder)


def test_encode_embeds_batches_in_order(model):
    long = "the river " * 20
    batches = [{"text": ["", "the river"]}, {"text": [long]}]
    found = MtebEncoder(model).encode(batches, task_metadata=None, hf_split="test", hf_subset="default")
    np.testing.assert_allclose(found[1], model.embed("the river"), atol=1e-6)
    assert not found[0].any(), "a text without words"
    np.testing.assert_allclose(found[2], model.embed(long, truncation="end"), atol=1e-6)
    assert MtebEncoder(model).encode([]).shape == (0, model.width)


def test_prompts_are_those_of_the_side(model, monkeypatch):
    head = PooledVector(prompts=(("query", "a "), ("passage", "the ")))
    monkeypatch.setattr(type(model), "embedding_head", lambda self, *_: head)
    encoder = MtebEncoder(model)

    def of(prompt_type):
        return encoder.encode([{"text": ["river"]}], prompt_type=prompt_type)[0]

    np.testing.assert_allclose(of("query"), model.embed("a river"), atol=1e-6)
    np.testing.assert_allclose(of("document"), model.embed("the river"), atol=1e-6)
    np.testing.assert_allclose(of(None), model.embed("river"), atol=1e-6)


def test_similarities_are_those_of_the_metric(model):
    a, b = np.array([[3.0, 4.0], [1.0, 0.0]], np.float32), np.array([[1.0, 0.0], [0.0, 2.0]], np.float32)
    encoder = MtebEncoder(model)
    np.testing.assert_allclose(encoder.similarity(a, b), [[0.6, 0.8], [1, 0]], atol=1e-6)
    np.testing.assert_allclose(encoder.similarity_pairwise(a, b), [0.6, 0.0], atol=1e-6)
    np.testing.assert_allclose(MtebEncoder(model, metric="dot").similarity_pairwise(a, b), [3.0, 0.0])


def test_search_finds_the_titles_and_texts_of_rows(model):
    search = MtebSearch(DenseEngine(model))
    search.index(CORPUS, task_metadata=None, hf_split="t", hf_subset="d", encode_kwargs={}, num_proc=None)
    found = search.search(
        QUERIES, task_metadata=None, hf_split="t", hf_subset="d", top_k=2, encode_kwargs={}, num_proc=None
    )
    assert found.keys() == {"1", "2"}
    assert [len(scores) for scores in found.values()] == [2, 2]
    assert max(found["1"], key=found["1"].get) == "a", "its title and text are the query"
    assert found["1"]["a"] == pytest.approx(1.0, abs=1e-5)


def test_reranking_scores_the_documents_that_are_named(model):
    search = MtebSearch(DenseEngine(model))
    search.index(CORPUS)
    found = search.search(QUERIES, top_k=1, top_ranked={"1": ["b", "c", "unknown"], "2": []})
    assert found["1"].keys() <= {"b", "c"}
    assert (len(found["1"]), found["2"]) == (1, {})


def test_mteb_recognizes_both(model):
    protocols = pytest.importorskip("mteb.models.models_protocols")
    encoder, search = MtebEncoder(model), MtebSearch(DenseEngine(model))
    assert isinstance(encoder, protocols.EncoderProtocol)
    assert not isinstance(encoder, protocols.SearchProtocol)
    assert isinstance(search, protocols.SearchProtocol)
    assert encoder.mteb_model_meta.name == f"unmask/{model.name}"
    assert encoder.mteb_model_meta.embed_dim == model.width


def test_the_package_is_named_where_it_is_missing(model, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "mteb", None)
    monkeypatch.setitem(__import__("sys").modules, "mteb.models.model_meta", None)
    with pytest.raises(MissingExtra, match="pip install mteb"):
        _ = MtebSearch(DenseEngine(model)).mteb_model_meta
