"""Features of a text, by the API: those that were kept for the model, or the command that learns them."""

import pytest

from tests.explorer.conftest import TEXT
from unmask.interpret.corpus.features import features_folder, save_features, text_features, train_features
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
