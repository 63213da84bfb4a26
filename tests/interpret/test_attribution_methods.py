"""Gradients on the input equal finite differences, and integrated gradients add up to what they explain."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import unmask
from tests.support.heads import decoded_spec, recorded
from tests.support.specs import SPECS
from tests.support.tiny import tiny_bert, write_checkpoint
from unmask.errors import InvalidRequest
from unmask.interpret.effects import attribution as module
from unmask.interpret.effects.ablation import importance
from unmask.interpret.effects.attribution import attribution, baseline_states, named_baseline
from unmask.interpret.effects.intervention import InterventionRun
from unmask.interpret.effects.target import (
    Class,
    Embedding,
    StateFunction,
    TargetScore,
    TokenClasses,
    Word,
)
from unmask.text import PackedBatch

pytestmark = pytest.mark.long

N = 11
TARGETS = (
    Word(5, 31),
    Class("tokens", 2, 7),
    Class("sequence", 1),
    TokenClasses("tokens", (7, 3), (2, 0)),
    StateFunction(lambda x_SND: (x_SND[:, 2] * x_SND[:, 4]).sum(-1), (2, 4)),
    Embedding(),
    Embedding(("cls",)),
    Embedding(token=9),
)


def value(cache, target, x_ND, scale="logit"):
    return float(InterventionRun(cache).score_from(TargetScore(cache, target), 0, x_ND, scale)[0])


def slope(cache, target, direction_ND, scale="logit", step=1e-5):
    """How the target changes along a direction of the first layer's input, by central differences."""
    x_ND = cache.states[0]
    up, down = (value(cache, target, x_ND + sign * step * direction_ND, scale) for sign in (1, -1))
    return (up - down) / (2 * step)


@pytest.mark.parametrize("name", SPECS)
def test_input_x_gradient_is_the_slope_along_each_token(name):
    cache = recorded(name, N)
    for target in TARGETS:
        values = attribution(cache, target, method="input_x_gradient").values
        for token in (0, 4, 9):
            direction_ND = torch.zeros_like(cache.states[0])
            direction_ND[token] = cache.states[0][token]
            expected = slope(cache, target, direction_ND)
            np.testing.assert_allclose(values[token], expected, rtol=2e-4, atol=2e-7)


ROUGH = dict.fromkeys(("normed-whole", "scaled", "sandwich", "narrow", "gated"), 0.03)
"""Bounds of the gap where gradients jump (relu) or change fast along the path, in 200 steps."""


@pytest.mark.parametrize("name", [name for name in SPECS if name not in ("experts", "sinks")])  # choices jump
def test_integrated_gradients_are_complete(name):
    cache = recorded(name, N)
    toward = Embedding(toward=tuple(cache.final_ND.flip(0)[0].tolist()))
    for target in (*TARGETS, toward):
        found = attribution(cache, target, method="integrated_gradients", baseline=3, steps=200)
        path = found.completeness
        start_ND = baseline_states(cache, 3)
        assert path.at_text == pytest.approx(value(cache, target, cache.states[0]), abs=1e-12)
        assert path.at_baseline == pytest.approx(value(cache, target, start_ND), abs=1e-12)
        # In causal attention the first token, which is special and stays, reads nothing else.
        same = name == "causal" and target == Embedding(("cls",))
        assert (abs(path.at_text - path.at_baseline) > 1e-3) != same
        assert path.gap == pytest.approx(found.values.sum() - path.at_text + path.at_baseline, abs=1e-12)
        assert abs(path.gap) < ROUGH.get(name, 2e-3) * max(1, abs(path.at_text - path.at_baseline))
        assert found.by_layer is None


# In the two left out the text has a token that takes no place, and the baseline keeps the places of the text.
@pytest.mark.parametrize("name", [name for name in SPECS if name not in ("windows-globals", "relative")])
def test_a_baseline_is_what_the_embedding_gives_its_tokens(name):
    """With mask tokens as dropped inputs, too: other tokens of the baseline are scaled by its own share."""
    cache = recorded(name, N)
    dropout = cache.encoder.spec.embedding.token_dropout
    for token in {11, 11 if dropout is None else dropout.mask_id}:
        ids_N = np.where(cache.encoding.special, cache.encoding.ids, token)
        batch = PackedBatch.of_ids([ids_N], [cache.encoding.token_type_ids])
        with torch.no_grad():
            expected_ND = cache.encoder.embedding(
                *map(torch.from_numpy, (batch.ids_T, batch.token_type_ids_T)), batch.layout
            )
        torch.testing.assert_close(baseline_states(cache, token), expected_ND, rtol=0, atol=1e-12)


