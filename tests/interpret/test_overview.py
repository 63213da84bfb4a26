"""The overview of a text: every number against whole maps, and no finding where there is nothing to find."""

import json
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import unmask
from tests.support import dense
from tests.support.explorable import FakeModel
from tests.support.specs import SPECS, random_encoder
from unmask.cli.look.look import look
from unmask.errors import Cancelled, InvalidRequest
from unmask.interpret import AttentionView
from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.attention.sinks import sinks
from unmask.interpret.effects.ablation import ablate, ablate_each, importance
from unmask.interpret.effects.target import Embedding, Word
from unmask.interpret.geometry.cka import cka
from unmask.interpret.overview import states
from unmask.interpret.overview.finding import percent
from unmask.interpret.overview.heads import labels
from unmask.interpret.overview.overview import ORDER, attention_findings, overview
from unmask.interpret.overview.states import decided_word, most_effective_head
from unmask.text.masking import masked

TEXT = "The river bank was muddy, so we took the money to the bank."
LONG = (
    "The doctor told the nurse that the patient was asleep, and the nurse told the doctor that she would "
    "wait until the patient woke up, however long that took."
)


@pytest.fixture(scope="module")
def model():
    return unmask.load("default")


@pytest.fixture(scope="module")
def view(model):
    return model.attention(TEXT)


@pytest.fixture(scope="module")
def maps(view):
    """Every whole map, (L, H, N, N), float64."""
    heads = range(view.head_count)
    return np.array(
        [[view.probabilities(layer, head) for head in heads] for layer in range(view.layer_count)],
        dtype=np.float64,
    )


@pytest.fixture(scope="module")
def found(view):
    return {finding.kind: finding for finding in overview(view).findings}


def entropy_shares(maps):
    return -(maps * np.log(np.maximum(maps, 1e-300))).sum(-1).mean(-1) / np.log(maps.shape[-1])


def test_the_previous_token_head(found, maps):
    one = found["previous"]
    length = maps.shape[-1]
    top = maps[one.layer, one.head].argmax(-1)
    assert one.value == (top[1:] == np.arange(length - 1)).mean() == 1
    masses = np.trace(maps, offset=-1, axis1=2, axis2=3) / (length - 1)
    assert np.unravel_index(masses.argmax(), masses.shape) == (one.layer, one.head)
    assert f"their mean attention to it is {100 * masses[one.layer, one.head]:.0f} %." in one.sentence
    assert "right before it" in one.sentence
    assert f"head {one.layer}.{one.head}" in one.sentence
    for edge in one.edges:
        assert edge.weight == pytest.approx(maps[one.layer, one.head, edge.query, edge.key], abs=1e-5)
    assert [(edge.query, edge.key) for edge in one.edges if edge.weight > 0.5 and edge.query] == [
        (query, query - 1) for query in range(1, length)
    ]


def test_the_share_of_a_next_token_head_counts_tokens_and_its_mass_is_something_else(found, maps):
    one = found["next"]
    length = maps.shape[-1]
    top = maps[one.layer, one.head].argmax(-1)
    share = (top[:-1] == np.arange(1, length)).mean()
    mass = np.trace(maps[one.layer, one.head], offset=1) / (length - 1)
    assert one.value == pytest.approx(share)
    assert f"{share:.0%}".replace("%", " %") in one.sentence
    assert f"their mean attention to it is {100 * mass:.0f} %." in one.sentence
    assert round(100 * share) != round(100 * mass)


@pytest.mark.parametrize(
    "text",
    [
        "line one\nline two\ntab",
        "A rose is a rose is a rose.",
        ("Where is it?", "Here."),
        "שלום עולם",
        "bank " * 9,
    ],
)
def test_means_of_positional_heads_are_over_the_tokens_with_such_a_neighbor(model, text):
    view = model.attention(*text) if isinstance(text, tuple) else model.attention(text)
    stated = [finding for finding in overview(view).findings if finding.kind in ("previous", "next")]
    assert stated
    for one in stated:
        p = view.probabilities(one.layer, one.head)
        diagonal = np.diagonal(p, offset=-1 if one.kind == "previous" else 1)
        assert f"their mean attention to it is {percent(diagonal.mean())}." in one.sentence
        top = p.argmax(-1) - np.arange(len(p))
        hits = (top == (-1 if one.kind == "previous" else 1)).sum() / (len(p) - 1)
        assert one.value == pytest.approx(hits)
        assert one.sentence.startswith("Every token but the " if hits == 1 else "Of all tokens but the ")


