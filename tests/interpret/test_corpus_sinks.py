"""Sinks over a corpus against whole maps in float64; values taken away against hooks in `transformers`."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM

import unmask
from tests.support import dense
from tests.support.command import assert_one_sentence, run_here
from tests.support.specs import SPECS, global_tokens, random_encoder
from tests.support.tiny import tiny_bert, write_checkpoint
from unmask.errors import Cancelled, InvalidRequest
from unmask.interpret import ActivationCache
from unmask.interpret.corpus import sinks
from unmask.interpret.corpus.sinks import KINDS, corpus_sinks, kinds_of, remove_values
from unmask.interpret.corpus.texts import Corpus
from unmask.interpret.effects.ablation import without_values
from unmask.interpret.effects.intervention import InterventionRun
from unmask.text.tokenizer import masked

LENGTHS = (9, 9, 14, 5)


class Texts:
    """A tokenizer of texts that are ready."""

    def encode_batch(self, texts, **_):
        return [dense.random_text(LENGTHS[int(text)], int(text)) for text in texts]


@pytest.mark.parametrize("name", SPECS)
def test_shares_are_those_of_whole_maps_in_float64(name):
    encoder = random_encoder(SPECS[name], dtype=torch.float64)
    corpus = Corpus.of_strings([str(number) for number in range(len(LENGTHS))])
    measured = corpus_sinks(encoder, Texts(), corpus, epsilon=0.2)
    for number, text in enumerate(corpus.texts):
        encoding = Texts().encode_batch([text.text])[0]
        cache = ActivationCache.of(encoder, encoding)
        comma = np.array([piece == "," for piece in encoding.pieces]) & ~encoding.special
        at = np.arange(len(encoding))
        kinds = [at == 0, encoding.special & (at > 0), comma & (at > 0)]
        kinds.append(~np.any(kinds, axis=0))
        np.testing.assert_array_equal(kinds_of(encoding), np.stack(kinds, axis=1))
        np.testing.assert_allclose(measured.tokens_SX[number], [kind.mean() for kind in kinds])
        for layer, (p, _, _) in enumerate(dense.maps(encoder, encoding, cache.globals_N)):
            for head in range(len(p)):
                received = p[head].mean(0)
                place = number, layer, head
                np.testing.assert_allclose(
                    measured.received_SLHX[place], [received[kind].sum() for kind in kinds], atol=1e-6
                )
                top = received.argmax()
                expected = [bool(kind[top]) and received[top] > 0.2 for kind in kinds]
                assert measured.sink_SLHX[place].tolist() == expected
    if name != "sinks":
        np.testing.assert_allclose(measured.received_SLHX.sum(-1)[..., : measured.heads_L[0]], 1, atol=1e-5)


def test_means_and_intervals_are_over_texts_and_real_heads():
    """Layers of 2 and 1 heads: the missing head counts nowhere."""
    received = np.zeros((4, 2, 2, len(KINDS)), dtype=np.float32)
    received[:, 0, 0, 0] = [0.1, 0.2, 0.3, 0.4]
    received[:, 0, 1, 0], received[:, 1, 0, 0] = 0.6, 0.8
    made = sinks.CorpusSinks(0.3, 0, received, np.full((4, 4), 0.25), received > 0.5, (2, 1))
    assert made.share("first", 0, 0).value == pytest.approx(0.25)
    assert made.share("first", 0).value == pytest.approx((0.25 + 0.6) / 2)
    assert made.share("first").value == pytest.approx((0.25 + 0.6 + 0.8) / 3)
    assert made.rate("first").value == pytest.approx(2 / 3)
    interval = made.share("first", 0, 0).interval
    assert 0.1 <= interval.low < 0.2
    assert 0.3 < interval.high <= 0.4
    assert made.share("first", 1, 0).interval.low == pytest.approx(0.8)
    for wrong in (("last",), ("first", 1, 1), ("first", 3), ("first", None, 0)):
        with pytest.raises(InvalidRequest):
            made.share(*wrong)


@pytest.mark.parametrize("name", SPECS)
def test_without_any_values_nothing_is_mixed(name):
    encoder, encoding = random_encoder(SPECS[name], dtype=torch.float64), dense.random_text(12)
    cache = ActivationCache.of(encoder, encoding, global_tokens=lambda _: global_tokens(12))
    run, x_ND = InterventionRun(cache), cache.states[0]
    for layer in range(run.layers):
        with torch.no_grad(), run.changed(layer, torch.zeros_like):
            x_ND = run.layer(layer, x_ND)
    linear = any(cache.kind(layer) == "kernel" for layer in range(run.layers))
    atol = 2e-4 if linear else 1e-9  # linear attention adds its eps to the sum that weights are divided by
    torch.testing.assert_close(without_values(cache, range(12)), x_ND, atol=atol, rtol=0)
    torch.testing.assert_close(without_values(cache, []), cache.states[-1], atol=1e-9, rtol=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("sinks") / "tiny"
    return write_checkpoint(made, tiny_bert("BertForMaskedLM"), sentence=False)


@pytest.fixture(scope="module")
def model(folder):
    return unmask.load(folder, dtype="float64")


@pytest.fixture(scope="module")
def reference(folder):
    return AutoModelForMaskedLM.from_pretrained(folder).double().eval()


def their_logits(reference, ids, tokens):
    """`transformers` with the value vectors of some tokens set to 0 in every layer."""

    def without(_, __, v):
        v = v.clone()
        v[:, list(tokens)] = 0
        return v

    layers = reference.bert.encoder.layer
    hooks = [layer.attention.self.value.register_forward_hook(without) for layer in layers]
    try:
        with torch.no_grad():
            return reference(torch.tensor(np.array(ids))[None]).logits[0]
    finally:
        for hook in hooks:
            hook.remove()


@pytest.mark.parametrize("tokens", [(0,), (5,), (0, 3, 7)])
def test_values_taken_away_are_those_of_transformers(model, reference, tokens):
    (encoding,) = model.tokenize(["the river bank was muddy, a text!"])
    encoding = masked(encoding, [2], model.tokenizer)
    cache = ActivationCache.of(model.encoder, encoding)
    asked = sinks._MaskedWord(model.encoder, encoding, 2)
    theirs = their_logits(reference, encoding.ids, tokens)[2].log_softmax(-1)
    plain = their_logits(reference, encoding.ids, ())[2].log_softmax(-1)
    expected = float((plain.exp() * (plain - theirs)).sum())
    assert expected > 1e-4
    assert asked.divergence(np.array(tokens)) == pytest.approx(expected, rel=1e-7)
    assert len(without_values(cache, tokens, layers=2)) == len(encoding)


TEXTS = ["the river bank was muddy, a text!", "another text was muddy.", "a river", "banks"]


def test_removals_are_paired_with_as_many_other_words(model, reference):
    corpus = Corpus.of_strings(TEXTS)
    found = {removal.kind: removal for removal in remove_values(model.encoder, model.tokenizer, corpus)}
    assert list(found) == ["first", "special", "punctuation"]
    # "banks" is one word of several tokens; texts without punctuation are left out there.
    assert found["first"].texts >= 3
    assert found["punctuation"].texts == 2
    assert found["punctuation"].tokens == 1.5
    for removal in found.values():
        assert removal.difference.value == pytest.approx(removal.divergence.value - removal.control.value)
        assert removal.divergence.interval.low <= removal.divergence.value <= removal.divergence.interval.high
        assert min(removal.divergence.value, removal.control.value) >= 0
    again = {removal.kind: removal for removal in remove_values(model.encoder, model.tokenizer, corpus)}
    assert again == found
    other = {
        removal.kind: removal for removal in remove_values(model.encoder, model.tokenizer, corpus, seed=1)
    }
    assert other != found


def test_work_can_be_stopped_and_bad_requests_are_named(model):
    corpus = Corpus.of_strings(TEXTS)

    def stop(*_):
        raise Cancelled("enough")

    for work in (corpus_sinks, remove_values):
        with pytest.raises(Cancelled):
            work(model.encoder, model.tokenizer, corpus, watch=stop)
        with pytest.raises(InvalidRequest, match="limit is 0"):
            work(model.encoder, model.tokenizer, corpus, limit=0)
    with pytest.raises(InvalidRequest, match="epsilon is 1"):
        corpus_sinks(model.encoder, model.tokenizer, corpus, epsilon=1)
    with pytest.raises(InvalidRequest, match="no text of"):
        remove_values(model.encoder, model.tokenizer, Corpus.of_strings(["a", ",!"]))


def test_the_command(folder, tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n")
    ran = run_here("sinks", "-m", folder, "--corpus", path, "--remove", 4, "--json")
    assert ran.code == 0, ran.err
    printed = json.loads(ran.out)
    python = unmask.load(folder)
    measured = corpus_sinks(
        python.encoder, python.tokenizer, Corpus.of_strings(TEXTS), max_tokens=python.max_tokens
    )
    assert [kind["kind"] for kind in printed["kinds"]] == list(KINDS)
    for kind in printed["kinds"]:
        assert kind["share"]["value"] == pytest.approx(measured.share(kind["kind"]).value)
        assert kind["by_head"][1][2]["value"] == pytest.approx(measured.share(kind["kind"], 1, 2).value)
    assert [removal["kind"] for removal in printed["removals"]] == list(KINDS[:3])
    shown = run_here("sinks", "-m", folder, "--corpus", path, "--limit", 2, "--remove", 2).out
    assert "without the values of" in shown
    assert_one_sentence(run_here("sinks", "-m", "default", "--corpus", path, "--remove", 4), "predict")