def test_integrated_gradients_are_the_integral_of_slopes(monkeypatch):
    """Three points of Gauss and Legendre are exact for polynomials of degree 5; sums are made by hand."""
    monkeypatch.setattr(module, "TOKENS_AT_ONCE", 2 * N)  # several batches
    cache, target = recorded("post-norm", N), Class("sequence", 1)
    found = attribution(cache, target, method="integrated_gradients", steps=3)
    x_ND = cache.states[0]
    expected = np.zeros(N)
    for node, share in zip((-np.sqrt(0.6), 0.0, np.sqrt(0.6)), (5 / 18, 8 / 18, 5 / 18), strict=True):
        point_ND = ((node + 1) / 2 * x_ND).requires_grad_()
        run = InterventionRun(cache)
        with torch.enable_grad():
            state_ND = point_ND
            for layer in range(cache.layer_count):
                state_ND = run.layer(layer, state_ND)
            logit = cache.encoder.logits("sequence", state_ND, cache.batch.layout)[0, 1]
            (gradient_ND,) = torch.autograd.grad(logit, [point_ND])
        expected += share * (x_ND * gradient_ND).sum(-1).numpy()
    np.testing.assert_allclose(found.values, expected, rtol=1e-9)


def test_more_steps_bring_the_sum_nearer():
    cache = recorded("rotary-windows", N)
    gaps = [
        abs(
            attribution(
                cache, Word(5, 31), method="integrated_gradients", baseline=3, steps=steps
            ).completeness.gap
        )
        for steps in (2, 100)
    ]
    assert gaps[1] < gaps[0] / 10


def test_special_tokens_keep_their_own_state_in_a_baseline_of_a_token():
    cache = recorded("post-norm", N)
    special = np.flatnonzero(cache.encoding.special)
    own = [token for token in range(N) if token not in special]
    start_ND = baseline_states(cache, 3)
    kept = (start_ND == cache.states[0]).all(-1).numpy()
    assert kept[special].all()
    assert not kept[[token for token in own if cache.encoding.ids[token] != 3]].any()
    found = attribution(cache, Class("sequence", 1), method="integrated_gradients", baseline=3)
    assert (found.values[special] == 0).all()
    assert (baseline_states(cache, "zero") == 0).all()


@pytest.mark.parametrize("name", SPECS)
def test_attention_x_gradient_adds_up_to_the_slopes_of_the_heads(name):
    """``sum_j P_ij dy/dP_ij = o_i . dy/do_i``; elu+1 has a constant in its divisor, hence the tolerance."""
    cache = recorded(name, N)
    for target in (Word(5, 31), Class("sequence", 1), Embedding()):
        found = attribution(cache, target, method="attention_x_gradient", scale="log-probability")
        slopes = importance(cache, target).slopes.sum(1)
        np.testing.assert_allclose(found.by_layer.sum(1), slopes, rtol=2e-3, atol=1e-8)
        np.testing.assert_allclose(found.values, found.by_layer.sum(0), rtol=1e-12)
        assert found.values.min() < 0 or found.values.max() > 0


def test_methods_through_an_enhanced_mask_decoder():
    cache = recorded("", N, spec=decoded_spec())
    target = Word(3, 1)
    values = attribution(cache, target, method="input_x_gradient").values
    direction_ND = torch.zeros_like(cache.states[0])
    direction_ND[6] = cache.states[0][6]
    np.testing.assert_allclose(values[6], slope(cache, target, direction_ND), rtol=2e-4, atol=1e-8)
    whole = attribution(cache, target, method="integrated_gradients", baseline=5, steps=100)
    assert abs(whole.completeness.gap) < 1e-4
    found = attribution(cache, target, method="attention_x_gradient", scale="log-probability")
    slopes = importance(cache, target).slopes.sum(1)
    np.testing.assert_allclose(found.by_layer.sum(1), slopes, rtol=1e-6, atol=1e-9)


def test_a_word_can_be_explained_by_its_log_probability():
    cache, word = recorded("post-norm", N), Word(5, 31)
    for method in ("input_x_gradient", "integrated_gradients", "attention_x_gradient"):
        logit = attribution(cache, word, method=method)
        logarithm = attribution(cache, word, method=method, scale="log-probability")
        assert (logit.unit, logarithm.unit) == ("logit", "log-probability in nats")
        assert np.abs(logit.values - logarithm.values).max() > 1e-6
        assert logit.method == method


def test_names_of_baselines(tmp_path):
    model = unmask.load(write_checkpoint(tmp_path / "tiny", tiny_bert("BertForMaskedLM")))
    tokenizer = model.tokenizer
    assert named_baseline("zero", tokenizer) == "zero"
    assert named_baseline("mask", tokenizer) == tokenizer.mask_id
    assert named_baseline("pad", tokenizer) == tokenizer.token_to_id("[PAD]")
    with pytest.raises(InvalidRequest, match="baseline is 'unk'"):
        named_baseline("unk", tokenizer)
    bare = replace(tokenizer, special_tokens={})
    with pytest.raises(InvalidRequest, match="has no pad token; take baseline='zero'"):
        named_baseline("pad", bare)


def test_what_cannot_be_asked_is_refused():
    cache = recorded("post-norm", 5)
    for words, named in (
        ("method is 'deeplift'", {"method": "deeplift"}),
        ("baseline is 'mask'; it can be 'zero' or the id", {"baseline": "mask"}),
        ("words 0 to 96", {"baseline": 97}),
        ("steps", {"steps": 0}),
    ):
        with pytest.raises(InvalidRequest, match=words):
            attribution(cache, Class("sequence", 1), **{"method": "integrated_gradients"} | named)
