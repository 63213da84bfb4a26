"""Probes of the distance between tokens: states made by hand, controls, and encoders of every scheme."""

import json

import numpy as np
import pytest
import torch

import unmask
from tests.support.command import assert_one_sentence, run_here
from tests.support.explorable import CONFIG, folder_of
from unmask.errors import InvalidRequest, NonFiniteResult
from unmask.evaluate.probes import distances
from unmask.evaluate.probes.distances import measure_distances, pairs_of, probe_distances
from unmask.evaluate.probes.perplexity import Window, text_windows

FORMS = ("the", "river", "bank", "was", "muddy", "text", "another", "xy", "abc")


def window(ids):
    scored_N = np.ones(len(ids), dtype=bool)
    scored_N[[0, -1]] = False
    return Window(np.asarray(ids), scored_N, 1, 1)


def windows(count=60, tokens=40, seed=0):
    draw = np.random.default_rng(seed)
    return [window(draw.integers(5, 50, tokens)) for _ in range(count)]


class HandMade:
    """An engine whose states are a function of ids and positions."""

    dtype = "float32"

    def __init__(self, states):
        self.states = states
        self.spec = type("Spec", (), {"width": states(np.arange(3), np.arange(3)).shape[-1]})()

    def hidden_states(self, batch, layers):
        assert layers == "all"
        return np.stack([self.states(batch.ids_T, batch.layout.positions_T)] * 2).astype(np.float32)


NOISE_VD = np.random.default_rng(5).normal(size=(50, 6))


def with_position(ids, positions):
    """The position in one direction, and the token in all."""
    direction_D = np.array([1, -2, 0.5, 0, 3, 1])
    return NOISE_VD[ids] * 0.01 + positions[:, None] * direction_D


def without_position(ids, positions):
    return NOISE_VD[ids]


def test_a_position_in_the_states_is_read_and_is_not_in_a_random_order():
    pairs = pairs_of(windows(), 20)
    read = probe_distances(HandMade(with_position), pairs, [0, 1])
    for one in read["offset"]:
        assert one.r2 > 0.999
        assert one.error < 0.2
        assert one.r2_interval.low <= one.r2 <= one.r2_interval.high
    assert read["distance"][0].r2 > 0.9, "the distance is about linear in its square"
    for target in ("offset", "distance"):
        mixed = probe_distances(HandMade(with_position), pairs.shuffled(1), [0])[target][0]
        nothing = probe_distances(HandMade(without_position), pairs, [0])[target][0]
        for one in (mixed, nothing):
            assert abs(one.r2) < 0.08
            assert one.error == pytest.approx(pairs.error_of_mean(target), rel=0.05)


def test_figures_equal_a_plain_ridge_regression():
    pairs = pairs_of(windows(count=40, tokens=30, seed=3), 10, seed=2)
    draw = np.random.default_rng(8)
    table_VD = draw.normal(size=(50, 6))

    def states(ids, positions):
        return table_VD[ids] + 0.1 * positions[:, None] * np.array([1, 0, 0, -1, 0, 0])

    (found,) = probe_distances(HandMade(states), pairs, [0])["offset"]
    x, y = {}, {}
    for part in range(3):
        rows = [
            (states(pairs.ids[w], np.arange(30))[b] - states(pairs.ids[w], np.arange(30))[a], b - a)
            for w in np.flatnonzero(pairs.part_W == part)
            for a, b in pairs.places_WP2[w]
        ]
        x[part] = np.array([row for row, _ in rows], dtype=np.float32).astype(float)
        y[part] = np.array([offset for _, offset in rows], dtype=float)
    mean, deviation = x[0].mean(0), x[0].std(0)
    train, dev, test = ((x[part] - mean) / deviation for part in range(3))
    errors = {}
    for strength in (1, 0.1, 0.01, 0.001, 0.0001):
        square = train.T @ train / len(train) + strength * np.eye(6)
        weight = np.linalg.solve(square, train.T @ (y[0] - y[0].mean()) / len(train))
        errors[strength] = [part @ weight + y[0].mean() - y[n] for part, n in ((dev, 1), (test, 2))]
    best = min(errors, key=lambda strength: (errors[strength][0] ** 2).sum())
    error = errors[best][1]
    assert found.strength == best
    assert found.error == pytest.approx(np.abs(error).mean(), rel=1e-5)
    assert found.r2 == pytest.approx(1 - (error**2).sum() / ((y[2] - y[0].mean()) ** 2).sum(), rel=1e-5)
    assert 0.1 < found.r2 < 0.9


def test_pairs_are_of_the_text_at_every_distance_alike():
    given = windows(count=100)
    pairs = pairs_of(given, 20, seed=1)
    far = np.abs(pairs.offsets_WP)
    assert np.bincount(far.ravel(), minlength=21)[1:].min() > 0.8 * far.size / 20
    assert abs(pairs.offsets_WP.mean()) < 1
    np.testing.assert_array_equal(pairs.places_WP2[..., 1] - pairs.places_WP2[..., 0], pairs.offsets_WP)
    assert pairs.places_WP2.min() >= 1, "special tokens are in no pair"
    assert pairs.places_WP2.max() <= 38
    assert [(pairs.part_W == part).sum() for part in range(3)] == [70, 15, 15]
    mixed = pairs.shuffled(3)
    for number in range(100):
        old, new = pairs.ids[number], mixed.ids[number]
        assert sorted(old) == sorted(new)
        assert (old[[0, -1]] == new[[0, -1]]).all()
        np.testing.assert_array_equal(old[pairs.places_WP2[number]], new[mixed.places_WP2[number]])
    assert not np.array_equal(mixed.places_WP2, pairs.places_WP2)
    np.testing.assert_array_equal(mixed.offsets_WP, pairs.offsets_WP)


