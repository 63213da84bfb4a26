"""Names of heads by hand-made maps, and divergence and matching of heads against scipy."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import jensenshannon

from tests.support import dense
from tests.support.examples import examples
from tests.support.heads import recorded
from tests.support.specs import SPECS, random_encoder
from tests.support.tokenizers_built import of_bytes, of_pieces
from unmask.errors import Cancelled, InvalidRequest, NonFiniteResult
from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.attention import head_distances as module
from unmask.interpret.attention.attention_statistics import attention_statistics
from unmask.interpret.attention.head_distances import assign, compare_heads, head_distances, match_heads
from unmask.interpret.attention.layer_statistics import label_heads, positional, set_aside

N = 20
SPECIAL = np.isin(np.arange(N), (0, N - 1))
COMMA = np.arange(N) % 5 == 3


NONE = np.zeros((N, N), dtype=bool)


class Layer(SimpleNamespace):
    def __len__(self):
        return N


def layer_of(maps, special=SPECIAL, repeats=NONE):
    """What labels are made of, from whole maps (H, N, N)."""
    p = np.stack(maps)
    i, j = np.indices((N, N))
    members = (i == j, j == i - 1, j == i + 1, j == 0, special[j] & (j > 0), COMMA[j], repeats)
    rest = ~np.any(members, axis=0)
    order = np.argsort(-p, axis=-1, kind="stable")[..., :8]
    q = p * ~special[:, None] * ~special
    given = q.sum(-1)
    shares = q / np.maximum(given, 1e-300)[..., None]
    entropy = -(shares * np.log(np.where(shares > 0, shares, 1))).sum(-1) / np.log((~special).sum())
    of_self, previous, following, first, _, comma, repeat = members
    beyond = (of_self, previous, following, first, comma, repeat)
    return Layer(
        heads=len(p),
        to_sink_HN=np.zeros((len(p), N)),
        edges_keys_HNk=order,
        edges_HNk=np.take_along_axis(p, order, -1),
        classes_HX=np.stack([(p * m).sum((1, 2)) / N for m in (*members, rest)], -1),
        special_HN=(p * special).sum(-1),
        beyond_HX=np.stack([(q * m).sum((1, 2)) for m in beyond], -1)
        / np.maximum(given.sum(-1), 1e-300)[:, None],
        beyond_entropy_H=(entropy * given).sum(-1) / np.maximum(given.sum(-1), 1e-300),
    )


def labeled(*maps, **options):
    return label_heads(layer_of(maps, **options), options.get("special", SPECIAL))


def at_offset(offset, mass=0.9):
    """Most attention at one distance where there is a token, the rest even."""
    p = np.full((N, N), (1 - mass) / N)
    for i in range(N):
        if 0 <= i + offset < N:
            p[i, i + offset] += mass
    return p / p.sum(-1, keepdims=True)


def at_keys(keys, mass=0.8):
    p = np.full((N, N), (1 - mass) / N)
    p[:, keys] += mass / np.sum(keys)
    return p


def test_hand_made_heads_have_the_names_they_were_made_for():
    rng = np.random.default_rng(0)
    peaked = rng.dirichlet(np.full(N, 0.2), N)
    maps = {
        "previous": at_offset(-1), "next": at_offset(1), "self": at_offset(0), "offset": at_offset(-3),
        "first": at_keys(np.arange(N) == 0), "special": at_keys(np.arange(N) == N - 1),
        "punctuation": at_keys(COMMA), "diffuse": np.full((N, N), 1 / N), "mixed": peaked,
    }  # fmt: skip
    labels = labeled(*maps.values())
    assert [label.label for label in labels] == list(maps)
    assert [label.offset for label in labels[:4]] == [-1, 1, 0, -3]
    assert all(label.offset_share == label.share == pytest.approx(1) for label in labels[:4])
    assert labels[4].share == pytest.approx(0.8 + 0.2 / N)
    assert labels[4].special == pytest.approx(0.8 + 0.4 / N)
    assert labels[7].share == pytest.approx(1)
    assert labels[8].confidence == pytest.approx(peaked[~SPECIAL].max(-1).mean())


def resting(p, sink, rest):
    """The same map, of which a part goes to one token instead."""
    to_sink = np.zeros((N, N))
    to_sink[:, sink] = 1
    return rest * p + (1 - rest) * to_sink


TWINS = (np.indices((N, N))[0] ^ np.indices((N, N))[1]) == 2
"""Tokens 0 and 2, 1 and 3, 4 and 6 and so on are the same, but for special ones."""
TWINS = TWINS & ~SPECIAL & ~SPECIAL[:, None]


@pytest.mark.parametrize("sink", [0, N - 1])
def test_a_head_is_named_by_what_it_does_beyond_its_sink(sink):
    twins = TWINS / np.maximum(TWINS.sum(-1, keepdims=True), 1)
    twins[TWINS.sum(-1) == 0, sink] = 1
    work = {
        "previous": at_offset(-1), "offset": at_offset(2), "punctuation": at_keys(COMMA), "repeat": twins,
    }  # fmt: skip
    for rest in (0.9, 0.3, 0.13):
        labels = labeled(*(resting(p, sink, rest) for p in work.values()), repeats=TWINS)
        assert [label.label for label in labels] == list(work), rest
        assert all(label.special >= 1 - rest for label in labels)
    # What is left is too little, or is nothing that has a name.
    at_sink = "first" if sink == 0 else "special"
    assert {label.label for label in labeled(*(resting(p, sink, 0.09) for p in work.values()))} == {at_sink}
    even = np.full((N, N), 1 / N)
    assert [one.label for one in labeled(resting(even, sink, 0.4), resting(even, sink, 0.9))] == [
        at_sink,
        "diffuse",
    ]


def test_a_token_and_its_other_occurrences_count_together():
    """A head that looks for the same token finds the token itself too, and often nothing else."""
    twins = TWINS / np.maximum(TWINS.sum(-1, keepdims=True), 1)
    rest = 1 - 0.3 * np.eye(N).sum(-1) - 0.35 * twins.sum(-1)
    both = 0.3 * np.eye(N) + 0.35 * twins + rest[:, None] / N
    (label,) = labeled(both, repeats=TWINS)
    assert (label.label, round(label.share, 1)) == ("repeat", 0.7)
    (label,) = labeled(0.35 * np.eye(N) + 0.3 * twins + rest[:, None] / N, repeats=TWINS)
    assert label.label == "self"


def test_queries_that_rest_do_not_hide_what_the_others_do():
    """Three of four tokens give everything to [CLS]; the others find the token before."""
    p = at_offset(-1, mass=0.999)
    idle = np.arange(N) % 4 != 2
    p[idle] = np.eye(N)[0]
    (label,) = labeled(p)
    assert (label.label, label.offset, label.share) == ("previous", -1, pytest.approx(1))
    assert label.special == pytest.approx((idle & ~SPECIAL).sum() / (N - 2), abs=0.06)


def test_a_model_without_special_tokens_may_rest_on_its_first_token():
    none = np.zeros(N, dtype=bool)
    first = at_keys(np.arange(N) == 0)
    (label,) = labeled(first, special=none)
    assert (label.label, label.special) == ("first", 0)
    (label,) = labeled(at_offset(-1), special=none)
    assert label.label == "previous"


def test_a_text_of_special_tokens_is_taken_whole():
    assert set_aside(np.array([True, False, True])).tolist() == [False] * 3
    assert set_aside(np.array([True, False, False])).tolist() == [True, False, False]


def test_nine_queries_of_ten_make_a_head_positional():
    def of(keys, counts=None):
        counts = np.ones(len(keys)) if counts is None else counts
        offset, share = positional(np.array([keys]), np.array([counts]))
        return int(offset[0]), float(share[0])

    keys = np.arange(100) - 1
    keys[0] = 50
    assert of(keys) == (-1, 1.0)  # the first has no token before it
    keys[:9] = 50
    assert of(keys) == (-1, pytest.approx(91 / 99))
    counts = np.ones(100)
    counts[1:9] = 0
    assert of(keys, counts) == (-1, 1.0)
    assert of([0]) == (0, 1.0)
    assert of([-1, 0, -1]) == (-1, 0.5)


@pytest.mark.parametrize("name", ["rotary-windows", "windows-globals", "performer"])
def test_labels_of_statistics(name):
    cache = recorded(name, 31)
    statistics = attention_statistics(cache)
    maps = dense.maps(cache.encoder, cache.encoding, cache.globals_N)
    for layer, (p, _, _) in zip(statistics.layers, maps, strict=True):
        for head, label in enumerate(label_heads(layer, cache.encoding.special)):
            q = p[head][1:-1, 1:-1]
            offset, share = positional(q.argmax(-1)[None], q.sum(-1)[None])
            assert (label.offset, label.offset_share) == (offset[0], pytest.approx(share[0], rel=1e-5))
            assert label.confidence == pytest.approx(p[head, 1:-1].max(-1).mean(), rel=1e-5)
            assert label.special == pytest.approx(1 - q.sum(-1).mean(), rel=1e-5)
            if label.label == "mixed":
                assert layer.beyond_HX[head].max() < 0.5
                assert share[0] < 0.9


def dense_rows(cache):
    maps = dense.maps(cache.encoder, cache.encoding, cache.globals_N)
    return np.concatenate([p for p, _, _ in maps])


@pytest.mark.parametrize("name", ["post-norm", "rotary-windows", "windows-globals", "disentangled", "linear"])
@pytest.mark.parametrize("smoothing", [0.0, 0.001])
def test_divergence_is_that_of_scipy(name, smoothing):
    cache = recorded(name, 17)
    found, p = head_distances(cache, smoothing=smoothing), dense_rows(cache) + smoothing
    assert (found.queries, found.of) == (17, 17)
    for a in range(len(p)):
        expected = [(jensenshannon(p[a], other, axis=-1) ** 2).mean() for other in p]
        np.testing.assert_allclose(found.divergence[a], expected, atol=1e-6)
    assert found.heads_a[-1] == (len(cache.states) - 2, cache.heads(0) - 1)


def test_long_texts_are_sampled_evenly(monkeypatch):
    monkeypatch.setattr(module, "PRODUCTS", 9 * 9 * 60 * 7)
    cache = recorded("post-norm", 60)
    found, p = head_distances(cache), dense_rows(cache)
    assert (found.queries, found.of) == (7, 60)
    rows = [4, 12, 21, 30, 38, 47, 55]
    expected = (jensenshannon(p[1][rows], p[5][rows], axis=-1) ** 2).mean()
    assert found.divergence[1, 5] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", ["post-norm", "rotary-windows", "disentangled"])
def test_a_model_matches_itself_and_permuted_heads_are_found(name):
    cache = recorded(name, 29)
    own = compare_heads(cache, cache)
    np.testing.assert_allclose(np.diag(own.divergence), 0, atol=1e-7)
    assert all(match.a == match.b and match.divergence < 1e-7 for match in match_heads(own))

    encoder = random_encoder(cache.encoder.spec, dtype=torch.float64)
    orders = {}
    with torch.no_grad():
        for layer, block in enumerate(encoder.layers):
            mixer = block.attention
            heads, width = mixer.spec.heads, mixer.spec.head_width
            orders[layer] = np.random.default_rng(layer).permutation(heads)
            columns = (orders[layer][:, None] * width + np.arange(width)).ravel()
            rows = np.concatenate([part * heads * width + columns for part in range(3)])
            mixer.qkv.weight.copy_(mixer.qkv.weight[rows])
            if mixer.qkv.bias is not None:
                mixer.qkv.bias.copy_(mixer.qkv.bias[rows])
            mixer.out.weight.copy_(mixer.out.weight[:, columns])
    permuted = ActivationCache.of(encoder, cache.encoding)
    torch.testing.assert_close(permuted.final_ND, cache.final_ND)
    for match in match_heads(compare_heads(cache, permuted)):
        layer, head = match.a
        assert match.b == (layer, int(np.flatnonzero(orders[layer] == head)[0]))


def test_models_of_unlike_tokens_are_compared_by_what_they_share():
    pieces, bytes_ = of_pieces(), of_bytes()
    text = "the river Bank, muddy river"
    recordings = []
    for name, tokenizer in (("post-norm", pieces), ("rotary-windows", bytes_)):
        spec = SPECS[name]
        spec = replace(spec, embedding=replace(spec.embedding, vocabulary=tokenizer.vocabulary_size))
        encoder = random_encoder(spec, dtype=torch.float64)
        recordings.append(ActivationCache.of(encoder, tokenizer.encode(text)))
    a, b = recordings
    distances = compare_heads(a, b)
    of_a, of_b, count = module.align(a.encoding, b.encoding).groups()
    members = [np.eye(count)[of] for of in (of_a, of_b)]
    asking = [group for group in range(count - 1) if group in of_a and group in of_b]
    assert distances.of == distances.queries == len(asking) >= 5
    maps = [
        (m.T @ dense_rows(r) @ m / np.maximum(m.sum(0), 1)[:, None])[:, asking]
        for m, r in zip(members, recordings, strict=True)
    ]
    for x, p in enumerate(maps[0]):
        expected = [(jensenshannon(p, q, axis=-1) ** 2).mean() for q in maps[1]]
        np.testing.assert_allclose(distances.divergence[x], expected, atol=1e-6)
    assert len(match_heads(distances)) == 9
    turned = match_heads(compare_heads(b, a))
    assert {(match.b, match.a) for match in turned} == {
        (match.a, match.b) for match in match_heads(distances)
    }


@examples(60)
@given(st.integers(1, 9), st.integers(0, 6), st.integers(0, 10**6), st.booleans())
def test_pairs_are_the_cheapest(rows, more, seed, whole):
    rng = np.random.default_rng(seed)
    cost = (
        rng.integers(0, 4, (rows, rows + more)).astype(float)
        if whole
        else rng.normal(size=(rows, rows + more))
    )
    found = assign(cost)
    best = linear_sum_assignment(cost)
    assert len(set(found.tolist())) == rows
    assert cost[np.arange(rows), found].sum() == pytest.approx(cost[best].sum())


def test_what_cannot_be_done():
    with pytest.raises(NonFiniteResult):
        assign(np.array([[np.nan]]))
    cache = recorded("post-norm", 4)
    with pytest.raises(InvalidRequest, match="smoothing is -1"):
        head_distances(cache, smoothing=-1)
    with pytest.raises(InvalidRequest, match="different texts"):
        compare_heads(cache, recorded("post-norm", 5))

    def stop(*said):
        raise Cancelled("enough")

    with pytest.raises(Cancelled):
        head_distances(cache, watch=stop)
