"""Attribution of a target and rollout of a token equal rows of whole matrices, in every kind of encoder."""

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import unmask
from tests.interpret.test_memory_guard import LENGTH, Guard, long
from tests.support import dense
from tests.support.heads import decoded_spec, recorded, spec_with_heads
from tests.support.specs import SPECS, random_encoder
from tests.support.tiny import tiny_bert, write_checkpoint
from unmask.encoder.decoder import decode
from unmask.encoder.layers.global_attention import GlobalAttention
from unmask.encoder.layers.linear_attention import LinearMixer
from unmask.engines.inference import optimize_for_inference, unsupported_reason
from unmask.errors import Cancelled, InvalidRequest
from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.effects import attribution as module
from unmask.interpret.effects.ablation import ablate, importance
from unmask.interpret.effects.attribution import attribution, rollout
from unmask.interpret.effects.target import Class, Embedding, StateFunction, TokenClasses, Word
from unmask.kernels import reference
from unmask.spec import Classifier

pytestmark = pytest.mark.long

N = 23


class Heard:
    """Every map that a forward pass through the definition makes, in its graph, while it listens.

    Of each layer a list of (rows, map), rows being None for all.
    """

    def __init__(self, monkeypatch):
        self.layers, self.on = [], False
        for owner, name, own in (
            (reference, "probabilities", self.probabilities),
            (GlobalAttention, "forward", self.global_rows),
            (LinearMixer, "_mix", self.linear),
        ):
            real = getattr(owner, name)

            def either(*arguments, real=real, own=own, **named):
                return own(real, *arguments, **named) if self.on else real(*arguments, **named)

            monkeypatch.setattr(owner, name, either)

    def probabilities(self, real, *arguments, **named):
        p_HRC, lse_HR = real(*arguments, **named)
        p_HRC.retain_grad()
        self.layers.append([(None, p_HRC)])
        return p_HRC, lse_HR

    def global_rows(self, real, module, x_TD, o_THK, rows):
        (group,) = rows.groups
        places = group.globals_BG[0]
        q, k, v = (module.project(x, part) for part, x in enumerate((x_TD[places], x_TD, x_TD)))
        p_HGN = (torch.einsum("ghk,nhk->hgn", q, k) / q.shape[-1] ** 0.5).softmax(-1)
        p_HGN.retain_grad()
        self.layers[-1].append((places, p_HGN))
        return o_THK.index_copy(0, places, torch.einsum("hgn,nhk->ghk", p_HGN, v))

    def linear(self, real, mixer, qkv_BN3HK):
        q, k, v = qkv_BN3HK[0].permute(1, 2, 0, 3)
        phi_q, phi_k = mixer._features(q[None], (-1,))[0], mixer._features(k[None], (-1, -2))[0]
        weights = phi_q @ phi_k.mT
        added = mixer.spec.eps if mixer.projection is None else 0
        p_HNN = weights / (weights.sum(-1, keepdim=True) + added)
        p_HNN.retain_grad()
        self.layers.append([(None, p_HNN)])
        return (p_HNN @ v).transpose(0, 1)[None]


@pytest.fixture
def heard(monkeypatch):
    return Heard(monkeypatch)


def whole(encoder, cache, heard, number):
    """R - I of the authors' rule from whole matrices and the gradients of a whole graph."""
    kernel, encoder.kernel, heard.on = encoder.kernel, "reference", True
    heard.layers.clear()
    with torch.enable_grad():
        number(encoder.encode(cache.batch)).backward()
    encoder.kernel, heard.on = kernel, False
    identity = torch.eye(len(cache), dtype=torch.float64)
    r = identity
    for (_, p_HNN), *others in heard.layers:
        p, gradient = p_HNN.detach().clone(), p_HNN.grad.clone()
        for rows, own in others:
            p[:, rows], gradient[:, rows] = own.detach(), own.grad
        r = r + (p * gradient).clamp(min=0).mean(0) @ r
    return (r - identity).numpy()


def targets(cache, encoder):
    """Each target, its number computed anew, and how its row starts."""
    layout = cache.batch.layout
    before = cache.final_ND
    direction = before.mean(0) / before.mean(0).norm()
    one, even = np.eye(N), np.full(N, 1 / N)
    return [
        (Word(5, 31), lambda x: encoder.logits("masked", x[5:6], layout)[0, 31], one[5]),
        (Class("tokens", 2, 7), lambda x: encoder.logits("tokens", x, layout)[7, 2], one[7]),
        (Class("sequence", 1), lambda x: encoder.logits("sequence", x, layout)[0, 1], even),
        (
            TokenClasses("tokens", (7, 3), (2, 0)),
            lambda x: encoder.logits("tokens", x, layout)[[7, 3], [2, 0]].sum(),
            (one[7] + one[3]) / 2,
        ),
        (
            StateFunction(lambda x: (x[:, 2] * x[:, 4]).sum(-1), (2, 4)),
            lambda x: x[2] @ x[4],
            (one[2] + one[4]) / 2,
        ),
        (Embedding(), lambda x: x.mean(0) @ direction, even),
        (Embedding(("cls",)), lambda x: x[0] @ before[0] / before[0].norm(), one[0]),
        (Embedding(token=9), lambda x: x[9] @ before[9] / before[9].norm(), one[9]),
    ]


