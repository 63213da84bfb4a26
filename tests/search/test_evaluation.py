"""Test collections, and figures of runs."""

import gzip
import json
import lzma
import math

import pytest

from unmask.errors import InvalidRequest, InvalidText
from unmask.evaluate.retrieval.collection import read_beir
from unmask.evaluate.retrieval.retrieval import figures, without_same_id

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
