"""An index as a user meets it: adding, searching, filtering, deleting, reopening."""

import shutil

import numpy as np
import pytest

import unmask
from tests.support.tiny import tiny_bert, write_checkpoint
from unmask.errors import CorruptIndex, EmptyText, InvalidRequest, OutputError, TextTooLong
from unmask.search.documents import Document, Skipped
from unmask.search.index import Index
from unmask.search.passages import words_of
from unmask.search.store import writing
from unmask.text.windows import truncated

TEXTS = {
    "bridge": "The old bridge crosses the river. It was built of stone.",
    "bank": "The bank lends money. Interest on a loan is paid every month.",
    "fish": "Fish swim in the river, deep under the bridge.",
    "code": "def readFile(name):\n    return open(name).read()",
}
WORDS = ("river", "bank", "money", "fish", "stone", "loan", "bridge", "month", "interest", "file") * 3
YEARS = {"bridge": 1900, "bank": 2001, "fish": 2001, "code": 2020}


def documents():
    return [
        Document(id, text, metadata={"year": YEARS[id], "tags": [id[0], "all"]}) for id, text in TEXTS.items()
    ]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    """A tiny checkpoint that reads 64 tokens."""
    return write_reader(tmp_path_factory.mktemp("reader") / "tiny")


def write_reader(folder, seed=0):
    write_checkpoint(folder, tiny_bert(seed=seed, max_position_embeddings=64))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 64, "do_lower_case": false}')
    return folder


@pytest.fixture(scope="module")
def tiny_model(model_folder):
    return unmask.load(model_folder)


@pytest.fixture
def index(tiny_model, tmp_path):
    made = Index.create(tmp_path / "index", tiny_model)
    made.add(documents())
    return made


def found(hits):
    return [hit.document for hit in hits]


@pytest.mark.parametrize("mode", ["bm25", "dense", "hybrid"])
def test_hits_are_slices_of_their_documents_and_ordered(index, mode):
    hits = index.search("river bridge", mode=mode)
    assert hits
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    for hit in hits:
        assert hit.text == index.document(hit.document).text[hit.start : hit.end]
        assert hit.metadata["year"] == YEARS[hit.document]
        assert hit.page is None


def test_bm25_finds_passages_with_the_terms_alone(index):
    assert set(found(index.search("rivers", mode="bm25"))) == {"bridge", "fish"}
    assert found(index.search("the file that was read", mode="bm25"))[0] == "code"
    assert index.search("zebra", mode="bm25") == ()


def test_dense_scores_are_cosines_of_the_model(index, tiny_model):
    query = "a river"
    hits = index.search(query, mode="dense")
    assert len(hits) == len(TEXTS)
    for hit in hits:
        cosine = tiny_model.similarity(query, hit.text)[0, 0]
        assert hit.score == pytest.approx(float(cosine), abs=1e-6)


def test_a_query_has_the_same_hits_alone_and_in_a_list(index):
    queries = ["river", "money and loans", "stone bridge of the old town"]
    together = index.search(queries, mode="hybrid", why=True)
    assert together == [index.search(query, mode="hybrid", why=True) for query in queries]


def test_shares_add_up_to_the_score(index):
    for hit in index.search("the river and the bridge", why=True):
        assert hit.why
        for one in hit.why:
            shares = sum(share.share for share in one.shares)
            assert shares + one.special == pytest.approx(one.score, abs=1e-6)
            text = index.document(hit.document).text
            for share in (*one.shares, *one.attribution):
                for start, end in share.spans:
                    assert hit.start <= start < end <= hit.end
                    if one.view == "dense":
                        assert text[start:end] == share.label
    hit = index.search("rivers", k=1, mode="bm25", why=True)[0]
    (explained,) = hit.why
    (share,) = explained.shares
    assert share.label == "river"
    assert {index.document(hit.document).text[a:b] for a, b in share.spans} == {"river"}
    assert explained.score == pytest.approx(hit.score)


