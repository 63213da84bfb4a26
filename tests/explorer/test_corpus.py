"""Heads over a corpus in the explorer: a job in the background, its answers, and similar heads of a text."""

import re

import numpy as np
import pytest

from tests.explorer.conftest import TEXT, Asking
from tests.support.explorable import HEADS, LAYERS, FakeModel
from tests.support.places import REPOSITORY
from tests.support.waiting import wait_until
from unmask.errors import OutputError
from unmask.explorer import Api
from unmask.interpret.attention.head_distances import head_distances
from unmask.interpret.attention.layer_statistics import LABELS
from unmask.interpret.corpus import measure
from unmask.interpret.corpus.batch import PATTERNS, EqualLengthBatch
from unmask.interpret.corpus.texts import Corpus
from unmask.search.topics import topics_and_vectors

TEXTS = ["the river bank was muddy.", "a river, a bank!", "the text was another text.", "banks", "a a a a"]


def explorer(model, cache=None, texts=TEXTS):
    return Asking(Api([model], corpus=Corpus.of_strings(texts, "mine"), corpus_cache=cache))


def done(asking):
    wait_until(lambda: asking.json("corpus/0")["phase"] not in ("waiting", "running"))
    return asking.json("corpus/0")


@pytest.fixture(scope="module")
def asked(model):
    asking = explorer(model)
    assert asking.json("corpus/0")["phase"] == "none"
    asking.problem("corpus/0/heads", 409)
    asking.json("corpus/0", "POST", {})
    yield asking
    asking.api.close()


def test_the_corpus_is_read_in_the_background(asked):
    state = done(asked)
    assert (state["phase"], state["texts"], state["total"], state["name"]) == ("done", 5, 5, "mine")
    assert (state["from_cache"], state["kept"]) == (False, None)
    assert asked.json("corpus/0", "POST", {})["phase"] == "done"


def test_statistics_and_examples_are_those_of_python(asked, model):
    done(asked)
    expected = model.attention_over(TEXTS)
    arrays, meta = asked.arrays("corpus/0/heads?texts=5")
    assert meta["texts"] == 5
    for name in ("entropy", "entropy_share", "distance", "classes", "labels"):
        np.testing.assert_allclose(arrays[name], getattr(expected, name), rtol=1e-5)
    called = [[LABELS[label] for label in row] for row in arrays["label"]]
    assert called == [[expected.label(layer, head)[0] for head in range(HEADS)] for layer in range(LAYERS)]
    answer = asked.json("corpus/0/head/2/1?texts=5")
    assert [pattern["pattern"] for pattern in answer["patterns"]] == list(PATTERNS)
    for pattern in answer["patterns"]:
        examples = expected.examples(2, 1, pattern["pattern"], 12)
        assert [(e["text"], tuple(e["query"])) for e in pattern["examples"]] == [
            (e.text, e.query) for e in examples
        ]


def test_examples_with_a_word(asked):
    done(asked)
    answer = asked.json("corpus/0/find/1/1?query_word=River&pattern=next")
    assert (answer["matching"], answer["read"], len(answer["examples"])) == (2, 2, 2)
    assert {example["text"][slice(*example["query"])] for example in answer["examples"]} == {"river"}
    before = asked.json("corpus/0/find/1/1?query_word=River&pattern=previous")
    for examples, step in ((answer["examples"], 1), (before["examples"], -1)):
        assert [example["key_token"] - example["query_token"] for example in examples] == [step, step]
    assert "no word" in asked.problem("corpus/0/find/1/1?query_word=%20", 400)["sentence"]
    asked.problem(f"corpus/0/find/1/1?query_word={'x' * 61}", 409)
    asked.problem("corpus/0/find/1/1?query_word=a&pattern=backwards", 400)


def test_what_is_not_there_is_refused(asked):
    for path in ("corpus/1", "corpus/0/head/9/0", "corpus/0/head/0/9", "corpus/x/heads"):
        asked.problem(path, 400)


def test_a_second_launch_reads_what_was_kept(model, tmp_path, monkeypatch):
    first = explorer(model, tmp_path)
    first.json("corpus/0", "POST", {})
    assert done(first)["kept"] == str(tmp_path)
    first.api.close()
    monkeypatch.setattr(EqualLengthBatch, "run", None)
    again = explorer(FakeModel(), tmp_path)
    again.json("corpus/0", "POST", {})
    assert (done(again)["phase"], again.json("corpus/0")["from_cache"]) == ("done", True)
    again.api.close()


def test_a_cache_that_cannot_be_written_is_named_and_done_without(model, tmp_path):
    (tmp_path / "file").write_text("")
    asking = explorer(model, tmp_path / "file" / "cache")
    asking.json("corpus/0", "POST", {})
    state = done(asking)
    assert (state["phase"], state["texts"], state["kept"]) == ("done", 5, None)
    assert "cannot write" in state["note"]
    asking.api.close()


