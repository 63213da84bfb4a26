"""Planted directions are learned; what a feature adds is taken away exactly; noise is called noise."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import unmask
from tests.support.command import run_here
from tests.support.heads import decoded_spec, recorded
from unmask.errors import Cancelled, CheckpointError, InvalidRequest, NonFiniteResult
from unmask.interpret.corpus import features as corpus_features
from unmask.interpret.corpus import sparse_autoencoder as module
from unmask.interpret.corpus.features import load_features, save_features, text_features, train_features
from unmask.interpret.corpus.sparse_autoencoder import (
    AutoencoderSettings,
    SparseAutoencoder,
    Stability,
    stability,
    train_autoencoder,
)
from unmask.interpret.corpus.texts import Corpus
from unmask.interpret.effects.target import Class, Embedding, TargetScore, Word

pytestmark = pytest.mark.long

WIDTH, PLANTED, TOKENS = 16, 24, 6000


def planted(seed=0):
    """States that are sums of two of some directions, and the directions."""
    generator = torch.Generator().manual_seed(seed)
    directions = torch.nn.functional.normalize(torch.randn(PLANTED, WIDTH, generator=generator), dim=-1)
    chosen = torch.rand(TOKENS, PLANTED, generator=generator).topk(2).indices
    sizes = 1 + torch.rand(TOKENS, 2, generator=generator)
    coded = torch.zeros(TOKENS, PLANTED).scatter(1, chosen, sizes)
    return coded @ directions + 5, directions


SETTINGS = AutoencoderSettings(features=32, active=2, epochs=25, tokens_per_step=128, learning_rate=3e-3)


@pytest.fixture(scope="module")
def learned():
    x_TD, directions = planted()
    return x_TD, directions, [train_autoencoder(x_TD, SETTINGS, seed=seed) for seed in (0, 1)]


@pytest.mark.long
def test_planted_directions_are_learned(learned):
    x_TD, directions, (first, _) = learned
    best = (directions @ first.decoder_FD.T).amax(-1)
    assert (best > 0.95).float().mean() > 0.75
    assert first.explained(x_TD) > 0.9
    torch.testing.assert_close(first.decoder_FD.norm(dim=-1), torch.ones(32))
    again = train_autoencoder(x_TD, SETTINGS, seed=0)
    torch.testing.assert_close(again.decoder_FD, first.decoder_FD, rtol=0, atol=0)


def test_seeds_agree_on_planted_directions_and_not_on_noise(learned):
    x_TD, _, (first, second) = learned
    alive = torch.ones(32, dtype=torch.bool)
    found = stability(first, second, x_TD, alive)
    assert found.cosine > 0.85
    assert found.baseline < 0.75
    assert found.matched > 0.7
    noise_TD = torch.randn(3000, WIDTH, generator=torch.Generator().manual_seed(4))
    short = replace(SETTINGS, epochs=1)
    pair = [train_autoencoder(noise_TD, short, seed=seed) for seed in (0, 1)]
    chance = stability(*pair, noise_TD, alive)
    assert abs(chance.cosine - chance.baseline) < 0.1
    with pytest.raises(InvalidRequest, match="every feature is dead"):
        stability(first, second, x_TD, ~alive)


def test_the_parts_of_a_state_are_its_sum(learned):
    """By hand, latent by latent."""
    x_TD, _, (model, _) = learned
    x_ND = x_TD[:5]
    latents = ((x_ND - model.mean_D) / model.scale) @ model.encoder_FD.T + model.bias_F
    features_Nk, _ = model.activations(x_ND)
    assert features_Nk.shape == (5, 2)
    for token in range(5):
        expected = model.mean_D.clone()
        for feature in latents[token].argsort(descending=True)[:2]:
            assert feature in features_Nk[token]
            expected += max(0.0, float(latents[token, feature])) * model.scale * model.decoder_FD[feature]
        torch.testing.assert_close(model.reconstruct(x_ND)[token], expected, rtol=1e-5, atol=1e-5)
    missing = (x_TD - model.reconstruct(x_TD)).square().sum() / (x_TD - x_TD.mean(0)).square().sum()
    assert model.explained(x_TD) == pytest.approx(1 - float(missing), abs=1e-5)


def test_dead_latents_learn_what_is_missing():
    """The first loss does not move them; the second does, and is smaller the more they fill."""
    generator = torch.Generator().manual_seed(0)
    x_BD = torch.randn(40, 6, generator=generator)
    decoder_FD = torch.nn.functional.normalize(torch.randn(10, 6, generator=generator), dim=-1)
    bias_F = torch.zeros(10)
    dead_F = torch.zeros(10, dtype=torch.bool)
    dead_F[[2, 7]] = True
    bias_F[dead_F] = -5.0  # they do not fire
    encoder_FD = decoder_FD.clone().requires_grad_()
    learned_FD = decoder_FD.clone().requires_grad_()
    alone, fired_F = module._loss(x_BD, (encoder_FD, bias_F, learned_FD), 3, torch.zeros_like(dead_F))
    assert fired_F.any()
    assert not (fired_F & dead_F).any()
    (gradient_FD,) = torch.autograd.grad(alone, [learned_FD])
    assert (gradient_FD[dead_F] == 0).all()
    # Dead latents whose bias keeps them out of the first sum, but not out of the second.
    low = bias_F.clone()
    low[dead_F] = -20.0
    both, _ = module._loss(x_BD, (encoder_FD, low, learned_FD), 3, dead_F)
    assert both.item() == pytest.approx(alone.item() + 1 / 32, rel=1e-5)  # they fill nothing
    low[dead_F] = -0.6  # at some tokens above 0, and seldom among the three that are largest
    before, _ = module._loss(x_BD, (encoder_FD, low, learned_FD), 3, dead_F)
    (gradient_FD,) = torch.autograd.grad(before, [learned_FD])
    first, _ = module._loss(x_BD, (encoder_FD, low, learned_FD), 3, torch.zeros_like(dead_F))
    (of_first_FD,) = torch.autograd.grad(first, [learned_FD])
    added_FD = gradient_FD - of_first_FD
    assert (added_FD[dead_F] != 0).any()
    torch.testing.assert_close(added_FD[~dead_F], torch.zeros_like(added_FD[~dead_F]), atol=1e-7, rtol=0)
    after, _ = module._loss(x_BD, (encoder_FD, low, learned_FD - 0.5 * added_FD), 3, dead_F)
    rest, _ = module._loss(x_BD, (encoder_FD, low, learned_FD - 0.5 * added_FD), 3, torch.zeros_like(dead_F))
    assert (after - rest).item() < (before - first).item()


def by_hand(width, features=6, active=3):
    generator = torch.Generator().manual_seed(1)
    decoder_FD = torch.nn.functional.normalize(torch.randn(features, width, generator=generator), dim=-1)
    return SparseAutoencoder(
        torch.randn(features, width, generator=generator), torch.zeros(features), decoder_FD,
        torch.zeros(width), 2.0, active,
    )  # fmt: skip


def features_of(autoencoder, layer):
    from unmask.interpret.corpus.features import Features

    return Features(
        autoencoder,
        "m",
        "d",
        layer,
        AutoencoderSettings(6, 3),
        "c",
        "s",
        1,
        1,
        0.5,
        Stability(0.5, 0.5, 0.0),
        (),
    )


@pytest.mark.parametrize("name", ["post-norm", "rotary-windows", "linear"])
def test_an_effect_is_the_target_without_what_the_feature_adds(name):
    cache = recorded(name, 9)
    encoder, words = cache.encoder, torch.tensor(~cache.encoding.special)
    for layer in (0, cache.layer_count - 1):
        features = features_of(by_hand(cache.states[0].shape[1]), layer)
        for target in (Word(5, 31), Class("sequence", 1), Embedding()):
            found = text_features(features, cache, target)
            assert found.active
            numbers_Nk, values_Nk = features.autoencoder.activations(cache.states[layer + 1])
            for one in found.active:
                at = (numbers_Nk == one.number) & words[:, None] & (values_Nk > 0)
                added_N = (values_Nk * at).sum(-1).double()
                assert one.tokens == tuple(torch.nonzero(added_N)[:, 0].tolist())
                direction = features.autoencoder.decoder_FD[one.number].double()

                def hook(point, of, x_ND, added_N=added_N, direction=direction, layer=layer):
                    if point.value == "layer" and of == layer:
                        return x_ND - added_N[:, None] * direction
                    return None

                states = []

                def record(point, of, x_ND, hook=hook, states=states):
                    y = hook(point, of, x_ND)
                    states.append(x_ND if y is None else y)
                    return y

                with torch.no_grad():
                    encoder.encode(cache.batch, hook=record)
                    without = float(TargetScore(cache, target).value(states[-1], "logit"))
                assert one.effect == pytest.approx(found.value - without, abs=1e-6)
            sizes = [abs(one.effect) for one in found.active]
            assert sizes == sorted(sizes, reverse=True)


def test_what_cannot_be_measured_is_refused():
    cache = recorded("post-norm", 9)
    for features in (features_of(by_hand(5), 0), features_of(by_hand(24), 3)):
        with pytest.raises(InvalidRequest, match="load the model they describe"):
            text_features(features, cache, Embedding())
    decoded = recorded("", 9, spec=decoded_spec())
    width = decoded.states[0].shape[1]
    last = features_of(by_hand(width), decoded.layer_count - 1)
    with pytest.raises(InvalidRequest, match="decoder in place of layer"):
        text_features(last, decoded, Word(3, 1))
    assert text_features(features_of(by_hand(width), 0), decoded, Word(3, 1)).active
    x_TD = torch.randn(20, 4)
    with pytest.raises(InvalidRequest, match="20 states for 32 features"):
        train_autoencoder(x_TD, SETTINGS)
    with pytest.raises(InvalidRequest, match="active is 40"):
        replace(SETTINGS, active=40)
    with pytest.raises(InvalidRequest, match="learning_rate is 0"):
        replace(SETTINGS, learning_rate=0)
    with pytest.raises(NonFiniteResult, match="lower learning_rate"):
        train_autoencoder(torch.full((64, 4), torch.inf), replace(SETTINGS, epochs=1))


TEXTS = [
    f"The {noun} {verb} the {place}."
    for noun in ("man", "dog", "old woman", "king")
    for verb in ("saw", "left", "loved")
    for place in ("house", "river", "city", "door", "sea")
]


@pytest.fixture(scope="module")
def mini():
    return unmask.load("unmask-mini")


@pytest.fixture(scope="module")
def trained(mini):
    settings = AutoencoderSettings(features=40, active=4, epochs=20, tokens_per_step=64)
    corpus = Corpus.of_strings(TEXTS)
    reports = []
    found = train_features(
        mini.encoder, mini.tokenizer, corpus, 1, settings=settings, model=mini.name,
        digest=mini.content_digest(), watch=lambda *report: reports.append(report),
    )  # fmt: skip
    assert {what for what, _, _ in reports} == {"reading", "training"}
    assert reports[-1][1] == reports[-1][2]
    return found


def test_features_of_a_corpus(mini, trained):
    assert len(trained.features) == 40
    assert trained.texts == len(TEXTS)
    densities = np.array([feature.density for feature in trained.features])
    assert 0 < densities.sum() <= 4 + 1e-9  # 4 of a token at most
    assert trained.dead == (densities == 0).sum()
    assert 0.3 < trained.explained <= 1
    strongest = max(trained.features, key=lambda feature: feature.density)
    values = [example.activation for example in strongest.examples]
    assert values == sorted(values, reverse=True)
    assert len({example.text for example in strongest.examples}) == len(values)
    # The first example, read again: the activation is that of the autoencoder on the state of that token.
    example = strongest.examples[0]
    view = mini.attention(example.text)
    token = [tuple(span) for span in view.encoding.offsets.tolist()].index(example.span)
    features_Nk, values_Nk = trained.autoencoder.activations(view.cache.states[2])
    at = features_Nk[token].tolist().index(strongest.number)
    assert float(values_Nk[token, at]) == pytest.approx(example.activation, rel=1e-3)


def test_an_example_is_the_strongest_token_of_its_text(mini, monkeypatch):
    monkeypatch.setattr(corpus_features, "EXAMPLES", 1000)
    settings = AutoencoderSettings(features=20, active=6, epochs=3, tokens_per_step=64)
    found = train_features(mini.encoder, mini.tokenizer, Corpus.of_strings(TEXTS), 1, settings=settings)
    largest: dict[str, np.ndarray] = {}
    for text in TEXTS:
        view = mini.attention(text)
        features_Nk, values_Nk = found.autoencoder.activations(view.cache.states[2])
        dense_NF = torch.zeros(len(view), 20).scatter(1, features_Nk, values_Nk)
        largest[text] = dense_NF[torch.tensor(~view.encoding.special)].amax(0).numpy()
    for feature in found.features:
        for example in feature.examples:
            assert largest[example.text][feature.number] == pytest.approx(example.activation, rel=1e-2)
        assert len(feature.examples) == sum(largest[text][feature.number] > 0 for text in TEXTS)


def test_the_verdict_says_noise(trained):
    noise = replace(trained, stability=Stability(0.35, 0.31, 0.0)).verdict()
    assert noise.startswith("These features are noise")
    assert "0.35 with a second seed, 0.31 with random" in noise
    assert "80% have a match" in replace(trained, stability=Stability(0.9, 0.3, 0.8)).verdict()


def test_they_are_saved_and_read(trained, tmp_path):
    save_features(trained, tmp_path / "features")
    again = load_features(tmp_path / "features")
    for name in ("model", "digest", "layer", "settings", "stability", "features", "explained"):
        assert getattr(again, name) == getattr(trained, name)
    torch.testing.assert_close(again.autoencoder.decoder_FD, trained.autoencoder.decoder_FD)
    description = tmp_path / "features" / "features.json"
    for damage in (lambda text: text[:200], lambda text: text.replace('"format": 1', '"format": 7')):
        whole = description.read_text(encoding="utf-8")
        description.write_text(damage(whole), encoding="utf-8")
        with pytest.raises(CheckpointError):
            load_features(tmp_path / "features")
        description.write_text(whole, encoding="utf-8")
    with pytest.raises(CheckpointError, match="there are no features in"):
        load_features(tmp_path / "nothing")


def test_training_stops_when_told_to(mini):
    def stop(what, done, of):
        raise Cancelled("enough")

    with pytest.raises(Cancelled):
        train_features(mini.encoder, mini.tokenizer, Corpus.of_strings(TEXTS), 1, watch=stop)
    with pytest.raises(InvalidRequest, match="layers 0 to 5"):
        train_features(mini.encoder, mini.tokenizer, Corpus.of_strings(TEXTS), 6)


def test_the_commands(trained, mini, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    corpus = tmp_path / "texts.txt"
    corpus.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    folder = tmp_path / "features"
    arguments = ("--features", 40, "--active", 4, "--epochs", 2, "--corpus", corpus, "-l", 1)
    ran = run_here("features", "train", "-o", folder, *arguments, "--json")
    assert ran.code == 0, ran.err
    result = json.loads(ran.out)
    assert (result["layer"], result["features"], result["texts"]) == (1, 40, len(TEXTS))
    assert result["stability"]["baseline"] > 0
    shown = run_here(
        "features", "show", "The man saw the [MASK].", "--folder", folder, "--word", "house", "--json"
    )
    assert shown.code == 0, shown.err
    found = json.loads(shown.out)
    assert found["target"] == "the word “house” at token 5"
    expected = text_features(
        load_features(folder), mini.attention("The man saw the [MASK].").cache,
        Word(5, mini.tokenizer.token_to_id("Ġhouse")), top=12,
    )  # fmt: skip
    assert [one["number"] for one in found["features"]] == [one.number for one in expected.active]
    assert result["verdict"] == found["verdict"]
    kept = json.loads(run_here("features", "train", *arguments, "--json").out)["folder"]
    assert kept.startswith(str(tmp_path / "cache"))
    again = json.loads(run_here("features", "show", "The man.", "-l", 1, "--json").out)
    assert again["verdict"] == load_features(kept).verdict()
    assert "variance" in run_here("features", "show", "The man.", "--folder", folder).out
    for words, arguments in (
        ("exists; name a new folder", ("train", "-o", folder)),
        ("weights are not those of", ("show", "The man.", "--folder", folder, "-m", "default")),
        ("there are no features in", ("show", "The man.", "--folder", tmp_path / "none")),
        ("there are no features in", ("show", "The man.", "-l", 5)),
        ("leave one out", ("show", "The man.", "-l", 5, "--folder", folder)),
        ("--top is 0", ("show", "The man.", "--folder", folder, "--top", "0")),
        ("active is 50", ("train", "--features", 40, "--active", 50)),
    ):
        ran = run_here("features", *arguments)
        assert ran.code == 1
        assert ran.err.count("\n") == 1
        assert words in ran.err
