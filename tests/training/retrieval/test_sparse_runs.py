"""Runs of sparse retrievers: they learn, become sparse, resume, and sentence-transformers loads them."""

import json

import numpy as np
import pytest
from sentence_transformers import SparseEncoder
from sentence_transformers.sparse_encoder.evaluation import SparseInformationRetrievalEvaluator

import unmask
from tests.training.retrieval.runs import SHORT, SHORT_SCORED, files, stopped_and_resumed, table
from unmask.base.checksums import CHECKSUMS
from unmask.errors import InvalidRequest
from unmask.spec import SparseVector
from unmask.training.finetune.run import finetune
from unmask.training.retrieval.settings import RetrievalSettings
from unmask.training.run.log import read_events

pytestmark = pytest.mark.long

MODEL = {"start_from": "masked"}
KINDS = {
    "margin_mse in passes": ({"loss": "margin_mse", "tokens_per_pass": 64}, SHORT_SCORED),
    "kl with a prompt": ({"loss": "kl", "query_prompt": "a text "}, SHORT_SCORED),
    "static": ({"static_queries": True, "negatives": 1, "query_prompt": "the "}, SHORT),
}


def held_out(run):
    return [one for one in read_events(run / "log.jsonl") if one["event"] == "held_out"]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name.startswith("kl") else name for name in KINDS]
)
def test_a_stopped_run_resumes_bit_by_bit(place, tmp_path, monkeypatch, name):
    given, changes = KINDS[name]
    changes = {"model": MODEL} | changes
    given = {"kind": "sparse"} | given
    whole = finetune(table(tmp_path / "whole", given, **changes), base=place)
    again = stopped_and_resumed(monkeypatch, table(tmp_path / "broken", given, **changes), place)
    assert (again.steps, again.best_step, again.dev) == (8, whole.best_step, whole.dev)
    assert files(again.folder) == files(whole.folder)
    assert len(files(whole.folder)) >= 2


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("static", [False, True])
def test_the_export_is_that_of_sentence_transformers(place, tmp_path, static):
    given = {"kind": "sparse", "static_queries": static, "query_prompt": "a ", "document_prompt": "the "}
    result = finetune(table(tmp_path / "run", given, epochs=4, model=MODEL), base=place)
    before = held_out(tmp_path / "run")[0]
    assert result.dev["dev/ndcg@10"] > before["dev/ndcg@10"] + 0.05
    theirs, ours = SparseEncoder(str(result.folder), device="cpu"), unmask.load(result.folder)
    assert ours.checkpoint.head == SparseVector(
        static_queries=static, prompts=(("query", "a "), ("document", "the "))
    )
    texts = ["the river.", "a bank, was muddy", "zzz muddy muddy"]
    for kind in ("query", "document"):
        wanted = getattr(theirs, f"encode_{kind}")(texts, convert_to_sparse_tensor=False).numpy()
        for row, mine in zip(wanted, ours.sparse_vectors(texts, kind), strict=True):
            dense = np.zeros_like(row)
            dense[mine.ids] = mine.weights
            np.testing.assert_allclose(dense, row, rtol=0, atol=1e-5)
            assert len(mine)
    if static:
        learned = ours.sparse_vectors("river", "query").weights
        assert np.abs(learned - 1).max() > 0.005, "the table has a rate of its own"
        return
    rows = [json.loads(line) for line in (place / "dev.jsonl").read_text().splitlines()]
    queries = list(dict.fromkeys(row["query"] for row in rows))
    documents = list(dict.fromkeys(text for row in rows for text in (row["positive"], *row["negatives"])))
    relevant = {
        str(n): {str(documents.index(row["positive"])) for row in rows if row["query"] == query}
        for n, query in enumerate(queries)
    }
    evaluator = SparseInformationRetrievalEvaluator(
        {str(n): one for n, one in enumerate(queries)},
        {str(n): one for n, one in enumerate(documents)},
        relevant,
        query_prompt_name="query",
        corpus_prompt_name="document",
    )
    found = evaluator(theirs)
    for name, key in (("ndcg@10", "dot_ndcg@10"), ("mrr@10", "dot_mrr@10"), ("recall@10", "dot_recall@10")):
        assert result.dev[f"dev/{name}"] == pytest.approx(found[key], abs=0.01)
    assert result.dev["dev/query_words"] == pytest.approx(found["query_active_dims"], rel=1e-4)
    assert result.dev["dev/document_words"] == pytest.approx(found["corpus_active_dims"], rel=1e-4)


