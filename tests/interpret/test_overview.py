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
from unmask.interpret.corpus.statistics import HeadTotals
from unmask.interpret.effects.ablation import ablate, ablate_each, importance
from unmask.interpret.effects.target import Embedding, Word
from unmask.interpret.geometry.cka import cka
from unmask.interpret.overview import states
from unmask.interpret.overview.figures import COMPARED, TYPICAL, figure, ranked
from unmask.interpret.overview.finding import Finding, Names, percent
from unmask.interpret.overview.heads import MeasuredHeads, focused, labels
from unmask.interpret.overview.overview import attention_findings, looks_untrained, overview
from unmask.interpret.overview.states import decided_word, layer_similarity, most_effective_head
from unmask.text.tokenizer import masked

pytestmark = pytest.mark.long

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


def test_entropy_by_layer(found, maps):
    of_layers = entropy_shares(maps).mean(-1)
    assert found["layers"].layer == of_layers.argmax()
    assert [bar.value for bar in found["layers"].bars] == pytest.approx(of_layers, abs=1e-5)
    assert f"layer {of_layers.argmin()} focus most" in found["layers"].sentence


def test_the_most_focused_head(maps, view):
    """The statistics of all heads but the positional ones, so that another one is the most focused."""
    shares = entropy_shares(maps)
    kept = {(2, 9), (3, 4), (5, 5)}
    least = min(kept, key=lambda head: shares[head])
    measured = MeasuredHeads(
        tuple((at, layer) for at, layer in enumerate(view.statistics().layers)), Names(view.encoding)
    )

    class Few(MeasuredHeads):
        def ranked(self, values_of):
            yield from (one for one in super().ranked(values_of) if one[1] in kept)

    (one,) = focused(Few(measured.layers, measured.names))
    assert (one.layer, one.head) == least
    assert one.value == pytest.approx(shares[least], abs=1e-5)
    assert f"its entropy is {percent(shares[least])} of the maximum" in one.sentence


def test_labels_are_all_counted(found):
    one = found["labels"]
    assert sum(bar.value for bar in one.bars) == 72
    numbers = [int(word) for word in one.sentence.replace(",", "").split() if word.isdigit()]
    assert numbers[0] == sum(numbers[1:]) == 72
    assert one.sentence.startswith("Of 72 heads, taken without special tokens, ")


def test_what_heads_do_is_counted_in_words():
    def said(*kinds, special=(True, False)):
        encoding = SimpleNamespace(special=np.array(special))
        names = SimpleNamespace(token=lambda _: "“The”", encoding=encoding)
        heads = {(0, head): SimpleNamespace(label=kind) for head, kind in enumerate(kinds)}
        (one,) = labels(SimpleNamespace(tokens=50, count=len(kinds), names=names, labels=heads))
        return one.sentence

    assert said("repeat", "first", "special") == (
        "Of 3 heads, taken without special tokens, 1 mostly attend to the same token elsewhere and "
        "2 do little but attend to special tokens."
    )
    assert said("first", "mixed", special=(False, False)) == (
        "Of 2 heads, 1 mostly attend to “The” and 1 have no single pattern."
    )


def test_weights_without_structure_are_said_to_look_untrained_and_nothing_else():
    blank = FakeModel("blank", max_tokens=64, initializer_range=0.02)
    text = "the river bank was muddy and the bank was big " * 3  # long enough to compare layers
    view = blank.attention(text)
    assert list(layer_similarity(view.cache))
    found = overview(view)
    assert looks_untrained(found)
    (one,) = found.findings
    least = view.entropy_share.mean(-1).min()
    assert one.sentence == (
        f"All 12 heads are near uniform, with at least {percent(least)} of the maximum entropy: "
        "these weights look untrained."
    )
    # Of some layers it cannot be said, nor of a model with a single head that is not uniform.
    fresh = blank.attention(text)
    fresh.open_statistics().measure(layers=(0, 1))
    assert not looks_untrained(attention_findings(fresh, fresh.open_statistics()))
    layer = fresh.open_statistics().layer(2)
    layer.entropy_share_HN[3] = 0.5
    assert not looks_untrained(attention_findings(fresh, fresh.open_statistics()))


def test_also_names_only_heads_that_do_the_same(view, found):
    """A head that mostly rests on [CLS] is named by what it does else, and is not told of beside 0.2."""
    for kind in ("previous", "next", "punctuation"):
        measured = MeasuredHeads(
            tuple((at, layer) for at, layer in enumerate(view.statistics().layers)), Names(view.encoding)
        )
        for head in measured.giving(kind):
            assert measured.mass(head, kind) >= 0.5
        named = [head for head, label in measured.labels.items() if label.label == kind]
        assert set(measured.giving(kind)) <= set(named)


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
    assert kinds.isdisjoint({"previous", "next", "same", "edge", "split", "cka", "sense", "labels"})
    once = {one.kind for one in overview(model.attention("Every word here occurs only once.")).findings}
    assert "same" not in once


def test_findings_are_only_of_measured_layers():
    fresh = FakeModel().attention("the river bank was muddy and the bank was")
    none = attention_findings(fresh, fresh.open_statistics())
    assert none.layers_measured == 0
    assert {finding.kind for finding in none.findings} <= {"sense", "states", "split"}
    fresh.open_statistics().measure(layers=(1,))
    some = attention_findings(fresh, fresh.open_statistics())
    assert (some.layers, some.layers_measured) == (3, 1)
    assert {finding.layer for finding in some.findings if finding.head is not None} <= {1}