def test_dense_attribution_is_that_of_interpret(index, tiny_model):
    from unmask.interpret.activation_cache import ActivationCache
    from unmask.interpret.effects.attribution import attribution
    from unmask.interpret.effects.target import Embedding

    hit = index.search("money", k=1, mode="dense", why=True)[0]
    query = tiny_model.embed("money", normalize=True)
    encoding = tiny_model.tokenize(hit.text)
    cache = ActivationCache.of(tiny_model.trainable_encoder(replace=False), encoding)
    wanted = attribution(cache, Embedding(("mean",), toward=tuple(query.tolist()))).values
    special = encoding.special
    given = [share.share for share in hit.why[0].attribution]
    np.testing.assert_allclose(given, wanted[~special], rtol=1e-5)


@pytest.mark.parametrize(
    ("filter", "wanted"),
    [
        ({"year": 2001}, {"bank", "fish"}),
        ({"year": [1900, 2020]}, {"bridge", "code"}),
        ({"tags": "b"}, {"bridge", "bank"}),
        (["year>=2001", "year<2020"], {"bank", "fish"}),
        (["year!=2001", "tags=all"], {"bridge", "code"}),
        (["tags!=b"], {"fish", "code"}),
        (lambda metadata: metadata["year"] % 2 == 0, {"bridge", "code"}),
    ],
)
@pytest.mark.parametrize("mode", ["dense", "hybrid"])
def test_filters(index, filter, wanted, mode):
    assert set(found(index.search("the river", filter=filter, mode=mode))) == wanted


def test_filters_that_cannot_be_meant_are_refused(index):
    with pytest.raises(InvalidRequest, match="names 'yaer', which no document has; metadata are: tags, year"):
        index.search("river", filter={"yaer": 1})
    with pytest.raises(InvalidRequest, match="is no condition; write KEY=VALUE"):
        index.search("river", filter=["year"])
    with pytest.raises(InvalidRequest, match="give a dictionary of values"):
        index.search("river", filter="year=2001")


def test_adding_again_computes_what_changed(index):
    given = [*documents()[:2], Document("fish", "Fish are cold."), Document("new", "A new text.")]
    added = index.add([*given, Skipped("x.bin", "it is not text")])
    assert (added.added, added.updated, added.unchanged) == (1, 1, 2)
    assert added.skipped == (("x.bin", "it is not text"),)
    assert added.missing == ("code",)
    assert sorted(index.ids) == ["bank", "bridge", "code", "fish", "new"]
    assert index.document("fish").text == "Fish are cold."
    assert "fish" not in found(index.search("river", mode="bm25"))
    before = index.generation
    assert index.add(given).unchanged == 4
    assert index.generation == before


def test_a_new_title_or_other_metadata_are_a_change(index):
    (bridge, bank, *_) = documents()
    changed = [
        Document(bridge.id, bridge.text, "A title", metadata=bridge.metadata),
        Document(bank.id, bank.text, metadata={"year": 1}),
    ]
    assert index.add(changed).updated == 2
    assert index.document("bridge").title == "A title"
    assert index.document("bank").metadata == {"year": 1}


def test_deleted_documents_are_gone_and_compacting_changes_no_result(index):
    index.add([{"id": str(n), "text": f"Text number {n} about the river."} for n in range(5)])
    assert index.delete(["bridge", "3"]) == 2
    assert len(index) == 7
    assert "bridge" not in index
    queries = ["river", "number 3", "loan"]
    before = index.search(queries, k=20, why=True)
    dense = index.search(queries, k=20, mode="dense")
    assert not {"bridge", "3"} & set(found(hit for hits in before for hit in hits))
    index.compact()
    assert len(index._contents.segments) == 1
    assert index.search(queries, k=20, why=True) == before
    assert index.search(queries, k=20, mode="dense") == dense
    with pytest.raises(InvalidRequest, match="no document 'bridge'"):
        index.delete(["bank", "bridge"])
    assert "bank" in index


def test_everything_may_be_deleted(index):
    assert index.delete(index.ids) == 4
    index.compact()
    assert (len(index), index.passages, index.search("river")) == (0, 0, ())
    assert index.add(documents()).added == 4


