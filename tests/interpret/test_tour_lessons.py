"""The tour's experiments on values, predictions and matches beside dense float64 computations."""

import numpy as np
import pytest
import torch

import unmask
from tests.support import dense, plain
from tests.support.specs import SPECS, random_encoder
from unmask.encoder.heads import embed
from unmask.errors import InvalidRequest
from unmask.explorer.experiments import handshake, positions, prediction, values
from unmask.explorer.experiments.recorded_text import record_text
from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.words.words import words
from unmask.spec import PooledVector, SoftmaxAttention
from unmask.text import PackedBatch

N = 19
SOFTMAX = [
    name
    for name, spec in SPECS.items()
    if isinstance(spec.layers[0].mixer, SoftmaxAttention) and not spec.layers[0].mixer.sinks
]


def recorded(name):
    return record_text(random_encoder(SPECS[name], dtype=torch.float64), dense.random_text(N))


@pytest.mark.parametrize("name", SOFTMAX)
def test_a_token_followed_through_a_layer_arrives_where_the_encoder_has_it(name):
    """Both residual orders, every position encoding and pattern; parts of a sum add up to 1."""
    one = recorded(name)
    measured_values = values.values(one, 1, 1, 6)
    assert measured_values.error < 1e-12
    assert measured_values.parts.sum() == pytest.approx(1)
    assert measured_values.head_parts.sum() + measured_values.bias_part == pytest.approx(1)
    np.testing.assert_allclose(
        measured_values.contributions, measured_values.shares * measured_values.value_norms, atol=1e-12
    )
    norms = dense.maps(one.encoder, one.encoding)[1][1][1]
    np.testing.assert_allclose(
        measured_values.value_norms, norms[6] if norms.ndim == 2 else norms, atol=1e-10
    )


def test_values_are_the_formula():
    """A post-norm layer by hand: attention, residual, norm, feed-forward, residual."""
    one = recorded("post-norm")
    layer, head, query = 1, 2, 7
    measured_values = values.values(one, layer, head, query)
    weights, at = dense.weights_of(one.encoder), f"layers.{layer}."
    x = one.states[layer].numpy()
    p = dense.maps(one.encoder, one.encoding)[layer][0]
    mixer = one.encoder.spec.layers[layer].mixer
    outputs = []
    for which in range(mixer.heads):
        *_, v = plain.projected(x, mixer, weights, at, which)
        out = weights[at + "attention.out.weight"][:, which * 8 : (which + 1) * 8]
        outputs.append(p[which, query] @ (v @ out.T))
        if which == head:
            added = p[which, query][:, None] * (v @ out.T)
    attention = sum(outputs) + weights[at + "attention.out.bias"]
    np.testing.assert_allclose(measured_values.shares, p[head, query], atol=1e-12)
    assert measured_values.head_norm == pytest.approx(np.linalg.norm(outputs[head]))
    np.testing.assert_allclose(
        measured_values.parts, added @ outputs[head] / (outputs[head] @ outputs[head]), atol=1e-12
    )
    np.testing.assert_allclose(
        measured_values.head_parts, [o @ attention / (attention @ attention) for o in outputs]
    )
    total = x[query] + attention
    assert measured_values.before_norm == pytest.approx(np.linalg.norm(x[query]))
    assert measured_values.attention_norm == pytest.approx(np.linalg.norm(attention))
    assert measured_values.attention_part[layer] == pytest.approx(attention @ total / (total @ total))
    spec = one.encoder.spec.layers[layer]
    between = plain.norm(total[None], spec.norm, weights, at + "attention_norm")
    fed = one.encoder.block(layer).feedforward(torch.from_numpy(between)).detach().numpy()[0]
    assert measured_values.feedforward_norm == pytest.approx(np.linalg.norm(fed))
    after = between[0] + fed
    assert measured_values.feedforward_part[layer] == pytest.approx(fed @ after / (after @ after))
    a, b = (one.states[layer + step][query].numpy() for step in (0, 1))
    assert measured_values.kept_cosine[layer] == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def test_values_of_what_is_not_there_are_refused():
    one = recorded("post-norm")
    for layer, head, query in ((9, 0, 0), (0, 9, 0), (0, 0, N)):
        with pytest.raises(InvalidRequest):
            values.values(one, layer, head, query)