def test_a_text_that_cannot_be_read_is_named(model):
    asking = explorer(model, texts=["fine", "not\ud800fine"])
    asking.json("corpus/0", "POST", {})
    state = done(asking)
    assert state["phase"] == "failed"
    assert "text 2" in state["problem"]["sentence"]
    asking.api.close()


def test_a_stopped_corpus_shows_what_it_has_and_resumes(model, monkeypatch):
    monkeypatch.setattr(measure, "FIRST_ROUND", 1)
    run, asking = EqualLengthBatch.run, explorer(model)
    calls = []

    def stopping(encoder, encodings, watch):
        calls.append([encoding.text for encoding in encodings])
        if len(calls) == 2:
            asking.json("corpus/0", "DELETE")
        return run(encoder, encodings, watch)

    monkeypatch.setattr(EqualLengthBatch, "run", stopping)
    asking.json("corpus/0", "POST", {})
    state = done(asking)
    assert (state["phase"], state["texts"]) == ("stopped", 1)
    assert asking.arrays("corpus/0/heads?texts=1")[1]["texts"] == 1
    asking.json("corpus/0", "POST", {})
    assert done(asking)["texts"] == 5
    assert sorted(text for call in calls[2:] for text in call) == sorted({*TEXTS} - {*calls[0]})
    np.testing.assert_allclose(
        asking.arrays("corpus/0/heads?texts=5")[0]["entropy"], model.attention_over(TEXTS).entropy, rtol=1e-5
    )
    asking.api.close()


def test_similar_heads_of_a_text(asking, model):
    text_id = asking.measured()
    arrays, _ = asking.arrays(f"texts/{text_id}/alike")
    assert arrays["distance"].shape == (LAYERS * HEADS, LAYERS * HEADS)
    expected = head_distances(model.attention(TEXT).cache).divergence
    np.testing.assert_allclose(arrays["distance"], expected, atol=1e-6)


def test_the_effect_of_a_head_on_the_embedding_of_a_text(asking):
    text_id = asking.measured()
    answer = asking.json(f"texts/{text_id}/ablate/1/2?how=zero&target=embedding")
    assert answer["token"] is None
    assert "the text's embedding" in answer["what"]
    assert answer["effect"] == pytest.approx(answer["before"] - answer["after"])
    of_token = asking.json(f"texts/{text_id}/ablate/1/2?token=3&how=zero&target=embedding")
    assert of_token["effect"] != answer["effect"]


def test_the_page_names_every_pattern():
    source = (REPOSITORY / "web" / "src" / "draw" / "head.ts").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^  \{ id: '(\w+)', label:", source, re.MULTILINE)) == sorted(PATTERNS)


def test_a_disk_that_is_full_stops_keeping_and_not_reading(model, tmp_path, monkeypatch):
    def full(path, key, totals):
        raise OutputError(f"cannot write {path}: no space left on device")

    monkeypatch.setattr(measure, "write_totals", full)
    asking = explorer(model, tmp_path)
    asking.json("corpus/0", "POST", {})
    state = done(asking)
    assert (state["phase"], state["texts"], state["kept"]) == ("done", 5, None)
    assert "no space left" in state["note"]
    asking.api.close()


def test_topics_of_the_corpus_are_those_of_python(model):
    pytest.importorskip("sklearn", reason="the topics extra is not installed")
    words = ("river", "bank", "mud"), ("text", "word", "page")
    texts = [f"the {a} and the {b} {n}" for group in words for a in group for b in group for n in range(3)]
    asking = explorer(model, texts=texts)
    arrays, meta = asking.arrays("corpus/0/topics?topics=3")
    ordered = [text.text for text in Corpus.of_strings(texts).texts]
    assert meta["texts"] == ordered
    wanted, vectors_SE = topics_and_vectors(
        ordered, model, topics=3, min_size=9, resamples=5, truncation="end", pooling="mean"
    )
    assert [topic["name"] for topic in meta["topics"]] == [topic.name for topic in wanted.topics]
    assert [topic["size"] for topic in meta["topics"]] == [topic.size for topic in wanted.topics]
    assert arrays["topic"].tolist() == [-1 if label is None else label for label in wanted.labels]
    centered = vectors_SE - vectors_SE.mean(0)
    _, lengths, axes = np.linalg.svd(centered.astype(np.float64), full_matrices=False)
    expected = centered @ axes[:3].T
    np.testing.assert_allclose(np.abs(arrays["points"][0]), np.abs(expected), atol=1e-5)
    np.testing.assert_allclose(arrays["explained"], (lengths**2 / (lengths**2).sum())[:3], atol=1e-6)
    asking.api.close()
    few = explorer(model)
    _, meta = few.arrays("corpus/0/topics?topics=12")
    assert len(meta["texts"]) == 5
    assert 1 <= len(meta["topics"]) <= 2
    few.api.close()