def test_approximate_search_scores_exactly_what_a_graph_proposes(index, monkeypatch):
    monkeypatch.setattr("unmask.search.ann.EXACT_ROWS", 8)
    monkeypatch.setattr("unmask.search.ann.CANDIDATES", 4)
    index.add([{"id": f"n{n:02}", "text": f"Text {n} tells of {word}."} for n, word in enumerate(WORDS)])
    index.delete(["n03", "bank"])
    exact = index.search("a river of money", k=3, mode="dense")
    found = index.search("a river of money", k=3, mode="dense", approximate=True)
    every = {(hit.document, hit.start): hit.score for hit in index.search("a river of money", 99, "dense")}
    assert len(found) == 3
    assert found[0] == exact[0]
    assert all(every[hit.document, hit.start] == hit.score for hit in found)
    assert list((index.path / "cache").iterdir())
    assert Index.verify(index.path) == ()
    with pytest.raises(InvalidRequest, match="approximate search is for mode dense without a filter"):
        index.search("river", mode="bm25", approximate=True)
    with pytest.raises(InvalidRequest, match="with a filter"):
        index.search("river", mode="dense", approximate=True, filter={"year": 2001})


def test_scores_are_fused_as_asked(index):
    query = "the river and the loan"
    bm25, dense = (index.search(query, 99, mode) for mode in ("bm25", "dense"))
    wanted = {}
    for hits, weight in ((bm25, 1.0), (dense, 2.0)):
        scores = [hit.score for hit in hits]
        for hit in hits:
            point = (hit.score - min(scores)) / (max(scores) - min(scores))
            wanted[hit.document] = wanted.get(hit.document, 0) + weight * point
    found = index.search(query, 99, fusion="min_max", weights={"dense": 2})
    assert {hit.document: hit.score for hit in found} == pytest.approx(wanted, abs=1e-5)
    assert [hit.score for hit in found] == sorted((hit.score for hit in found), reverse=True)
    with pytest.raises(InvalidRequest, match="for hybrid search and mode is bm25"):
        index.search(query, mode="bm25", fusion="min_max")
    with pytest.raises(InvalidRequest, match="weights names 'sparse'"):
        index.search(query, weights={"sparse": 1})
    with pytest.raises(InvalidRequest, match="the weight of dense is -1"):
        index.search(query, weights={"dense": -1})
    with pytest.raises(InvalidRequest, match="fusion is 'sum'"):
        index.search(query, fusion="sum")


def test_equal_scores_are_ordered_by_document_id(tiny_model, tmp_path):
    made = Index.create(tmp_path / "index", tiny_model)
    made.add([{"id": id, "text": "The same text."} for id in "caBb"])
    for mode in ("bm25", "dense", "hybrid"):
        assert found(made.search("same", mode=mode)) == ["B", "a", "b", "c"]
        assert found(made.search("same", k=2, mode=mode)) == ["B", "a"]


def test_documents_are_ranked_by_their_best_passage(tiny_model, tmp_path):
    made = Index.create(tmp_path / "index", tiny_model, passage_tokens=12)
    long = " ".join(f"Sentence {n} tells of the river." for n in range(8))
    added = made.add([{"id": "long", "text": long}, {"id": "short", "text": "A loan."}])
    assert added.passages > 4
    for mode in ("bm25", "dense", "hybrid"):
        hits = made.search("river", k=10, mode=mode, unit="document")
        assert len(hits) == len(set(found(hits)))
        if mode != "hybrid":
            passages = [hit for hit in made.search("river", k=50, mode=mode) if hit.document == "long"]
            assert hits[found(hits).index("long")].score == passages[0].score


def test_a_fused_document_shows_the_passage_of_its_best_rank(tiny_model, tmp_path):
    made = Index.create(tmp_path / "index", tiny_model, passage_tokens=12)
    texts = {
        id: " ".join(f"{word} {n} tells of the {other}." for n in range(4) for word, other in pairs)
        for id, pairs in {
            "a": (("River", "bank"), ("Money", "loan")),
            "b": (("Stone", "river"), ("Fish", "bridge")),
            "c": (("Loan", "river"), ("File", "stone")),
        }.items()
    }
    made.add([{"id": id, "text": text} for id, text in texts.items()])
    differing = 0
    for query in ("the river", "a loan of money", "fish and stone", "bridge 2"):
        ranked = {}
        for view in ("bm25", "dense"):
            for rank, hit in enumerate(made.search(query, 9, view, unit="document")):
                ranked.setdefault(hit.document, []).append((rank, hit.start))
        for hit in made.search(query, 9, unit="document"):
            best = min(rank for rank, _ in ranked[hit.document])
            first = next(start for rank, start in ranked[hit.document] if rank == best)
            assert hit.start == first
            differing += len({rank for rank, _ in ranked[hit.document]}) > 1
    assert differing


