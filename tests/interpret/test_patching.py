"""A patch is what replacing a tensor by hand gives; patching everything gives the clean text."""

import numpy as np
import pytest
import torch

from tests.support import dense
from tests.support.heads import decoded_spec, spec_with_heads
from tests.support.specs import SPECS, global_tokens, random_encoder
from unmask.encoder.hooks import HookPoint
from unmask.errors import Cancelled, InvalidRequest
from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.effects import patching as module
from unmask.interpret.effects.patching import patch_activations
from unmask.interpret.effects.target import Class, Embedding, TargetScore, Word

N = 9
TARGETS = (Word(5, 31), Class("tokens", 2, 7), Class("sequence", 1), Embedding())
POINTS = {"attention_output": HookPoint.ATTENTION, "feedforward_output": HookPoint.FEEDFORWARD}


def pair_of(name, spec=None, changed=(3, 4), length=N):
    """A text, and the same with other words at some tokens, in one encoder."""
    encoder = random_encoder(spec or spec_with_heads(name), dtype=torch.float64)
    clean = dense.random_text(length)
    ids = clean.ids.copy()
    ids[list(changed)] = (ids[list(changed)] + 7) % 90 + 1
    corrupted = clean.with_pieces(ids, list(clean.pieces))
    return [
        ActivationCache.of(encoder, text, global_tokens=lambda _: global_tokens(length))
        for text in (clean, corrupted)
    ]


def by_hand(clean, corrupted, target, point, layer, change):
    """The target with ``change(own, clean's)`` made to a tensor in a whole forward pass."""
    encoder, batch = corrupted.encoder, corrupted.batch
    kept = {}
    encoder.encode(clean.batch, hook=lambda at, of, x: kept.update({(at, of): x}))

    def hook(at, of, x):
        return change(x.clone(), kept[at, of]) if (at, of) == (point, layer) else None

    states = []

    def record(at, of, x):
        y = hook(at, of, x)
        if at is HookPoint.LAYER:
            states.append(x if y is None else y)
        return y

    encoder.encode(batch, hook=record)
    if isinstance(target, Embedding):
        before, after = clean.final_ND.mean(0), encoder.finished(states[-1]).mean(0)
        return float(torch.nn.functional.cosine_similarity(before, after, dim=0).detach())
    return float(TargetScore(corrupted, target).value(states[-1], "logit").detach())


@pytest.mark.parametrize("name", SPECS)
def test_a_state_patched_is_a_row_replaced(name, monkeypatch):
    monkeypatch.setattr(module, "TOKENS_AT_ONCE", 4 * N)  # several batches
    clean, corrupted = pair_of(name)
    layers = clean.layer_count
    for target in TARGETS:
        found = patch_activations(clean, corrupted, target)
        assert found.values.shape == (layers + 1, N)
        for level, token in ((0, 3), (1, 4), (1, 0), (layers, 7)):

            def change(x, own, token=token):
                x[token] = own[token]
                return x

            point = HookPoint.LAYER if level else HookPoint.EMBEDDED
            expected = by_hand(clean, corrupted, target, point, max(level - 1, 0), change)
            np.testing.assert_allclose(found.values[level, token], expected, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(
            found.effect, (found.values - found.corrupted) / (found.clean - found.corrupted)
        )


@pytest.mark.parametrize("name", SPECS)
def test_outputs_of_a_layer_and_of_its_heads(name):
    clean, corrupted = pair_of(name)
    target = Class("sequence", 1)
    for part, point in POINTS.items():
        found = patch_activations(clean, corrupted, target, part=part)
        assert found.values.shape == (clean.layer_count, N)

        def change(x, own):
            x[6] = own[6]
            return x

        expected = by_hand(clean, corrupted, target, point, 1, change)
        np.testing.assert_allclose(found.values[1, 6], expected, rtol=1e-9, atol=1e-9)
    heads = clean.heads(1)
    for tokens in (None, (2, 5)):
        found = patch_activations(clean, corrupted, target, part="head_output", tokens=tokens)
        where = list(range(N) if tokens is None else tokens)
        for head in range(heads):

            def change(x, own, head=head, where=where):
                x[where, head] = own[where, head]
                return x

            expected = by_hand(clean, corrupted, target, HookPoint.MIXED, 1, change)
            np.testing.assert_allclose(found.values[1, head], expected, rtol=1e-9, atol=1e-9)


def test_both_ends_of_the_scale():
    """The changed token at the input is all that differs: its effect is 1, and that of all others is 0."""
    clean, corrupted = pair_of("post-norm", changed=(4,))
    for target in TARGETS:
        found = patch_activations(clean, corrupted, target)
        np.testing.assert_allclose(found.effect[0, 4], 1, atol=1e-9)
        np.testing.assert_allclose(np.delete(found.effect[0], 4), 0, atol=1e-9)
        assert found.clean != found.corrupted
    assert patch_activations(clean, corrupted, Embedding()).clean == pytest.approx(1, abs=1e-12)
    own = patch_activations(clean, corrupted, Class("tokens", 2, 7)).effect[-1]
    np.testing.assert_allclose(own, np.eye(N)[7], atol=1e-9)
    found = patch_activations(clean, corrupted, Word(5, 31))
    assert found.effect[found.strongest()] == found.effect.max() >= 1


def test_the_enhanced_mask_decoder_reads_one_level_less():
    clean, corrupted = pair_of("", decoded_spec(), changed=(4,))
    found = patch_activations(clean, corrupted, Word(3, 1))
    assert found.values.shape == (clean.layer_count, N)
    np.testing.assert_allclose(found.effect[0, 4], 1, atol=1e-9)
    heads = patch_activations(clean, corrupted, Word(3, 1), part="head_output")
    assert heads.values.shape[0] == clean.layer_count - 1


def test_a_log_probability_and_its_unit():
    clean, corrupted = pair_of("post-norm")
    logit, logarithm = (
        patch_activations(clean, corrupted, Word(5, 31), scale=scale)
        for scale in ("logit", "log-probability")
    )
    assert (logit.unit, logarithm.unit) == ("logit", "log-probability in nats")
    assert logarithm.clean < 0
    assert abs(logit.clean - logarithm.clean) > 1e-3


def test_what_cannot_be_patched_is_refused():
    clean, corrupted = pair_of("post-norm")
    longer, _ = pair_of("post-norm", length=N + 2)
    same = ActivationCache.of(clean.encoder, longer.encoding)
    for words, arguments, named in (
        ("clean text has 9 tokens and the corrupted one 11", (clean, same), {}),
        ("read by two encoders", (clean, longer), {}),
        ("on both texts, so there is no change", (clean, clean), {}),
        ("part is 'state'", (clean, corrupted), {"part": "state"}),
        ("tokens 0 to 8", (clean, corrupted), {"tokens": [9]}),
    ):
        with pytest.raises(InvalidRequest, match=words):
            patch_activations(*arguments, Class("sequence", 1), **named)


def test_it_reports_and_stops():
    clean, corrupted = pair_of("post-norm")
    reports = []
    patch_activations(clean, corrupted, Embedding(), watch=lambda *report: reports.append(report))
    assert reports[-1] == ("patching", 4 * N, 4 * N)

    def stop(*_):
        raise Cancelled("enough")

    with pytest.raises(Cancelled):
        patch_activations(clean, corrupted, Embedding(), watch=stop)
