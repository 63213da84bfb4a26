"""The methods that mteb calls, with and without mteb."""

import numpy as np
import pytest

import unmask
from tests.support.tiny import tiny_bert, write_checkpoint, write_prompts
from unmask.errors import InvalidRequest, MissingExtra
from unmask.evaluate.retrieval.mteb import MtebCrossEncoder, MtebEncoder, MtebSearch
from unmask.search.index import Index

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


def test_prompts_are_those_of_the_side(tmp_path):
    prompted = unmask.load(write_prompts(tmp_path / "model", {"query": "a ", "passage": "the "}))
    encoder = MtebEncoder(prompted)

    def of(prompt_type):
        return encoder.encode([{"text": ["river"]}], prompt_type=prompt_type)[0]

    np.testing.assert_allclose(of("query"), prompted.embed("a river"), atol=1e-6)
    np.testing.assert_allclose(of("document"), prompted.embed("the river"), atol=1e-6)
    np.testing.assert_allclose(of(None), prompted.embed("river"), atol=1e-6)


def test_similarities_are_those_of_the_metric(model):
    a, b = np.array([[3.0, 4.0], [1.0, 0.0]], np.float32), np.array([[1.0, 0.0], [0.0, 2.0]], np.float32)
    encoder = MtebEncoder(model)
    np.testing.assert_allclose(encoder.similarity(a, b), [[0.6, 0.8], [1, 0]], atol=1e-6)
    np.testing.assert_allclose(encoder.similarity_pairwise(a, b), [0.6, 0.0], atol=1e-6)
    np.testing.assert_allclose(MtebEncoder(model, metric="dot").similarity_pairwise(a, b), [3.0, 0.0])


def searching(model, *modes, **options):
    search = MtebSearch(model, *modes, **options)
    search.index(CORPUS, task_metadata=None, hf_split="t", hf_subset="d", encode_kwargs={}, num_proc=None)
    return search


def test_candidates_that_nothing_scores_are_refused(model):
    with pytest.raises(InvalidRequest, match="candidates is 2 and has no effect with mode dense"):
        MtebSearch(model, "dense", candidates=2)


def test_search_finds_the_titles_and_texts_of_rows(model):
    found = searching(model, "dense").search(
        QUERIES, task_metadata=None, hf_split="t", hf_subset="d", top_k=2, encode_kwargs={}, num_proc=None
    )
    assert found.keys() == {"1", "2"}
    assert [len(scores) for scores in found.values()] == [2, 2]
    assert max(found["1"], key=found["1"].get) == "a", "its title and text are the query"
    assert found["1"]["a"] == pytest.approx(1.0, abs=1e-5)


def test_search_is_that_of_an_index(model, tmp_path):
    index = Index.create(tmp_path / "index", model, whole_documents=True)
    index.add([{"id": row["id"], "text": f"{row['title'] or ''} {row['text']}".strip()} for row in CORPUS])
    for mode in (None, "bm25"):
        found = searching(model, mode).search(QUERIES, top_k=3)
        for row in QUERIES:
            hits = index.search(row["text"], 3, mode, unit="document")
            assert found[row["id"]] == {hit.document: hit.score for hit in hits}


def test_another_corpus_replaces_the_first(model):
    search = searching(model, "dense")
    search.index([{"id": "z", "text": "the river"}])
    assert search.search(QUERIES, top_k=5)["1"].keys() == {"z"}


def test_reranking_scores_the_documents_that_are_named(model):
    found = searching(model, "dense").search(
        QUERIES, top_k=1, top_ranked={"1": ["b", "c", "unknown"], "2": []}
    )
    assert found["1"].keys() <= {"b", "c"}
    assert (len(found["1"]), found["2"]) == (1, {})


def test_long_queries_are_truncated_and_blank_ones_find_nothing(model):
    queries = [{"id": "long", "text": "the river " * 30}, {"id": "blank", "text": " "}]
    found = searching(model, "dense").search(queries, top_k=3)
    assert (len(found["long"]), found["blank"]) == (3, {})


@pytest.fixture(scope="module")
def cross_encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cross") / "model"
    write_checkpoint(folder, tiny_bert("BertForSequenceClassification", num_labels=1), sentence=False)
    return unmask.load(folder)


def test_pairs_are_scored_in_order(model, cross_encoder):
    texts = ["the river", "a muddy bank", "the bank was a river " * 9]
    found = MtebCrossEncoder(cross_encoder).predict(
        [{"text": ["a", "the"]}, {"text": ["bank"]}],
        [{"text": texts[:2]}, {"text": texts[2:]}],
        task_metadata=None, hf_split="t", hf_subset="d",
    )  # fmt: skip
    expected = [
        cross_encoder.score_pairs(query, [text], activation="identity", truncation="end")[0]
        for query, text in zip(("a", "the", "bank"), texts, strict=True)
    ]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    with pytest.raises(InvalidRequest, match="does not score pairs"):
        MtebCrossEncoder(model)


def test_a_reranker_orders_what_the_index_finds(model, cross_encoder):
    search = searching(model, "dense", reranker=cross_encoder, candidates=2)
    found = search.search(QUERIES, top_k=10)["2"]
    assert len(found) == 2
    assert list(found.values()) == pytest.approx(
        [
            cross_encoder.score_pairs(
                "a muddy bank", search._index.document(id).text, activation="identity", truncation="end"
            )
            for id in found
        ],
        abs=1e-6,
    )


@pytest.mark.slow
def test_mteb_recognizes_all(model, cross_encoder):
    protocols = pytest.importorskip("mteb.models.models_protocols")
    encoder, search = MtebEncoder(model), MtebSearch(model)
    scorer = MtebCrossEncoder(cross_encoder)
    assert isinstance(encoder, protocols.EncoderProtocol)
    assert not isinstance(encoder, protocols.SearchProtocol)
    assert isinstance(search, protocols.SearchProtocol)
    assert isinstance(scorer, protocols.CrossEncoderProtocol)
    assert encoder.mteb_model_meta.name == f"unmask/{model.name}"
    assert encoder.mteb_model_meta.embed_dim == model.width
    assert search.mteb_model_meta.name == f"unmask/{model.name}-hybrid-whole"
    assert scorer.mteb_model_meta.max_tokens == cross_encoder.max_tokens


def test_the_package_is_named_where_it_is_missing(model, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "mteb", None)
    monkeypatch.setitem(__import__("sys").modules, "mteb.models.model_meta", None)
    with pytest.raises(MissingExtra, match="pip install mteb"):
        _ = MtebSearch(model).mteb_model_meta
