"""Geometry of clouds whose answer is known, against an independent program, and against plain formulas."""

import warnings
from itertools import pairwise

import numpy as np
import pytest

from unmask.errors import InvalidRequest, NonFiniteResult
from unmask.interpret.geometry import geometry
from unmask.interpret.geometry import layers as layers_module
from unmask.interpret.geometry.dimension import (
    distinct,
    gride,
    levina_bickel,
    neighbors,
    two_nn,
    two_nn_slope,
)
from unmask.interpret.geometry.layers import effective_rank, iso_score, mean_cosine, variances
from unmask.interpret.geometry.values import blocks_of, student


def rotated(x_Nd, width, seed=0):
    """Points of R^d in ``width`` dimensions, distances kept."""
    axes = np.linalg.qr(np.random.default_rng(seed).normal(size=(width, x_Nd.shape[1])))[0]
    return x_Nd @ axes.T


def measured(x_ND, **options):
    (one,) = geometry([x_ND], **{"shuffled": False} | options)
    return one


@pytest.mark.parametrize(("dimension", "tolerance"), [(1, 0.08), (2, 0.15), (5, 0.4), (10, 1.5)])
def test_gaussians_in_50_dimensions(dimension, tolerance):
    rng = np.random.default_rng(3)
    one = measured(rotated(rng.normal(size=(2500, dimension)), 50))
    estimates = [one.two_nn, one.two_nn_slope, one.mle, *(scale.dimension for scale in one.gride[:4])]
    for estimate in estimates:
        assert estimate.value == pytest.approx(dimension, abs=tolerance)
        assert estimate.low < estimate.value < estimate.high
        assert estimate.high - estimate.low < 0.3 * dimension
        assert estimate.n == one.distinct
    assert one.distinct > 2490  # on a line, two of so many may be equal but for rounding
    assert one.participation_ratio.value == pytest.approx(dimension, rel=0.03)
    assert one.effective_rank.value == pytest.approx(dimension, rel=0.03)
    assert one.residual.value == pytest.approx(1, abs=0.01)


def test_curved_surfaces_have_two_dimensions_and_a_linear_spread_of_three():
    rng = np.random.default_rng(0)
    turn, height = rng.uniform(1.5 * np.pi, 4.5 * np.pi, 2500), rng.uniform(0, 21, 2500)
    roll = np.stack([turn * np.cos(turn), height, turn * np.sin(turn)], axis=1)
    sphere = rng.normal(size=(2500, 3))
    sphere /= np.linalg.norm(sphere, axis=1, keepdims=True)
    for surface in (roll, sphere):
        one = measured(rotated(surface, 20))
        assert one.two_nn.value == pytest.approx(2, abs=0.15)
        assert one.mle.value == pytest.approx(2, abs=0.15)
        assert 2.5 < one.participation_ratio.value < 3.01


def test_gride_tells_a_noisy_line_from_noise_by_scale():
    """Below the size of the noise the cloud fills all ten dimensions, far above it is a line."""
    rng = np.random.default_rng(1)
    line = np.zeros((3000, 10))
    line[:, 0] = np.linspace(0, 1, 3000)
    one = measured(line + 0.0008 * rng.normal(size=line.shape))
    curve = [scale.dimension.value for scale in one.gride]
    assert [scale.k for scale in one.gride] == [1, 2, 4, 8, 16, 32]
    assert curve[0] > 4
    assert curve[-1] < 1.5
    assert all(a > b for a, b in pairwise(curve))
    radii = [scale.radius for scale in one.gride]
    assert radii == sorted(radii)


@pytest.fixture(scope="module")
def skdim():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("skdim.id")