def test_words_that_look_for_each_other(found, maps, view):
    pieces = view.encoding.pieces
    repeated = [at for at, piece in enumerate(pieces) if pieces.count(piece) > 1]
    assert {pieces[at] for at in repeated} == {"the", "bank"}
    others = [[key for key in repeated if key != at and pieces[key] == pieces[at]] for at in repeated]
    masses = np.array([maps[:, :, at, keys].sum(-1) for at, keys in zip(repeated, others, strict=True)]).mean(
        0
    )
    one = found["same"]
    assert np.unravel_index(masses.argmax(), masses.shape) == (one.layer, one.head)
    assert one.value == pytest.approx(masses.max(), abs=0.01)
    assert one.value <= masses.max() + 1e-5  # a lower bound
    assert one.baseline == pytest.approx(np.mean([len(keys) for keys in others]) / len(pieces))
    assert one.tokens == tuple(repeated)


def test_the_strongest_edge_between_words(found, maps, view):
    pieces = view.encoding.pieces
    best = (0.0, None)
    for query, word in enumerate(pieces):
        for key, other in enumerate(pieces):
            if abs(query - key) > 1 and word != other and word.isalpha() and other.isalpha():
                at = maps[:, :, query, key]
                best = max(best, (at.max(), (*np.unravel_index(at.argmax(), at.shape), query, key)))
    one = found["edge"]
    assert (one.layer, one.head, one.query, one.key) == best[1]
    assert one.value == pytest.approx(best[0], abs=1e-5)
    assert f"“{view.encoding.surface(one.query)}”" in one.sentence


def test_the_sink(found, maps, view):
    received = maps.mean((0, 1, 2))
    one = found["sink"]
    assert one.key == received.argmax() == 0
    assert one.value == pytest.approx(received[0], abs=1e-6)
    assert one.baseline == 1 / len(view)
    assert [bar.value for bar in one.bars] == pytest.approx(np.sort(received)[::-1][:5], abs=1e-6)
    idle = [head for head in sinks(view.statistics()).heads if head.token == 0 and head.type == "no-op"]
    assert f"In {len(idle)} of 72 heads" in one.sentence
    assert f"{received[0] * len(view):.1f} times" in one.sentence


def test_entropies_and_distances(found, maps, view):
    shares = entropy_shares(maps)
    one = found["diffuse"]
    assert np.unravel_index(shares.argmax(), shares.shape) == (one.layer, one.head)
    assert one.value == pytest.approx(shares.max(), abs=1e-5)
    of_layers = shares.mean(-1)
    assert found["layers"].layer == of_layers.argmax()
    assert [bar.value for bar in found["layers"].bars] == pytest.approx(of_layers, abs=1e-5)
    assert f"layer {of_layers.argmin()} focus most" in found["layers"].sentence
    length = maps.shape[-1]
    apart = np.abs(np.subtract.outer(np.arange(length), np.arange(length)))
    distances = (maps * apart).sum(-1).mean(-1)
    distances[maps[..., view.encoding.special].sum(-1).mean(-1) >= 0.5] = 0
    far = found["distance"]
    assert np.unravel_index(distances.argmax(), distances.shape) == (far.layer, far.head)
    assert far.value == pytest.approx(distances.max(), abs=1e-4)
    assert far.baseline == pytest.approx(apart.mean())


def test_labels_are_all_counted(found):
    one = found["labels"]
    assert sum(bar.value for bar in one.bars) == 72
    numbers = [int(word) for word in one.sentence.replace(",", "").split() if word.isdigit()]
    assert numbers[0] == sum(numbers[1:]) == 72


def test_heads_that_are_all_diffuse_are_told_in_one_sentence():
    def told(*kinds):
        names = SimpleNamespace(token=lambda _: "[CLS]")
        heads = {(0, head): SimpleNamespace(label=kind) for head, kind in enumerate(kinds)}
        (one,) = labels(SimpleNamespace(tokens=50, count=len(kinds), names=names, labels=heads))
        return one.sentence

    even = "All 3 heads spread their attention almost evenly, as untrained weights do."
    assert told("diffuse", "diffuse", "diffuse") == even
    assert told("diffuse", "diffuse", "first") == "Of 3 heads, 1 mostly attend to [CLS] and 2 are diffuse."


