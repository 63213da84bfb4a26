"""Topics: clusters that are known, their words, and their stability."""

import json

import numpy as np
import pytest

import unmask
from tests.support.command import run_here
from unmask.errors import InvalidRequest
from unmask.search import topics
from unmask.search.topics import find_topics

pytest.importorskip("sklearn", reason="topics are made with scikit-learn")

SUBJECTS = {
    "river": ["river", "fish", "swim", "deep", "water", "bridge"],
    "bank": ["bank", "loan", "money", "interest", "month", "lends"],
    "code": ["file", "open", "read", "return", "name", "def"],
}


@pytest.fixture(scope="module")
def texts():
    draw = np.random.default_rng(3)
    return [
        "the " + " ".join(draw.permutation(words)[:4]) + " and"
        for words in SUBJECTS.values()
        for _ in range(20)
    ]


@pytest.fixture
def clear(monkeypatch, texts):
    """Vectors of three tight clusters and of three texts between them, in place of a model's."""
    from contextlib import contextmanager

    @contextmanager
    def vectors(model, given, *_, **__):
        draw = np.random.default_rng(1)
        centers = np.eye(3, 8)[np.repeat(np.arange(3), 20)]
        stored = centers + 0.05 * draw.normal(size=(60, 8))
        yield (stored / np.linalg.norm(stored, axis=1, keepdims=True)).astype(np.float32)[: len(given)], 0

    monkeypatch.setattr(topics, "document_vectors", vectors)


@pytest.mark.parametrize("method", ["kmeans", "hdbscan"])
def test_clear_clusters_are_found_named_and_stable(clear, folder, texts, method):
    options = {"topics": 3} if method == "kmeans" else {"min_size": 5}
    result = find_topics(texts, unmask.load(folder), method=method, resamples=5, **options)
    assert [topic.size for topic in result.topics] == [20, 20, 20]
    assert result.labels == tuple(np.repeat([0, 1, 2], 20).tolist())
    assert result.without_topic == 0
    assert result.adjusted_rand == pytest.approx(1)
    for topic, words in zip(result.topics, SUBJECTS.values(), strict=True):
        assert {word.word for word in topic.words} == set(words)
        assert topic.stability == pytest.approx(1)
        assert all(texts[row].split()[1] in words for row in topic.examples)
        assert topic.name == ", ".join(word.word for word in topic.words[:3])
    assert result == find_topics(texts, unmask.load(folder), method=method, resamples=5, **options)


def test_small_clusters_are_no_topics(clear, folder, texts):
    few = [*texts[:40], *texts[40:44]]
    result = find_topics(few, unmask.load(folder), topics=3, min_size=5, resamples=2)
    assert result.without_topic == 4
    assert [topic.size for topic in result.topics] == [20, 20]
    assert result.labels[40:] == (None,) * 4


def test_fewer_different_vectors_than_clusters_in_a_resample(clear, folder, texts):
    result = find_topics(texts, unmask.load(folder), topics=45, min_size=2, resamples=3)
    assert len(result.topics) < 45
    with pytest.raises(InvalidRequest, match="there are 2 different texts, too few for 3 topics"):
        find_topics(["a river", "A  river", "bank"] * 9, unmask.load(folder), topics=3, min_size=2)


def test_more_clusters_than_there_are_is_unstable(clear, folder, texts):
    result = find_topics(texts, unmask.load(folder), topics=9, min_size=2, resamples=8)
    assert result.adjusted_rand < 0.9
    assert min(topic.stability for topic in result.topics) < 0.75


def test_words_by_hand():
    texts = ["the cat le", "the cat le", "the dog le", "the dog ran le"]
    first, second = topics._words(texts, np.array([0, 0, 1, 1]), 5)
    assert [(word.word, word.texts) for word in first] == [("cat", 2)]
    assert [(word.word, word.texts) for word in second] == [("dog", 2), ("ran", 1)]
    assert first[0].weight == second[0].weight == pytest.approx(np.log(2))
    assert second[1].weight == pytest.approx(0.5 * np.log(2))


def test_words_of_other_scripts():
    texts = ["银行贷款", "银行利息", "नदी का पुल", "गहरी नदी", "البنك يقرض", "البَنك قرض"]
    chinese, hindi, arabic = topics._words(texts, np.array([0, 0, 1, 1, 2, 2]), 3)
    assert [words[0].word for words in (chinese, hindi, arabic)] == ["银行", "नदी", "البنك"]
    assert [words[0].texts for words in (chinese, hindi, arabic)] == [2, 2, 2]


def test_jaccard_by_hand():
    before, after = np.array([0, 0, 0, 1, 1, -1]), np.array([1, 1, 0, 0, -1, 0])
    assert topics._jaccard(before, after, 2).tolist() == [2 / 3, 1 / 4]
    assert topics._jaccard(before, np.full(6, -1), 2).tolist() == [0, 0]


def test_arguments_are_checked(folder):
    model = unmask.load(folder)
    for options, message in (
        ({"topics": 1}, "topics is 1"),
        ({"topics": 5, "method": "hdbscan"}, "HDBSCAN finds their number"),
        ({"min_size": 1}, "min_size is 1"),
        ({"topics": 4}, "too few for 4 topics"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            find_topics(["a", "b"], model, **options)


def test_the_command(folder, texts, tmp_path):
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in texts))
    arguments = ("topics", tmp_path / "in.txt", "-m", folder, "--topics", 3, "--resamples", 2)
    ran = run_here(*arguments, "--json", "-o", tmp_path / "out.json")
    assert ran.code == 0, ran.err
    result = json.loads(ran.out)
    assert result == json.loads((tmp_path / "out.json").read_text())
    assert [row["line"] for row in result["rows"]] == list(range(1, 61))
    sizes = np.bincount([row["topic"] for row in result["rows"] if row["topic"] is not None])
    assert sizes.tolist() == [topic["size"] for topic in result["topics"]]
    assert result["topics"][0]["examples"][0]["text"] in texts
    shown = run_here(*arguments).out
    assert "60 texts, of which " in shown
    assert "adjusted Rand index" in shown
    refused = run_here("topics", "-m", folder)
    assert (refused.code, "no inputs are given" in refused.err) == (1, True)
