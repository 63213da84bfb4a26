"""The cloud in three dimensions, against an eigendecomposition of the whole covariance and scikit-learn."""

import threading

import numpy as np
import pytest

from tests.support.explorable import FakeModel
from unmask.errors import Cancelled, InvalidRequest, MissingExtra, NonFiniteResult
from unmask.interpret.geometry import project, sense_cloud, word_sense_set
from unmask.interpret.geometry.projection import MOST_UMAP_TOKENS, _beside


def drawn(levels=3, tokens=60, width=20, seed=0):
    """Clouds whose variances differ by direction, each a turned and noisy version of the one before."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(tokens, width)) * np.geomspace(5, 0.1, width) + rng.normal(size=width)
    made = [x]
    for _ in range(levels - 1):
        turn, _ = np.linalg.qr(rng.normal(size=(width, width)))
        made.append(made[-1] @ turn + 0.05 * rng.normal(size=x.shape))
    return made


def distances(points):
    return np.linalg.norm(points[:, None] - points[None], axis=-1)


@pytest.mark.parametrize(("tokens", "width"), [(60, 20), (12, 40)])
def test_distances_and_shares_are_those_of_sklearn(tokens, width):
    PCA = pytest.importorskip("sklearn.decomposition").PCA
    states = drawn(tokens=tokens, width=width)
    projection = project(states)
    for level, x in enumerate(states):
        expected = PCA(3, svd_solver="full").fit(x)
        np.testing.assert_allclose(
            projection.explained_L3[level], expected.explained_variance_ratio_, rtol=1e-10
        )
        # Levels are turned, which keeps every distance.
        near = distances(expected.transform(x))
        np.testing.assert_allclose(distances(projection.points_LN3[level]), near, atol=1e-5)
    assert projection.points_LN3.dtype == np.float32
    assert projection.fitted == tokens


@pytest.mark.parametrize(("tokens", "width"), [(60, 20), (12, 40)])
def test_the_last_level_has_the_components_as_axes_with_signs_of_their_own(tokens, width):
    states = drawn(tokens=tokens, width=width)
    x = states[-1]
    values, vectors = np.linalg.eigh(np.cov(x.T))
    top = vectors[:, np.argsort(values)[::-1][:3]]
    top = top * np.sign(top[np.abs(top).argmax(0), range(3)])
    np.testing.assert_allclose(project(states).points_LN3[-1], (x - x.mean(0)) @ top, atol=1e-5)


def test_levels_are_turned_as_near_to_the_next_as_scipy_can():
    procrustes = pytest.importorskip("scipy.linalg").orthogonal_procrustes
    states = drawn(levels=4)
    points = project(states).points_LN3.astype(np.float64)
    alone = [project([x]).points_LN3[0].astype(np.float64) for x in states]
    for level in (2, 1, 0):
        turn, _ = procrustes(alone[level], points[level + 1])
        np.testing.assert_allclose(points[level], alone[level] @ turn, atol=1e-4)
    moved = np.linalg.norm(points[1:] - points[:-1])
    assert moved < 0.2 * np.linalg.norm(np.diff(alone, axis=0)), "without turning, points jump"


def test_a_shared_basis_is_the_pca_of_all_levels_together():
    states = drawn()
    projection = project(states, basis="shared")
    centered = [x - x.mean(0) for x in states]
    values, vectors = np.linalg.eigh(np.concatenate(centered).T @ np.concatenate(centered))
    top = vectors[:, np.argsort(values)[::-1][:3]]
    top = top * np.sign(top[np.abs(top).argmax(0), range(3)])
    for level, x in enumerate(centered):
        np.testing.assert_allclose(projection.points_LN3[level], x @ top, atol=1e-5)
        shares = ((x @ top) ** 2).sum(0) / (x**2).sum()
        np.testing.assert_allclose(projection.explained_L3[level], shares, rtol=1e-10)


def test_special_tokens_are_projected_and_determine_nothing():
    states = drawn(levels=2)
    special = np.zeros(60, dtype=bool)
    special[[0, 59]] = True
    plain = project([x[~special] for x in states])
    loud = [x.copy() for x in states]
    for x in loud:
        x[special] *= 1000
    projection = project(loud, special_N=special)
    np.testing.assert_allclose(projection.points_LN3[:, ~special], plain.points_LN3, atol=1e-5)
    np.testing.assert_allclose(projection.explained_L3, plain.explained_L3)
    assert np.abs(projection.points_LN3[:, special]).max() > 100
    assert projection.fitted == 58


def test_equal_tokens_are_one_point_without_variance():
    states = [np.full((6, 5), 0.1), *drawn(levels=1, tokens=6, width=5)]
    projection = project(states)
    assert not projection.points_LN3[0].any()
    assert not projection.explained_L3[0].any()
    assert projection.explained_L3[1].sum() > 0.5


def test_two_dimensions_are_filled_with_zeros():
    x = np.random.default_rng(0).normal(size=(9, 2))
    projection = project([x])
    assert not projection.points_LN3[0, :, 2].any()
    np.testing.assert_allclose(projection.explained_L3[0].sum(), 1)


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        ([], {}, "no states"),
        ([np.ones((3, 4))], {}, "3 tokens and a cloud needs at least 4"),
        ([np.ones((8, 4)), np.ones((7, 4))], {}, "level 1 has 7"),
        ([np.ones((8, 4))], {"special_N": np.ones(7, bool)}, "7 entries"),
        ([np.ones((8, 4))], {"special_N": np.ones(8, bool)}, "0 tokens"),
        ([np.ones((8, 4))], {"method": "tsne"}, "'tsne'"),
        ([np.ones((8, 4))], {"basis": "mine"}, "'mine'"),
        ([np.ones((8, 4))], {"method": "umap", "basis": "shared"}, "no shared basis"),
        ([np.ones((8, 4)), np.ones((8, 5))], {"basis": "shared"}, "[4, 5]"),
        ([np.ones((8, 4))], {"seed": -1}, "seed is -1"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(given, options, said):
    with pytest.raises(InvalidRequest) as caught:
        project(given, **options)
    assert said in str(caught.value)


def test_a_state_that_is_not_finite_is_an_error():
    with pytest.raises(NonFiniteResult):
        project([np.full((8, 4), np.nan)])


def test_it_tells_how_far_it_is_and_can_be_stopped():
    reports = []
    project(drawn(), watch=lambda *given: reports.append(given))
    assert reports == [("projecting", done, 3) for done in range(4)]

    def stop(what, done, total):
        if done == 1:
            raise Cancelled("enough")

    with pytest.raises(Cancelled):
        project(drawn(), watch=stop)


def test_without_the_extra_umap_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr("unmask.base.optional.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'unmask\[umap\]', or use PCA"):
        project(drawn(), method="umap")


def test_what_another_thread_computes_ticks_ends_and_fails_here():
    told, free = [], threading.Event()

    def tick():
        told.append(1)
        if len(told) == 4:
            free.set()

    assert _beside(lambda: free.wait(20), tick) is True
    assert len(told) >= 4
    for error in (TimeoutError, ValueError):
        with pytest.raises(error, match="of the work"):
            _beside(lambda error=error: (_ for _ in ()).throw(error("of the work")), lambda: None)

    def stop():
        raise Cancelled("enough")

    with pytest.raises(Cancelled):
        _beside(lambda: 1, stop)


@pytest.mark.slow
def test_umap_keeps_neighbors_together_and_is_the_same_every_time():
    pytest.importorskip("umap", reason="umap-learn is an extra")
    rng = np.random.default_rng(0)
    centers = 8 * rng.normal(size=(3, 10))
    labels = np.repeat([0, 1, 2], 20)
    states = [centers[labels] + rng.normal(size=(60, 10)) for _ in range(2)]
    projection = project(states, method="umap")
    assert projection.explained_L3 is None
    assert projection.points_LN3.shape == (2, 60, 3)
    for points in projection.points_LN3:
        near = distances(points) + 1e9 * np.eye(60)
        assert (labels[near.argmin(1)] == labels).all()
    np.testing.assert_array_equal(project(states, method="umap").points_LN3, projection.points_LN3)
    with pytest.raises(InvalidRequest, match=f"at most {MOST_UMAP_TOKENS}"):
        project([np.ones((MOST_UMAP_TOKENS + 1, 4))], method="umap")


def test_the_cloud_of_a_word_has_the_cosines_of_its_senses():
    model = FakeModel()
    sentences = [("left", "bank a b c"), ("right", "c b a bank")] * 4
    sense_set = word_sense_set(
        "bank", [(sense, f"{text} {'a ' * at}") for at, (sense, text) in enumerate(sentences)]
    )
    cloud = sense_cloud(model.encoder, model.tokenizer, sense_set)
    assert cloud.projection.points_LN3.shape == (len(model.spec.layers) + 1, 8, 3)
    from unmask.interpret.geometry.word_senses import encode_sentences, occurrence_states

    vectors = occurrence_states(model.encoder, encode_sentences(model.tokenizer, sense_set, None), sense_set)
    x = vectors[-1] / np.linalg.norm(vectors[-1], axis=1, keepdims=True)
    lost = distances(x) - distances(cloud.projection.points_LN3[-1])
    assert lost.min() > -1e-5, "a projection never makes a distance longer"
    np.testing.assert_allclose(
        (cloud.projection.points_LN3[-1] ** 2).sum(),
        cloud.projection.explained_L3[-1].sum() * ((x - x.mean(0)) ** 2).sum(),
        rtol=1e-5,
    )
