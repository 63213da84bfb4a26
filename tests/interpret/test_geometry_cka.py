"""CKA against dense kernels N x N, and what it must not see: of states, and of weights made by hand."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import unmask
from tests.support.command import assert_one_sentence, run_here
from tests.support.specs import ALIBI_SHARED, EXPERTS, GROUPED, POST_NORM, SPECS
from unmask.encoder.encoder import Encoder
from unmask.errors import InvalidRequest
from unmask.interpret.geometry import cka, weight_similarity
from unmask.interpret.geometry.values import blocks_of


def dense_biased(x_ND, y_NE):
    """Centered kernels as matrices (Kornblith et al. 2019, equation 2 with linear kernels)."""
    center = np.eye(len(x_ND)) - 1 / len(x_ND)
    k, m = (center @ z @ z.T @ center for z in (x_ND, y_NE))
    return (k * m).sum() / np.sqrt((k * k).sum() * (m * m).sum())


def dense_hsic(k, m):
    """The unbiased estimate of Song et al. 2012 (equation 5), by matrices."""
    k, m = k.copy(), m.copy()
    np.fill_diagonal(k, 0)
    np.fill_diagonal(m, 0)
    n, one = len(k), np.ones(len(k))
    return (
        np.trace(k @ m)
        + (one @ k @ one) * (one @ m @ one) / ((n - 1) * (n - 2))
        - 2 / (n - 2) * one @ k @ m @ one
    ) / (n * (n - 3))


def dense_debiased(x_ND, y_NE):
    k, m = x_ND @ x_ND.T, y_NE @ y_NE.T
    return dense_hsic(k, m) / np.sqrt(dense_hsic(k, k) * dense_hsic(m, m))


@pytest.fixture
def layers():
    rng = np.random.default_rng(0)
    x_ND = rng.normal(size=(60, 90)) + 2
    return [x_ND, x_ND @ rng.normal(size=(90, 11)) + 1], [x_ND[:, :5] ** 2, rng.normal(size=(60, 130))]


def test_equals_dense_kernels_with_more_and_fewer_dimensions_than_rows(layers):
    a, b = layers
    similarity = cka(a, b)
    for i, x_ND in enumerate(a):
        for j, y_NE in enumerate(b):
            assert similarity.biased[i, j] == pytest.approx(dense_biased(x_ND, y_NE), abs=1e-10)
            assert similarity.debiased[i, j] == pytest.approx(dense_debiased(x_ND, y_NE), abs=1e-9)
    assert (similarity.n, similarity.rows) == (60, 60)


def test_intervals_leave_out_one_run_of_rows_at_a_time(layers):
    (x_ND, _), (y_NE, _) = layers
    blocks = blocks_of(60)
    less = np.array([dense_debiased(x_ND[blocks != g], y_NE[blocks != g]) for g in range(10)])
    half = 2.262 * np.sqrt(0.9 * ((less - less.mean()) ** 2).sum())
    similarity = cka([x_ND], [y_NE])
    assert similarity.high[0, 0] - similarity.debiased[0, 0] == pytest.approx(half, rel=1e-7)
    assert similarity.debiased[0, 0] - similarity.low[0, 0] == pytest.approx(half, rel=1e-7)


def test_the_shuffled_value_is_that_of_shuffled_rows(layers):
    (x_ND, _), (y_NE, _) = layers
    similarity = cka([x_ND], [y_NE], seed=5)
    order = np.random.default_rng(5).permutation(60)
    assert similarity.shuffled[0, 0] == pytest.approx(dense_debiased(x_ND, y_NE[order]), abs=1e-9)
    assert similarity.shuffled_biased[0, 0] == pytest.approx(dense_biased(x_ND, y_NE[order]), abs=1e-9)


def test_rotation_scale_and_shift_change_nothing_and_a_stretch_does():
    rng = np.random.default_rng(1)
    x_ND = rng.normal(size=(200, 12))
    turn = np.linalg.qr(rng.normal(size=(12, 12)))[0]
    similarity = cka([x_ND], [3 * x_ND @ turn + 7, x_ND * 3.0 ** np.arange(12)])
    assert similarity.biased[0, 0] == pytest.approx(1, abs=1e-12)
    assert similarity.debiased[0, 0] == pytest.approx(1, abs=1e-12)
    assert similarity.debiased[0, 1] < 0.7


def test_unrelated_layers_are_near_zero_only_without_bias():
    rng = np.random.default_rng(2)
    similarity = cka([rng.normal(size=(100, 400))], [rng.normal(size=(100, 300))])
    assert similarity.biased[0, 0] > 0.7
    assert abs(similarity.debiased[0, 0]) < 0.1
    assert similarity.low[0, 0] < 0 < similarity.high[0, 0]


def test_one_model_with_itself_is_symmetric_and_one_on_the_diagonal(layers):
    similarity = cka([*layers[0], *layers[1]])
    np.testing.assert_allclose(np.diag(similarity.debiased), 1, atol=1e-12)
    np.testing.assert_array_equal(similarity.debiased, similarity.debiased.T)
    twice = cka([*layers[0], *layers[1]], [*layers[0], *layers[1]])
    np.testing.assert_allclose(similarity.debiased, twice.debiased, atol=1e-12)
    np.testing.assert_allclose(similarity.low, twice.low, atol=1e-9)


def test_refusals(layers):
    a, b = layers
    with pytest.raises(InvalidRequest, match="layers have 59 and 60 rows"):
        cka(a, [b[0][:59]])
    with pytest.raises(InvalidRequest, match="there are 29;"):
        cka([a[0][:29]])
    with pytest.raises(InvalidRequest, match="layer 1 all rows are the same"):
        cka([a[0], np.ones((60, 4))])
    assert cka(a, points=40, seed=3).n == 40


# --- weights -----------------------------------------------------------------------------------------


def encoder_of(spec, seed=0):
    torch.manual_seed(seed)
    return Encoder(spec)


def by_name(encoder):
    return {one.name: one for one in weight_similarity(encoder)}


@torch.no_grad()
def test_weights_equal_up_to_the_order_and_rotation_of_features_have_cka_1():
    """Layer 1 is layer 0 with other features; layer 2 reads and writes rotated dimensions instead."""
    encoder = encoder_of(POST_NORM)
    first, second, third = encoder.layers
    rng = np.random.default_rng(0)
    turn = torch.tensor(np.linalg.qr(rng.normal(size=(24, 24)))[0], dtype=torch.float32)
    order = torch.tensor(rng.permutation(40))
    heads = torch.arange(24).view(3, 8)[[2, 0, 1]].flatten()
    query, key, value = first.attention.qkv.weight.split(24)
    second.attention.qkv.weight.copy_(torch.cat([turn @ query, key[heads], -3 * value]))
    second.attention.out.weight.copy_(first.attention.out.weight @ turn)
    second.feedforward.inner.weight.copy_(first.feedforward.inner.weight[order])
    second.feedforward.outer.weight.copy_(first.feedforward.outer.weight[:, order])
    third.attention.qkv.weight.copy_(first.attention.qkv.weight @ turn)
    found = by_name(encoder)
    names = ["query", "key", "value", "attention out", "feed-forward in", "feed-forward out"]
    assert list(found) == names
    assert [found[name].features for name in names] == [24, 24, 24, 24, 40, 40]
    for name in names:
        assert found[name].cka[0][1] == pytest.approx(1, abs=1e-5), name
        assert abs(found[name].cka[0][2]) < 0.3, name
        assert found[name].layers == (0, 1, 2)
        assert [found[name].cosine[at][at] for at in range(3)] == [1, 1, 1]
        assert abs(found[name].cosine[0][1]) < 0.3 or name == "value"
    assert found["value"].cosine[0][1] == pytest.approx(-1, abs=1e-6)


def test_weights_are_compared_as_dense_kernels_are():
    encoder = encoder_of(POST_NORM)
    found = by_name(encoder)
    for name, of in {
        "key": lambda block: block.attention.qkv.weight[24:48],
        "attention out": lambda block: block.attention.out.weight.T,
        "feed-forward out": lambda block: block.feedforward.outer.weight.T,
    }.items():
        x, y = (of(encoder.layers[at]).detach().double().numpy() for at in (0, 2))
        assert found[name].cka[0][2] == pytest.approx(dense_debiased(x.T, y.T), abs=1e-5)
        assert found[name].cka[2][0] == found[name].cka[0][2]
        flat = (x * y).sum() / np.linalg.norm(x) / np.linalg.norm(y)
        assert found[name].cosine[0][2] == pytest.approx(flat, abs=1e-6)


def test_layers_that_share_weights_have_exactly_1():
    found = by_name(encoder_of(ALIBI_SHARED))  # layers 0 and 1, and 2 and 3
    for one in found.values():
        for table in (one.cosine, one.cka):
            assert table[0][1] == table[2][3] == 1
            assert table[0][2] == table[0][3] == table[1][2] == table[3][1] != 1


@pytest.mark.parametrize("features", [10, 90])
def test_random_weights_are_within_the_limits_of_chance(features):
    layer = replace(POST_NORM.layers[0], feedforward=replace(POST_NORM.layers[0].feedforward, width=features))
    encoder = encoder_of(replace(POST_NORM, layers=(layer,) * 40))
    for name in ("query", "feed-forward in", "feed-forward out"):
        one = by_name(encoder)[name]
        pairs = np.triu_indices(40, 1)
        for table, limit in ((one.cosine, one.random_cosine), (one.cka, one.random_cka)):
            values = np.array(table)[pairs]
            assert abs(values.mean()) < limit / 10
            assert 0.93 < (np.abs(values) < limit).mean() < 0.975, (name, limit, values.std())


@pytest.mark.parametrize("name", SPECS)
def test_every_encoder_has_matrices_to_compare(name):
    found = by_name(encoder_of(SPECS[name]))
    # Layers with heads of different widths have no such matrices of one shape.
    assert name in ("spans", "gated") or {"query", "attention out"} <= set(found)
    for one in found.values():
        assert np.array(one.cka).shape == np.array(one.cosine).shape == (len(one.layers),) * 2
        assert np.isfinite(one.cka).all()


def test_matrices_of_other_parts_have_names():
    assert {"global query", "global value"} <= set(by_name(encoder_of(SPECS["windows-globals"])))
    assert {"distance key", "distance query"} <= set(by_name(encoder_of(SPECS["disentangled-own"])))
    assert {"feed-forward gate"} <= set(by_name(encoder_of(SPECS["rotary-windows"])))
    two = replace(EXPERTS, layers=(EXPERTS.layers[1], *EXPERTS.layers))
    found = by_name(encoder_of(two))
    assert found["experts out"].layers == found["router"].layers == (0, 2)
    assert "feed-forward in" not in found, "a single layer has it"
    grouped = by_name(encoder_of(replace(GROUPED, layers=GROUPED.layers[:1] * 2)))
    assert grouped["key"].features < grouped["query"].features


@torch.no_grad()
def test_what_has_no_similarity_is_one_sentence(tmp_path):
    encoder = encoder_of(POST_NORM)
    encoder.layers[1].attention.out.weight.zero_()
    with pytest.raises(InvalidRequest, match="matrix 1 of attention out is zero or orthogonal"):
        weight_similarity(encoder)
    with pytest.raises(InvalidRequest, match="no two layers"):
        weight_similarity(encoder_of(replace(POST_NORM, layers=POST_NORM.layers[:1])))
    mini = unmask.load("unmask-mini", backend="native")
    with pytest.raises(InvalidRequest, match="optimized for inference"):
        weight_similarity(mini.encoder)
    assert_one_sentence(run_here("inspect", "unmask-mini", "--similarity", "--tensors"), "leave out")
    assert_one_sentence(run_here("inspect", tmp_path, "--similarity"), str(tmp_path))


def test_the_command_shows_the_similarity_of_weights():
    ran = run_here("inspect", "unmask-mini", "--similarity", "--json")
    assert ran.code == 0, ran.err
    report = json.loads(ran.out)
    assert report["weights_of_layer"] == list(range(6))
    gate = next(one for one in report["matrices"] if one["name"] == "feed-forward gate")
    assert np.array(gate["cka"]).shape == (6, 6)
    shown = run_here("inspect", "unmask-mini", "--similarity")
    assert shown.code == 0, shown.err
    assert "feed-forward gate" in shown.out
    assert f"{gate['random_cka']:.3f}" in shown.out
