"""Indexes of models that give many vectors or weights of words, and reranking by a cross-encoder."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers

import unmask
from tests.search.test_index_workers import contents
from tests.support.tiny import VOCABULARY, WIDTH, tiny_bert, write_checkpoint, write_tokenizer
from unmask.errors import InvalidRequest
from unmask.search import adding
from unmask.search.adding import SegmentBuilder
from unmask.search.documents import Document
from unmask.search.index import Index
from unmask.search.settings import PassageSettings
from unmask.tasks.late_interaction import late_interaction

st = pytest.importorskip("sentence_transformers", reason="it writes the models of these tests")
modules = pytest.importorskip("sentence_transformers.base.modules")

TEXTS = {
    "a": "The river bank, was muddy.",
    "b": "another text, another bank",
    "c": "muddy muddy! a river",
    "d": "The text of the river is another text. " * 4,
}
QUERY = "a muddy river"


def encoder(folder, kind, **changes):
    write_checkpoint(folder, tiny_bert(kind, max_position_embeddings=40, **changes), sentence=False)
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def colbert(tmp_path_factory):
    own = pytest.importorskip("sentence_transformers.multi_vector_encoder.modules")
    place = tmp_path_factory.mktemp("colbert")
    torch.manual_seed(2)
    dense = modules.Dense(
        WIDTH,
        7,
        bias=False,
        activation_function=torch.nn.Identity(),
        module_input_name="token_embeddings",
    )
    parts = [
        modules.Transformer(encoder(place / "encoder", "BertModel")),
        dense,
        own.MultiVectorMask([",", "."], skiplist_tasks=["document"]),
        modules.Normalize(module_input_name="token_embeddings"),
    ]
    prompts = {"query": "a text ", "document": "the "}
    st.MultiVectorEncoder(modules=parts, prompts=prompts).save_pretrained(str(place / "model"))
    return unmask.load(place / "model")


@pytest.fixture(scope="module")
def splade(tmp_path_factory):
    own = pytest.importorskip("sentence_transformers.sparse_encoder.modules")
    place = tmp_path_factory.mktemp("splade")
    base = encoder(place / "encoder", "BertForMaskedLM")
    parts = [modules.Transformer(base, transformer_task="fill-mask"), own.SpladePooling("max")]
    prompts = {"query": "a text ", "document": "the "}
    st.SparseEncoder(modules=parts, prompts=prompts).save_pretrained(str(place / "model"))
    return unmask.load(place / "model")


@pytest.fixture(scope="module")
def reranker(tmp_path_factory):
    place = tmp_path_factory.mktemp("reranker")
    return unmask.load(encoder(place / "model", "BertForSequenceClassification", num_labels=1))


@pytest.fixture
def index(colbert, splade, tmp_path):
    made = Index.create(tmp_path / "index", [colbert, splade], passage_tokens=24)
    made.add([{"id": id, "text": text} for id, text in TEXTS.items()])
    return made


def passages(index):
    return {(hit.document, hit.start): hit for hit in index.search(QUERY, k=50, mode="multi_vector")}


def test_many_vectors_are_scored_by_late_interaction(index, colbert):
    found = passages(index)
    assert len(found) > len(TEXTS)
    query = colbert.multi_vectors(QUERY, "query").vectors_NE
    for hit in found.values():
        document = colbert.multi_vectors(hit.text, "document").vectors_NE
        stored = document.astype(np.float16).astype(np.float32)
        assert hit.score == pytest.approx(late_interaction(query, stored), abs=2e-3)


def test_shares_of_query_tokens_add_up_and_stand_in_the_document(index):
    for hit in index.search(QUERY, mode="multi_vector", why=True):
        (explained,) = hit.why
        assert explained.score == pytest.approx(hit.score, abs=1e-6)
        total = sum(share.share for share in explained.shares) + explained.special
        assert total == pytest.approx(hit.score, abs=1e-6)
        assert [share.label for share in explained.shares] == ["a", "muddy", "river"]
        for share in explained.shares:
            for start, end in share.spans:
                assert hit.start <= start < end <= hit.end


def test_candidates_bound_what_many_vectors_score(index):
    every = passages(index)
    some = index.search(QUERY, k=2, mode="multi_vector", candidates=2)
    first = index.search(QUERY, k=2, mode="sparse")
    lexical = index.search(QUERY, k=2, mode="bm25")
    assert len(some) == 2
    assert {hit.document for hit in some} <= {hit.document for hit in (*first, *lexical)}
    for hit in some:
        assert hit.score == pytest.approx(every[hit.document, hit.start].score, abs=1e-6)


def test_candidates_of_many_vectors_alone_are_refused(colbert, tmp_path):
    alone = Index.create(tmp_path / "index", colbert, bm25=False)
    alone.add([TEXTS["a"]])
    with pytest.raises(InvalidRequest, match="no effect with mode multi_vector without a reranker"):
        alone.search(QUERY, k=1, candidates=1)


def test_terms_of_a_bm25_explanation_stand_in_the_document(index):
    hits = index.search(QUERY, k=50, mode="bm25", why="shares")
    assert any(hit.start for hit in hits)
    for hit in hits:
        (explained,) = hit.why
        assert explained.score == pytest.approx(hit.score, rel=1e-5)
        for share in explained.shares:
            assert share.spans
            for start, end in share.spans:
                assert hit.start <= start < end <= hit.end
                assert TEXTS[hit.document][start:end].lower().startswith(share.label[:4])


def test_words_of_a_sparse_explanation_stand_in_the_document(index, splade):
    placed = 0
    for hit in index.search(QUERY, mode="sparse", why="shares"):
        (explained,) = hit.why
        (encoding,) = splade.tokenize([hit.text])
        for share in explained.shares:
            places = [
                (hit.start + start, hit.start + end)
                for piece, (start, end) in zip(encoding.pieces, encoding.offsets.tolist(), strict=True)
                if piece == share.label and end > start
            ]
            assert share.spans == tuple(places)
            words = {TEXTS[hit.document][start:end].lower() for start, end in share.spans}
            assert words <= {share.label.removeprefix("##")}
            placed += len(places)
    assert placed > 0


def test_sparse_scores_are_products_of_weights(index, splade):
    query = splade.sparse_vectors(QUERY, "query")
    for hit in index.search(QUERY, mode="sparse", why=True):
        document = splade.sparse_vectors(hit.text, "document")
        held = dict(zip(document.ids.tolist(), document.weights.tolist(), strict=True))
        wanted = sum(
            weight * held.get(id, 0.0)
            for id, weight in zip(query.ids.tolist(), query.weights.tolist(), strict=True)
        )
        assert hit.score == pytest.approx(wanted, rel=1e-4)
        (explained,) = hit.why
        assert sum(share.share for share in explained.shares) == pytest.approx(hit.score, rel=1e-6)


def test_hybrid_search_fuses_three_views(index):
    hits = index.search(QUERY, why=True)
    assert {one.view for hit in hits for one in hit.why} == {"bm25", "sparse", "multi_vector"}
    for hit in hits:
        assert hit.score == pytest.approx(sum(1 / (60 + one.rank) for one in hit.why), rel=1e-6)
    with pytest.raises(InvalidRequest, match="mode is 'dense' and the index has the views"):
        index.search(QUERY, mode="dense")


def test_a_reranker_orders_the_first_hits(index, reranker, monkeypatch):
    first = index.search(QUERY, k=4, mode="bm25")
    hits = index.search(QUERY, k=4, mode="bm25", reranker=reranker)
    assert {hit.document for hit in hits} == {hit.document for hit in first}
    before = {(hit.document, hit.start): hit.score for hit in first}
    for hit in hits:
        assert hit.score == pytest.approx(reranker.score_pairs(QUERY, hit.text), abs=1e-6)
        assert hit.first_score == before[hit.document, hit.start]
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    (best,) = index.search(QUERY, k=1, mode="bm25", reranker=reranker, candidates=2)
    assert before[best.document, best.start] >= first[1].score
    monkeypatch.setattr("unmask.search.searchable.RERANKED", 1)
    few = index.search(QUERY, k=4, mode="bm25", reranker=reranker)
    assert few == hits  # at least as many are scored as are asked for


def test_a_model_of_vectors_orders_the_first_hits(index, colbert, tiny_model):
    first = index.search(QUERY, k=4, mode="bm25")
    late = index.search(QUERY, k=4, mode="bm25", reranker=colbert)
    cosines = index.search(QUERY, k=4, mode="bm25", reranker=tiny_model)
    asked = colbert.multi_vectors(QUERY, "query").vectors_NE
    for hit in late:
        document = colbert.multi_vectors(hit.text, "document", truncation="end").vectors_NE
        assert hit.score == pytest.approx(late_interaction(asked, document), abs=1e-4)
    for hit in cosines:
        one, other = tiny_model.embed([QUERY, hit.text], normalize=True, truncation="end")
        assert hit.score == pytest.approx(float(one @ other), abs=1e-5)
    for hits in (late, cosines):
        assert {hit.document for hit in hits} == {hit.document for hit in first}
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        assert {hit.first_score for hit in hits} == {hit.score for hit in first}
    assert index.search("zebra", mode="bm25", reranker=tiny_model) == ()


def test_fused_rankings_are_as_long_as_what_is_asked_for(index, monkeypatch):
    whole = index.search(QUERY, k=50)
    monkeypatch.setattr("unmask.search.searcher.FUSED_DEPTH", 1)
    assert {(hit.document, hit.start) for hit in index.search(QUERY, k=50)} == {
        (hit.document, hit.start) for hit in whole
    }


def test_compacting_keeps_every_view(index):
    index.add([{"id": "e", "text": "a river of text"}])
    index.delete("b")
    modes = ("bm25", "sparse", "multi_vector")
    before = [index.search(QUERY, k=20, mode=mode, why=True) for mode in modes]
    index.compact()
    again = Index.open(index.path)
    for mode, hits in zip(modes, before, strict=True):
        found = again.search(QUERY, k=20, mode=mode, why=True)
        assert [(hit.document, hit.start) for hit in found] == [(hit.document, hit.start) for hit in hits]
        np.testing.assert_allclose([hit.score for hit in found], [hit.score for hit in hits], rtol=1e-6)


def test_a_reranker_gives_no_view(reranker, tmp_path):
    with pytest.raises(InvalidRequest, match="gives no vectors to search with"):
        Index.create(tmp_path / "index", reranker)


@pytest.mark.slow
def test_workers_compute_every_view_as_one_process(colbert, splade, one_thread, tmp_path, monkeypatch):
    monkeypatch.setattr(adding, "CHARACTERS_AT_ONCE", 40)
    documents = [{"id": str(number), "text": f"a muddy river {'bank ' * number}"} for number in range(5)]
    for name, workers in (("several", 2), ("one", 1)):
        added = Index.create(tmp_path / name, ["default", colbert, splade]).add(documents, workers=workers)
        assert added.added == 5
    found, wanted = contents(tmp_path / "several"), contents(tmp_path / "one")
    assert found.keys() == wanted.keys()
    assert [name for name in found if found[name] != wanted[name]] == []


@pytest.mark.parametrize("view", ["sparse", "multi_vector"])
def test_a_passage_that_a_model_cannot_read_whole_is_cut_once_more(colbert, splade, tmp_path, view):
    """Passages of 40 words: tokenized by the model, each has special tokens too, and perhaps a prompt."""
    model = {"sparse": splade, "multi_vector": colbert}[view]
    made = Index.create(tmp_path / "index", [model])
    full = replace(made.settings, passages=PassageSettings(40))
    by_words = SegmentBuilder(full, {view: model})
    by_words._tokenizer = None
    long = Document("long", "a muddy river. " * 20)
    found = by_words.compute([long, Document("short", "a muddy river"), Document("word", "x" * 60)])
    cut = found.cut
    assert not found.skipped
    assert [len(one.passages) for one in cut] == [4, 1, 1], "two of at most 40, each cut in two"
    assert "".join(part + " " for part in cut[0].texts) == long.text
    assert [(one.counts.tokens, one.counts.dropped > 0) for one in cut] == [
        (80, False),
        (3, False),
        (0, True),
    ]
    for text in (*cut[0].texts, *cut[1].texts):
        if view == "multi_vector":
            model.multi_vectors(text, "document")  # it refuses what is too long
        else:
            model.sparse_vectors(text, "document")


def test_a_document_that_one_model_cannot_read_is_skipped(colbert, splade, tmp_path):
    def blind(folder):
        """A SPLADE whose tokenizer has no word for digits."""
        copied = shutil.copytree(splade.checkpoint.source.folder, folder)
        state = json.loads((copied / "tokenizer.json").read_text())
        state["normalizer"] = {"type": "Replace", "pattern": {"Regex": "[0-9]"}, "content": " "}
        (copied / "tokenizer.json").write_text(json.dumps(state))
        (copied / "unmask_checksums.json").unlink(missing_ok=True)
        return unmask.load(copied)

    made = Index.create(tmp_path / "index", [colbert, blind(tmp_path / "blind")])
    added = made.add([{"id": "digits", "text": "1 2 3"}, {"id": "a", "text": TEXTS["a"]}])
    assert (added.added, [id for id, _ in added.skipped], made.ids) == (1, ["digits"], ("a",))


def test_each_model_reads_its_own_tokens(splade, tmp_path):
    """The dense model stands second, and its vocabulary has another order."""
    other = write_checkpoint(tmp_path / "other", tiny_bert(max_position_embeddings=40))
    write_tokenizer(other, (*VOCABULARY[:5], *reversed(VOCABULARY[5:])))
    dense = unmask.load(other)
    made = Index.create(tmp_path / "index", [splade, dense])
    made.add([{"id": id, "text": text} for id, text in TEXTS.items()])
    for hit in made.search(QUERY, mode="dense"):
        wanted = dense.similarity(QUERY, hit.text)[0, 0]
        assert hit.score == pytest.approx(float(wanted), abs=1e-5)


def test_weights_of_words_are_not_exported(splade, tmp_path):
    made = Index.create(tmp_path / "index", splade)
    made.add([{"id": "a", "text": TEXTS["a"]}])
    with pytest.raises(InvalidRequest, match="has the views bm25, sparse and other stores get"):
        made.export(tmp_path / "x.parquet", "parquet")
