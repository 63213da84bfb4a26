"""Sinks: the scores by their formulas, and heads built by hand whose type is known."""

import numpy as np
import pytest
import torch

from tests.support import dense
from tests.support.specs import SPECS, random_encoder
from unmask.encoder.encoder import Encoder
from unmask.errors import InvalidRequest
from unmask.interpret import ActivationCache, AttentionStatistics
from unmask.interpret.attention.attention_statistics import attention_statistics
from unmask.interpret.attention.layer_statistics import CLASSES
from unmask.interpret.attention.sinks import EPSILON, sink_type, sinks
from unmask.spec import Embedding, EncoderSpec, Layer, LayerNorm, PlainFeedForward, SoftmaxAttention

WIDTH, LENGTH = 6, 20
SINK = 0
"""Token 0 has an id of its own, whose features say "I am the sink"."""


def built(*, strength: float, value: float) -> ActivationCache:
    """One head: every query scores the sink by ``strength``, others by 0; the sink's value is ``value`` long.

    Words of other ids have random directions of length 1 in the last features, all of them values of
    length 1. Feature 0 is 1 for the sink alone, and feature 1 is 1 for all.
    """
    spec = EncoderSpec(
        width=WIDTH,
        embedding=Embedding(vocabulary=8, width=WIDTH, norm=None),
        layers=(Layer(SoftmaxAttention(1, WIDTH), PlainFeedForward(4, "gelu"), LayerNorm(1e-5)),),
    )
    encoder = Encoder(spec).double().eval()
    words = np.random.default_rng(0).standard_normal((8, WIDTH))
    words[:, :2] = 0
    words /= np.linalg.norm(words, axis=-1, keepdims=True)
    words[SINK] = 0
    words[SINK, 0] = 1
    words[:, 1] = 1
    mixer = encoder.layers[0].attention
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.zero_()
        encoder.embedding.words.weight.copy_(torch.from_numpy(words))
        qkv = mixer.qkv.weight.view(3, WIDTH, WIDTH)
        qkv[0, 0, 1] = strength * WIDTH**0.5
        qkv[1, 0, 0] = 1
        qkv[2, 0, 0] = value
        for feature in range(2, WIDTH):
            qkv[2, feature, feature] = 1
        mixer.out.weight.copy_(torch.eye(WIDTH))
        encoder.layers[0].attention_norm.weight.fill_(1)
        encoder.layers[0].feedforward_norm.weight.fill_(1)
    ids = [SINK, *np.random.default_rng(1).integers(1, 8, LENGTH - 1)]
    return ActivationCache.of(encoder, dense.text_of(ids, special=(0,)))


@pytest.mark.parametrize(
    ("strength", "value", "kind"),
    [(5.0, 0.0, "no-op"), (5.0, 1.0, "broadcast"), (5.0, 3.0, "broadcast"), (0.0, 1.0, "neither")],
)
def test_heads_built_by_hand_are_what_they_are(strength, value, kind):
    found = sinks(attention_statistics(built(strength=strength, value=value)))
    (head,) = found.heads
    weight = np.exp(strength) / (np.exp(strength) + LENGTH - 1)
    assert head.type == kind
    assert found.types() == {"no-op": 0, "broadcast": 0, "neither": 0} | {kind: 1}
    assert head.baseline == found.baseline == pytest.approx(1 / LENGTH)
    if strength:
        assert head.token == SINK
        assert head.mass == head.causal == pytest.approx(weight, rel=1e-6)
        assert head.value_norm_ratio == pytest.approx(value, abs=1e-6)
        written = weight * value / (weight * value + 1 - weight)
        assert head.written_share == pytest.approx(written, rel=1e-6)
        (token,) = found.tokens
        assert (token.token, token.adapted_rate, token.causal_rate) == (SINK, 1.0, 1.0)
    else:
        assert head.mass == pytest.approx(1 / LENGTH)
        assert [token.adapted_rate for token in found.tokens] == [0.0]


def test_a_sink_is_above_epsilon():
    assert [sink_type(mass, 0.1, 0.0, 0.3) for mass in (0.3, 0.31)] == ["neither", "no-op"]
    assert [sink_type(0.9, 0.5, written, 0.3) for written in (0.5, 0.51)] == ["neither", "broadcast"]


def test_rates_are_shares_of_heads_above_epsilon():
    encoder = random_encoder(SPECS["post-norm"], dtype=torch.float64)
    with torch.no_grad():
        for block in encoder.layers:
            block.attention.qkv.weight.mul_(2)
    encoding = dense.random_text(17)
    found = sinks(attention_statistics(ActivationCache.of(encoder, encoding)), epsilon=0.15)
    every = np.concatenate([p for p, _, _ in dense.maps(encoder, encoding)])
    adapted = every.mean(1)
    causal = np.stack([every[:, k:, k].mean(-1) for k in range(17)], -1)  # Gu et al. 2025, equation 7
    assert (adapted > 0.15).any()
    for token in found.tokens:
        assert token.adapted_rate == pytest.approx((adapted[:, token.token] > 0.15).mean())
        assert token.causal_rate == pytest.approx((causal[:, token.token] > 0.15).mean())
        assert token.mass == pytest.approx(adapted[:, token.token].mean(), rel=1e-5)
    assert {t.token for t in found.tokens} == set(np.flatnonzero((adapted > 0.15).any(0)))
    for row, head in zip(range(len(every)), found.heads, strict=True):
        assert head.token == adapted[row].argmax()
        assert head.mass == pytest.approx(adapted[row].max(), rel=1e-5)
        assert head.causal == pytest.approx(causal[row, head.token], rel=1e-5)


def test_the_baseline_of_a_window_is_the_mean_of_what_keys_receive():
    cache = ActivationCache.of(random_encoder(SPECS["rotary-windows"]), dense.random_text(9))
    measured = attention_statistics(cache)
    found = sinks(measured)
    for head in found.heads:
        received_N = measured.layers[head.layer].attention_received_HN[head.head]
        assert head.baseline == found.baseline == pytest.approx(received_N.mean(dtype=float), rel=1e-5)
        assert head.mass >= head.baseline * (1 - 1e-5)
    assert found.epsilon == EPSILON
    assert tuple(found.class_mass) == CLASSES


def test_what_cannot_be_asked_is_refused():
    cache = ActivationCache.of(random_encoder(SPECS["post-norm"]), dense.random_text(9))
    empty = AttentionStatistics(cache)
    with pytest.raises(InvalidRequest, match="no layer has been measured yet"):
        sinks(empty)
    empty.measure(layers=(1,))
    assert {head.layer for head in sinks(empty).heads} == {1}
    with pytest.raises(InvalidRequest, match=r"epsilon is 1\.5; it is a share"):
        sinks(empty, 1.5)
    with pytest.raises(InvalidRequest, match="top is 0"):
        sinks(empty, top=0)
