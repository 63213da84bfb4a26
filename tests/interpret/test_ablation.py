"""Taking a head away is editing the output projection; gradients are slopes of that; edges are weights."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.heads import decoded_spec, recorded, with_own_layers
from tests.support.specs import SPECS, random_encoder
from unmask.encoder.decoder import decode
from unmask.encoder.hooks import HookPoint
from unmask.encoder.layers.global_attention import GlobalAttention
from unmask.engines.inference import optimize_for_inference
from unmask.errors import InvalidRequest, NonFiniteResult
from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.effects.ablation import ablate, ablate_each, ablate_edge, importance
from unmask.interpret.effects.intervention import InterventionRun
from unmask.interpret.effects.target import Class, Embedding, TokenClasses, Word
from unmask.kernels import reference
from unmask.spec import SlidingWindowGlobal, SoftmaxAttention

pytestmark = pytest.mark.long

N = 23
TARGETS = (
    Word(5, 31),
    Class("tokens", 2, 7),
    Class("sequence", 1),
    Embedding(),
    Embedding(token=9),
    TokenClasses("tokens", (7, 3), (2, 0)),
)
SOFTMAX = [name for name, spec in SPECS.items() if isinstance(spec.layers[0].mixer, SoftmaxAttention)]


def measure(encoder, cache, target, *, length=False):
    """The target of an encoder, from its whole forward pass."""
    layout, before = cache.batch.layout, cache.final_ND
    with torch.no_grad():
        final = encoder.encode(cache.batch)
        match target:
            case Word(token, word):
                return (
                    encoder.logits("masked", final[token : token + 1], layout)[0].log_softmax(-1)[word].item()
                )
            case Class(role, index, token):
                return encoder.logits(role, final, layout)[token or 0, index].item()
            case TokenClasses(role, tokens, classes):
                return encoder.logits(role, final, layout)[list(tokens), list(classes)].sum().item()
            case Embedding(_, token):
                now, then = (x.mean(0) if token is None else x[token] for x in (final, before))
                return (now @ then / then.norm() / (1 if length else now.norm())).item()


def edited(cache, layer, head, gate=0.0, constant=None):
    """The encoder with the columns of one head in one output projection times ``gate``, and a bias added."""
    encoder = with_own_layers(cache.encoder)
    mixer = encoder.block(layer).attention
    width = mixer.spec.head_width
    columns = mixer.out.weight[:, head * width : (head + 1) * width]
    with torch.no_grad():
        if constant is not None:
            bias = mixer.out.bias if mixer.out.bias is not None else 0
            mixer.out.bias = nn.Parameter(bias + columns @ constant)
        columns *= gate
    return encoder


@pytest.mark.parametrize("name", SPECS)
def test_taking_a_head_away_is_editing_the_output_projection(name):
    cache, mixed = recorded(name, N), {}

    def listen(place, layer, tensor):
        if place is HookPoint.MIXED:
            mixed[layer] = tensor

    with torch.no_grad():
        cache.encoder.encode(cache.batch, hook=listen)
    for layer, head in ((0, 1), (1, 0)):
        mean = mixed[layer][:, head].mean(0)
        for target in TARGETS:
            for how, constant in (("zero", None), ("mean", mean)):
                effect = ablate(cache, target, layer, head, how)
                expected = measure(edited(cache, layer, head, constant=constant), cache, target)
                assert effect.before == pytest.approx(measure(cache.encoder, cache, target), abs=1e-10)
                assert effect.after == pytest.approx(expected, abs=1e-10)
                assert effect.effect == effect.before - effect.after
                assert abs(effect.effect) > 1e-12
        assert not cache.encoder.block(layer).attention.out._forward_pre_hooks


@pytest.mark.parametrize("name", SPECS)
def test_importance_is_the_slope_of_a_gate(name):
    cache, step = recorded(name, N), 1e-5
    for target in TARGETS:
        importances = importance(cache, target)
        for layer, head in ((0, 1), (1, 0)):
            up, down = (
                measure(edited(cache, layer, head, gate), cache, target, length=True)
                for gate in (1 + step, 1 - step)
            )
            # FAVOR+ takes its largest exponent for a constant, which it is but for eps.
            near = 1e-2 if name == "performer" else 1e-5
            assert importances.slopes[layer, head] == pytest.approx(
                (up - down) / 2 / step, rel=near, abs=1e-8
            )
        np.testing.assert_allclose(np.linalg.norm(importances.values, axis=1), 1)


def test_a_dead_head_does_exactly_nothing():
    encoder = random_encoder(recorded("post-norm", 3).encoder.spec)
    with torch.no_grad():
        encoder.block(1).attention.out.weight[:, 8:16] = 0
    cache = ActivationCache.of(encoder, recorded("post-norm", N).encoding)
    for target in TARGETS:
        every = ablate_each(cache, target)
        assert every.effect[1, 1] == 0
        assert ablate(cache, target, 1, 1, "mean").effect == 0
        assert (every.effect != 0).sum() == 8
        assert importance(cache, target).values[1, 1] == 0


def test_a_change_is_one_of_its_own_thread():
    cache = recorded("post-norm", N)
    run, x_ND = InterventionRun(cache), cache.states[1]
    whole_ND = run.layer(1, x_ND)
    with ThreadPoolExecutor(1) as beside, run.changed(1, torch.zeros_like):
        assert torch.equal(beside.submit(run.layer, 1, x_ND).result(), whole_ND)
        assert not torch.allclose(run.layer(1, x_ND), whole_ND)
    assert torch.equal(run.layer(1, x_ND), whole_ND)


def test_each_head_in_turn_is_that_head_alone():
    cache = recorded("blocks", N)
    for how in ("zero", "mean"):
        every = ablate_each(cache, TARGETS[0], how)
        for layer in range(3):
            for head in range(3):
                effect = ablate(cache, TARGETS[0], layer, head, how)
                assert every.effect[layer, head] == effect.effect
                assert every.after[layer, head] == effect.after


@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize("name", SOFTMAX)
def test_cutting_an_edge_is_a_weight_of_zero(name, renormalize, monkeypatch):
    cache = recorded(name, N)
    real, calls, was, cut = reference.probabilities, [], [], None

    def without(*arguments, **named):
        p_HRC, lse_HR = real(*arguments, **named)
        calls.append(len(calls))
        layer, head, query, key = cut
        if calls[-1] == layer:
            was.append(p_HRC[head, query, key].item())
            p_HRC[head, query, key] = 0
            if renormalize:  # as if masked: an attention sink, too, has its part of what is left
                left = p_HRC[head, query].sum()
                lse_HR[head, query] += left.log()
                p_HRC[head, query] /= left
        return p_HRC, lse_HR

    for cut in ((0, 1, 7, 8), (1, 0, 9, 9), (1, 1, 10, 22)):
        layer, head, query, key = cut
        effect = ablate_edge(cache, TARGETS[2], layer, head, query=query, key=key, renormalize=renormalize)
        with monkeypatch.context() as patched:
            patched.setattr(reference, "probabilities", without)
            patched.setattr(cache.encoder, "kernel", "reference")
            calls.clear()
            expected = measure(cache.encoder, cache, TARGETS[2])
        assert effect.after == pytest.approx(expected, abs=1e-10)
        assert (abs(effect.effect) > 1e-12) == (was[-1] > 0)
    assert max(was) > 0


def test_an_edge_of_a_global_token_goes_through_its_own_projections(monkeypatch):
    cache = recorded("windows-globals", N)
    assert isinstance(cache.encoder.spec.layers[0].mixer.pattern, SlidingWindowGlobal)
    effect = ablate_edge(cache, TARGETS[0], 1, 2, query=4, key=19)
    real = GlobalAttention.forward

    def without(self, x_TD, o_THK, rows):
        o_THK = real(self, x_TD, o_THK, rows)
        if self is cache.encoder.block(1).attention.globals:
            q, k, v = (self.project(x_TD, part)[:, 2] for part in range(3))
            p = (q[4] @ k.T / 6**0.5).softmax(-1)
            o_THK[4, 2] -= p[19] * v[19]
        return o_THK

    monkeypatch.setattr(GlobalAttention, "forward", without)
    assert effect.after == pytest.approx(measure(cache.encoder, cache, TARGETS[0]), abs=1e-10)
    assert abs(effect.effect) > 1e-9


def test_an_encoder_rewritten_for_inference_is_ablated_as_it_runs():
    cache = recorded("post-norm", N, dtype=torch.float32)
    plain = [ablate(cache, target, 1, 2).effect for target in TARGETS]
    fast = ActivationCache.of(optimize_for_inference(cache.encoder, "float32"), cache.encoding)
    np.testing.assert_allclose(
        [ablate(fast, target, 1, 2).effect for target in TARGETS], plain, rtol=1e-3, atol=1e-5
    )


def test_words_of_an_enhanced_mask_decoder():
    cache, target = recorded("", 9, spec=decoded_spec()), Word(3, 1)

    def predicted(encoder):
        batch = cache.batch
        with torch.no_grad():
            states = decode(
                encoder, torch.from_numpy(batch.ids_T), batch.layout, selected_M=torch.tensor([3])
            )
            return encoder.logits("enhanced", states, batch.layout)[0].log_softmax(-1)[1].item()

    for layer in (0, 1):
        effect = ablate(cache, target, layer, 1)
        assert effect.before == pytest.approx(predicted(cache.encoder), abs=1e-10)
        assert effect.after == pytest.approx(predicted(edited(cache, layer, 1)), abs=1e-10)
    with pytest.raises(InvalidRequest, match="queries of its own"):
        ablate_edge(cache, target, 1, 0, query=2, key=3)
    slopes, step = importance(cache, target).slopes, 1e-5
    for layer in (0, 1):
        up, down = (predicted(edited(cache, layer, 1, gate)) for gate in (1 + step, 1 - step))
        assert slopes[layer, 1] == pytest.approx((up - down) / 2 / step, rel=1e-5)


def test_what_is_asked_must_be_there():
    cache, target = recorded("rotary-windows", 5), TARGETS[3]
    for ask, words in (
        (lambda: ablate(cache, target, 2, 0), "layers 0 to 1"),
        (lambda: ablate(cache, target, 0, 5), "heads 0 to 4"),
        (lambda: ablate(cache, target, 0, 0, "half"), "zero or mean"),
        (lambda: ablate_edge(cache, target, 0, 0, query=5, key=0), "query is 5"),
        (lambda: ablate_edge(cache, target, 0, 0, query=0, key=-1), "key is -1"),
    ):
        with pytest.raises(InvalidRequest, match=words):
            ask()
    alone = recorded("rotary-windows", 1)
    with pytest.raises(InvalidRequest, match="nothing is left"):
        ablate_edge(alone, target, 0, 0, query=0, key=0, renormalize=True)


def test_what_is_not_finite_is_an_error():
    cache = recorded("post-norm", 5, dtype=torch.float32)
    with torch.no_grad():
        cache.encoder.heads["masked"].bias[3] = torch.inf
    for ask in (lambda: ablate(cache, Word(1, 3), 0, 0), lambda: importance(cache, Word(1, 3))):
        with pytest.raises(NonFiniteResult, match="not finite"):
            ask()