@pytest.mark.parametrize("name", SPECS)
def test_a_row_is_that_of_the_whole_matrices(name, heard):
    cache = recorded(name, N)
    encoder = cache.encoder
    for target, number, start in targets(cache, encoder):
        encoder.zero_grad()
        matrix = whole(encoder, cache, heard, number)
        attributed = attribution(cache, target)
        expected = start @ matrix
        assert expected.max() > 1e-5
        scale = 1e-4 if name == "linear" else 1e-6  # the map of elu+1 sums to 1 here, there eps less
        np.testing.assert_allclose(attributed.values, expected, rtol=scale, atol=1e-9)
        np.testing.assert_allclose(attributed.by_layer.sum(0), attributed.values, rtol=1e-9, atol=1e-15)


def test_what_is_explained_is_stated_and_can_be_a_log_probability(heard):
    """`importance` explains a log-probability; of the same quantity both have the same gradient."""
    cache = recorded("post-norm", N)
    encoder, word = cache.encoder, Word(5, 31)
    layout = cache.batch.layout
    encoder.zero_grad()
    matrix = whole(
        encoder, cache, heard, lambda x: encoder.logits("masked", x[5:6], layout)[0].log_softmax(-1)[31]
    )
    attributed = attribution(cache, word, scale="log-probability")
    np.testing.assert_allclose(attributed.values, matrix[5], rtol=1e-6, atol=1e-9)
    assert np.abs(attributed.values - attribution(cache, word).values).max() > 1e-6
    assert attributed.unit == importance(cache, word).unit == ablate(cache, word, 0, 0).unit
    assert attributed.unit == "log-probability in nats"
    assert attribution(cache, word).unit == "logit"
    toward = tuple(cache.final_ND[0].tolist())
    for target, unit in (
        (Class("sequence", 1), "logit"),
        (StateFunction(lambda x: x[:, 0, 0], (0,), "volts"), "volts"),
        (TokenClasses("tokens", (7, 3), (2, 0)), "sum of logits"),
        (Embedding(), "length"),
        (Embedding(toward=toward), "cosine"),
    ):
        assert attribution(cache, target).unit == importance(cache, target).unit == unit
    with pytest.raises(InvalidRequest, match="scale is 'probability'"):
        attribution(cache, word, scale="probability")


def test_classifiers_of_a_text_start_where_they_read(heard):
    heads = (
        Classifier("sequence", 2, "pooler"),
        Classifier("next_sentence", 2, "first"),
        Classifier("tokens", 3, "tokens_and_first"),
    )
    cache = recorded("", N, spec=replace(SPECS["post-norm"], heads=heads))
    encoder, one = cache.encoder, np.eye(N)
    for target, start in (
        (Class("sequence", 1), one[0]),
        (Class("next_sentence", 0), one[0]),
        (Class("tokens", 2, 6), one[0] + one[6]),
    ):
        encoder.zero_grad()

        def number(x, target=target):
            logits = encoder.logits(target.role, x, cache.batch.layout)
            return logits[target.token or 0, target.index]

        matrix = whole(encoder, cache, heard, number)
        np.testing.assert_allclose(attribution(cache, target).values, start @ matrix, rtol=1e-6, atol=1e-9)


def test_half_precision_and_integers_are_near():
    exact = recorded("post-norm", N, dtype=torch.float32)
    expected = attribution(exact, Word(5, 31)).values
    plain = random_encoder(spec_with_heads("post-norm"))
    half = random_encoder(spec_with_heads("post-norm"), dtype=torch.bfloat16)
    own = attribution(ActivationCache.of(half, exact.encoding), Word(5, 31)).values
    assert np.corrcoef(own, expected)[0, 1] > 0.99
    if unsupported_reason("int8") is None:
        whole_numbers = optimize_for_inference(random_encoder(spec_with_heads("post-norm")), "int8")
        cache = ActivationCache.of(whole_numbers, exact.encoding)
        assert np.corrcoef(attribution(cache, Word(5, 31), encoder=plain).values, expected)[0, 1] > 0.99
        assert np.isfinite(rollout(cache, 5).values).all()


