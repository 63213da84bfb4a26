"""Runs of many-vector retrievers and rerankers: they learn, resume, and sentence-transformers loads them."""

import json

import numpy as np
import pytest
import sentence_transformers
import torch
from sentence_transformers import CrossEncoder
from sentence_transformers.multi_vector_encoder import MultiVectorEncoder

import unmask
from tests.training.retrieval.runs import SHORT, SHORT_SCORED, files, stopped_and_resumed, table
from tests.training.runs import Heard
from unmask.errors import InvalidText
from unmask.training.finetune.run import finetune
from unmask.training.finetune.settings import settings_of_table
from unmask.training.retrieval import texts as retrieval_texts
from unmask.training.retrieval.records import Ranked
from unmask.training.run.log import read_events
from unmask.weights import Source, read_checkpoint

pytestmark = pytest.mark.long

KINDS = {
    "multi_vector": ({"kind": "multi_vector", "token_width": 12, "skip_punctuation": True}, SHORT),
    "multi_vector kl": (
        {
            "kind": "multi_vector",
            "token_width": 12,
            "loss": "kl",
            "tokens_per_pass": 64,
            "query_prompt": "a ",
        },
        SHORT_SCORED,
    ),
    "dense margin_mse": ({"loss": "margin_mse", "tokens_per_pass": 64}, SHORT_SCORED),
    "reranker": ({"kind": "reranker", "pos_weight": 2.0, "tokens_per_pass": 64}, SHORT),
    "reranker shared": ({"kind": "reranker", "shared_query": True, "tokens_per_pass": 64}, SHORT),
    "reranker mse": ({"kind": "reranker", "loss": "mse", "negatives": 1}, SHORT_SCORED),
}


def before(run):
    (found,) = (
        event["dev/ndcg@10"]
        for event in read_events(run / "log.jsonl")
        if event["event"] == "held_out" and event["step"] == 0
    )
    return found


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow)
        if name in ("multi_vector", "dense margin_mse", "reranker mse")
        else name
        for name in KINDS
    ],
)
def test_a_stopped_run_resumes_bit_by_bit(place, tmp_path, monkeypatch, name):
    given, changes = KINDS[name]
    whole = finetune(table(tmp_path / "whole", given, **changes), base=place)
    again = stopped_and_resumed(monkeypatch, table(tmp_path / "broken", given, **changes), place)
    assert (again.steps, again.best_step, again.dev) == (8, whole.best_step, whole.dev)
    assert files(again.folder) == files(whole.folder)
    assert len(files(whole.folder)) >= 2


def test_many_vectors_are_those_of_sentence_transformers(place, tmp_path):
    given = {"kind": "multi_vector", "token_width": 12, "query_prompt": "a text ", "skip_punctuation": True}
    result = finetune(table(tmp_path / "run", given, epochs=6), base=place)
    assert result.dev["dev/ndcg@10"] > before(tmp_path / "run") + 0.05
    theirs, ours = MultiVectorEncoder(str(result.folder), device="cpu"), unmask.load(result.folder)
    texts = ["the river.", "a bank, was muddy"]
    for kind, encode in (("query", theirs.encode_query), ("document", theirs.encode_document)):
        for one, other in zip(ours.multi_vectors(texts, kind), encode(texts), strict=True):
            np.testing.assert_allclose(one.vectors_NE, np.asarray(other), rtol=0, atol=1e-5)
    rows = [json.loads(line) for line in (place / "dev.jsonl").read_text().splitlines()]
    queries = list(dict.fromkeys(row["query"] for row in rows))
    documents = list(dict.fromkeys(text for row in rows for text in (row["positive"], *row["negatives"])))
    scores = theirs.similarity(
        theirs.encode_query(queries),
        theirs.encode_document(documents),
    )
    wanted = [
        {documents.index(row["positive"]) for row in rows if row["query"] == query} for query in queries
    ]
    order = torch.as_tensor(scores).argsort(dim=1, descending=True, stable=True).tolist()
    ranks = [min(order[n].index(place) for place in places) for n, places in enumerate(wanted)]
    mrr = np.mean([1 / (rank + 1) if rank < 10 else 0 for rank in ranks])
    assert result.dev["dev/mrr@10"] == pytest.approx(mrr, abs=1e-6)


def test_some_layers_of_a_checkpoint_get_a_new_layer_for_tokens(place, tmp_path):
    given = {"kind": "multi_vector", "token_width": 12, "layers": [1]}
    result = finetune(table(tmp_path / "run", given, epochs=0.5), base=place)
    model = unmask.load(result.folder)
    assert len(model.spec.layers) == 1
    assert model.multi_vectors("the river").vectors_NE.shape[1] == 12


