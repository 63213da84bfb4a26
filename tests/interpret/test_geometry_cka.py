"""CKA against dense kernels N x N, and what it must not see."""

import numpy as np
import pytest

from unmask.errors import InvalidRequest
from unmask.interpret.geometry import cka
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
