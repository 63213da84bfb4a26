"""``unmask evaluate retrieval``: an index of a test collection, searched in every mode and scored."""

import json
import math
import shlex

import pytest

import unmask
from tests.search.test_evaluation import DOCUMENTS, QUERIES, write_collection
from tests.support.command import assert_one_sentence, run_here
from tests.support.places import REPOSITORY
from tests.support.tiny import tiny_bert, write_checkpoint
from unmask.errors import EmptyText, InvalidRequest
from unmask.evaluate.retrieval.collection import (
    CollectionSettings,
    add_collection,
    collection_index,
    read_beir,
)
from unmask.evaluate.retrieval.retrieval import Measurement, evaluate_retrieval, measure
from unmask.search.index import Index
from unmask.search.passages import TokensIndexed, passages_of

MODES = ("bm25", "dense", "hybrid")
MEASURES = ("nDCG@10", "recall@10", "MRR@10", "MAP")


@pytest.fixture(scope="module")
def model(tiny_folder):
    return unmask.load(tiny_folder)


@pytest.fixture(scope="module")
def reranker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reranker") / "scorer"
    write_checkpoint(folder, tiny_bert("BertForSequenceClassification", num_labels=1), sentence=False)
    return unmask.load(folder)


@pytest.fixture
def collection(tmp_path):
    return write_collection(tmp_path / "small")


def judged_by_ir_measures(run, judgments):
    """The measures of a run, computed from its scores by ir_measures, to which ties are not left."""
    measures = pytest.importorskip("ir_measures")
    ranked = {
        query: {hit.document: -float(rank) for rank, hit in enumerate(hits)} for query, hits in run.items()
    }
    wanted = [measures.nDCG @ 10, measures.R @ 10, measures.RR @ 10, measures.AP]
    found = measures.calc_aggregate(wanted, {q: dict(grades) for q, grades in judgments.items()}, ranked)
    return dict(zip(MEASURES, (found[one] for one in wanted), strict=True))


def values(block):
    return {one.name: one.value for one in block.figures if one.name in MEASURES}


def counted_embeddings(monkeypatch, model, stop_after=None):
    """The texts that were embedded; the process is interrupted after some."""
    read = []
    run = type(model)._run

    def counting(self, ready, *args, **options):
        if stop_after is not None and len(read) >= stop_after:
            raise KeyboardInterrupt
        read.extend(encoding.text for encoding in ready.encodings)
        return run(self, ready, *args, **options)

    monkeypatch.setattr(type(model), "_run", counting)
    return read


def test_figures_are_those_of_the_hits_of_search(model, collection, tmp_path):
    result = evaluate_retrieval(model, collection, index=tmp_path / "index")
    assert [one.mode for one in result.modes] == ["bm25", "dense", "hybrid"]
    index = Index.open(tmp_path / "index", model)
    judgments = read_beir(collection).judgments("test")
    for mode in MODES:
        run = {query: index.search(QUERIES[query], 1000, mode, unit="document") for query in judgments}
        assert values(result.of(mode)) == pytest.approx(judged_by_ir_measures(run, judgments)), mode
        assert result.of(mode).depth == 1000


def test_rankings_are_those_of_search(model, collection, tmp_path, reranker):
    evaluate_retrieval(model, collection, index=tmp_path / "index")
    index = Index.open(tmp_path / "index", model)
    for mode in MODES:
        for options in ({}, {"reranker": reranker}, {"reranker": reranker, "candidates": 3}):
            hits = index.search(list(QUERIES.values()), 2, mode, unit="document", **options)
            ranked = index.rank_documents(list(QUERIES.values()), 2, mode, **options)
            if options:  # a hit shows the probability of the logit that it is ranked by
                ranked = [[(id, 1 / (1 + math.exp(-logit))) for id, logit in one] for one in ranked]
            for found, expected in zip(ranked, hits, strict=True):
                assert [id for id, _ in found] == [hit.document for hit in expected]
                scores = [hit.score for hit in expected]
                assert [score for _, score in found] == pytest.approx(scores, rel=1e-6 if options else 0)
    (some,) = index.rank_documents(["the river"], 9, "dense", among={"d2", "d4", "unknown"})
    assert {id for id, _ in some} == {"d2", "d4"}


def test_reranked_figures_stand_beside_the_first_stage(model, collection, tmp_path, reranker):
    measurement = Measurement(modes=("dense",), reranker=reranker, candidates=2)
    result = evaluate_retrieval(model, collection, index=tmp_path / "index", measurement=measurement)
    first, second = result.modes
    assert [(one.mode, one.reranker, one.depth) for one in result.modes] == [
        ("dense", None, 100),
        ("dense", "scorer", 2),
    ]
    assert result.of("dense", reranked=True) is second
    index = Index.open(tmp_path / "index", model)
    judgments = read_beir(collection).judgments("test")
    for block, options in ((first, {"k": 100}), (second, {"k": 2, "reranker": reranker, "candidates": 2})):
        run = {
            query: index.search(QUERIES[query], mode="dense", unit="document", **options)
            for query in judgments
        }
        assert values(block) == pytest.approx(judged_by_ir_measures(run, judgments))