def test_a_reranker_scores_as_in_sentence_transformers(place, tmp_path):
    result = finetune(table(tmp_path / "run", {"kind": "reranker"}, epochs=8), base=place)
    assert result.dev["dev/mrr@10"] > 0.5, "a third of the documents of a row is right"
    theirs = CrossEncoder(str(result.folder), device="cpu")
    pairs = [("the river", "a bank was muddy"), ("a text", "text a")]
    wanted = theirs.predict(pairs, activation_fn=torch.nn.Identity())
    model = unmask.load(result.folder)
    (queries, documents) = zip(*pairs, strict=True)
    found = [one.score for one in model.classify(list(queries), list(documents))]
    shown = [1 / (1 + np.exp(-score)) for score in wanted]
    assert np.allclose(found, wanted, atol=1e-5) or np.allclose(found, shown, atol=1e-5)
    rows = [json.loads(line) for line in (place / "dev.jsonl").read_text().splitlines()]
    first = []
    for row in rows:
        some = [row["positive"], *row["negatives"]]
        scores = theirs.predict([(row["query"], one) for one in some])
        first.append(1 / (1 + int((scores > scores[0]).sum())))
    assert result.dev["dev/mrr@10"] == pytest.approx(np.mean(first), abs=0.05)
    assert sentence_transformers.__version__


def test_a_reranker_with_a_shared_query_scores_as_it_was_trained(place, tmp_path):
    """Dev figures of the run are computed from the objective, and here from the saved folder."""
    given = {"kind": "reranker", "shared_query": True}
    result = finetune(table(tmp_path / "run", given, epochs=8), base=place)
    model = unmask.load(result.folder)
    assert model.checkpoint.head.shared_query
    first = []
    for row in map(json.loads, (place / "dev.jsonl").read_text().splitlines()):
        scores = model.score_pairs(row["query"], [row["positive"], *row["negatives"]])
        first.append(1 / (1 + int((scores > scores[0]).sum())))
    assert result.dev["dev/mrr@10"] > 0.5, "a third of the documents of a row is right"
    assert result.dev["dev/mrr@10"] == pytest.approx(np.mean(first), abs=0.05)


@pytest.mark.parametrize("name", ["reranker", "dense", "sparse words"])
def test_progress_is_said_while_texts_are_tokenized(place, tmp_path, monkeypatch, name):
    given = {
        "reranker": {"kind": "reranker"},
        "dense": {},
        "sparse words": {"kind": "sparse", "static_queries": True},
    }[name]
    start = {"start_from": "masked"} if "sparse" in name else {"start_from": "tiny"}
    monkeypatch.setattr(retrieval_texts, "TEXTS_AT_ONCE", 50)
    heard = Heard()
    finetune(table(tmp_path / "run", given, epochs=1, model=start), base=place, callback=heard)
    assert {source for source, _, _ in heard.tokenized} == {"training data"}
    rows = [json.loads(line) for line in (place / "train.jsonl").read_text().splitlines()]
    counts = [count for _, count, _ in heard.tokenized]
    if name == "reranker":
        assert counts == [50, 100, 150, 180]
        assert 180 * 9 < heard.tokenized[-1][2] < 180 * 20
    else:
        queries = len({row["query"] for row in rows})
        documents = len({text for row in rows for text in (row["positive"], *row["negatives"])})
        assert counts == [*range(50, queries, 50), queries, *range(50, documents, 50), documents]


def test_pairs_of_several_rows_are_tokenized_together_and_stay_apart(place, tmp_path, monkeypatch):
    settings = settings_of_table(table(tmp_path / "run", {"kind": "reranker"}))
    checkpoint = read_checkpoint(Source(place / "tiny", "tiny"))
    reader = retrieval_texts.RetrievalTexts(settings, checkpoint)
    rows = [Ranked(f"row {n}", f"river {'a ' * n}", ("bank",) * (n + 1)) for n in range(4)]
    monkeypatch.setattr(retrieval_texts, "TEXTS_AT_ONCE", 3)
    items = reader.items(rows, retrieval_texts.TextCounts(), counts := retrieval_texts.TextCounts())
    assert counts.texts == 10
    for row, item in zip(rows, items, strict=True):
        alone = reader.pairs([row.query] * len(row.documents), row.documents)
        assert [one.ids.tolist() for one in item.documents] == [one.ids.tolist() for one in alone]
    wrong = Ranked("line 9 of x.jsonl", "river", ("\ud800",))
    with pytest.raises(InvalidText, match=r"a document of line 9 of x\.jsonl"):
        reader.items([*rows, wrong], retrieval_texts.TextCounts(), counts)