def test_the_layer_that_changes_states_most(found, view):
    states = [state.double().numpy() for state in view.cache.states]
    cosines = [
        ((a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)).mean()
        for a, b in pairwise(states)
    ]
    one = found["states"]
    assert one.layer == np.argmin(cosines)
    assert (one.value, one.baseline) == pytest.approx((1 - min(cosines), 1 - max(cosines)))
    assert f"is {1 - min(cosines):.2f} on average" in one.sentence
    assert [bar.value for bar in one.bars] == pytest.approx(1 - np.array(cosines))


def test_one_word_in_two_contexts():
    view = unmask.load("unmask-mini").attention(TEXT)
    one = next(one for one in attention_findings(view, view.statistics()).findings if one.kind == "sense")
    banks = [at for at in range(len(view)) if view.encoding.surface(at).strip() == "bank"]
    assert (one.query, one.key) == tuple(banks)
    pairs = [state[banks].double() for state in view.cache.states]
    cosines = [float(torch.nn.functional.cosine_similarity(a, b, dim=0)) for a, b in pairs]
    assert [bar.value for bar in one.bars] == pytest.approx(cosines)
    assert one.layer == np.argmin(cosines) - 1
    assert (one.baseline, one.value) == pytest.approx((cosines[0], min(cosines)))
    assert f"are at {min(cosines):.2f} after layer {one.layer}" in one.sentence
    ends = min(cosines) != cosines[-1]
    assert (f"and end at {cosines[-1]:.2f}" in one.sentence) == ends


def test_the_most_effective_head_is_the_one_that_is_measured(found, view):
    every = ablate_each(view.cache, Embedding())
    one = found["effect"]
    assert np.unravel_index(np.abs(every.effect).argmax(), every.effect.shape) == (one.layer, one.head)
    assert one.value == every.effect[one.layer, one.head]
    assert f"{1 - one.value:.3f}" in one.sentence
    assert "all 72 heads" in one.sentence


def test_in_a_longer_text_the_gradient_chooses_which_heads_are_ablated(model, view, monkeypatch):
    monkeypatch.setattr(states, "ALL_HEADS_COST", 0)
    monkeypatch.setattr(states, "CANDIDATES", 3)
    assert list(most_effective_head(view.cache, Embedding(), "it")) == []  # without gradients
    plain = model.trainable_encoder(replace=False)
    (one,) = most_effective_head(view.cache, Embedding(), "it", encoder=lambda: plain)
    slopes = np.abs(importance(view.cache, Embedding(), encoder=plain).slopes)
    chosen = [np.unravel_index(at, slopes.shape) for at in np.argsort(-slopes, axis=None)[:3]]
    measured = {head: ablate(view.cache, Embedding(), *map(int, head)).effect for head in chosen}
    best = max(measured, key=lambda head: abs(measured[head]))
    assert (one.layer, one.head) == best
    assert one.value == measured[best]
    assert "of the 3 of 72 heads that a gradient estimate chose" in one.sentence
    monkeypatch.setattr(states, "MOST_TOKENS", 3)
    assert list(most_effective_head(view.cache, Embedding(), "it", encoder=lambda: plain)) == []


def test_a_masked_word_and_the_layer_that_decides_it():
    model = unmask.load("unmask-mini")
    encoding = model.tokenize(TEXT)
    token = next(at for at in range(len(encoding)) if encoding.surface(at).strip() == "river")
    hidden = masked(encoding, [token], model.tokenizer)
    cache = ActivationCache.of(model.encoder, hidden)
    decode = lambda id: model.tokenizer.engine.decode([id])  # noqa: E731
    (one,) = decided_word(cache, token, encoding, decode)
    filled = model.fill("The [MASK] bank was muddy, so we took the money to the bank.", top_k=1)[
        0
    ].predictions[0]
    assert one.value == pytest.approx(filled.probability, abs=1e-5)
    assert f"“{filled.text.strip()}”" in one.sentence
    assert one.sentence.startswith("With “river” masked")
    firsts = []
    for state in cache.states:
        final = cache.encoder.final_norm(state[token : token + 1])
        with torch.no_grad():
            logits = cache.encoder.logits("masked", final, cache.batch.layout)[0]
        firsts.append(decode(int(logits.argmax())))
    level = len(firsts)
    while level and firsts[level - 1].strip() == filled.text.strip():
        level -= 1
    assert (f"from layer {level - 1} on" if level else "at every layer") in one.sentence
    target = Word(token, int(encoding.ids[token]))
    (effect,) = most_effective_head(cache, target, "“river”")
    every = ablate_each(cache, target)
    assert effect.value == every.effect[effect.layer, effect.head]
    assert abs(effect.value) == np.abs(every.effect).max()
    before, after = np.exp(every.before), np.exp(every.before - effect.value)
    assert ("falls" if after < before else "rises") in effect.sentence


