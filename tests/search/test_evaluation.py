"""Test collections, figures of runs, and ``unmask evaluate retrieval``."""

import gzip
import json
import lzma
import math

import numpy as np
import pytest

import unmask
from tests.support.command import assert_one_sentence, run_here
from unmask.errors import InvalidRequest, InvalidText
from unmask.search.documents import Document
from unmask.search.evaluation.collection import read_beir
from unmask.search.evaluation.dense import DenseSettings, dense_run
from unmask.search.evaluation.figures import figures, without_same_id
from unmask.search.evaluation.retrieval import evaluate_retrieval
from unmask.search.passages import TokensIndexed, passages_of

DOCUMENTS = {
    "d1": "the river",
    "d2": "a muddy bank",
    "d3": "the bank was a river " * 8,
    "d4": "the river",
}
QUERIES = {"q1": "the river", "q2": "a muddy bank", "d2": "muddy bank"}
HEADER = "query-id\tcorpus-id\tscore\n"


def write_collection(folder, compress=lambda raw: raw, ending=""):
    corpus = [{"_id": id_, "title": "", "text": text} for id_, text in DOCUMENTS.items()]
    queries = [{"_id": id_, "text": text} for id_, text in QUERIES.items()]
    (folder / "qrels").mkdir(parents=True)
    for name, content in (
        ("corpus.jsonl", "".join(json.dumps(row) + "\n" for row in corpus)),
        ("queries.jsonl", "".join(json.dumps(row) + "\n" for row in queries)),
        ("qrels/test.tsv", f"{HEADER}q1\td4\t1\nd2\td2\t2\nd2\td1\t0\n"),
        ("qrels/dev.tsv", f"{HEADER}q2\td2\t1\nq2\tgone\t1\n"),
    ):
        (folder / f"{name}{ending}").write_bytes(compress(content.encode()))
    return folder


@pytest.fixture
def collection(tmp_path):
    return write_collection(tmp_path / "small")


# Collections


@pytest.mark.parametrize(
    ("compress", "ending"), [(bytes, ""), (gzip.compress, ".gz"), (lzma.compress, ".xz")]
)
def test_a_collection_is_read_compressed_or_not(tmp_path, compress, ending):
    judged = read_beir(write_collection(tmp_path / "small", compress, ending))
    assert judged.name == "small"
    assert judged.splits == ("dev", "test")
    assert judged.queries == QUERIES
    assert {one.id: one.text for one in judged.corpus()} == {
        id_: text.strip() for id_, text in DOCUMENTS.items()
    }
    assert judged.judgments("test") == {"q1": {"d4": 1}, "d2": {"d2": 2, "d1": 0}}


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("corpus.jsonl", None, InvalidRequest, "holds no corpus.jsonl"),
        ("queries.jsonl", None, InvalidRequest, "holds no queries.jsonl"),
        ("queries.jsonl", '{"_id": "q1"}\n', InvalidText, "line 1 of .* has no _id and text"),
        ("queries.jsonl", '{"_id": 1, "text": "a"}\n' * 2, InvalidRequest, "line 2 of .* an earlier query"),
        ("qrels/test.tsv", HEADER, InvalidText, "holds no judgments"),
        ("qrels/test.tsv", "a\tb\n1\t2\n", InvalidText, "its first line must name query-id"),
        ("qrels/test.tsv", f"{HEADER}q1\td1\tyes\n", InvalidText, "line 2 of .* the score 'yes'"),
        ("qrels/test.tsv", f"{HEADER}q9\td1\t1\n", InvalidRequest, "judges the query 'q9'"),
        ("qrels/test.tsv", None, InvalidRequest, "no split 'test'; it has: dev"),
    ],
)
def test_a_collection_that_cannot_be_read_is_one_sentence(collection, name, content, error, message):
    if content is None:
        (collection / name).unlink()
    else:
        (collection / name).write_text(content)
    with pytest.raises(error, match=message):
        read_beir(collection).judgments("test")


def test_judgments_are_needed(collection):
    for path in (collection / "qrels").iterdir():
        path.unlink()
    with pytest.raises(InvalidRequest, match=r"holds no judgments \(SPLIT.tsv\)"):
        read_beir(collection)


# Figures


