"""Runs of dense retrievers: what they read, learn, resume and save, beside sentence-transformers."""

import json

import numpy as np
import pytest
import sentence_transformers

import unmask
from tests.training.finetune.test_finetune import Heard
from tests.training.retrieval.conftest import write_rows
from tests.training.retrieval.runs import SHORT, files, stopped_and_resumed, table
from unmask.errors import InvalidRequest, InvalidText, TextTooLong
from unmask.training.finetune.metrics import best_of, ranking_figures
from unmask.training.finetune.run import finetune
from unmask.training.finetune.settings import DataSettings, settings_of_table
from unmask.training.retrieval.records import read_collection, read_ranked
from unmask.training.run.log import read_events

pytestmark = pytest.mark.long

PROMPTS = {"query_prompt": "a text ", "document_prompt": "bank "}


def test_a_run_learns_and_leaves_a_folder_that_sentence_transformers_loads(place, tmp_path):
    heard = Heard()
    given = {**PROMPTS, "tokens_per_pass": 64, "widths": [30, 8]}
    result = finetune(table(tmp_path / "run", given, epochs=6), base=place, callback=heard)
    (before,) = (
        event["dev/ndcg@10"]
        for event in read_events(tmp_path / "run/log.jsonl")
        if event["event"] == "held_out" and event["step"] == 0
    )
    assert result.dev["dev/ndcg@10"] > before + 0.1
    theirs = sentence_transformers.SentenceTransformer(str(result.folder), device="cpu")
    ours = unmask.load(result.folder)
    texts = ["the river", "a bank was muddy"]
    for name in ("query", "document"):
        wanted = theirs.encode(texts, prompt_name=name)
        np.testing.assert_allclose(ours.embed(texts, prompt_name=name), wanted, rtol=0, atol=1e-6)
    assert theirs.prompts == {"query": "a text ", "document": "bank "}
    rows = [json.loads(line) for line in (place / "dev.jsonl").read_text().splitlines()]
    queries = list(dict.fromkeys(row["query"] for row in rows))
    documents = list(dict.fromkeys(text for row in rows for text in (row["positive"], *row["negatives"])))
    scores = theirs.encode(queries, prompt_name="query") @ theirs.encode(documents, prompt_name="document").T
    answers = [
        {documents.index(row["positive"]): 1 for row in rows if row["query"] == query} for query in queries
    ]
    found = ranking_figures([best_of(one).tolist() for one in scores], answers)
    assert result.dev["dev/ndcg@10"] == pytest.approx(found["ndcg@10"], abs=1e-3)
    said = "\n".join(heard.said)
    assert "train: 60 pairs of a query and a document that answers it, with 120 given negatives" in said
    assert "6 epochs of 8 steps, 48 in all, of 8 items" in said
    assert 'library_name: "sentence-transformers"' in (result.folder / "README.md").read_text()


@pytest.mark.parametrize(
    "given",
    [pytest.param({}, marks=pytest.mark.slow), {"tokens_per_pass": 40, "negatives": 1, **PROMPTS}],
    ids=["plain", "in passes"],
)
@pytest.mark.parametrize("metric", ["mrr@10", None])
def test_a_stopped_run_resumes_bit_by_bit(place, tmp_path, monkeypatch, given, metric):
    changes = SHORT | {"evaluation": {"every": 2} | ({"metric": metric} if metric else {})}
    if metric is None:
        changes["data"] = {"train": ["short.jsonl"]}
    whole = finetune(table(tmp_path / "whole", given, **changes), base=place)
    again = stopped_and_resumed(monkeypatch, table(tmp_path / "broken", given, **changes), place)
    assert (again.steps, again.best_step, again.dev) == (8, whole.best_step, whole.dev)
    assert files(again.folder) == files(whole.folder)
    start = (place / "tiny/model.safetensors").read_bytes()
    assert files(whole.folder)["model.safetensors"] != start


def data(**given):
    return DataSettings(("x",), **given)


def test_rows_of_tables(place, tmp_path):
    (tmp_path / "a.tsv").write_text("question\tanswer\twrong\nwho\the\tit\nwhat\tthat\tthis\n")
    (tmp_path / "b.jsonl").write_text(
        '{"query": "q", "positive": "p", "negatives": ["n", "m"], "negative": "o"}\n'
    )
    named = data(query="question", positive="answer", negative="wrong")
    found = list(read_ranked(["a.tsv"], named, tmp_path))
    assert [(one.query, one.documents, one.scores) for one in found] == [
        ("who", ("he", "it"), None),
        ("what", ("that", "this"), None),
    ]
    (one,) = read_ranked(["b.jsonl"], data(), tmp_path)
    assert one.documents == ("p", "o", "n", "m")
    (scored, *_) = read_ranked(["train.jsonl"], data(scores="scores"), place)
    assert len(scored.scores) == len(scored.documents) == 3


def test_judged_collections(place):
    found = list(read_ranked(["beir/qrels/test.tsv"], data(), place))
    assert len(found) == 9, "relevance 0 is no answer"
    assert found[0].documents[0].startswith("text ")
    collection = read_collection(["beir/qrels/test.tsv"], data(), place, None)
    assert len(collection.queries) == 8
    assert len(collection.documents) == 13
    assert collection.documents[-1] == "a bank"
    assert sorted(map(len, collection.answers)) == [1] * 7 + [2]
    fewer = read_collection(["beir/qrels/test.tsv"], data(), place, 5)
    assert len(fewer.documents) == 8, "answers are always kept"
    assert fewer.answers == collection.answers