def test_passages_hold_every_token_and_whole_documents_say_what_they_drop(tiny_model, tmp_path):
    long = " ".join(f"Sentence {n} tells of the river." for n in range(60))
    windows = Index.create(tmp_path / "windows", tiny_model, passage_tokens=16)
    added = windows.add([{"id": "long", "text": long}])
    assert (added.dropped_tokens, added.truncated_documents) == (0, ())
    whole = Index.create(tmp_path / "whole", tiny_model, whole_documents=True, passage_tokens=16)
    short = len(tiny_model.tokenize("Short.")) - 2
    cut = whole.add([{"id": "long", "text": long}, {"id": "short", "text": "Short."}])
    assert whole.passages == 2
    assert cut.truncated_documents == ("long",)
    assert cut.dropped_tokens == added.tokens - 14
    assert cut.tokens + cut.dropped_tokens == added.tokens + short
    (hit,) = whole.search("59", mode="bm25")
    assert (hit.start, hit.end) == (0, len(long))
    dense = whole.search("river", mode="dense")
    read = tiny_model.embed_encodings(
        [truncated(tiny_model.tokenize(long, truncation="end"), 16)], tiny_model.embedding_head()
    )
    wanted = tiny_model.similarity("river", read)[0, 0]
    assert next(hit.score for hit in dense if hit.document == "long") == pytest.approx(
        float(wanted), abs=1e-6
    )


def test_late_chunks_differ_from_windows(tiny_model, tmp_path):
    long = " ".join(f"Sentence {n} tells of the river." for n in range(8))
    vectors = []
    for chunking in ("windows", "late"):
        made = Index.create(tmp_path / chunking, tiny_model, passage_tokens=12, chunking=chunking)
        made.add([{"id": "long", "text": long}])
        vectors.append(made._contents.segments[0].arrays["dense/vectors"])
    assert vectors[0].shape == vectors[1].shape
    np.testing.assert_allclose(np.linalg.norm(vectors[1], axis=1), 1, rtol=1e-5)
    assert np.abs(vectors[0] - vectors[1]).max() > 1e-3


def test_it_opens_again_and_loads_its_model(index, tiny_model):
    again = Index.open(index.path)
    assert again.search("river", why=True) == index.search("river", why=True)
    given = Index.open(index.path, tiny_model)
    assert given.model("dense").engine is tiny_model.engine
    assert repr(given).endswith("4 documents, 4 passages, bm25, dense>")


def test_another_model_is_refused_with_both_names(index, tmp_path):
    other = write_reader(tmp_path / "another", seed=5)
    with pytest.raises(InvalidRequest, match=r"was made with tiny .* and the model given is another"):
        Index.open(index.path, other)


def test_a_model_that_changed_since_is_refused(tiny_copy, tmp_path):
    made = Index.create(tmp_path / "index", tiny_copy)
    made.add(["A text."])
    shutil.rmtree(tiny_copy)
    write_reader(tiny_copy, seed=6)
    with pytest.raises(InvalidRequest, match="the index was made with"):
        Index.open(made.path).search("river")


def test_a_second_writer_is_refused(index):
    with writing(index.path), pytest.raises(OutputError, match="another process is writing"):
        index.add(["text"])