def test_dimensions_equal_those_of_scikit_dimension(skdim):
    rng = np.random.default_rng(1)
    x_ND = rotated(rng.normal(size=(800, 4)), 20) + 0.05 * rng.normal(size=(800, 20))
    r_MK = neighbors(x_ND, 64).r_MK
    assert two_nn_slope(r_MK) == pytest.approx(skdim.TwoNN().fit(x_ND).dimension_, rel=1e-9)
    assert two_nn(r_MK) == pytest.approx(skdim.TwoNN(method="mle").fit(x_ND).dimension_, rel=1e-9)
    curve = skdim.GRIDE(multiscale=True, range_max=64).fit(x_ND)
    ours = [gride(r_MK, int(k)) for k in curve.scales_]
    np.testing.assert_allclose(ours, curve.dimension_scales_, rtol=1e-8)
    for k in (5, 10, 20):
        pointwise = skdim.MLE().fit(x_ND, n_neighbors=k).dimension_pw_
        assert levina_bickel(r_MK, k) == pytest.approx(1 / np.mean(1 / pointwise), rel=1e-9)


def test_neighbors_with_and_without_each_block_equal_a_dense_search():
    rng = np.random.default_rng(2)
    centers = 30 * rng.normal(size=(10, 7))
    x_ND = centers[blocks_of(700)] + rng.normal(size=(700, 7))  # all neighbors of a point are in its block
    blocks = blocks_of(700)
    near = neighbors(x_ND, 30, blocks)
    dense = np.sqrt(((x_ND[:, None] - x_ND[None]) ** 2).sum(-1))
    np.testing.assert_allclose(near.r_MK, np.sort(dense, axis=1)[:, 1:31], rtol=1e-7)
    for g in (0, 4, 9):
        left = dense[np.ix_(blocks != g, blocks != g)]
        np.testing.assert_allclose(near.without(g), np.sort(left, axis=1)[:, 1:31], rtol=1e-7)
        # Of a block that is left out, a point outside it has all its neighbors still.
        np.testing.assert_allclose(
            neighbors(x_ND[blocks != g], 30).r_MK, np.sort(left, axis=1)[:, 1:31], rtol=1e-7
        )


def test_equal_points_count_once_and_are_counted():
    rng = np.random.default_rng(4)
    x_ND = rotated(rng.normal(size=(400, 3)), 12)
    order = rng.permutation(1200)
    again = np.concatenate([x_ND, x_ND, x_ND * (1 + 1e-9)])[order]  # equal to the last bit, and but for it
    once, twice = measured(x_ND), measured(again)
    assert (twice.n, twice.distinct) == (1200, 400)
    assert twice.two_nn.value == pytest.approx(once.two_nn.value, rel=1e-5)
    assert twice.mle.value == pytest.approx(once.mle.value, rel=1e-5)
    assert len(distinct(np.tile(x_ND[:1], (50, 1)))) == 1


def published_iso_score(x_ND):
    """IsoScore step by step as its paper describes it (Rudman et al. 2022, section 3)."""
    centered = x_ND - x_ND.mean(0)
    axes = np.linalg.svd(centered, full_matrices=False)[2]
    n = x_ND.shape[1]
    diagonal = np.diag(np.cov((centered @ axes.T).T))
    normalized = np.sqrt(n) * diagonal / np.linalg.norm(diagonal)
    defect = np.linalg.norm(normalized - np.ones(n)) / np.sqrt(2 * (n - np.sqrt(n)))
    share = (n - defect**2 * (n - np.sqrt(n))) ** 2 / n**2
    return (n * share - 1) / (n - 1)


def test_iso_score_is_the_published_one():
    rng = np.random.default_rng(5)
    for scale in (np.ones(9), np.arange(1, 10), 10.0 ** -np.arange(9)):
        x_ND = rng.normal(size=(300, 9)) * scale + 3
        assert iso_score(variances(x_ND)) == pytest.approx(published_iso_score(x_ND), abs=1e-9)
        assert measured(x_ND).iso_score.value == pytest.approx(published_iso_score(x_ND), abs=1e-9)