def test_what_models_do_not_read_is_counted(model, collection, tmp_path):
    read = model.max_tokens - 2
    for _ in range(2):  # the second time from the index that was kept
        result = evaluate_retrieval(model, collection, index=tmp_path / "index")
        assert (result.documents, result.passages, result.truncated_documents) == (4, 4, 1)
        assert result.tokens == TokensIndexed(2 + 3 + 2 + read, 40 - read)
        assert (result.passage_mode, result.passage_tokens) == ("whole", model.max_tokens)
    (used,) = result.models
    assert (used.view, used.name, used.dtype) == ("dense", model.name, model.dtype)


@pytest.mark.parametrize("mode", ["window", "late"])
def test_a_document_counts_by_its_best_passage(model, collection, mode):
    settings = CollectionSettings(mode, passage_tokens=9, overlap_tokens=1)
    result = evaluate_retrieval(model, collection, settings=settings)
    encoding = model.tokenizer.encode(DOCUMENTS["d3"].strip())
    assert result.passages == 3 + len(passages_of(encoding, max_tokens=9, overlap_tokens=1))
    assert (result.truncated_documents, result.tokens.dropped) == (0, 0)
    assert (result.passage_mode, result.passage_tokens, result.overlap_tokens) == (mode, 9, 1)


def test_a_kept_index_is_not_computed_again(model, collection, tmp_path, monkeypatch):
    read = counted_embeddings(monkeypatch, model)
    first = evaluate_retrieval(model, collection, index=tmp_path / "index")
    assert len(read) == 3 + 2 * 2, "three different documents; two queries in two modes"
    assert [one.seconds >= 0 for one in first.modes] == [True] * 3
    read.clear()
    again = evaluate_retrieval((), collection, index=tmp_path / "index")
    assert set(read) == {QUERIES["q1"], QUERIES["d2"]}
    assert [one.per_query for one in again.modes] == [one.per_query for one in first.modes]


def test_a_stopped_index_is_resumed(model, collection, tmp_path, monkeypatch):
    monkeypatch.setattr("unmask.search.adding.CHARACTERS_AT_ONCE", 1)
    monkeypatch.setattr("unmask.search.additions.SEGMENT_BYTES", 1)
    with monkeypatch.context() as patch:
        read = counted_embeddings(patch, model, stop_after=2)
        with pytest.raises(KeyboardInterrupt):
            evaluate_retrieval(model, collection, index=tmp_path / "index")
    assert len(read) == 2
    read = counted_embeddings(monkeypatch, model)
    measurement = Measurement(modes=("bm25",))
    result = evaluate_retrieval(model, collection, index=tmp_path / "index", measurement=measurement)
    assert (len(read), result.documents) == (2, 4)