def test_layers_are_read_in_groups_that_fit_in_memory(monkeypatch):
    pairs, engine = pairs_of(windows(), 20), HandMade(with_position)
    together = probe_distances(engine, pairs, [0, 1])
    runs = []
    real = distances._differences
    monkeypatch.setattr(distances, "_differences", lambda *at: runs.append(list(at[2])) or real(*at))
    monkeypatch.setattr(distances, "STATES_BYTES", 1)
    assert probe_distances(engine, pairs, [0, 1]) == together
    assert runs == [[0], [1]]


def test_what_cannot_be_probed_is_one_sentence():
    with pytest.raises(InvalidRequest, match="largest distance is 1; it must be at least 2"):
        pairs_of(windows(), 1)
    with pytest.raises(InvalidRequest, match="10 windows hold a distance of 32 tokens, and 20 are needed"):
        pairs_of(windows(count=10) + windows(tokens=20), 32)
    broken = HandMade(lambda ids, positions: np.full((len(ids), 3), np.inf))
    with pytest.raises(NonFiniteResult, match="a hidden state is not finite"), np.errstate(invalid="ignore"):
        probe_distances(broken, pairs_of(windows(), 20), [0])


@pytest.fixture(scope="module")
def folder():
    return folder_of("distances", 0, json.dumps(CONFIG))


def prose(words=2000):
    return " ".join(np.random.default_rng(0).choice(FORMS, words).tolist())


def test_a_model_with_positions_knows_them_and_one_without_does_not():
    found = {}
    for name in ("learned", "unordered"):
        model = unmask.load(f"variant/{name}")
        some = text_windows(model, [[prose()]], tokens=40, limit=60)
        found[name] = measure_distances(model, some, source="words", largest=16, random=False)
    assert found["learned"].positions == ("learned positions",)
    assert found["unordered"].positions == ()
    first = found["learned"].layers[0]
    assert first.offset.r2 > 0.3
    assert abs(first.shuffled_offset.r2) < 0.1
    assert first.random_offset is None
    assert all(abs(layer.offset.r2) < 0.1 for layer in found["unordered"].layers)
    assert found["learned"].pairs == {"train": 42 * 64, "dev": 9 * 64, "test": 9 * 64}


@pytest.mark.parametrize(
    ("name", "says"),
    [("unmask-mini", "RoPE"), ("variant/alibi", "ALiBi"), ("variant/disentangled", "disentangled")],
)
def test_every_position_scheme_is_named(name, says):
    positions = distances._positions(unmask.load(name).spec)
    assert any(says in one for one in positions), positions


def test_the_random_baseline_and_the_layer_are_those_asked_for(folder):
    from unmask.engines.torch_engine import TorchEngine
    from unmask.interpret.geometry.reading import random_baseline

    model = unmask.load(folder)
    some = text_windows(model, [[prose()]], tokens=24, limit=40)
    told = []
    found = measure_distances(
        model, some, source="words", largest=8, layer=2, shuffled=False, seed=4,
        progress=lambda *at: told.append(at),
    )  # fmt: skip
    (one,) = found.layers
    assert one.layer == 2
    assert one.shuffled_distance is None
    pairs = pairs_of(some, 8, 4)
    baseline = TorchEngine(random_baseline(model.encoder, 4))
    assert one.random_offset == probe_distances(baseline, pairs, [2])["offset"][0]
    assert one.distance == probe_distances(model.engine, pairs, [2])["distance"][0]
    assert told[-1] == (4, 4)
    assert found.offset_error == pytest.approx(pairs.error_of_mean("offset"))


def test_the_command(folder, tmp_path):
    text = tmp_path / "words.txt"
    text.write_text(prose())
    given = ("evaluate", "distances", "-m", folder, "--data", text, "--tokens", 24, "--distance", 8)
    ran = run_here(*given, "--limit", 30, "--json")
    assert ran.code == 0, ran.err
    report = json.loads(ran.out)
    assert report["probe"] == "distances"
    assert report["windows"] == {"train": 21, "dev": 5, "test": 4}
    assert len(report["layers"]) == 4
    shown = run_here(*given, "--limit", 30, "--no-random", "--layer", 0)
    assert shown.code == 0, shown.err
    assert "shuffled offset" in shown.out
    assert "random offset" not in shown.out
    assert_one_sentence(run_here(*given, "--limit", 5), "20 are needed")
    assert_one_sentence(run_here(*given, "--layer", 9), "layer is 9")
    assert_one_sentence(run_here(*given, "--limit", 0), "limit is 0")
    assert_one_sentence(run_here(*given, "--seed", -1), "seed is -1")


@pytest.fixture(autouse=True)
def one_thread():
    """Small products; more threads would wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