def test_a_prediction_that_would_be_printed_as_zero_is_left_out(monkeypatch):
    model = unmask.load("unmask-mini")
    encoding = model.tokenize(TEXT)
    cache = ActivationCache.of(model.encoder, masked(encoding, [3], model.tokenizer))
    assert list(decided_word(cache, 3, encoding, str))
    lens = states.logit_lens

    def faint(*arguments, **options):
        found = lens(*arguments, **options)
        return replace(found, followed=found.followed * 1e-4)

    monkeypatch.setattr(states, "logit_lens", faint)
    assert list(decided_word(cache, 3, encoding, str)) == []


def test_similarity_of_layers_needs_thirty_tokens(model, found):
    assert "cka" not in found
    view = model.attention(LONG)
    finding = next(finding for finding in overview(view).findings if finding.kind == "cka")
    dense = cka([state.double().numpy() for state in view.cache.states])
    np.testing.assert_allclose(finding.matrix, dense.debiased)
    assert finding.value == dense.debiased[0, -1]
    assert finding.baseline == np.diag(dense.debiased, 1).min()
    assert len(finding.bars) == len(finding.matrix) == 7


def test_split_words(model):
    view = model.attention("Antidisestablishmentarianism is unputdownable.")
    finding = next(finding for finding in overview(view).findings if finding.kind == "split")
    assert finding.value == pytest.approx(2 / 3)
    assert "2 of 3 words" in finding.sentence
    assert "most of all “Antidisestablishmentari" in finding.sentence
    assert "".join(bar.label for bar in finding.bars).casefold() == "antidisestablishmentarianism"


def test_what_does_not_hold_is_left_out(model):
    kinds = {one.kind for one in overview(model.attention("Hi")).findings}
    assert kinds.isdisjoint(
        {"previous", "next", "same", "edge", "split", "cka", "sense", "diffuse", "labels"}
    )
    once = {one.kind for one in overview(model.attention("Every word here occurs only once.")).findings}
    assert "same" not in once


def test_findings_come_in_their_order_and_only_of_measured_layers(view):
    assert [finding.kind for finding in overview(view).findings] == sorted(
        (finding.kind for finding in overview(view).findings), key=ORDER.index
    )
    fresh = FakeModel().attention("the river bank was muddy and the bank was")
    none = attention_findings(fresh, fresh.open_statistics())
    assert none.layers_measured == 0
    assert {finding.kind for finding in none.findings} <= {"sense", "states", "split"}
    fresh.open_statistics().measure(layers=(1,))
    some = attention_findings(fresh, fresh.open_statistics())
    assert (some.layers, some.layers_measured) == (3, 1)
    assert {finding.layer for finding in some.findings if finding.head is not None} <= {1}


@pytest.mark.parametrize("name", SPECS)
def test_every_kind_of_encoder(name):
    view = AttentionView(random_encoder(SPECS[name]), dense.random_text(40))
    for finding in overview(view).findings:
        assert np.isfinite(finding.value)
        assert finding.sentence.endswith(".")
        linear = (
            finding.head is not None and finding.kind != "effect" and view.kind(finding.layer) == "kernel"
        )
        assert ("linear attention implies" in finding.sentence) == linear


def test_it_can_be_stopped():
    def stop(what, done, total):
        raise Cancelled("enough")

    with pytest.raises(Cancelled):
        overview(FakeModel().attention("the river bank"), watch=stop)


def test_the_command_prints_the_sentences(capsys, found):
    look(TEXT, overview=True, json=True)
    printed = json.loads(capsys.readouterr().out)
    assert [finding["sentence"] for finding in printed["findings"]] == [
        finding.sentence for finding in found.values()
    ]
    look(TEXT, overview=True)
    shown = " ".join(capsys.readouterr().out.split())
    for finding in found.values():
        assert f"- {finding.sentence}" in shown
    with pytest.raises(InvalidRequest, match="--layer 3"):
        look(TEXT, overview=True, layer=3)
