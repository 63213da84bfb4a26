"""Features of a text, by the API: those that were kept for the model, or the command that learns them."""

import time
from dataclasses import replace

import pytest

from tests.explorer.conftest import TEXT
from unmask.interpret.corpus.features import (
    Feature,
    features_folder,
    save_features,
    text_features,
    train_features,
)
from unmask.interpret.corpus.sparse_autoencoder import AutoencoderSettings
from unmask.interpret.corpus.texts import Corpus
from unmask.interpret.effects.target import Embedding, TargetScore

SETTINGS = AutoencoderSettings(features=16, active=3, epochs=4, tokens_per_step=16)


def test_features(asking, model, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    text = asking.measured(TEXT)
    path = f"texts/{text}/features?layer=1&target=embedding"
    before = asking.json(path)
    assert not before["learned"]
    assert "unmask features train -m" in before["verdict"]
    corpus = Corpus.of_strings([TEXT, *(f"{TEXT} {word}" for word in ("water", "bank", "river", "muddy"))])
    digest = model.content_digest()
    features = train_features(
        model.encoder, model.tokenizer, corpus, 1, settings=SETTINGS, model=model.name, digest=digest
    )
    save_features(features, features_folder(digest, 1))
    answer = asking.json(path)
    cache = model.attention(TEXT).cache
    toward = tuple(TargetScore(cache, Embedding()).embedding().tolist())
    expected = text_features(features, cache, Embedding(toward=toward))
    assert (answer["unit"], answer["layer"]) == ("cosine", 1)
    assert answer["value"] == pytest.approx(1, abs=1e-5)
    assert answer["verdict"] == features.verdict()
    found = {one["number"]: one["effect"] for one in answer["active"]}
    assert found == pytest.approx({one.number: one.effect for one in expected.active}, abs=1e-5)
    first = answer["active"][0]
    assert first["density"] > 0
    assert first["examples"][0]["text"].startswith(TEXT[:10])


def test_all_features_are_listed_page_by_page(asking, model, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = "features?model=0&layer=0"
    assert not asking.json(path)["learned"]
    corpus = Corpus.of_strings([TEXT, *(f"{TEXT} {word}" for word in ("water", "bank", "river", "muddy"))])
    digest = model.content_digest()
    features = train_features(model.encoder, model.tokenizer, corpus, 0, settings=SETTINGS, digest=digest)
    save_features(features, features_folder(digest, 0))
    answer = asking.json(f"{path}&count=5")
    assert (answer["total"], answer["dead"], len(answer["features"])) == (16, features.dead, 5)

    def listed(order):
        pages = [
            asking.json(f"{path}&order={order}&first={first}&count=6")["features"] for first in (0, 6, 12, 18)
        ]
        assert [len(page) for page in pages] == [6, 6, 4, 0]
        every = [feature for page in pages for feature in page]
        assert sorted(feature["number"] for feature in every) == list(range(16))
        return [feature for feature in every if feature["density"] > 0]

    for order, value in (
        ("density", lambda feature: -feature["density"]),
        ("rare", lambda feature: feature["density"]),
        ("match", lambda feature: -feature["match"]),
        ("activation", lambda feature: -feature["examples"][0]["activation"]),
    ):
        values = [value(feature) for feature in listed(order)]
        assert values == sorted(values)
    matched = [feature["match"] >= 0.7 for feature in listed("match")]
    assert sum(matched) / len(matched) == pytest.approx(features.stability.matched)
    assert "order is" in asking.problem(f"{path}&order=size", 400)["sentence"]


def test_a_list_of_many_features_is_quick(asking, model, tmp_path, monkeypatch):
    """Of 4,096, a page is sorted and sent in a fraction of a second once the file is read."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    corpus = Corpus.of_strings([TEXT, *(f"{TEXT} {word}" for word in ("water", "bank", "river", "muddy"))])
    digest = model.content_digest()
    small = train_features(model.encoder, model.tokenizer, corpus, 1, settings=SETTINGS, digest=digest)
    examples = [replace(small.features[0].examples[0], activation=float(number)) for number in range(10)]
    many = tuple(Feature(number, 1 / (1 + number), 1.0, tuple(examples)) for number in range(4096))
    save_features(replace(small, features=many), features_folder(digest, 1))
    path = "features?model=0&layer=1"
    assert asking.json(path)["total"] == 4096
    started = time.process_time()
    page = asking.json(f"{path}&order=rare&first=4080")
    assert time.process_time() - started < 0.5
    assert [feature["number"] for feature in page["features"]] == list(range(15, -1, -1))
    assert page["features"][0]["match"] is None
    assert len(page["features"][0]["examples"]) == 4