def test_figures_are_those_of_the_definitions():
    run = {"a": {"x": 3.0, "y": 2.0, "z": 1.0}, "b": {"x": 1.0, "y": 2.0}, "unjudged": {"x": 1.0}}
    found = figures(run, {"a": {"y": 2, "z": 1, "w": 1}, "b": {"y": 1}, "c": {"x": 1}}, (2,))
    ideal = 2 + 1 / math.log2(3)
    assert found.per_query["a"] == pytest.approx(
        {"nDCG@2": 2 / math.log2(3) / ideal, "recall@2": 1 / 3, "MRR@2": 1 / 2, "MAP": (1 / 2 + 2 / 3) / 3}
    )
    assert set(found.per_query["b"].values()) == {1.0}
    assert set(found.per_query["c"].values()) == {0.0}
    assert (found.queries, found.without_results) == (3, 1)
    assert found["recall@2"] == pytest.approx((1 / 3 + 1) / 3)
    (recall,) = (one for one in found.figures if one.name == "recall@2")
    assert recall.low <= recall.value <= recall.high


@pytest.mark.parametrize(("relevant", "expected"), [("a", 1.0), ("b", 0.5)])
def test_ties_are_broken_by_id_in_every_figure(relevant, expected):
    """Their values differ by less than float32 can hold, or not at all."""
    for second in (1.0, 1.0 - 1e-12):
        scores = {"b": 1.0, "a": 1.0} if second == 1.0 else {"a": 1.0, "b": second}
        found = figures({"q": scores}, {"q": {relevant: 1}}, (10,))
        assert found["MRR@10"] == expected
        assert found["MAP"] == expected
        assert found["nDCG@10"] == pytest.approx(1.0 if expected == 1 else 1 / math.log2(3))


def test_ties_across_a_cutoff_are_counted():
    run = {"p": {"a": 1.0, "b": 1.0}, "q": {"a": 2.0, "b": 1.0}, "r": {"a": 1.0}}
    judgments = {query: {"a": 1} for query in run}
    assert figures(run, judgments, (1, 2)).ties_at == {1: 1, 2: 0}


def test_the_interval_is_over_queries():
    judgments = {str(number): {"a": 1} for number in range(40)}
    run = {query: {"a": 1.0} if int(query) % 2 else {"b": 1.0} for query in judgments}
    recall = figures(run, judgments, (1,)).figures[1]
    assert recall.value == 0.5
    spread = 1.96 * math.sqrt(0.25 / 40)
    assert (recall.low, recall.high) == pytest.approx((0.5 - spread, 0.5 + spread), abs=0.03)
    alike = figures({query: {"a": 1.0} for query in judgments}, judgments, (1,)).figures[1]
    assert (alike.low, alike.high) == (1.0, 1.0)


def test_a_query_does_not_find_itself_when_asked():
    assert without_same_id({"q": {"q": 1.0, "a": 0.5}}) == {"q": {"a": 0.5}}


@pytest.mark.parametrize(("judgments", "cutoffs"), [({}, (10,)), ({"q": {"a": 1}}, (0,)), ({"q": {}}, ())])
def test_impossible_figures_are_refused(judgments, cutoffs):
    with pytest.raises(InvalidRequest, match="cutoffs are"):
        figures({}, judgments, cutoffs)


# Searching without an index


@pytest.fixture(scope="module")
def model(tiny_folder):
    return unmask.load(tiny_folder)


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def test_the_beginning_of_long_documents_is_searched_and_the_rest_counted(model, collection):
    run = dense_run(model, QUERIES, read_beir(collection).corpus())
    texts = [text.strip() for text in DOCUMENTS.values()]
    expected = unit(model.embed(list(QUERIES.values()))) @ unit(model.embed(texts, truncation="end")).T
    for query, scores in zip(QUERIES, expected, strict=True):
        assert run.scores[query] == pytest.approx(
            dict(zip(DOCUMENTS, scores.tolist(), strict=True)), abs=1e-5
        )
    assert (run.documents, run.passages, run.truncated) == (4, 4, 1)
    read = model.max_tokens - 2
    assert run.tokens == TokensIndexed(2 + 3 + 2 + read, 40 - read)


@pytest.mark.parametrize("mode", ["window", "late"])
def test_a_document_counts_by_its_best_passage(model, collection, mode):
    settings = DenseSettings(mode, passage_tokens=9, overlap_tokens=1)
    run = dense_run(model, QUERIES, read_beir(collection).corpus(), settings)
    text = DOCUMENTS["d3"].strip()
    passages = passages_of(model.tokenizer.encode(text), max_tokens=9, overlap_tokens=1)
    assert len(passages) > 4
    assert run.passages == 3 + len(passages)
    assert (run.truncated, run.tokens.dropped) == (0, 0)
    if mode == "window":
        vectors = unit(model.embed([text[one.start : one.end] for one in passages]))
        best = (unit(model.embed([*QUERIES.values()])) @ vectors.T).max(axis=1)
        assert [run.scores[query]["d3"] for query in QUERIES] == pytest.approx(best.tolist(), abs=1e-5)