@pytest.mark.parametrize("name", ["post-norm", "rotary-windows", "disentangled"])
def test_two_hundred_tokens(name, heard):
    spec = spec_with_heads(name)
    if spec.embedding.positions:
        positions = replace(spec.embedding.positions, rows=300)
        spec = replace(spec, embedding=replace(spec.embedding, positions=positions))
    cache = recorded(name, 200, spec=spec)
    encoder = cache.encoder
    matrix = whole(encoder, cache, heard, lambda x: encoder.logits("masked", x[50:51], None)[0, 3])
    np.testing.assert_allclose(attribution(cache, Word(50, 3)).values, matrix[50], rtol=1e-6, atol=1e-10)


def test_without_attention_there_is_no_attribution():
    cache = recorded("post-norm", 12)
    encoder = cache.encoder
    own = attribution(cache, Class("sequence", 1)).by_layer
    with torch.no_grad():
        for layer in encoder.layers:
            layer.attention.out.weight.zero_()
    silent = ActivationCache.of(encoder, cache.encoding)
    assert (own.max(-1) > 0).all()
    assert (attribution(silent, Class("sequence", 1)).values == 0).all()


@pytest.mark.parametrize("evidence", [3, 8])
def test_planted_evidence_is_found(evidence):
    """Values of one head that only one token has: the target is raised by that token alone, or not at all."""
    spec = spec_with_heads("post-norm")
    spec = replace(spec, layers=spec.layers[:1])
    cache = recorded("post-norm", 12, spec=spec)
    x_ND, mixer = cache.states[0], cache.encoder.block(0).attention
    others_ND = torch.cat([x_ND[:evidence], x_ND[evidence + 1 :]])
    own_D = x_ND[evidence] - torch.linalg.pinv(others_ND) @ (others_ND @ x_ND[evidence])
    found = []
    for sign in (1, -1):
        with torch.no_grad():
            mixer.qkv.weight[48:] = 0
            mixer.qkv.bias[48:] = 0
            mixer.qkv.weight[48 + 9] = sign * own_D
        planted = ActivationCache.of(cache.encoder, cache.encoding)
        found.append(attribution(planted, Class("tokens", 2, 5)).values)
    raised = max(found, key=np.max)
    assert raised[evidence] > 1e-4
    assert np.delete(raised, evidence).max() < 1e-12
    assert min(map(np.max, found)) < 1e-12  # with the sign turned it lowers the class, which is no relevance


@pytest.mark.parametrize("name", ["post-norm", "rotary-windows", "disentangled-own"])
def test_no_tensor_is_near_the_size_of_a_map(name):
    encoder = random_encoder(long(SPECS[name]))
    cache = ActivationCache.of(encoder, dense.random_text(LENGTH))
    with Guard() as guard:
        attribution(cache, Embedding(token=3))
        rollout(cache, 3)
    assert 0 < guard.largest <= LENGTH**2 / 8


def test_frozen_weights_and_weights_rewritten_for_inference():
    cache = recorded("post-norm", N, dtype=torch.float32)
    plain = cache.encoder
    expected = attribution(cache, Word(5, 31)).values
    plain.requires_grad_(False)
    np.testing.assert_array_equal(attribution(cache, Word(5, 31)).values, expected)
    assert not any(parameter.grad is not None for parameter in plain.parameters())
    fast = ActivationCache.of(
        optimize_for_inference(recorded("post-norm", N, dtype=torch.float32).encoder, "float32"),
        cache.encoding,
    )
    with pytest.raises(InvalidRequest, match="rewritten for inference"):
        attribution(fast, Word(5, 31))
    np.testing.assert_allclose(
        attribution(fast, Word(5, 31), encoder=plain).values, expected, rtol=1e-3, atol=1e-6
    )


def test_a_loaded_model_hands_out_a_plain_encoder(tmp_path):
    model = unmask.load(write_checkpoint(tmp_path / "tiny", tiny_bert("BertForMaskedLM")))
    runner = model.encoder
    (encoding,) = model.tokenize(["the [MASK] bank was muddy"])
    cache = ActivationCache.of(runner, encoding)
    attributed = attribution(cache, Word(2, 7), encoder=model.trainable_encoder(replace=False))
    assert model.encoder is runner
    assert attributed.values.max() > 0
    assert all(
        isinstance(layer.attention.qkv, nn.Linear) for layer in model.trainable_encoder(replace=False).layers
    )