def test_without_other_texts_kinds_have_a_fixed_order(view):
    findings = overview(view).findings
    assert {(one.surprise, one.compared) for one in findings} == {(None, 0)}
    typical = [TYPICAL[one.kind] for one in findings]
    assert typical == sorted(typical, reverse=True)
    assert {findings[0].kind, findings[1].kind} == {"edge", "same"}
    assert findings[-1].kind == "previous"


OTHERS = (
    "The boat left the harbor and the boat came back.",
    "Nobody knew where the old man lived, or why he never spoke.",
    "She took the money to the bank, and the bank was closed.",
    "Rain fell on the roof all night.",
    "“Yes,” he said, “it is late.”",
)


def at_least(model, kind, head, value):
    """In how many of the texts a head does as much, by the overview's own definition on each text alone."""
    count = 0
    for text in OTHERS:
        view = model.attention(text)
        p = view.probabilities(*head).astype(np.float64)
        names, length = Names(view.encoding), len(view)
        of, group = names.words.of_token, names.repeated_N
        i, j = np.indices(p.shape)
        word = names.wordlike[of]
        surface = np.array([names.same_as(number) for number in of])
        edges = (abs(of[i] - of[j]) > 1) & word[i] & word[j] & (surface[i] != surface[j])
        twins = (group[i] == group[j]) & (group[i] >= 0) & (of[i] != of[j])
        entropy = -(p * np.log(np.maximum(p, 1e-300))).sum(-1).mean() / np.log(length)
        figures = {
            "previous": (p.argmax(-1)[1:] == np.arange(length - 1)).mean(),
            "next": (p.argmax(-1)[:-1] == np.arange(1, length)).mean(),
            "edge": (p * edges).max(),
            "same": (p * twins).sum() / max(1, (group >= 0).sum()) if (group >= 0).any() else None,
            "punctuation": p[:, names.punctuation_N].sum() / length,
            "focused": 1 - entropy,
        }
        figure = figures[kind]
        count += figure is not None and np.floor(100 * figure + 1e-4) >= np.floor(100 * value + 1e-4)
    return int(count)


@pytest.mark.parametrize("kind", COMPARED)
@pytest.mark.parametrize("head", [(0, 2), (1, 8), (2, 9)])
def test_surprise_counts_the_texts_in_which_the_same_head_does_less(model, others, kind, head):
    for value in (0.07, 0.23, 0.4, 0.66, 0.98):
        stated = 1 - value if kind == "focused" else value
        (one,) = ranked([Finding(kind, "", stated, layer=head[0], head=head[1])], others.figures)
        assert one.compared == len(OTHERS)
        assert one.surprise == pytest.approx(1 - at_least(model, kind, head, value) / len(OTHERS))


@pytest.fixture(scope="module")
def others(model):
    return model.attention_over(list(OTHERS))


def test_a_word_that_drifts_apart_is_compared_with_words_of_other_texts(model, others):
    falls = []
    for text in OTHERS:
        view = model.attention(text)
        apart = states.drift(view.cache.states, Names(view.encoding))
        falls.append(None if apart is None else apart.cosines[0] - min(apart.cosines))
    assert falls.count(None) == 3
    for fall in (0.0, 0.03, 0.1, 0.15, 0.4):
        (one,) = ranked([Finding("sense", "", 0.9 - fall, baseline=0.9, layer=2)], others.figures)
        less = sum(other is None or np.floor(100 * other) < np.floor(100 * fall + 1e-4) for other in falls)
        assert one.surprise == pytest.approx(less / len(OTHERS))


def test_the_rarest_comes_first_and_what_is_true_of_all_texts_last(view, others):
    findings = overview(view, corpus=others.figures).findings
    rarity = [TYPICAL[one.kind] if one.surprise is None else one.surprise for one in findings]
    assert rarity == sorted(rarity, reverse=True)
    assert {one.kind for one in findings if one.compared} == {
        one.kind for one in findings if figure(one) is not None
    }
    first = findings[0]
    assert first.kind in ("same", "edge", "sense")
    assert first.surprise > 0.5
    # Head 0.2 attends to the previous token in every text.
    assert (findings[-1].kind, findings[-1].surprise) == ("previous", 0)


def test_a_corpus_of_another_model_is_refused(view):
    other = FakeModel().attention_over(["the river bank", "the bank was muddy"])
    with pytest.raises(InvalidRequest, match="3 layers of 4 heads, and this text by one with a head"):
        overview(view, corpus=other.figures)


def test_a_corpus_of_which_nothing_is_read_changes_nothing(view, others):
    nothing = HeadTotals.empty(6, 12).figures
    assert overview(view, corpus=nothing) == overview(view) != overview(view, corpus=others.figures)


def test_a_word_that_drifts_apart_in_the_middle_is_found(model):
    """The cosine of the two “bank” falls and rises again; the level of the largest fall is named."""
    view = model.attention(TEXT)
    one = next(one for one in overview(view).findings if one.kind == "sense")
    cosines = [bar.value for bar in one.bars]
    assert cosines[0] - cosines[-1] < states.DRIFT < cosines[0] - min(cosines)
    assert one.layer == int(np.argmin(cosines)) - 1
    assert f"after layer {one.layer}" in one.sentence


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