@pytest.mark.parametrize(
    ("row", "given", "error"),
    [
        ({"query": "q"}, {}, "has no column 'positive'; set data.positive to one of: query"),
        ({"query": "q", "positive": " "}, {}, "has no text under 'positive'"),
        (
            {"query": "q", "positive": "p", "negatives": ["n", 3]},
            {},
            "under 'negatives'; give a text or a list",
        ),
        ({"query": "q", "positive": "p"}, {"negative": "worse"}, "has no column 'worse'"),
        ({"query": "q", "positive": "p"}, {"scores": "s"}, "has no column 's'"),
        ({"query": "q", "positive": "p", "s": [1.0, 2.0]}, {"scores": "s"}, "give a list of 1 numbers"),
    ],
)
def test_damaged_rows_are_refused_by_line(tmp_path, row, given, error):
    write_rows(tmp_path / "rows.jsonl", [row])
    with pytest.raises((InvalidRequest, InvalidText), match=r"line 1 of .*rows\.jsonl") as refused:
        list(read_ranked(["rows.jsonl"], data(**given), tmp_path))
    assert error in str(refused.value)


def test_figures_of_rankings():
    """By hand: DCG of relevance 2 at place 1 and 1 at place 3, over the ideal order 2, 1."""
    found = ranking_figures([[4, 5, 6], [1, 2, 3], list(range(20))], [{4: 2, 6: 1}, {9: 1}, {15: 1, 1: 1}])
    ndcg = ((2 + 1 / 2) / (2 + 1 / np.log2(3)) + 0 + (1 / np.log2(3)) / (1 + 1 / np.log2(3))) / 3
    assert found["ndcg@10"] == pytest.approx(ndcg)
    assert found["mrr@10"] == pytest.approx((1 + 0 + 1 / 2) / 3)
    assert found["recall@10"] == pytest.approx((1 + 0 + 1 / 2) / 3)
    assert best_of(np.array([1.0, 3.0, 3.0, 2.0]), 3).tolist() == [1, 2, 3]
    # Of twelve relevant documents the ideal order has ten, and so has the ranking.
    found = ranking_figures([list(range(20))], [dict.fromkeys(range(12), 1)])
    assert found == {"ndcg@10": pytest.approx(1), "mrr@10": 1, "recall@10": pytest.approx(10 / 12)}


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"retrieval": {"loss": "kl"}}, "retrieval.loss is kl, which learns from a teacher's scores"),
        ({"retrieval": {"kind": "reranker", "loss": "contrastive"}}, "learns by one of: bce, mse, softmax"),
        ({"retrieval": {"kind": "reranker", "scale": 2.0}}, "scale is 2.0 and is for the loss contrastive"),
        ({"retrieval": {"token_width": 64}}, "token_width is 64 and is for the kind multi_vector"),
        ({"retrieval": {"pos_weight": 2.0}}, "pos_weight is 2.0 and is for the loss bce"),
        ({"task": "classification"}, "[retrieval] is for the task retrieval"),
        ({"retrieval": {"scale": 0}}, "scale is 0"),
        ({"retrieval": {"loss": "other"}}, "loss is 'other'"),
        ({"retrieval": {"directions": ["doc_to_query"]}}, "name query_to_doc"),
        (
            {"retrieval": {"directions": ["query_to_doc", "doc_to_doc"], "partition": "per_direction"}},
            "doc_to_doc has no positive pair",
        ),
        ({"retrieval": {"widths": [8, 8]}}, "names a width twice"),
        ({"retrieval": {"depths": [1, 1]}}, "depths names a depth twice"),
        ({"retrieval": {"depths": [0]}}, "depths is 0"),
        ({"retrieval": {"kind": "multi_vector", "depths": [1]}}, "depths is (1,) and is for the kind dense"),
        ({"retrieval": {"widths": [8], "width_weights": [1.0, 2.0]}}, "give one for each"),
        ({"retrieval": {"tokens_per_pass": 0}}, "tokens_per_pass is 0"),
        ({"frozen": True}, "frozen has no meaning for the task retrieval"),
        ({"adapter": {}}, "[adapter] has no meaning for the task retrieval"),
        ({"data": {"train": ["x"], "long_texts": "window"}}, "data.long_texts is window"),
    ],
)
def test_settings_without_a_meaning_are_refused(tmp_path, changes, error):
    with pytest.raises(InvalidRequest) as refused:
        settings_of_table(table(tmp_path) | changes)
    assert error in str(refused.value)


def test_what_a_run_refuses(place, tmp_path):
    with pytest.raises(
        InvalidRequest, match=r"evaluation\.metric is 'accuracy'; of this task it can be ndcg@10"
    ):
        finetune(table(tmp_path / "a", evaluation={"metric": "accuracy"}), base=place)
    with pytest.raises(InvalidRequest, match="names 31 and the vectors have 30 numbers"):
        finetune(table(tmp_path / "b", {"widths": [31, 8]}), base=place)
    with pytest.raises(InvalidRequest, match=r"depths names 9 and the encoder has \d layers"):
        finetune(table(tmp_path / "b", {"depths": [1, 9]}), base=place)
    long = {"train": ["train.jsonl"], "long_texts": "error", "max_tokens": 6}
    with pytest.raises(TextTooLong):
        finetune(table(tmp_path / "c", data=long, evaluation={}), base=place)