def test_what_is_asked_must_be_there():
    cache = recorded("post-norm", 5)
    for target, words in (
        (Word(5, 0), "tokens 0 to 4"),
        (Word(0, 97), "words 0 to 96"),
        (Class("span", 0), "no classifier 'span'; it has: tokens, sequence"),
        (Class("tokens", 9, 0), "classes 0 to 3"),
        (TokenClasses("tokens", (1, 2), (0, 9)), "classes 0 to 3"),
        (StateFunction(lambda x: x[:, 0, 0], (N,)), f"token is {N}; this text has tokens 0 to"),
        (TokenClasses("sequence", (1,), (0,)), "leave the token out"),
        (Class("tokens", 0), "say which"),
        (Class("sequence", 0, 3), "leave the token out"),
        (Embedding(token=-1), "tokens 0 to 4"),
    ):
        with pytest.raises(InvalidRequest, match=words):
            attribution(cache, target)
    bare = recorded("post-norm", 5, spec=SPECS["post-norm"])
    with pytest.raises(InvalidRequest, match="no masked-LM head"):
        attribution(bare, Word(0, 0))


def test_the_passes_of_an_enhanced_mask_decoder_are_its_last_layer(heard):
    cache = recorded("", 9, spec=decoded_spec())
    encoder, batch = cache.encoder, cache.batch
    encoder.kernel, heard.on = "reference", True
    with torch.enable_grad():
        ids_T, token = torch.from_numpy(batch.ids_T), torch.tensor([3])
        states = decode(encoder, ids_T, batch.layout, selected_M=token)
        encoder.logits("enhanced", states, batch.layout)[0, 1].backward()
    encoder.kernel, heard.on = None, False
    below, *passes = ((p.detach() * p.grad).clamp(min=0).mean(0).numpy() for ((_, p),) in heard.layers)
    assert len(passes) == 2
    by_decoder = sum(one[3] for one in passes)
    attributed = attribution(cache, Word(3, 1))
    np.testing.assert_allclose(attributed.by_layer[1], by_decoder, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(
        attributed.by_layer[0], (np.eye(9)[3] + by_decoder) @ below, rtol=1e-6, atol=1e-12
    )
    assert attributed.by_layer.max(-1).min() > 1e-4


def fuse(p, norms, fusion):
    if fusion == "norm":
        return (p * norms).sum(0) / (p * norms).sum((0, 2))[:, None]
    return {"mean": p.mean, "max": p.max, "min": p.min}[fusion](axis=0)


@functools.cache
def read(name, length=23):
    """A text that was recorded, and its whole maps."""
    cache = recorded(name, length)
    return cache, dense.maps(cache.encoder, cache.encoding, cache.globals_N)


def dense_levels(maps, fusion):
    """The product from each level to the last, (L + 1, N, N), as the authors' code makes it."""
    itself = np.eye(maps[0][0].shape[-1])
    levels = [itself]
    for p, norms, _ in reversed(maps):
        step = fuse(p, norms, fusion) + itself
        levels.insert(0, levels[0] @ (step / step.sum(-1, keepdims=True)))
    return np.stack(levels)


@pytest.mark.parametrize("fusion", ["mean", "max", "min", "norm"])
@pytest.mark.parametrize("name", SPECS)
def test_a_row_is_that_of_the_whole_product(name, fusion, monkeypatch):
    monkeypatch.setattr(module, "CELLS_AT_ONCE", 200)  # several blocks of rows
    cache, maps = read(name)
    levels = dense_levels(maps, fusion)
    for token in (0, 4, 11, 22):
        sources = rollout(cache, token, fusion=fusion).values
        np.testing.assert_allclose(sources, levels[:, token], rtol=1e-6, atol=1e-12)
        np.testing.assert_allclose(sources.sum(-1), 1, rtol=1e-12)
    everywhere = rollout(cache, fusion=fusion).values
    np.testing.assert_allclose(everywhere, levels.mean(1), rtol=1e-6, atol=1e-12)


def test_rollout_of_two_hundred_tokens():
    cache, maps = read("rotary-windows", 200)
    levels = dense_levels(maps, "mean")
    np.testing.assert_allclose(rollout(cache, 100).values, levels[:, 100], rtol=1e-6, atol=1e-12)
    assert (rollout(cache, 100).values[0, :90] == 0).all()  # two windows of radius 2 below


def test_what_rollout_starts_from_must_be_there():
    cache = recorded("post-norm", 5)
    with pytest.raises(InvalidRequest, match="tokens 0 to 4"):
        rollout(cache, 5)
    with pytest.raises(InvalidRequest, match="mean, max, min, norm"):
        rollout(cache, 0, fusion="sum")


def test_it_stops_when_told_to():
    reports = []

    def watch(what, done, total):
        reports.append((what, done, total))
        raise Cancelled("enough")

    with pytest.raises(Cancelled):
        rollout(recorded("post-norm", 5), 0, watch=watch)
    assert reports == [("rollout", 0, 3)]