def test_the_cosine_is_the_sum_of_its_parts():
    encoder = random_encoder(SPECS["post-norm"], dtype=torch.float64)
    caches = [
        ActivationCache.of(encoder, dense.random_text(length, seed)) for length, seed in ((N, 0), (11, 4))
    ]
    matched = prediction.matching(*caches)
    a, b = (embed(cache.final_ND, cache.batch.layout, PooledVector(("mean",)))[0].numpy() for cache in caches)
    assert matched.cosine == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
    assert matched.query_parts.sum() == pytest.approx(matched.cosine)
    assert matched.passage_parts.sum() == pytest.approx(matched.cosine)
    # Leaving a token out of the mean, at the same scale, takes away its part.
    x = caches[0].final_ND.numpy()
    less = np.delete(x, 3, axis=0).sum(0) / N
    left = less @ b / np.linalg.norm(a) / np.linalg.norm(b)
    assert matched.cosine - matched.query_parts[3] == pytest.approx(left)


def test_a_prediction_rests_on_what_it_loses():
    model = unmask.load("unmask-mini", dtype="float64")
    encoding = model.tokenizer.encode("The river ran past the old stone bridge.")
    token = 2
    mask = model.tokenizer.mask_id
    found = prediction.masked_prediction(
        model.encoder, encoding, mask, token, plain=model.trainable_encoder(replace=False)
    )

    def log_p(*hidden):
        ids = encoding.ids.copy()
        ids[list(hidden)] = mask
        batch = PackedBatch.of_ids([ids])
        with torch.no_grad():
            states = model.encoder.encode(batch)
            return model.encoder.logits("masked", states, batch.layout)[token].double().log_softmax(-1)

    own = int(encoding.ids[token])
    before = log_p(token)
    assert found.id == own
    assert found.probability == pytest.approx(float(before[own].exp()))
    assert found.rank == int((before > before[own]).sum()) + 1
    assert found.top_ids.tolist() == before.topk(5).indices.tolist()
    assert found.effect[token] == 0
    for other in (1, 5, len(encoding) - 1):
        assert found.effect[other] == pytest.approx(float(before[own] - log_p(token, other)[own]), abs=1e-9)
    assert (found.attribution >= 0).all()
    chosen = prediction.masked_prediction(
        model.encoder, encoding, mask, plain=model.trainable_encoder(replace=False)
    )
    assert encoding.surface(chosen.token).strip().isalpha()


def test_a_pronoun_and_its_noun_come_first():
    model = unmask.load("default")
    encoding = model.tokenizer.encode("The woman lost her keys in the garden, so she waited by the door.")
    recorded = record_text(model.encoder, encoding)
    pair = handshake.clearest_pair(recorded)
    p = recorded.probabilities(pair.layer)[pair.head, pair.query]
    assert encoding.surface(pair.query) in {"she", "her"}
    assert encoding.surface(pair.key) == "woman"
    assert int(p.argmax()) == pair.key
    one = handshake.clearest_pair(recorded, 0, 3)
    assert (one.layer, one.head) == (0, 3)


@pytest.mark.parametrize("text", ["The bank by the river was muddy.", "a, b.", "!", "漢字かな"])
def test_the_first_pair_is_never_punctuation_where_there_are_words(text):
    model = unmask.load("unmask-mini")
    encoding = model.tokenizer.encode(text)
    recorded = record_text(model.encoder, encoding)
    pair = handshake.clearest_pair(recorded)
    assert int(recorded.probabilities(pair.layer)[pair.head, pair.query].argmax()) == pair.key
    token = handshake.content_token(encoding)
    if text.startswith("The"):
        for place in (pair.query, pair.key, token):
            assert encoding.surface(place).strip().isalpha()
            assert encoding.surface(place).strip().lower() not in {"the", "by", "was"}


def test_words_move_whole():
    model = unmask.load("unmask-mini")
    encoding = model.tokenizer.encode("The unbelievable cat slept on the muddy windowsill.")
    shuffled_text = positions.shuffled(model.encoder, encoding, seed=1)
    of = words(encoding).of_token
    assert len(encoding) > len(set(of.tolist())), "some word has several tokens"
    moved = of[shuffled_text.order]
    starts = np.flatnonzero(np.diff(moved, prepend=-1))
    assert len(starts) == len(set(of.tolist())), "the tokens of a word stay side by side"
    for word in set(of.tolist()):
        tokens = shuffled_text.order[moved == word]
        assert (np.diff(tokens) == 1).all(), "and in their order"
    swap = positions.swapped(model.encoder, encoding, 1, 3)
    assert sorted(swap.order.tolist()) == list(range(len(encoding)))
    assert of[swap.order][1] == 3
    with pytest.raises(InvalidRequest, match="words"):
        positions.swapped(model.encoder, encoding, 1, 99)