def test_damage_is_named(index):
    (stored,) = (index.path / "segments").glob("*.arrays")
    content = bytearray(stored.read_bytes())
    content[len(content) // 2] ^= 4
    stored.write_bytes(content)
    assert stored.name in " ".join(Index.verify(index.path))
    with pytest.raises(CorruptIndex, match=stored.name):
        Index.open(index.path)


def test_mistakes_get_one_sentence(index, tiny_model, tmp_path):
    with pytest.raises(InvalidRequest, match="two documents have the id 'x'"):
        index.add([{"id": "x", "text": "one"}, {"id": "x", "text": "two"}])
    assert "x" not in index
    with pytest.raises(InvalidRequest, match="give strings under id and text"):
        index.add([{"text": "no id"}])
    with pytest.raises(InvalidRequest, match="give a Document"):
        index.add([3])
    with pytest.raises(InvalidRequest, match="cannot be stored as JSON"):
        index.add([Document("x", "text", metadata={"set": {1}})])
    with pytest.raises(EmptyText, match="the query is blank"):
        index.search("  ")
    with pytest.raises(InvalidRequest, match="mode is 'sparse' and the index has the views bm25, dense"):
        index.search("x", mode="sparse")
    with pytest.raises(InvalidRequest, match="k is 0; it must be at least 1"):
        index.search("x", k=0)
    with pytest.raises(InvalidRequest, match="give a loaded cross-encoder"):
        index.search("x", reranker="default")
    with pytest.raises(InvalidRequest, match="both give the view dense"):
        Index.create(tmp_path / "two", [tiny_model, tiny_model])
    with pytest.raises(InvalidRequest, match=r"passage_tokens is 9999 and the model reads \d+"):
        Index.create(tmp_path / "two", tiny_model, passage_tokens=9999)
    with pytest.raises(OutputError, match="exists"):
        Index.create(index.path, tiny_model)


def test_a_document_that_the_tokenizer_cannot_read_is_skipped(index):
    added = index.add([Document("blank", "\u200b \ufeff"), Document("good", "A good text.")])
    assert (added.added, [name for name, _ in added.skipped]) == (1, ["blank"])


def test_public_names():
    assert unmask.Index is Index


def test_bm25_alone_needs_no_model(tmp_path, monkeypatch):
    monkeypatch.setattr("unmask.search.settings.load", None)  # loading anything would fail
    made = Index.create(tmp_path / "index", [], passage_tokens=8)
    added = made.add([*documents(), Document("blank", " \n"), Document("broken", "a \ud800 b")])
    assert made.settings.views == made.settings.modes == ("bm25",)
    assert {name for name, _ in added.skipped} == {"blank", "broken"}
    opened = Index.open(tmp_path / "index")
    assert opened.passages > len(opened) == len(TEXTS)
    hits = opened.search("who lends money for a loan")
    assert found(hits)[0] == "bank"
    for hit in hits:
        assert hit.text == TEXTS[hit.document][hit.start : hit.end]
        assert 0 < len(words_of(hit.text)) <= 8
    assert added.tokens == sum(len(words_of(text)) for text in TEXTS.values())
    assert added.dropped_tokens == 0


def test_settings_without_effect_are_refused(index, tmp_path):
    with pytest.raises(InvalidRequest, match="candidates is 20 and has no effect with mode dense"):
        index.search("river", mode="dense", candidates=20)
    for search in (index.search, index.rank_documents):
        with pytest.raises(InvalidRequest, match=r"with mode hybrid without a reranker; .* or more than 200"):
            search(["river"], candidates=200)
        assert search(["river"], candidates=201) == search(["river"])
    with pytest.raises(InvalidRequest, match="late chunking needs a model with one vector"):
        Index.create(tmp_path / "a", [], chunking="late")
    with pytest.raises(InvalidRequest, match="nothing to search"):
        Index.create(tmp_path / "b", [], bm25=False)


def test_a_long_query_is_refused_or_truncated_as_asked(index):
    query = " ".join(WORDS * 4)
    with pytest.raises(TextTooLong):
        index.search(query, mode="dense")
    (best,) = index.search(query, 1, mode="dense", truncation="end")
    model = index.model("dense")
    ((id, score),) = index.rank_documents([query], 1, "dense", truncation="end")[0]
    assert (best.document, best.score) == (id, score)
    vector = model.embed_query(query, normalize=True, truncation="end")
    assert score == pytest.approx(float(vector @ model.embed_document(best.text, normalize=True)), abs=1e-5)