def test_regularizers_make_vectors_sparse(place, tmp_path):
    """Each one those of its own side."""
    found = {}
    for name, query, document in (("none", 0.0, 0.0), ("query", 5.0, 0.0), ("document", 0.0, 5.0)):
        given = {
            "kind": "sparse",
            "query_regularizer_weight": query,
            "document_regularizer_weight": document,
            "regularizer_warmup_share": 0.5,
        }
        run = tmp_path / name
        changes = SHORT | {"epochs": 4, "model": MODEL, "evaluation": {}}
        result = finetune(table(run, given, **changes), base=place)
        found[name] = result.dev
        train = [one for one in read_events(run / "log.jsonl") if one["event"] == "step"]
        parts = [one.get(f"retrieval/{name}_regularizer") for one in train]
        assert parts[0] == (None if name == "none" else 0), "the weights rise from 0"
        assert name == "none" or parts[-1] > 0
    words = {name: (one["dev/query_words"], one["dev/document_words"]) for name, one in found.items()}
    assert words["query"][0] < 0.8 * words["none"][0]
    assert words["document"][1] < 0.8 * words["none"][1]


def test_an_encoder_without_an_mlm_head_is_given_one(place, tmp_path, capsys):
    finetune(table(tmp_path / "run", {"kind": "sparse"}, epochs=0.5), base=place)
    assert held_out(tmp_path / "run")
    model = unmask.load(tmp_path / "run" / "model")
    assert [type(head).__name__ for head in model.spec.heads] == ["MaskedLM"]


def test_a_sparse_model_is_trained_further(place, tmp_path):
    """Its table, and what it keeps of a text, are those of the first run."""
    given = {"kind": "sparse", "static_queries": True}
    first = finetune(table(tmp_path / "first", given, epochs=2, model=MODEL, evaluation={}), base=place)
    path = first.folder / "config_sentence_transformers.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_active_dims": 6}))
    (first.folder / CHECKSUMS).unlink(missing_ok=True)
    changes = {"model": {"start_from": str(first.folder)}, "optimizer": {"learning_rate": 1e-9}}
    again = finetune(
        table(tmp_path / "again", given | {"query_learning_rate": 1e-9}, epochs=0.5, **changes), base=place
    )
    old, new = unmask.load(first.folder), unmask.load(again.folder)
    assert new.checkpoint.head == old.checkpoint.head
    assert new.checkpoint.head.most_words == 6
    assert again.dev["dev/document_words"] <= 6
    np.testing.assert_allclose(
        new.sparse_vectors("the river", "query").weights,
        old.sparse_vectors("the river", "query").weights,
        atol=1e-6,
    )


def test_impossible_settings_are_refused():
    for given, message in (
        ({"static_queries": True}, "static_queries is True and is for the kind sparse"),
        ({"document_regularizer_weight": 0.1}, "is for the kind sparse"),
        ({"kind": "sparse", "query_learning_rate": 1e-3}, "is for the kind sparse with static_queries"),
        ({"kind": "sparse", "widths": [16]}, "is for the kind dense"),
        ({"kind": "sparse", "similarity": "dot"}, "is for the kind dense"),
        (
            {"kind": "sparse", "static_queries": True, "query_learning_rate": 0},
            "query_learning_rate is 0; it must be above 0",
        ),
        ({"kind": "sparse", "query_regularizer_weight": -1.0}, "query_regularizer_weight is -1"),
        ({"kind": "sparse", "loss": "bce"}, "loss is bce and kind is sparse"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            RetrievalSettings(**given)


def test_weights_of_the_regularizers_by_default():
    weights = {
        loss: RetrievalSettings("sparse", loss).regularizer for loss in ("contrastive", "kl", "margin_mse")
    }
    assert {name: (one.query_weight, one.document_weight) for name, one in weights.items()} == {
        "contrastive": (5e-5, 1e-3),
        "kl": (5e-5, 1e-3),
        "margin_mse": (0.1, 0.08),
    }
    assert RetrievalSettings("sparse", static_queries=True).regularizer.query_weight == 0