def test_only_the_best_documents_are_kept_whatever_the_parts(model, collection, monkeypatch):
    monkeypatch.setattr("unmask.search.evaluation.dense.PART", 1)
    run = dense_run(model, {"q": "the river"}, read_beir(collection).corpus(), DenseSettings(depth=1))
    assert run.scores["q"].keys() == {"d1"}, "d4 has the same text and a later id"
    assert run.documents == 4


@pytest.mark.parametrize("mode", ["none", "window", "late"])
def test_documents_without_words_are_skipped(model, mode, monkeypatch):
    monkeypatch.setattr("unmask.search.evaluation.dense.PART", 1)
    corpus = [Document("bell", "\u0007"), Document("river", "the river")]
    run = dense_run(model, {"q": "the river"}, corpus, DenseSettings(mode))
    assert (run.scores["q"].keys(), run.documents) == ({"river"}, 1)
    assert [one.name for one in run.skipped] == ["bell"]


def test_prompts_of_the_checkpoint_are_used(model, collection, monkeypatch):
    from unmask.model.spec import PooledVector

    head = PooledVector(prompts=(("query", "a "), ("document", "the ")))
    monkeypatch.setattr(type(model), "embedding_head", lambda self, *_: head)
    corpus = [one for one in read_beir(collection).corpus() if one.id == "d2"]
    expected = float(np.dot(*(unit(model.embed(text)) for text in ("a muddy", "the a muddy bank"))))
    for mode in ("none", "window"):
        run = dense_run(model, {"q": "muddy"}, corpus, DenseSettings(mode))
        assert run.scores["q"]["d2"] == pytest.approx(expected, abs=1e-5)


def test_passages_longer_than_the_model_reads_are_refused(model, collection):
    settings = DenseSettings("window", passage_tokens=model.max_tokens + 1)
    with pytest.raises(InvalidRequest, match="passage_tokens is 20, and the model reads at most 19"):
        dense_run(model, QUERIES, read_beir(collection).corpus(), settings)


def test_results_say_what_was_missing(model, collection):
    result = evaluate_retrieval(model, collection, split="dev", cutoffs=(1,))
    assert (result.missing_documents, result.queries, result.split) == (1, 1, "dev")
    assert {one.name: one.value for one in result.figures}["recall@1"] == 0.5


def test_the_same_id_is_left_out_when_asked(model, collection):
    kept = evaluate_retrieval(model, collection, cutoffs=(4,))
    dropped = evaluate_retrieval(model, collection, cutoffs=(4,), drop_same_id=True)
    assert kept.per_query["d2"]["recall@4"] == 1.0
    assert dropped.per_query["d2"]["recall@4"] == 0.0


# The command


def test_the_command_prints_figures_and_what_was_dropped(tiny_folder, collection, tmp_path):
    here = ("evaluate", "retrieval", "-m", tiny_folder, "--data", collection)
    shown = run_here(*here).out
    assert "nDCG@10" in shown
    assert "on small (test): 2 queries, 4 documents, 4 passages, dense, cosine" in shown
    assert "documents longer than the model reads: 1; 23 of 47 tokens were dropped" in shown
    found = json.loads(run_here(*here, "--passages", "window", "--json", "-o", tmp_path / "r.json").out)
    assert found == json.loads((tmp_path / "r.json").read_text())
    assert found["figures"][0]["name"] == "nDCG@10"
    assert found["tokens"] == {"tokens": 47, "dropped": 0}
    assert found["per_query"].keys() == {"q1", "d2"}


def test_the_command_explains_mistakes_in_one_sentence(tiny_folder, collection):
    here = ("evaluate", "retrieval", "-m", tiny_folder, "--data")
    assert_one_sentence(run_here(*here, collection.parent), "holds no corpus.jsonl")
    assert_one_sentence(run_here(*here, collection, "--split", "train"), "no split 'train'", "dev, test")
    (collection / "qrels/test.tsv").rename(collection / "qrels/train.tsv")
    assert_one_sentence(run_here(*here, collection), "name one of them")