def test_a_temporary_index_is_removed(model, collection, tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    evaluate_retrieval(model, collection)
    assert [*(tmp_path / "temporary").iterdir()] == []


def test_queries_that_are_too_long_are_cut_and_counted(model, collection):
    rows = [{"_id": id, "text": text * (30 if id == "q1" else 1)} for id, text in QUERIES.items()]
    (collection / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = evaluate_retrieval(model, collection)
    assert (result.queries, result.truncated_queries) == (2, 1)
    assert all(one.without_results == 0 for one in result.modes)


def test_results_say_what_was_missing(model, collection):
    with (collection / "corpus.jsonl").open("a") as file:
        file.write(json.dumps({"_id": "bell", "text": "\u0007"}) + "\n")
    measurement = Measurement(modes=("dense",), split="dev", cutoffs=(1,))
    result = evaluate_retrieval(model, collection, measurement=measurement)
    assert (result.missing_documents, result.queries, result.split) == (1, 1, "dev")
    assert {one.name: one.value for one in result.of("dense").figures}["recall@1"] == 0.5
    assert [id for id, _ in result.skipped] == ["bell"]


def test_the_same_id_is_left_out_when_asked(model, collection):
    for drop, expected in ((False, 1.0), (True, 0.0)):
        measurement = Measurement(modes=("dense",), cutoffs=(4,), drop_same_id=drop)
        result = evaluate_retrieval(model, collection, measurement=measurement)
        assert result.of("dense").per_query["d2"]["recall@4"] == expected


def test_progress_counts_the_queries_of_every_search(model, collection, reranker):
    judged, seen = read_beir(collection), []
    with collection_index(judged, model) as index:
        measurement = Measurement(modes=("bm25", "dense"), reranker=reranker)
        measure(add_collection(index, judged), measurement, progress=lambda *one: seen.append(one))
    assert seen == [(done, 8) for done in range(1, 9)]


# Mistakes


def test_an_index_of_something_else_is_refused(model, collection, tmp_path):
    place = tmp_path / "index"
    evaluate_retrieval(model, collection, index=place)
    for settings, message in (
        (CollectionSettings("window"), "with passages whole and window is asked for"),
        (CollectionSettings(passage_tokens=9), "with passage_tokens 19 and 9 is asked for"),
        (CollectionSettings(overlap_tokens=1), "with overlap_tokens 0 and 1 is asked for"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            evaluate_retrieval(model, collection, index=place, settings=settings)
    write_checkpoint(tmp_path / "other", tiny_bert(seed=5))
    with pytest.raises(InvalidRequest, match=r"made with tiny .* and the model given is other"):
        evaluate_retrieval(str(tmp_path / "other"), collection, index=place)
    Index.open(place, model).add([{"id": "mine", "text": "the river"}])
    generation = Index.open(place, model).generation
    with pytest.raises(InvalidRequest, match="1 documents that small does not have, such as 'mine'"):
        evaluate_retrieval(model, collection, index=place)
    assert Index.open(place, model).generation == generation


def test_mistakes_leave_no_index(model, collection, tmp_path):
    place = tmp_path / "index"
    with pytest.raises(InvalidRequest, match="mode is 'sparse' and the index has the views bm25, dense"):
        evaluate_retrieval(model, collection, index=place, measurement=Measurement(modes=("sparse",)))
    assert not place.exists()
    (collection / "corpus.jsonl").write_text("")
    with pytest.raises(InvalidRequest, match="the corpus of small holds no documents"):
        evaluate_retrieval(model, collection, index=place)
    assert not place.exists()


def test_blank_queries_are_named(model, collection):
    (collection / "queries.jsonl").write_text('{"_id": "q1", "text": " "}\n{"_id": "d2", "text": "a"}\n')
    with pytest.raises(EmptyText, match="the query 'q1' is blank"):
        evaluate_retrieval(model, collection)


# The command


def test_the_command_prints_figures_and_what_was_dropped(tiny_folder, collection, tmp_path):
    here = ("evaluate", "retrieval", "-m", tiny_folder, "--data", collection)
    shown = run_here(*here).out
    for mode in MODES:
        assert f"{mode}, 1,000 documents per query" in shown
    assert "nDCG@10" in shown
    assert "tiny (dense, float32), on small (test): 2 queries, 4 documents, 4 passages (whole)" in shown
    assert "documents longer than the model reads: 1; 23 of 47 tokens were dropped" in shown
    written = tmp_path / "r.json"
    found = json.loads(
        run_here(*here, "--mode", "dense", "--passages", "window", "--json", "-o", written).out
    )
    assert found == json.loads(written.read_text())
    (dense,) = found["modes"]
    assert (dense["mode"], dense["figures"][0]["name"]) == ("dense", "nDCG@10")
    assert found["tokens"] == {"tokens": 47, "dropped": 0}
    assert dense["per_query"].keys() == {"q1", "d2"}


def test_the_command_keeps_an_index_and_reranks(tiny_folder, collection, tmp_path, reranker):
    here = ("evaluate", "retrieval", "--data", collection, "--index", tmp_path / "kept", "--mode", "bm25")
    assert run_here(*here, "-m", tiny_folder).code == 0
    scorer = reranker.checkpoint.source.folder
    shown = run_here(*here, "--reranker", scorer, "--candidates", "3").out
    assert "bm25, 100 documents per query" in shown
    assert "bm25, the best 3 ordered by scorer" in shown
    assert run_here("search", tmp_path / "kept", "the river", "--json").code == 0
    assert_one_sentence(run_here(*here, "--passages", "late"), "with passages whole and late is asked for")


def test_the_command_explains_mistakes_in_one_sentence(tiny_folder, collection):
    here = ("evaluate", "retrieval", "-m", tiny_folder, "--data")
    assert_one_sentence(run_here(*here, collection.parent), "holds no corpus.jsonl")
    assert_one_sentence(run_here(*here, collection, "--split", "train"), "no split 'train'", "dev, test")
    assert_one_sentence(run_here(*here, collection, "--mode", "sparse"), "has the views bm25, dense")
    assert_one_sentence(run_here(*here, collection, "--candidates", "0"), "candidates is 0")
    useless = "candidates is 300 and has no effect with mode bm25, dense, hybrid without a reranker"
    assert_one_sentence(run_here(*here, collection, "--candidates", "300"), useless)
    (collection / "qrels/test.tsv").rename(collection / "qrels/train.tsv")
    assert_one_sentence(run_here(*here, collection), "name one of them")


@pytest.mark.long
def test_the_documented_command_runs(collection, default_model, monkeypatch):
    page = (REPOSITORY / "docs" / "evaluate.md").read_text(encoding="utf-8")
    (line,) = [line for line in page.splitlines() if line.startswith("unmask evaluate retrieval")]
    collection.rename(collection.parent / "scifact")
    monkeypatch.chdir(collection.parent)
    ran = run_here(*shlex.split(line)[1:])
    assert ran.code == 0, ran.err
    assert "hybrid, 1,000 documents per query" in ran.out