def test_effective_rank_and_residual_by_singular_values():
    rng = np.random.default_rng(6)
    x_ND = rng.normal(size=(200, 8)) * np.arange(1, 9) + 5
    centered = x_ND - x_ND.mean(0)
    share = np.linalg.svd(centered, compute_uv=False)
    share /= share.sum()
    expected = np.exp(-(share * np.log(share)).sum())
    assert effective_rank(variances(x_ND)) == pytest.approx(expected, rel=1e-9)
    one = measured(x_ND)
    assert one.effective_rank.value == pytest.approx(expected, rel=1e-9)
    assert one.residual.value == pytest.approx(np.linalg.norm(centered) / np.linalg.norm(x_ND), rel=1e-9)
    assert one.norm.value == pytest.approx(np.linalg.norm(x_ND, axis=1).mean(), rel=1e-12)


def pairwise_cosine(x_ND):
    unit = x_ND / np.linalg.norm(x_ND, axis=1, keepdims=True)
    return (unit @ unit.T)[~np.eye(len(x_ND), dtype=bool)].mean()


def test_fewer_tokens_than_dimensions_are_measured_the_same_way():
    """The spectrum then comes from products of tokens: empty dimensions added take that way."""
    rng = np.random.default_rng(15)
    x_ND = rng.normal(size=(60, 59)) * np.arange(1, 60) + 1
    wide = measured(rotated(x_ND, 200))
    plain = measured(x_ND)
    for name in ("participation_ratio", "effective_rank", "anisotropy", "residual", "norm"):
        for end in ("value", "low", "high"):
            expected = getattr(getattr(plain, name), end)
            assert getattr(getattr(wide, name), end) == pytest.approx(expected, rel=1e-6), name
    for one, other in zip(wide.anisotropy_without, plain.anisotropy_without, strict=True):
        assert one.anisotropy.value == pytest.approx(other.anisotropy.value, abs=1e-9)
    assert wide.iso_score.value == pytest.approx((plain.participation_ratio.value - 1) / 199, rel=1e-6)


def test_anisotropy_is_the_mean_cosine_of_all_pairs_with_and_without_directions():
    rng = np.random.default_rng(7)
    x_ND = rng.normal(size=(250, 12))
    x_ND[:, 4] += 20  # one loud coordinate
    one = measured(x_ND)
    assert mean_cosine(x_ND) == pytest.approx(pairwise_cosine(x_ND), rel=1e-10)
    assert one.anisotropy.value == pytest.approx(pairwise_cosine(x_ND), rel=1e-10)
    assert one.anisotropy.value > 0.9
    axes = np.linalg.svd(x_ND)[2]
    for without in one.anisotropy_without:
        top = axes[: without.k]
        expected = pairwise_cosine(x_ND - x_ND @ top.T @ top)
        assert without.anisotropy.value == pytest.approx(expected, abs=1e-9)
    assert abs(one.anisotropy_without[0].anisotropy.value) < 0.02
    assert one.top_coordinate == 4
    assert one.top_coordinate_share > 0.98


def test_collapse_goes_to_zero_and_measures_do_not_depend_on_rotation_or_scale():
    rng = np.random.default_rng(8)
    x_ND = rng.normal(size=(300, 10))
    near = measured(5 + 1e-3 * x_ND)
    assert near.residual.value < 1e-3
    assert near.anisotropy.value > 0.999
    turned = measured(7 * rotated(x_ND, 10, seed=1))
    for name in ("two_nn", "mle", "participation_ratio", "effective_rank", "anisotropy", "residual"):
        assert getattr(turned, name).value == pytest.approx(
            getattr(measured(x_ND), name).value, rel=1e-6, abs=1e-9
        )


def test_shuffled_coordinates_lose_what_ties_them():
    rng = np.random.default_rng(9)
    one = measured(rotated(rng.normal(size=(800, 3)), 30), shuffled=True)
    assert one.two_nn.value < 3.5
    assert one.shuffled.two_nn.value > 12
    assert one.participation_ratio.value < 3.1
    assert one.shuffled.participation_ratio.value > 15


def test_intervals_are_no_narrower_than_the_spread_of_draws():
    """On independent points; by neighbors they are wider, as the jackknife may be but never narrower."""
    draws = [
        measured(np.random.default_rng(seed).normal(size=(300, 4)) * [1, 2, 3, 4] + [0, 0, 0, 3])
        for seed in range(40)
    ]
    for name in ("two_nn", "mle", "participation_ratio", "anisotropy", "residual", "norm"):
        estimates = [getattr(one, name) for one in draws]
        spread = np.std([one.value for one in estimates], ddof=1)
        half = np.sqrt(np.mean([((one.high - one.value) / student(9)) ** 2 for one in estimates]))
        assert 0.75 < half / spread < 2.2, (name, half / spread)


def test_the_sample_is_seeded_and_says_its_size():
    rng = np.random.default_rng(10)
    x_ND = rng.normal(size=(500, 5))
    first, again, other = (measured(x_ND, points=200, seed=seed) for seed in (1, 1, 2))
    assert (first.n, first.tokens) == (200, 500)
    assert first == again
    assert first.two_nn.value != other.two_nn.value
    special = np.zeros(500, dtype=bool)
    special[::5] = True
    assert measured(x_ND, special_N=special) == measured(x_ND[~special])


def test_too_few_points_are_refused_by_number():
    rng = np.random.default_rng(11)
    with pytest.raises(InvalidRequest, match="geometry needs at least 30 tokens, and there are 29"):
        geometry([rng.normal(size=(29, 4))])
    one = measured(rng.normal(size=(60, 4)))
    assert one.two_nn.value is None
    assert (
        one.two_nn.reason
        == "this estimate needs 100 different token vectors, and there are 60; use a longer text"
    )
    assert one.gride == ()
    assert one.participation_ratio.value is not None
    half = measured(rng.normal(size=(120, 4)))
    assert half.two_nn.value is not None
    assert half.mle.value is None
    assert "needs 160 different" in half.mle.reason


def test_what_cannot_be_measured_is_one_sentence():
    rng = np.random.default_rng(12)
    x_ND = rng.normal(size=(50, 4))
    with pytest.raises(InvalidRequest, match="no states"):
        geometry([])
    with pytest.raises(InvalidRequest, match=r"layer 1 have shape \(50,\)"):
        geometry([x_ND, x_ND[:, 0]])
    with pytest.raises(InvalidRequest, match="all 50 tokens are the same vector"):
        geometry([np.ones((50, 4))])
    with pytest.raises(InvalidRequest, match="points is 5000; it must be from 1 to 4096"):
        geometry([x_ND], points=5000)
    with pytest.raises(InvalidRequest, match="seed is -1"):
        geometry([x_ND], seed=-1, shuffled=True)
    with pytest.raises(InvalidRequest, match="special_N has 3 entries and the states have 50 tokens"):
        geometry([x_ND], special_N=np.zeros(3, dtype=bool))
    x_ND[3, 2] = np.nan
    with pytest.raises(NonFiniteResult, match="layer 0"):
        geometry([x_ND])


def test_watch_hears_every_layer_and_can_stop():
    recorded = []
    x_ND = np.random.default_rng(13).normal(size=(300, 3))
    geometry([x_ND] * 3, watch=lambda *said: recorded.append(said))
    assert list(dict.fromkeys(recorded)) == [("geometry", done, 3) for done in range(4)]
    assert len(recorded) > 3 * 10  # within layers too, so that it stops soon

    def stop(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        geometry([x_ND], watch=stop)


def test_no_square_of_all_points_is_held(monkeypatch):
    """Blocks of rows bound the memory: the largest array of distances is a block, not N x N."""
    import tracemalloc

    x_ND = np.random.default_rng(14).normal(size=(3000, 6))
    assert layers_module.MOST_POINTS == 4096
    tracemalloc.start()
    measured(x_ND)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3000 * 3000 * 8


def test_student():
    for freedom, value in ((7, 2.365), (8, 2.306), (9, 2.262), (27, 2.052), (1000, 1.962)):
        assert student(freedom) == pytest.approx(value, abs=0.01)
